"""Networks trained per second: stacked as one computation, beside one at a time.

Prints ratios of one run, in which all take turns: python benchmarks/sweep.py [--device cuda] [--networks 256]
"""

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import lru_cache, partial
from multiprocessing import get_context
from multiprocessing.pool import Pool
from pathlib import Path

import torch

from trimtab.data import Dataset, Split
from trimtab.records import usable_cores
from trimtab.training.device import device_named, hardware
from trimtab.training.recipes import resolve
from trimtab.training.session import Session
from trimtab.training.settings import Settings
from trimtab.training.sweep.memory import bytes_per_network
from trimtab.training.sweep.plan import example_network
from trimtab.training.sweep.stack import Stack

# Network, shape of the images, batch size, method.
GPU = [
    ("mf-mlp", (1, 28, 28), 128, "bn"),
    ("mlp3x100", (1, 28, 28), 60, "bn"),
    ("mlp3x100", (1, 28, 28), 60, "bnp"),
    ("cnn5", (3, 32, 32), 16, "bn"),
    ("mf-conv", (3, 32, 32), 128, "bn"),
]
CPU = [("mlp3x100", (1, 28, 28), 60, "bn"), ("mlp3x100", (1, 28, 28), 60, "bnp"), ("cnn5", (3, 32, 32), 16, "bn")]
TURNS = 5


def main() -> None:
    """Measure all cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device")
    parser.add_argument("--networks", type=int, nargs="+")
    parser.add_argument("--precision", default="fp32", choices=("fp32", "tf32"))
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    device = device_named(options.device)
    print(f"{hardware(device)}, torch {torch.__version__}, {options.precision}")
    other = "captured" if device.type == "cuda" else f"{usable_cores()} workers"
    print(f"| network | batch | method | networks | ÷ eager | ÷ {other} | memory per network, MB (estimated) |")
    print("|---|---|---|---|---|---|---|")
    for name, shape, batch, method in GPU if device.type == "cuda" else CPU:
        if options.only in name:
            for number in options.networks or ([256] if device.type == "cuda" else [16, 48]):
                print(_row(name, shape, batch, method, number, device, options.precision), flush=True)


def _row(
    name: str, shape: tuple[int, ...], batch: int, method: str, number: int, device: torch.device, precision: str
) -> str:
    """A line of the table: networks per second, stacked ÷ one at a time."""
    data = _noise(shape, 20 * batch)
    common = Settings(network=name, method=method, batch_size=batch, steps=10**6, precision=precision, lr=1e-3)
    settings = [replace(resolve(common), seed=seed) for seed in range(number)]
    stack, used = _stack([replace(one, seed=one.seed % 5) for one in settings], data, device)
    steps = {"stacked": stack.advance, "eager": _session(settings[0], "eager", device, data).advance}
    if device.type == "cuda":
        steps["captured"] = _session(settings[0], "captured", device, data).advance
    for step in steps.values():
        for _ in range(6):
            step()
    with ExitStack() as ended:
        turns = {kind: partial(_seconds, step, device) for kind, step in steps.items()}
        if device.type == "cpu":
            pool = ended.enter_context(get_context("spawn").Pool(usable_cores()))
            turns["workers"] = partial(_seconds_of_workers, pool, settings[0], shape, batch)
            turns["workers"]()  # they import torch and build their networks
        times = {kind: [turns[kind]()] for kind in turns}
        for _ in range(TURNS - 1):
            for kind, turn in turns.items():
                times[kind].append(turn())
    middle = {kind: statistics.median(values) for kind, values in times.items()}
    ratios = [f"{middle[kind] * number / middle['stacked']:.2f}" for kind in list(middle)[1:]]
    estimated = bytes_per_network(example_network(settings[0], data), settings[0], shape, batch) / 1e6
    ratios.append(f"{used / number / 1e6:.1f} ({estimated:.1f})")
    return f"| {name} | {batch} | {method} | {number} | {' | '.join(ratios)} |"


def _stack(settings: list[Settings], data: Dataset, device: torch.device) -> tuple[Stack, int]:
    """A stack after its first steps, and the most memory that it has taken, in bytes."""
    gc.collect()  # the stack of the row before
    if device.type == "cuda":
        torch.cuda.empty_cache()
    else:
        Stack(settings[:1], data, device).advance()  # what torch itself takes at first use
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew (Linux)
    before = _memory(device)
    stack = Stack(settings, data, device)
    for _ in range(6):
        stack.advance()
    return stack, _memory(device) - before


def _memory(device: torch.device) -> int:
    """Bytes taken from the device; on a CPU, the most that this process has had since the peak began anew."""
    if device.type == "cpu":
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
    torch.cuda.synchronize()
    return -torch.cuda.mem_get_info(device)[0]


def _session(settings: Settings, mode: str, device: torch.device, data: Dataset) -> Session:
    return Session(replace(settings, step_mode=mode), device, dataset=data)


def _noise(shape: tuple[int, ...], samples: int) -> Dataset:
    """White noise with random classes."""
    inputs, targets = torch.randn(samples, *shape), torch.randint(0, 10, (samples,))
    split = Split(inputs, targets)
    channels = shape[0]
    return Dataset(
        name="noise", train=split, test=split, classes=10, scale=1.0, mean=(0.0,) * channels, std=(1.0,) * channels
    )


def _seconds_of_workers(pool: Pool, settings: Settings, shape: tuple[int, ...], batch: int) -> float:
    """Seconds per step and network if each core trains one network, all at the same time."""
    number = usable_cores()
    return statistics.mean(pool.starmap(_worker, [(settings, shape, batch)] * number, chunksize=1)) / number


def _worker(settings: Settings, shape: tuple[int, ...], batch: int) -> float:
    return _seconds(_stepping(settings, shape, batch), torch.device("cpu"))


@lru_cache(maxsize=1)
def _stepping(settings: Settings, shape: tuple[int, ...], batch: int) -> Callable[[], None]:
    torch.set_num_threads(1)
    step = _session(settings, "eager", torch.device("cpu"), _noise(shape, 20 * batch)).advance
    for _ in range(6):
        step()
    return step


def _seconds(step: Callable[[], None], device: torch.device) -> float:
    """Seconds of one step, over as many as take half a second."""
    done, started = 0, time.perf_counter()
    while time.perf_counter() - started < 0.5:
        step()
        done += 1
        if done % 16 == 0 and device.type == "cuda":
            torch.cuda.synchronize()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - started) / done


if __name__ == "__main__":
    main()
