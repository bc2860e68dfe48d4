"""How long `trimtab.predict` takes for ResNet-18, each time in a fresh process.

    python benchmarks/meanfield_seconds.py

Measured on 64 inputs of white noise, and predicted (`measure=False`). The seconds are those of the call, the mean-field
formulas beside the measured number included, and `import trimtab` not. The memory is the largest that the process had.
"""

import argparse
import itertools
import multiprocessing
import resource
import sys
import time
from typing import Any

import torch

import trimtab
from trimtab.networks import build

CASES = {"cifar": 32, "imagenet": 64}
LOSSES = ("squared", "cross_entropy")
SAMPLES = 64


def call(stem: str, loss: str, measured: bool, threads: int) -> str:
    """One call, as a line of the table."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    shape = (3, CASES[stem], CASES[stem])
    model = build("resnet18", norm="bn", stem=stem, input_shape=shape)  # type: ignore[arg-type]
    about: dict[str, Any] = {"samples": SAMPLES, "measure": False}
    if measured:
        about = {"inputs": torch.randn(SAMPLES, *shape), "targets": torch.randint(10, (SAMPLES,))}
    wall, processor = time.perf_counter(), time.process_time()
    found = trimtab.predict(model, shape, loss=loss, **about)  # type: ignore[arg-type]
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**30 if sys.platform == "darwin" else 2**20)
    done = found.measurement
    work = "– | –" if done is None else f"{done.products} | {done.samples}"
    return (
        f"| {'measured' if measured else 'predicted'} | {stem} | {loss} | {wall:.1f} | {processor:.1f} | {work} | "
        f"{memory:.1f} | {found.lambda_max:.5g} |"
    )


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    print("| how | stem | loss | seconds | CPU seconds | products | samples | peak GiB | λ_max |")
    print("|---" * 9 + "|")
    context = multiprocessing.get_context("spawn")
    for case in itertools.product(CASES, LOSSES, (False, True)):
        with context.Pool(1) as pool:
            print(pool.apply(call, (*case, options.threads)), flush=True)


if __name__ == "__main__":
    main()
