"""What layers put out, against numpy and scipy on activations that were computed by hand."""

import json
import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.probes.odd_models import (
    ODD,
    Twice,
    a_batch,
    batchnorm,
    loss_fn,
    odd_model,
)
from tests.probes.untouched import untouched
from trimtab.probes import Activations, ActivationsResult, Distribution, LayerActivations, MomentChange, moment_change


@settings(max_examples=30, deadline=None)
@given(
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    bins=st.integers(1, 9),
    seed=st.integers(0, 99),
    scale=st.sampled_from([1e-12, 1.0, 1e12]),
    fixed=st.booleans(),
)
def test_a_distribution_against_numpy_and_scipy(shape: list, bins: int, seed: int, scale: float, fixed: bool) -> None:
    x = np.random.default_rng(seed).gamma(2.0, scale, size=shape).astype(np.float32)
    limits = (0.5 * scale, 2.5 * scale) if fixed else None
    found = Distribution.of(torch.from_numpy(x), bins=bins, limits=limits)
    wide = x.astype(np.float64).flatten()
    assert found.values == x.size
    assert found.mean == pytest.approx(wide.mean())
    assert found.variance == pytest.approx(wide.var(), rel=1e-4)
    if x.size > 1:
        assert found.skewness == pytest.approx(scipy.stats.skew(wide), rel=1e-3, abs=1e-3)
        assert found.kurtosis == pytest.approx(scipy.stats.kurtosis(wide), rel=1e-3, abs=1e-3)
    else:
        assert math.isnan(found.skewness) and math.isnan(found.kurtosis)
    if limits is None and x.size > 1:
        assert (found.low, found.high) == (x.min(), x.max())
    assert found.edges == pytest.approx(np.linspace(found.low, found.high, bins + 1))
    assert list(found.counts) == np.histogram(x, np.float32(found.edges))[0].tolist()
    assert fixed or sum(found.counts) == x.size


def test_what_is_not_finite_is_in_no_bin() -> None:
    x = torch.tensor([0.0, 1.0, 2.0, math.inf, -math.inf, math.nan])
    found = Distribution.of(x, bins=2)
    assert (found.low, found.high, found.counts, found.values) == (0.0, 2.0, (1, 2), 6)
    assert math.isnan(found.mean)
    nothing = Distribution.of(x[3:], bins=2)
    assert math.isnan(nothing.low) and nothing.counts == (0, 0)
    same = Distribution.of(torch.ones(3), bins=4)
    assert (same.low, same.high, same.counts, same.variance) == (0.5, 1.5, (0, 0, 3, 0), 0.0)


@pytest.mark.parametrize("many", [2_000, 300_000])
def test_outliers_do_not_flatten_a_histogram(many: int) -> None:
    x = torch.linspace(-1.0, 1.0, many)
    x[many // 3], x[many // 2] = 1000.0, -50.0
    found = Distribution.of(x, bins=30)
    assert -3.1 < found.low < -2.8 and 2.8 < found.high < 3.1
    assert sum(found.counts) == many - 2 and found.values == many
    assert max(found.counts) < many / 8
    # Tails that belong to a distribution stay.
    bell = torch.randn(many, generator=torch.Generator().manual_seed(0))
    assert Distribution.of(bell, bins=30).high == bell.max()
    # Where nearly all is the same there is no middle to be far from.
    spike = torch.zeros(many)
    spike[0] = 7.0
    assert (Distribution.of(spike, bins=4).low, Distribution.of(spike, bins=4).high) == (0.0, 7.0)


def test_layers_by_hand() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(24, 3))
    batch = a_batch(5, (2, 4, 4))
    result = Activations(examples=2, bins=7)(model, loss_fn, batch)
    assert [layer.layer for layer in result.layers] == ["0", "1", "4"]
    with torch.no_grad():
        convolved = nn.functional.conv2d(batch["x"], model[0].weight, model[0].bias)
        normalized = nn.functional.batch_norm(convolved, None, None, training=True)
        out = model[4](normalized.relu().flatten(1))
    assert result.loss == pytest.approx(float(nn.functional.cross_entropy(out, batch["y"])))
    for layer, values, channel in zip(result.layers, (convolved, normalized, out), (1, 1, 1), strict=True):
        rows = values.transpose(0, channel).flatten(1).double().numpy()
        assert (layer.channels, layer.values) == (rows.shape[0], rows.size)
        assert layer.mean == pytest.approx(rows.mean(), abs=1e-6)
        assert layer.variance == pytest.approx(rows.var(), rel=1e-4)
        assert layer.mean_magnitude == pytest.approx(np.abs(rows.mean(1)).mean(), abs=1e-6)
        assert layer.mean_spread == pytest.approx(rows.mean(1).std(), abs=1e-6)
        assert sum(layer.counts) == rows.size and len(layer.counts) == 7
        for example, number in zip(layer.examples, {6: (1, 4), 3: (0, 2)}[layer.channels], strict=True):
            assert example.mean == pytest.approx(rows[number].mean(), abs=1e-6)
            assert example.variance == pytest.approx(rows[number].var(), rel=1e-4)
            assert example.values == rows.shape[1]
    content = json.loads(json.dumps(result.to_dict()))
    assert content["layers"][1]["layer"] == "1" and len(content["layers"][1]["examples"][0]["counts"]) == 7


@pytest.mark.parametrize(
    ("layer", "shape", "channels"),
    [
        (nn.Linear(3, 5), (2, 4, 3), 5),
        (nn.LayerNorm(3), (2, 4, 3), 3),
        (nn.Conv1d(3, 5, 1), (2, 3, 4), 5),
        (nn.Conv1d(3, 5, 1), (3, 4), 5),
        (nn.ConvTranspose2d(3, 5, 1), (2, 3, 4, 4), 5),
        (nn.BatchNorm1d(3), (2, 3, 4), 3),
        (nn.GroupNorm(1, 3), (2, 3, 4), 3),
        (nn.Tanh(), (2, 4, 3), 3),
        (nn.Tanh(), (2, 3, 4, 4), 3),
        (nn.Tanh(), (3,), 3),
        (nn.LSTM(3, 5), (2, 4, 3), 5),
    ],
)
def test_where_the_channels_are(layer: nn.Module, shape: tuple, channels: int) -> None:
    model = nn.ModuleList([layer, nn.Linear(1, 1)])  # something that is trained

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        out = model[0](batch)
        return (out[0] if isinstance(out, tuple) else out).mean()

    result = Activations(layers="0")(model, loss, torch.randn(shape))
    assert [each.channels for each in result.layers] == [channels]
    assert result.layers[0].values == torch.Size(shape).numel() // (3 if channels == 5 else 1) * (
        5 if channels == 5 else 1
    )


def test_calls_of_one_module_count_together() -> None:
    model, batch = Twice(), a_batch()
    shared = Activations()(model, loss_fn, batch).layers[0]
    with torch.no_grad():
        first = model.shared(batch["x"])
        both = torch.cat([first, model.shared(torch.tanh(first))])
    assert shared.layer == "shared" and shared.values == both.numel()
    assert shared.mean == pytest.approx(float(both.mean()), abs=1e-6)
    assert shared.high == pytest.approx(float(both.max()))


def test_which_layers() -> None:
    model = batchnorm()
    names = [layer.layer for layer in Activations()(model, loss_fn, a_batch()).layers]
    assert names == ["0", "1", "4"]
    names = [layer.layer for layer in Activations(max_layers=2)(model, loss_fn, a_batch()).layers]
    assert names == ["0", "4"]
    names = [layer.layer for layer in Activations(layers=("2", "3"))(model, loss_fn, a_batch()).layers]
    assert names == ["2", "3"]
    with pytest.raises(ValueError, match="no layer matches 'ten'"):
        Activations(layers="ten")(model, loss_fn, a_batch())
    result = Activations(layers="never")(Twice(), loss_fn, a_batch())
    assert result.problem == "No layer was called that puts out a tensor of real numbers."
    model = nn.Module()
    model.w = nn.Parameter(torch.ones(1))
    result = Activations()(model, lambda m, b: m.w.sum(), None)
    assert result.problem.startswith("The model has no dense, convolution or normalization layer")


def test_what_a_layer_after_it_does_in_place_is_not_seen() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 3))
    first = Activations()(model, loss_fn, a_batch()).layers[0]
    before = model[0](a_batch()["x"]).detach().double()  # its mean may be close to 0, where float32 has few digits left
    assert first.mean == pytest.approx(float(before.mean()), abs=1e-7)
    assert first.low == pytest.approx(float(before.min())) and first.low < 0


def test_change_from_step_to_step() -> None:
    def layer(name: str, mean: float, variance: float, *examples: tuple[float, float]) -> LayerActivations:
        each = tuple(Distribution(mean=m, variance=v) for m, v in examples)
        return LayerActivations(layer=name, mean=mean, variance=variance, examples=each)

    before = ActivationsResult(layers=(layer("a", 1.0, 2.0, (0.0, 1.0), (4.0, 1.0)), layer("b", 0.0, 1.0)))
    after = ActivationsResult(layers=(layer("c", 0.0, 1.0), layer("a", 0.5, 3.0, (1.0, 1.0), (1.0, 2.0))))
    assert moment_change(before, after) == (
        MomentChange(layer="a", mean=-0.5, variance=1.0, example_mean=2.0, example_variance=0.5),
    )
    assert moment_change(before, ActivationsResult(problem="none")) == ()
    (change,) = moment_change(ActivationsResult(layers=before.layers[1:]), ActivationsResult(layers=before.layers[1:]))
    assert change.mean == 0 and math.isnan(change.example_mean)


@pytest.mark.parametrize("name", ODD)
def test_odd_models(name: str) -> None:
    model, batch = odd_model(name)
    with untouched(model):
        result = Activations(limits=(-3.0, 3.0))(model, loss_fn, batch)
    assert result.problem is None and result.layers
    for layer in result.layers:
        assert all(map(math.isfinite, (layer.mean, layer.variance, layer.mean_spread, layer.skewness)))
        assert (layer.low, layer.high) == (-3.0, 3.0) and 0 < sum(layer.counts) <= layer.values


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_layers": 0}, "max_layers must be"),
        ({"examples": -1}, "examples must be"),
        ({"bins": 0}, "bins must be"),
        ({"limits": (1.0, 1.0)}, "limits must be"),
        ({"limits": (0.0, math.inf)}, "limits must be"),
    ],
)
def test_bad_options(options: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Activations(**options)
