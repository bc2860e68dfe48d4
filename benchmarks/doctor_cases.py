"""The cases of benchmarks/doctor.py: trainings with something planted in them, their twins, and hard healthy ones.

A `Spec` says everything about a training but its rate and its seed. An illness changes one of its fields, in three
severities, and a cure changes it again. What a training is compared with is its twin: the same without what was
planted.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any

from doctor_networks import BASES, Base
from small_trainings import Normalize

FULL = 256
"""Samples of a training on all of them at once."""


@dataclass(frozen=True)
class Spec:
    """A training without its rate and its seed.

    Attributes:
        base: One of `BASES`.
        norm: Of the network; empty: the base's.
        batch_size: Of its batches; 0: the base's; -1: all samples, of which there are `FULL`.
        schedule: One of `small_trainings.SCHEDULES`.
        normalize: Of the images.
        offset: Added to all inputs.
        condition: The largest over the smallest factor of the inputs of the hidden layer, by which they are multiplied.
        rate_factor: Of the tuned rate.
        own_rate: Of the rate of the hidden layer.
        statistics: BatchNorm's momentum, for its running statistics; 0: torch's own.
        dead: The share of the hidden layer's units that are switched off.
        init: Of the weights that the hidden layer starts with.
        decay: What a step takes from each weight, as a share of it.
        loss_factor: Of the loss; the rate is divided by it.
        precision: Of the computation.
        random_labels: The share of samples with a random label.
        standardize: Whether the inputs are standardized in the end.
    """

    base: str
    norm: str = ""
    batch_size: int = 0
    schedule: str = "constant"
    normalize: Normalize = "standard"
    offset: float = 0.0
    condition: float = 1.0
    rate_factor: float = 1.0
    own_rate: float = 1.0
    statistics: float = 0.0
    dead: float = 0.0
    init: float = 1.0
    decay: float = 0.0
    loss_factor: float = 1.0
    precision: str = "float32"
    random_labels: float = 0.0
    standardize: bool = False

    @property
    def key(self) -> str:
        """What it is called in files: the base, and what is not usual."""
        unlike = [f"{f.name}={getattr(self, f.name)}" for f in fields(self)[1:] if getattr(self, f.name) != f.default]
        return "; ".join([self.base, *unlike])

    @property
    def made_of(self) -> Base:
        """The base."""
        return BASES[self.base]

    @property
    def norm_used(self) -> str:
        """Of the network."""
        return self.norm or self.made_of.norm

    @property
    def samples_a_batch(self) -> int:
        """Of its batches."""
        return FULL if self.batch_size < 0 else self.batch_size or self.made_of.batch_size

    def tuned_as(self) -> "Spec":
        """The training whose best rate it has: the rate is not to be the illness of a case with another one."""
        kept = {name: getattr(self, name) for name in TUNED}
        return Spec(self.base, **kept)


TUNED = ("norm", "batch_size", "schedule", "normalize", "offset", "condition", "standardize")
"""What the rate is tuned for; with anything else planted, a training keeps the rate of its twin."""


@dataclass(frozen=True)
class Illness:
    """Something that can be planted.

    Attributes:
        name: The doctor's, for it.
        field: Of the `Spec`, that is changed.
        values: By severity.
        fits: Whether it can be planted in trainings of a base.
        twin: What else the twin has, where it is not the base.
    """

    name: str
    field: str
    values: tuple[Any, ...]
    fits: Callable[[Base], bool] = lambda base: True
    twin: Callable[[Spec], Spec] = lambda spec: Spec(spec.base)


def _has_batchnorm(base: Base) -> bool:
    return base.norm == "bn"


ILLNESSES = (
    Illness("learning-rate-too-high", "rate_factor", (3.0, 10.0, 30.0)),
    Illness("learning-rate-too-low", "rate_factor", (1 / 3, 1 / 10, 1 / 30)),
    Illness(
        "batchnorm-batch-too-small",
        "batch_size",
        (8, 4, 2),
        fits=_has_batchnorm,
        twin=lambda spec: Spec(spec.base, norm="gn", batch_size=spec.batch_size),
    ),
    Illness("train-eval-gap", "statistics", (0.01, 0.003, 0.001), fits=_has_batchnorm),
    Illness("ill-conditioned-layer", "condition", (30.0, 300.0, 3000.0)),
    Illness("inputs-badly-scaled", "offset", (3.0, 10.0, 30.0)),
    Illness("dead-units", "dead", (0.5, 0.8, 0.95), fits=lambda base: base.rectified),
    Illness("exploding-layer", "init", (5.0, 20.0, 80.0)),
    Illness("vanishing-layer", "init", (1 / 10, 1 / 100, 1 / 1000)),
    Illness("step-out-of-proportion", "own_rate", (10.0, 30.0, 100.0)),
    Illness("decay-too-strong", "decay", (0.003, 0.01, 0.03)),
    Illness("precision-underflow", "loss_factor", (1e-3, 1e-4, 1e-5), fits=lambda base: base.dense),
    Illness("labels-not-learnable", "random_labels", (0.5, 0.8, 1.0)),
)
NAMED = {illness.name: illness for illness in ILLNESSES}
PAIRS = (
    ("learning-rate-too-low", "train-eval-gap"),
    ("learning-rate-too-low", "dead-units"),
    ("decay-too-strong", "train-eval-gap"),
    ("learning-rate-too-high", "labels-not-learnable"),
    ("inputs-badly-scaled", "dead-units"),
)


@dataclass(frozen=True)
class Case:
    """Trainings that are looked at.

    Attributes:
        spec: What they are.
        planted: The illnesses, none or two of them too.
        severity: From 1 to 3; 0 for what is healthy.
        variant: What is hard about a healthy one.
    """

    spec: Spec
    planted: tuple[str, ...] = ()
    severity: int = 0
    variant: str = ""

    def twin(self) -> Spec:
        """The same without what was planted."""
        if not self.planted:
            return self.spec
        twins = [NAMED[name].twin(self.spec) for name in self.planted]
        return next((twin for twin in twins if twin != Spec(self.spec.base)), twins[0])


def cases_of(base: str) -> Iterator[Case]:
    """All cases with a base: healthy ones first, since they are the twins of the others."""
    plain = Spec(base)
    yield Case(plain)
    yield Case(replace(plain, schedule="decay"), variant="the end of a decayed schedule")
    yield Case(replace(plain, normalize="unit"), variant="inputs in [0, 1]")
    yield Case(replace(plain, batch_size=-1), variant="all samples at once")
    twins = dict.fromkeys(Case(planted_in(plain, i, v), (i.name,)).twin() for i in _fitting(plain) for v in i.values)
    yield from (Case(twin, variant="GroupNorm for BatchNorm") for twin in twins if twin != plain)
    for illness in _fitting(plain):
        for severity, value in enumerate(illness.values, 1):
            yield Case(planted_in(plain, illness, value), (illness.name,), severity)
    for names, severity in product(PAIRS, (2, 3)):
        both = [NAMED[name] for name in names]
        if all(illness.fits(plain.made_of) for illness in both):
            spec = plain
            for illness in both:
                spec = planted_in(spec, illness, illness.values[severity - 1])
            yield Case(spec, names, severity)


def _fitting(spec: Spec) -> list[Illness]:
    return [illness for illness in ILLNESSES if illness.fits(spec.made_of)]


def planted_in(spec: Spec, illness: Illness, value: Any) -> Spec:
    """A training with an illness; small losses are a danger in half precision only."""
    more: dict[str, Any] = {"precision": "float16"} if illness.field == "loss_factor" else {}
    return replace(spec, **{illness.field: value}, **more)


def cured(spec: Spec, setting: str, factor: float | None, value: str | None) -> Spec | None:
    """A training with a cure that is one of how it is made, None if the cure is for model or optimizer, or for nobody.

    Args:
        spec: The training.
        setting: What the cure changes.
        factor: By how much.
        value: To what.
    """
    if setting == "batch_size" and factor:
        return replace(spec, batch_size=min(round(spec.samples_a_batch * factor), FULL))
    if setting == "norm" and value:
        return replace(spec, norm=value)
    if setting == "init" and value:
        return replace(spec, init=1.0, dead=0.0)
    if setting == "inputs":
        return replace(spec, standardize=True)
    if setting == "precision":
        return replace(spec, loss_factor=1.0) if value == "scaled" else replace(spec, precision=value or "float32")
    return None
