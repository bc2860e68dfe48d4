"""Predicted λ_max (`trimtab.predict(measure=False)`) against Gram matrices of networks with fresh weights.

    python benchmarks/meanfield_cross.py inputs                  # samples of MNIST and CIFAR-10, to take along
    python benchmarks/meanfield_cross.py measure --device cuda   # or --device cpu; resumed where it was stopped
    python benchmarks/meanfield_cross.py predict                 # --device cuda: with the draws that a CPU would make
    python benchmarks/meanfield_cross.py table --worst 30        # --formulas: of mean field's formulas alone

All take --seed, --networks, --only, --samples and --folder. Several processes share the work by --shard 0/4 … 3/4.
A case is a network, its data and its mode: `frozen`, `train`, or `plain` where there is no BatchNorm. Measured is the
mean over draws of the weights, on the same images; white noise, which is predicted without inputs, is drawn each time.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from json_lines import append_line, read_lines
from meanfield_gram import TARGETS, eigenvalues
from meanfield_networks import DATA, OUTPUTS, Shape, Spec, build, describe, draw, has_batch_norm, input_shape, work
from torch import Tensor

POOL = 1024  # images of each data set, from which a network's samples are taken
KEY = ("seed", "index", "data", "mode", "samples")


@dataclass(frozen=True)
class Case:
    """A network with its data and mode.

    Attributes:
        seed: Of the cross.
        index: Of the network.
        data: Its inputs.
        mode: `frozen`, `train` or `plain`.
        samples: How many.
        spec: The network.
    """

    seed: int
    index: int
    data: str
    mode: str
    samples: int
    spec: Spec

    @property
    def key(self) -> dict[str, Any]:
        """What it is known by."""
        return {name: getattr(self, name) for name in KEY}

    @property
    def shape(self) -> Shape:
        """Of one input."""
        return input_shape(self.spec, self.data)

    @property
    def cost(self) -> float:
        """Operations of a Gram matrix, about."""
        rows = OUTPUTS * self.samples if self.mode == "train" else OUTPUTS
        return 2 * self.samples * rows * work(self.spec, self.shape) + 2e9

    def number(self, *words: object) -> int:
        """A seed for something of this network and these data: frozen and train mode have the same draws."""
        return Random(" ".join(map(str, (self.seed, self.index, self.data, *words)))).getrandbits(48)


def cases(seed: int, indices: list[int], samples: int, data: tuple[str, ...] = DATA) -> list[Case]:
    """All cases of these networks."""
    found = []
    for index in indices:
        spec = draw(seed, index)
        modes = ("frozen", "train") if has_batch_norm(spec) else ("plain",)
        found += [Case(seed, index, name, mode, samples, spec) for name in data for mode in modes]
    return found


def share(whole: list[Case], number: int, count: int) -> list[Case]:
    """One of several parts that take about equally long."""
    parts: list[list[Case]] = [[] for _ in range(count)]
    loads = [0.0] * count
    for case in sorted(whole, key=lambda case: -case.cost):
        least = loads.index(min(loads))
        parts[least].append(case)
        loads[least] += case.cost
    return sorted(parts[number], key=lambda case: (case.index, DATA.index(case.data), case.mode))


def write_pool(path: Path) -> None:
    """Keep some images of MNIST and CIFAR-10 in a small file."""
    from trimtab.data import load

    images = {}
    for name in DATA[1:]:
        inputs = load(name).train.inputs
        chosen = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))[:POOL]
        images[name] = inputs[chosen].numpy()
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **images)  # type: ignore[arg-type]


def inputs_of(case: Case, pool: dict[str, Any], number: int | str) -> Tensor:
    """The samples of a case: images standardized by channel, at the size it needs; white noise for each draw."""
    generator = torch.Generator().manual_seed(case.number("inputs", number if case.data == "white" else ""))
    if case.data == "white":
        return torch.randn(case.samples, *case.shape, generator=generator)
    x = torch.from_numpy(pool[case.data]).float()
    if len(case.shape) == 3 and case.shape[1] < x.shape[2]:
        x = F.avg_pool2d(x, 2)
    x = (x - x.mean((0, 2, 3), keepdim=True)) / x.std((0, 2, 3), keepdim=True)
    return x[torch.randperm(len(x), generator=generator)[: case.samples]].reshape(-1, *case.shape)


def read(paths: list[Path]) -> Iterator[dict[str, Any]]:
    """The lines of some files."""
    for path in paths:
        yield from read_lines(path)


def measurements(folder: Path) -> dict[tuple[Any, ...], list[list[float]]]:
    """What was measured, a row for each draw; of a case that is there twice what has more draws."""
    found: dict[tuple[Any, ...], list[list[float]]] = {}
    for one in read(sorted(folder.glob("measured*.jsonl"))):
        key = tuple(one[name] for name in KEY)
        found[key] = max(found.get(key, []), one["values"], key=len)
    return found


def standard_error(values: list[list[float]]) -> float:
    """The largest standard error of the three means, as a share of the mean; infinite for fewer than two draws."""
    if len(values) < 2:
        return float("inf")
    deviation = np.std(values, 0, ddof=1) / np.mean(values, 0)
    return float(deviation.max() / np.sqrt(len(values)))


def measure(some: list[Case], folder: Path, options: argparse.Namespace) -> None:
    """Measure the draws that are not there yet."""
    pool = dict(np.load(folder / "inputs.npz"))
    kept = measurements(folder)
    begin = time.perf_counter()
    device = torch.device(options.device)
    for case in some:
        values = list(kept.get(tuple(case.key.values()), ()))
        had = len(values)
        start = time.perf_counter()
        for number in range(had, max(options.draws, options.most)):
            if number >= options.draws and standard_error(values) <= options.error:
                break
            if time.perf_counter() - begin > options.limit_seconds:
                print("out of time", flush=True)
                return
            model = build(case.spec, case.shape, case.number("weights", number)).to(device)
            x = inputs_of(case, pool, number).to(device)
            found = eigenvalues(model, x, frozen=case.mode == "frozen", memory=options.memory * 1e9)
            values.append([getattr(found, target) for target in TARGETS])
        if len(values) == had:
            continue
        each = (time.perf_counter() - start) / (len(values) - had)
        record = {**case.key, "values": values, "seconds": round(each, 4), "device": device.type}
        append_line(folder / f"measured{options.part}.jsonl", record)
        mean = np.mean(values, 0)
        print(
            f"{case.index:>3} {case.data:<8}{case.mode:<7}" + "".join(f"{value:>10.4g}" for value in mean),
            f"{each:7.3f} s a Gram matrix  {describe(case.spec)}",
            flush=True,
        )


def predict(some: list[Case], folder: Path, options: argparse.Namespace) -> None:
    """Predict all, anew."""
    pool = dict(np.load(folder / "inputs.npz"))
    path = folder / f"predicted{options.part}.jsonl"
    path.unlink(missing_ok=True)
    for case in some:
        for target in TARGETS:
            record = {**case.key, "target": target, **predicted(case, pool, target, options.given, options.device)}
            append_line(path, record)
            beside = "  flagged" if record["unseen"] else ""
            value = "failed" if record["predicted"] is None else f"{record['predicted']:.4g}"
            print(f"{case.index:>3} {case.data:<8}{case.mode:<7}{target:<4}{value:>10}{beside}", flush=True)


def predicted(
    case: Case, pool: dict[str, Any], target: str, given: bool = False, device: str = "cpu"
) -> dict[str, Any]:
    """What `trimtab.predict` says: a value, what it leaves out, and how long it took."""
    import trimtab
    from trimtab.prediction import drawing

    drawing.WORK["cuda"] = drawing.WORK["cpu"]
    model = build(case.spec, case.shape, case.number("predicted")).to(device)
    inputs = None if case.data == "white" and not given else inputs_of(case, pool, "predicted").to(device)
    begin = time.perf_counter()
    try:
        found = trimtab.predict(
            model,
            case.shape,
            loss="cross_entropy" if target == "ce" else "squared",
            outputs="one" if target == "one" else "all",
            statistics="frozen" if case.mode == "frozen" else "batch",
            inputs=inputs,
            samples=case.samples,
            batch_size=case.samples,
            measure=False,
        )
    except (ValueError, ArithmeticError) as error:
        return {"predicted": None, "unseen": [f"{type(error).__name__}: {error}"], "seconds": 0.0}
    seconds = round(time.perf_counter() - begin, 3)
    formulas = {"formulas": found.predicted, "formulas_unseen": list(found.formulas_unseen)}
    drawn = {} if found.drawn is None else {"draws": found.drawn.draws, "spread": round(found.drawn.spread, 4)}
    return {"predicted": found.lambda_max, "unseen": list(found.unseen), **formulas, **drawn, "seconds": seconds}


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("inputs", "measure", "predict", "table", "list"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--networks", type=int, default=60)
    parser.add_argument("--only", help="numbers of networks, as 0,3,5-9")
    parser.add_argument("--family", choices=("dense", "conv", "residual"))
    parser.add_argument("--data", default=",".join(DATA))
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--most", type=int, default=0, help="draws while the standard error is above --error")
    parser.add_argument("--error", type=float, default=0.02)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--memory", type=float, default=2.0, help="GB that the gradients of a chunk may take")
    parser.add_argument("--limit-seconds", type=float, default=float("inf"))
    parser.add_argument("--shard", default="0/1")
    parser.add_argument("--folder", type=Path, default=Path("cross"))
    parser.add_argument("--given", action="store_true", help="predict white noise from drawn inputs, too")
    parser.add_argument("--worst", type=int, default=0)
    parser.add_argument("--formulas", action="store_true", help="the table of mean field's formulas alone")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.part = "" if options.shard == "0/1" else "-" + options.shard.replace("/", "-of-")
    return options


def numbers(text: str) -> list[int]:
    """The numbers in 0,3,5-9."""
    ranges = [part.split("-") for part in text.split(",")]
    return [number for one in ranges for number in range(int(one[0]), int(one[-1]) + 1)]


def main() -> None:
    """Do what was asked for."""
    options = parse()
    torch.backends.cudnn.allow_tf32 = False
    if options.command == "inputs":
        write_pool(options.folder / "inputs.npz")
        return
    indices = numbers(options.only) if options.only else list(range(options.networks))
    whole = cases(options.seed, indices, options.samples, tuple(options.data.split(",")))
    whole = [case for case in whole if options.family in (None, case.spec["family"])]
    number, count = map(int, options.shard.split("/"))
    if options.command == "measure":
        measure(share(whole, number, count), options.folder, options)
    elif options.command == "predict":
        predict(share(whole, number, count), options.folder, options)
    elif options.command == "list":
        for index, spec in {case.index: case.spec for case in whole}.items():
            print(f"{index:>3} {work(spec, input_shape(spec, 'cifar10')) / 1e6:6.1f} M  {describe(spec)}")
    else:
        from meanfield_cross_table import show

        show(whole, options)


if __name__ == "__main__":
    main()
