"""One gradient's way through BNP: python benchmarks/walk.py [--fast 0|1] [--list].

Counts the calls of trimtab's functions, the files they are in and the changes from file to file in one step of a model
with one layer: forward, backward and optimizer.step(), after a few steps in which everything has been set up.
"""

import argparse
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

import trimtab

ROOT = Path(trimtab.__file__).parent


def walk(fast: bool) -> list[tuple[str, str]]:
    """The functions in the order in which they are called, each with its file."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trimtab.BNP(model, fast=fast).attach(optimizer)
    x = torch.randn(16, 8)
    calls: list[tuple[str, str]] = []

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    def look(frame: Any, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and ROOT in path.parents:
            calls.append((str(path.relative_to(ROOT)), frame.f_code.co_name))

    for _ in range(5):
        step()
    sys.setprofile(look)
    step()
    sys.setprofile(None)
    return calls


def main() -> None:
    """Walk, and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", type=int, choices=(0, 1), help="otherwise both")
    parser.add_argument("--list", action="store_true", help="print each call")
    options = parser.parse_args()
    for fast in (True, False) if options.fast is None else (bool(options.fast),):
        calls = walk(fast)
        files = [path for path, _ in calls]
        changes = sum(a != b for a, b in pairwise(files))
        if options.list:
            print("\n".join(f"{path}: {name}" for path, name in calls))
        print(f"fast={fast}: {len(calls)} calls, {len(set(files))} files, {changes} changes of file")


if __name__ == "__main__":
    main()
