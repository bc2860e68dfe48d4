"""Networks that are drawn like a model: their mean against fresh ones, and what is said where it is uncertain."""

import math
from statistics import fmean
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trimtab import predict
from trimtab.prediction import drawing
from trimtab.prediction.drawing import draw_networks
from trimtab.prediction.products import operations
from trimtab.probes.isolation import IsolatedModel
from trimtab.probes.result import CannotMeasure

SAMPLES = 24


def dense(norm: bool = True, width: int = 60) -> nn.Sequential:
    parts = [nn.Linear(12, width), *([nn.BatchNorm1d(width)] if norm else []), nn.ELU(), nn.Linear(width, 4)]
    return nn.Sequential(*parts)


def conv() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(384, 4)
    )


def clusters(*shape: int) -> Tensor:
    """Data on which a mean over pairs says little: two clusters, with samples of different norms."""
    noise = torch.Generator().manual_seed(5)
    centre = torch.randn(*shape, generator=noise)
    signs = torch.tensor([1.0, -1.0]).repeat(SAMPLES // 2).view(-1, *(1,) * len(shape))
    return (signs * centre + torch.randn(SAMPLES, *shape, generator=noise)) * torch.rand(
        SAMPLES, *(1,) * len(shape), generator=noise
    ).add(0.5)


def by_gram_matrix(model: nn.Module, x: Tensor, loss: str, outputs: str) -> float:
    """λ_max by the whole derivative of the outputs in train mode, without anything of ours."""
    model, x = model.double().train(), x.double()
    names = [name for name, _ in model.named_parameters()]

    def run(*values: Tensor) -> Tensor:
        return torch.func.functional_call(model, dict(zip(names, values, strict=True)), (x,))  # type: ignore[no-any-return]

    parameters = tuple(p.detach() for p in model.parameters())
    parts: Any = torch.autograd.functional.jacobian(run, parameters)
    y = run(*parameters)
    jacobian = torch.cat([part.flatten(2) for part in parts], dim=2)  # (samples, outputs, parameters)
    if outputs == "one":
        return float(torch.linalg.matrix_norm(jacobian[:, 0], ord=2)) ** 2 / len(x)
    if loss == "cross_entropy":
        p = y.softmax(1)
        values, vectors = torch.linalg.eigh(torch.diag_embed(p) - p[:, :, None] * p[:, None])
        jacobian = (vectors * values.clamp(min=0).sqrt()[:, None]).mT @ jacobian
    return float(torch.linalg.matrix_norm(jacobian.flatten(0, 1), ord=2)) ** 2 / len(x)


@pytest.mark.parametrize(("loss", "outputs"), [("squared", "one"), ("squared", "all"), ("cross_entropy", "all")])
@pytest.mark.parametrize("make", [dense, pytest.param(conv, marks=pytest.mark.slow)])
def test_the_mean_is_that_of_fresh_networks(make: Any, loss: Any, outputs: Any) -> None:
    shape = (12,) if make is dense else (2, 8, 8)
    x = clusters(*shape)
    fresh = []
    for seed in range(16):
        torch.manual_seed(seed)
        fresh.append(by_gram_matrix(make(), x, loss, outputs))
    torch.manual_seed(99)
    found = predict(make(), shape, inputs=x, loss=loss, outputs=outputs, measure=False)
    assert found.kind == "predicted" and found.unseen == () and found.drawn is not None
    assert found.drawn.samples == SAMPLES and found.lambda_max == found.drawn.lambda_max
    assert found.lambda_max == pytest.approx(fmean(fresh), rel=0.1)


def test_the_formulas_are_not_right_there() -> None:
    """So that the test above is of something: on the same data they are half of it, and nothing says so."""
    torch.manual_seed(99)
    found = predict(dense(), (12,), inputs=clusters(12), measure=False)
    assert found.predicted is not None and found.predicted < 0.7 * found.lambda_max


def test_it_is_the_same_each_time_and_changes_nothing() -> None:
    torch.manual_seed(0)
    model = dense()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    one, other = (predict(model, (12,), samples=32) for _ in range(2))
    assert one.lambda_max == other.lambda_max and one.drawn == other.drawn
    assert torch.equal(torch.get_rng_state(), state) and model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_what_training_has_put_into_the_weights_does_not_count() -> None:
    torch.manual_seed(0)
    model = dense(norm=False)
    value = predict(model, (12,), samples=32).lambda_max
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.flatten().sort().values.view_as(p))
    assert predict(model, (12,), samples=32).lambda_max == pytest.approx(value, rel=0.15)  # two means of some draws
    assert predict(model, (12,), samples=32, measure=True).lambda_max > 3 * value


def test_a_mean_of_weights_that_is_chance_does_not_count() -> None:
    """Activations that are all positive would add it up."""
    torch.manual_seed(0)
    model = dense(norm=False, width=100)
    x = clusters(12)
    value = predict(model, (12,), inputs=x, measure=False).lambda_max
    with torch.no_grad():
        for p in model.parameters():
            p.add_(2.5 * p.std() / math.sqrt(p.numel()) - p.mean())
    assert predict(model, (12,), inputs=x, measure=False).lambda_max == pytest.approx(value, rel=0.01)


def test_operations_are_counted() -> None:
    model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 3))
    assert operations(IsolatedModel(model), torch.zeros(2, 10)) == (2 * 2 * (10 * 20 + 20 * 3), False)


def test_a_model_that_would_take_too_long_is_left_to_the_formulas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(drawing.WORK, "cpu", 1e6)
    found = predict(dense(), (12,))
    assert found.drawn is None and found.lambda_max == found.predicted
    assert "too large to draw" in found.unseen[-1] and "too large to draw" in str(found)


@pytest.mark.slow
def test_a_model_of_many_groups_is_left_to_the_formulas() -> None:
    """PyTorch takes a millisecond for each of them, which the count of operations does not show."""

    def network(groups: int) -> nn.Module:
        depthwise = nn.Conv2d(groups, groups, 3, padding=1, groups=groups)
        return nn.Sequential(nn.Conv2d(1, groups, 1), depthwise, nn.ReLU(), nn.Flatten(), nn.Linear(4 * groups, 2))

    assert predict(network(2), (1, 2, 2)).drawn is not None
    many = predict(network(2000), (1, 2, 2))
    assert many.drawn is None and "too large to draw" in many.unseen[-1]


def test_a_model_that_has_neither_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x).relu() if x.sum() > 0 else self.layer(x)  # type: ignore[no-any-return]

    monkeypatch.setitem(drawing.WORK, "cpu", 1.0)
    with pytest.raises(ValueError, match=r"cannot be traced.* too large to draw networks like it"):
        predict(Branching(), (4,))


def test_fewer_samples_are_extrapolated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Along a line in one over their number, which is right where samples have a direction in common."""
    torch.manual_seed(0)
    model = dense(norm=False, width=200)
    x = torch.randn(128, 12, generator=torch.Generator().manual_seed(1)) + 1
    whole = predict(model, (12,), inputs=x, measure=False)
    few = predict(model, (12,), inputs=x[:32], samples=128, measure=False)
    assert whole.drawn is not None and few.drawn is not None and (whole.drawn.samples, few.drawn.samples) == (128, 32)
    assert few.lambda_max == pytest.approx(whole.lambda_max, rel=0.1)
    monkeypatch.setattr(drawing, "FAR", 0.0)
    assert (
        "extrapolated from 32 to 128 samples"
        in predict(model, (12,), inputs=x[:32], samples=128, measure=False).unseen[0]
    )


def test_batches_have_statistics_of_their_own() -> None:
    torch.manual_seed(0)
    model, x = dense(), clusters(12)
    parts, whole = (
        draw_networks(
            model, (12,), x, loss="squared", outputs="all", statistics="batch", batch_size=size, samples=SAMPLES
        )
        for size in (4, None)
    )
    assert parts is not None and whole is not None and (parts.batch_size, whole.batch_size) == (4, SAMPLES)
    assert abs(parts.lambda_max / whole.lambda_max - 1) > 0.05


def test_what_differs_much_from_network_to_network_is_said() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(6, 6), nn.ReLU())), nn.Linear(6, 2))
    for p in model.parameters():
        nn.init.normal_(p, std=math.sqrt(2 / 6))
    found = predict(model, (6,), samples=32)
    assert "from network to network" in found.unseen[-1] and "Not to be relied on: λ_max differs" in str(found)
    assert "so few weights" in found.unseen[0]


def orthogonal(model: nn.Sequential) -> None:
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.orthogonal_(layer.weight)


def spectral(model: nn.Sequential) -> None:
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.utils.parametrizations.spectral_norm(layer)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (orthogonal, "0.weight, 2.weight, 4.weight are not in random order"),
        (spectral, "computed with buffers"),
        (lambda model: None, None),
    ],
)
def test_what_shuffling_does_not_keep_is_said(change: Any, sentence: str | None) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    change(model)
    unseen = predict(model, (32,), samples=16).unseen
    assert unseen == () if sentence is None else sentence in unseen[0]


def test_few_samples_are_not_taken_for_many() -> None:
    x = torch.randn(3, 12, generator=torch.Generator().manual_seed(0))
    unseen = predict(dense(), (12,), inputs=x[:2], samples=1000, measure=False).unseen
    assert any("for 2 samples" in sentence for sentence in unseen)


class Dropping(nn.Module):
    """Drops by a function, of which nothing is known until it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(12, 32), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(nn.functional.dropout(self.first(x), 0.5, self.training))  # type: ignore[no-any-return]


def test_a_model_that_draws_random_numbers_gives_the_same_number_and_that_is_said() -> None:
    torch.manual_seed(0)
    model, found = Dropping(), []
    for seed in (1, 2):
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        found.append(predict(model, (12,), samples=32))
        assert torch.equal(torch.get_rng_state(), state)
    assert found[0].lambda_max == found[1].lambda_max and "random numbers" in found[0].unseen[0]


class Once(torch.autograd.Function):
    """An operation with neither a second derivative nor a forward mode."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(context: Any, slope: Tensor) -> Tensor:
        return slope.clone()


class Twice(nn.Module):
    """An operation that can be differentiated only once, or attention, if it is computed by plain operations."""

    def __init__(self, attention: bool) -> None:
        super().__init__()
        self.first, self.last, self.attention = nn.Linear(8, 8), nn.Linear(8, 3), attention

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.attention:
            tokens = h.view(-1, 1, 2, 4)
            return self.last(nn.functional.scaled_dot_product_attention(tokens, tokens, tokens).flatten(1))  # type: ignore[no-any-return]
        return self.last(Once.apply(h))  # type: ignore[no-any-return]


def test_attention_is_drawn_and_measured() -> None:
    torch.manual_seed(0)
    model = Twice(attention=True)
    assert predict(model, (8,)).drawn is not None
    assert predict(model, (8,), measure=True).lambda_max > 0


def test_an_operation_that_can_be_differentiated_only_once_is_left_to_the_formulas() -> None:
    model = Twice(attention=False)
    found = predict(model, (8,))
    assert found.drawn is None and found.lambda_max == found.predicted
    assert "cannot be drawn. An operation of the model has no second derivative" in found.unseen[-1]
    with pytest.raises(CannotMeasure, match="no second derivative"):
        predict(model, (8,), measure=True)


@pytest.mark.parametrize(
    ("about", "sentence"),
    [
        ({"batch_size": 0}, "batch_size must be None or a whole number, 1 or larger"),
        ({"batch_size": "x"}, "batch_size must be None or a whole number, 1 or larger"),
        ({"batch_size": 1}, "one sample alone has no variance"),
        ({"samples": 1}, "one sample alone has no variance"),
        (
            {"inputs": torch.zeros(4, 12, dtype=torch.float64)},
            "must be torch.float32 .* not torch.float64",
        ),
        ({"inputs": torch.zeros(4, 12, device="meta")}, "inputs must be torch.float32 on cpu"),
        ({"inputs": torch.zeros(())}, "inputs must be two samples or more"),
    ],
)
def test_what_cannot_be_drawn_is_refused(about: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        predict(dense(), (12,), **about)
