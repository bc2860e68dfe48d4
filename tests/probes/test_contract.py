"""What every probe owes to the training that it measures: one contract, checked for all probes."""

import gc
import inspect
import json
import math
import random
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import trimtab
from tests.probes.untouched import untouched
from trimtab.probes import (
    Ablation,
    Activations,
    BatchNoise,
    Conditioning,
    CovariateShift,
    Fisher,
    Landscape,
    NormGradients,
    Probe,
    RandomLandscape,
    Robustness,
    Spectrum,
    StepLandscape,
    VarianceShift,
    Weights,
)
from trimtab.probes.surface import ends_of

Batch = dict[str, Tensor]


class Last(nn.Linear):
    """A layer that shows each forward to the test, which may raise or return another output."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.show: list[Callable[[Tensor], Tensor]] = []

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        for look in self.show:
            y = look(y)
        return y


def made() -> tuple[nn.Sequential, torch.optim.Optimizer, trimtab.BNP]:
    """A model with BatchNorm, dropout and operations in place, with BNP, some steps into a training."""
    torch.manual_seed(5)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Dropout(0.3),
        nn.Flatten(),
        nn.Linear(64, 6),
        nn.BatchNorm1d(6),
        nn.Tanh(),
        Last(6, 3),
    )
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    bnp = trimtab.BNP(model).attach(optimizer)
    for _ in range(2):
        optimizer.zero_grad()
        loss_fn(model, images()).backward()
        optimizer.step()
    return model, optimizer, bnp


def images() -> Batch:
    generator = torch.Generator().manual_seed(1)
    return {"x": torch.randn(8, 2, 4, 4, generator=generator) + 0.5, "y": torch.arange(8) % 3}


def forward(model: nn.Module, batch: Batch) -> Tensor:
    outputs: Tensor = model(batch["x"])
    return outputs


def criterion(outputs: Tensor, batch: Batch) -> Tensor:
    return nn.functional.cross_entropy(outputs, batch["y"])


def pair(batch: Batch) -> tuple[Tensor, Tensor]:
    return batch["x"], batch["y"]


def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
    return criterion(forward(model, batch), batch)


SPECTRUM = {"top": 2, "trace_vectors": 2, "density_vectors": 1, "density_steps": 5, "per_layer": True}
# Each from an optimizer, a BNP that is attached to it, and further options.
PROBES: dict[str, Callable[..., Probe[Any]]] = {
    "landscape": lambda optimizer, bnp, **more: Landscape(optimizer=optimizer, **more),
    "random": lambda optimizer, bnp, **more: RandomLandscape(optimizer=optimizer, **more),
    "step": lambda optimizer, bnp, **more: StepLandscape(optimizer=optimizer, **more),
    "shift": lambda optimizer, bnp, **more: CovariateShift(optimizer=optimizer, **more),
    "shift, bnp": lambda optimizer, bnp, **more: CovariateShift(optimizer=optimizer, bnp=bnp, **more),
    "activations": lambda optimizer, bnp, **more: Activations(**more),
    "conditioning": lambda optimizer, bnp, **more: Conditioning(units=1, **more),
    "conditioning, bnp": lambda optimizer, bnp, **more: Conditioning(bnp=bnp, max_entries=100, **more),
    "hessian": lambda optimizer, bnp, **more: Spectrum(optimizer=optimizer, **SPECTRUM, **more),
    "ggn": lambda optimizer, bnp, **more: Spectrum(
        matrix="ggn", forward=forward, criterion=criterion, **SPECTRUM, **more
    ),
    "fisher": lambda optimizer, bnp, **more: Spectrum(matrix="fisher", forward=forward, **SPECTRUM, **more),
    "weights": lambda optimizer, bnp, **more: Weights(**more),
    "fisher of mean field": lambda optimizer, bnp, **more: Fisher(
        forward=forward, criterion=criterion, optimizer=optimizer, **more
    ),
    "gradients": lambda optimizer, bnp, **more: NormGradients(sizes=(2, 4, 8), **more),
    "robustness": lambda optimizer, bnp, **more: Robustness(pair=pair, eps=(0.1, 0.2), **more),
    "ablation": lambda optimizer, bnp, **more: Ablation(pair=pair, shares=(0.5, 1.0), orders=2, **more),
    "variance": lambda optimizer, bnp: VarianceShift(),
    "noise": lambda optimizer, bnp: BatchNoise(),
    "noise, drawn": lambda optimizer, bnp: BatchNoise(batch_size=4, parts=0),
}
every_probe = pytest.mark.parametrize("make", PROBES.values(), ids=PROBES)


def kinds(base: type[Any] = Probe) -> Iterator[type[Any]]:
    for kind in base.__subclasses__():
        yield from kinds(kind)
        if kind.__module__.startswith("trimtab.") and not inspect.isabstract(kind):
            yield kind


def test_no_probe_is_left_out() -> None:
    _, optimizer, bnp = made()
    assert {type(make(optimizer, bnp)) for make in PROBES.values()} == set(kinds())
    bnp.detach()


def words(result: Any) -> str:
    return json.dumps(result.to_dict())


@pytest.mark.parametrize("statistics", ["batch", "frozen", "running"])
@every_probe
def test_nothing_changes(make: Callable[..., Probe[Any]], statistics: str) -> None:
    """In training mode and in evaluation, with layers in modes and with hooks of their own."""
    model, optimizer, bnp = made()
    if make in (PROBES["noise"], PROBES["noise, drawn"], PROBES["variance"]):
        probe = make(optimizer, bnp)  # these are about certain statistics
    else:
        probe = make(optimizer, bnp, statistics=statistics)
    model[1].eval()
    model[0].register_forward_hook(lambda *_: None)
    for training in (True, False):
        model[6:].train(training)
        with untouched(model, optimizer, bnp):
            found = probe(model, loss_fn, images())
            assert found.problem is None
            assert words(probe(model, loss_fn, images())) == words(found)  # by the same random numbers
    bnp.detach()


@every_probe
def test_training_is_bit_identical(make: Callable[..., Probe[Any]]) -> None:
    """With measurements before the forward, before the backward and before the step."""

    def train(measured: bool) -> list[Any]:
        random.seed(0)
        model, optimizer, bnp = made()
        probe = make(optimizer, bnp)

        def measure() -> None:
            if measured:
                assert probe(model, loss_fn, images()).problem is None

        for _ in range(2):
            measure()
            loss = loss_fn(model, images())
            measure()
            optimizer.zero_grad()
            loss.backward()
            measure()
            optimizer.step()
        averages = [t for layer in bnp.state_dict()["layers"].values() for t in layer["running"].values()]
        state = [value for each in optimizer.state.values() for value in each.values()]
        bnp.detach()
        drawn = [torch.rand(3), torch.tensor(random.random())]
        return [*model.parameters(), *model.buffers(), *state, *averages, *drawn]

    assert all(torch.equal(a, b) for a, b in zip(train(False), train(True), strict=True))


@every_probe
def test_failures_are_in_the_result_and_mistakes_are_raised(make: Callable[..., Probe[Any]]) -> None:
    """What is not finite and a lack of memory, in the first forward or in the last; nothing changes then either."""
    model, optimizer, bnp = made()
    probe = make(optimizer, bnp)
    calls: list[int] = []

    def fails(at: int, trouble: Callable[[Tensor], Tensor]) -> Any:
        def look(y: Tensor) -> Tensor:
            calls.append(1)
            return trouble(y) if len(calls) == at else y

        calls.clear()
        model[8].show[:] = [look]
        with untouched(model, optimizer, bnp):
            return probe(model, loss_fn, images())

    def raising(error: Exception) -> Callable[[Tensor], Tensor]:
        def trouble(y: Tensor) -> Tensor:
            raise error

        return trouble

    assert fails(0, torch.clone).problem is None
    last = len(calls)
    for at in {1, last}:
        result = fails(at, raising(torch.OutOfMemoryError("CUDA out of memory.")))
        assert result.problem == "Out of memory." and len(calls) == at
        assert type(result) is probe.result and result.to_dict()["problem"] == "Out of memory."
    with pytest.raises(RuntimeError, match="a mistake"):
        fails(1, raising(RuntimeError("a mistake")))
    assert ("nan" in (problem := fails(1, lambda y: y * math.nan).problem)) or "not finite" in problem
    bnp.detach()


@every_probe
def test_memory_is_given_back(make: Callable[..., Probe[Any]]) -> None:
    """Without the garbage collector: no reference cycle holds a tensor of the probe's."""
    model, optimizer, bnp = made()
    probe = make(optimizer, bnp)
    seen: list[weakref.ref[Tensor]] = []

    def look(y: Tensor) -> Tensor:
        seen.extend(weakref.ref(tensor) for tensor in (y, *model.parameters()))
        return y

    model[8].show[:] = [look]
    own = set(map(id, model.parameters()))
    gc.collect()
    gc.disable()
    try:
        assert probe(model, loss_fn, images()).problem is None
        assert seen and all(ref() is None or id(ref()) in own for ref in seen)
    finally:
        gc.enable()
    bnp.detach()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("last", [-3.0, 2.0, math.inf, -math.inf, math.nan])
def test_whether_all_is_finite(last: float, dtype: torch.dtype) -> None:
    x = torch.tensor([[1.0, -2.5], [0.0, last]], dtype=dtype)
    all_finite = [bool(ends_of(several).isfinite().all()) for several in ([x, x[:1]], [torch.ones(2), x.T[1]])]
    assert all_finite == [math.isfinite(last)] * 2
    assert all(ends_of(several).isfinite().all() for several in ([x[:1], x[:, 0], x[:0]], [], [x[:0]]))
    assert not ends_of([torch.zeros(2, 2, dtype=dtype), x[1, :1]]).any() and ends_of([x[:1]]).any()
