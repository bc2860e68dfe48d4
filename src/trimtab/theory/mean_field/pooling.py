"""Max-pooling of activated Gaussian feature maps.

Within a window of n sites, z_α = g + ε_α: g is what the sites share and ε_α what each has for itself. For given g the
largest of n independent Gaussians has a known density, so that the largest activation is on average a function F(g) of
one Gaussian variable, and mean field takes F for an activation function. The papers have no max-pooling; this is ours.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtr

from trimtab.theory.mean_field.activations import Activation, Array, Quadrature, equal_steps, expectation, shifted
from trimtab.theory.mean_field.graph import Gradient, Parameterless, State
from trimtab.theory.mean_field.positions import Window

POINTS = 400


@dataclass(frozen=True)
class ActivatedMaxPool(Parameterless):
    """The largest φ(z) of each window, for an activation that does not fall.

    Attributes:
        activation: φ.
        window: Sites and stride.
    """

    activation: Activation
    window: Window

    def forward(self, *inputs: State) -> State:
        """E F(g)F(g′) for each pair of windows; for one sample the mean of the largest value's square."""
        (z,) = inputs
        shared, covariance, largest = self._parts(z)
        layout = z.layout.at(self.window.output(z.layout.size))
        phi = shifted(self.activation, z.mean).phi
        average = largest.function(phi)
        first, second = layout.variances(shared)
        v = expectation(largest.function(lambda x: phi(x) ** 2), shared)
        c = Quadrature(average, smooth=True).value(first, second, covariance)
        mean = float(expectation(average, np.asarray(layout.mean(shared))))
        return replace(z, layout=layout, v=v, c=c, mean=mean)

    def backward(self, gradient: Gradient, inputs: Sequence[State], output: State) -> list[Gradient]:
        """The gradient goes to the largest site, which is each of the n as often."""
        z = inputs[0]
        shared, covariance, largest = self._parts(z)
        first, second = output.layout.variances(shared)
        prime, mean = shifted(self.activation, z.mean).prime, z.mean

        def back(function: Callable[[Array], Array]) -> tuple[Array, Array]:
            pairs = Quadrature(largest.function(function), smooth=True).value(first, second, covariance)
            single = expectation(largest.function(lambda x: function(x) ** 2), shared)
            # n times, since a mean would give each site 1/n² of it, and here one of n sites gets all.
            v = self.window.sites * gradient.v * single
            return z.layout.unpool(v, gradient.c * pairs, self.window, output.layout)

        return [Gradient(*back(prime), radial=lambda: back(lambda x: (x + mean) * prime(x)))]

    def _parts(self, z: State) -> tuple[Array, Array, "_Largest"]:
        """The variance that a window's sites share, its covariance between windows, and what they do not share."""
        _, covariance = z.layout.pool(z.v - z.mean**2, z.c - z.mean**2, self.window)
        layout = z.layout.at(self.window.output(z.layout.size))
        shared = np.maximum(layout.same(covariance), 0.0)
        own = max(z.layout.mean(z.v) - z.mean**2 - layout.mean(shared), 0.0)
        reach = 9 * np.sqrt(float(shared.max(initial=0.0))) + 1e-6
        return shared, covariance, _Largest(self.window.sites, float(np.sqrt(own)), float(reach))


@dataclass(frozen=True)
class _Largest:
    """The largest of n independent Gaussians about a common g.

    Attributes:
        sites: n.
        deviation: Of each.
        reach: How far g goes on both sides.
    """

    sites: int
    deviation: float
    reach: float

    def function(self, f: Callable[[Array], Array]) -> Callable[[Array], Array]:
        """The function g ↦ E f(largest), by a table."""
        t, weights = equal_steps(POINTS)
        weights = weights * ndtr(t) ** (self.sites - 1)
        weights /= weights.sum()
        g = np.linspace(-self.reach, self.reach, 2 * POINTS + 1)
        table = f(g[:, None] + self.deviation * t[None, :]) @ weights
        return lambda x: np.interp(x, g, table)
