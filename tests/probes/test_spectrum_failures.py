"""The spectrum probe says what is wrong, and gives its memory back."""

import gc
import math
import weakref

import pytest
import torch
from torch import Tensor, nn

from tests.probes.dense import Batch, criterion, forward, loss_fn, net
from tests.probes.untouched import untouched
from trimtab.probes import Spectrum
from trimtab.probes.spectrum.operators import Curvature


@pytest.fixture
def batch() -> Batch:
    generator = torch.Generator().manual_seed(0)
    return {"x": torch.randn(7, 3, dtype=torch.double, generator=generator) + 0.5, "y": torch.arange(7) % 2}


ALL = {"top": 2, "trace_vectors": 2, "density_vectors": 1, "density_steps": 5, "per_layer": True}
MATRICES = [{"matrix": "hessian"}, {"matrix": "ggn"}, {"matrix": "fisher"}]


@pytest.mark.parametrize("matrix", MATRICES, ids=lambda m: m["matrix"])
def test_another_seed_draws_other_vectors(matrix: dict, batch: Batch) -> None:
    first, second = (
        Spectrum(forward=forward, criterion=criterion, seed=seed, **ALL, **matrix)(net(), loss_fn, batch).trace
        for seed in (0, 1)
    )
    assert first != second


@pytest.mark.parametrize("matrix", MATRICES, ids=lambda m: m["matrix"])
def test_problems_are_said_and_not_raised(matrix: dict, batch: Batch) -> None:
    model = net(nn.BatchNorm1d(5))
    probe = Spectrum(forward=forward, criterion=criterion, **matrix)
    nan = {"x": batch["x"] * math.nan, "y": batch["y"]}

    def full(*_: object) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with untouched(model):
        found = probe(model, loss_fn, nan)
        assert "not finite" in found.problem and found.largest == ()
        assert Spectrum(forward=full, criterion=criterion, **matrix)(model, full, batch).problem == "Out of memory."
    assert isinstance(found.to_dict()["layers"], dict)


def test_a_gradient_that_is_not_finite_is_said(batch: Batch) -> None:
    found = Spectrum()(net(), lambda m, b: (m(b["x"]) * 0).sqrt().sum(), batch)
    assert found.problem == "The gradient is not finite."


def test_an_operation_without_second_derivative_is_said(batch: Batch) -> None:
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x**2

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, g: Tensor) -> Tensor:
            return 2 * g * ctx.saved_tensors[0]

    assert "no second derivative" in Spectrum()(net(), lambda m, b: Once.apply(m(b["x"])).square().sum(), batch).problem
    told = {"matrix": "fisher", "forward": lambda m, b: Once.apply(m(b["x"]))}
    assert "no second derivative" in Spectrum(**told)(net(), loss_fn, batch).problem

    def fails(*_: object) -> Tensor:
        raise RuntimeError("another one")

    with pytest.raises(RuntimeError, match="another one"):
        Spectrum()(net(), fails, batch)


@pytest.mark.parametrize("matrix", MATRICES, ids=lambda m: m["matrix"])
@pytest.mark.parametrize("fails", [False, True])
def test_memory_is_given_back(matrix: dict, fails: bool, batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[weakref.ref] = []
    inner = Curvature.times

    def times(self: Curvature, vector: Tensor) -> Tensor:
        result = inner(self, vector)
        seen.extend([weakref.ref(self), weakref.ref(result), *map(weakref.ref, self.leaves.values())])
        return result * math.nan if fails and len(seen) > 20 else result

    monkeypatch.setattr(Curvature, "times", times)

    def watched(model: nn.Module, batch: Batch) -> Tensor:
        result = forward(model, batch)
        seen.append(weakref.ref(result))
        return result

    probe = Spectrum(forward=watched, criterion=criterion, **ALL, **matrix)
    gc.collect()
    gc.disable()
    try:
        found = probe(net(nn.BatchNorm1d(5)), lambda m, b: criterion(watched(m, b), b), batch)
        assert (found.problem is not None) == fails
        assert len(seen) > 10 and all(ref() is None for ref in seen)
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"matrix": "hesse"}, "matrix"),
        ({"statistics": "average"}, "statistics"),
        ({"likelihood": "poisson"}, "likelihood"),
        ({"matrix": "ggn"}, "forward"),
        ({"matrix": "fisher"}, "forward"),
        ({"matrix": "ggn", "forward": forward}, "criterion"),
        ({"top": 0}, "top"),
        ({"tolerance": 0.0}, "tolerance"),
        ({"tolerance": math.nan}, "tolerance"),
        ({"density_width": 1.0}, "density_width"),
        ({"density_width": 1e-3}, "density_width"),
        ({"density_steps": 0}, "density_steps"),
        ({"trace_vectors": -1}, "trace_vectors"),
        ({"max_products": 0}, "max_products"),
        ({"top": 10, "max_vectors": 10}, "max_vectors"),
    ],
)
def test_bad_options(told: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Spectrum(**told)


def test_bad_functions(batch: Batch) -> None:
    with pytest.raises(TypeError, match="forward must return"):
        Spectrum(matrix="fisher", forward=lambda m, b: (m(b["x"]),))(net(), loss_fn, batch)
    with pytest.raises(TypeError, match="criterion must return"):
        Spectrum(matrix="ggn", forward=forward, criterion=lambda o, b: o)(net(), loss_fn, batch)
    with pytest.raises(TypeError, match="loss_fn must return"):
        Spectrum()(net(), forward, batch)
