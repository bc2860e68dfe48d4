"""What `predict` reads is what a forward does, and it is right or named: against measured eigenvalues."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.theory.reading_cases import (
    WIDTH,
    Between,
    Depthwise,
    Doubled,
    Joined,
    NormAct,
    NormAct2d,
    Tokens,
    draw,
    normed,
    ratio,
)
from trimtab.theory.from_model import mean_field_prediction as predict

DENSE: dict[str, Callable[[], nn.Module]] = {
    "subclass of Linear": lambda: nn.Sequential(
        *(Doubled(60, WIDTH), nn.ReLU(), Doubled(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
    ),
    "y + relu(y)": lambda: Between(lambda m, y: y + F.relu(y)),
    "y + relu(y), normalized": lambda: Between(lambda m, y: y + F.relu(y), norm=True),
    "a function of an activation": lambda: Between(lambda m, y: F.gelu(F.relu(y) - 1)),
    "a quotient": lambda: Between(lambda m, y: 2.0 / (F.relu(y) + 1.0)),
    "a negative factor": lambda: Between(lambda m, y: F.relu(y) * -2.0),
    "a sum with a factor": lambda: Between(lambda m, y: torch.add(F.relu(y), F.relu(y), alpha=2)),
    "a difference": lambda: Between(lambda m, y: F.relu(y) - F.relu(m.branch(F.relu(y)))),
    "an activation on the branch": lambda: Between(lambda m, y: y + F.relu(m.branch(F.relu(y)))),
    "LayerScale": lambda: Between(lambda m, y: y + m.gamma * m.branch(F.relu(y)), gamma=torch.full((WIDTH,), 0.7)),
    "LayerScale at random": lambda: Between(lambda m, y: y + m.branch(F.relu(y)) * m.gamma, gamma=torch.randn(WIDTH)),
    "a factor before the activation": lambda: Between(lambda m, y: F.relu(y * m.gamma), gamma=torch.full((1,), 1.5)),
    "a bias of one's own": lambda: Between(lambda m, y: F.relu(y + m.gamma), gamma=1.5 * torch.randn(WIDTH)),
    "a product with a matrix": lambda: Between(
        lambda m, y: F.relu(y) @ m.gamma, gamma=torch.randn(WIDTH, WIDTH) / WIDTH**0.5
    ),
    "concatenation": lambda: Joined(norm=False),
    "concatenation, normalized": lambda: Joined(norm=True),
    "concatenation of dependent ones": lambda: Between(
        lambda m, y: torch.cat([F.relu(y), F.relu(-y)], 1), features=2 * WIDTH
    ),
    "halves": lambda: Between(lambda m, y: sum(F.relu(y).chunk(2, 1)), features=WIDTH // 2),
}


@pytest.mark.parametrize("name", DENSE)
def test_dense(name: str) -> None:
    found, unseen = ratio(DENSE[name], (60,), draws=6, samples=50)
    assert unseen == ()
    assert found == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("make", [lambda: Joined(norm=True), DENSE["y + relu(y), normalized"]])
def test_dense_in_train_mode(make: Callable[[], nn.Module]) -> None:
    found, unseen = ratio(make, (60,), draws=3, samples=100, statistics="batch")
    assert unseen == ()
    assert found == pytest.approx(1, abs=0.06)


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        pytest.param(Tokens, (60, 20), marks=pytest.mark.slow),
        pytest.param(lambda: Tokens(mixing=True), (60, 20), marks=pytest.mark.slow),
        (lambda: Tokens(mixing=True, embedding=True), (60, 20)),
        pytest.param(lambda: Tokens(mixing=True, scale=True), (60, 20), marks=pytest.mark.slow),
        (Depthwise, (3, 12, 12)),
        (lambda: normed(lambda: nn.GroupNorm(1, 128)), (3, 8, 8)),
        (lambda: normed(lambda: nn.GroupNorm(4, 128)), (3, 8, 8)),
        (lambda: normed(lambda: nn.InstanceNorm2d(128, affine=True)), (3, 8, 8)),
    ],
    ids=["tokens", "mixer", "embedding", "scale", "depthwise", "one group", "four groups", "instances"],
)
def test_positions(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    found, unseen = ratio(make, shape, draws=4, samples=40)
    assert unseen == ()
    assert found == pytest.approx(1, abs=0.1)


def test_a_sum_of_dependent_terms_is_named() -> None:
    for what in (
        lambda m, y: y + F.relu(m.inner(y)),
        lambda m, y: (y + m.branch(F.relu(y))) + y,
        lambda m, y: F.relu(y + m.branch(F.relu(y))) + F.relu(y),
    ):
        model = Between(what)
        model.inner = nn.BatchNorm1d(WIDTH)
        assert any("adds two values" in sentence for sentence in predict(model, (60,)).unseen)


def same(one: nn.Module, other: nn.Module, shape: tuple[int, ...], statistics: str = "frozen") -> None:
    """Both are read as the same, and nothing is unseen."""
    first, second = (predict(model, shape, statistics=statistics, samples=50) for model in (one, other))
    assert first.lambda_max == pytest.approx(second.lambda_max, rel=1e-6)
    assert first.upper_bound == pytest.approx(second.upper_bound, rel=1e-6)
    assert first.unseen == second.unseen == ()


@pytest.mark.parametrize("statistics", ["frozen", "batch"])
def test_a_batchnorm_that_carries_its_activation(statistics: str) -> None:
    linear = [nn.Linear(6, 50), nn.Linear(50, 1)]
    plain = nn.Sequential(linear[0], nn.BatchNorm1d(50), nn.ReLU(), linear[1])
    same(nn.Sequential(linear[0], NormAct(50), linear[1]), plain, (6,), statistics)
    conv = [nn.Conv2d(2, 30, 3), nn.Conv2d(30, 30, 3), nn.Flatten(), nn.Linear(120, 1)]
    own, plain = (
        nn.Sequential(conv[0], *norm(), conv[1], *norm(), *conv[2:])
        for norm in (lambda: [NormAct2d(30)], lambda: [nn.BatchNorm2d(30), nn.ReLU()])
    )
    same(own, plain, (2, 6, 6), statistics)


@pytest.mark.parametrize(
    ("written", "module"),
    [
        (lambda y: y * torch.sigmoid(y), nn.SiLU()),
        (lambda y: y * F.relu6(y + 3) / 6, nn.Hardswish()),
        (lambda y: y.clamp(min=0), nn.ReLU()),
        (lambda y: torch.where(y > 0, y, 0.1 * y), None),
        (lambda y: F.leaky_relu(y, 0.3), nn.LeakyReLU(0.3)),
        (lambda y: y.relu_(), nn.ReLU()),
        (lambda y: F.hardswish(y), nn.Hardswish()),
        (lambda y: F.silu(y), nn.SiLU()),
        (lambda y: F.gelu(y, approximate="tanh"), nn.GELU(approximate="tanh")),
        (lambda y: F.softplus(input=y), nn.Softplus()),
        (lambda y: torch.maximum(y, 0 * y), nn.ReLU()),
    ],
)
def test_activations_as_functions(written: Callable[[Tensor], Tensor], module: nn.Module | None) -> None:
    torch.manual_seed(0)
    one = Between(lambda m, y: written(y))
    if module is None:
        assert any("is not known" in sentence for sentence in predict(one, (60,)).unseen)
        return
    other = Between(lambda m, y: m.act(y))
    other.act = module
    other.load_state_dict(one.state_dict())
    first, second = (predict(model, (60,), samples=50) for model in (one, other))
    assert first.unseen == second.unseen == ()
    assert first.lambda_max == pytest.approx(second.lambda_max, rel=1e-3)  # one by quadrature, one in closed form


LEAVES = [
    (lambda: nn.Linear(16, 16), (16,)),
    (lambda: nn.Conv1d(16, 16, 3), (16, 6)),
    (lambda: nn.Conv2d(16, 16, 3), (16, 6, 6)),
    (lambda: nn.BatchNorm1d(16), (16,)),
    (lambda: nn.BatchNorm2d(16), (16, 6, 6)),
    (lambda: nn.LayerNorm(16), (16,)),
    (lambda: nn.GroupNorm(1, 16), (16, 6, 6)),
    (lambda: nn.InstanceNorm2d(16), (16, 6, 6)),
    (nn.ReLU, (16,)),
    (lambda: nn.AvgPool2d(2), (16, 6, 6)),
]


def network(layer: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    first = nn.Linear(16, 16) if len(shape) == 1 else (nn.Conv1d if len(shape) == 2 else nn.Conv2d)(16, 16, 1)
    size = layer(first(torch.zeros(2, *shape))).flatten(1).shape[1]
    return nn.Sequential(first, layer, nn.ReLU(), nn.Flatten(), nn.Linear(size, 1))


@pytest.mark.parametrize(("make", "shape"), LEAVES)
def test_a_forward_that_was_replaced(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    plain = make()

    def halved(x: Tensor) -> Tensor:
        return type(plain).forward(plain, x) * 0.5

    def subclassed(self: nn.Module, x: Tensor) -> Tensor:
        return super(type(self), self).forward(x) * 0.5

    oracle = network(plain, shape)
    oracle.insert(2, Half())
    by_class = make()
    by_class.__class__ = type("Own", (type(plain),), {"forward": subclassed})
    by_class.load_state_dict(plain.state_dict())
    model = network(by_class, shape)
    model.load_state_dict(dict(zip(model.state_dict(), oracle.state_dict().values(), strict=True)))
    same(model, oracle, shape)
    before = predict(network(plain, shape), shape).lambda_max
    assert predict(model, shape).lambda_max != pytest.approx(before, rel=1e-3)
    plain.forward = halved
    found = predict(nn.Sequential(model[0], plain, *model[2:]), shape)
    named = any("which torch.fx cannot trace" in sentence for sentence in found.unseen)
    assert named or found.lambda_max == pytest.approx(predict(model, shape).lambda_max)


class Half(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 0.5


def test_a_forward_that_torch_fx_cannot_trace_is_named() -> None:
    class Deciding(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if x.sum() > 0 else -x

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Deciding(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)

    model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), Outer(), nn.Linear(16, 1))
    assert predict(model, (5,)).unseen == (
        "2.inner (Deciding, which torch.fx cannot trace) is not known: order parameters pass it unchanged, and its 272 "
        "parameters are not counted.",
    )


def test_a_module_that_is_not_in_the_model() -> None:
    outside = nn.BatchNorm1d(WIDTH)
    with pytest.raises(ValueError, match="cannot be traced"):
        predict(Between(lambda m, y: outside(y)), (60,))


def test_what_is_overwritten_has_its_new_value() -> None:
    """After relu_ the skip reads the activation, too."""
    torch.manual_seed(0)
    one = Between(lambda m, y: m.branch(F.relu(y, inplace=True)) + y)
    other = Between(lambda m, y: m.branch(F.relu(y)) + F.relu(y))
    other.load_state_dict(one.state_dict())
    same(one, other, (60,))


def test_layouts_and_names_of_the_same_network() -> None:
    """Channels last, tokens, and one-by-one convolutions are the same network."""
    torch.manual_seed(0)
    conv = nn.Sequential(
        *(nn.Conv2d(3, 40, 2, 2), nn.GELU(), nn.Conv2d(40, 60, 1), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(60, 1)),
    )

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Conv2d(3, 40, 2, 2), nn.GELU(), nn.Linear(40, 60), nn.Linear(60, 1))

        def forward(self, x: Tensor) -> Tensor:
            stem, act, middle, out = self.layers
            x = act(stem(x)).flatten(2).transpose(1, 2)
            batch, _, _ = x.shape
            return out(F.relu(middle(x)).mean(1).view(batch, -1))

    last = Last()
    states = zip(last.state_dict(), conv.state_dict().values(), strict=True)
    shapes = {name: value.shape for name, value in last.state_dict().items()}
    last.load_state_dict({name: value.reshape(shapes[name]) for name, value in states})
    same(last, conv, (3, 8, 8))


def test_data_of_tokens_have_their_features_last() -> None:
    """For inputs of (tokens, features) products of two samples are taken at the same feature."""
    model = draw(lambda: Tokens(tokens=10), 0)
    x = torch.randn(30, 10, 20) + torch.randn(20)
    found = predict(model, (10, 20), inputs=x)
    assert found.q_hat0_alphabeta == pytest.approx(float(x.mean((0, 1)).square().mean()), rel=0.1)


def test_weights_that_are_the_parameter_times_a_number() -> None:
    model = nn.Sequential(Doubled(30, 1))
    nn.init.zeros_(model[0].bias)
    assert predict(model, (30,), samples=10).terms["0"] == pytest.approx((1 * 4 * 30) / 10 + 1)


class Transposed(nn.Module):
    """Weights by an attribute of a tensor that is no method, used as `F.linear`, in a product, and twice over."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.first, self.last, self.way = nn.Linear(20, 40, bias=False), nn.Linear(40, 4, bias=False), way

    def forward(self, x: Tensor) -> Tensor:
        first, last = self.first.weight, self.last.weight
        if self.way == "product":
            return F.relu(x @ first.T) @ last.mT
        if self.way == "twice":
            return F.linear(F.relu(F.linear(x, first.T.T)), last.T.mT)
        return self.last(F.relu(self.first(x)))  # type: ignore[no-any-return]


@pytest.mark.parametrize("way", ["product", "twice"])
def test_a_weight_by_its_attribute_t(way: str) -> None:
    torch.manual_seed(0)
    plain, model = Transposed("layers"), Transposed(way)
    model.load_state_dict(plain.state_dict())
    found, expected = predict(model, (20,)), predict(plain, (20,))
    assert found.lambda_max == pytest.approx(expected.lambda_max)
