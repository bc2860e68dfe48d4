"""Mean-field predictions for a module: from its layers, the variances of its weights, its γ, and data if given."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from trimtab.norms.statistics import canonical_statistics
from trimtab.theory.from_model.all_outputs import lambda_of_all
from trimtab.theory.from_model.axes import channels_and_size
from trimtab.theory.from_model.model_graph import ModelGraph
from trimtab.theory.mean_field.activations import Array
from trimtab.theory.mean_field.eigenvalue import GRID_LIMIT, max_learning_rate
from trimtab.theory.mean_field.graph import Flow, State, propagate
from trimtab.theory.mean_field.operations import Affine
from trimtab.theory.mean_field.paper import paper
from trimtab.theory.mean_field.positions import Grid, Layout, Uniform

SPREAD = 0.22  # of cross-entropy's eigenvalue from draw to draw
COUPLED = 0.25  # outputs over inputs of the output layer
COMMON = 0.02  # of the mean square; ReLU's is 1/π or more
PAIRS = 2**25  # of positions, over all nodes: a quarter of a gigabyte, and seconds


@dataclass(frozen=True)
class OutputLayer:
    """The last layer with weights.

    Attributes:
        name: Its name.
        outputs: How many it has at one position.
        positions: How many positions the outputs of the model have.
        fan_in: Weights of one output.
        q: Mean square of an output.
        q_xy: Mean product of an output for two samples.
    """

    name: str
    outputs: int
    positions: int
    fan_in: int
    q: float
    q_xy: float


@dataclass(frozen=True)
class MeanFieldPrediction:
    """What mean field predicts for one output of a module; print it for a table.

    Attributes:
        lambda_max: The largest eigenvalue of the Gauss–Newton matrix: for ½‖f − y‖² the Fisher matrix.
        upper_bound: An upper bound of it (meanfield, eq. 147).
        terms: The contribution of each layer's parameters, by its name, to that of one output and ½‖f − y‖².
        unseen: A sentence for each property of the model that the prediction leaves out.
        momentum: The momentum that the learning rates are for.
        statistics: Whether the gradient passes through BatchNorm's statistics: `batch` or `frozen`.
        samples: The size of the data set; None: infinite.
        q_hat0: Mean square of the inputs.
        q_hat0_xy: Mean product of two samples at the same position.
        q_hat0_alphabeta: Mean product of two samples at different positions.
        output: The last layer with weights.
    """

    lambda_max: float
    upper_bound: float
    terms: dict[str, float]
    unseen: tuple[str, ...]
    momentum: float
    statistics: str
    samples: int | None
    q_hat0: float
    q_hat0_xy: float
    q_hat0_alphabeta: float
    output: "OutputLayer"

    @property
    def max_learning_rate(self) -> float:
        """η* = 2(1 + μ)/λ_max (meanfield, eq. 7)."""
        return max_learning_rate(self.lambda_max, self.momentum)

    @property
    def optimal_learning_rate(self) -> float:
        """Half of the largest one (the footnote to eq. 7)."""
        return self.max_learning_rate / 2

    def to_dict(self) -> dict[str, Any]:
        """All results, for JSON; an infinite learning rate is None."""
        rates = {name: getattr(self, name) for name in ("max_learning_rate", "optimal_learning_rate")}
        finite = {name: rate if math.isfinite(rate) else None for name, rate in rates.items()}
        return {**asdict(self), **finite}

    def __str__(self) -> str:
        """A table of the terms, the eigenvalue, the learning rates, and what is left out."""
        rows = [(name, f"{value:.4g}", self._share(value)) for name, value in self.terms.items()]
        rows += [
            ("λ_max", f"{self.lambda_max:.4g}", ""),
            ("largest learning rate", f"{self.max_learning_rate:.3g}", ""),
            ("optimal learning rate", f"{self.optimal_learning_rate:.3g}", ""),
        ]
        widths = [max(len(row[i]) for row in [*rows, ("layer", "adds", "share")]) for i in range(3)]
        lines = [f"{'layer':<{widths[0]}}  {'adds':>{widths[1]}}  {'share':>{widths[2]}}".rstrip()]
        lines += [f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}".rstrip() for a, b, c in rows]
        lines.insert(len(self.terms) + 1, "─" * (sum(widths) + 4))
        if self.unseen:
            lines += ["Not accounted for:", *(f"- {sentence}" for sentence in self.unseen)]
        return "\n".join(lines)

    def _share(self, value: float) -> str:
        total = math.fsum(self.terms.values())
        return f"{100 * value / total:.1f} %" if total > 0 else ""


def mean_field_prediction(
    model: nn.Module,
    input_shape: Sequence[int],
    *,
    momentum: float = 0.0,
    loss: Literal["squared", "cross_entropy"] = "squared",
    outputs: Literal["all", "one"] = "one",
    inputs: Tensor | None = None,
    statistics: Literal["batch", "frozen"] = "frozen",
    samples: int | None = None,
) -> MeanFieldPrediction:
    """The largest Fisher eigenvalue and the largest stable learning rate of one output of a module, by mean field.

    With the defaults it is the paper's: one output, ½‖f − y‖², frozen statistics, white inputs. `trimtab.predict` has
    what a training needs.

    The weights are taken for independent Gaussians of each layer's own variance: right at the start of training, and
    less so the longer it lasts. All weights, biases, γ and β that are known are counted. The model is left as it is.

    Args:
        model: Any module that torch.fx can trace.
        input_shape: The shape of one input, without the dimension of samples.
        momentum: Of the optimizer, in [0, 1).
        loss: `squared`, the mean over samples of ½‖f − y‖², or `cross_entropy`.
        outputs: `one`, as in the paper, or `all` that the loss has.
        inputs: Data, (samples, *input_shape), whose moments are measured; None: mean square 1, and no product of two.
        statistics: `frozen`: BatchNorm's gradient does not pass through its statistics, as in the paper. `batch`: it
            does, as in training.
        samples: The size of the data set; None: infinite.

    Raises:
        ValueError: If the model cannot be traced, an argument makes no sense, or there is nothing to predict.
    """
    shape = tuple(input_shape) if isinstance(input_shape, Sequence) else ()
    if not shape or not all(isinstance(n, int) and n > 0 for n in shape):
        raise ValueError(f"input_shape must be a sequence of positive whole numbers, not {input_shape!r}.")
    word = canonical_statistics(statistics, ("batch", "frozen"))
    if samples is not None and (isinstance(samples, bool) or not isinstance(samples, int) or samples < 1):
        raise ValueError(f"samples must be None or a whole number, 1 or larger, not {samples!r}.")
    max_learning_rate(1.0, momentum)  # refuse it before anything is done
    graph = ModelGraph(model, shape, frozen=word == "frozen")
    if isinstance(inputs, Tensor) and tuple(inputs.shape[1:]) == shape:
        inputs = graph.channels_first(inputs)
    shape = tuple(graph.channels_first(torch.empty(1, *shape, device="meta")).shape[1:])
    layout = _layout(graph, channels_and_size(shape)[1])
    v, c = layout.fill(1.0, 0.0, 0.0) if inputs is None else measured(inputs, shape, layout)
    flow = propagate(graph.nodes, State(layout, v, c))
    if without_common := _last_without_mean(graph, flow):
        graph.note(
            f"What {without_common} reads has next to nothing in common between samples (after a linear or an odd "
            "activation, or after a BatchNorm behind it), and mean field lives on what they have: λ_max may be several "
            "times as large; measure it."
        )
    terms: dict[str, float] = {}
    diagonal = math.fsum(term.diagonal for term in flow.terms)
    for term in flow.terms:
        part = 0.0 if samples is None else (term.diagonal - term.value) / samples
        terms[term.layer] = terms.get(term.layer, 0.0) + term.value + part
    value, output = math.fsum(terms.values()), _output_layer(graph, flow)
    if outputs == "all" or loss != "squared":
        _note_outputs(graph, output)
        value, spread = lambda_of_all(graph.nodes, flow, output.outputs, loss=loss, samples=samples)
        if spread > SPREAD:
            graph.note(
                "The outputs of a drawn network decide about cross-entropy's λ_max, which differs by "
                f"{100 * spread:.0f} % from draw to draw; measure it."
            )
    return MeanFieldPrediction(
        lambda_max=value,
        upper_bound=diagonal,
        terms=terms,
        unseen=tuple(graph.unseen),
        momentum=momentum,
        statistics=word,
        samples=samples,
        q_hat0=layout.mean(v),
        q_hat0_xy=layout.mean(layout.same(c)),
        q_hat0_alphabeta=layout.mean_other(c),
        output=output,
    )


def paper_lambda_max(model: nn.Module, input_shape: Sequence[int]) -> float:
    """λ_max of one output of a module by the formulas as the paper prints them, for white inputs.

    They are for networks of dense layers, convolutions, BatchNorm and activations, one after another.

    Raises:
        ValueError: If the model cannot be traced, or has something that the paper has no formula for.
    """
    graph = ModelGraph(model, tuple(input_shape), frozen=True)
    layout = Uniform(channels_and_size(tuple(input_shape))[1])
    flow = paper(graph.nodes, State(layout, *layout.fill(1.0, 0.0, 0.0)))
    return math.fsum(term.value for term in flow.terms if term.parameter == "weight")


def _output_layer(graph: ModelGraph, flow: Flow) -> OutputLayer:
    last = next(node.operation for node in reversed(graph.nodes) if isinstance(node.operation, Affine))
    state = flow.states[-1]
    q, q_xy = state.layout.mean(state.v), state.layout.mean(state.layout.same(state.c))
    return OutputLayer(last.name, last.channels, state.layout.count, last.fan_in, q, q_xy)


def _note_outputs(graph: ModelGraph, output: OutputLayer) -> None:
    if output.positions > 1:
        graph.note(
            f"The outputs have {output.positions} positions, which share the weights of {output.name}: λ_max of all of "
            "them is several times as large as that of one; measure it."
        )
    elif output.outputs > COUPLED * output.fan_in:
        graph.note(
            f"{output.name} has {output.outputs} outputs for {output.fan_in} inputs; mean field speaks of networks "
            "that are much wider than they have outputs."
        )


def _last_without_mean(graph: ModelGraph, flow: Flow) -> str | None:
    """The last layer, after the first one, whose input has almost no mean over samples."""
    for node in reversed(graph.nodes):
        below = graph.nodes[: node.inputs[0] + 1]
        if isinstance(node.operation, Affine) and any(isinstance(one.operation, Affine) for one in below):
            state = flow.states[node.inputs[0]]
            if state.layout.mean(state.layout.same(state.c)) < COMMON * state.layout.mean(state.v):
                return node.operation.name
    return None


def measured(inputs: Tensor, shape: tuple[int, ...], layout: Layout) -> tuple[Array, Array]:
    """The moments of data: q̂⁰, and q̂⁰_xy with q̂⁰_αβ, or a value for each pair of positions.

    Raises:
        ValueError: If they are not of that shape, fewer than two, or not finite.
    """
    if not isinstance(inputs, Tensor) or tuple(inputs.shape[1:]) != shape or len(inputs) < 2:
        found = tuple(inputs.shape) if isinstance(inputs, Tensor) else type(inputs).__name__
        raise ValueError(f"inputs must be two samples or more of the shape {shape}, not {found}.")
    x = inputs.detach().double().cpu()
    if not torch.isfinite(x).all():
        raise ValueError("inputs must be finite; there is an infinity or a NaN among them.")
    samples, channels, positions = len(x), channels_and_size(shape)[0], layout.count
    x = x.reshape(samples, channels, positions)
    pairs = samples * (samples - 1) * channels
    total = x.sum(0)
    same = (total.square().sum(0) - x.square().sum((0, 1))) / pairs
    if isinstance(layout, Grid):
        flat = x.reshape(samples * channels, positions)
        c = (total.T @ total - flat.T @ flat) / pairs
        v = x.square().mean((0, 1))
        return v.numpy().reshape(layout.size), c.numpy().reshape(layout.size * 2)
    everywhere = float((total.sum(1).square().sum() - x.sum(2).square().sum()) / pairs)
    equal = float(same.sum())
    other = (everywhere - equal) / (positions * (positions - 1)) if positions > 1 else 0.0
    return layout.fill(float(x.square().mean()), equal / positions, other)


def _layout(graph: ModelGraph, size: tuple[int, int]) -> Layout:
    """A grid of positions if a layer pads, unless it would take too much memory; otherwise all positions alike."""
    if not graph.padded:
        return Uniform(size)
    if np.prod(size) <= GRID_LIMIT and graph.pairs_of_positions(size) <= PAIRS:
        return Grid(size)
    graph.note(
        "Zero padding or parameters of positions make positions differ, which so large a feature map leaves out."
    )
    return Uniform(size)
