"""`make test-versions`: the tests that depend on torch, with several versions of it, each in an environment of its own.

    python -m tests.versions [VERSION ...]

Without versions: one that is too old to be promised, the oldest that pyproject.toml promises, that of constraints.txt,
and the newest on the index. The environments are kept in .venv-torch (each takes some gigabytes, since the index has
torch with CUDA). What came out goes into the table of docs/versions.md; the rest of that page is written by hand.
"""

import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".venv-torch"
PAGE = ROOT / "docs" / "versions.md"
NOT_PROMISED = "2.6.0"
TESTS = ["tests/bnp", "tests/probes", "tests/training"]
ROW = re.compile(r"^\| (\d+\.\d+\.\d+) \|.*\n", re.M)


def default_versions() -> list[str]:
    """One that is not promised, the oldest that is, that of constraints.txt, the newest."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bound = next(name.removeprefix("torch>=") for name in project["dependencies"] if name.startswith("torch>="))
    ours = re.search(r"^torch==([\d.]+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M)
    listing = subprocess.run(
        [sys.executable, "-m", "pip", "index", "versions", "torch"], capture_output=True, text=True, check=True
    ).stdout
    newest = re.search(r"torch \(([\d.]+)", listing)
    oldest = re.search(rf"\b{re.escape(bound)}\.\d+", listing)  # with its corrections: the newest are listed first
    assert ours is not None and newest is not None and oldest is not None
    return list(dict.fromkeys([NOT_PROMISED, oldest[0], ours[1], newest[1]]))


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
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        extras = project["optional-dependencies"]
        needed = [*project["dependencies"], *extras["lab"], *extras["dev"]]
        needed = [name for name in needed if not name.startswith(("torch>=", "trimtab"))]
        install = [str(python), "-m", "pip", "install", "--quiet"]
        subprocess.run([*install, "--constraint", str(constraints), f"torch=={version}", *needed], check=True)
        # Without what it depends on, since it would refuse a torch that is too old.
        subprocess.run([*install, "--no-deps", "--editable", str(ROOT)], check=True)
        stamp.touch()
    return python


def outcome(version: str) -> tuple[str, list[str]]:
    """pytest's last line, and the tests that failed."""
    command = [str(environment(version)), "-m", "pytest", "-q", "-n", "2", "-m", "not slow", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, *TESTS], cwd=ROOT, capture_output=True, text=True, check=False)
    (FOLDER / f"{version}.log").write_text(done.stdout + done.stderr, encoding="utf-8")
    return read_outcome(done.stdout or done.stderr)


def read_outcome(output: str) -> tuple[str, list[str]]:
    """The last line of what pytest prints, and the tests that failed."""
    failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.M)
    return output.strip().splitlines()[-1].strip("= "), failed


def row(version: str, last: str, failed: list[str]) -> str:
    """A line of the table; a test that failed with several parameters is named once."""
    tests = Counter(name.partition("[")[0] for name in failed)
    names = [f"`{name}`" + (f" ({count})" if count > 1 else "") for name, count in tests.items()]
    return f"| {version} | {re.sub(r' in .*', '', last)} | {', '.join(names) or 'none'} |\n"


def with_rows(page: str, rows: dict[str, str]) -> str:
    """The page with these rows, by version, in its table; other rows and all the rest stay as they are."""
    every = {found[1]: found[0] for found in ROW.finditer(page)} | rows
    ordered = "".join(every[key] for key in sorted(every, key=lambda key: [int(part) for part in key.split(".")]))
    head, rule, rest = page.partition("|---|---|---|\n")
    return head + rule + ordered + ROW.sub("", rest)


def main() -> None:
    """Test with each version and put what came out into the table."""
    for version in sys.argv[1:] or default_versions():
        last, failed = outcome(version)
        print(f"torch {version}: {last}", *failed, sep="\n  ", flush=True)
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(with_rows(page, {version: row(version, last, failed)}), encoding="utf-8")


if __name__ == "__main__":
    main()
