"""β-smoothness by distance along the gradient, without and with BatchNorm: python benchmarks/smoothness.py (minutes).

Trains a network by SGD with each of two methods, two learning rates and three seeds, looks along the gradient of the
step at hand, and prints the median β at each multiple of the step, as tables: over all measurements
and seeds, and between which values the medians of the single seeds lie. The distance is s·η·‖g‖: a row for s·η, in
which two learning rates can be compared, stands above. Measured is before each of some steps, the first of them not at
the start. CIFAR-10 has to be there (TRIMTAB_DATA, or data). --save keeps what was measured, as JSON.
"""

import argparse
import json
import time
from collections.abc import Sequence
from itertools import chain, count, islice
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.data import Dataset, batches, load
from trimtab.networks import build
from trimtab.norms import Norm
from trimtab.probes import Landscape, LandscapeResult
from trimtab.records import machine

METHODS = {"vanilla": "none", "BN": "bn"}


def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Cross-entropy."""
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def measured(told: argparse.Namespace, dataset: Dataset, method: str, rate: float, seed: int) -> list[LandscapeResult]:
    """What the probe found along one training."""
    torch.manual_seed(seed)
    model = build(told.network, Norm(METHODS[method]))
    optimizer = torch.optim.SGD(model.parameters(), rate)
    probe = Landscape(optimizer=optimizer, multiples=told.multiples)
    generator = torch.Generator().manual_seed(seed)
    found = []
    passes = (batches(dataset.train, told.batch, dataset=dataset, generator=generator) for _ in count())
    for step, batch in enumerate(islice(chain.from_iterable(passes), told.steps)):
        if step % told.every == 0 and step >= told.first:
            result = probe(model, loss_fn, batch)
            if result.problem:
                raise SystemExit(f"{method}, learning rate {rate:g}, seed {seed}, step {step}: {result.problem}")
            found.append(result)
        optimizer.zero_grad()
        loss_fn(model, batch).backward()
        optimizer.step()
    return found


def medians(results: Sequence[LandscapeResult]) -> list[float]:
    """The median β at each multiple."""
    return [median(column) for column in zip(*(one.smoothness_by_multiple for one in results), strict=True)]


def row(method: str, by_seed: Sequence[Sequence[LandscapeResult]]) -> str:
    """Of the table: median β by multiple, the maximum, and at which multiples that was."""
    every = [one for results in by_seed for one in results]
    seeds = [medians(results) for results in by_seed]
    columns = zip(medians(every), zip(*seeds, strict=True), strict=True)
    cells = [f"{middle:.3g} ({min(ends):.3g} to {max(ends):.3g})" for middle, ends in columns]
    largest = median(one.smoothness for one in every)
    where = median(one.smoothness_multiple for one in every)
    edge = sum(one.smoothness_at_edge for one in every)
    near = sum(one.smoothness_multiple == min(one.multiples) for one in every)
    at = f"{where:g}; at an edge {edge} of {len(every)} times, at the nearest {near}"
    return f"| {method} | {' | '.join(cells)} | {largest:.3g} | {at} |"


def main() -> None:
    """Print a table for each learning rate."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", default="cnn5")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=390, help="a pass over the data has 390")
    parser.add_argument("--first", type=int, default=40, help="step of the first measurement")
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.1, 0.02])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--multiples", type=float, nargs="+", default=[0.25, 0.5, 1.0, 2.0, 4.0, 8.0])
    parser.add_argument("--save", type=Path, help="a file for all that was measured")
    told = parser.parse_args()
    told.multiples = tuple(told.multiples)
    dataset = load("cifar10")
    print(f"{told.network}, CIFAR-10, batch {told.batch}, {told.steps} steps of SGD, {told.seeds} seeds; {machine()}.")
    kept: list[dict[str, Any]] = []
    begin = time.monotonic()
    for rate in told.rates:
        heads = [f"{s:g}" for s in told.multiples]
        print(f"\nLearning rate {rate:g}:\n")
        print(f"| multiple of the step | {' | '.join(heads)} | largest | at multiple |")
        print(f"|---|{'---|' * (len(heads) + 2)}")
        print(f"| distance over ‖g‖ | {' | '.join(f'{rate * s:.3g}' for s in told.multiples)} | | |")
        for method in METHODS:
            by_seed = [measured(told, dataset, method, rate, seed) for seed in range(told.seeds)]
            print(row(method, by_seed), flush=True)
            kept += [
                {"method": method, "rate": rate, "seed": seed, **one.to_dict()}
                for seed, results in enumerate(by_seed)
                for one in results
            ]
    print(f"\n{time.monotonic() - begin:.0f} seconds.")
    if told.save:
        told.save.write_text(json.dumps(kept), encoding="utf-8")


if __name__ == "__main__":
    main()
