"""The step that an optimizer would take next, tried out on copies of the parameters and of its state."""

import copy
import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trimtab import _torch
from trimtab.bnp import BNP, bnps_attached_to
from trimtab.bnp.algorithm.step import LayerStep, next_scaling
from trimtab.probes.metric import LayerMetric, Metric, NoMetric, step_metric
from trimtab.probes.result import CannotMeasure, out_of_memory
from trimtab.probes.surface import Surface, check_finite, check_gradient, dense

Values = dict[str, Tensor]


def next_step(surface: Surface, optimizer: Optimizer, bnp: BNP | None = None) -> tuple[float, Values, Values]:
    """The loss, its gradient, and the parameters after the optimizer's step with that gradient.

    The optimizer's own code runs, on copies, with all that it remembers. A BNP that is attached to it preconditions
    the gradient first, and so does `bnp`, whose step() is called by hand. Other hooks on the step are not run: nobody
    knows what else they change. Nor is it known here what a training does to gradients between backward and step
    (clipping, adding those of other batches or other processes).

    Args:
        surface: Where the model is.
        optimizer: Any that takes steps without a closure.
        bnp: One that is not attached; if it is, it preconditions once all the same.

    Returns:
        The gradient has only what the loss depends on: an optimizer leaves the rest alone. The new parameters are
        those that the optimizer holds.

    Raises:
        CannotMeasure: If loss or gradient are not finite, or the optimizer holds nothing of the model, cannot be copied
            or needs a closure.
    """
    loss, gradient, _, twins = _try_out(surface, optimizer, bnp, None)
    return loss, gradient, {name: twin.detach() for name, twin in twins.items()}


def next_step_and_metric(
    surface: Surface, optimizer: Optimizer, bnp: BNP | None = None
) -> tuple[float, Values, Values, Metric | NoMetric]:
    """As `next_step`, and the metric in which the step is that of steepest descent, or why there is none."""
    layers: list[LayerMetric] = []
    loss, gradient, double, twins = _try_out(surface, optimizer, bnp, layers)
    try:
        metric: Metric | NoMetric = step_metric(optimizer, double, twins, layers)
    except NoMetric as reason:
        metric = NoMetric(str(reason))  # without the tensors of the traceback
    return loss, gradient, {name: twin.detach() for name, twin in twins.items()}, metric


def _try_out(
    surface: Surface, optimizer: Optimizer, bnp: BNP | None, layers: list[LayerMetric] | None
) -> tuple[float, Values, Optimizer, dict[str, nn.Parameter]]:
    """The loss, its gradient, a copy of the optimizer after the step, and the parameters that the copy holds.

    If there is a list for them, the metrics of the layers that BNP preconditions are added to it.
    """
    mine = held_parameters(surface, optimizer)
    leaves = {name: nn.Parameter(value) for name, value in surface.here.items()}  # BNP looks at parameters only

    def work() -> tuple[float, Values, Optimizer, dict[str, nn.Parameter]]:
        with ExitStack() as stack:
            attached = bnps_attached_to(optimizer)
            doubles = [(each, [leaves[name] for name in mine]) for each in attached]
            doubles += [(bnp, list(leaves.values()))] if bnp is not None and bnp not in attached else []
            steps = [stack.enter_context(each.dry_run(known, _watch(each, leaves, layers))) for each, known in doubles]
            loss = surface.loss_in_graph()
            check_gradient(loss)
            gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
            found = {name: g for name, g in zip(leaves, gradients, strict=True) if g is not None}
            gradient = {name: dense(g) for name, g in found.items()}
            value = check_finite(loss.detach(), gradient)
            for name, g in found.items():
                leaves[name].grad = g.clone()  # BNP and some optimizers overwrite it
            for step in steps:
                step()
        return value, gradient, *_after_step(optimizer, mine, {name: leaves[name].grad for name in mine})

    return surface.isolated.run(work, leaves)


def held_parameters(surface: Surface, optimizer: Optimizer) -> dict[str, nn.Parameter]:
    """The model's trained parameters that an optimizer holds, by name.

    Raises:
        CannotMeasure: If there are none.
    """
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    named = surface.isolated.model.named_parameters()
    mine = {name: p for name, p in named if name in surface.here and id(p) in held}
    if not mine:
        raise CannotMeasure("The optimizer holds none of the model's trained parameters; is it another model's?")
    return mine


def _watch(
    bnp: BNP, leaves: Mapping[str, nn.Parameter], layers: list[LayerMetric] | None
) -> Callable[[LayerStep], None] | None:
    """A function that adds the metric of a layer's step to the list; None if there is no list."""
    if layers is None:
        return None

    def watch(step: LayerStep) -> None:
        names = {id(leaf.grad): name for name, leaf in leaves.items() if leaf.grad is not None}
        mean, scale, q2 = next_scaling(step, bnp.options)
        bias = None if step.bias is None else names[id(step.bias)]
        weight = names[id(step.weight)]
        layers.append(LayerMetric(weight=weight, bias=bias, view=step.view, mean=mean, scale=scale, q2=q2))

    return watch


def _after_step(
    optimizer: Optimizer, parameters: Mapping[str, nn.Parameter], gradients: Mapping[str, Tensor | None]
) -> tuple[Optimizer, dict[str, nn.Parameter]]:
    """A copy of the optimizer after a step with these gradients, and the copies of the parameters that it holds.

    The gradients may be overwritten. Parameters, optimizer and its state stay as they are.

    Raises:
        CannotMeasure: If the optimizer cannot be copied or needs a closure.
    """
    twins = {name: nn.Parameter(p.detach().clone()) for name, p in parameters.items()}
    for name, twin in twins.items():
        vars(twin).update(vars(parameters[name]))
        twin.grad = gradients[name]
    double = OptimizerCopy(optimizer, {id(parameters[name]): twin for name, twin in twins.items()})
    double.step()
    return double.optimizer, twins


class OptimizerCopy:
    """A copy of an optimizer, with all that it remembers and without its hooks, for steps that are tried out.

    Attributes:
        optimizer: The copy.

    Args:
        optimizer: It stays as it is.
        parameters: What stands for a parameter in the copy, by the identity of that.

    Raises:
        CannotMeasure: If it cannot be copied or its step needs a closure.
    """

    def __init__(self, optimizer: Optimizer, parameters: Mapping[int, nn.Parameter]) -> None:
        kind = type(optimizer)
        self._step = _torch.step_without_hooks(kind)
        if any(p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD for p in _arguments(self._step)):
            raise CannotMeasure(f"{kind.__name__}.step() needs a closure, so that its next update cannot be tried out.")
        with _told_of(kind):
            self.optimizer = _copied_without_hooks(optimizer, dict(parameters))

    def step(self) -> None:
        """Take a step with the gradients that the copy's parameters have.

        Raises:
            CannotMeasure: If it fails.
        """
        with _told_of(type(self.optimizer)):
            self._step(self.optimizer)


@contextmanager
def _told_of(kind: type[Optimizer]) -> Iterator[None]:
    """Failures of a copy, other than memory that runs out, told as such."""
    try:
        yield
    except Exception as error:
        if out_of_memory(error):
            raise
        raise CannotMeasure(f"A step of a copy of {kind.__name__} failed: {type(error).__name__}: {error}") from error


def _arguments(step: Callable[[Any], Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(step).parameters.values())[1:]


def _copied_without_hooks(optimizer: Optimizer, memo: dict[int, Any]) -> Optimizer:
    """A deep copy without hooks; `memo` has what stands for a parameter, by the identity of that.

    Not copy.deepcopy(optimizer), which forgets the attributes that subclasses add.
    """
    double: Optimizer = object.__new__(type(optimizer))
    for name, value in vars(optimizer).items():
        if name == "step":  # put there by a learning-rate scheduler, for the optimizer itself
            continue
        vars(double)[name] = OrderedDict() if name.endswith("_hooks") else copy.deepcopy(value, memo)
    return double
