"""Trains for a few hundred steps with a doctor looking along; nothing is written anywhere."""

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trimtab.data import Dataset, batches, load
from trimtab.doctor import Doctor
from trimtab.doctor.schedule import Level
from trimtab.probes.batches import on_device
from trimtab.probes.result import LossFunction
from trimtab.training.building import attach_bnp, batch_size_of, split_data
from trimtab.training.objective import Objective
from trimtab.training.run import CHECKPOINT, Run
from trimtab.training.session import Session
from trimtab.training.settings import Settings, resolved
from trimtab.training.stepping.optimizers import build_optimizer

VALIDATION_SAMPLES = 256
VALIDATION_BATCHES = 4
_END = object()


@dataclass(frozen=True)
class Patient:
    """A training that can be looked at.

    Attributes:
        model: The network.
        optimizer: Its optimizer.
        loss_fn: Its loss.
        batches: Of training, as many as there are asked for; the learning rate is set for each.
        validation: Held-out batches.
    """

    model: nn.Module
    optimizer: Optimizer
    loss_fn: LossFunction
    batches: Iterator[Any]
    validation: list[Any]


def of_settings(settings: Settings, device: torch.device, data_root: Path | None) -> Patient:
    """A training of the lab at its beginning."""
    return _of_session(Session(settings, device, data_root))


def of_run(folder: Path, settings: Settings, device: torch.device, data_root: Path | None) -> tuple[Patient, int]:
    """A run of the lab where its last checkpoint is, and at which step that is; its folder is only read.

    A run that has no checkpoint, or is finished, is looked at from its beginning.
    """
    session = Session(settings, device, data_root)
    if (folder / CHECKPOINT).exists():
        Run(session, folder).restore()
        if session.step >= session.total:
            session = Session(settings, device, data_root)
    return _of_session(session), session.step


def _of_session(session: Session) -> Patient:
    def stream() -> Iterator[Any]:
        while True:
            yield session.next_batch()
            session.step += 1

    held_out = split_data(session.dataset, session.settings)[1]
    return Patient(
        model=session.model,
        optimizer=session.optimizer,
        loss_fn=session.loss_fn,
        batches=stream(),
        validation=_validation(held_out, session.dataset, session.settings, session.device),
    )


def of_model(model: nn.Module, settings: Settings, device: torch.device, data_root: Path | None) -> Patient:
    """A user's own model on a data set of the lab, with the settings' data and optimizer."""
    dataset = load(settings.data, data_root)
    train, held_out, _ = split_data(dataset, settings)
    model = model.to(device)
    optimizer = build_optimizer(settings, model)
    attach_bnp(settings, model, optimizer)
    epochs = batches(
        train,
        batch_size_of(settings, len(train)),
        dataset=dataset,
        generator=torch.Generator().manual_seed(settings.seed),
        augment=resolved(settings.augment),
        normalize=resolved(settings.normalize),
        drop_last=True,
        device=device,
    )
    return Patient(
        model=model,
        optimizer=optimizer,
        loss_fn=Objective(dataset.classes, 0.0, device, settings.precision == "bf16", settings.loss),
        batches=_again_and_again(epochs, "the data set"),
        validation=_validation(held_out, dataset, settings, device),
    )


def of_loader(
    model: nn.Module, loader: Iterable[Any], loss_fn: LossFunction, settings: Settings, device: torch.device
) -> Patient:
    """A user's own model, loader and loss, with the settings' optimizer."""
    model = model.to(device)
    optimizer = build_optimizer(settings, model)
    attach_bnp(settings, model, optimizer)
    return Patient(
        model, optimizer, loss_fn, (on_device(b, device) for b in _again_and_again(loader, "the loader")), []
    )


def examine(
    patient: Patient, level: Level, steps: int, show: Callable[[int, int, float, int], None] | None = None
) -> Doctor:
    """Train for some steps.

    Args:
        patient: What to train.
        level: How closely is looked.
        steps: How many; with one more batch than that a single step can be judged.
        show: Called with the steps taken, all, the last loss and the number of findings.
    """
    doctor = Doctor(
        patient.model,
        patient.optimizer,
        patient.loss_fn,
        level=level,
        validation=patient.validation or None,
        every=max(2, min(64, steps // 8)),
    )
    patient.model.train()
    findings = 0
    stream = islice(patient.batches, steps)
    for number in range(1, steps + 1):
        with _own_code(f"batch {number} cannot be read"):
            batch = next(stream, _END)
        if batch is _END:
            break
        patient.optimizer.zero_grad()
        with _own_code("the loss of the first batch cannot be computed" if number == 1 else f"step {number} failed"):
            loss = _checked(patient.loss_fn(patient.model, batch))
            loss.backward()
        doctor.step(batch, loss)
        patient.optimizer.step()
        if show is not None:
            if number % 50 == 0:
                findings = len(doctor.diagnosis().findings)
            show(number, steps, float(loss.detach()), findings)
        if not torch.isfinite(loss.detach()):
            break
    return doctor


@contextmanager
def _own_code(what: str) -> Iterator[None]:
    """Whatever the user's own code raises is one sentence.

    Raises:
        ValueError: If it raises something. Want of memory is told otherwise.
    """
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if "allocate memory" in str(error):
            raise
        why = str(error).partition("\n")[0]
        raise ValueError(f"{what} ({type(error).__name__}: {why})") from error


def _checked(loss: Any) -> Tensor:
    """A loss that can be trained with."""
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise TypeError("it is no tensor of one number")
    return loss


def named(reference: str) -> Callable[..., Any]:
    """The function of `package.module:function`, imported with the current folder in the path.

    Raises:
        ValueError: If there is none.
    """
    home, _, name = reference.partition(":")
    if not home or not name:
        raise ValueError(f"{reference!r} is no function; name one as in package.module:make_model")
    sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(home)
    except Exception as error:  # whatever the user's own code raises when it is imported
        raise ValueError(f"{reference}: {home} cannot be imported ({type(error).__name__}: {error})") from error
    finally:
        sys.path.remove(os.getcwd())
    found = getattr(module, name, None)
    if not callable(found):
        raise ValueError(f"{reference}: {home} has no function {name}")
    made: Callable[..., Any] = found
    return made


def own_model(reference: str) -> nn.Module:
    """The model that a user's function makes.

    Raises:
        ValueError: If it makes none.
    """
    model = _called(reference)
    if not isinstance(model, nn.Module):
        raise ValueError(f"{reference} returned {type(model).__name__}, not a torch.nn.Module")
    return model


def own_loader(reference: str) -> Iterable[Any]:
    """The loader that a user's function makes.

    Raises:
        ValueError: If it makes none.
    """
    loader = _called(reference)
    if not isinstance(loader, Iterable):
        raise ValueError(f"{reference} returned {type(loader).__name__}, not a loader of batches")
    return loader


def _called(reference: str) -> Any:
    make = named(reference)
    try:
        return make()
    except Exception as error:  # the user's own code
        raise ValueError(f"{reference}() failed ({type(error).__name__}: {error})") from error


def _again_and_again(loader: Iterable[Any], what: str) -> Iterator[Any]:
    """Epoch after epoch; what can be read only once ends there."""
    while True:
        read = 0
        for batch in loader:
            read += 1
            yield batch
        if not read:
            return


def _validation(held_out: Any, dataset: Dataset, settings: Settings, device: torch.device) -> list[Any]:
    few = batches(held_out, VALIDATION_SAMPLES, dataset=dataset, normalize=resolved(settings.normalize), device=device)
    return list(islice(few, VALIDATION_BATCHES))
