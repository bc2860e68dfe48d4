"""What `trimtab.predict(measure=True)` measures against dense eigenvalues, on networks of the cross of mean field.

    python benchmarks/meanfield_measured.py --networks 20 --samples 32

One draw of each network, each of its data and modes, each loss. `meanfield_cross.py inputs` makes the file of images
that it needs.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from meanfield_cross import Case, cases, inputs_of, numbers
from meanfield_gram import TARGETS, eigenvalues
from meanfield_networks import DATA, build, describe

import trimtab

GOAL = 0.03


def ratios(case: Case, pool: dict[str, np.ndarray], device: str) -> tuple[list[float], float]:
    """Measured over dense for one output, all outputs and cross-entropy, and the seconds of all three."""
    model = build(case.spec, case.shape, case.number("weights", 0)).to(device)
    x = inputs_of(case, pool, 0).to(device)
    dense = eigenvalues(model, x, frozen=case.mode == "frozen")
    expected = (dense.each[0], dense.all, dense.ce)
    begin = time.perf_counter()
    found = [
        trimtab.predict(
            model,
            case.shape,
            loss="cross_entropy" if target == "ce" else "squared",
            outputs="one" if target == "one" else "all",
            statistics="frozen" if case.mode == "frozen" else "batch",
            inputs=x,
            measure=True,
        ).lambda_max
        for target in TARGETS
    ]
    seconds = time.perf_counter() - begin
    return [value / goal for value, goal in zip(found, expected, strict=True)], seconds


def main() -> None:
    """Print a line for each case, and how many are as near as they should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--networks", type=int, default=60)
    parser.add_argument("--only", help="numbers of networks, as 0,3,5-9")
    parser.add_argument("--data", default=",".join(DATA))
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--folder", type=Path, default=Path("cross"))
    options = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = False
    pool = dict(np.load(options.folder / "inputs.npz"))
    indices = numbers(options.only) if options.only else list(range(options.networks))
    off, count = [], 0
    for case in cases(options.seed, indices, options.samples, tuple(options.data.split(","))):
        found, seconds = ratios(case, pool, options.device)
        count += len(found)
        name = f"{case.index:>3} {case.data:<8}{case.mode:<7}"
        off += [(name, target, ratio) for target, ratio in zip(TARGETS, found, strict=True) if abs(ratio - 1) > GOAL]
        print(
            name + "".join(f"{ratio:>8.4f}" for ratio in found) + f"{seconds:8.1f} s  {describe(case.spec)}", flush=True
        )
    print(f"{count - len(off)} of {count} within {GOAL:.0%}")
    for name, target, ratio in off:
        print(f"{name}{target:<4}{ratio:8.4f}")


if __name__ == "__main__":
    main()
