"""Max-pooling after an activation, for Gaussian feature maps. It is not in the papers.

At a position α a channel's preactivation is μ_α + ε_α: μ is the channel's mean over samples, a Gaussian field over
positions with the covariance c, and ε is what a sample adds, of variance v − c. Given μ, and with ε independent from
site to site, the largest of a window has a known distribution, so that E max φ is a function M(μ) by quadrature in one
dimension. Two samples have μ in common: c of the output is E M(μ)M(μ′) over the field, which is drawn by quasi-Monte
Carlo along its principal directions. Which site is the largest, and so where the gradient goes, depends on μ likewise.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtr, ndtri

from trimtab.theory.mean_field.activations import Activation, Array
from trimtab.theory.mean_field.graph import Gradient, Parameterless, State
from trimtab.theory.mean_field.positions import Grid, Uniform, Window, cuts

STEPS = 48  # of the largest value's distribution
MAX_FIELDS = 4096
MIN_FIELDS = 512
WORK = 1 << 19  # fields times sites, as far as the two bounds allow
CHUNK = 1 << 22  # values held in memory at a time


@dataclass(frozen=True)
class ActivatedMaxPool(Parameterless):
    """The largest φ(z) of each window, for an activation that is nowhere decreasing.

    Attributes:
        activation: φ.
        window: Sites, stride and padding.
    """

    activation: Activation
    window: Window

    def forward(self, *inputs: State) -> State:
        """E M(μ)M(μ′) for each pair of windows; for one sample the mean of the largest value's square."""
        (z,) = inputs
        layout = z.layout.at(self.window.output(z.layout.size))
        parts = [
            ((chance * phi).sum(2), (chance * phi**2).sum(2))
            for _, _, largest, chance in self._largest(z)
            for phi in (self.activation.phi(largest),)
        ]
        first, second = (np.concatenate(part) for part in zip(*parts, strict=True))
        v, c = second.mean(0), first.T @ first / len(first)
        if isinstance(layout, Grid):
            v, c = v.reshape(layout.size), c.reshape(layout.size * 2)
        else:
            v, c = v.mean(), np.array([(c[0, 0] + c[1, 1]) / 2, c[0, 1]])
        return replace(z, layout=layout, v=v, c=c, mean=float(first.mean()))

    def backward(self, gradient: Gradient, inputs: Sequence[State], output: State) -> list[Gradient]:
        """The gradient goes to the largest site."""
        prime = self.activation.prime
        plain, radial = self._back(gradient, inputs[0], output, [prime, lambda x: x * prime(x)])
        return [Gradient(*plain, lambda: radial)]

    def _back(
        self, gradient: Gradient, z: State, output: State, functions: Sequence[Callable[[Array], Array]]
    ) -> list[tuple[Array, Array]]:
        """For each function: to each site, function(largest) where it is the largest."""
        parts: list[list[tuple[Array, Array]]] = [[] for _ in functions]
        for mu, deviations, largest, chance in self._largest(z):
            weights = chance[:, :, None] * _shares(largest - z.mean, mu, deviations)
            for function, part in zip(functions, parts, strict=True):
                values = function(largest)[..., None]
                part.append(((weights @ values)[..., 0], (weights @ values**2)[..., 0]))
        found = []
        for part in parts:
            first, second = (np.concatenate(one) for one in zip(*part, strict=True))
            flat = first.reshape(len(first), -1)
            pairs = (flat.T @ flat / len(flat)).reshape(first.shape[1:] * 2)
            found.append(self._spread(gradient, z, output, second.mean(0), pairs))
        return found

    def _spread(self, gradient: Gradient, z: State, output: State, single: Array, pairs: Array) -> tuple[Array, Array]:
        """From sites of windows to positions."""
        if isinstance(z.layout, Grid):
            return self._scatter(gradient, z.layout, output, single, pairs)
        here, above = z.layout.count, output.layout.count
        equal, other = np.asarray(gradient.c)
        v = gradient.v * single.mean(0).sum() * above / here
        same = equal * np.trace(pairs[0, :, 0]) * above
        total = equal * pairs[0, :, 0].sum() * above + other * pairs[0, :, 1].sum() * above * (above - 1)
        return np.asarray(v), np.array([same / here, (total - same) / (here * (here - 1)) if here > 1 else 0.0])

    def _scatter(
        self, gradient: Gradient, layout: Grid, output: State, single: Array, pairs: Array
    ) -> tuple[Array, Array]:
        """Sites of windows to positions of the feature map; what would fall on padding is 0."""
        size, padding = output.layout.size, self.window.padding
        wide_v = np.zeros(tuple(n + 2 * p for n, p in zip(layout.size, padding, strict=True)))
        wide_c = np.zeros(wide_v.shape * 2)
        places = cuts(self.window, size)
        for i, here in enumerate(places):
            wide_v[here] += gradient.v * single[:, i].reshape(size)
            for j, there in enumerate(places):
                wide_c[here + there] += gradient.c * pairs[:, i, :, j].reshape(size * 2)
        inner = tuple(slice(p, p + n) for n, p in zip(layout.size, padding, strict=True))
        return wide_v[inner], wide_c[inner * 2]

    def _largest(self, z: State) -> Iterator[tuple[Array, Array, Array, Array]]:
        """The distribution of each window's largest z, in parts.

        Yields:
            μ (fields, windows, sites, 1), the deviation of ε (windows, sites, 1), values of the largest z (fields,
            windows, steps), and the chance of each.
        """
        fields, deviation = self._fields(z)
        deviations = deviation[..., None]
        steps = np.linspace(-7.0, 7.0, STEPS + 1)
        chunk = max(1, CHUNK // (fields[0].size * STEPS))
        for start in range(0, len(fields), chunk):
            mu = fields[start : start + chunk, :, :, None]
            edges = mu.max(2) + deviations.max(1) * steps
            largest = (edges[..., 1:] + edges[..., :-1]) / 2
            below = ndtr((edges[:, :, None] - mu) / deviations).prod(2)
            yield mu, deviations, largest + z.mean, np.diff(below, axis=2)

    def _fields(self, z: State) -> tuple[Array, Array]:
        """Draws of μ (fields, windows, sites), and the deviation of ε (windows, sites).

        Of a uniform layout two windows are enough.
        """
        c = z.c - z.mean**2
        own = z.v - z.mean**2 - z.layout.same(c)
        sites = self.window.sites
        if isinstance(z.layout, Uniform):
            matrix = np.full((2 * sites, 2 * sites), c[1]) + np.eye(2 * sites) * (c[0] - c[1])
            fields, deviation = _draw(matrix).reshape(-1, 2, sites), np.full((2, sites), own)
        else:
            size, padding = z.layout.size, self.window.padding
            places = cuts(self.window, self.window.output(size))
            wide = [(p, p) for p in padding]
            mu = np.pad(
                _draw(c.reshape(z.layout.count, z.layout.count)).reshape(-1, *size),
                [(0, 0), *wide],
                constant_values=-np.inf,
            )
            fields = np.stack([mu[:, rows, columns].reshape(len(mu), -1) for rows, columns in places], axis=2)
            around = np.pad(own, wide, constant_values=own.max())
            deviation = np.stack([around[place].ravel() for place in places], axis=1)
        floor = 1e-12 * max(float(np.max(z.v)), np.finfo(float).tiny)
        return fields, np.sqrt(np.maximum(deviation, floor))


def _shares(largest: Array, mu: Array, deviations: Array) -> Array:
    """The chance of each site to be the largest of its window, given its value: (fields, windows, sites, steps)."""
    x = (largest[:, :, None] - mu) / deviations
    tiny = np.finfo(float).tiny
    hazard = np.exp(-(x**2) / 2) / np.maximum(ndtr(x), tiny) / deviations
    return np.asarray(hazard / np.maximum(hazard.sum(2, keepdims=True), tiny))


def _draw(covariance: Array) -> Array:
    """Gaussian fields of that covariance, which their own covariance about 0 equals."""
    from scipy.stats import qmc  # which takes a second to import

    variances, directions = np.linalg.eigh(covariance)
    nonzero = variances > 1e-9 * max(float(variances[-1]), np.finfo(float).tiny)
    directions = (directions[:, nonzero] * np.sqrt(variances[nonzero]))[:, ::-1]
    if not directions.size:
        return np.zeros((1, len(covariance)))
    count = int(np.clip(2 ** int(np.log2(WORK / len(covariance))), MIN_FIELDS, MAX_FIELDS))
    shift = np.random.default_rng(0).random(directions.shape[1])
    points = ndtri((qmc.Sobol(directions.shape[1], scramble=False).random(count) + shift) % 1)
    if count > 2 * directions.shape[1]:
        # Whiten, so that second moments are exact.
        points = np.linalg.solve(np.linalg.cholesky(points.T @ points / count), points.T).T
    return np.asarray(points @ directions.T)
