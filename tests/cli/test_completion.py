"""What a shell offers when TAB is pressed."""

import importlib.util
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from trimtab import cli
from trimtab.cli import common
from trimtab.cli.completion import SHELLS
from trimtab.data import DATASETS
from trimtab.networks import NETWORKS

# What is typed, and what is offered.
CASES: list[tuple[str, list[str]]] = [
    ("trimtab tr", ["train"]),
    ("trimtab data ", ["list", "fetch", "verify"]),
    ("trimtab data fetch fash", ["fashion-mnist"]),
    ("trimtab list n", ["networks", "norms"]),
    ("trimtab train --network res", ["resnet110", "resnet18"]),
    ("trimtab train --data ", [*DATASETS]),
    ("trimtab train --optim", ["--optimizer"]),
    ("trimtab train --optimizer ", ["sgd", "adam", "adamw"]),
    ("trimtab train --lr 0.1 --precision t", ["tf32"]),
    ("trimtab train --method bnp+g", ["bnp+gn", "bnp+ghost"]),
    ("trimtab train --compile --init h", ["he"]),
    ("trimtab probe vgg1", ["vgg16"]),
    ("trimtab predict cn", ["cnn5"]),
    ("trimtab predict cnn5 --norm gh", ["ghost"]),
    ("trimtab compare --methods van", ["vanilla"]),
    ("trimtab compare --methods vanilla,bn,gh", ["vanilla,bn,ghost"]),
    ("trimtab compare --network small-c", ["small-cnn"]),
    ("trimtab compare --network vgg,small-m", ["vgg,small-mlp"]),
    ("trimtab train --probe noise,spec", ["noise,spectrum"]),
    ("trimtab export mode", ["model.pt"]),
]


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scripts")
    for shell in SHELLS:
        with pytest.MonkeyPatch.context() as patched, (folder / shell).open("w") as file:
            patched.setattr("sys.stdout", file)
            assert cli.main(["completion", shell]) == 0
    (folder / "model.pt").touch()
    return folder


@pytest.fixture(scope="module")
def offered_by_bash(scripts: Path) -> list[list[str]]:
    lines = ["source ./bash", "set -f"]
    for typed, _ in CASES:
        words = typed.split(" ")
        lines += [f"COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}; COMPREPLY=()"]
        lines += ['_shtab_trimtab; echo "${COMPREPLY[*]}"']
    done = subprocess.run(
        ["bash", "-c", "\n".join(lines)], cwd=scripts, capture_output=True, text=True, check=False, timeout=60
    )
    return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.parametrize("number", range(len(CASES)), ids=[typed for typed, _ in CASES])
def test_bash(number: int, offered_by_bash: list[list[str]]) -> None:
    assert sorted(offered_by_bash[number]) == sorted(CASES[number][1])


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish(scripts: Path) -> None:
    # Of a list between commas fish shows the last word; files it offers in its own way.
    cases = [(typed, wanted) for typed, wanted in CASES if "model" not in typed]
    lines = ["source ./fish", *(f"complete -C {shlex.quote(typed)}; echo ---" for typed, _ in cases)]
    command = ["fish", "--no-config", "-c", "\n".join(lines)]
    done = subprocess.run(command, cwd=scripts, capture_output=True, text=True, check=True, timeout=60)
    for (typed, wanted), found in zip(cases, done.stdout.split("---\n"), strict=False):
        offered = [line.split("\t")[0] for line in found.splitlines()]
        assert sorted(offered) == sorted(wanted), typed


def test_pressing_tab_starts_no_python(scripts: Path) -> None:
    """All names are in the script."""
    for shell in SHELLS:
        text = (scripts / shell).read_text()
        assert all(name in text for name in (*NETWORKS, *DATASETS, "second_moment", "bnp+gn", "spectrum"))
        assert "python" not in text


def test_without_shtab(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(common, "find_spec", lambda name: None if name == "shtab" else importlib.util.find_spec(name))
    assert cli.main(["completion", "bash"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("trimtab: this needs shtab; ") and "[lab]" in error and error.count("\n") == 1
