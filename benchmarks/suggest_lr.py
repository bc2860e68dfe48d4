"""trimtab.suggest_lr beside a fine sweep and the lr-finder rule: python benchmarks/suggest_lr.py --settings second.

In each setting (network, data, batch size, optimizer, schedule) a sweep trains at rates a factor of 1.5 apart, with 3
seeds, and judges on validation data: first every fourth rate with one seed, then all those around the best. The spread
of the best rate is that of its 3 seeds, from the lowest to the highest. suggest_lr, asked once for each seed, succeeds
if the mean of its trainings is not above that of the best rate by more than this spread. The rule of lr-finder
(steepest descent of the smoothed loss while the rate grows from 1e-7 to 100 in 100 steps, as in the readme of
torch-lr-finder) is judged alike, if that package is there. What a search costs is counted in forwards with their
backward.

suggest_lr was made with the settings `development` in view. Those named `first` were held out from its first version,
in which rates that decay were not extrapolated to the length of the training, `second` from the one after that, in
which their trials were half as long, and `third` from the present one.
Each training is a line of JSON in --out; a run that was stopped goes on where it was. --table prints what was found.
"""

import argparse
import copy
import math
import time
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from io import StringIO
from itertools import islice
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from divergence_networks import conv, dense, residual_conv, residual_dense
from json_lines import append_line, read_lines
from small_trainings import (
    OPTIMIZERS,
    SCHEDULES,
    Samples,
    batches_of,
    draw_samples,
    loss_fn,
    train,
)
from torch import nn

import trimtab
from trimtab.records import machine

RESULTS = Path(__file__).parent / "results" / "suggest_lr.jsonl"
SEEDS = (0, 1, 2)
FACTOR, COARSE, AROUND = 1.5, 4, 4
"""Between rates of the sweep; every so many are tried first; then so many on each side of the best of them."""
LOWEST, HIGHEST = 1e-5, 30.0
DRAWN = 260  # batches that suggest_lr may take


@dataclass(frozen=True)
class Setting:
    """A training without its rate.

    Attributes:
        data: A data set.
        network: Makes a network for inputs of some shape.
        optimizer: One of `OPTIMIZERS`.
        batch_size: Of its batches.
        schedule: One of `SCHEDULES`.
        steps: How many.
    """

    data: str
    network: Callable[[tuple[int, ...]], nn.Module]
    optimizer: str
    batch_size: int
    schedule: str
    steps: int = 500

    def samples(self) -> Samples:
        """The data."""
        return draw_samples(self.data, 1200, 400) if self.data == "digits" else draw_samples(self.data, 4000, 1000)

    def model(self, seed: int) -> nn.Module:
        """The network at its start."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.network(self.samples().shape)


def _dense(*widths: int, **more: Any) -> Callable[[tuple[int, ...]], nn.Module]:
    return lambda shape: dense(shape, *widths, **more)


def _conv(*filters: int, **more: Any) -> Callable[[tuple[int, ...]], nn.Module]:
    return lambda shape: conv(shape, *filters, **more)


DEVELOPMENT = {
    "dense 64-64, digits, SGD": Setting("digits", _dense(64, 64), "sgd", 16, "constant"),
    "dense 64-64, digits, BNP": Setting("digits", _dense(64, 64), "bnp", 4, "constant"),
    "conv 8-16 BN, MNIST, momentum": Setting("mnist", _conv(8, 16, norm="bn"), "momentum", 32, "decay"),
}
FIRST = {
    "residual dense BN, digits, SGD": Setting(
        "digits", partial(residual_dense, norm="bn"), "sgd", 32, "constant", steps=600
    ),
    "dense 100-100 BN, MNIST, momentum": Setting("mnist", _dense(100, 100, norm="bn"), "momentum", 64, "decay"),
    "conv 8-16 GN, MNIST, Adam": Setting("mnist", _conv(8, 16, pool="stride", norm="gn"), "adam", 32, "constant"),
    "dense 4×64 tanh, MNIST, BNP": Setting("mnist", _dense(*[64] * 4, activation="tanh"), "bnp", 8, "decay", steps=600),
    "dense 200, CIFAR-10, SGD": Setting("cifar10", _dense(200), "sgd", 16, "decay"),
    "conv 8-16-16, CIFAR-10, BNP": Setting("cifar10", _conv(8, 16, 16, pool="stride"), "bnp", 16, "constant"),
    "conv 8-16 BN, CIFAR-10, momentum": Setting(
        "cifar10", _conv(8, 16, pool="stride", norm="bn"), "momentum", 16, "constant"
    ),
    "dense 50-50-50 GELU, CIFAR-10, Adam": Setting(
        "cifar10", _dense(50, 50, 50, activation="gelu"), "adam", 64, "decay"
    ),
}
SECOND = {
    "dense 6×48 LN, digits, momentum": Setting("digits", _dense(*[48] * 6, norm="ln"), "momentum", 16, "constant"),
    "dense 100-100, MNIST, SGD": Setting("mnist", _dense(100, 100), "sgd", 32, "decay", steps=600),
    "dense 100-100, CIFAR-10, BNP": Setting("cifar10", _dense(100, 100), "bnp", 8, "decay"),
    "residual conv BN, digits, momentum": Setting(
        "digits", partial(residual_conv, norm="bn"), "momentum", 32, "constant"
    ),
    "conv 8-16-8, MNIST, BNP": Setting("mnist", _conv(8, 16, 8, pool="stride"), "bnp", 32, "constant"),
    "dense 50-50-50 BN after ReLU, MNIST, Adam": Setting(
        "mnist", _dense(50, 50, 50, norm="bn", after=True), "adam", 64, "constant"
    ),
    "conv 8-16 BN, digits, Adam": Setting("digits", _conv(8, 16, pool="stride", norm="bn"), "adam", 16, "decay"),
    "residual dense, CIFAR-10, momentum": Setting("cifar10", residual_dense, "momentum", 32, "decay", steps=600),
}
THIRD = {
    "dense 80-80 tanh, digits, SGD": Setting("digits", _dense(80, 80, activation="tanh"), "sgd", 8, "constant"),
    "conv 12-24 GN, CIFAR-10, momentum": Setting(
        "cifar10", _conv(12, 24, pool="stride", norm="gn"), "momentum", 32, "decay"
    ),
    "dense 150-50, digits, BNP": Setting("digits", _dense(150, 50), "bnp", 8, "constant"),
    "residual dense LN, MNIST, Adam": Setting("mnist", partial(residual_dense, norm="ln"), "adam", 32, "constant"),
    "conv 6-12 BN, MNIST, SGD": Setting("mnist", _conv(6, 12, norm="bn"), "sgd", 16, "constant"),
    "dense 64-64-64 BN, CIFAR-10, Adam": Setting(
        "cifar10", _dense(64, 64, 64, norm="bn"), "adam", 32, "decay", steps=600
    ),
}
SETTINGS = {"development": DEVELOPMENT, "first": FIRST, "second": SECOND, "third": THIRD}


class NotDoneError(Exception):
    """Something is not in the file yet."""


class Results:
    """What was found in one setting, kept in a file: nothing is done twice.

    Args:
        path: The file.
        name: Of the setting.
        setting: The setting.
        seeds: Of the trainings.
        done: Whether everything has to be in the file.
    """

    def __init__(self, path: Path, name: str, setting: Setting, seeds: Iterable[int], *, done: bool = False) -> None:
        self.path, self.name, self.setting, self.seeds, self.done = path, name, setting, tuple(seeds), done
        self._known = {(row["kind"], row["seed"], row["rate"]): row for row in read_lines(path) if row["name"] == name}

    def _once(self, kind: str, seed: int, rate: float | None, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        if self.done and (kind, seed, rate) not in self._known:
            raise NotDoneError
        if (kind, seed, rate) not in self._known:
            begin = time.process_time()
            row = {"name": self.name, "kind": kind, "seed": seed, "rate": rate, **work()}
            row |= {"seconds": round(time.process_time() - begin, 2), "machine": machine(), "torch": torch.__version__}
            append_line(self.path, row)
            self._known[kind, seed, rate] = row
        return self._known[kind, seed, rate]

    def loss(self, rate: float, seed: int) -> float:
        """The validation loss of a training at this rate."""
        found = self._once("training", seed, rate, lambda: {"loss": trained(self.setting, rate, seed)})["loss"]
        return math.inf if found is None else float(found)

    def suggestion(self, seed: int) -> dict[str, Any]:
        """What suggest_lr finds."""
        return self._once("suggested", seed, None, lambda: suggested(self.setting, seed))

    def finder(self, seed: int) -> dict[str, Any]:
        """What the rule of lr-finder finds."""
        return self._once("finder", seed, None, lambda: found_by_finder(self.setting, seed))

    def sweep(self) -> dict[float, list[float]]:
        """The losses of all seeds, by rate, around the best."""
        places = range(math.ceil(math.log(LOWEST, FACTOR)), math.floor(math.log(HIGHEST, FACTOR)) + 1)
        first = self.seeds[0]
        coarse = {place: self.loss(FACTOR**place, first) for place in places if place % COARSE == 0}
        center = min(coarse, key=lambda place: coarse[place])
        return {
            FACTOR**place: [self.loss(FACTOR**place, seed) for seed in self.seeds]
            for place in range(center - AROUND, center + AROUND + 1)
        }


def trained(setting: Setting, rate: float, seed: int) -> float | None:
    """The validation loss at the end, None if it is not finite."""
    model = setting.model(seed)
    samples = setting.samples()
    batches = batches_of(samples.train, setting.batch_size, seed)
    optimizer = OPTIMIZERS[setting.optimizer](model, rate)
    schedule = SCHEDULES[setting.schedule]
    loss = train(model, optimizer, batches, samples.validation, setting.steps, schedule=schedule).loss
    return loss if math.isfinite(loss) else None


def suggested(setting: Setting, seed: int) -> dict[str, Any]:
    """The rate that suggest_lr finds, from an optimizer whose rate says nothing, and what it costs."""
    model = setting.model(seed)
    optimizer = OPTIMIZERS[setting.optimizer](model, 1e-3)
    batches = islice(batches_of(setting.samples().train, setting.batch_size, seed + 100), DRAWN)
    found = trimtab.suggest_lr(
        model,
        optimizer,
        loss_fn,
        batches,
        schedule="decay" if setting.schedule == "decay" else "constant",
        training_steps=setting.steps,
    )
    return {"found": found.rate, "cost": found.cost, "trend": found.trend, "edge": found.edge}


def found_by_finder(setting: Setting, seed: int) -> dict[str, Any]:
    """The rate at the steepest descent in a range test by torch-lr-finder, without the first 10 and the last 5 steps.

    That is what its plot suggests.
    """
    from torch_lr_finder import LRFinder

    model = setting.model(seed)
    optimizer = OPTIMIZERS[setting.optimizer](model, 1e-7)
    x, classes = setting.samples().train
    noise = torch.Generator().manual_seed(seed + 100)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x, classes), setting.batch_size, shuffle=True, generator=noise, drop_last=True
    )
    finder = LRFinder(model, optimizer, nn.functional.cross_entropy, device="cpu")
    with redirect_stderr(StringIO()), redirect_stdout(StringIO()):  # its bar and its words
        finder.range_test(loader, end_lr=100, num_iter=100)
    rates, losses = finder.history["lr"][10:-5], torch.tensor(finder.history["loss"][10:-5])
    return {"found": float(rates[int(torch.gradient(losses)[0].argmin())]), "cost": len(finder.history["lr"])}


def has_finder() -> bool:
    """Whether torch-lr-finder is there."""
    try:
        import torch_lr_finder  # noqa: F401
    except ImportError:
        return False
    return True


def verdict(results: Results, ways: Iterable[str]) -> dict[str, Any]:
    """The sweep's best beside what each way of choosing a rate leads to."""
    swept = results.sweep()
    best = min(swept, key=lambda rate: fmean(swept[rate]))
    losses = swept[best]
    row: dict[str, Any] = {
        "name": results.name,
        "rate": best,
        "loss": fmean(losses),
        "spread": max(losses) - min(losses),
        "edge": best in (min(swept), max(swept)),
        "good": [rate for rate in swept if fmean(swept[rate]) <= fmean(losses) + max(losses) - min(losses)],
    }
    for way in ways:
        found = [getattr(results, way)(seed) for seed in results.seeds]
        reached = [results.loss(one["found"], seed) for one, seed in zip(found, results.seeds, strict=True)]
        row[way] = {
            "rates": [one["found"] for one in found],
            "loss": fmean(reached),
            "cost": fmean(one["cost"] for one in found),
            "within": fmean(reached) <= row["loss"] + row["spread"],
        }
    return row


NAMES = {"suggestion": "suggest_lr", "finder": "lr-finder"}


def table(rows: list[dict[str, Any]]) -> str:
    """As Markdown."""
    ways = [way for way in NAMES if any(way in row for row in rows)]
    heads = ["setting", "sweep: best rate", "good rates", "loss (spread)"]
    heads += [f"{NAMES[way]}: {what}" for way in ways for what in ("rates", "loss", "within", "cost")]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in rows:
        cells = [row["name"], f"{row['rate']:.3g}{' (edge)' if row['edge'] else ''}"]
        cells += [f"{min(row['good']):.3g} to {max(row['good']):.3g}", f"{row['loss']:.4g} ({row['spread']:.2g})"]
        for way in ways:
            one = row[way]
            rates = ", ".join(f"{rate:.3g}" for rate in one["rates"])
            cells += [rates, f"{one['loss']:.4g}", "yes" if one["within"] else "no", f"{one['cost']:.0f}"]
        lines.append("| " + " | ".join(cells) + " |")
    for way in ways:
        within = sum(row[way]["within"] for row in rows)
        excess = sorted(100 * (row[way]["loss"] / row["loss"] - 1) for row in rows)
        lines += [
            f"\n{NAMES[way]}: within the seed spread in {within} of {len(rows)}; above the loss of the best rate by "
            f"{fmean(excess):.1f} % in the mean, {median(excess):.1f} % in the median, {excess[-1]:.0f} % at worst."
        ]
    if "finder" not in ways:
        lines.append("\nlr-finder was left out: torch-lr-finder is not installed.")
    return "\n".join(lines)


def main() -> None:
    """Do what is not done yet, and tell it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS, help="lines of JSON, one for each training and search")
    parser.add_argument("--settings", choices=SETTINGS, default="second")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="WORD", help="settings with one of these in their name"
    )
    parser.add_argument("--first-seed", type=int, default=0, help="of three")
    parser.add_argument("--steps", type=int, help="instead of a setting's own, to try the program")
    parser.add_argument("--table", action="store_true", help="only what is complete, nothing is trained")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = options.table and any(row["kind"] == "finder" for row in read_lines(options.out))
    ways = ["suggestion", *(["finder"] if found or has_finder() else [])]
    seeds = [options.first_seed + seed for seed in SEEDS]
    rows = []
    for name, setting in SETTINGS[options.settings].items():
        if options.only and not any(word in name for word in options.only):
            continue
        changed = copy.copy(setting)
        if options.steps:
            object.__setattr__(changed, "steps", options.steps)
        begin = time.process_time()
        try:
            rows.append(verdict(Results(options.out, name, changed, seeds, done=options.table), ways))
        except NotDoneError:
            print(f"{name}: not done.")
            continue
        if not options.table:
            print(f"{name}: {time.process_time() - begin:.0f} s", flush=True)
    print(f"\n{table(rows)}")
    print(f"\nSeeds {seeds[0]} to {seeds[-1]}, torch {torch.__version__}, {machine()}.")


if __name__ == "__main__":
    main()
