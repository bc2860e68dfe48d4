"""Where training begins to rise and to fail: gradient descent from one start at many rates, and bisection in the rate.

benchmarks/divergence.py and a claim look there. A rate is a multiple of η*, the largest stable one. Training is on all
samples at once, in train mode.

- It *rises* if the loss before one of the next `EARLY` steps is above the first one. On a quadratic SGD does so above
  η* = 2/λ. With momentum μ the first step is SGD's, so that it does so above 2/λ, which is η*/(1 + μ): it overshoots,
  and comes back below η* = 2(1 + μ)/λ.
- It *fails* if the loss is not finite or `BOUND` times the first one at any of `STEPS` steps, or if the mean of the
  last `LAST` losses is not below the first one. It is *idle* if that is below the first, but not by 1 % below what the
  best constant output has: the network is dead, or the rate is too small for so few steps. Idle counts as failed where
  some smaller rate learned. Rising in between is allowed: many trainings recover.

Neither has to be monotone in the rate. Rates are doubled upwards, so that what is found is the first one to that grain.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

import torch
from torch import Tensor, nn

from trimtab.bnp import BNP

STEPS, EARLY, LAST = 200, 10, 10
BOUND = 1e6
LOWEST, START, HIGHEST = 2.0**-12, 2.0**-4, 2.0**10
"""Multiples of η*: looked at upwards from START, downwards only if it is bad there already."""
BISECTIONS = 3
"""Of a factor of 2: what is found is between two rates that differ by 9 %."""
PATIENCE = 4
"""If training is idle below where it rises, so many halves of the rate are tried for one that learns."""
MOMENTUM = 0.9
ROUNDING = 1e-4
"""A loss is above another one if it is so by this share."""

Outcome = Literal["learns", "idle", "fails"]
Between = tuple[float | None, float | None]
"""A multiple at which it is well, and one, larger by 9 %, at which it is not. None: well at none, or at each."""


@dataclass(frozen=True)
class Problem:
    """What is trained.

    Attributes:
        model: At the start; it is copied.
        loss: Of a model, on all samples.
        constant: The loss of the best constant output.
    """

    model: nn.Module
    loss: Callable[[nn.Module], Tensor]
    constant: float


def classification(model: nn.Module, x: Tensor, classes: Tensor, number: int, loss: str) -> Problem:
    """A model to be trained on all samples; the best constant output is the frequencies of the classes.

    Args:
        model: At the start.
        x: The samples.
        classes: Their classes.
        number: How many classes there are.
        loss: `squared` or `cross_entropy`.
    """
    wanted = nn.functional.one_hot(classes, number).to(x)
    shares = wanted.mean(0)
    if loss == "cross_entropy":
        constant = -float(torch.special.xlogy(shares, shares).sum())
        return Problem(model, lambda model: nn.functional.cross_entropy(model(x), classes), constant)
    constant = float((wanted - shares).square().sum(1).mean()) / 2
    return Problem(model, lambda model: (model(x) - wanted).square().sum(1).mean() / 2, constant)


def _bnp(model: nn.Module, rate: float) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(model.parameters(), rate)
    BNP(model).attach(optimizer)
    return optimizer


OPTIMIZERS: dict[str, Callable[[nn.Module, float], torch.optim.Optimizer]] = {
    "sgd": lambda model, rate: torch.optim.SGD(model.parameters(), rate),
    "momentum": lambda model, rate: torch.optim.SGD(model.parameters(), rate, momentum=MOMENTUM),
    "bnp": _bnp,
    "adam": lambda model, rate: torch.optim.Adam(model.parameters(), rate),
}


def momentum_of(optimizer: str) -> float:
    """The momentum that η* is for. For BNP and Adam it is SGD's η*, which is not about them."""
    return MOMENTUM if optimizer == "momentum" else 0.0


def losses(problem: Problem, optimizer: str, rate: float, steps: int) -> list[float]:
    """The loss before each step and after the last one, until it is out of all bounds."""
    model = copy.deepcopy(problem.model)
    model.train()
    stepping = OPTIMIZERS[optimizer](model, rate)
    found: list[float] = []
    for step in range(steps + 1):
        loss = problem.loss(model)
        found.append(float(loss.detach()))
        if step == steps or not found[-1] < BOUND * found[0]:
            break
        stepping.zero_grad()
        loss.backward()
        stepping.step()
    return found


def rises(found: list[float]) -> bool:
    """Whether one of the losses is above the first one, or no number."""
    return not all(loss <= found[0] * (1 + ROUNDING) for loss in found)


def outcome(found: list[float], constant: float) -> Outcome:
    """What became of a training of `STEPS` steps."""
    last = fmean(found[-LAST:])
    if len(found) <= STEPS or not last < found[0]:
        return "fails"
    return "learns" if last < 0.99 * constant else "idle"


def edge(bad: Callable[[float], bool], start: float) -> Between:
    """Where something begins, seen upwards from `start`, or from the first half, quarter… of it that is not bad."""
    low = start
    while bad(low):
        low /= 2
        if low < LOWEST:
            return None, 2 * low
    high = 2 * low
    while not bad(high):
        low, high = high, 2 * high
        if high > HIGHEST:
            return low, None
    for _ in range(BISECTIONS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if bad(middle) else (middle, high)
    return low, high


def middle(between: Sequence[float | None]) -> float:
    """The middle of what it lies between; 0 if below all rates that were tried, infinite if above."""
    low, high = between
    if low is None:
        return 0.0
    return math.inf if high is None else math.sqrt(low * high)


@dataclass(frozen=True)
class Edges:
    """What was found, in multiples of η*.

    Attributes:
        rise: Where the loss begins to rise.
        fail: Where training fails.
        learned: Whether a training at some rate was better than the best constant output.
        runs: How many trainings were made for it, short ones among them.
    """

    rise: Between
    fail: Between
    learned: bool
    runs: int


def edges(problem: Problem, optimizer: str, largest: float) -> Edges:
    """Where training begins to rise and to fail, as multiples of η* = `largest`."""
    early: dict[float, bool] = {}
    whole: dict[float, Outcome] = {}

    def rising(multiple: float) -> bool:
        if multiple not in early:
            early[multiple] = rises(losses(problem, optimizer, multiple * largest, EARLY))
        return early[multiple]

    def ending(multiple: float) -> Outcome:
        if multiple not in whole:
            whole[multiple] = outcome(losses(problem, optimizer, multiple * largest, STEPS), problem.constant)
        return whole[multiple]

    def failing(multiple: float) -> bool:
        end = ending(multiple)
        return end == "fails" or (end == "idle" and any(whole[m] == "learns" for m in whole if m < multiple))

    rise = edge(rising, START)
    start = 2.0 ** math.floor(math.log2(LOWEST if rise[0] is None else rise[0]))
    for _ in range(PATIENCE):
        if ending(start) == "idle" and start > LOWEST:
            start /= 2
    fail = edge(failing, start)
    return Edges(rise, fail, "learns" in whole.values(), len(early) + len(whole))
