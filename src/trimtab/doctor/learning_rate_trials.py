"""Short trainings of a model at several learning rates, all from where it is, that leave it as it is."""

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trimtab.bnp import BNP, bnps_attached_to
from trimtab.probes import options
from trimtab.probes.batches import samples_of
from trimtab.probes.isolation.random_state import RandomState
from trimtab.probes.result import CannotMeasure, LossFunction, refuse_sharded
from trimtab.probes.surface import Surface, check_gradient, copied_batch
from trimtab.probes.updates import OptimizerCopy, held_parameters, next_step

OUT_OF_BOUNDS = 1e3
"""A training whose loss is so many times the first one is given up."""
SAMPLES_TO_JUDGE = 256
FEWEST_TO_JUDGE, MOST_TO_JUDGE = 4, 16
"""Batches that are held out, however many samples they have."""
FORWARD = 1 / 3
"""What a forward alone costs, in forwards with their backward."""
Schedule = Callable[[float], float]
"""The rate at each share of a training, as a multiple of its largest."""


@dataclass(frozen=True)
class Drawn:
    """Batches for trials.

    Attributes:
        training: To take steps with, in this order; when they are over, they are taken again.
        held_out: To compare on; no step is taken with them.
    """

    training: Sequence[Any]
    held_out: Sequence[Any]


class Trials:
    """Trainings of a model for some steps, each from where it is now, with the optimizer's own steps.

    Everything that such a step needs is copied: parameters, buffers, the optimizer's state, BNP's averages. Hooks on
    the optimizer's step are not run, other than BNP's.

    Args:
        model: See `IsolatedModel`.
        optimizer: Any that takes steps without a closure. A BNP that is attached to it takes part.
        loss_fn: Takes the model and a batch and returns a tensor of one number.
        drawn: The batches.
        bnp: One whose step() is called by hand.

    Attributes:
        cost: Of all that was done so far, in forwards with their backward.

    Raises:
        CannotMeasure: If the optimizer holds nothing of the model, or its weights are sharded.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, loss_fn: LossFunction, drawn: Drawn, bnp: BNP | None = None
    ) -> None:
        refuse_sharded(model)
        self.cost = 0.0
        self._drawn, self._optimizer, self._bnp = drawn, optimizer, bnp
        self._batch: Any = drawn.training[0]
        # One surface for all batches: what it is given as its batch is not looked at.
        self._surface = Surface(model, lambda model, _: loss_fn(model, copied_batch(self._batch)), None)
        self._mine = held_parameters(self._surface, optimizer)

    def along_first_step(self) -> Callable[[float], float]:
        """The held-out loss as a function of the length of the first step, in multiples of what the optimizer takes.

        Raises:
            CannotMeasure: If loss or gradient are not finite, or the step cannot be tried out.
        """
        self._batch = self._drawn.training[0]
        _, _, after = next_step(self._surface, self._optimizer, self._bnp)
        self.cost += 1
        here = self._surface.here
        step = {name: after[name] - value if name in after else torch.zeros_like(value) for name, value in here.items()}

        def loss(multiple: float) -> float:
            point = {name: value + multiple * step[name] for name, value in here.items()}
            return self._surface.isolated.run(self._held_out, point)

        return loss

    def train(self, factor: float, steps: int, looks: Sequence[int], schedule: Schedule) -> tuple[float, ...]:
        """Train at the optimizer's rates times a factor.

        Args:
            factor: Of all rates.
            steps: How many.
            looks: After which of them to look at the held-out batches; the same one may be named twice.
            schedule: How the rates go on from there.

        Returns:
            The held-out loss at each look; infinite where it is no finite number, or the training was given up.

        Raises:
            CannotMeasure: If the loss is not finite at the start.
        """
        leaves = {name: nn.Parameter(value.clone()) for name, value in self._surface.here.items()}
        parameters = {id(p): _like(p, leaves[name]) for name, p in self._mine.items()}

        def work() -> dict[int, float]:
            start = self._random_state()
            with ExitStack() as stack:
                attached = bnps_attached_to(self._optimizer)
                doubles = [(each, [leaves[name] for name in self._mine]) for each in attached]
                by_hand = self._bnp is not None and self._bnp not in attached
                doubles += [(self._bnp, list(leaves.values()))] if by_hand else []
                conditioning = [stack.enter_context(each.dry_run(known)) for each, known in doubles]
                copy = OptimizerCopy(self._optimizer, parameters)
                rates = [group["lr"] for group in copy.optimizer.param_groups]
                found: dict[int, float] = {}
                first = math.nan
                for step in range(steps):
                    self._batch = self._drawn.training[step % len(self._drawn.training)]
                    loss = self._backward(leaves)
                    first = loss if step == 0 else first
                    if step == 0 and not math.isfinite(loss):
                        raise CannotMeasure(f"The loss is {loss} at the start, so that no rate can be tried.")
                    if not abs(loss) <= OUT_OF_BOUNDS * max(abs(first), 1.0):
                        break
                    for condition in conditioning:
                        condition()
                    now = factor * schedule(step / steps)
                    for group, rate in zip(copy.optimizer.param_groups, rates, strict=True):
                        group["lr"] = rate * now
                    copy.step()
                    if step + 1 in looks:
                        found[step + 1] = self._looked(start)
            return found

        found = self._surface.isolated.run(work, leaves)
        return tuple(found.get(look, math.inf) for look in looks)

    def _backward(self, leaves: dict[str, nn.Parameter]) -> float:
        """The loss of a batch; its gradient is that of the leaves then."""
        self.cost += 1
        loss = self._surface.loss_in_graph()
        check_gradient(loss)
        # Not loss.backward(), which would add to gradients of whatever else the loss depends on.
        gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        for leaf, gradient in zip(leaves.values(), gradients, strict=True):
            leaf.grad = None if gradient is None else gradient.clone()  # BNP and some optimizers overwrite it
        return float(loss.detach())

    def _looked(self, start: RandomState) -> float:
        """The loss on the held-out batches, with the same random numbers in each trial.

        The training goes on as if nobody had looked.
        """
        model = self._surface.isolated.model
        kept = [(tensor, tensor.clone()) for tensor in (*model.buffers(), *_untrained(model))]
        random_state = self._random_state()
        start.restore()
        try:
            return self._held_out()
        finally:
            random_state.restore()
            with torch.no_grad():
                for tensor, value in kept:
                    tensor.copy_(value)

    def _random_state(self) -> RandomState:
        model = self._surface.isolated.model
        return RandomState(model.modules(), devices_of(model))

    def _held_out(self) -> float:
        losses = []
        with torch.no_grad():
            for batch in self._drawn.held_out:
                self._batch = batch
                self.cost += FORWARD
                losses.append(float(self._surface.loss_in_graph()))
        mean = fmean(losses)
        return mean if math.isfinite(mean) else math.inf


def draw(batches: Iterable[Any], steps: int, judges: Iterable[Any] | None) -> Drawn:
    """Batches to train and to compare with, from a loader or whatever gives batches.

    Args:
        batches: As many are taken as are needed, or all that there are.
        steps: Of the longest training.
        judges: What to compare on; None: some of the batches, evenly spaced, which no step is taken with.

    Raises:
        ValueError: If there are too few.
    """
    source = iter(batches)
    first = next(source, _NOTHING)
    if first is _NOTHING:
        raise ValueError("batches has no batch in it; give a loader, or an iterator that is not used up.")
    if judges is not None:
        held_out = list(islice(iter(judges), MOST_TO_JUDGE))
        if not held_out:
            raise ValueError("validation has no batch in it; leave it out to compare on some of the batches.")
        return Drawn([first, *islice(source, steps - 1)], held_out)
    size = samples_of(first) or 1
    wanted = min(max(math.ceil(SAMPLES_TO_JUDGE / size), FEWEST_TO_JUDGE), MOST_TO_JUDGE)
    found = [first, *islice(source, steps + wanted - 1)]
    if len(found) < 2:
        raise ValueError(
            "batches has one batch only, which cannot both be trained on and compared on; give more, or validation=."
        )
    spared = wanted if len(found) == steps + wanted else max(min(wanted, len(found) // 4), 1)
    held = {round((index + 1) * len(found) / spared) - 1 for index in range(spared)}  # evenly spaced
    return Drawn(
        [batch for place, batch in enumerate(found) if place not in held],
        [batch for place, batch in enumerate(found) if place in held],
    )


def check_optimizer(optimizer: Any) -> list[float]:
    """The rates of an optimizer's groups.

    Raises:
        TypeError: If it is no optimizer.
        ValueError: If it has no rates that a factor could change.
    """
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer must be an optimizer of torch.optim, not {options.described(optimizer)}.")
    rates = [group.get("lr") for group in optimizer.param_groups]
    if not all(options.is_finite(rate) for rate in rates):
        raise ValueError(f"{type(optimizer).__name__} has no learning rate that is a number, to try others.")
    numbers = [float(rate) for rate in rates if rate is not None]
    if min(numbers) < 0 or max(numbers) == 0:
        raise ValueError("The optimizer's learning rate must be larger than 0, to try multiples of it.")
    return numbers


_NOTHING = object()


def _untrained(model: nn.Module) -> list[Tensor]:
    return [p for p in model.parameters() if not p.requires_grad]


def devices_of(model: nn.Module) -> list[int]:
    """The numbers of the CUDA devices that a model is on."""
    found = {t.device.index for t in (*model.parameters(), *model.buffers()) if t.device.type == "cuda"}
    return sorted(index for index in found if index is not None)


def _like(parameter: nn.Parameter, leaf: nn.Parameter) -> nn.Parameter:
    """A leaf with the attributes that someone has given to a parameter, which its optimizer may read."""
    vars(leaf).update(vars(parameter))
    return leaf
