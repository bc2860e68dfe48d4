"""One training run: a network, a method, a batch size, a learning rate, a seed."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trimtab.bnp import BNP
from trimtab.data import Split
from trimtab.networks import Norm, build

Method = Literal["vanilla", "bn", "ln", "bnp", "bnp-debias"]
NORMS: dict[Method, Norm] = {"vanilla": "none", "bn": "bn", "ln": "ln", "bnp": "none", "bnp-debias": "none"}


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run is told."""

    network: str
    method: Method
    batch_size: int
    epochs: int
    lr: float
    seed: int

    def trainable(self) -> bool:
        """Whether the method can train at all: BatchNorm of one row has a variance of zero."""
        return not (self.method == "bn" and self.batch_size == 1 and self.network == "mlp")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended on the data it was asked about."""

    accuracy: float
    loss: float
    diverged: bool


def run(settings: Settings, train: Split, evaluate: Split) -> Outcome:
    """Train by plain SGD, then evaluate. The same settings give the same outcome."""
    torch.manual_seed(settings.seed)
    model = build(settings.network, NORMS[settings.method])
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.lr)
    if settings.method in ("bnp", "bnp-debias"):
        BNP(model, debias=settings.method == "bnp-debias").attach(optimizer)
    for images, labels in _batches(train, settings):
        loss = F.cross_entropy(model(images), labels)
        if not math.isfinite(loss.item()):
            return Outcome(accuracy=0.0, loss=math.inf, diverged=True)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return _evaluate(model, evaluate)


def _batches(split: Split, settings: Settings) -> Iterator[tuple[Tensor, Tensor]]:
    """Full batches in a new order each epoch, from a generator that nothing else draws from."""
    generator = torch.Generator().manual_seed(settings.seed)
    for _ in range(settings.epochs):
        for index in torch.randperm(len(split), generator=generator).split(settings.batch_size):
            if len(index) == settings.batch_size:
                yield split.images[index], split.labels[index]


@torch.no_grad()
def _evaluate(model: nn.Module, split: Split) -> Outcome:
    model.eval()
    output = model(split.images)
    loss = F.cross_entropy(output, split.labels).item()
    accuracy = (output.argmax(1) == split.labels).double().mean().item()
    return Outcome(accuracy=accuracy, loss=loss if math.isfinite(loss) else math.inf, diverged=not math.isfinite(loss))
