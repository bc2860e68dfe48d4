"""Run cases and tell which of them fail. A case that ends its process is one of them; the others go on in a new one."""

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

# What a process says of a case that ended well; of another one it says what is wrong, on the same line.
_FINE = "fine"


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bnp.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=1000, help="how many (1000)")
    parser.add_argument("--seed", type=int, default=0, help="of the first; the others follow (0)")
    parser.add_argument("--kernels", type=Path, help="C kernels to be used instead of the installed ones")
    parser.add_argument("--here", action="store_true", help="in this process, with a line for each case")
    return parser.parse_args(argv)


def here(told: argparse.Namespace) -> None:
    """Run the cases in this process; for each, print its seed before, and what came of it after."""
    import torch

    from tests.bnp.fuzz.check import problem
    from trimtab.bnp.backends import cpu

    if told.kernels is not None:
        cpu.LIBRARY = told.kernels
        cpu._FUNCTIONS = cpu._load()
        cpu._RESULTS_PER_BUFFER = 1  # so that the memory of each result ends where the result ends
    if not cpu.available():
        sys.exit(f"The C kernels {cpu.LIBRARY} could not be loaded.")
    for seed in range(told.seed, told.seed + told.cases):
        print(seed, end="\t", flush=True)
        torch.set_num_threads(2 if seed % 4 == 0 else 1)
        wrong, kinds = problem(seed)
        print(wrong.replace("\n", " ") or _FINE, *kinds, sep="\t", flush=True)


def run(told: argparse.Namespace) -> Iterator[tuple[int, str, list[str]]]:
    """For each case its seed, what is wrong with it or nothing, and what is in it."""
    seed, end = told.seed, told.seed + told.cases
    while seed < end:
        command = [sys.executable, "-m", "tests.bnp.fuzz", "--here", f"--seed={seed}", f"--cases={end - seed}"]
        if told.kernels is not None:
            command.append(f"--kernels={told.kernels}")
        with (
            tempfile.TemporaryFile("w+") as errors,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
        ):
            assert process.stdout is not None
            last = ""
            for line in process.stdout:
                number, *said = line.rstrip("\n").split("\t")
                last = number
                if said[:1] and said[0]:
                    seed = int(number) + 1
                    yield int(number), "" if said[0] == _FINE else said[0], said[1:]
            errors.seek(0)
            reason = errors.read()
        if seed < end:
            if not last:
                sys.exit(reason)
            yield seed, f"the process ended with status {process.returncode}: {_brief(reason)}", []
            seed += 1


def _brief(errors: str) -> str:
    """The lines of a sanitizer's report, or of a traceback, that say most."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    telling = [line for line in lines if "ERROR" in line or "runtime error" in line or "native" in line]
    return " | ".join(telling[:6] or lines[-1:])


def main(argv: Sequence[str] | None = None) -> int:
    told = arguments(argv)
    if told.here:
        here(told)
        return 0
    kinds: Counter[str] = Counter()
    failures: list[int] = []
    begin = time.monotonic()
    for done, (seed, wrong, found) in enumerate(run(told), start=1):
        kinds.update(set(found))
        if wrong:
            failures.append(seed)
            print(f"seed {seed}: {wrong} [{', '.join(found[:8])}]", flush=True)
        if done % 1000 == 0:
            print(f"{done} cases, {len(failures)} failures, {time.monotonic() - begin:.0f} s", flush=True)
    for kind, count in sorted(kinds.items()):
        print(f"{count:7} {kind}")
    print(f"{told.cases} cases, {len(failures)} failures" + (f": {failures[:50]}" if failures else "."))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
