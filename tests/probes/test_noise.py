"""Batch noise against closed forms, exact covariances and Monte Carlo."""

import math
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.probes.small_models import (
    Tied,
    cross_entropy,
    images,
    small,
    vectors,
)
from tests.probes.untouched import untouched
from trimtab.norms import (
    BatchRenorm,
    FourThingsBatchNorm,
    GhostBatchNorm,
    LpNorm,
    MeanOnlyBatchNorm,
    NoisyBatchNorm,
    VarianceOnlyBatchNorm,
)
from trimtab.probes import BatchNoise, split_batch
from trimtab.probes.noise.batch_statistics import CURVATURES
from trimtab.theory.implicit_decay import LINKS, batch_prior, implicit_decay, measured_kurtosis
from trimtab.theory.simulation import measure_decay


class Normed(nn.Module):
    """One BatchNorm layer, whose input is the batch itself."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).sin().mean()


def only(norm: nn.Module, x: Tensor, **options: Any) -> Any:
    found = BatchNoise(parts=0, **options)(Normed(norm), loss_of, x)
    assert found.problem is None and not found.left_out
    return found.layers["norm"]


def draws(kind: str, count: int, channels: int = 1, seed: int = 0) -> Tensor:
    rng = np.random.default_rng(seed)
    x = {"gaussian": rng.normal, "laplace": rng.laplace, "uniform": rng.uniform}[kind](size=(count, channels))
    return torch.tensor(3 * x + 5)


@pytest.mark.parametrize("kind", ["gaussian", "laplace", "uniform"])
@pytest.mark.parametrize("link", list(CURVATURES))
def test_prediction_and_zeta_are_the_theorys(kind: str, link: str) -> None:
    """One channel, so that no median hides anything."""
    x, norm = draws(kind, 500), nn.BatchNorm1d(1).double()
    nn.init.constant_(norm.weight, 1.7)
    nn.init.constant_(norm.bias, -0.4)
    found = only(norm, x, batch_size=32, link=link)
    values = x.numpy()
    rho = measured_kurtosis(values)
    prior = batch_prior(values.mean(), values.std(), 32, excess_kurtosis=rho)
    assert found.kurtosis == pytest.approx(rho)
    assert found.mu_predicted == pytest.approx(prior.mu.variance)
    assert found.sigma_predicted == pytest.approx(prior.sigma.variance)
    decay = implicit_decay((values - values.mean()) / values.std(), 32, gamma=1.7, beta=-0.4, curvature=link)
    assert found.zeta == pytest.approx(decay.zeta)
    assert found.zeta_from_mu == pytest.approx(decay.from_mu)
    assert found.zeta_from_sigma == pytest.approx(decay.from_sigma)
    assert found.zeta_measured == pytest.approx(decay.zeta, rel=0.2)
    assert (found.samples, found.batch_size, found.positions, found.channels) == (500, 32, 1, 1)


def test_links_are_those_of_the_theory() -> None:
    h = torch.linspace(-4, 4, 9, dtype=torch.double)
    assert CURVATURES.keys() == LINKS.keys()
    for name, curvature in CURVATURES.items():
        np.testing.assert_allclose(curvature(h), LINKS[name].curvature(h.numpy()))


@pytest.mark.parametrize("kind", ["gaussian", "laplace", "uniform"])
def test_measured_variances(kind: str) -> None:
    """Of σ_B too, whose variance is (ρ+2)/(4M) σ_P² whatever the distribution, for large M."""
    found = only(nn.BatchNorm1d(1).double(), draws(kind, 1000), batch_size=256, draws=10_000)
    assert found.mu_ratio == pytest.approx(1, abs=0.056)  # 4 standard errors of a variance from 10,000 draws
    assert found.sigma_ratio == pytest.approx(1, abs=0.08)
    assert found.mu_variance == pytest.approx(found.mu_predicted * found.mu_ratio)
    assert found.sigma_variance == pytest.approx(found.sigma_predicted * found.sigma_ratio)
    assert found.effective == pytest.approx(256, rel=0.06)
    few = only(nn.BatchNorm1d(1).double(), draws(kind, 1000), batch_size=4, draws=10_000)
    assert abs(few.sigma_ratio - 1) > 0.05  # and for small M it is not


@pytest.mark.parametrize("shared", [0.0, 0.3, 1.0])
def test_positions_that_depend_on_each_other(shared: float) -> None:
    """Var μ_B = (s + (1 − s)/P) σ²/M if any two positions of a sample have correlation s."""
    rng = np.random.default_rng(0)
    count, positions = 4000, 9
    x = math.sqrt(shared) * rng.normal(size=(count, 1, 1, 1)) + math.sqrt(1 - shared) * rng.normal(
        size=(count, 1, 3, 3)
    )
    found = only(nn.BatchNorm2d(1).double(), torch.tensor(x), batch_size=64, draws=5_000)
    expected = shared + (1 - shared) / positions
    assert found.positions == 9
    assert found.mu_ratio == pytest.approx(expected, rel=0.1)
    assert found.mu_ratio_positions == pytest.approx(9 * expected, rel=0.1)
    assert found.effective == pytest.approx(64 / expected, rel=0.1)
    # Var σ_B² of two jointly Gaussian values goes by the square of their correlation
    expected = shared**2 + (1 - shared**2) / positions
    assert found.sigma_ratio == pytest.approx(expected, rel=0.1)
    assert found.sigma_ratio_positions == pytest.approx(9 * expected, rel=0.1)
    decay = found.zeta_from_mu * found.mu_ratio + found.zeta_from_sigma * found.sigma_ratio
    assert found.zeta_measured == pytest.approx(decay)


@settings(max_examples=20, deadline=None)
@given(
    samples=st.integers(2, 12), channels=st.integers(1, 4), space=st.integers(0, 3), size=st.integers(1, 20),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_drawn_variances_of_any_shape(samples: int, channels: int, space: int, size: int, seed: int) -> None:
    """Exactly as the statistics of the batches themselves, drawn one by one."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, channels, *[2] * space, generator=generator, dtype=torch.double)
    norm = (nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[space](channels).double()
    found = only(norm, x, batch_size=size, draws=30, seed=seed)
    picks = torch.randint(samples, (30, size), generator=torch.Generator().manual_seed(seed))
    batches = torch.stack([x[pick].movedim(1, 0).flatten(1) for pick in picks]).numpy()  # (draws, channels, values)
    mu, sigma = batches.mean(2), batches.std(2)
    assert found.mu_variance == pytest.approx(np.median(mu.var(0, ddof=1)), abs=1e-12)
    assert found.sigma_variance == pytest.approx(np.median(sigma.var(0, ddof=1)), abs=1e-12)


def test_zeta_against_monte_carlo() -> None:
    """One layer whose statistics are those of independent batches: Theorem 1 holds to 1/M²."""
    x = draws("gaussian", 40_000)
    for size, tolerance in ((32, 0.2), (128, 0.06), (256, 0.05)):
        measured = measure_decay(size, gamma=1.5, beta=0.3, batches=30_000, seed=1)
        norm = nn.BatchNorm1d(1).double()
        nn.init.constant_(norm.weight, 1.5)
        nn.init.constant_(norm.bias, 0.3)
        assert only(norm, x, batch_size=size).zeta == pytest.approx(measured.value, rel=tolerance)


@pytest.mark.parametrize("kind", [MeanOnlyBatchNorm, VarianceOnlyBatchNorm, NoisyBatchNorm])
def test_zeta_of_halves_of_batchnorm(kind: type[nn.Module]) -> None:
    """E ℓ(ĥ) − ℓ(h̄) by drawing batches, with ℓ = A(h) − A′(h̄) h, for layers that do without one of the two."""
    gamma, beta, size = 1.3, 0.2, 200
    x = draws("laplace", 2000) / 3
    norm: Any = kind(1).double()
    nn.init.constant_(norm.weight, gamma)
    nn.init.constant_(norm.bias, beta)
    found = only(norm, x, batch_size=size)
    values, rng = x.numpy().ravel(), np.random.default_rng(0)
    potential, activation, _ = LINKS["relu"]
    centre, divide = kind is not VarianceOnlyBatchNorm, kind is not MeanOnlyBatchNorm

    def normalized(mu: Any, sigma: Any, at: Any) -> Any:
        return gamma * ((at - mu) if centre else at) / (sigma if divide else 1) + beta

    more = []
    for _ in range(100):
        batches = rng.choice(values, (100, size))
        at = rng.choice(values, (100, 40))
        mu, sigma = batches.mean(1, keepdims=True), batches.std(1, keepdims=True)
        clean, noisy = normalized(values.mean(), values.std(), at), normalized(mu, sigma, at)
        more.append((potential(noisy) - potential(clean) - activation(clean) * (noisy - clean)).mean() / gamma**2)
    assert found.zeta == pytest.approx(np.mean(more), rel=0.1)
    assert (found.zeta_from_mu == 0) == (not centre)
    assert (found.zeta_from_sigma == 0) == (not divide)


def test_medians_are_over_channels_that_vary() -> None:
    x = draws("gaussian", 300, 5).float()
    x[:, 1] = 2.5
    x[:, 3] = 1e6 + 0.1 * torch.rand(300)  # float32 cannot tell these apart
    found = only(nn.BatchNorm1d(5), x, batch_size=16)
    kept = x[:, [0, 2, 4]].double().numpy()
    assert (found.channels, found.constant) == (3, 2)
    assert found.mu_predicted == pytest.approx(np.median(kept.var(0)) / 16, rel=1e-6)
    assert found.kurtosis == pytest.approx(np.median([measured_kurtosis(c) for c in kept.T]), rel=1e-6)
    flat = only(nn.BatchNorm1d(2), torch.ones(6, 2))
    assert (flat.channels, flat.constant) == (0, 2) and math.isnan(flat.zeta)


def test_batch_sizes() -> None:
    x = draws("gaussian", 40)
    assert only(nn.BatchNorm1d(1).double(), x).batch_size == 40
    assert only(GhostBatchNorm(1, ghost_size=16).double(), x).batch_size == 16
    assert only(GhostBatchNorm(1, ghost_size=16).double(), x, batch_size=8).batch_size == 8
    assert math.isnan(only(nn.BatchNorm1d(1).double(), x, batch_size=3).zeta)
    assert math.isnan(only(nn.BatchNorm1d(1).double(), x, batch_size=3).zeta_measured)
    few = only(nn.BatchNorm2d(1).double(), torch.randn(5, 1, 4, 4).double(), batch_size=2)
    assert math.isnan(few.zeta) and few.zeta_measured > 0
    one = BatchNoise()(Normed(nn.BatchNorm2d(1)), loss_of, torch.randn(1, 1, 4, 4))
    assert one.left_out == {"norm": "the batch has one sample"} and not one.layers


def test_layers_that_are_left_out() -> None:
    for norm in (LpNorm(3), BatchRenorm(3), FourThingsBatchNorm(3, group_size=3)):
        found = BatchNoise(parts=0)(Normed(norm), loss_of, torch.randn(8, 3))
        assert found.left_out["norm"].startswith(f"{type(norm).__name__} does not normalize a channel")
    kept = small()
    kept[1].eval()
    kept.unused = nn.BatchNorm1d(2)
    found = BatchNoise()(kept, lambda m, b: cross_entropy(m[:9], b), images())
    assert found.left_out == {"1": "it normalizes by its running statistics", "unused": "the loss does not call it"}
    assert set(found.layers) == {"6"}
    untracked = nn.BatchNorm1d(3, track_running_stats=False).eval()
    model = Normed(untracked)
    assert set(BatchNoise()(model, loss_of, torch.randn(8, 3)).layers) == {"norm"}


def test_a_layer_called_twice() -> None:
    found = BatchNoise(parts=2)(Tied(), cross_entropy, vectors(12))
    assert set(found.layers) == {"norm", "norm, call 2"}
    assert found.layers["norm"].mu_predicted != found.layers["norm, call 2"].mu_predicted
    assert not math.isnan(found.layers["norm, call 2"].mu_ratio_split)


def test_statistics_of_parts_are_those_of_the_network() -> None:
    """By hand: run the parts through a network of two BatchNorm layers and look at the variance of what they see."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(6, 200), nn.BatchNorm1d(200), nn.ReLU(), nn.Linear(200, 200), nn.BatchNorm1d(200), nn.Linear(200, 1)
    ).double()
    x = torch.randn(64, 6, dtype=torch.double)
    found = BatchNoise(parts=4)(net, loss_of, x).layers
    seen: dict[int, list[Tensor]] = {1: [], 4: []}
    handles = [
        net[at].register_forward_pre_hook(lambda _, args, at=at: seen[at].append(args[0].detach())) for at in seen
    ]
    with torch.no_grad():
        for part in [x, *x.split(16)]:
            net(part)
    for handle in handles:
        handle.remove()
    for at, (whole, *parts) in seen.items():
        rho = torch.tensor([measured_kurtosis(c) for c in whole.T.numpy()])
        mu = torch.stack([part.mean(0) for part in parts]).var(0) / (whole.var(0) / 16)
        sigma = torch.stack([part.std(0, correction=0) for part in parts]).var(0) / (whole.var(0) * (rho + 2) / 64)
        assert found[str(at)].mu_ratio_split == pytest.approx(float(mu.mean()))
        assert found[str(at)].sigma_ratio_split == pytest.approx(float(sigma.mean()))


def regression(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, y = batch
    return (model(x).squeeze(1) - y).square().mean() / 2


def test_gradient_noise_is_that_of_the_samples_gradients() -> None:
    """With parts of one sample: the trace of their covariance, by numpy; with larger parts, of the parts' means."""
    torch.manual_seed(0)
    x, y, net = torch.randn(24, 5).double(), torch.randn(24).double(), nn.Linear(5, 1).double()
    error = (net(x).squeeze(1) - y).detach()
    samples = torch.cat([error[:, None] * x, error[:, None]], 1).numpy()  # gradients by weight and bias
    for parts in (24, 6):
        with untouched(net):
            found = BatchNoise(parts=parts)(net, regression, (x, y))
        size = 24 // parts
        means = samples.reshape(parts, size, 6).mean(1)
        trace = size * means.var(0, ddof=1).sum()
        square = (samples.mean(0) ** 2).sum() - trace / 24
        assert (found.parts, found.part_size, found.note) == (parts, size, None)
        assert found.gradient_trace == pytest.approx(trace)
        assert found.gradient_square == pytest.approx(square)
        expected = trace / square if square > 0 else math.nan
        assert found.noise_scale == pytest.approx(expected, nan_ok=True)
        assert found.layer_noise_scales == pytest.approx({"": expected}, nan_ok=True)
        summed = BatchNoise(parts=parts)(net, lambda m, b: len(b[0]) * regression(m, b), (x, y))
        assert summed.noise_scale == pytest.approx(expected, nan_ok=True)


def test_gradient_noise_of_a_known_distribution() -> None:
    """x ~ N(0, I), y = w*ᵀx + ε: G = w − w*, tr Σ = (d+1)|G|² + dσ². The estimates have no bias."""
    rng = torch.Generator().manual_seed(0)
    width, sigma, net = 4, 0.7, nn.Linear(4, 1, bias=False).double()
    teacher = torch.tensor([0.3, -0.2, 0.5, 0.1], dtype=torch.double)
    away = net.weight.detach()[0] - teacher
    square = float(away @ away)
    found = []
    for _ in range(200):
        x = torch.randn(32, width, generator=rng, dtype=torch.double)
        y = x @ teacher + sigma * torch.randn(32, generator=rng, dtype=torch.double)
        noise = BatchNoise(parts=4)(net, regression, (x, y))
        found.append((noise.gradient_trace, noise.gradient_square))
    means, errors = np.mean(found, 0), np.std(found, 0) / math.sqrt(len(found))
    expected = (width + 1) * square + width * sigma**2, square
    assert np.all(np.abs(means - expected) < 4 * errors)
    assert np.all(errors < 0.1 * np.array(expected))


def test_noise_scales_by_layer() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 5))
    found = BatchNoise(parts=4)(net, cross_entropy, vectors(16))
    assert set(found.layer_noise_scales) == {"0", "2"} and not found.layers
    gradients = []
    for part in split_batch(vectors(16), 4):
        grad = torch.autograd.grad(cross_entropy(net, part), [*net[2].parameters()])
        gradients.append(torch.cat([g.flatten() for g in grad]).double().numpy())
    trace = 4 * np.var(gradients, axis=0, ddof=1).sum()
    square = (np.mean(gradients, axis=0) ** 2).sum() - trace / 16
    expected = trace / square if square > 0 else math.nan
    assert found.layer_noise_scales["2"] == pytest.approx(expected, rel=1e-4, nan_ok=True)


def test_the_gradients_noise_alone_is_the_same() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 1)).double()
    x = torch.randn(32, 6, dtype=torch.double)
    both, alone = (BatchNoise(parts=4, gradient_only=only)(net, loss_of, x) for only in (False, True))
    assert both.layers and not alone.layers and not alone.left_out
    assert str(alone) == str(replace(both, layers={})) and math.isfinite(alone.gradient_trace)


def test_how_a_batch_is_split() -> None:
    x, y, w = torch.arange(12).view(6, 2), np.arange(6), torch.ones(3)
    Pair = namedtuple("Pair", ["x", "y"])

    @dataclass
    class Both:
        x: Tensor
        name: str

    class Encoding(UserDict[str, Any]):
        """As transformers has it."""

        @property
        def words(self) -> Tensor:
            return self.data["x"]

    batches: list[Any] = [
        x, [x, y], (x, (y, {"w": w})), {"x": x, "w": w, "t": "text", "n": None, "s": torch.tensor(1.0)}, Pair(x, y),
        Both(x, "name"), Encoding({"x": x}), OrderedDict(x=x), defaultdict(list, x=x),
    ]  # fmt: skip
    for batch in batches:
        first, second = split_batch(batch, 2)
        assert type(first) is type(batch) and type(second) is type(batch)
    assert torch.equal(split_batch(batches[0], 2)[1], x[3:])
    assert split_batch(batches[1], 4)[3][1].tolist() == [3]  # of 6 samples 4 are used
    deep = split_batch(batches[2], 3)[1]
    assert torch.equal(deep[0], x[2:4]) and deep[1][0].tolist() == [2, 3] and deep[1][1]["w"] is w
    rest = split_batch(batches[3], 2)[0]
    assert rest["w"] is w and rest["t"] == "text" and rest["n"] is None and float(rest["s"]) == 1
    assert split_batch(batches[4], 2)[1].y.tolist() == [3, 4, 5]
    assert torch.equal(split_batch(batches[5], 2)[0].x, x[:3])
    assert torch.equal(split_batch(batches[6], 2)[0].words, x[:3]) and len(batches[6]["x"]) == 6
    with pytest.raises(ValueError, match="no tensor to split"):
        split_batch({"text": "words"}, 2)
    with pytest.raises(ValueError, match="parts must be between 1 and the 6 samples"):
        split_batch(x, 7)


def test_splitting_has_its_limits() -> None:
    net = nn.Sequential(nn.Linear(5, 5))
    one = BatchNoise()(net, cross_entropy, vectors(1))
    assert "too few samples" in str(one.note) and math.isnan(one.noise_scale) and one.problem is None
    assert BatchNoise()(net, cross_entropy, vectors(3)).parts == 3
    assert BatchNoise(parts=2)(net, cross_entropy, vectors(3)).parts == 2
    normed = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5))
    assert "too few samples" in str(BatchNoise()(normed, cross_entropy, vectors(3)).note)
    assert BatchNoise()(normed, cross_entropy, vectors(5)).parts == 2
    assert "not to be split" in str(BatchNoise(parts=0)(net, cross_entropy, vectors(8)).note)

    def halves(batch: Any, parts: int) -> list[Any]:
        return [{key: value[at::2] for key, value in batch.items()} for at in range(2)]

    assert BatchNoise(split=halves)(net, cross_entropy, vectors(8)).part_size == 4
    assert "same number of samples" in str(BatchNoise(split=halves)(net, cross_entropy, vectors(7)).note)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("training", [True, False])
def test_other_precisions_and_modes(dtype: torch.dtype, training: bool) -> None:
    torch.manual_seed(0)
    found = BatchNoise()(small().to(dtype).train(training), cross_entropy, images(16, dtype))
    assert found.problem is None and set(found.layers) == {"1", "6"} and found.parts == 8
    assert found.gradient_trace > 0
    assert all(noise.zeta > 0 for noise in found.layers.values())


def test_frozen_parameters_have_no_noise() -> None:
    net = small()
    net[0].requires_grad_(False)
    found = BatchNoise()(net, cross_entropy, images(16))
    assert set(found.layer_noise_scales) == {"1", "5", "6", "8"}


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"batch_size": 0}, "batch_size must be a whole number, 1 or larger, or None"),
        ({"draws": 1}, "draws must be a whole number, 2 or larger"),
        ({"link": "gelu"}, "link must be one of 'relu', 'linear', 'sigmoid'"),
        ({"parts": 1}, "parts must be 0 or at least 2"),
    ],
)
def test_arguments(told: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        BatchNoise(**told)


def test_the_result_as_a_dictionary() -> None:
    result = BatchNoise()(small(), cross_entropy, images()).to_dict()
    assert result["layers"]["1"]["positions"] == 16 and result["parts"] == 4 and result["problem"] is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_gpu_finds_what_the_cpu_finds() -> None:
    torch.manual_seed(0)
    net, batch = small().double(), images(16, torch.double)
    net[3].p = 0.0  # the masks differ
    expected = BatchNoise()(net, cross_entropy, batch).to_dict()
    on_gpu = {key: value.cuda() for key, value in batch.items()}
    net = net.cuda()
    state = torch.cuda.get_rng_state()
    with untouched(net):
        found = BatchNoise()(net, cross_entropy, on_gpu).to_dict()
    assert torch.equal(torch.cuda.get_rng_state(), state)
    for name, noise in expected.pop("layers").items():
        assert found["layers"][name] == pytest.approx(noise, rel=1e-6)
    for name in ("noise_scale", "gradient_trace", "gradient_square"):
        assert found[name] == pytest.approx(expected[name], rel=1e-6, nan_ok=True)
