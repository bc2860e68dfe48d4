"""Builds the parts of a run from its settings."""

import torch
from torch import nn

from trimtab.bnp import BNP
from trimtab.data import Dataset, Split
from trimtab.training.schedule import Schedule
from trimtab.training.settings import Settings, resolved


def check_loss(dataset: Dataset, settings: Settings) -> None:
    """Refuse a loss that the data cannot have.

    Raises:
        ValueError: If it is one of a classification and the data have no classes.
    """
    if settings.loss == "squared" and not dataset.classes:
        raise ValueError(
            f"loss squared is for data with classes, and {dataset.name} has none: its loss is the squared error summed "
            "over samples anyway; leave loss out"
        )


def split_data(dataset: Dataset, settings: Settings) -> tuple[Split, Split, str]:
    """The samples to train on, those to evaluate on, and what the latter are: `validation` or `test`.

    Raises:
        ValueError: If validation data are asked for and none are set aside.
    """
    size = settings.validation
    train, validation = dataset.with_validation(size) if size else (dataset.train, None)
    part = settings.evaluate_on or ("test" if validation is None else "validation")
    if part == "test":
        return train, dataset.test, part
    if validation is None:
        raise ValueError("evaluate_on is validation, but no samples are set aside for it; set validation too")
    return train, validation, part


def training_subset(train: Split, size: int, seed: int) -> Split:
    """So many of the samples that are trained on, or all if there are fewer: the same ones for the same seed."""
    if size >= len(train):
        return train
    chosen = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))[:size]
    return train.take(chosen.sort().values)


def batch_size_of(settings: Settings, samples: int) -> int:
    """Samples per step; a setting of 0 means all.

    Raises:
        ValueError: If there are not so many.
    """
    batch_size = resolved(settings.batch_size) or samples
    if batch_size > samples:
        raise ValueError(
            f"batch_size is {batch_size}, but there are {samples} samples to train on; take so many or less, or 0 for "
            "all of them"
        )
    return batch_size


def attach_bnp(settings: Settings, model: nn.Module, optimizer: torch.optim.Optimizer) -> BNP | None:
    """BNP with the run's options, attached to the optimizer; None if the method is without."""
    method = settings.parsed_method
    if not method.bnp:
        return None
    bnp = BNP(
        model,
        rho=settings.rho,
        eps1=settings.eps1,
        eps2=settings.eps2,
        statistics=settings.statistics,
        debias=method.debias,
        spatial=settings.spatial,
        no_bias=settings.no_bias,
    )
    return bnp.attach(optimizer)


def build_schedule(settings: Settings, total_steps: int, steps_per_epoch: int) -> Schedule:
    """The learning rate of each step."""
    return Schedule(
        lr=resolved(settings.lr),
        kind=resolved(settings.schedule),
        total=total_steps,
        milestones=tuple(epoch * steps_per_epoch for epoch in resolved(settings.milestones)),
        factor=resolved(settings.factor),
        warmup=resolved(settings.warmup) + resolved(settings.warmup_epochs) * steps_per_epoch,
        warmup_from=resolved(settings.warmup_from),
        warmup_linear=resolved(settings.warmup_linear),
    )


def choose_memory_format(settings: Settings, device: torch.device, model: nn.Module) -> torch.memory_format:
    """Channels last where convolutions are faster so and no other layer is slower, else contiguous.

    That is in bfloat16 on a GPU, with the layers in between compiled: uncompiled, group normalization converts images
    back.
    """
    faster = device.type == "cuda" and settings.precision == "bf16" and settings.compile
    has_convolutions = any(isinstance(module, nn.Conv2d) for module in model.modules())
    return torch.channels_last if faster and has_convolutions else torch.contiguous_format


def use_channels_last(model: nn.Module) -> None:
    """Convert a model to channels last, and let cuDNN look for the fastest convolutions of that layout."""
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    torch.backends.cudnn.benchmark = True


def set_precision(settings: Settings, device: torch.device) -> None:
    """Allow or forbid TF32 on a GPU, for the whole process."""
    if device.type == "cuda":
        tf32 = settings.precision == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.backends.cudnn.allow_tf32 = tf32
