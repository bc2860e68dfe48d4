"""`make test-versions`: the tests that depend on torch, with several versions of it, each in an environment of its own.

    python -m tests.versions [VERSION ...]

Without versions: the oldest that pyproject.toml promises, some in between, that of constraints.txt, and the newest on
the index. The environments are kept in .venv-torch (each takes some gigabytes, since the index has torch with CUDA),
and what came out goes into docs/versions.md.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".venv-torch"
TABLE = ROOT / "docs" / "versions.md"
BETWEEN = ["2.9.1"]
TESTS = ["tests/bnp", "tests/probes", "tests/training"]


def default_versions() -> list[str]:
    """The oldest, those in between, that of constraints.txt, the newest."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    oldest = next(name.removeprefix("torch>=") for name in project["dependencies"] if name.startswith("torch>="))
    ours = re.search(r"^torch==([\d.]+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M)
    listing = subprocess.run(
        [sys.executable, "-m", "pip", "index", "versions", "torch"], capture_output=True, text=True, check=True
    ).stdout
    newest = re.search(r"torch \(([\d.]+)", listing)
    assert ours is not None and newest is not None
    oldest += ".0" * (2 - oldest.count("."))
    return list(dict.fromkeys([oldest, *BETWEEN, ours[1], newest[1]]))


def environment(version: str) -> Path:
    """The Python of an environment with this torch, made if it is not there."""
    folder = FOLDER / version
    python, stamp = folder / "bin" / "python", folder / ".ready"
    if not stamp.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        constraints = folder / "constraints.txt"  # what torch needs is up to this torch
        bound = ("torch", "triton", "nvidia", "sympy", "networkx", "jinja2", "fsspec", "filelock", "setuptools")
        kept = [line for line in lines if not line.lower().startswith(bound)]
        constraints.write_text("\n".join([*kept, f"torch=={version}"]), encoding="utf-8")
        install = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(constraints)]
        subprocess.run([*install, f"{ROOT}[lab,dev]"], check=True)
        stamp.touch()
    return python


def outcome(version: str) -> tuple[str, list[str]]:
    """pytest's last line, and the tests that failed."""
    command = [str(environment(version)), "-m", "pytest", "-q", "-n", "2", "-m", "not slow", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, *TESTS], cwd=ROOT, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines() or [done.stderr.strip()[-200:]]
    failed = [line.split()[1] for line in lines if line.startswith(("FAILED", "ERROR"))]
    (FOLDER / f"{version}.log").write_text(done.stdout + done.stderr, encoding="utf-8")
    return lines[-1].strip("= "), failed


def main() -> None:
    """Test with each version and write the table."""
    rows = []
    for version in sys.argv[1:] or default_versions():
        last, failed = outcome(version)
        print(f"torch {version}: {last}", *failed, sep="\n  ", flush=True)
        counts = re.sub(r" in .*", "", last)
        rows.append(f"| {version} | {counts} | {', '.join(f'`{name}`' for name in failed) or 'none'} |")
    text = "\n".join(
        [
            "# Versions of torch",
            "",
            f"What `make test-versions` has given for {', '.join(f'`{tests}`' for tests in TESTS)}, on a CPU, without",
            "the slow tests.",
            "",
            "| torch | outcome | failures |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )
    TABLE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
