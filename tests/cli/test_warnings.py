"""Warnings of a command are one line without code: the person who reads them has written none."""

import warnings
from pathlib import Path
from typing import Any

from trimtab import cli


def test_a_warning_is_one_line(tmp_path: Path) -> None:
    shown: list[str] = []

    def show(message: Warning | str, category: type[Warning], *where: Any) -> None:
        shown.append(warnings.formatwarning(message, category, *where[:2]))

    told = ["--network", "small-mlp", "--method", "vanilla", "--lr", "1e30", "--steps", "3"]
    told += ["--log-every", "3", "--evaluations", "1"]  # at which it would be seen to have diverged
    before = warnings.formatwarning
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        cli.main(["train", *told, "--probe", "landscape", "--probe-every", "2", "--out", str(tmp_path / "run")])
    assert warnings.formatwarning is before
    (line,) = shown
    assert line.startswith("trimtab: The probe 'landscape' measured nothing at step 2: ") and line.count("\n") == 1
