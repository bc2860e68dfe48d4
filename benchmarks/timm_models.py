"""What BNP costs on timm's models, eagerly, as ratios of whole steps: python benchmarks/timm_models.py (a GPU; timm).

Each model is trained without BNP, with it, and with hooks in the same places that return at once (all three of a layer,
or only that of its forward), in turns, in short blocks of steps after a warm-up. Printed are the median of the ratios
of rounds with quartiles, the goal, the same for hooks alone, the ratio of peak memory, and the milliseconds in which
the GPU computes in a step, BNP's kernels apart. No implementation with hooks in Python can be below what the hooks cost
by themselves. Data are random images of 224×224.
"""

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import timm
import torch
from torch import nn

import trimtab

# Name, precision, batch size, goal
CASES = [
    ("resnet50", "tf32", 64, 1.03),
    ("resnet50", "bf16", 64, 1.03),
    ("vit_small_patch16_224", "bf16", 64, 1.08),
    ("convnext_tiny", "bf16", 64, 1.08),
    ("swin_tiny_patch4_window7_224", "bf16", 64, 1.08),
    ("resnet18", "tf32", 16, 1.10),
    # Larger batches, where the GPU is the limit and not the processor that drives it
    ("vit_small_patch16_224", "bf16", 256, 1.08),
    ("convnext_tiny", "bf16", 256, 1.08),
    ("swin_tiny_patch4_window7_224", "bf16", 256, 1.08),
]


Added = Literal["nothing", "BNP", "hooks", "forward hooks"]
ADDED: tuple[Added, ...] = ("nothing", "BNP", "hooks", "forward hooks")


def put_hooks_on(model: nn.Module, optimizer: torch.optim.Optimizer, backward: bool) -> None:
    """Hooks where BNP has them, on the layers that it preconditions, which do nothing."""

    def nothing(*_: Any) -> None:
        return None

    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            module.register_forward_hook(nothing, with_kwargs=True, prepend=True)
            if backward:
                module.weight.register_hook(nothing)
                module.weight.register_post_accumulate_grad_hook(nothing)
    optimizer.register_step_pre_hook(nothing)


def stepper(model: nn.Module, x: torch.Tensor, y: torch.Tensor, precision: str, added: Added) -> Callable[[], None]:
    """A step of training."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    if added == "BNP":
        trimtab.BNP(model).attach(optimizer)
    elif added != "nothing":
        put_hooks_on(model, optimizer, backward=added == "hooks")
    loss = nn.CrossEntropyLoss()

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            value = loss(model(x), y)
        value.backward()
        optimizer.step()

    return step


def seconds(step: Callable[[], None], steps: int) -> float:
    """How long so many steps take."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def kernel_milliseconds(step: Callable[[], None], steps: int = 3) -> dict[str, float]:
    """How long the GPU computes in a step: BNP's moments and steps, and all else."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        seconds(step, steps)
    found = dict.fromkeys(("moments_of", "precondition", "else"), 0.0)
    for event in profile.key_averages():
        name = next((name for name in found if name in event.key), "else")
        found[name] += event.self_device_time_total / 1000 / steps
    return found


@dataclass(frozen=True)
class Measured:
    """What was measured of a model.

    Attributes:
        ratios: Of the rounds, to a step without anything.
        memory: The ratio of peak memory with BNP.
        milliseconds: Of a step without anything.
        kernels: Those in which the GPU computes in a step: BNP's kernels by name, and all else.
    """

    ratios: dict[Added, list[float]]
    memory: float
    milliseconds: float
    kernels: dict[str, float]


def measure(name: str, precision: str, batch: int, rounds: int) -> Measured:
    """Train a model in turns."""
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    plain = timm.create_model(name, num_classes=100).cuda()
    x, y = torch.randn(batch, 3, 224, 224, device="cuda"), torch.randint(100, (batch,), device="cuda")
    steps = {added: stepper(copy.deepcopy(plain), x, y, precision, added) for added in ADDED}
    for step in steps.values():  # all have their gradients and momenta before one is measured
        seconds(step, 8)
    peaks = {}
    for added, step in steps.items():
        torch.cuda.reset_peak_memory_stats()
        seconds(step, 2)
        peaks[added] = torch.cuda.max_memory_allocated()
    times = [{added: seconds(step, 10) for added, step in steps.items()} for _ in range(rounds)]
    ratios = {added: [each[added] / each["nothing"] for each in times] for added in ADDED[1:]}
    milliseconds = 100 * min(each["nothing"] for each in times)
    return Measured(ratios, peaks["BNP"] / peaks["nothing"], milliseconds, kernel_milliseconds(steps["BNP"]))


def told(ratios: list[float]) -> str:
    """Median and quartiles."""
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.3f} ({low:.3f}–{high:.3f})"


def main() -> None:
    """Measure all cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, timm {timm.__version__}")
    results = []
    for name, precision, batch, goal in CASES:
        if options.only not in name:
            continue
        found = measure(name, precision, batch, options.rounds)
        print(
            f"{name} {precision} batch {batch}: {told(found.ratios['BNP'])} of {found.milliseconds:.1f} ms, goal "
            f"{goal:.2f}; hooks alone {told(found.ratios['hooks'])}, those of the forward "
            f"{told(found.ratios['forward hooks'])}; memory {found.memory:.3f}; the GPU computes "
            f"{found.kernels['else']:.1f} ms, and {found.kernels['moments_of']:.2f} and "
            f"{found.kernels['precondition']:.2f} ms for BNP's moments and step",
            flush=True,
        )
        results.append({"model": name, "precision": precision, "batch": batch, **asdict(found)})
        torch.cuda.empty_cache()
    if options.out is not None:
        options.out.write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    main()
