"""What BNP does in a model, for a person to read."""

from dataclasses import dataclass, replace

from torch import nn
from torch.optim import Optimizer

from trimtab import _torch
from trimtab.bnp.algorithm import transform
from trimtab.bnp.algorithm.averages import RunningAverage
from trimtab.bnp.attachment import parameter_ids
from trimtab.bnp.layer_shapes import column_shapes
from trimtab.bnp.options import Options
from trimtab.bnp.rows.layer import ObservedLayer
from trimtab.bnp.rows.model import ObservedModel
from trimtab.bnp.rows.supported import clean_names, owners_of_parameters, shares_with
from trimtab.bnp.rows.unused_steps import MAX_UNUSED


@dataclass(frozen=True, slots=True)
class LayerReport:
    """One module that has parameters.

    Attributes:
        name: Its name in the model.
        type: Its class.
        left_alone: Why its gradients are not preconditioned; None if they are.
        bias: Whether it has a bias that is trained, and so is centred.
        steps: Steps whose rows are in the running averages.
        not_finite: Steps that were kept out of them.
        spread: The largest σ̃² over the smallest: κ(D)², what the scaling takes off the condition number of
            the layer's Hessian block at the most. None before the first step.
        bias_apart: Whether its forward adds its bias elsewhere than where it multiplies its weight.
        shares_with: The names of other modules that have the same weight or bias; those that have are left alone.
    """

    name: str
    type: str
    left_alone: str | None
    bias: bool = False
    steps: int = 0
    not_finite: int = 0
    spread: float | None = None
    bias_apart: bool = False
    shares_with: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """All modules that have parameters, in the model's order. Printing it gives a table.

    Attributes:
        layers: One entry for each.
        attached: The type of the optimizer in whose steps the gradients are preconditioned; None if there is none.
        detached: Whether BNP has left the model, or is a copy: then nothing is preconditioned.
        neglected: Whether the model is trained without steps of that optimizer: then nothing is, either.
    """

    layers: tuple[LayerReport, ...]
    attached: str | None = None
    detached: bool = False
    neglected: bool = False

    def __str__(self) -> str:
        """The table."""
        done = [layer for layer in self.layers if layer.left_alone is None]
        rows = [("layer", "type", "steps", "not finite", "max/min σ̃²", "")]
        for layer in self.layers:
            numbers = ("", "", "")
            if layer.left_alone is None or layer.steps or layer.not_finite:
                spread = "" if layer.spread is None else f"{layer.spread:.3g}"
                numbers = (str(layer.steps), str(layer.not_finite), spread)
            note = "preconditioned"
            if not layer.bias:
                note = (
                    f"scaled, not centred: {'its bias is added elsewhere' if layer.bias_apart else 'no trained bias'}"
                )
            if layer.left_alone is not None:
                note = f"left alone: {layer.left_alone}"
            rows.append((layer.name or "(the model)", layer.type, *numbers, note))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = [
            "  ".join(
                cell.rjust(width) if column in (2, 3, 4) else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        lines += [_about_sharing(layer) for layer in self.layers if layer.shares_with]
        lines.append(self._summary(len(done)))
        return "\n".join(lines)

    def _summary(self, done: int) -> str:
        if self.detached:
            return "BNP is detached, as copies of a BNP are, and preconditions nothing: attach() it or make a new one."
        if self.neglected:
            return (
                f"The model is trained without steps of the {self.attached} that BNP is attached to: detach() BNP and "
                "attach() it to the optimizer that is in use."
            )
        when = f"in each step of the {self.attached} it is attached to" if self.attached else "when you call its step()"
        return f"BNP preconditions {done} of {len(self.layers)} modules with parameters, {when}."


def _about_sharing(layer: LayerReport) -> str:
    others = ", ".join(map(repr, layer.shares_with))
    return (
        f"{layer.name!r} is left alone because the gradient of a shared parameter is a sum: BNP knows the inputs of "
        f"{layer.name!r}, but {others} adds to the same gradient. Untied, it is preconditioned."
    )


def describe(observed: ObservedModel, options: Options, optimizer: Optimizer | None) -> Report:
    """The report on a watched model, for which BNP is attached to an optimizer or (None) to none."""
    observed.update()
    parameters = None
    if optimizer is not None:  # which holds shards, while a forward may have left the weights gathered
        parameters = parameter_ids(optimizer)
        parameters |= _torch.gathered_from(observed.model, parameters)
    layers = []
    owners = owners_of_parameters(clean_names(observed.model))
    for name, module in clean_names(observed.model):
        layer = observed.layers.get(name)
        if layer is not None and layer.module is module:
            reason = _why_left_alone(observed, layer, parameters)
            shares = shares_with(name, module, owners, "weight", "bias")
            layers.append(replace(_describe(layer, options, parameters, reason), shares_with=shares))
        elif any(True for _ in module.parameters(recurse=False)):
            reason = "named in skip" if observed.skips(name) else "not a type that BNP knows"
            layers.append(LayerReport(name, type(module).__name__, reason))
    attached = None if optimizer is None else type(optimizer).__name__
    return Report(tuple(layers), attached, not observed.active, observed.unused_steps.count >= MAX_UNUSED)


def _why_left_alone(observed: ObservedModel, layer: ObservedLayer, parameters: set[int] | None) -> str | None:
    if not observed.active:
        return "BNP is detached"
    if parameters is not None and id(layer.weight) not in parameters:
        return "its weight is not in the attached optimizer"
    if observed.unused_steps.count >= MAX_UNUSED:
        return "the attached optimizer makes no steps"
    return observed.why_left_alone(layer)


def _describe(
    layer: ObservedLayer, options: Options, parameters: set[int] | None, left_alone: str | None
) -> LayerReport:
    running = layer.running
    bias = layer.trained_bias(parameters) is not None
    if left_alone is None and layer.warned_unseen and running is None:
        left_alone = "no input of it was seen"
    return LayerReport(
        name=layer.name,
        type=type(layer.module).__name__,
        left_alone=left_alone,
        bias=bias,
        steps=0 if running is None or running.steps.is_meta else int(running.steps),
        not_finite=0 if running is None or running.skipped.is_meta else int(running.skipped),
        spread=None if running is None else _spread(layer, running, options, bias),
        bias_apart=not layer.adds_bias,
    )


def _spread(layer: ObservedLayer, running: RunningAverage, options: Options, bias: bool) -> float | None:
    """The largest max/min of σ̃² of all groups."""
    weight = layer.weight
    if weight is None or isinstance(weight, nn.UninitializedParameter) or running.mean.is_meta:
        return None
    shape = layer.shape(weight)
    if shape is None or running.mean.shape not in column_shapes(weight, shape):
        return None  # they are for the weight that was there before
    groups, _, inputs, _ = shape
    mean, variance = (s.reshape(groups, 1, inputs, -1) for s in running.estimate())
    if not bias and options.no_bias == "second_moment":
        variance = transform.second_moment(mean, variance)
    scale = transform.regularized(variance, options.eps1, options.eps2).flatten(1)
    return float((scale.amax(1) / scale.amin(1)).max())
