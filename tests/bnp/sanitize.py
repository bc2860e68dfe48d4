"""`make sanitize`: many random cases with C kernels that report each wrong access and each undefined operation.

The kernels are built with gcc's address and undefined-behaviour sanitizers into a folder of their own. Before the
cases run, faults are planted into copies of the source, one at a time: each has to be reported, or "clean" would mean
nothing. Half of the cases run with small constants, so that small tensors are cut into as many parts as large ones.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

KERNELS = Path("src/trimtab/bnp/backends")
FLAGS = ["-O1", "-g", "-std=c11", "-shared", "-fPIC", "-fno-omit-frame-pointer"]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
# Numbers that decide how the work is cut, and small ones in their place.
SMALL = {"MANY": 64, "PART": 64, "BLOCK": 8, "RUN": 8}


@dataclass(frozen=True)
class Fault:
    """Something wrong to be planted into the source: what, in which text, and what of the report tells it."""

    name: str
    old: str
    new: str
    report: str


FAULTS = [
    Fault(
        "a gradient is written one number too far",
        "for (; j < width; j++) {\n                weight[j] = ",
        "for (; j <= width; j++) {\n                weight[j] = ",
        "heap-buffer-overflow",
    ),
    Fault(
        "an input is read one row too far",
        "if (end > job->rows) end = job->rows;",
        "if (end > job->rows) end = job->rows + 1;",
        "heap-buffer-overflow",
    ),
    Fault(
        "means are written one number too far",
        "mean[j] = (REAL)(shift[j * apart] + m);\n        variance[j]",
        "mean[j] = (REAL)(shift[j * apart] + m);\n        variance[j + 1]",
        "heap-buffer-overflow",
    ),
    Fault(
        "memory is used after it was let go",
        "free(sums);\n    return 0;",
        "free(sums);\n    return sums[0] > 0;",
        "use-after-free",
    ),
    Fault("a division by zero", "PART / work->per_row + 1", "PART / (work->per_row * 0) + 1", "division by zero"),
    Fault(
        "a size that overflows",
        "weights += work->rows",
        "weights += INT64_MAX + work->rows",
        "signed integer overflow",
    ),
]


def edited(constants: dict[str, int] | None = None, fault: Fault | None = None) -> dict[str, str]:
    """The source of the kernels by the names of its files, with other constants or a fault in it if wanted."""
    files = {path.name: path.read_text(encoding="utf-8") for path in sorted(KERNELS.glob("native*.[ch]"))}
    changes = [(rf"^#define {name} \d+", f"#define {name} {value}") for name, value in (constants or {}).items()]
    if fault is not None:
        changes.append((re.escape(fault.old), fault.new))
    for old, new in changes:
        done = {name: re.subn(old, lambda _, new=new: new, text, flags=re.M) for name, text in files.items()}
        if sum(times for _, times in done.values()) < 1:
            raise LookupError(f"tests/bnp/sanitize.py names text that is not in the source of the kernels: {old!r}.")
        files = {name: text for name, (text, _) in done.items()}
    return files


def build(compiler: str, folder: Path, constants: dict[str, int] | None = None, fault: Fault | None = None) -> Path:
    """The library, from the edited source."""
    folder.mkdir()
    for name, text in edited(constants, fault).items():
        (folder / name).write_text(text, encoding="utf-8")
    library = folder / "_native.so"
    command = [*shlex.split(compiler), *FLAGS, *SANITIZERS, str(folder / "native.c"), "-o", str(library), "-lm"]
    subprocess.run(command, check=True)
    return library


def environment(compiler: str) -> dict[str, str]:
    """That of a process which loads the library: the sanitizer has to be there before all else."""
    preloaded = []
    for name in ("libasan.so", "libstdc++.so.6"):  # without the second, no C++ exception of torch would be caught
        asked = subprocess.run([*shlex.split(compiler), f"-print-file-name={name}"], capture_output=True, text=True)
        preloaded.append(asked.stdout.strip())
        if not Path(preloaded[-1]).is_absolute():
            sys.exit(f"{compiler} has no {name}; install gcc with its sanitizers, or name another one with CC=.")
    return {
        **os.environ,
        "LD_PRELOAD": " ".join(preloaded),
        # Python lets go of little when it ends; the other two save half of the time.
        "ASAN_OPTIONS": "detect_leaks=0:malloc_context_size=2:quarantine_size_mb=16",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",  # so that what is handed over as bytes has an end, too
        "OMP_WAIT_POLICY": "passive",  # threads that wait leave the cores to others
    }


def is_reported(fault: Fault, library: Path, surroundings: dict[str, str]) -> bool:
    """Whether the cases end with a report of the fault."""
    command = [sys.executable, "-m", "tests.bnp.fuzz", "--here", "--cases=40", f"--kernels={library}"]
    done = subprocess.run(command, env=surroundings, capture_output=True, text=True)
    return done.returncode != 0 and fault.report in done.stderr


def run(title: str, library: Path, seed: int, cases: int, surroundings: dict[str, str]) -> int:
    """Run some of the cases and show what is said of them, each line with a title before it; returns their status."""
    command = [sys.executable, "-m", "tests.bnp.fuzz", f"--seed={seed}", f"--cases={cases}", f"--kernels={library}"]
    with subprocess.Popen(
        command, env=surroundings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(f"{title}: {line}", end="", flush=True)
    return process.returncode


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bnp.sanitize", description=__doc__)
    parser.add_argument("--cases", type=int, default=20000, help="how many (20000)")
    parser.add_argument("--seed", type=int, default=0, help="of the first (0)")
    told = parser.parse_args(argv)
    compiler = os.environ.get("CC") or shutil.which("gcc")
    if compiler is None:
        sys.exit("There is no gcc; install it, or name one with CC=.")
    surroundings = environment(compiler)
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(2) as pool:
        folder = Path(name)
        for number, fault in enumerate(FAULTS):
            if not is_reported(fault, build(compiler, folder / f"fault{number}", fault=fault), surroundings):
                print(f"Planted, and not reported: {fault.name}.")
                return 1
            print(f"Planted, and reported: {fault.name}.", flush=True)
        half = told.cases // 2
        usual, small = build(compiler, folder / "usual"), build(compiler, folder / "small", SMALL)
        parts = [
            pool.submit(run, "as built", usual, told.seed, told.cases - half, surroundings),
            pool.submit(run, "in small parts", small, told.seed + told.cases - half, half, surroundings),
        ]
        failed = any(part.result() != 0 for part in parts)
    print("Not clean." if failed else "Clean.")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
