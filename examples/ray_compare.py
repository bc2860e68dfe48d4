"""A comparison whose runs are trained by Ray: on this machine, or on the cluster whose address is given.

    python examples/ray_compare.py            # starts a Ray here and ends it
    python examples/ray_compare.py HOST:PORT  # the address that `ray start --head` prints

The results are those of processes on this machine, to the last bit: that is compared here.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from trimtab.records import Comparison
from trimtab.report import conclusion
from trimtab.training.compare import ComparisonProgress, ComparisonRunner
from trimtab.training.grid import Grid
from trimtab.training.workers.engines import engine_named
from trimtab.training.workers.pool import Engine

GRID = Grid(
    networks=("small-mlp",), methods=("vanilla", "bnp"), batch_sizes=(16,), epochs={16: 3}, lrs=(0.03, 0.1), seeds=1
)


def compare(engine: Engine, folder: str) -> Comparison:
    def show(progress: ComparisonProgress) -> None:
        print(f"\r{progress.doing}: step {progress.done} of {progress.total}", end="", file=sys.stderr)

    return ComparisonRunner(
        GRID,
        Path(folder),
        command="by hand",
        device=torch.device("cpu"),
        jobs=2,
        engine=engine,
        show=show,
    ).run(conclusion)


if __name__ == "__main__":  # workers import this file
    address = sys.argv[1] if len(sys.argv) > 1 else None
    with TemporaryDirectory(dir=".") as folder:  # on a cluster: below a folder that all nodes share
        by_ray = compare(engine_named("ray", address), f"{folder}/ray")
        by_processes = compare(engine_named("local"), f"{folder}/local")
    for cell in by_ray.cells:
        print(f"{cell.method}: learning rate {cell.lr}, accuracy {', '.join(f'{value:.4f}' for value in cell.values)}")
    print("the same results" if by_ray.cells == by_processes.cells else "other results")
