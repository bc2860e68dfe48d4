"""Mean field against its printed values, against itself in another form, and against random networks."""

import math
from itertools import pairwise
from statistics import fmean

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from trimtab.probes import Jacobian, fisher_lambda_max
from trimtab.theory.mean_field import Conv, Dense, MaxPool, Pool, Residual, draw_network, mean_field

MLP = [Dense(784, 1000), Dense(1000, 1000), Dense(1000, 1000), Dense(1000, 10)]
CONV = [Conv(3, 120, 3, 2, size=32), Conv(120, 240, 3, 2), Conv(240, 360, 3, 2), Dense(3240, 10)]
SIGMAS = {"sigma_w2": 2.0, "sigma_b2": 0.5}


def measured(layers, shape, *, gamma=1.0, samples=300, draws=1, statistics="frozen", activation="relu", seed=0):
    """The mean over draws of the largest eigenvalue, one output."""
    values = []
    for draw in range(draws):
        torch.manual_seed(seed + draw)
        network = draw_network(layers, gamma=gamma, activation=activation, **SIGMAS)
        x = torch.randn(samples, *shape)
        values.append(fisher_lambda_max(network, x, statistics=statistics, outputs=0, tolerance=1e-3))
    return fmean(values)


def predicted(layers, *, gamma=1.0, samples=300, **more):
    norm = None if gamma is None else "batch"
    return mean_field(
        layers, norm=norm, gamma=1.0 if gamma is None else gamma, samples=samples, bias_terms=True, **SIGMAS, **more
    )


@pytest.mark.parametrize(
    ("gamma", "found", "exact", "paper"),
    [
        (None, 2186, 2234, 2234),
        (0.5, 94.3, 90.4, 47.5),
        (1, 370, 362, 230),
        (2, 1475, 1446, 1045),
        (3, 3316, 3254, 2432),
    ],
)
def test_the_table_of_dense_networks(gamma, found, exact, paper) -> None:
    told = {"norm": None if gamma is None else "batch", "gamma": gamma or 1.0, **SIGMAS}
    assert mean_field(MLP, **told).lambda_max == pytest.approx(exact, rel=2e-3)
    assert mean_field(MLP, **told, variant="paper").lambda_max == pytest.approx(paper, rel=2e-3)
    assert mean_field(MLP, **told, bias_terms=True, samples=1000).lambda_max == pytest.approx(found, rel=0.06)


def test_the_table_of_convolutions() -> None:
    for gamma, found, exact in ((1, 894, 860), (2, 3577, 3441)):
        assert mean_field(CONV, norm="batch", gamma=gamma, **SIGMAS).lambda_max == pytest.approx(exact, rel=1e-3)
        finite = mean_field(CONV, norm="batch", gamma=gamma, samples=128, **SIGMAS)
        assert finite.lambda_max == pytest.approx(found, rel=0.06)
    assert mean_field(CONV, norm="batch", samples=128, **SIGMAS).lambda_max == pytest.approx(888, rel=1e-3)
    assert mean_field(CONV, norm="batch", variant="paper", **SIGMAS).lambda_max == pytest.approx(55_653, rel=1e-4)


@given(
    widths=st.lists(st.integers(2, 50), min_size=2, max_size=6),
    gammas=st.lists(st.floats(0.3, 3), min_size=5, max_size=5),
    w=st.floats(0.5, 3),
    b=st.floats(0, 1),
)
def test_batchnorm_recursions_written_out(widths, gammas, w, b) -> None:
    """Eqs. 23–25 with q − q_xy, and the terms that the paper drops, in a row of formulas."""
    layers = [Dense(m, n) for m, n in pairwise(widths)]
    depth = len(layers)
    gammas = gammas[: depth - 1]
    result = mean_field(layers, sigma_w2=w, sigma_b2=b, norm="batch", gamma=gammas, bias_terms=True)
    hat = [(1.0, 0.0)] + [(g * g / 2, g * g / (2 * math.pi)) for g in gammas]
    tilde = [1.0]
    extra = [1.0]  # the output's bias
    for layer in reversed(range(1, depth)):
        s2 = w * (hat[layer - 1][0] - hat[layer - 1][1])
        extra += [w * tilde[0] / 4, w * tilde[0] / (2 * math.pi)]  # β and γ of the layer below
        tilde.insert(0, gammas[layer - 1] ** 2 * w / 4 * tilde[0] / s2)
        extra.append(tilde[0])
    terms = [widths[i] * hat[i][1] * tilde[i] for i in range(depth)]
    assert [order.term for order in result.layers] == pytest.approx(terms, rel=1e-9)
    assert [order.q for order in result.layers] == pytest.approx([b + w * q for q, _ in hat])
    assert [order.q_xy for order in result.layers] == pytest.approx([b + w * q for _, q in hat])
    assert [order.q_tilde_xy for order in result.layers] == pytest.approx(tilde)
    assert result.lambda_max == pytest.approx(math.fsum(terms + extra), rel=1e-9)


small_convs = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 3), st.integers(1, 2)), min_size=1, max_size=3)


@settings(max_examples=30, deadline=None)
@given(plan=small_convs, xy=st.floats(0, 0.5), gamma=st.one_of(st.none(), st.floats(0.5, 2)), pool=st.booleans())
def test_without_padding_each_pair_of_positions_and_all_alike_say_the_same(plan, xy, gamma, pool) -> None:
    layers, channels, size = [], 2, 9
    for filters, kernel, stride in plan:
        layers.append(Conv(channels, filters, kernel, stride, size=size))
        channels, size = filters, (size - kernel) // stride + 1
        if size < 1:
            return
    layers += [Pool(None)] if pool else []
    layers.append(Dense(channels * (1 if pool else size * size), 3))
    told = {"norm": gamma and "batch", "gamma": gamma or 1.0, "q_hat0_xy": xy, "q_hat0_alphabeta": xy}
    one, other = (
        mean_field(layers, positions=p, bias_terms=True, samples=50, **told, **SIGMAS) for p in ("uniform", "grid")
    )
    assert one.lambda_max == pytest.approx(other.lambda_max, rel=1e-9)
    assert one.upper_bound == pytest.approx(other.upper_bound, rel=1e-9)


def test_dense_is_a_convolution_of_one_site_and_flattening_one_of_all() -> None:
    dense = mean_field([Dense(20, 30), Dense(30, 40), Dense(40, 1)], norm="batch", **SIGMAS)
    point = mean_field([Conv(20, 30, 1, size=1), Conv(30, 40, 1), Dense(40, 1)], norm="batch", **SIGMAS)
    assert dense.lambda_max == pytest.approx(point.lambda_max)
    flat = mean_field([Conv(3, 30, 3, size=8), Dense(30 * 36, 5), Dense(5, 1)], norm="batch", **SIGMAS)
    whole = mean_field([Conv(3, 30, 3, size=8), Conv(30, 5, 6), Dense(5, 1)], norm="batch", **SIGMAS)
    assert flat.lambda_max == pytest.approx(whole.lambda_max)


DRAWN = {
    "two layers, γ 0.5": ([Dense(300, 600), Dense(600, 10)], (300,), 0.5, 1),
    "eight layers, γ 3": ([Dense(300, 800), *[Dense(800, 800)] * 6, Dense(800, 10)], (300,), 3.0, 3),
    "stride 2": ([Conv(3, 100, 3, 2, size=15), Conv(100, 200, 3, 2), Dense(1800, 10)], (3, 15, 15), 1.0, 2),
    "stride 1, padding": (
        [Conv(3, 100, 3, 1, 1, size=8), *[Conv(100, 100, 3, 1, 1)] * 2, Dense(6400, 10)], (3, 8, 8), 1.0, 2
    ),
    "kernel 5, padding 2": (
        [Conv(3, 150, 5, 1, 2, size=8), Conv(150, 150, 5, 2, 2), Dense(2400, 10)], (3, 8, 8), 2.0, 3
    ),
    "max-pooling": ([Conv(3, 200, 3, size=10), MaxPool(2), Conv(200, 200, 3), Dense(800, 10)], (3, 10, 10), 1.0, 4),
    "max-pooling, padded, down to one position": (
        [Conv(3, 300, 3, 1, 1, size=8), Conv(300, 300, 3, 2, 1), Conv(300, 300, 3, 2, 1), MaxPool(2), Dense(300, 10)],
        (3, 8, 8), 1.0, 4
    ),
    "residual": ([Dense(200, 500), *[Residual([Dense(500, 500)] * 2)] * 3, Dense(500, 10)], (200,), 1.0, 3),
}  # fmt: skip


LONG = ("max-pooling, padded, down to one position", "eight layers, γ 3")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in DRAWN]
)
def test_random_networks_with_batchnorm(name) -> None:
    layers, shape, gamma, draws = DRAWN[name]
    samples = 64 if len(shape) == 3 else 300
    found = measured(layers, shape, gamma=gamma, samples=samples, draws=draws)
    assert predicted(layers, gamma=gamma, samples=samples).lambda_max == pytest.approx(found, rel=0.06)


def test_padding_needs_each_position() -> None:
    layers, shape, gamma, draws = DRAWN["stride 1, padding"]
    found = measured(layers, shape, gamma=gamma, samples=64, draws=draws)
    assert predicted(layers, samples=64, positions="uniform").lambda_max < 0.93 * found
    assert predicted(layers, samples=64).positions == "grid"


@pytest.mark.parametrize("activation", ["relu", "tanh", "gelu", "leaky_relu", "erf", "linear"])
def test_random_networks_without_normalization(activation) -> None:
    """They vary from draw to draw: the mean over draws of the order parameters' own mean field, eqs. 20–22."""
    layers = [Dense(200, 400), Dense(400, 400), Dense(400, 10)]
    found = measured(layers, (200,), gamma=None, samples=200, draws=12, activation=activation)
    assert predicted(layers, gamma=None, samples=200, activation=activation).lambda_max == pytest.approx(found, rel=0.1)


def test_residual_without_normalization_and_after_the_sum() -> None:
    before = [Dense(100, 400), Residual([Dense(400, 400)] * 2), Dense(400, 10)]
    after = [Dense(100, 400), Residual([Dense(400, 400)] * 2, preactivation=False), Dense(400, 10)]
    assert predicted(before, gamma=None).lambda_max == pytest.approx(
        measured(before, (100,), gamma=None, draws=10), rel=0.1
    )
    assert predicted(after).lambda_max == pytest.approx(measured(after, (100,), draws=6), rel=0.06)


def test_in_train_mode_the_layers_below_the_last_batchnorm_add_next_to_nothing() -> None:
    layers = [Dense(200, 600), Dense(600, 600), Dense(600, 10)]
    found = measured(layers, (200,), statistics="batch")
    result = predicted(layers, statistics="batch")
    assert result.lambda_max == pytest.approx(found, rel=0.06)
    assert result.lambda_max < 0.6 * predicted(layers).lambda_max
    assert [order.term for order in result.layers[:-1]] == pytest.approx([0, 0], abs=1e-9)


@pytest.mark.parametrize("activation", ["relu", "erf", "tanh"])
def test_upper_bound_is_the_mean_square_of_the_gradient(activation) -> None:
    layers = [Dense(100, 500), Dense(500, 500), Dense(500, 1)]
    traces = []
    for seed in range(3):
        torch.manual_seed(seed)
        network, x = draw_network(layers, gamma=1.5, activation=activation, **SIGMAS), torch.randn(64, 100)
        traces.append(float(Jacobian(network, x).gram().trace()))
    result = predicted(layers, gamma=1.5, samples=None, activation=activation)
    assert result.upper_bound == pytest.approx(fmean(traces), rel=0.06)
    assert result.lambda_max <= result.upper_bound


def test_an_odd_activation_behind_batchnorm_leaves_a_lower_bound_only() -> None:
    """Its mean over samples is 0, so that the gradients of two samples share next to nothing but the last β."""
    layers = [Dense(200, 500), Dense(500, 500), Dense(500, 10)]
    found = measured(layers, (200,), activation="erf", draws=2)
    result = predicted(layers, activation="erf")
    assert result.layers[-1].q_hat_xy == pytest.approx(0, abs=1e-12)
    assert result.lambda_max < 0.75 * found < result.upper_bound


def test_data_with_a_mean() -> None:
    layers = [Dense(300, 500), Dense(500, 500), Dense(500, 10)]
    torch.manual_seed(0)
    network = draw_network(layers, gamma=1.0, **SIGMAS)
    x = torch.randn(300, 300) + 0.7 * torch.randn(300)
    found = fisher_lambda_max(network, x, outputs=0)
    moments = {"q_hat0": 1.49, "q_hat0_xy": 0.49}
    assert predicted(layers, **moments).lambda_max == pytest.approx(found, rel=0.06)
    assert predicted(layers).lambda_max < 0.9 * found


def test_learning_rate() -> None:
    result = mean_field(MLP, norm="batch", **SIGMAS)
    assert result.max_learning_rate() == pytest.approx(2 / result.lambda_max)
    assert result.max_learning_rate(0.9) == pytest.approx(3.8 / result.lambda_max)
    for momentum in (-0.1, 1.0, math.nan):
        with pytest.raises(ValueError, match="momentum"):
            result.max_learning_rate(momentum)
    linear = mean_field([Dense(3, 4), Dense(4, 1)], sigma_w2=1, sigma_b2=0, activation="linear")
    assert linear.max_learning_rate() == math.inf


def test_a_shortcut_with_weights_and_padded_convolutions_in_a_block() -> None:
    layers = [
        Conv(3, 64, 3, 1, 1, size=8),
        Residual([Conv(64, 128, 3, 2, 1), Conv(128, 128, 3, 1, 1)], Conv(64, 128, 1, 2)),
        Dense(128 * 16, 10),
    ]
    result = predicted(layers, gamma=[1.5, 0.7, 1.2], samples=48)
    assert len(result.layers) == 5 and result.positions == "grid"
    found = measured(layers, (3, 8, 8), gamma=[1.5, 0.7, 1.2], samples=48, draws=3)
    assert result.lambda_max == pytest.approx(found, rel=0.06)
    # What each layer adds, too; the first adds next to nothing, for white inputs share nothing.
    torch.manual_seed(0)
    network = draw_network(layers, gamma=[1.5, 0.7, 1.2], **SIGMAS)
    affine = [module for module in network.children() if isinstance(module, nn.Conv2d | nn.Linear)]
    x = torch.randn(48, 3, 8, 8)
    for order, layer in zip(result.layers[1:], affine[1:], strict=True):
        for parameter in network.parameters():
            parameter.requires_grad_(parameter is layer.weight)
        gram = Jacobian(network, x, outputs=0).gram()
        assert float(gram.sum()) / 48 == pytest.approx(order.term + (order.diagonal - order.term) / 48, rel=0.15)
