"""`suggest_lr`: a learning rate for a model, its optimizer and its data, from short trials that change nothing."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, Literal

from torch import nn
from torch.optim import Optimizer

from trimtab.bnp import BNP
from trimtab.bnp.attachment import innermost
from trimtab.doctor.learning_rate_search import best_of, between, climb, edge
from trimtab.doctor.learning_rate_trials import Drawn, Trials, check_optimizer, devices_of, draw
from trimtab.probes import options
from trimtab.probes.isolation import IsolatedModel
from trimtab.probes.isolation.random_state import RandomState
from trimtab.probes.result import LossFunction

Schedule = Literal["constant", "decay"]
STEPS = 200
"""Of a trial. From shorter ones, the rate of a whole training has to be extrapolated further."""
FEWEST_STEPS = 12
COARSE, FINE = 4.0, 2.0
"""Factors between the rates of short trials, and between those of whole ones."""
SHORT = 3
"""Trials for a first look are so many times shorter."""
MOST_LINE, MOST_COARSE, MOST_FINE = 24, 9, 7
"""How many lengths of the first step, and how many rates, are tried at most."""
SHARES = (0.6, 0.7, 0.8, 0.9, 1.0)
"""Where a trial at constant rates is looked at: noise moves the loss of a single step by much."""
TREND: dict[Schedule, float] = {"constant": -0.5, "decay": -0.25}
"""The power of a training's length with which its best rate goes. If it is constant, that of the bounds for convex
losses: what two lengths of a trial show is mostly chance, from −1 to 0. If it decays, one in the middle: for four small
networks, trained 5 times as long as trials, it was from −0.7 to 0.3."""
WORSE = 0.01
"""A trial that ends by more than this share above the first loss did not work: a smaller rate is looked for."""
TELLING = 1e-3
"""A first step that lowers the loss by less than this share does not tell where to begin."""


@dataclass(frozen=True)
class TriedRate:
    """A rate that was tried.

    Attributes:
        rate: Of the optimizer's first group that has one above 0.
        steps: How many it was tried for.
        loss: On held-out batches, the mean over some steps at the end if the rate is constant; infinite if the training
            diverged.
    """

    rate: float
    steps: int
    loss: float


@dataclass(frozen=True, kw_only=True)
class SuggestedRate:
    """A learning rate, and how it was found; print it.

    Attributes:
        rate: For the optimizer's first group that has one above 0.
        rates: For each of its groups.
        factor: The same as a multiple of what the optimizer has now.
        start: Where the trials began: the rate that makes the first step lower the held-out loss the most, or that of
            the optimizer if no first step lowers it by a thousandth.
        tried: All rates that were tried, in the order of steps and rates.
        loss: On the held-out batches, before any step.
        cost: Of everything, in forwards with their backward.
        steps: Of a whole trial.
        schedule: `constant` or `decay`.
        training_steps: Of the training that the rate is for; None: unknown.
        trend: The power of a training's length with which its best rate was taken to fall; None where the length was
            not given, or not longer than the trials.
        edge: Whether the best rate was the `smallest` or the `largest` of those tried; None: it has a worse one on each
            side.
        notes: What else is to be known.
    """

    rate: float
    rates: tuple[float, ...]
    factor: float
    start: float
    tried: tuple[TriedRate, ...]
    loss: float
    cost: float
    steps: int
    schedule: Schedule
    training_steps: int | None
    trend: float | None
    edge: str | None
    notes: tuple[str, ...]

    def apply(self, optimizer: Optimizer) -> None:
        """Give an optimizer with the same groups these rates."""
        for group, rate in zip(innermost(optimizer).param_groups, self.rates, strict=True):
            group["lr"] = rate

    def to_dict(self) -> dict[str, Any]:
        """All of it, for JSON; the loss of a rate that diverged is None."""
        tried = [{**asdict(one), "loss": one.loss if math.isfinite(one.loss) else None} for one in self.tried]
        return {**asdict(self), "tried": tried}

    def __str__(self) -> str:
        """The rate, the rates that were tried, and the notes."""
        kept = "constant" if self.schedule == "constant" else "that decays"
        lines = [
            f"Suggested learning rate, {kept}: {self.rate:.3g}, {self.factor:.3g} times what the optimizer has "
            f"(found by {self.cost:.0f} forward-backwards, which changed nothing).",
            f"  held-out loss before: {self.loss:.4g}; trials began at the rate {self.start:.3g}",
        ]
        if self.trend is not None:
            lines.append(
                f"  for {self.training_steps:,} steps: the best rate is taken to go with their number to the power "
                f"{self.trend:.2f}"
            )
        for one in self.tried:
            found = f"held-out loss {one.loss:.4g}" if math.isfinite(one.loss) else "diverged"
            lines.append(f"  {one.rate:<8.3g} {one.steps:>5} steps  {found}")
        return "\n".join([*lines, *self.notes])


def suggest_lr(
    model: nn.Module,
    optimizer: Optimizer,
    loss_fn: LossFunction,
    batches: Iterable[Any],
    *,
    schedule: Schedule = "constant",
    training_steps: int | None = None,
    steps: int | None = None,
    validation: Iterable[Any] | None = None,
    bnp: BNP | None = None,
) -> SuggestedRate:
    """A learning rate for a training, from short trials of it.

    Trials are trainings of some steps with the optimizer's own code, all from where the model is now, on the same
    batches, compared on batches that no step is taken with. They begin at the rate that makes the optimizer's first
    step lower that loss the most; rates a factor of 4 apart are tried for a third of the steps, until the best of them
    has a worse one on each side, then rates a factor of 2 apart for all of the steps, likewise; then comes the bottom
    of the parabola through the last three, which falls with a power of the training's length. Model, optimizer,
    attached BNP and random generators stay as they are, to the last bit.

    Args:
        model: Any module.
        optimizer: Any of torch.optim that takes steps without a closure. If its groups have different rates, all are
            scaled by one factor. A BNP that is attached to it takes part; hooks on its steps, and schedulers, do not.
        loss_fn: Takes the model and a batch and returns a tensor of one number.
        batches: A loader, or whatever gives batches as the training will have them. If there are less than a trial has
            steps, they are used again.
        schedule: `constant` if the training's rate will stay as it is, `decay` if it will be lowered towards 0 in the
            end, in which case a larger one is best at first, and trials decay too.
        training_steps: How many steps the training will have. The longer it is, the smaller is the best rate, the more
            so without decay, where noise keeps the loss up: it is taken to go with the power −1/2 of the length if the
            rate is constant, and −1/4 if it decays.
        steps: Of a trial; None: 200.
        validation: Batches to compare on; None: some of `batches`.
        bnp: A BNP whose step() the training calls by hand, before the optimizer's.

    Raises:
        TypeError: If one of these is not what it is called.
        ValueError: If an argument makes no sense, there are too few batches, or the optimizer has no rate.
        CannotMeasure: If the loss is not finite at the start, the optimizer holds nothing of the model, or its steps
            cannot be tried out.

    Example:
        >>> import torch, trimtab
        >>> _ = torch.manual_seed(0)
        >>> x = torch.randn(64, 20, 3)
        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        >>> loss_fn = lambda model, batch: (model(batch) - batch.sum(1, keepdim=True)).square().mean()
        >>> suggested = trimtab.suggest_lr(model, optimizer, loss_fn, x)
        >>> 0.1 < suggested.rate < 1
        True
        >>> suggested.apply(optimizer)
    """
    options.check_call(model, loss_fn)
    optimizer = innermost(optimizer)
    rates = check_optimizer(optimizer)
    _check(schedule, steps, training_steps, batches, validation, bnp)
    wanted = STEPS if steps is None else steps
    length = wanted if training_steps is None else min(wanted, training_steps)
    inner = IsolatedModel(model).model  # which says what is wrong with a model
    kept = RandomState(inner.modules(), devices_of(inner), sources=[batches, validation])
    try:
        drawn = draw(batches, length, validation)
    finally:
        kept.restore()
    trials = Trials(model, optimizer, loss_fn, drawn, bnp)
    return _suggested(trials, drawn, rates, schedule, training_steps, length)


def _suggested(
    trials: Trials, drawn: Drawn, rates: list[float], schedule: Schedule, training_steps: int | None, steps: int
) -> SuggestedRate:
    """Search with these trials."""
    tried: list[TriedRate] = []
    unit = next(rate for rate in rates if rate > 0)
    shares, rate_at = (SHARES, _constant) if schedule == "constant" else ((1.0,), _decay)
    along = trials.along_first_step()
    before = along(0.0)

    def trial(factor: float, length: int) -> float:
        losses = trials.train(factor, length, [round(share * length) for share in shares], rate_at)
        tried.append(TriedRate(factor * unit, length, fmean(losses)))
        return tried[-1].loss

    lengths = climb(along, 1.0, COARSE, MOST_LINE)
    start = best_of(lengths) if min(lengths.values()) < before - TELLING * abs(before) else 1.0
    short = max(steps // SHORT, FEWEST_STEPS // 2)
    ceiling = before + WORSE * abs(before)
    coarse = climb(lambda factor: trial(factor, short), start, COARSE, MOST_COARSE, ceiling)
    fine = climb(lambda factor: trial(factor, steps), best_of(coarse), FINE, MOST_FINE, ceiling)
    factor = between(fine)
    trend = None
    if training_steps is not None and training_steps > steps:
        trend = TREND[schedule]
        factor *= (training_steps / (fmean(shares) * steps)) ** trend
    return SuggestedRate(
        rate=factor * unit,
        rates=tuple(factor * rate for rate in rates),
        factor=factor,
        start=start * unit,
        tried=tuple(sorted(tried, key=lambda one: (one.steps, one.rate))),
        loss=before,
        cost=trials.cost,
        steps=steps,
        schedule=schedule,
        training_steps=training_steps,
        trend=trend,
        edge=edge(fine),
        notes=(
            *_notes(drawn, fine, before, schedule, training_steps, steps),
            *_note_on_groups(rates, factor),
        ),
    )


def _notes(
    drawn: Drawn, fine: Mapping[float, float], before: float, schedule: Schedule, training_steps: int | None, steps: int
) -> Iterator[str]:
    """What is to be known of whole trials, whose losses by factor are given."""
    end = edge(fine)
    if end is not None:
        beyond = "larger" if end == "largest" else "smaller"
        yield (
            f"The {end} rate that was tried for {steps} steps was the best one, so that a {beyond} one may be better: "
            "start from this rate and call it again."
        )
    if not min(fine.values()) < before:
        yield "No rate lowered the held-out loss: something other than the rate holds the training back."
    if training_steps is None:
        yield (
            f"It is for a training of some {steps} steps; one that is much longer wants a smaller rate, by much if it "
            "stays constant: give training_steps."
        )
    if len(drawn.training) < steps:
        yield (
            f"There were {len(drawn.training)} batches to train on for trials of {steps} steps, so that they were used "
            "again and again."
        )


def _note_on_groups(rates: list[float], factor: float) -> Iterator[str]:
    if len({*rates}) > 1:
        scaled = ", ".join(f"{rate:.3g} → {factor * rate:.3g}" for rate in rates)
        yield f"The optimizer's {len(rates)} groups have different rates, which were scaled alike: {scaled}."


def _constant(_: float) -> float:
    return 1.0


def _decay(share: float) -> float:
    """Constant for the first half, then linearly to 0."""
    return min(1.0, 2 * (1 - share))


def _check(
    schedule: object, steps: object, training_steps: object, batches: object, validation: object, bnp: object
) -> None:
    if schedule not in ("constant", "decay"):
        raise ValueError(f"schedule must be 'constant' or 'decay', not {schedule!r}.")
    for name, value in (("steps", steps), ("training_steps", training_steps)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < FEWEST_STEPS):
            raise ValueError(f"{name} must be a whole number, {FEWEST_STEPS} or larger, or None, not {value!r}.")
    for name, value in (("batches", batches), ("validation", validation)):
        if not isinstance(value, Iterable) and not (name == "validation" and value is None):
            raise TypeError(f"{name} must be a loader or a list of batches, not {options.described(value)}.")
    if bnp is not None and not isinstance(bnp, BNP):
        raise TypeError(f"bnp must be a trimtab.BNP or None, not {options.described(bnp)}.")
