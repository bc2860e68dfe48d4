"""The spectrum probe on models of all kinds, and beside other libraries."""

import importlib.util
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.probes.dense import Batch, criterion, dense_ggn, dense_hessian, forward, loss_fn
from tests.probes.untouched import untouched
from trimtab.networks import build
from trimtab.norms import Norm
from trimtab.probes import Spectrum

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")


@pytest.fixture
def batch() -> Batch:
    generator = torch.Generator().manual_seed(0)
    return {"x": torch.randn(7, 3, dtype=torch.double, generator=generator) + 0.5, "y": torch.arange(7) % 3}


class Twice(nn.Module):
    """One module called twice, another never, and a parameter that nothing depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.never, self.idle = nn.Linear(3, 3), nn.Linear(2, 2), nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(torch.tanh(self.inner(x)))


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    return model


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
    model[0].requires_grad_(False)
    return model


def without_bias() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4, bias=False), nn.Softplus(), nn.Linear(4, 3, bias=False))


ODD: list[Callable[[], nn.Module]] = [Twice, tied, frozen, without_bias]


@pytest.mark.parametrize("matrix", ["hessian", "ggn"])
@pytest.mark.parametrize("make", ODD, ids=lambda make: make.__name__)
@pytest.mark.parametrize("samples", [1, 7])
def test_odd_models(make: Callable[[], nn.Module], samples: int, matrix: str, batch: Batch) -> None:
    torch.manual_seed(0)
    model = make().double().eval()
    batch = {name: value[:samples] for name, value in batch.items()}
    exact = np.linalg.eigvalsh((dense_hessian if matrix == "hessian" else dense_ggn)(model, batch))
    told = {"matrix": matrix, "forward": forward, "criterion": criterion, "per_layer": True}
    with untouched(model):
        found = Spectrum(tolerance=1e-8, top=2, **told)(model, loss_fn, batch)
    assert found.problem is None and found.converged and found.size == len(exact)
    assert found.largest == pytest.approx(exact[::-1][:2], abs=1e-9)
    assert max(found.layers.values()) <= found.largest[0] + 1e-9  # a block's eigenvalues are within the whole's
    if make is Twice:
        assert found.layers["never"] == found.layers[""] == 0


def test_a_loss_that_is_linear_has_no_curvature(batch: Batch) -> None:
    model = nn.Linear(3, 3).double()
    found = Spectrum(trace_vectors=2, density_vectors=1, per_layer=True)(model, lambda m, b: m(b["x"]).sum(), batch)
    assert found.problem is None and found.converged
    assert found.largest == (0.0,) and found.trace == 0 and found.layers == {"": 0.0}
    whole = Spectrum(lower_end=True)(model, lambda m, b: m(b["x"]).sum(), batch)
    assert whole.largest == (0.0,) and whole.smallest_problem == "All eigenvalues are zero."
    absolute = {"matrix": "ggn", "forward": forward, "criterion": lambda o, b: o.abs().sum(), "lower_end": True}
    for limit in (0, 256):
        assert Spectrum(dense_up_to=limit, **absolute)(model, loss_fn, batch).smallest_problem == (
            "All eigenvalues are zero."
        )


def test_half_precision_parameters(batch: Batch) -> None:
    """bfloat16 keeps three digits, and so do products with it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 3)).to(torch.bfloat16)
    narrow = {"x": batch["x"].to(torch.bfloat16), "y": batch["y"]}
    wide = nn.Sequential(nn.Linear(3, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 3)).double()
    wide.load_state_dict(model.state_dict())
    right = Spectrum()(wide, loss_fn, {"x": narrow["x"].double(), "y": batch["y"]})
    with untouched(model):
        found = Spectrum(tolerance=0.05)(model, loss_fn, narrow)
    assert found.converged and found.largest == pytest.approx(right.largest, rel=0.05)


def test_parts_in_half_precision(batch: Batch) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 3))
    right = Spectrum()(model, loss_fn, {"x": batch["x"].float(), "y": batch["y"]})

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = model[0], model[2].to(torch.bfloat16)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.tanh(self.first(x)).to(torch.bfloat16)).float()

    found = Spectrum(tolerance=0.05)(Mixed(), loss_fn, {"x": batch["x"].float(), "y": batch["y"]})
    assert found.largest == pytest.approx(right.largest, rel=0.05)


def test_checkpointing_changes_nothing(batch: Batch) -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)).double()

    def saving(model: nn.Module, batch: Batch) -> Tensor:
        return criterion(checkpoint(model, batch["x"], use_reentrant=False), batch)

    plain = Spectrum(tolerance=1e-6)(model, loss_fn, batch)
    with untouched(model):
        assert Spectrum(tolerance=1e-6)(model, saving, batch).largest == pytest.approx(plain.largest)


def test_attention_has_second_derivatives() -> None:
    """The fused kernels have none; heads and tokens are written out beside."""

    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(4, 12), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).chunk(3, -1)
            attend = nn.functional.scaled_dot_product_attention
            return self.out(attend(q, k, v) if self.fused else (q @ k.mT / 2).softmax(-1) @ v)

    torch.manual_seed(0)
    model, x = Attending(), torch.randn(2, 5, 4)
    values = []
    for model.fused in (True, False):
        for matrix in ("hessian", "fisher"):
            probe = Spectrum(matrix=matrix, forward=lambda m, b: m(b), tolerance=1e-4)
            found = probe(model, lambda m, b: m(b).square().mean(), x)
            assert found.problem is None
            values.append(found.largest[0])
    assert values[:2] == pytest.approx(values[2:], rel=1e-4)
    assert torch.backends.cuda.flash_sdp_enabled()  # as before


@pytest.mark.parametrize("norm", ["bn", "ln", "gn", "brn", "ghost", "wn", "l1", "noisy-bn"])
def test_networks_of_the_lab(norm: str) -> None:
    torch.manual_seed(0)
    model = build("small-cnn", Norm(norm))
    batch = {"x": torch.randn(32, 1, 8, 8), "y": torch.arange(32) % 10}
    with untouched(model):
        found = Spectrum(per_layer=True)(model, loss_fn, batch)
    assert found.problem is None and found.converged and found.largest[0] > 0
    assert set(found.layers) >= {name for name, module in model.named_modules() if isinstance(module, nn.Linear)}


def test_lists_and_odd_outputs(batch: Batch) -> None:
    """Batches and outputs that are no tensors are the functions' own affair."""
    model = nn.Linear(3, 3).double()
    plain = Spectrum()(model, loss_fn, batch)
    pair = Spectrum()(model, lambda m, b: nn.functional.cross_entropy(m(b[0]), b[1]), (batch["x"], batch["y"]))
    assert pair.largest == plain.largest
    shaped = Spectrum()(model, lambda m, b: loss_fn(m, b).reshape(1, 1), batch)
    assert shaped.largest == plain.largest


def other_library(name: str) -> Any:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed; it comes with: pip install '.[bench]'")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(name)


@pytest.fixture
def images() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4))
    x, y = torch.randn(16, 3, 10, 10), torch.arange(16) % 4
    for _ in range(20):
        model(x)
    return model.eval(), (x, y)


def pair_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def test_agrees_with_curvlinops(images: tuple[nn.Module, tuple[Tensor, Tensor]]) -> None:
    theirs, (model, batch) = other_library("curvlinops"), images
    from scipy.sparse.linalg import eigsh

    told = {"forward": lambda m, b: m(b[0]), "criterion": lambda o, b: nn.functional.cross_entropy(o, b[1])}
    kinds = {"hessian": "HessianLinearOperator", "ggn": "GGNLinearOperator"}
    for matrix, name in kinds.items():
        operator = getattr(theirs, name)(model, nn.CrossEntropyLoss(), list(model.parameters()), [batch])
        right = eigsh(operator.to_scipy(), k=3, which="LA", return_eigenvectors=False)
        found = Spectrum(matrix=matrix, statistics="running", top=3, tolerance=1e-4, **told)(model, pair_loss, batch)
        assert found.largest == pytest.approx(sorted(right, reverse=True), rel=1e-3)
    fisher = Spectrum(matrix="fisher", statistics="running", top=3, tolerance=1e-4, **told)(model, pair_loss, batch)
    assert fisher.largest == pytest.approx(found.largest, rel=1e-3)


@pytest.mark.filterwarnings("ignore:Using backward\\(\\) with create_graph=True")
def test_agrees_with_pyhessian(images: tuple[nn.Module, tuple[Tensor, Tensor]]) -> None:
    theirs, (model, batch) = other_library("pyhessian"), images
    found = Spectrum(statistics="running", tolerance=1e-4)(model, pair_loss, batch)
    right, _ = theirs.hessian(model, nn.CrossEntropyLoss(), data=batch, cuda=False).eigenvalues(tol=1e-5, maxIter=500)
    assert found.largest == pytest.approx(right, rel=1e-3)
    model.zero_grad(set_to_none=True)
