"""How many trainings share a GPU: steps per second of each, by how many run at a time.

    python benchmarks/sharing.py                               # processes take turns on the GPU
    nvidia-cuda-mps-control -d && python benchmarks/sharing.py # with NVIDIA's multi-process service

Each process trains `cnn5` on random images, batch size 128, as long as the others of its turn.
"""

import argparse
import multiprocessing
import time
from multiprocessing.connection import Connection

import torch
import torch.nn.functional as F

from trimtab.networks import build
from trimtab.records import usable_cores
from trimtab.training.device import hardware


def train(pipe: Connection) -> None:
    """Train for so many seconds whenever asked, and answer with the steps per second."""
    torch.set_num_threads(1)
    model = build("cnn5").cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(128, 3, 32, 32, device="cuda"), torch.zeros(128, dtype=torch.long, device="cuda")
    while True:
        seconds = pipe.recv()
        steps, begin = 0, time.perf_counter()
        while time.perf_counter() < begin + seconds:
            for _ in range(20):
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
            torch.cuda.synchronize()
            steps += 20
        pipe.send(steps / (time.perf_counter() - begin))


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    cores = usable_cores()
    context = multiprocessing.get_context("spawn")
    pipes = []
    for _ in range(cores):
        ours, theirs = context.Pipe()
        context.Process(target=train, args=(theirs,), daemon=True).start()
        pipes.append(ours)
    for pipe in pipes:  # starts, and chooses algorithms
        pipe.send(1.0)
        pipe.recv()
    print(f"{hardware(torch.device('cuda'))}, {cores} cores")
    print("| at a time | steps per second of each | of all |\n|---|---|---|")
    for number in sorted({1, *(cores * part // 4 for part in (1, 2, 3, 4))} - {0}):
        for pipe in pipes[:number]:
            pipe.send(options.seconds)
        rates = [pipe.recv() for pipe in pipes[:number]]
        print(f"| {number} | {sum(rates) / number:.0f} | {sum(rates):.0f} |", flush=True)


if __name__ == "__main__":
    main()
