"""The recursions as the meanfield paper prints them, for `variant="paper"`."""

from collections.abc import Sequence

import numpy as np

from trimtab.theory.mean_field.activations import Array
from trimtab.theory.mean_field.graph import Flow, Gradient, Node, State, Term, forward
from trimtab.theory.mean_field.joining import Reshape
from trimtab.theory.mean_field.operations import Activate, Affine, Flatten, Normalize


def paper(nodes: Sequence[Node], start: State) -> Flow:
    """Forward as printed, which is exact; backward dividing by qˡ, and without counts of positions (eqs. 20–25, 34–45).

    Raises:
        ValueError: If the network has an operation that the paper has no formula for.
    """
    states = forward(nodes, start)
    if states[-1].layout.count > 1:
        raise ValueError("variant='paper' knows outputs of one position only; take variant='exact'.")
    gradients: list[Gradient | None] = [None] * len(nodes)
    gradient = Gradient(np.array(1.0), np.array([1.0, 1.0]))
    found: list[list[Term]] = []
    for number in reversed(range(len(nodes))):
        gradients[number] = gradient
        operation, output = nodes[number].operation, states[number]
        z = start if nodes[number].inputs[0] < 0 else states[nodes[number].inputs[0]]
        found.append(_terms(operation, gradient, z, output))
        if isinstance(operation, Affine):
            gradient = Gradient(operation.sigma_w2 * gradient.v, operation.sigma_w2 * gradient.c)
        elif isinstance(operation, Normalize):
            factor = operation.gamma2 / z.v
            gradient = Gradient(factor * gradient.v, factor * gradient.c)
        elif isinstance(operation, Activate):
            (gradient,) = operation.backward(gradient, [z], output)
        elif not isinstance(operation, Flatten | Reshape):
            raise ValueError("variant='paper' knows dense and convolutional layers only; take variant='exact'.")
    return Flow(states, gradients, found[::-1], [[] for _ in nodes])


def _terms(operation: object, gradient: Gradient, z: State, output: State) -> list[Term]:
    """Eq. 45, which is N q̂_xy q̃_xy for a dense layer, and the parameters that eqs. 158 and 164 drop."""
    n = output.layout.count

    def decoupled(back: tuple[Array, Array], front: tuple[float, Array]) -> tuple[float, float]:
        other = (n - 1) * back[1][1], (n - 1) * front[1][1]
        return (
            float((other[0] + back[1][0]) * (other[1] + front[1][0])),
            float((other[0] + back[0]) * (other[1] + front[0])),
        )

    both = (gradient.v, gradient.c)
    ones = (1.0, np.ones(2))
    if isinstance(operation, Affine):
        weight = (operation.fan_in * x for x in decoupled(both, (float(z.v), z.c)))
        bias = decoupled(both, ones)
        return [Term(operation.name, "weight", *weight), Term(operation.name, "bias", *bias)]
    if isinstance(operation, Normalize):
        gamma2 = operation.gamma2 or 1.0
        radial = gradient.radial() if gradient.radial is not None else both
        gamma = (x / gamma2 for x in decoupled(radial, ones))
        return [Term(operation.name, "gamma", *gamma), Term(operation.name, "beta", *decoupled(both, ones))]
    return []
