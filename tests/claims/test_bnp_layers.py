"""bnp's measurements on trained networks: the best scaling, patches, single images, and what their record decides."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.claims.helpers import recorded
from trimtab.claims import Record, claims
from trimtab.claims.experiments import bnp_draws, bnp_layers, bnp_scaling, bnp_site_time
from trimtab.claims.experiments.registry import Context
from trimtab.claims.findings import Findings
from trimtab.claims.functions import FUNCTIONS
from trimtab.claims.verdict import judge
from trimtab.data import Dataset, Split
from trimtab.data.dataset import channel_statistics
from trimtab.theory import bounds
from trimtab.theory.bounds.inputs import matrices


@pytest.fixture
def data() -> Dataset:
    """Images that are like CIFAR-10's in shape alone."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (150, 3, 32, 32), generator=generator, dtype=torch.uint8)
    split = Split(images, torch.arange(150) % 10)
    mean, std = channel_statistics(images, 255.0)
    return Dataset(name="cifar10", train=split, test=split, classes=10, scale=255.0, mean=mean, std=std)


def gram_of(rows: Any) -> Any:
    return rows.T @ rows / len(rows)


@pytest.mark.parametrize("seed", range(5))
def test_the_descent_finds_the_best_scaling(seed: int) -> None:
    rng = np.random.default_rng(seed)
    parts = matrices(bnp_draws.layer_inputs(rng, 4))
    centred = parts.augmented @ parts.centring
    searched = bounds.condition_number(centred * bounds.best_scaling(centred))
    found = bnp_scaling.best_conditioning(gram_of(centred))
    assert searched * (1 - 1e-6) <= found <= 1.01 * searched
    # Where the best one is known, and is not where the descent is told to begin.
    parts = matrices(bnp_draws.two_groups(rng))
    best = bnp_scaling.best_conditioning(gram_of(parts.augmented @ parts.centring))
    assert best == pytest.approx(bounds.condition_number(parts.normalized), rel=1e-6)
    assert bnp_scaling.conditioning(gram_of(parts.augmented), parts.scaling) == pytest.approx(
        bounds.condition_number(parts.augmented * parts.scaling), rel=1e-6
    )


def test_ends_of_the_spectrum_are_those_of_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    gram = gram_of(rng.normal(size=(300, 90)) * np.exp(rng.normal(size=90)))
    whole = bnp_scaling.best_conditioning(gram)
    monkeypatch.setattr(bnp_scaling, "LARGE", 10)
    assert bnp_scaling.best_conditioning(gram) == pytest.approx(whole, rel=0.05)


def test_columns_that_depend_on_others() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(20, 4)) * [1.0, 100.0, 0.01, 1.0]
    assert bnp_scaling.independent(gram_of(rows)).tolist() == [0, 1, 2, 3]
    twice = np.column_stack([rows, rows[:, 0] + rows[:, 1]])
    kept = bnp_scaling.independent(gram_of(twice))
    assert len(kept) == 4
    assert np.linalg.matrix_rank(twice[:, kept]) == 4


def test_patches_times_the_weights_are_the_convolution() -> None:
    layer, x = nn.Conv2d(2, 5, 3).double(), torch.randn(3, 2, 6, 7).double()
    expected = layer(x).permute(0, 2, 3, 1).reshape(-1, 5).detach().numpy()
    weight, bias = layer.weight.detach().flatten(1).numpy(), layer.bias.detach().numpy()
    np.testing.assert_allclose(bnp_layers.patches(x) @ weight.T + bias, expected, atol=1e-12)


def test_how_near_to_the_best() -> None:
    rng = np.random.default_rng(0)
    perfect = torch.as_tensor(bnp_draws.two_groups(rng))
    assert bnp_layers.normalized_over_best(perfect, 0) == pytest.approx(1, abs=1e-6)
    inputs = bnp_draws.layer_inputs(rng, 4)
    sides = bounds.column_scaling(inputs)
    expected = float(sides.left) / float(sides.right) * 5**0.5
    with_dead_unit = torch.as_tensor(np.column_stack([inputs, np.zeros(len(inputs)), 2 * inputs[:, 0]]))
    for x in (torch.as_tensor(inputs), with_dead_unit):
        assert bnp_layers.normalized_over_best(x, 0) == pytest.approx(expected, rel=0.01)
    image = torch.as_tensor(rng.normal(size=(40, 2, 8, 8)))
    assert 1 <= bnp_layers.normalized_over_best(image, 0) < 1.2  # white: nothing to gain
    image[:, :, ::2] *= 30  # sites have unlike variances, which channels do not tell
    image[:, :, :, ::2] *= 30
    assert bnp_layers.normalized_over_best(image[..., :3, :3], 0) > 5


def test_weights_are_kept(tmp_path: Path, data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bnp_layers, "AT", (0, 1, 3))
    context = Context("small", torch.device("cpu"), None, tmp_path)
    found = bnp_layers.trained(context, data, "cnn5", 101)
    assert list(found) == [0, 1, 3]
    assert not torch.equal(found[0]["0.weight"], found[1]["0.weight"])
    assert not torch.equal(found[1]["0.weight"], found[3]["0.weight"])
    with monkeypatch.context() as patch:  # a run that was stopped after the first step goes on to the same end
        stopped = Context("small", torch.device("cpu"), None, tmp_path / "stopped")
        patch.setattr(bnp_layers, "AT", (0, 1))
        assert list(bnp_layers.trained(stopped, data, "cnn5", 101)) == [0, 1]
    gone_on = bnp_layers.trained(stopped, data, "cnn5", 101)
    torch.testing.assert_close(gone_on, found)
    monkeypatch.setattr(bnp_layers, "build", None)  # would fail if it trained again
    again = bnp_layers.trained(context, data, "cnn5", 101)
    assert all(torch.equal(again[step][key], found[step][key]) for step in found for key in found[step])


def test_measures_on_convolutions(tmp_path: Path, data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bnp_layers, "AT", (0, 1, 2))
    monkeypatch.setattr(bnp_layers, "BATCH", 6)
    monkeypatch.setattr(bnp_layers, "SINGLE", 1)
    context = Context("small", torch.device("cpu"), None, tmp_path)
    weights = bnp_layers.trained(context, data, "cnn5", 101)
    findings = Findings()
    bnp_layers.channels_or_pixels(findings, weights, data, 101)
    x, _ = bnp_layers.images(data, 6, 101)
    normal = (x - x.mean((0, 2, 3), keepdim=True)) / x.std((0, 2, 3), keepdim=True, correction=0)
    columns = nn.functional.unfold(normal, 3).transpose(1, 2).reshape(-1, 27).numpy()
    expected = np.linalg.cond(np.column_stack([np.ones(len(columns)), columns]))
    assert findings.numbers["κ of 𝓗̂, step 0"]["conv1-by-channel"]["101"] == pytest.approx(expected, rel=1e-6)

    bnp_layers.single_images(findings, weights, data, 101)
    x, _ = bnp_layers.images(data, 1, 101)
    columns = nn.functional.unfold(x, 3)[0].T.numpy()
    expected = np.linalg.cond(np.column_stack([np.ones(len(columns)), columns]))
    found = findings.numbers["κ of 𝓗̂, one image, step 0"]
    assert found["conv1"]["101"] == pytest.approx(expected, rel=1e-6)
    assert found["conv1-preconditioned"]["101"] < found["conv1"]["101"]
    assert set(found) == {f"conv{n}{kind}" for n in (1, 2, 3) for kind in ("", "-preconditioned")}


def test_rounds_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, order = [0.0], []
    monkeypatch.setattr(bnp_site_time.time, "perf_counter", lambda: clock[0])

    def kind(name: str, seconds: float) -> Any:
        def step() -> None:
            order.append(name)
            clock[0] += seconds

        return step

    found = bnp_site_time.alternated({"site": kind("s", 3.0), "channel": kind("c", 2.0)}, lambda: None, 2, 3)
    assert found == {"site": [3.0, 3.0], "channel": [2.0, 2.0]}
    assert "".join(order) == "cccc" + "ssss" + "ssss" + "cccc"


MEASURED = ("bnp-thm4-pessimistic", "bnp-sec4-pixel", "bnp-n1-conv", "bnp-site-cost")


def test_the_record_decides_every_part(tmp_path: Path, data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """With networks that are not trained, few images, and a ratio that is too large for one layer."""
    for name, value in (("BATCH", 6), ("SINGLE", 1), ("IMAGES", 20)):
        monkeypatch.setattr(bnp_layers, name, value)
    drawn = {name: bnp_layers.build(name) for name in bnp_layers.LAYERS}
    monkeypatch.setattr(bnp_layers, "load", lambda name, root: data)
    monkeypatch.setattr(
        bnp_layers, "trained", lambda _, data, name, seed: dict.fromkeys(bnp_layers.AT, drawn[name].state_dict())
    )
    monkeypatch.setattr(bnp_layers, "normalized_over_best", lambda x, seed: 1.6 if x.shape[1] == 512 else 1.2)
    context = Context("small", torch.device("cpu"), None, tmp_path)
    findings, timed, drawn_ones = Findings(), Findings(), Findings()
    bnp_layers.layers(findings, context)
    for seed, (site, channel) in enumerate(((2.1, 2.0), (2.1, 1.6), (2.5, 1.9))):
        timed.number("time of a step", "site", site, seed=seed, unit="time")
        timed.number("time of a step", "channel", channel, seed=seed, unit="time")
    drawn_ones.number("normalized over best", "draws", 1.01)
    records = {"bnp-layers": findings, "bnp-site-time": timed, "bnp-hessians": drawn_ones}

    class Known:
        def find(self, experiment: str, size: str) -> Record:
            found = records[experiment]
            return recorded(found, experiment, size)

    verdicts = {name: judge(claims()[name], "small", Known(), claims(), FUNCTIONS) for name in MEASURED}
    states = {name: [outcome.state for outcome in verdict.outcomes] for name, verdict in verdicts.items()}
    assert states["bnp-thm4-pessimistic"] == ["met"] * 8 + ["not met", "met"]  # the first dense layer of cnn5 has 512
    assert len(states["bnp-sec4-pixel"]) == len(states["bnp-n1-conv"]) == 6
    assert "not run" not in {state for each in states.values() for state in each}
    assert states["bnp-site-cost"] == ["undecided"]  # the first round is on the other side


def test_all_layers_are_measured() -> None:
    for name, layers in bnp_layers.LAYERS.items():
        with_weights = (nn.Linear, nn.Conv2d)
        modules = bnp_layers.build(name).named_modules()
        assert list(layers) == [key for key, module in modules if isinstance(module, with_weights)]


def test_statistics_of_sites_and_channels_are_timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in (("BATCH", 2), ("ROUNDS", 2), ("STEPS", 1)):
        monkeypatch.setattr(bnp_site_time, name, value)
    findings = Findings()
    bnp_site_time.site_time(findings, Context("small", torch.device("cpu"), None, tmp_path))
    assert {kind: len(each) for kind, each in findings.numbers["time of a step"].items()} == {"site": 2, "channel": 2}
    assert findings.units["time of a step"] == "time"
