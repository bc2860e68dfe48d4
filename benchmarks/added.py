"""What BNP adds to each part of a training step: python benchmarks/added.py [--device cuda] [--batch 16] [--threads 1].

Microseconds for the FC net of the bnp paper, without and with BNP in turns, lower quartiles. Two versions of trimtab
are compared by --beside <another checkout>/src: each is in a process of its own, which wait for each other, so that
both have the same share of what else the machine does.

--steps runs so many steps with BNP (--plain: without) and measures nothing, for a count that no other work disturbs:
valgrind --tool=cachegrind --cache-sim=no python benchmarks/added.py --steps 250, less that of --steps 50.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from torch import nn

import trimtab

Parts = tuple[float, float, float]
ROUNDS, STEPS, UNTIMED, TURNS = 40, 40, 3, 8


def contender(device: str, batch: int, bnp: bool) -> Callable[[], Parts]:
    """A training step that returns the seconds of its forward, its backward and its optimizer's step."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(size, 100), nn.ReLU()) for size in (784, 100, 100)]
    model = nn.Sequential(*layers, nn.Linear(100, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    if bnp:
        trimtab.BNP(model).attach(optimizer)
    x, y = torch.randn(batch, 784, device=device), torch.randint(10, (batch,), device=device)

    def step() -> Parts:
        times = [time.perf_counter()]
        loss = nn.functional.cross_entropy(model(x), y)
        times.append(time.perf_counter())
        optimizer.zero_grad()
        loss.backward()
        times.append(time.perf_counter())
        optimizer.step()
        times.append(time.perf_counter())
        return times[1] - times[0], times[2] - times[1], times[3] - times[2]

    return step


def measure(contenders: list[Callable[[], Parts]], device: str, rounds: int) -> list[list[float]]:
    """The lower quartiles of the three parts in microseconds, without and with BNP."""
    found: list[list[Parts]] = [[], []]
    for round_ in range(rounds + 1):
        for step, times in zip(contenders, found, strict=True):
            for _ in range(UNTIMED if round_ else 100):
                step()
            times += [step() for _ in range(STEPS)]
            if device == "cuda":
                torch.cuda.synchronize()
    return [[1e6 * sorted(part)[len(part) // 4] for part in zip(*times, strict=True)] for times in found]


def told(what: str, found: list[list[list[float]]]) -> str:
    """A line: medians over several measurements, and the range of what is added."""
    parts = [median(bnp[i] - plain[i] for plain, bnp in found) for i in range(3)]
    added = [sum(bnp) - sum(plain) for plain, bnp in found]
    ratio, whole = median(sum(b) / sum(p) for p, b in found), median(sum(plain) for plain, _ in found)
    spread = f" ({min(added):.0f} to {max(added):.0f})" if len(found) > 1 else ""
    split = " + ".join(f"{each:.0f}" for each in parts)
    return f"{what}: {split} = {median(added):.0f}{spread} µs added to {whole:.0f}: {ratio:.3f}"


def compared(this: list[list[list[float]]], other: list[list[list[float]]]) -> str:
    """A line: what this version adds more than the other one in the same turn, with the middle half of all turns."""
    more = [sum(a[1]) - sum(a[0]) - sum(b[1]) + sum(b[0]) for a, b in zip(this, other, strict=True)]
    low, middle, high = quantiles(more, n=4)
    share = 100 * middle / median(sum(bnp) for _, bnp in other)
    return f"this version adds {middle:+.0f} µs more ({low:+.0f} to {high:+.0f}), {share:+.1f} % of a step"


@contextmanager
def other_process(source: str, options: Any) -> Iterator[Callable[[], list[list[float]]]]:
    """A process with the trimtab of a source tree, which measures each time it is asked."""
    settings = [f"--{name}={getattr(options, name)}" for name in ("device", "batch", "threads")]
    with subprocess.Popen(
        [sys.executable, __file__, "--serve", *settings],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": source},
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        questions, answers = process.stdin, process.stdout

        def ask() -> list[list[float]]:
            print(file=questions, flush=True)
            numbers = [float(each) for each in answers.readline().split()]
            return [numbers[:3], numbers[3:]]

        if not Path(answers.readline().strip()).is_relative_to(Path(source).resolve()):
            raise SystemExit(f"{source} has no trimtab.")
        yield ask
        questions.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--beside", metavar="SRC", help="the source tree of another version")
    parser.add_argument("--turns", type=int, default=TURNS, help="with --beside; default %(default)s")
    parser.add_argument("--steps", type=int, metavar="N", help="run N steps and measure nothing")
    parser.add_argument("--plain", action="store_true", help="with --steps: without BNP")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.beside:
        this = str(Path(__file__).parents[1] / "src")
        with other_process(options.beside, options) as other, other_process(this, options) as ours:
            found: dict[str, list[list[list[float]]]] = {"other": [], "this": []}
            for turn in range(options.turns + 1):
                for name, ask in (("other", other), ("this", ours)) if turn % 2 else (("this", ours), ("other", other)):
                    measured = ask()
                    if turn:  # in the first one all is loaded and allocated
                        found[name].append(measured)
        for name, each in found.items():
            print(told(f"batch {options.batch}, {name} version", each))
        print(compared(found["this"], found["other"]))
        return
    torch.set_num_threads(options.threads)
    if options.steps:
        step = contender(options.device, options.batch, not options.plain)
        for _ in range(options.steps):
            step()
        return
    contenders = [contender(options.device, options.batch, bnp) for bnp in (False, True)]
    if options.serve:
        print(Path(trimtab.__file__).resolve(), flush=True)
        for _ in sys.stdin:
            print(*(part for parts in measure(contenders, options.device, ROUNDS // 5) for part in parts), flush=True)
        return
    print(told(f"batch {options.batch}", [measure(contenders, options.device, ROUNDS)]))


if __name__ == "__main__":
    main()
