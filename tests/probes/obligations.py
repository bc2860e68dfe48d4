"""What every probe owes to the training it looks into, checked on models with whatever models can have."""

import gc
import math
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import trimtab
from tests.probes.untouched import untouched
from trimtab.probes.result import Probe, Result

Loss = Callable[[nn.Module, Any], Tensor]


def small() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Dropout(0.3),
        nn.Flatten(),
        nn.Linear(4 * 16, 6),
        nn.BatchNorm1d(6),
        nn.Tanh(),
        nn.Linear(6, 3),
    )


def images(count: int = 8, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 2, 4, 4, generator=generator) + 0.5
    return {"x": x.to(dtype), "y": torch.arange(count) % 3}


def cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch["x"]).float(), batch["y"])


def check_nothing_changes(probe: Probe[Any]) -> None:
    """Neither in training mode, nor in evaluation, nor with BNP attached, nor if the loss fails."""
    torch.manual_seed(0)
    model = small()
    optimizer = torch.optim.Adam(model.parameters())
    bnp = trimtab.BNP(model).attach(optimizer)
    for _ in range(2):
        optimizer.zero_grad()
        cross_entropy(model, images()).backward()
        optimizer.step()
    for training in (True, False):
        model.train(training)
        model[1].eval()
        with untouched(model, optimizer, bnp):
            assert probe(model, cross_entropy, images()).problem is None
    with untouched(model, optimizer, bnp), pytest.raises(ZeroDivisionError):
        probe(model, lambda m, b: cross_entropy(m, b) * (1 // 0), images())
    bnp.detach()


def check_training_is_bit_identical(make: Callable[[trimtab.BNP], list[Probe[Any]]]) -> None:
    """With BatchNorm, dropout, Adam and BNP, probing before, within and after each step."""

    def train(probing: bool) -> list[Tensor]:
        torch.manual_seed(5)
        model = small()
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        bnp = trimtab.BNP(model).attach(optimizer)
        probes = make(bnp) if probing else []
        for _ in range(3):
            loss = cross_entropy(model, images())
            for probe in probes:
                assert probe(model, cross_entropy, images()).problem is None
            optimizer.zero_grad()
            loss.backward()
            for probe in probes:
                probe(model, cross_entropy, images())
            optimizer.step()
        bnp.detach()
        state = [value for each in optimizer.state.values() for value in each.values()]
        return [*model.parameters(), *model.buffers(), *state, torch.rand(3)]

    assert all(torch.equal(a, b) for a, b in zip(train(False), train(True), strict=True))


def check_problems_are_said(probe: Probe[Any]) -> None:
    """Nothing is raised for a loss that is not a number or for memory that runs out, early or late."""
    model = small()
    with untouched(model):
        said = probe(model, lambda m, b: cross_entropy(m, b) * math.nan, images())
        assert said.problem is not None and "nan" in said.problem
        calls = []

        def fails(at: int) -> Loss:
            calls.clear()

            def loss_fn(model: nn.Module, batch: Any) -> Tensor:
                calls.append(1)
                loss = cross_entropy(model, batch)
                if len(calls) == at:
                    raise torch.OutOfMemoryError("CUDA out of memory.")
                return loss

            return loss_fn

        for at in (1, 2):
            said = probe(model, fails(at), images())
            assert said.problem == "Out of memory." and len(calls) == at
    assert type(said) is probe.result
    assert isinstance(said, Result) and said.to_dict()["problem"] == "Out of memory."


def check_memory_is_given_back(probe: Probe[Any]) -> None:
    """Without the garbage collector: no cycle holds a tensor of the probe's runs."""
    seen: list[weakref.ref[Tensor]] = []

    def loss_fn(model: nn.Module, batch: Any) -> Tensor:
        outputs = model(batch["x"])
        seen.append(weakref.ref(outputs))
        return nn.functional.cross_entropy(outputs, batch["y"])

    model = small()
    gc.collect()
    gc.disable()
    try:
        probe(model, loss_fn, images())
        assert seen and all(ref() is None for ref in seen)
    finally:
        gc.enable()


class Tied(nn.Module):
    """Tied weights, a module called twice, one never called, a frozen one, one without bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 4, bias=False), nn.Linear(4, 5, bias=False)
        self.last.weight = nn.Parameter(self.first.weight.detach().T.clone())
        self.twice = nn.Linear(4, 4, bias=False)
        self.norm = nn.BatchNorm1d(4)
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)
        self.other.weight = self.one.weight
        self.unused, self.frozen = nn.Linear(3, 3), nn.Linear(4, 4)
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.twice(self.first(x).tanh()))
        h = self.norm(self.twice(h).tanh())
        return self.last(self.other(self.frozen(self.one(h).tanh())))


def vectors(count: int, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(2)
    return {"x": torch.randn(count, 5, generator=generator).to(dtype), "y": torch.arange(count) % 5}
