"""How long `trimtab.predict` takes to measure ResNet-18 on 64 inputs of white noise, each time in a fresh process.

    python benchmarks/meanfield_seconds.py

The seconds are those of the call, the mean-field formulas beside the measured number included, and `import trimtab`
not. The memory is the largest that the process had.
"""

import argparse
import multiprocessing
import resource
import sys
import time

import torch

import trimtab
from trimtab.networks import build

CASES = {"cifar": 32, "imagenet": 64}
LOSSES = ("squared", "cross_entropy")
SAMPLES = 64


def measure(stem: str, loss: str, threads: int) -> str:
    """One call, as a line of the table."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    shape = (3, CASES[stem], CASES[stem])
    model = build("resnet18", norm="bn", stem=stem, input_shape=shape)  # type: ignore[arg-type]
    x, y = torch.randn(SAMPLES, *shape), torch.randint(10, (SAMPLES,))
    wall, processor = time.perf_counter(), time.process_time()
    found = trimtab.predict(model, shape, loss=loss, inputs=x, targets=y)  # type: ignore[arg-type]
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    assert found.measurement is not None
    unit = 2**30 if sys.platform == "darwin" else 2**20
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
    done = found.measurement
    return (
        f"| {stem} | {loss} | {wall:.1f} | {processor:.1f} | {done.products} | {done.samples} | {memory:.1f} | "
        f"{done.lambda_max:.5g} |"
    )


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    print("| stem | loss | seconds | CPU seconds | products | samples | peak GiB | λ_max |")
    print("|---" * 8 + "|")
    context = multiprocessing.get_context("spawn")
    for stem in CASES:
        for loss in LOSSES:
            with context.Pool(1) as pool:
                print(pool.apply(measure, (stem, loss, options.threads)), flush=True)


if __name__ == "__main__":
    main()
