"""Measured eigenvalues against the dense Gauss–Newton matrix of each loss and mode."""

from collections.abc import Callable
from statistics import fmean, stdev
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, hessian, jacrev

from trimtab.prediction import measure_lambda_max
from trimtab.prediction.gauss_newton import MIN_PRODUCTS, TOLERANCE, BatchedGaussNewton
from trimtab.prediction.losses import hessian_product, hessian_root
from trimtab.probes.isolation import IsolatedModel
from trimtab.probes.spectrum.lanczos import extremes


def dense_lambda_max(
    model: nn.Module, x: Tensor, y: Any, loss: Any, *, mode: str, size: int | None = None, one: bool = False
) -> float:
    """By forming the matrix; `mode` is that of BatchNorm: batch, frozen or running."""
    model = model.double()
    parameters = dict(model.named_parameters())
    size = size or len(x)
    total = 0.0
    parts = list(zip(x.split(size), y.split(size), strict=True))
    for xs, ys in parts:
        model.train(mode != "running")
        if mode == "frozen":
            statistics = recorded(model, xs)

        def f(p: dict[str, Tensor], xs: Tensor = xs) -> Tensor:
            buffers = {name: value.clone() for name, value in model.named_buffers()}  # which a forward may change
            out = functional_call(model, {**p, **buffers}, (xs,))
            return out[:, :1] if one else out

        handles = frozen(model, statistics) if mode == "frozen" else []
        values = f(parameters).detach()
        jacobian = torch.cat([j.detach().reshape(values.numel(), -1) for j in jacrev(f)(parameters).values()], 1)
        for handle in handles:
            handle()
        outer = hessian(lambda out, ys=ys: loss(out, ys))(values).reshape(values.numel(), values.numel())
        total = total + jacobian.T @ outer @ jacobian / len(parts)
    return float(torch.linalg.eigvalsh(total)[-1])  # type: ignore[arg-type]


def recorded(model: nn.Module, x: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    found: dict[str, tuple[Tensor, Tensor]] = {}

    def hook(name: str) -> Callable[..., None]:
        def record(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            dims = [0, *range(2, args[0].ndim)]
            found[name] = args[0].mean(dims).detach(), args[0].var(dims, correction=0).detach()

        return record

    handles = [
        module.register_forward_pre_hook(hook(name))
        for name, module in model.named_modules()
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)
    ]
    with torch.no_grad():
        model(x)
    for handle in handles:
        handle.remove()
    return found


def frozen(model: nn.Module, statistics: dict[str, tuple[Tensor, Tensor]]) -> list[Callable[[], Any]]:
    undo = []
    for name, (mean, variance) in statistics.items():
        module: Any = model.get_submodule(name)
        before = module.running_mean, module.running_var
        module.running_mean, module.running_var = mean, variance
        module.eval()

        def restore(module: Any = module, before: Any = before) -> None:
            module.running_mean, module.running_var = before
            module.train()

        undo.append(restore)
    return undo


def squared(out: Tensor, y: Tensor) -> Tensor:
    return (out - y).square().sum() / 2 / len(out)


def huber(out: Tensor, y: Tensor) -> Tensor:
    return nn.functional.huber_loss(out, y, delta=0.7)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "dense": lambda: nn.Sequential(nn.Linear(5, 9), nn.Tanh(), nn.Linear(9, 3)),
    "dense bn": lambda: nn.Sequential(nn.Linear(5, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 3)),
    "conv bn": lambda: nn.Sequential(
        *(nn.Unflatten(1, (1, 5)), nn.Conv1d(1, 4, 3, padding=1), nn.BatchNorm1d(4), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(20, 3)),
    ),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("loss", ["squared", "one", "cross_entropy", huber])
@pytest.mark.parametrize("mode", ["batch", "frozen", "running"])
@pytest.mark.parametrize("size", [None, 6])
def test_against_the_dense_matrix(name: str, loss: Any, mode: Any, size: int | None) -> None:
    torch.manual_seed(0)
    model = MODELS[name]()
    x, labels = torch.randn(12, 5) + 0.5, torch.randint(3, (12,))
    y: Tensor = labels if loss == "cross_entropy" else torch.randn(12, 3)
    one = loss == "one"
    kind = "squared" if one else loss
    found = measure_lambda_max(
        model, x, y, loss=kind, outputs="one" if one else "all", statistics=mode, batch_size=size
    )
    formula = {"squared": squared, "cross_entropy": nn.functional.cross_entropy}.get(kind, kind)
    target = y[:, :1].double() if one else y.double() if y.is_floating_point() else y
    # Batches as they were chosen: in a fixed order that is not that of the inputs.
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    expected = dense_lambda_max(model, x[order].double(), target[order], formula, mode=mode, size=size, one=one)
    assert found.lambda_max == pytest.approx(expected, rel=0.002)
    assert found.samples == 12 and found.batch_size == (size or 12) and found.converged and not found.note


class WithoutGradient(nn.Module):
    """Scales by something that no gradient passes through, though forward mode would differentiate it."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = 1 / x.square().mean(1, keepdim=True).sqrt()
        return x * scale


class Cube(torch.autograd.Function):
    """An operation of a user's, which has second derivatives and no forward mode."""

    generate_vmap_rule = True  # for the dense matrix

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x**3

    @staticmethod
    def setup_context(context: Any, inputs: Any, output: Any) -> None:
        context.save_for_backward(*inputs)

    @staticmethod
    def backward(context: Any, slope: Tensor) -> Tensor:
        (x,) = context.saved_tensors
        return 3 * x**2 * slope


class Cubed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Cube.apply(x)  # type: ignore[no-any-return]


SPECIAL: dict[str, tuple[Callable[[], nn.Module], bool]] = {
    "hardsigmoid, which has no second derivative": (nn.Hardsigmoid, True),
    "groups": (lambda: nn.Sequential(nn.Unflatten(1, (9, 1)), nn.Conv1d(9, 9, 1, groups=9), nn.Flatten()), True),
    "a part under no_grad": (WithoutGradient, False),
    "no forward mode": (Cubed, False),
}


@pytest.mark.parametrize("name", SPECIAL)
@pytest.mark.parametrize("loss", ["squared", huber])  # over outputs, and over parameters
@pytest.mark.parametrize("size", [None, 6])
def test_products_in_forward_mode_where_that_is_right(name: str, loss: Any, size: int | None) -> None:
    torch.manual_seed(0)
    layer, in_forward_mode = SPECIAL[name]
    model = nn.Sequential(nn.Linear(5, 9), layer(), nn.Linear(9, 3))
    x, y = torch.randn(12, 5) + 0.5, torch.randn(12, 3)
    isolated = IsolatedModel(model, dropout=False)
    parts = list(zip(x.split(size or 12), y.split(size or 12), strict=True))
    matrix = BatchedGaussNewton(isolated, parts, loss, "all")
    found = float(matrix.largest().values[-1])
    assert matrix.derivative.in_forward_mode is in_forward_mode
    formula = squared if loss == "squared" else loss
    expected = dense_lambda_max(model, x.double(), y.double(), formula, mode="batch", size=size)
    assert found == pytest.approx(expected, rel=0.03)


def test_few_starts_miss_the_largest_eigenvalue() -> None:
    """Noise that went halfway through a matrix, and as many products as there are at least: see MIN_PRODUCTS."""
    noise = torch.Generator().manual_seed(0)
    spectrum = torch.cat([torch.logspace(-3, -0.5, 62), torch.tensor([0.76, 1.0])]).double()

    def missed(min_products: int) -> int:
        return sum(
            float(
                extremes(
                    lambda vector: spectrum * vector,
                    spectrum.sqrt() * torch.randn(64, generator=noise, dtype=torch.double),
                    tolerance=TOLERANCE,
                    min_products=min_products,
                    stop_when_stable=True,
                ).values[-1]
            )
            < 0.97
            for _ in range(400)
        )

    assert missed(MIN_PRODUCTS) <= 2 < missed(3)


def test_a_product_is_one_forward_and_one_backward() -> None:
    torch.manual_seed(0)
    model, calls = MODELS["dense bn"](), []
    model.register_forward_hook(lambda *_: calls.append(1))
    matrix = BatchedGaussNewton(IsolatedModel(model, dropout=False), [(torch.randn(12, 5), None)], "squared", "all")
    assert len(calls) == 0 and matrix.largest().products + 2 == len(calls)  # the outputs, the start


@pytest.mark.parametrize("loss", ["squared", "cross_entropy"])
@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 2)])
def test_the_root_of_the_second_derivative(loss: Any, shape: tuple[int, ...]) -> None:
    outputs = torch.randn(shape, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    units = torch.eye(outputs.numel(), dtype=torch.double)
    roots = hessian_root(loss, outputs)
    assert roots is not None and hessian_root(huber, outputs) is None
    root, transposed, whole = (
        torch.stack([product(unit.view(shape)).flatten() for unit in units], 1)
        for product in (*roots, hessian_product(loss, outputs, None))
    )
    assert torch.allclose(root.T, transposed) and torch.allclose(root @ root.T, whole)


def test_a_loss_without_curvature() -> None:
    """A distribution that is one class, exactly: H is zero."""
    model = nn.Linear(3, 2)
    with torch.no_grad():
        model.bias.copy_(torch.tensor([0.0, 1e4]))
    assert measure_lambda_max(model, torch.randn(5, 3), loss="cross_entropy").lambda_max == 0


def half_square(outputs: Tensor, targets: Tensor) -> Tensor:
    """`squared`, as a loss of one's own, whose products are taken by parameters instead of by outputs."""
    return 0.5 * (outputs - targets).square().sum() / len(outputs)


def unequal_norms(count: int, noise: torch.Generator) -> Tensor:
    return torch.randn(count, 20, generator=noise) * torch.randn(count, 1, generator=noise).exp()


def clusters(count: int, noise: torch.Generator) -> Tensor:
    centres = 3 * torch.randn(3, 20, generator=torch.Generator().manual_seed(5))
    return centres[torch.randint(3, (count,), generator=noise)] + 0.3 * torch.randn(count, 20, generator=noise)


@pytest.mark.parametrize("data", [unequal_norms, clusters])
def test_how_much_other_samples_would_change_it(data: Callable[[int, torch.Generator], Tensor]) -> None:
    """The estimate from one choice of samples, beside the deviation over 20 choices."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 40), nn.SiLU(), nn.Linear(40, 3))
    noise = torch.Generator().manual_seed(1)
    found = [measure_lambda_max(model, data(64, noise)) for _ in range(20)]
    values = [each.lambda_max for each in found]
    estimate = fmean(each.uncertainty for each in found)
    assert estimate == pytest.approx(stdev(values) / fmean(values), rel=0.5) and estimate > 0.08


def test_both_ways_to_take_products_tell_the_same_uncertainty() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(20, 40), nn.BatchNorm1d(40), nn.SiLU(), nn.Linear(40, 3)), torch.randn(24, 20)
    ours, theirs = (
        measure_lambda_max(model, x, torch.zeros(24, 3), loss=loss, batch_size=8) for loss in ("squared", half_square)
    )
    assert ours.uncertainty == pytest.approx(theirs.uncertainty, rel=0.02) and 0 < ours.uncertainty < 1
