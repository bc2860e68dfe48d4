"""From mean field's eigenvalue of one output to that of a loss of all outputs.

In mean field the samples share one direction. There the Gauss–Newton matrix is a sum over parameters of f·G over the
outputs, seen through H̄, the mean over samples of the loss's second derivative: f is what the parameter adds for one
output, and G how the gradients of two outputs with respect to it are correlated. For the output layer's own
parameters G is the identity; below, each layer with N inputs for its weights makes L(ZZᵀ/N)Lᵀ of G = LLᵀ, with Z of
standard normal numbers. In infinitely wide networks that is the identity, too; for C outputs of a single layer its
largest eigenvalue is about (1 + √(C/N))².
"""

import math
from collections.abc import Sequence

import numpy as np

from trimtab.theory.mean_field.activations import Array
from trimtab.theory.mean_field.graph import Flow, Gradient, Node, State, Term
from trimtab.theory.mean_field.operations import Affine

DRAWS, SAMPLES = 48, 512


def lambda_of_all(
    nodes: Sequence[Node], flow: Flow, outputs: int, *, loss: str, samples: int | None
) -> tuple[float, float]:
    """The largest eigenvalue for all outputs: the mean over drawn correlations (and outputs, for cross-entropy).

    Args:
        nodes: The network.
        flow: Its order parameters.
        outputs: How many there are.
        loss: `squared` or `cross_entropy`.
        samples: The size of the data set; None: infinite.

    Returns:
        The mean, and the deviation from draw to draw as a share of it.
    """
    rng = np.random.default_rng(0)
    shares = [_shares(state, sources) for state, sources in zip(flow.states, flow.sources, strict=True)]
    adds = [math.fsum(_for_samples(term, samples) for term in terms) for terms in flow.own_terms]
    found = []
    for _ in range(DRAWS):
        total = np.zeros((outputs, outputs))
        for part, correlation in zip(adds, _correlations(nodes, shares, outputs, rng), strict=True):
            if correlation is not None:
                total += part * correlation
        if loss == "cross_entropy":
            values, vectors = np.linalg.eigh(_mean_hessian(flow.states[-1], outputs, rng))
            root = vectors * np.sqrt(np.maximum(values, 0))
            total = root.T @ total @ root
        found.append(np.linalg.eigvalsh(total)[-1])
    mean = float(np.mean(found))
    return mean, float(np.std(found)) / mean if mean > 0 else 0.0


def _for_samples(term: Term, samples: int | None) -> float:
    return term.value if samples is None else term.value + (term.diagonal - term.value) / samples


def _shares(state: State, sources: Sequence[tuple[int, Gradient]]) -> list[tuple[int, float]]:
    """Which nodes the gradient at a node comes from, and the share of each."""
    sizes = [abs(float(state.layout.mean(state.layout.same(each.c)))) for _, each in sources]
    total = math.fsum(sizes)
    shares = [size / total if total > 0 else 1 / len(sizes) for size in sizes]
    return list(zip([number for number, _ in sources], shares, strict=True))


def _correlations(
    nodes: Sequence[Node], shares: list[list[tuple[int, float]]], outputs: int, rng: np.random.Generator
) -> list[Array | None]:
    """How the gradients of outputs at each node are correlated, for one draw of the weights."""
    at: list[Array | None] = [None] * len(nodes)
    through: list[Array | None] = [None] * len(nodes)
    for number in reversed(range(len(nodes))):
        parts = [(share, through[source]) for source, share in shares[number]]
        if number == len(nodes) - 1:
            at[number] = np.eye(outputs)
        elif parts:
            at[number] = sum(share * part for share, part in parts if part is not None)  # type: ignore[assignment]
        own = at[number]
        operation = nodes[number].operation
        if own is not None and isinstance(operation, Affine):
            factor = np.linalg.cholesky(own + 1e-12 * np.eye(outputs))
            z = factor @ rng.standard_normal((outputs, operation.fan_in))
            own = z @ z.T / operation.fan_in
        through[number] = own
    return at


def _mean_hessian(state: State, outputs: int, rng: np.random.Generator) -> Array:
    """The mean over samples of diag(p) − ppᵀ, where outputs are Gaussian and share a part between samples."""
    q, q_xy = float(state.layout.mean(state.v)), float(state.layout.mean(state.layout.same(state.c)))
    shared = math.sqrt(max(q_xy, 0.0)) * rng.standard_normal(outputs)
    own = math.sqrt(max(q - q_xy, 0.0)) * rng.standard_normal((SAMPLES, outputs))
    logits = shared + own
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    return np.asarray(np.diag(p.mean(0)) - p.T @ p / SAMPLES)
