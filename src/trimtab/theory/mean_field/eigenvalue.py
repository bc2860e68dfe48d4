"""The largest eigenvalue of the Fisher matrix of a random network, and the largest learning rate (meanfield paper).

λ belongs to the mean over samples of ½‖f − y‖² and to one output, f(x) = h^L_1(x). Networks are Gaussian: weights of a
layer have the variance σ_w²/N_{l−1}, biases σ_b²; the output layer is linear.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, SupportsFloat

import numpy as np

from trimtab.norms.statistics import canonical_statistics
from trimtab.theory.checks import finite, whole
from trimtab.theory.mean_field.activations import Activation
from trimtab.theory.mean_field.activations import activation as find_activation
from trimtab.theory.mean_field.assemble import assemble, check_activation, refuse_gamma
from trimtab.theory.mean_field.graph import Flow, Gradient, Node, State, Term, propagate
from trimtab.theory.mean_field.layers import Layer
from trimtab.theory.mean_field.operations import Affine
from trimtab.theory.mean_field.paper import paper
from trimtab.theory.mean_field.positions import Grid, Layout, Uniform

GRID_LIMIT = 1024  # positions; above that, pairs of positions would take gigabytes


@dataclass(frozen=True)
class Order:
    """The order parameters of one layer (eqs. 17–19, 29–33); where positions differ, their means.

    `q_hat` and its kin are of the layer's input, q̂ˡ⁻¹; `q` and `q_tilde` of its output before normalization and
    activation, qˡ and q̃ˡ. `alphabeta` is for two samples at different positions, 0 where there is one position only.

    Attributes:
        layer: Its name.
        fan_in: N_{l−1}.
        positions: |K_l|, of its output.
        term: f_l.
        diagonal: f_l for one sample: its contribution to the upper bound.
    """

    layer: str
    fan_in: int
    positions: int
    q_hat: float
    q_hat_xy: float
    q_hat_alphabeta: float
    q: float
    q_xy: float
    q_alphabeta: float
    q_tilde: float
    q_tilde_xy: float
    q_tilde_alphabeta: float
    term: float
    diagonal: float


@dataclass(frozen=True)
class MeanField:
    """The predictions of mean field for a network.

    Attributes:
        layers: The order parameters, layer by layer in forward order.
        terms: The contribution of each parameter to λ_max; of weights only, unless `bias_terms` was given.
        samples: The size m of the data set that `lambda_max` is for; None: infinite.
        variant: `exact` or `paper`.
        positions: How positions were treated: `uniform`, or `grid` where zero padding makes them differ.
    """

    layers: tuple[Order, ...]
    terms: tuple[Term, ...]
    samples: int | None
    variant: str
    positions: str

    @property
    def lambda_max(self) -> float:
        """Σ f_l (eq. 44), for m samples plus (Σ f_l for one sample − Σ f_l)/m."""
        total = math.fsum(term.value for term in self.terms)
        return total if self.samples is None else total + (self.upper_bound - total) / self.samples

    @property
    def upper_bound(self) -> float:
        """The right side of eq. 147, E‖∇f(x)‖²: no eigenvalue is larger."""
        return math.fsum(term.diagonal for term in self.terms)

    def max_learning_rate(self, momentum: float = 0.0) -> float:
        """η* = 2(1 + μ)/λ_max (eq. 7); infinite where λ_max is 0."""
        return max_learning_rate(self.lambda_max, momentum)


def max_learning_rate(lambda_max: float, momentum: float = 0.0) -> float:
    """η* = 2(1 + μ)/λ_max (meanfield, eq. 7).

    Raises:
        ValueError: If the momentum is not in [0, 1), or the eigenvalue is not a number.
    """
    if not isinstance(lambda_max, SupportsFloat) or math.isnan(float(lambda_max)):
        raise ValueError(f"lambda_max must be a number, not {lambda_max!r}.")
    if not isinstance(momentum, SupportsFloat) or not 0 <= momentum < 1:
        raise ValueError(f"momentum must be in [0, 1), not {momentum!r}.")
    return 2 * (1 + momentum) / lambda_max if lambda_max > 0 else math.inf


def mean_field(
    layers: Sequence[Layer],
    *,
    sigma_w2: float | Sequence[float],
    sigma_b2: float | Sequence[float],
    norm: Literal["batch"] | None = None,
    gamma: float | Sequence[float] = 1.0,
    activation: str | Activation | Callable[[Any], Any] = "relu",
    variant: Literal["exact", "paper"] = "exact",
    bias_terms: bool = False,
    statistics: Literal["batch", "frozen"] = "frozen",
    samples: int | None = None,
    q_hat0: float = 1.0,
    q_hat0_xy: float = 0.0,
    q_hat0_alphabeta: float = 0.0,
    positions: Literal["auto", "uniform", "grid"] = "auto",
) -> MeanField:
    """λ_max of a random network, and the terms it is the sum of (meanfield, Sec. 3).

    Args:
        layers: In forward order; the last one is the linear output.
        sigma_w2: The weights' variance times fan-in; one number, or one for each dense and convolutional layer.
        sigma_b2: The biases' variance, likewise.
        norm: `batch` for BatchNorm between each layer and its activation, except at the output.
        gamma: Its γ; one number, or one for each place of a BatchNorm.
        activation: A name of `ACTIVATIONS`, or any function on arrays.
        variant: `exact` counts positions and divides by the variance of a unit over samples; `paper` is what is
            printed.
        bias_terms: Whether biases, β and γ are among the trained parameters; the paper leaves them out.
        statistics: `frozen` as in the paper: the gradient does not pass through BatchNorm's statistics. `batch`: it
            does, and its mean is removed there; layers below a BatchNorm then contribute almost nothing.
        samples: The size of the data set; None: infinite.
        q_hat0: Mean square of the inputs.
        q_hat0_xy: Mean product of two samples at the same position.
        q_hat0_alphabeta: Mean product of two samples at different positions.
        positions: `grid` computes each pair of positions, `uniform` treats all alike; `auto` is `grid` where
            there is zero padding and no feature map has more than 1024 positions.

    Raises:
        ValueError: If an argument is invalid.
    """
    _check(norm=(norm, (None, "batch")), variant=(variant, ("exact", "paper")))
    word = canonical_statistics(statistics, ("batch", "frozen"))
    _check(positions=(positions, ("auto", "uniform", "grid")))
    if variant == "paper" and positions == "grid":
        raise ValueError("positions must not be 'grid' with variant='paper', which takes all positions for alike.")
    if variant == "paper" and word == "batch":
        raise ValueError("statistics must be 'frozen' with variant='paper', which has no formula for another.")
    if norm is not None and gamma is None:
        raise ValueError("gamma must be one number, or one for each place of a BatchNorm, not None.")
    samples = None if samples is None else whole(samples, "samples")
    _check_start(q_hat0, q_hat0_xy, q_hat0_alphabeta)
    phi = find_activation(activation)
    check_activation(phi, activation)
    assembly = assemble(
        layers,
        sigma_w2=sigma_w2,
        sigma_b2=sigma_b2,
        gamma=gamma if norm else None,
        activation=phi,
        frozen=word == "frozen",
    )
    if norm is None:
        refuse_gamma(gamma, assembly.places)
    height, width = assembly.start[1:]
    fits = assembly.padded and assembly.max_positions <= GRID_LIMIT
    layout: Layout = (
        Grid((height, width)) if positions == "grid" or (positions == "auto" and fits) else Uniform((height, width))
    )
    if variant == "paper":
        layout = Uniform((height, width))
    v, c = layout.fill(q_hat0, q_hat0_xy, q_hat0_alphabeta)
    start = State(layout, v, c)
    with np.errstate(all="ignore"):  # said below
        flow = paper(assembly.nodes, start) if variant == "paper" else propagate(assembly.nodes, start)
    if not all(math.isfinite(term.value) and math.isfinite(term.diagonal) for term in flow.terms):
        raise ValueError(
            "sigma_w2, sigma_b2 or gamma are so large, or q_hat0_xy is so near to q_hat0 that BatchNorm has nothing "
            "that varies: the eigenvalue is not a finite number."
        )
    terms = tuple(term for term in flow.terms if bias_terms or term.parameter == "weight")
    kind = "grid" if isinstance(layout, Grid) else "uniform"
    return MeanField(orders(assembly.nodes, flow, start), terms, samples, variant, kind)


def orders(nodes: Sequence[Node], flow: Flow, start: State) -> tuple[Order, ...]:
    """The order parameters of each dense and convolutional layer."""
    found = []
    terms = {term.layer: term for term in flow.terms if term.parameter == "weight"}
    for node, z, gradient in zip(nodes, flow.states, flow.gradients, strict=True):
        if isinstance(node.operation, Affine) and gradient is not None:
            h = start if node.inputs[0] < 0 else flow.states[node.inputs[0]]
            name = node.operation.name
            measured = (*_means(h.layout, h), *_means(z.layout, z), *_means(z.layout, gradient))
            term = terms[name]
            found.append(Order(name, node.operation.fan_in, z.layout.count, *measured, term.value, term.diagonal))
    return tuple(found)


def _means(layout: Layout, x: State | Gradient) -> tuple[float, float, float]:
    return layout.mean(x.v), layout.mean(layout.same(x.c)), layout.mean_other(x.c)


def _check(**choices: tuple[object, tuple[object, ...]]) -> None:
    for name, (given, known) in choices.items():
        if given not in known:
            raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}, not {given!r}.")


def _check_start(mean_square: float, same: float, other: float) -> None:
    """Refuse moments that no data can have: the mean product of two samples is at most the mean square, in size."""
    if finite(mean_square, "q_hat0") < 0:
        raise ValueError(f"q_hat0 must be 0 or larger, not {mean_square!r}.")
    for name, value in (("q_hat0_xy", same), ("q_hat0_alphabeta", other)):
        if abs(finite(value, name)) > mean_square:
            raise ValueError(f"{name} must be no larger in size than q_hat0 = {mean_square!r}, not {value!r}.")
