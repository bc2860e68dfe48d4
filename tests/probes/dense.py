"""Matrices over all parameters of small models, formed by torch.func, and what the tests with them share."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, hessian, jacrev

Batch = dict[str, Tensor]


def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"])


def forward(model: nn.Module, batch: Batch) -> Tensor:
    return model(batch["x"])


def criterion(outputs: Tensor, batch: Batch) -> Tensor:
    return nn.functional.cross_entropy(outputs, batch["y"])


def net(norm: nn.Module | None = None) -> nn.Sequential:
    """42 parameters with a norm, 32 without."""
    torch.manual_seed(1)
    layers = [nn.Linear(3, 5), *([norm] if norm else []), nn.Tanh(), nn.Linear(5, 2)]
    return nn.Sequential(*layers).double()


def flat(model: nn.Module, function: Callable[[nn.Module], Tensor]) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """A function of the model as one of all trained parameters in a row."""
    parameters = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    place = torch.cat([p.flatten() for p in parameters.values()])

    class Stage(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self) -> Tensor:
            return function(self.inner)

    def of(vector: Tensor) -> Tensor:
        parts = vector.split([p.numel() for p in parameters.values()])
        named = zip(parameters.items(), parts, strict=True)
        return functional_call(Stage(), {f"inner.{name}": part.view_as(p) for (name, p), part in named}, ())

    return of, place


def dense_hessian(model: nn.Module, batch: Batch, function=loss_fn) -> np.ndarray:
    of, place = flat(model, lambda m: function(m, batch))
    return hessian(of)(place).detach().numpy()


def dense_ggn(model: nn.Module, batch: Batch, inner=criterion) -> np.ndarray:
    of, place = flat(model, lambda m: forward(m, batch))
    jacobian = jacrev(of)(place).flatten(0, 1)
    outputs = of(place)
    outer = hessian(lambda o: inner(o.view_as(outputs), batch))(outputs.flatten())
    return (jacobian.T @ outer @ jacobian).detach().numpy()
