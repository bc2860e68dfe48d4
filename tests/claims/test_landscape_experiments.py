"""The experiments of blocks 2.2 to 2.5, with a small network and few steps: every part is decided."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.claims.helpers import recorded
from tests.claims.inline import inline_context
from trimtab.claims.declarations import blocks, claims
from trimtab.claims.experiments import (
    deep_linear,
    landscape_rates,
    landscape_setup,
    other_methods,
    plain_networks,
    vgg_landscape,
)
from trimtab.claims.experiments.registry import experiment_named
from trimtab.claims.findings import Findings
from trimtab.claims.functions import FUNCTIONS
from trimtab.claims.record import Record
from trimtab.claims.verdict import judge
from trimtab.networks import build

TINY = {"data": "digits", "network": "small-cnn", "before_activation": True, "train_subset": 100}
NEEDS_CIFAR10 = {"deep-plain"}
LONG = {"landscape-rates", "length-direction", "lp-dln25", "lp-vgg", "other-networks", "vgg"}
OURS = [claim for block in blocks() if block.number in ("2.2", "2.3", "2.4", "2.5") for claim in block.claims]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few steps of a small network."""
    monkeypatch.setattr(landscape_setup, "CNN", TINY)
    monkeypatch.setitem(landscape_setup.STEPS, "small", 30)
    monkeypatch.setattr(deep_linear, "LINEAR", {**deep_linear.LINEAR, "steps": 30, "evaluations": 5})
    monkeypatch.setitem(landscape_rates.LENGTHS, "small", (3, 3))
    monkeypatch.setitem(other_methods.LENGTHS, "small", 4)
    monkeypatch.setitem(other_methods.TRAJECTORIES, "small", 10)
    monkeypatch.setitem(other_methods.ABLATED, "small", 10)
    monkeypatch.setattr(plain_networks, "AFTER", 5)

    def shortened(train: Callable[..., Any]) -> Callable[..., Any]:
        def trained(context: Any, cases: Any, shared: Any, seeds: Any, **more: Any) -> Any:
            shared = dict(shared)
            if shared["network"] == "cnn5":  # of `other-networks`, beside one on digits already
                shared |= TINY
            if shared["network"] != "dln25" and "steps" in shared:
                shared["steps"] = min(shared["steps"], 30)
            if "probe_every" in shared:
                shared["probe_every"] = 10
            if shared["network"] == "small-cnn":  # which has no third norm
                cases = {name: {k: v for k, v in own.items() if k != "norm_layers"} for name, own in cases.items()}
            if "ablation" in shared.get("probe", ()):
                shared |= {"network": "small-cnn"}
            return train(context, cases, shared, seeds[: 1 if "activations" in shared.get("probe", ()) else 2], **more)

        return trained

    for module in (deep_linear, landscape_rates, other_methods, plain_networks, vgg_landscape):
        monkeypatch.setattr(module, "train_cases", shortened(module.train_cases))


class Found:
    """A record that was just computed."""

    def __init__(self, record: Record) -> None:
        self.record = record

    def find(self, experiment: str, size: str) -> Record | None:
        return self.record if experiment == self.record.experiment else None


def record_of(name: str, work: Path) -> Record:
    findings = Findings()
    experiment_named(name).run(findings, inline_context(work))
    return recorded(findings, name)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in LONG else name
        for name in sorted({claim.experiment or "" for claim in OURS} - NEEDS_CIFAR10)
    ],
)
def test_the_record_decides_every_part(name: str, tiny: None, tmp_path: Path) -> None:
    record = record_of(name, tmp_path)
    decided = [claim for claim in OURS if claim.experiment == name]
    assert decided
    for claim in decided:
        outcomes = judge(claim, "small", Found(record), claims(), FUNCTIONS).outcomes
        undecided = [outcome for outcome in outcomes if outcome.state == "not run"]
        for outcome in undecided:  # of another experiment, or with too few steps for two runs to have a loss in common
            assert outcome.part.experiment or outcome.part.measure.endswith("at equal loss"), outcome
        assert len(outcomes) >= len(claim.parts)
    path = record.write(tmp_path)
    assert Record.read(path).numbers.keys() == record.numbers.keys()
    assert len(json.dumps(record.curves)) < 60_000


def test_every_claim_of_these_blocks_names_an_experiment() -> None:
    assert len(OURS) == 60
    for claim in OURS:
        assert claim.parts and all(experiment_named(name).minutes for name in claim.experiments)


def test_rates_near_the_best_and_around_the_printed_one() -> None:
    assert landscape_rates.near_the_best({0.1: 50, 0.3: 55, 1.0: 60, 3.0: 10}) == [0.3, 1.0]
    losses = {0.1: 4.0, 0.3: 2.0, 1.0: 1.5, 3.0: math.inf}
    assert landscape_rates.decades_near_the_best(losses) == pytest.approx(2 * math.log10(3))
    assert landscape_rates.decades_near_the_best(dict.fromkeys(losses, math.inf)) == 0
    assert landscape_rates.steps_from(0.1, list(losses), losses) == 2


def test_the_ratio_of_gradients_is_that_of_the_first_and_the_last_layer() -> None:
    torch.manual_seed(0)
    model = build("deep-mlp", depth=3, input_shape=(4,))
    inputs, targets = torch.randn(8, 4), torch.arange(8)
    found = plain_networks.gradient_ratio(model, inputs, targets)
    model.zero_grad()
    torch.nn.functional.cross_entropy(model(inputs), targets).backward()
    first, *_, last = (module for module in model.modules() if isinstance(module, torch.nn.Linear))

    def norm(layer: torch.nn.Linear) -> float:
        assert layer.weight.grad is not None and layer.bias.grad is not None
        return math.sqrt(float(layer.weight.grad.square().sum() + layer.bias.grad.square().sum()))

    assert found == pytest.approx(norm(first) / norm(last), rel=1e-5)


def test_accuracy_that_is_never_halved_needs_all_units() -> None:
    assert other_methods.halved([{"halved_at": 0.3}]) == 0.3
    assert other_methods.halved([{"halved_at": math.nan}]) == 1 and other_methods.halved([]) == 0
