"""Small models and loops that many tests share."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

import trimtab
from trimtab.bnp import BNP


def small_model(seed: int = 0) -> nn.Sequential:
    """Convolution, strided convolution without bias, dense layers; float64."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 4, 2, stride=2, bias=False),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(16, 5),
        nn.Tanh(),
        nn.Linear(5, 3),
    ).double()


def batch(seed: int, size: int = 6) -> Tensor:
    return 0.5 + torch.randn(size, 2, 4, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    """A mean over samples, so that gradients of parts add up to the gradient of the whole."""
    out: Tensor = model(x)
    return out.square().sum() / 6


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def weights(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def statistics(bnp: trimtab.BNP) -> dict[str, Tensor]:
    """Everything in the running averages of layers that have had a step, by name."""
    return {
        f"{layer}.{name}": value
        for layer, entry in bnp.state_dict()["layers"].items()
        if entry["running"] is not None and (entry["running"]["steps"] or entry["running"]["skipped"])
        for name, value in entry["running"].items()
    }


def pending_rows(bnp: trimtab.BNP) -> dict[str, int]:
    """How many rows wait in each layer."""
    layers = bnp.state_dict()["layers"]
    return {name: 0 if entry["pending"] is None else entry["pending"]["count"] for name, entry in layers.items()}


def plain_step(model: nn.Module, x: Tensor, **options: object) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Gradients and statistics of one BNP step of a copy of the model, by the reference."""
    model = copy.deepcopy(model)
    model.zero_grad()
    with BNP(model, **{"fast": False, **options}) as bnp:
        loss_of(model, x).backward()
        bnp.step()
        return gradients(model), statistics(bnp)


def assert_same(ours: list[Tensor] | dict[str, Tensor], theirs: list[Tensor] | dict[str, Tensor]) -> None:
    """Equal up to rounding."""
    assert len(ours) == len(theirs)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def assert_identical(ours: list[Tensor], theirs: list[Tensor]) -> None:
    """Equal to the last bit."""
    assert len(ours) == len(theirs)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: range, between: Callable[[], None] | None = None
) -> None:
    """A user's loop."""
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, batch(step)).backward()
        if between is not None:
            between()
        optimizer.step()
