"""The operations of a network as maps of order parameters: layers, normalizations, activations, poolings, sums."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from trimtab.theory.mean_field.activations import Activation, Array, expectation, shifted
from trimtab.theory.mean_field.graph import Gradient, Parameterless, State, Term
from trimtab.theory.mean_field.positions import Layout, Window

POINT = Window((1, 1))


@dataclass(frozen=True)
class Affine:
    """A dense or convolutional layer, z = W h + b (eqs. 20, 21, 34–36 left; 111).

    Attributes:
        name: The layer's name.
        channels: Outputs.
        fan_in: N_{l−1}: weights of one output.
        sigma_w2: Their variance times fan-in.
        sigma_b2: The biases' variance, or their mean square where they have a mean.
        window: Sites, stride and padding.
        parameters: Which of `weight` and `bias` are trained.
        bias: The biases' mean.
        gains: The squares of the factors by which trained weights and biases are multiplied before they are used.
    """

    name: str
    channels: int
    fan_in: int
    sigma_w2: float
    sigma_b2: float
    window: Window = POINT
    parameters: tuple[str, ...] = ("weight", "bias")
    bias: float = 0.0
    gains: tuple[float, float] = (1.0, 1.0)

    def forward(self, *inputs: State) -> State:
        """σ_b² + σ_w² times the mean over the kernel's sites."""
        (h,) = inputs
        v, c = h.layout.patches(h.v, h.c, self.window)
        layout = h.layout.at(self.window.output(h.layout.size))
        return State(layout, self.sigma_b2 + self.sigma_w2 * v, self.sigma_b2 + self.sigma_w2 * c, self.bias)

    def backward(self, gradient: Gradient, inputs: Sequence[State], output: State) -> list[Gradient]:
        """σ_w² times the sum over the kernel's sites, over their number."""
        v, c = inputs[0].layout.spread(gradient.v, gradient.c, self.window, output.layout)
        return [Gradient(self.sigma_w2 * v, self.sigma_w2 * c)]

    def terms(self, gradient: Gradient, inputs: Sequence[State], output: State) -> list[Term]:
        """f_l = N_{l−1} Σ q̃ q̂ over pairs of positions (eqs. 161, 165), and the bias' Σ q̃ (first term of eq. 156)."""
        patches = inputs[0].layout.patches(inputs[0].v, inputs[0].c, self.window)
        pair, single = output.layout.dot((gradient.v, gradient.c), patches)
        weights, biases = self.fan_in * self.gains[0], self.gains[1]
        together, alone = output.layout.dot((gradient.v, gradient.c), output.layout.fill(1.0, 1.0, 1.0))
        both = [
            Term(self.name, "weight", weights * pair, weights * single),
            Term(self.name, "bias", biases * together, biases * alone),
        ]
        return [term for term in both if term.parameter in self.parameters]


@dataclass(frozen=True)
class Flatten(Parameterless):
    """Positions become channels, and channels positions or channels; only for a layer whose weights mix the new ones.

    From then on only equal positions of two samples are multiplied.

    Attributes:
        size: Height and width of the output: (1, 1) where channels stay channels, as in flattening.
    """

    size: tuple[int, int] = (1, 1)

    def forward(self, *inputs: State) -> State:
        """Means over positions; different channels have their mean in common."""
        (h,) = inputs
        layout = h.layout.at(self.size)
        v, c = layout.fill(h.layout.mean(h.v), h.layout.mean(h.layout.same(h.c)), h.mean**2)
        spread = max(h.layout.mean_other(h.c) - h.mean**2, 0.0) if layout.count > 1 else 0.0
        return State(layout, v, c, h.mean, spread)

    def backward(self, gradient: Gradient, inputs: Sequence[State], output: State) -> list[Gradient]:
        """An equal share for each position; at different ones gradients are independent."""
        layout, ratio = inputs[0].layout, output.layout.count / inputs[0].layout.count
        v = output.layout.mean(gradient.v) * ratio
        same = output.layout.mean(output.layout.same(gradient.c)) * ratio
        return [Gradient(*layout.fill(v, same, 0.0))]


@dataclass(frozen=True)
class Normalize:
    """γ(z − μ)/s + β, with statistics that are held fixed in the gradient (eqs. 13, 23–25).

    Attributes:
        name: The layer's name.
        gamma2: Mean of γ².
        beta2: Mean of β².
        beta: Mean of β.
        eps: Added to the variance.
        centre: Whether the mean is subtracted: that over samples and positions, or for "sample" that over units.
        divide: Whether s² is the variance over samples and positions ("batch"), that of a sample over units and
            positions ("sample", as in GroupNorm) or over units at each position ("position", as in LayerNorm), the mean
            square over samples and positions ("square"), or 1 (None).
        frozen: Whether the gradient does not pass through the statistics of the batch; otherwise it loses its mean over
            samples and positions.
        parameters: Which of `gamma` and `beta` are trained.
        own: Whether each position has a γ and a β of its own.
        group: The channels that "sample" takes together; None: so many that their mean has no fluctuations.
    """

    name: str
    gamma2: float
    beta2: float = 0.0
    beta: float = 0.0
    eps: float = 0.0
    centre: bool = True
    divide: Literal["batch", "sample", "position", "square"] | None = "batch"
    frozen: bool = True
    parameters: tuple[str, ...] = ("gamma", "beta")
    own: bool = False
    group: int | None = None

    def forward(self, *inputs: State) -> State:
        """Subtract the mean over samples and positions; differences between positions remain."""
        (z,) = inputs
        v, c = self._normalized(z)
        mean = 0.0 if self.centre else z.mean * np.sqrt(self.gamma2 / float(np.mean(self._variance(z))))
        more = self.beta2 + 2 * self.beta * mean
        spread = 0.0 if self.divide == "position" else z.spread * self.gamma2 / float(self._variance(z))
        return State(z.layout, self.gamma2 * v + more, self.gamma2 * c + more, mean + self.beta, spread)

    def backward(self, gradient: Gradient, inputs: Sequence[State], output: State) -> list[Gradient]:
        """γ²/s²; s² = q − q_xy is the variance of a unit over samples, and not q as eq. 25 has it."""
        v, c = gradient.v, gradient.c
        if not self.frozen and self.centre and self.divide not in ("sample", "position"):
            v, c = _centred(output.layout, v, c)
        if self.group is not None:
            v, c = _centred_in_groups(output.layout, v, c, self.group)
        return [Gradient(*self._divided(inputs[0], self.gamma2 * v, self.gamma2 * c))]

    def terms(self, gradient: Gradient, inputs: Sequence[State], output: State) -> list[Term]:
        """The two terms of eq. 157."""
        pairs = output.layout.fill(1.0, 1.0, 0.0 if self.own else 1.0)
        terms = []
        if "gamma" in self.parameters:
            if gradient.radial is None:
                v, c = self._normalized(inputs[0])
                pair, single = output.layout.dot((gradient.v, gradient.c), (pairs[0] * v, pairs[1] * c))
            else:
                sums = output.layout.dot(gradient.radial(), pairs)
                pair, single = (x / self.gamma2 if self.gamma2 else 0.0 for x in sums)
            terms.append(Term(self.name, "gamma", pair, single))
        if "beta" in self.parameters:
            terms.append(Term(self.name, "beta", *output.layout.dot((gradient.v, gradient.c), pairs)))
        return terms

    def _variance(self, z: State) -> Array:
        """s², one number or one for each position."""
        if self.divide is None:
            return np.array(1.0)
        v: Array | float = z.v if self.divide == "position" else z.layout.mean(z.v)
        if self.group is not None:
            v, _ = _centred_in_groups(z.layout, z.v - z.mean**2, z.c - z.mean**2, self.group)
            return np.asarray(np.maximum(z.layout.mean(v) + self.eps, np.finfo(float).tiny))
        mean = {"batch": z.layout.mean_pairs(z.c), "square": 0.0}.get(self.divide, self._mean2(z))
        return np.asarray(np.maximum(v - mean + self.eps, np.finfo(float).tiny))

    def _mean2(self, z: State) -> float:
        """The square of the mean over units that is subtracted from a sample."""
        return (z.mean**2 + z.spread * (self.divide == "position")) if self.centre else 0.0

    def _divided(self, z: State, v: Array, c: Array) -> tuple[Array, Array]:
        s2 = self._variance(z)
        if s2.ndim == 0:
            return v / s2, c / s2
        first, second = z.layout.variances(s2)
        return v / s2, c / np.sqrt(first * second)

    def _normalized(self, z: State) -> tuple[Array, Array]:
        v, c = z.v, z.c
        if self.divide in ("sample", "position"):
            mean = z.mean**2 if self.centre else 0.0
            less = z.layout.fill(self._mean2(z), self._mean2(z), mean)  # two positions have different means
            v, c = v - less[0], c - less[1]
            if self.group is not None:
                v, c = _centred_in_groups(z.layout, v, c, self.group)
        elif self.centre:
            v, c = _centred(z.layout, v, c)
        return self._divided(z, v, c)


@dataclass(frozen=True)
class Activate(Parameterless):
    """h = φ(z), with z Gaussian (eqs. 85, 89, 94; 112, 139).

    Attributes:
        activation: φ.
    """

    activation: Activation

    def forward(self, *inputs: State) -> State:
        """E φ(a)φ(b) for each pair."""
        (z,) = inputs
        phi, v, first, second, c = self._about_mean(z)
        mean = float(expectation(phi.phi, np.asarray(z.layout.mean(v))))
        return State(z.layout, phi.value(v, v, v), phi.value(first, second, c), mean)

    def backward(self, gradient: Gradient, inputs: Sequence[State], output: State) -> list[Gradient]:
        """E φ′(a)φ′(b) for each pair."""
        phi, v, first, second, c = self._about_mean(inputs[0])

        def radial() -> tuple[Array, Array]:
            return gradient.v * phi.gain(v, v, v), gradient.c * phi.gain(first, second, c)

        return [Gradient(gradient.v * phi.slope(v, v, v), gradient.c * phi.slope(first, second, c), radial)]

    def _about_mean(self, z: State) -> tuple[Activation, Array, Array, Array, Array]:
        """The activation as a function of the deviation from the mean over units, and the moments of that deviation."""
        v = np.maximum(z.v - z.mean**2, 0.0)
        return (shifted(self.activation, z.mean), v, *z.layout.variances(v), z.c - z.mean**2)


@dataclass(frozen=True)
class MeanPool(Parameterless):
    """Average pooling; with a kernel of one site it selects positions.

    Attributes:
        window: Sites, stride and padding.
    """

    window: Window

    def forward(self, *inputs: State) -> State:
        """Means over pairs of sites."""
        (h,) = inputs
        v, c = h.layout.pool(h.v, h.c, self.window)
        layout = h.layout.at(self.window.output(h.layout.size))
        return State(layout, v, c, h.mean, h.spread / self.window.sites)

    def backward(self, gradient: Gradient, inputs: Sequence[State], output: State) -> list[Gradient]:
        """The transpose."""
        return [Gradient(*inputs[0].layout.unpool(gradient.v, gradient.c, self.window, output.layout))]


@dataclass(frozen=True)
class Add(Parameterless):
    """The sum of a branch and a skip, the branch's last weights being independent of all else."""

    def forward(self, *inputs: State) -> State:
        """Order parameters add."""
        v, c, mean, spread = (sum(getattr(x, name) for x in inputs) for name in ("v", "c", "mean", "spread"))
        products = mean**2 - sum(x.mean**2 for x in inputs)  # of one's mean and the other's
        return State(inputs[0].layout, v + products, c + products, mean, spread)

    def backward(self, gradient: Gradient, inputs: Sequence[State], output: State) -> list[Gradient]:
        """The gradient goes to both."""
        return [Gradient(gradient.v, gradient.c)] * len(inputs)


def _centred(layout: Layout, v: Array, c: Array) -> tuple[Array, Array]:
    """The moments after the mean over samples and positions is subtracted."""
    mean = layout.mean_pairs(c)
    row, both = layout.row_means(c)
    return v - 2 * row + mean, c - both + mean


def _centred_in_groups(layout: Layout, v: Array, c: Array, channels: int) -> tuple[Array, Array]:
    """The same after each sample's mean over positions and so many channels of mean 0 is subtracted."""
    mean = layout.mean_pairs(c)
    row, both = layout.row_means(c)
    own = (v - layout.same(c)) / layout.count  # a position goes along with itself in the same sample
    single = row + own
    return v - (2 * single - mean - layout.mean(own)) / channels, c - (both - mean) / channels
