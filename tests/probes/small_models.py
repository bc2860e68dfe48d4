"""Small models with whatever models can have, and data for them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

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
