"""Random instances for the theorems of the bnp paper."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from trimtab.theory.bounds.inputs import augment
from trimtab.theory.bounds.sides import Array

Rng = np.random.Generator


def tensor(values: Array) -> Tensor:
    """Float64, whatever numpy has."""
    return torch.as_tensor(values, dtype=torch.float64)


def layer_inputs(rng: Rng, width: int | None = None) -> Array:
    """Inputs of a layer: 3 to 8 features of unlike mean and scale, twice as many samples and more."""
    n = int(rng.integers(3, 9)) if width is None else width
    return rng.normal(size=(2 * n + int(rng.integers(10)), n)) * np.exp(rng.normal(size=n)) + 2 * rng.normal(size=n)


def few_samples(rng: Rng) -> Array:
    """Fewer samples than features, so that Ĥ has not full column rank."""
    n = int(rng.integers(3, 10))
    return rng.normal(size=(int(rng.integers(2, n)), n)) * np.exp(rng.normal(size=n)) + rng.normal(size=n)


def two_groups(rng: Rng) -> Array:
    """Inputs with Property A: centred features are orthogonal within either group, and oblique between them."""
    first, second = (int(n) for n in rng.integers(1, 4, 2))
    samples = first + 2 * second + 4
    basis = np.linalg.qr(np.column_stack([np.ones(samples), rng.normal(size=(samples, samples - 1))]))[0][:, 1:]
    between = rng.normal(size=(first, second))
    rest = np.diag((between**2).sum(0)) * (1 + second) + np.eye(second) - between.T @ between  # positive definite
    other = basis[:, :first] @ between + basis[:, first : first + second] @ np.linalg.cholesky(rest).T
    width = first + second
    columns = np.hstack([basis[:, :first], other])[:, rng.permutation(width)]
    return columns * np.exp(rng.normal(size=width)) + rng.normal(size=width)


def orthogonal_features(rng: Rng) -> Array:
    """Centred features that are orthogonal to each other, of unlike scale."""
    width = int(rng.integers(2, 7))
    samples = width + 2 + int(rng.integers(8))
    columns = np.linalg.qr(np.column_stack([np.ones(samples), rng.normal(size=(samples, width))]))[0][:, 1:]
    return np.asarray(columns * np.sqrt(samples) * np.exp(rng.normal(size=width)))


def definite(rng: Rng, size: int, rank: int | None = None) -> Array:
    """A positive semi-definite matrix of a rank; definite if none is given."""
    basis = np.linalg.qr(rng.normal(size=(size, size)))[0]
    values = np.exp(rng.uniform(-3, 3, size=size))
    values[size if rank is None else rank :] = 0
    return np.asarray((basis * values) @ basis.T)


class Unit(NamedTuple):
    """A unit of a two-layer network on a batch, with cross-entropy.

    Attributes:
        rows: Ĥ.
        weights: ŵ = [b; w].
        outer: The weights of the next layer for this unit.
        offsets: What the other units contribute to the outputs.
        classes: Of the samples.
    """

    rows: Tensor
    weights: Tensor
    outer: Tensor
    offsets: Tensor
    classes: Tensor

    def losses(self, activations: Tensor) -> Tensor:
        """The loss of each sample as a function of the unit's activation."""
        outputs = torch.tanh(activations)[:, None] * self.outer + self.offsets
        return -torch.log_softmax(outputs, -1).gather(1, self.classes[:, None])[:, 0]

    def curvature(self) -> Array:
        """L″ of each sample, by autograd."""
        activations = (self.rows @ self.weights).requires_grad_()
        (first,) = torch.autograd.grad(self.losses(activations).sum(), activations, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), activations)
        return np.asarray(second.numpy())


def unit(rng: Rng, inputs: Array) -> Unit:
    """A unit on a batch of inputs."""
    samples, width = inputs.shape
    drawn = rng.normal(size=width + 1) * 0.3, rng.normal(size=3), rng.normal(size=(samples, 3))
    weights, outer, offsets = map(tensor, drawn)
    return Unit(tensor(augment(inputs)), weights, outer, offsets, torch.as_tensor(rng.integers(3, size=samples)))
