"""What benchmarks/speed.py measures with: training steps as contenders, a stopwatch and a memory meter."""

import ctypes
import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile, record_function

import trimtab
from trimtab.networks import build, input_shape
from trimtab.norms import Norm
from trimtab.training.methods import Method
from trimtab.training.recipes import recipe

Batch = tuple[Tensor, Tensor]

# One small rate for all: it does not change what a step costs, and nothing diverges.
RATE = 1e-3
# Seconds that a block of steps takes, and the fewest rounds of blocks.
BLOCK, LEAST_ROUNDS = 0.04, 6
# A block has so many steps at least, and is preceded by as many that are not timed: the first one or two after those of
# another contender wait for what that one has pushed out of the caches, which in a training loop nobody does. One, if
# steps take longer than this many seconds.
LEAST_STEPS, LONG = 3, 0.3
WARM_UP = 0.5
WARM_STEPS = 3  # before a capture
# How far what a captured step does to the weights may be from what an eager one does, as a share of that: with BNP,
# which a capture could lose, and without. Rounding makes 0.02 with BNP+GN in ResNet-110 and bf16, and 0.5 with BN.
LARGEST_DIFFERENCE = {True: 0.1, False: 0.9}
MEASURED = "measured steps"
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # in malloc.h


@dataclass(frozen=True)
class Contender:
    """A training step to be built, as `trimtab train` builds network and optimizer for it, with SGD for all.

    Attributes:
        network: By its name.
        method: As `trimtab train --method` takes it.
        size: Samples per step.
        device: Where.
        plain: BNP without its fast paths.
        spatial: Whether BNP's statistics of a convolution are those of its channels or of each site of its kernel.
        captured: The whole step in a CUDA graph.
        precision: fp32, tf32 or bf16.
        batches: Batches of random data that steps take in turn.
    """

    network: str
    method: str
    size: int
    device: str
    plain: bool = False
    spatial: Literal["channel", "site"] = "channel"
    captured: bool = False
    precision: str = "fp32"
    batches: int = 4

    def start(self) -> "Training":
        """Build it and take one step; if that is a captured one, it has to be what an eager one is.

        Raises:
            RuntimeError: If it is not.
        """
        training = self.build()
        if not self.captured:
            training()
            return training
        eager = replace(self, captured=False).build()
        for _ in range(WARM_STEPS):
            eager.take(eager.batches[0])
        wanted, found = _change(eager), _change(training)
        difference = float((found - wanted).norm() / wanted.norm())
        if not difference <= LARGEST_DIFFERENCE[Method.parse(self.method).bnp]:
            raise RuntimeError(f"a captured step differs from an eager one by {difference:.3g} of it")
        return training

    def build(self) -> "Training":
        """Network, optimizer and data."""
        torch.manual_seed(0)
        method = Method.parse(self.method)
        told = recipe(self.network, "cifar10", method, self.size, "sgd")
        norm = replace(
            Norm.parse(method.norm),
            group_size=told.get("group_size"),
            momentum=told["norm_momentum"],
            eps=told["norm_eps"],
        )
        model = build(
            self.network,
            norm.for_batch_size(self.size),
            init_scale=told["init_scale"],
            conv_bias=told.get("conv_bias"),
        ).to(self.device)
        optimizer = torch.optim.SGD(
            model.parameters(), RATE, momentum=told["momentum"], weight_decay=told["weight_decay"]
        )
        if method.bnp:
            bnp = trimtab.BNP(model, spatial=self.spatial, fast=not self.plain)
            bnp.attach(optimizer)
        shape = input_shape(self.network)
        batches = [
            (torch.rand(self.size, *shape, device=self.device), torch.randint(10, (self.size,), device=self.device))
            for _ in range(self.batches)
        ]
        kind = CapturedTraining if self.captured else Training
        return kind(model, optimizer, batches, self.precision)


class Training:
    """A training step as everybody writes it; each call takes one, on the batches in turn."""

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Batch], precision: str = "fp32"
    ) -> None:
        """With everything that it needs."""
        self.model = model
        self.optimizer = optimizer
        self.precision = precision
        self.batches = batches
        self.turns = cycle(batches)

    def __call__(self) -> None:
        """Take a step."""
        self.take(next(self.turns))

    def take(self, batch: Batch) -> None:
        """Forward, backward, and the optimizer's step."""
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(batch[0].device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            output = self.model(batch[0])
        F.cross_entropy(output.float(), batch[1]).backward()
        self.optimizer.step()

    def finite(self) -> bool:
        """Whether all weights are still numbers; steps on others may cost something else."""
        return all(bool(parameter.isfinite().all()) for parameter in self.model.parameters())


class CapturedTraining(Training):
    """The same step as one CUDA graph; the batch is copied to where the graph reads it."""

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Batch], precision: str = "fp32"
    ) -> None:
        """Some steps on a side stream, then the capture."""
        super().__init__(model, optimizer, batches, precision)
        self.inputs, self.targets = (part.clone() for part in batches[0])
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_STEPS):
                self.take((self.inputs, self.targets))
        torch.cuda.current_stream().wait_stream(side)
        optimizer.zero_grad(set_to_none=True)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.take((self.inputs, self.targets))

    def __call__(self) -> None:
        """Take a step."""
        inputs, targets = next(self.turns)
        self.inputs.copy_(inputs)
        self.targets.copy_(targets)
        self.graph.replay()


def set_precision(precision: str) -> None:
    """TF32 on or off, as `trimtab train` has it."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"


def keep_freed_memory() -> None:
    """Have the C library keep what is freed, where it is one that can be told so.

    Otherwise it gives the end of its memory back to the system, and who gets it again waits for it. Whether that is
    where a step's gradients lie depends on what else was allocated, and decides over a quarter of a short step.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(ctypes.c_int(_TRIM_THRESHOLD), ctypes.c_int(2**30))
        mallopt(ctypes.c_int(_MMAP_THRESHOLD), ctypes.c_int(2**25))


def alternate(steps: Mapping[str, Training], seconds: float, device: str) -> dict[str, list[float]]:
    """Seconds per step for each contender and round.

    After warming up, blocks of as many steps for all follow each other, in an order that turns round at each round,
    until the time is over. A few steps before each block are not timed. On a GPU each block begins and ends with
    everything done.
    """

    def block(step: Training, count: int) -> float:
        _wait(device)
        begin = time.perf_counter()
        for _ in range(count):
            step()
        _wait(device)
        return (time.perf_counter() - begin) / count

    slowest = max(_warm_up(lambda step=step: block(step, 1), min(WARM_UP, seconds)) for step in steps.values())
    least = LEAST_STEPS if slowest < LONG else 1
    count = max(least, round(BLOCK / slowest))
    gc.collect()
    times: dict[str, list[float]] = {name: [] for name in steps}
    order, end = list(steps), time.perf_counter() + seconds
    while len(times[order[0]]) < LEAST_ROUNDS or time.perf_counter() < end:
        for name in order:
            block(steps[name], least)
            times[name].append(block(steps[name], count))
        order.reverse()
    return times


def spread(values: list[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, middle, high = statistics.quantiles(values, n=4)
    return {"value": rounded(middle), "low": rounded(low), "high": rounded(high)}


def ratios(times: Mapping[str, list[float]], over: str, under: str) -> dict[str, float]:
    """Median and quartiles of the ratios of the rounds."""
    return spread([a / b for a, b in zip(times[over], times[under], strict=True)])


def rounded(value: float) -> float:
    """To five digits, which is more than is measured."""
    return float(f"{value:.5g}")


def peak_memory(build: Callable[[], Training], device: str) -> int:
    """Bytes at the peak of a training step: weights, gradients, statistics, the batch, and what is kept for backward.

    On a GPU from the allocator. On a CPU from the profiler's record of each allocation of a tensor; what libraries
    allocate by themselves is not in it.
    """
    gc.collect()
    if device == "cuda":
        _few(build())  # so that workspaces of libraries, which stay, are there before
        gc.collect()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        step = build()
        _few(step)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        _few(step)
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        step = build()
        step()
        with record_function(MEASURED):
            _few(step)
    return _peak_of_record(record)


def _change(training: Training) -> Tensor:
    """What a step does to all weights."""
    before = [parameter.detach().clone() for parameter in training.model.parameters()]
    training()
    after = [parameter.detach() for parameter in training.model.parameters()]
    return torch.cat([(b - a).flatten() for a, b in zip(before, after, strict=True)])


def _few(step: Callable[[], None]) -> None:
    for _ in range(2):
        step()


def _peak_of_record(record: Any) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        record.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    begin = next(event["ts"] for event in events if event["name"] == MEASURED)
    changes = [event for event in events if event["name"] == "[memory]" and event["args"]["Device Type"] == 0]
    total = peak = 0
    for event in sorted(changes, key=lambda event: event["ts"]):
        total += event["args"]["Bytes"]
        if event["ts"] >= begin:
            peak = max(peak, total)
    return peak


def _warm_up(one: Callable[[], float], least: float) -> float:
    """Two steps or more, for so many seconds; the seconds of the fastest."""
    seconds = [one(), one()]
    while sum(seconds) < least:
        seconds.append(one())
    return min(seconds)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
