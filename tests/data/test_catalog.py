"""Data sets by name, and where they are looked for."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.data.helpers import idx_arrays, write_idx
from trimtab.data import DATASETS, DataError, load
from trimtab.data.digits import load_digits


def test_names() -> None:
    assert list(DATASETS) == ["digits", "mnist", "fashion-mnist", "cifar10", "cifar100", "imagefolder", "gaussian"]


@pytest.mark.parametrize(
    ("wrong", "near"),
    [("mnsit", "mnist"), ("cifar-10", "cifar10"), ("fashion", "fashion-mnist"), ("CIFAR100", "cifar100")],
)
def test_unknown_names_answer_with_the_nearest(wrong: str, near: str) -> None:
    with pytest.raises(ValueError, match=f"There is no data set '{wrong}'; did you mean '{near}"):
        load(wrong)


def test_an_argument_comes_before_the_variable_and_that_before_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, count in (("given", 11), ("named", 12), ("data", 13)):
        write_idx(tmp_path / place / "mnist", idx_arrays(train=count), zipped=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRIMTAB_DATA", str(tmp_path / "named"))
    assert len(load("mnist", tmp_path / "given", check=False).train) == 11
    assert len(load("mnist", check=False).train) == 12
    monkeypatch.setenv("TRIMTAB_DATA", "")
    assert len(load("mnist", check=False).train) == 13
    monkeypatch.delenv("TRIMTAB_DATA")
    assert len(load("mnist", check=False).train) == 13
    with pytest.raises(DataError, match=r"looked in \S+empty"):
        load("mnist", tmp_path / "empty", check=False)


def test_digits_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    load_digits.cache_clear()
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(
        DataError,
        match=r"digits needs scikit-learn; pip install '\.\[lab\]' in trimtab's source folder",
    ):
        load("digits")


def test_importing_needs_nothing_of_the_lab() -> None:
    code = "import sys, trimtab.data; print([m for m in ('sklearn', 'PIL', 'matplotlib', 'rich') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
