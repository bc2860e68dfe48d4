"""What BNP adds to each part of a training step: python benchmarks/added.py [--device cuda] [--batch 16] [--threads 1].

Microseconds for the FC net of the bnp paper, without and with BNP in turns, lower quartiles. To compare two versions of
trimtab, run it with each of them in turns: PYTHONPATH=<another checkout>/src python benchmarks/added.py
"""

import argparse
import time
from collections.abc import Callable

import torch
from torch import nn

import trimtab

Parts = tuple[float, float, float]
ROUNDS, STEPS, UNTIMED = 40, 40, 3


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


def measure(device: str, batch: int) -> list[list[float]]:
    """The lower quartiles of the three parts in microseconds, without and with BNP."""
    contenders = [contender(device, batch, bnp) for bnp in (False, True)]
    found: list[list[Parts]] = [[], []]
    for round_ in range(ROUNDS + 1):
        for step, times in zip(contenders, found, strict=True):
            for _ in range(UNTIMED if round_ else 100):
                step()
            times += [step() for _ in range(STEPS)]
            if device == "cuda":
                torch.cuda.synchronize()
    return [[1e6 * sorted(part)[len(part) // 4] for part in zip(*times, strict=True)] for times in found]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    plain, bnp = measure(options.device, options.batch)
    added = [b - a for a, b in zip(plain, bnp, strict=True)]
    parts = " + ".join(f"{each:.0f}" for each in added)
    ratio = sum(bnp) / sum(plain)
    print(f"batch {options.batch}: {parts} = {sum(added):.0f} µs added to {sum(plain):.0f}: {ratio:.3f}")


if __name__ == "__main__":
    main()
