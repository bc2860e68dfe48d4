"""Small trainings that benchmarks/suggest_lr.py and benchmarks/doctor.py are made of: data, batches, a loop, files."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean
from typing import Literal

import torch
from torch import Tensor, nn

from trimtab import BNP
from trimtab.prediction.divergence import OPTIMIZERS as PLAIN

LARGEST = 16
"""Pixels of a side: larger images are averaged over windows of 2×2 pixels until they are not larger."""
SHARES = (0.925, 0.95, 0.975, 1.0)
"""Of the steps, after which the validation loss is looked at: one step alone has much chance in it."""
Normalize = Literal["standard", "unit"]
Batch = tuple[Tensor, Tensor]
Make = Callable[[nn.Module, float], torch.optim.Optimizer]

OPTIMIZERS: dict[str, Make] = {
    **PLAIN,
    "adamw": lambda model, rate: torch.optim.AdamW(model.parameters(), rate),
    "bnp momentum": lambda model, rate: _attached(model, torch.optim.SGD(model.parameters(), rate, momentum=0.9)),
}


def _attached(model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    BNP(model).attach(optimizer)
    return optimizer


@dataclass(frozen=True)
class Samples:
    """What is trained on, and what the loss is judged on."""

    train: Batch
    validation: Batch

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one input."""
        return tuple(self.train[0].shape[1:])


@lru_cache(maxsize=8)
def draw_samples(name: str, train: int, validation: int, normalize: Normalize = "standard") -> Samples:
    """Samples of a data set, always the same ones, of images that were made smaller."""
    from trimtab.data import batches, load

    dataset = load(name)
    order = torch.randperm(len(dataset.train), generator=torch.Generator().manual_seed(0))[: train + validation]
    count = len(order)
    ((x, classes),) = batches(dataset.train.take(order), count, dataset=dataset, normalize=normalize)
    while x.shape[-1] > LARGEST:
        x = nn.functional.avg_pool2d(x, 2)
    mixed = torch.randperm(count, generator=torch.Generator().manual_seed(1))
    x, classes = x[mixed].contiguous(), classes[mixed]
    return Samples((x[validation:], classes[validation:]), (x[:validation], classes[:validation]))


def batches_of(samples: Batch, size: int, seed: int) -> Iterator[Batch]:
    """Batches without an end, in a new order in each epoch; what is left over of one is left out."""
    x, classes = samples
    noise = torch.Generator().manual_seed(1000 + seed)
    while True:
        for part in torch.randperm(len(x), generator=noise).split(size):
            if len(part) == min(size, len(x)):
                yield x[part], classes[part]


def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy."""
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def constant(_: float) -> float:
    """A rate that stays."""
    return 1.0


def linear(share: float) -> float:
    """A rate that falls to 0 from the beginning."""
    return 1 - share


SCHEDULES: dict[str, Callable[[float], float]] = {"constant": constant, "decay": linear}


@dataclass(frozen=True)
class Outcome:
    """What became of a training.

    Attributes:
        loss: On the validation samples, in evaluation mode, near the end; infinite if it was not finite on the way.
        losses: Those of its batches.
    """

    loss: float
    losses: tuple[float, ...]


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[Batch],
    validation: Batch,
    steps: int,
    *,
    schedule: Callable[[float], float] = constant,
    loss_fn: Callable[[nn.Module, Batch], Tensor] = loss_fn,
    watch: Callable[[Batch, Tensor], None] = lambda batch, loss: None,
) -> Outcome:
    """Train.

    Args:
        model: In training mode.
        optimizer: With the largest rates.
        batches: As many as there are steps, or more.
        validation: Samples to judge on.
        steps: How many.
        schedule: The rate at each share of the training, as a multiple of the largest.
        loss_fn: Of the training; it is judged by cross-entropy.
        watch: Called between backward and step.
    """
    largest = [group["lr"] for group in optimizer.param_groups]
    due = {round(share * steps) for share in SHARES}
    losses: list[float] = []
    judged: list[float] = []
    for step, batch in zip(range(steps), batches, strict=False):
        for group, rate in zip(optimizer.param_groups, largest, strict=True):
            group["lr"] = rate * schedule(step / steps)
        optimizer.zero_grad()
        loss = loss_fn(model, batch)
        losses.append(float(loss.detach()))
        loss.backward()
        watch(batch, loss)
        if not math.isfinite(losses[-1]):
            return Outcome(math.inf, tuple(losses))
        optimizer.step()
        if step + 1 in due:
            judged.append(judge(model, validation))
    mean = fmean(judged)
    return Outcome(mean if math.isfinite(mean) else math.inf, tuple(losses))


def judge(model: nn.Module, validation: Batch) -> float:
    """The loss in evaluation mode."""
    model.eval()
    with torch.no_grad():
        parts = [float(loss_fn(model, part)) * len(part[1]) for part in _split(validation, 500)]
    model.train()
    return sum(parts) / len(validation[1])


def _split(samples: Batch, size: int) -> Iterator[Batch]:
    return zip(samples[0].split(size), samples[1].split(size), strict=True)
