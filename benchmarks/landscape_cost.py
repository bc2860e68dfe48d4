"""What the landscape probe costs: python benchmarks/landscape_cost.py [--blocks N] [--steps K] [--device cuda].

Trains the VGG-like network on random images of CIFAR-10's shape, batch 128, SGD. Blocks of plain steps and blocks of as
many steps with one probe (8 points) alternate in one process; printed is the median, over pairs of blocks, of the time
with a probe every 64 steps as a multiple of the time without. With blocks shorter than 64 steps the cost of the probe
is spread over 64 of them by calculation; on two cores a block of 8 steps takes half a minute. On a machine that is busy
with other things, --busy counts the processor time of one thread in the place of the time that passes.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor, nn

from trimtab.networks import build
from trimtab.probes import Landscape
from trimtab.records import machine

EVERY = 64


def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Cross-entropy."""
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def ratios(norm: str, blocks: int, steps: int, device: str, clock: Callable[[], float]) -> list[float]:
    """The time with a probe every 64 steps over the time without, for each pair of blocks."""
    torch.manual_seed(0)
    model = build("vgg", norm).to(device)
    batch = torch.randn(128, 3, 32, 32, device=device), torch.randint(10, (128,), device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    probe = Landscape(optimizer=optimizer)

    def block(probing: bool) -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        start = clock()
        for step in range(steps):
            if probing and step == 0:
                assert probe(model, loss_fn, batch).problem is None
            optimizer.zero_grad()
            loss_fn(model, batch).backward()
            optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()
        return clock() - start

    block(True)  # so that all is loaded and allocated
    pairs = [(block(False), block(True)) for _ in range(blocks)]
    return [1 + (probing / plain - 1) * steps / EVERY for plain, probing in pairs]


def main() -> None:
    """Print the ratio without normalization and with BatchNorm."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--blocks", type=int, default=5, help="pairs of blocks")
    parser.add_argument("--steps", type=int, default=8, help="steps in a block")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--busy", action="store_true", help="processor time of one thread")
    parser.add_argument("--norms", nargs="+", default=["none", "bn"])
    told = parser.parse_args()
    name = torch.cuda.get_device_name() if told.device == "cuda" else machine()
    print(f"VGG-like net, batch 128, 8 points every {EVERY} steps. {told.blocks} × 2 blocks of {told.steps}: {name}.")
    if told.busy:
        torch.set_num_threads(1)
    clock = time.process_time if told.busy else time.perf_counter
    for norm in told.norms:
        found = ratios(norm, told.blocks, told.steps, told.device, clock)
        print(f"{norm:>6}: {median(found):.3f} × the plain run ({min(found):.3f} to {max(found):.3f})", flush=True)


if __name__ == "__main__":
    main()
