"""Small trainings on handwritten digits, with a doctor looking along."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trimtab import Doctor
from trimtab.doctor import Diagnosis, Record

TRAINED = 1300
"""Of the 1797 images; the rest is validation data."""


@cache
def digits() -> tuple[Tensor, Tensor]:
    """Images with mean 0 and variance 1 over all pixels, and their classes, shuffled."""
    from sklearn.datasets import load_digits

    found = load_digits()
    images, labels = torch.tensor(found.images, dtype=torch.float32)[:, None], torch.tensor(found.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1))
    images = images[order]
    return (images - images.mean()) / images.std(), labels[order]


def mlp(norm: type[nn.Module] | None = None, *, depth: int = 2, width: int = 100) -> nn.Sequential:
    sizes = [64, *[width] * depth]
    hidden = [
        layer
        for a, b in pairwise(sizes)
        for layer in (nn.Linear(a, b), *([norm(b)] if norm is not None else []), nn.ReLU())
    ]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(width, 10))


def cnn(norm: Callable[[int], nn.Module] | None = None, *, width: int = 16) -> nn.Sequential:
    def block(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
        normed = [norm(outputs)] if norm is not None else []
        return [nn.Conv2d(inputs, outputs, 3, padding=1, stride=stride), *normed, nn.ReLU()]

    blocks = [*block(1, width, 1), *block(width, 2 * width, 2), *block(2 * width, 2 * width, 2)]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, 10))


def cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


@dataclass(frozen=True)
class Trained:
    """How a training ended.

    Attributes:
        loss: On the training data, in evaluation mode.
        validation: On the rest.
        accuracy: On the rest.
        diagnosis: What the doctor has said.
        record: What it has measured.
    """

    loss: float
    validation: float
    accuracy: float
    diagnosis: Diagnosis
    record: Record

    @property
    def names(self) -> list[str]:
        """Of the findings."""
        return [finding.name for finding in self.diagnosis.findings]


def some_steps(
    doctor: Doctor, model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable[Any], *, loss: Any = None
) -> None:
    """A step with each batch; the doctor is given this loss, or that of the batch."""
    for batch in batches:
        own = cross_entropy(model, batch)
        optimizer.zero_grad()
        own.backward()
        doctor.step(batch, own if loss is None else loss)
        optimizer.step()


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    steps: int = 300,
    batch_size: int = 32,
    level: Any = "standard",
    inputs: Callable[[Tensor], Tensor] = lambda x: x,
    labels: Callable[[Tensor], Tensor] = lambda y: y,
    loss_fn: Callable[[nn.Module, Any], Tensor] = cross_entropy,
    schedule: Any = None,
    validate: bool = False,
    seed: int = 0,
) -> Trained:
    """Train; the batches depend on the seed, the weights are as they are."""
    images, classes = digits()
    x, y = inputs(images), labels(classes)
    held_out = [(x[TRAINED:], classes[TRAINED:])]
    doctor = Doctor(model, optimizer, loss_fn, level=level, validation=held_out if validate else None)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        rows = torch.randperm(TRAINED, generator=generator)[:batch_size]
        batch = x[rows], y[rows]
        loss = loss_fn(model, batch)
        optimizer.zero_grad()
        loss.backward()
        doctor.step(batch, loss)
        optimizer.step()
        if schedule is not None:
            schedule.step()
    model.eval()
    with torch.no_grad():
        fitted = cross_entropy(model, (x[:TRAINED], y[:TRAINED]))
        held = cross_entropy(model, held_out[0])
        right = (model(x[TRAINED:]).argmax(1) == classes[TRAINED:]).float().mean()
    return Trained(float(fitted), float(held), float(right), doctor.diagnosis(), doctor.record)
