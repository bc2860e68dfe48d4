"""Experiments on CIFAR-100 and ImageNet, by their own code, on made files in the official formats."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.claims.helpers import Store, recorded
from tests.claims.inline import InlineEngine
from tests.data.helpers import cifar_arrays, cifar_files, write_cifar
from trimtab import cli
from trimtab.claims.declarations import claims
from trimtab.claims.experiments import residual
from trimtab.claims.experiments.registry import Context, experiment_named, experiments
from trimtab.claims.findings import Findings
from trimtab.claims.functions import FUNCTIONS
from trimtab.claims.verdict import judge
from trimtab.data import catalog
from trimtab.data.cifar import load_cifar
from trimtab.data.imagefolder import load_imagefolder

NOT_AT_HAND = {"cifar100": "preact110", "imagefolder": "resnet18"}
"""Data sets, and the experiment whose size paper is on them."""


def made_cifar100(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar(root, "cifar100", "python", cifar_files("cifar100", "python", cifar_arrays("cifar100", 8)))
    unchecked = catalog._Entry("", lambda root, check: load_cifar("cifar100", root, check=False))
    monkeypatch.setitem(catalog._CATALOG, "cifar100", unchecked)  # the official files have checksums


def made_imagefolder(root: Path) -> None:
    random = np.random.default_rng(0)
    for part, count in (("train", 4), ("val", 2)):
        for label in ("n01", "n02"):
            folder = root / "imagenet" / part / label
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 256, (48, 40, 3), np.uint8)
                Image.fromarray(pixels).save(folder / f"{label}_{number}.JPEG")


@pytest.mark.parametrize(("data", "name"), NOT_AT_HAND.items())
def test_the_papers_size_runs_on_made_files(
    data: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two steps of each method instead of 300 epochs; all else is the experiment's."""
    root = tmp_path / "data"
    root.mkdir()
    if data == "cifar100":
        made_cifar100(root, monkeypatch)
    else:
        made_imagefolder(root)
        smaller = catalog._Entry("", lambda root, _: replace(load_imagefolder(root), side=64))  # a tenth of the time
        monkeypatch.setitem(catalog._CATALOG, "imagefolder", smaller)
        monkeypatch.setattr("trimtab.data.imagefolder.MOST_WORKERS", 0)  # a process takes seconds to start
    asked: list[dict[str, Any]] = []

    def shortened(train: Callable[..., Any]) -> Callable[..., Any]:
        def trained(context: Any, cases: Any, shared: Any, seeds: Any, **more: Any) -> Any:
            asked.append(dict(shared))
            short = {"epochs": 1, "milestones": (1,), "batch_size": 4}
            return train(context, cases, {**shared, **short}, seeds[:1], **more)

        return trained

    monkeypatch.setattr(residual, "train_cases", shortened(residual.train_cases))
    findings = Findings()
    context = Context("paper", torch.device("cpu"), root, tmp_path / "work", engine=InlineEngine())
    experiment_named(name).run(findings, context)
    assert [(one["data"], one["network"]) for one in asked] == [(data, name)]
    assert (asked[0]["epochs"], asked[0]["milestones"][0]) == {"cifar100": (300, 150), "imagefolder": (100, 30)}[data]
    assert findings.chance == (1.0 if data == "cifar100" else 50.0) and not findings.neighbour and not findings.refused
    record = recorded(findings, name, "paper")
    of_it = [claim for claim in claims().values() if claim.experiment == name]
    assert len(of_it) == 3
    for claim in of_it:
        verdict = judge(claim, "paper", Store(record), claims(), FUNCTIONS)
        assert verdict.state != "not run" and not verdict.flags


def test_their_smaller_sizes_are_neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for data, name in NOT_AT_HAND.items():
        one = experiment_named(name)
        assert one.needs["paper"] == (data,)
        for size in ("small", "gpu"):
            said: list[str] = []
            monkeypatch.setattr(residual, "decayed", lambda findings, *given, s=said: s.append(findings.neighbour))
            one.run(Findings(), Context(size, torch.device("cpu"), None, tmp_path))
            assert len(said) == 1 and "instead of" in said[0]


def test_no_other_experiment_needs_data_that_are_not_at_hand() -> None:
    wanting = {name for name, one in experiments().items() for data in one.needs.values() if {*data} & {*NOT_AT_HAND}}
    assert wanting == set(NOT_AT_HAND.values())


@pytest.mark.parametrize(("data", "name"), NOT_AT_HAND.items())
def test_the_command_says_what_is_not_there(
    data: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    words = ["--experiment", name, "--size", "paper", "--data-root", "empty", "--device", "cpu"]
    assert cli.main(["claims", "run", *words]) == 1
    told = capsys.readouterr().out
    assert f"not run: {data}" in told or f"not run: There is no {data}" in told, told
