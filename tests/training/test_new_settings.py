"""Settings of runs that reach the network and the probes: schedules, activations, depth, β, multiples; old files."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import nn

from trimtab import cli, load_run
from trimtab.data import batches, load
from trimtab.norms import BatchRenorm, RenormLimits
from trimtab.training import checkpoint
from trimtab.training.network import renorm_limits
from trimtab.training.recipes import resolve
from trimtab.training.session import Session
from trimtab.training.settings import Settings
from trimtab.training.sweep.stack import Stack

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {"network": "small-mlp", "batch_size": 32, "lr": 0.05}


def session(**told: Any) -> Session:
    return Session(resolve(Settings(**{**SMALL, **told})), CPU)


def renorms(model: nn.Module) -> list[BatchRenorm]:
    return [module for module in model.modules() if isinstance(module, BatchRenorm)]


@pytest.mark.parametrize(
    ("told", "steps", "expected"),
    [
        ({}, 320, (10, 80, 50)),
        ({}, 160_000, (5_000, 40_000, 25_000)),
        ({}, 10**6, (5_000, 40_000, 25_000)),
        ({}, 3, (0, 0, 0)),
        ({"renorm_start": 100}, 320, (100, 100, 100)),
        ({"renorm_start": 60}, 320, (60, 80, 60)),
        ({"renorm_r_end": 5}, 320, (5, 5, 50)),
        ({"renorm_start": 1, "renorm_r_end": 7, "renorm_d_end": 9}, 320, (1, 7, 9)),
    ],
)
def test_the_schedule_of_a_run(told: dict[str, int], steps: int, expected: tuple[int, int, int]) -> None:
    found = renorm_limits(Settings(method="brn", r_max=2.0, d_max=0.5, **told), steps)
    warmup, r_steps, d_steps = expected
    assert found == RenormLimits(r_max=2.0, d_max=0.5, warmup=warmup, r_steps=r_steps, d_steps=d_steps)


def test_a_short_run_of_brn_has_the_whole_schedule() -> None:
    """Epochs are counted in steps, and at its end the limits are those at the end: it is not BatchNorm all along."""
    runs = {name: session(method=name, epochs=2, norm_momentum=0.01) for name in ("bn", "brn")}
    total = runs["brn"].total
    assert total == 2 * (1397 // 32)
    for layer in renorms(runs["brn"].model):
        assert (layer.warmup, layer.r_steps, layer.d_steps) == (total // 32, total // 4, 5 * total // 32)
        assert [float(x) for x in layer.limits(torch.tensor(total))] == [3.0, 5.0]
    weights = []
    for _ in range(total):
        for one in runs.values():
            one.advance()
        same = all(
            torch.allclose(a, b, atol=1e-5)
            for a, b in zip(runs["bn"].model.parameters(), runs["brn"].model.parameters(), strict=True)
        )
        weights.append(same)
    assert weights[: total // 32] == [True] * (total // 32) and not weights[-1]


def test_brn_that_never_begins_is_bn() -> None:
    def weights(method: str, **told: int) -> torch.Tensor:
        one = session(method=method, steps=8, norm_momentum=0.1, **told)
        for _ in range(8):
            one.advance()
        return nn.utils.parameters_to_vector(one.model.parameters())

    bn, never, at_once = weights("bn"), weights("brn", renorm_start=8), weights("brn", renorm_start=0)
    assert (never - bn).abs().max() < 1e-3 < 0.1 * (at_once - bn).abs().max()


@pytest.mark.parametrize(
    "told",
    [
        {"method": "brn", "renorm_start": 2, "renorm_r_end": 6, "renorm_d_end": 4},
        {"method": "bn", "activation": "erf", "fixed_beta": True},
        {"method": "vanilla", "activation": "elu", "depth": 6},
        {"method": "bnp", "activation": "linear", "depth": 2},
    ],
    ids=lambda told: "-".join(map(str, told.values())),
)
def test_a_stack_trains_as_runs_of_their_own(told: dict[str, Any]) -> None:
    settings = [resolve(Settings(**SMALL, **told, steps=8, seed=seed)) for seed in (0, 1)]
    stack = Stack(settings, load("digits"), CPU)
    alone = [Session(one, CPU) for one in settings]
    while not stack.finished:
        stack.advance()
    for one in alone:
        for _ in range(8):
            one.advance()
    for outcome, one in zip(stack.outcomes(), alone, strict=True):
        loss, _ = one.evaluate()
        assert outcome.loss == pytest.approx(loss, rel=1e-4)


def test_a_fixed_beta_is_not_trained_and_not_decayed() -> None:
    one = session(method="bn", fixed_beta=True, fixed_gamma=True, steps=3, weight_decay=0.1, momentum=0.9)
    for _ in range(3):
        one.advance()
    norms = [module for module in one.model.modules() if isinstance(module, nn.BatchNorm1d)]
    assert norms and all(not norm.bias.any() and (norm.weight == 1).all() for norm in norms)


def test_inputs_are_normalized_pixel_by_pixel() -> None:
    """Against numpy: pixels that are the same in all images become 0, the others have mean 0 and variance 1."""
    data = load("digits")
    (batch,) = batches(data.train, len(data.train), dataset=data, normalize="pixel")
    raw = data.train.inputs.double().numpy()
    deviation = raw.std(0)
    expected = (raw - raw.mean(0)) / np.where(deviation > 0, deviation, 1)
    np.testing.assert_allclose(batch[0].numpy(), expected, atol=1e-4)
    assert 0 < (deviation == 0).sum() < deviation.size


def test_the_landscape_is_looked_at_where_it_was_asked_for(tmp_path: Path) -> None:
    told = [
        "train",
        "--network",
        "small-mlp",
        "--method",
        "bn",
        "--steps",
        "2",
        "--quiet",
        "--out",
        str(tmp_path / "r"),
    ]
    assert cli.main([*told, "--probe", "landscape,random", "--probe-at", "1", "--probe-multiples", "8,16,32"]) == 0
    events = [json.loads(line) for line in (tmp_path / "r" / "events.jsonl").read_text().splitlines()]
    assert json.dumps(events).count('"multiples": [8.0, 16.0, 32.0]') == 2


@pytest.mark.parametrize("told", [["--activation", "tanh", "--depth", "5"], ["--fixed-beta"], ["--normalize", "pixel"]])
def test_a_trained_network_is_loaded_as_it_was(told: list[str], tmp_path: Path) -> None:
    words = [
        "train",
        "--network",
        "small-mlp",
        "--method",
        "bn",
        "--steps",
        "3",
        "--quiet",
        "--out",
        str(tmp_path / "r"),
    ]
    assert cli.main([*words, *told]) == 0
    run = load_run(tmp_path / "r")
    assert sum(isinstance(module, nn.Linear) for module in run.model.modules()) == (5 if "--depth" in told else 4)
    assert any(isinstance(module, nn.Tanh) for module in run.model.modules()) == ("--activation" in told)
    assert run.evaluated is not None
    split = load("digits").test
    with torch.no_grad():
        found = (run.model(run.normalize(split.inputs)).argmax(1) == split.targets).float().mean().item()
    assert found == pytest.approx(run.evaluated.accuracy, abs=1e-6)


NEW = (
    *("fixed_beta", "dropout_before", "activation", "depth", "probe_multiples"),
    *("r_max", "d_max", "renorm_start", "renorm_r_end", "renorm_d_end"),
)


def test_a_run_of_an_earlier_version_goes_on_as_it_began(tmp_path: Path) -> None:
    """There were no such settings, and Batch Renorm had the published schedule at any length."""
    folder = tmp_path / "run"
    schedule = ["--renorm-start", "5000", "--renorm-r-end", "40000", "--renorm-d-end", "25000"]
    words = ["train", "--network", "small-mlp", "--method", "brn", "--quiet"]
    assert cli.main([*words, "--steps", "10", *schedule, "--out", str(tmp_path / "whole")]) == 0
    assert cli.main([*words, "--steps", "5", *schedule, "--out", str(folder)]) == 0
    settings = yaml.safe_load((folder / "settings.yaml").read_text())
    (folder / "settings.yaml").write_text(yaml.safe_dump({k: v for k, v in settings.items() if k not in NEW}))
    saved = checkpoint.load(folder / "checkpoint.pt", CPU)
    saved["settings"] = {name: value for name, value in saved["settings"].items() if name not in NEW}
    checkpoint.save(folder / "checkpoint.pt", {name: value for name, value in saved.items() if name != "schema"})
    assert load_run(folder).settings.renorm_start == 5000
    assert cli.main(["train", "--resume", "--steps", "10", "--quiet", "--out", str(folder)]) == 0
    ours, theirs = load_run(folder), load_run(tmp_path / "whole")
    assert replace(ours.settings, steps=10) == theirs.settings
    for one, other in zip(ours.model.state_dict().values(), theirs.model.state_dict().values(), strict=True):
        assert torch.equal(one, other)
