"""Trace and density of a symmetric matrix from its products with random vectors."""

import math

import torch
from torch import Tensor

from trimtab.probes.spectrum.basis import Basis, products
from trimtab.probes.spectrum.lanczos import Lanczos, Product, signs


def rest_of_trace(
    product: Product, basis: Basis, like: Tensor, vectors: int, generator: torch.Generator
) -> tuple[float, float]:
    """The trace of a matrix outside of a space, by Hutchinson's estimate with vectors of random signs.

    The trace within the space is known exactly if the space comes from Lanczos' method, and holds the eigenvalues that
    would make the estimate vary most (Hutch++: Meyer, Musco, Musco and Woodruff, 2021).

    Returns:
        The estimate, and its standard error (NaN with one vector).
    """
    if len(basis) >= like.numel():
        return 0.0, 0.0
    samples = []
    for _ in range(vectors):
        vector = signs(like, generator)
        basis.orthogonalize(vector)
        samples.append(products(vector.unsqueeze(0), product(vector)))
    return mean_and_error(torch.cat(samples))


def mean_and_error(samples: Tensor) -> tuple[float, float]:
    """The mean and its standard error, which is NaN for one sample."""
    samples = samples.double()
    error = float(samples.std()) / math.sqrt(len(samples)) if len(samples) > 1 else math.nan
    return float(samples.mean()), error


def quadrature(product: Product, start: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights with Σ w f(θ) ≈ xᵀf(A)x for x = start/‖start‖: exact for polynomials of degree < 2·steps.

    With starts of random signs the mean over them is the mean of f over all eigenvalues: stochastic Lanczos quadrature
    (Ubaru, Chen and Saad, 2017; Ghorbani, Krishnan and Xiao, 2019).
    """
    lanczos = Lanczos(product, start)
    while lanczos.products < min(steps, start.numel()) and not lanczos.exhausted:
        lanczos.step()
    nodes, _, vectors = lanczos.ritz()
    return nodes, vectors[0].square()


def smoothed(nodes: Tensor, weights: Tensor, *, width: float, points: int) -> tuple[Tensor, Tensor]:
    """A density on a grid: at each node a Gaussian of its weight; its integral by the trapezoidal rule is 1.

    Args:
        nodes: Eigenvalues, or the nodes of a quadrature.
        weights: Of the nodes.
        width: The standard deviation of the Gaussians, as a share of the distance from the lowest to the largest node.
        points: Of the grid, which goes 4 standard deviations beyond the nodes.

    Returns:
        The grid and the density.
    """
    low, high = float(nodes.min()), float(nodes.max())
    size = max(abs(low), abs(high))
    # Nodes that are all the same have no distance between them.
    sigma = width * ((high - low) if high - low > 1e-9 * size else (size or 1.0))
    grid = torch.linspace(low - 4 * sigma, high + 4 * sigma, points, dtype=torch.double)
    kernel = torch.exp(-((grid.unsqueeze(1) - nodes) / sigma).square() / 2)
    density = kernel @ weights.double()
    return grid, density / torch.trapezoid(density, grid)
