"""What is entered of rates that are bisected, and that it decides the claim."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.claims.helpers import Store, recorded
from tests.claims.inline import inline_context
from trimtab.claims import claim_named
from trimtab.claims.declarations import claims
from trimtab.claims.experiments import own_stable_rate
from trimtab.claims.experiments.registry import experiment_named
from trimtab.claims.findings import Findings
from trimtab.claims.functions import FUNCTIONS
from trimtab.claims.verdict import judge
from trimtab.data import load
from trimtab.prediction.divergence import Edges

MULTIPLES = {
    "rise over η* of train mode": 2.0,
    "rise over η* of frozen mode": 8.0,
    "failure over η* of train mode": 0.5,
}


def test_networks_are_put_together_on_a_scale_of_factors() -> None:
    findings = Findings()
    lower = dict.fromkeys(MULTIPLES, 0.5)
    own_stable_rate.enter(findings, "bn", 101, {"squared-sgd": [MULTIPLES, lower]})
    found = {measure: cases for measure, cases in findings.numbers.items() if "train" in measure}
    assert found["rise over η* of train mode, mean of networks"] == {"bn-squared-sgd": {"101": pytest.approx(1)}}
    assert found["rise over η* of train mode, lowest network"] == {"bn-squared-sgd": {"101": 0.5}}
    away = findings.numbers["how far off the rise is, squared-sgd"]
    assert away["bn-train"]["101"] == pytest.approx(math.log(2))  # a factor of 2, once up and once down
    assert away["bn-frozen"]["101"] == pytest.approx((math.log(8) + math.log(2)) / 2)


@pytest.mark.slow
def test_the_experiment_decides_each_part(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On a network whose loss rises at twice η* and which fails at three times it, by a search made by hand."""
    monkeypatch.setattr(own_stable_rate, "NETWORKS", {"small-mlp": "digits"})
    monkeypatch.setattr(own_stable_rate, "SAMPLES", 32)
    asked: list[tuple[str, float]] = []

    def made(problem: Any, optimizer: str, largest: float) -> Edges:
        asked.append((optimizer, largest))
        plain = 1.9 if optimizer == "momentum" else 1.0
        return Edges((2 / plain, 2 / plain), (3.0, 3.0), True, 1)

    monkeypatch.setattr("trimtab.prediction.divergence.edges", made)
    findings = Findings()
    experiment_named("stable-rate").run(findings, inline_context(tmp_path))
    record = recorded(findings, "stable-rate")
    claim = claim_named("own-stable-rate")
    verdict = judge(claim, "small", Store(record), claims(), FUNCTIONS)
    states = [outcome.state for outcome in verdict.outcomes]
    assert "not run" not in states and states[4:8] == ["met"] * 4
    rises = record.numbers["rise over η* of train mode, mean of networks"]
    assert {round(value, 9) for by_seed in rises.values() for value in by_seed.values()} == {2.0}
    plain, with_momentum = (sorted(e for o, e in asked if o == name) for name in ("sgd", "momentum"))
    assert plain and with_momentum == pytest.approx([1.9 * largest for largest in plain])
    assert set(rises) == {
        f"{case}-{loss}-{optimizer}"
        for case in own_stable_rate.CASES
        for loss in own_stable_rate.LOSSES
        for optimizer in own_stable_rate.OPTIMIZERS
    }


def test_samples_and_weights_are_those_of_the_seed() -> None:
    digits = load("digits")
    x, classes = own_stable_rate.samples(digits, 101)
    again, _ = own_stable_rate.samples(digits, 101)
    other, _ = own_stable_rate.samples(digits, 102)
    assert len(x) == len(classes) == own_stable_rate.SAMPLES
    assert torch.equal(x, again) and not torch.equal(x, other)
    first, same, another = (own_stable_rate.drawn("small-mlp", "bn", (1, 8, 8), seed) for seed in (101, 101, 102))
    weights = [torch.cat([weight.flatten() for weight in model.parameters()]) for model in (first, same, another)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])
    kinds = [type(module).__name__ for module in first]  # type: ignore[attr-defined]
    assert kinds.index("BatchNorm1d") < kinds.index("ReLU")


def test_a_network_without_norms_has_one_rate_whatever_the_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimtab.prediction.divergence.edges", lambda *given: Edges((2.0, 2.0), (3.0, 3.0), True, 1))
    digits = load("digits")
    for case, alike in (("vanilla", True), ("bn", False)):
        for found in own_stable_rate.look("small-mlp", case, digits, 101).values():
            same = found["rise over η* of frozen mode"] == pytest.approx(found["rise over η* of train mode"])
            assert same == alike
