"""One training of benchmarks/doctor.py, with a doctor beside it, and the cure that it prescribes."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from statistics import fmean
from typing import Any, Protocol

import torch
from doctor_cases import FULL, Spec, cured
from small_trainings import (
    OPTIMIZERS,
    SCHEDULES,
    Batch,
    Samples,
    batches_of,
    draw_samples,
    loss_fn,
    train,
)
from torch import Tensor, nn

SWITCHED_OFF = -20.0
"""The bias of a unit that ReLU never lets through."""
SIZES = {"digits": (1200, 400), "mnist": (4000, 1000), "cifar10": (4000, 1000)}
SEGMENTS = 16
"""Of a training, whose mean losses are kept."""
EARLY = 0.34
"""The share of a training after which the doctor is asked for the first time."""
PRECISIONS = {"float16": torch.float16, "bfloat16": torch.bfloat16}
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm, nn.GroupNorm)


class Finding(Protocol):
    """What a doctor finds."""

    name: str
    layer: str | None
    cure: Any


class Doctor(Protocol):
    """What a doctor does."""

    def step(self, batch: Any, loss: Tensor) -> None:
        """Look at a step."""

    def diagnosis(self) -> Any:
        """Say what was found."""


MakeDoctor = Callable[..., Doctor]


def run(
    spec: Spec,
    rate: float,
    seed: int,
    *,
    doctor: MakeDoctor | None = None,
    level: str = "standard",
    cure: Any = None,
    steps: int | None = None,
) -> dict[str, Any]:
    """Train, and tell how it went.

    Args:
        spec: The training.
        rate: The tuned one, which the spec may change.
        seed: Of weights and batches.
        doctor: Made for the training, if there is one.
        level: Its level.
        cure: Applied to model and optimizer before the first step, or a change of the training.
        steps: Instead of the base's.

    Returns:
        The validation loss, means of the losses on the way, and what the doctor found: early and in the end.
    """
    changed = None if cure is None else cured(spec, cure.setting, cure.factor, cure.value)
    samples = data_of(changed or spec, seed)
    model = model_of(changed or spec, samples, seed)
    optimizer = optimizer_of(changed or spec, model, rate)
    if cure is not None and changed is None:
        cure.apply(model, optimizer)
    spec = changed or spec
    look = loss_of(spec)
    count = spec.made_of.steps if steps is None else steps
    beside: dict[str, Any] = {}
    watch: Callable[[Batch, Tensor], None] = lambda batch, loss: None  # noqa: E731
    if doctor is not None:
        held_out = list(islice(batches_of(samples.validation, spec.samples_a_batch, seed), 4))
        sees = doctor(model, optimizer, look, level=level, validation=held_out)
        asked = 0

        def watch(batch: Batch, loss: Tensor) -> None:
            nonlocal asked
            sees.step(batch, loss)
            asked += 1
            if asked == round(EARLY * count):
                beside["early"] = [finding.name for finding in sees.diagnosis().findings]
                beside["early_at"] = asked

    # The doctor gets the validation samples as the training has them; what is judged is what is true.
    truth = data_of(replace(spec, random_labels=0.0), seed).validation
    batches: Iterator[Batch] = batches_of(samples.train, spec.samples_a_batch, seed)
    outcome = train(
        model, optimizer, batches, truth, count, schedule=SCHEDULES[spec.schedule], loss_fn=look, watch=watch
    )
    beside["loss"] = outcome.loss if math.isfinite(outcome.loss) else None
    beside["curve"] = curve([loss / spec.loss_factor for loss in outcome.losses], count)
    if doctor is not None:
        diagnosis = sees.diagnosis()
        beside["found"] = [finding.name for finding in diagnosis.findings]
        beside["layers"] = [finding.layer for finding in diagnosis.findings]
        beside["top"] = diagnosis.findings[0] if diagnosis.findings else None
        beside["record"] = getattr(sees, "record", None)
    return beside


def curve(losses: list[float], steps: int) -> list[float | None]:
    """Means of the losses of equal parts of a training; None from where they are not finite or not there."""
    size = max(steps // SEGMENTS, 1)
    parts = [losses[start : start + size] for start in range(0, steps, size)][:SEGMENTS]
    means = [fmean(part) if part else math.inf for part in parts]
    return [float(f"{mean:.5g}") if math.isfinite(mean) else None for mean in means]


def data_of(spec: Spec, seed: int) -> Samples:
    """The samples, with what is planted in them."""
    plain = draw_samples(spec.made_of.data, *SIZES[spec.made_of.data], normalize=spec.normalize)
    (x, classes), (held_x, held_classes) = plain.train, plain.validation
    if spec.batch_size < 0:
        x, classes = x[:FULL], classes[:FULL]
    x, held_x = x + spec.offset, held_x + spec.offset
    if spec.standardize:
        dims = (0, *range(2, x.ndim))
        mean, deviation = x.mean(dims, keepdim=True), x.std(dims, keepdim=True)
        x, held_x = (x - mean) / deviation, (held_x - mean) / deviation
    if spec.random_labels:
        noise = torch.Generator().manual_seed(7)
        classes, held_classes = (_mislabelled(c, spec.random_labels, noise) for c in (classes, held_classes))
    return Samples((x, classes), (held_x, held_classes))


def _mislabelled(classes: Tensor, share: float, noise: torch.Generator) -> Tensor:
    drawn = torch.randint(10, classes.shape, generator=noise)
    return torch.where(torch.rand(classes.shape, generator=noise) < share, drawn, classes)


def model_of(spec: Spec, samples: Samples, seed: int) -> nn.Module:
    """The network at its start, with what is planted in it."""
    base = spec.made_of
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = base.network(samples.shape, spec.norm_used)
    layer: Any = model.get_submodule(base.hidden)
    with torch.no_grad():
        layer.weight.mul_(spec.init)
        if spec.dead:
            bias = _bias_before_activation(model, base.hidden)
            bias[: round(spec.dead * len(bias))] = SWITCHED_OFF
    if spec.statistics:
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                module.momentum = spec.statistics
    if spec.condition != 1.0:
        _condition(layer, spec.condition)
    return model


def _bias_before_activation(model: nn.Module, name: str) -> Tensor:
    """The bias of a layer, or of the norm that follows it."""
    modules = dict(model.named_modules())
    names = list(modules)
    after = modules[names[names.index(name) + 1]]
    found = after if isinstance(after, NORMS) else modules[name]
    assert isinstance(found.bias, Tensor)
    return found.bias.data


def _condition(layer: nn.Module, condition: float) -> None:
    """Multiply the inputs of a layer by factors that differ."""
    weight = layer.weight
    assert isinstance(weight, Tensor)
    count = weight.shape[1]
    spread = torch.linspace(-0.5, 0.5, count)[torch.randperm(count, generator=torch.Generator().manual_seed(0))]
    factors = condition ** spread.view(-1, *[1] * (weight.ndim - 2))
    layer.register_forward_pre_hook(lambda module, inputs: (inputs[0] * factors,))


def optimizer_of(spec: Spec, model: nn.Module, rate: float) -> torch.optim.Optimizer:
    """The optimizer, with what is planted in it."""
    used = rate * spec.rate_factor / (1.0 if "adam" in spec.made_of.optimizer else spec.loss_factor)
    optimizer = OPTIMIZERS[spec.made_of.optimizer](model, used)
    if spec.decay:
        optimizer.param_groups[0]["weight_decay"] = spec.decay / rate
    if spec.own_rate != 1.0:
        own = list(model.get_submodule(spec.made_of.hidden).parameters())
        first = optimizer.param_groups[0]
        first["params"] = [p for p in first["params"] if all(p is not mine for mine in own)]
        optimizer.add_param_group({**first, "params": own, "lr": used * spec.own_rate})
    return optimizer


def loss_of(spec: Spec) -> Callable[[nn.Module, Batch], Tensor]:
    """The loss of a training."""
    if spec.precision == "float32":
        return loss_fn if spec.loss_factor == 1.0 else lambda model, batch: spec.loss_factor * loss_fn(model, batch)

    def in_half(model: nn.Module, batch: Batch) -> Tensor:
        with torch.autocast("cpu", dtype=PRECISIONS[spec.precision]):
            return spec.loss_factor * loss_fn(model, batch)

    return in_half
