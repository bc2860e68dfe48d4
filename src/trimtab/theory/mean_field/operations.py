"""The operations of a network as maps of order parameters: layers, normalizations, activations, poolings, sums."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    """

    name: str
    channels: int
    fan_in: int
    sigma_w2: float
    sigma_b2: float
    window: Window = POINT
    parameters: tuple[str, ...] = ("weight", "bias")
    bias: float = 0.0

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
        both = [
            Term(self.name, "weight", self.fan_in * pair, self.fan_in * single),
            Term(self.name, "bias", *_sums(gradient, output)),
        ]
        return [term for term in both if term.parameter in self.parameters]


@dataclass(frozen=True)
class Flatten(Parameterless):
    """Flattening: positions become channels, and only equal positions of two samples are multiplied from then on."""

    def forward(self, *inputs: State) -> State:
        """Means over positions."""
        (h,) = inputs
        layout = h.layout.at((1, 1))
        v, c = layout.fill(h.layout.mean(h.v), h.layout.mean(h.layout.same(h.c)), 0.0)
        return State(layout, v, c, h.mean)

    def backward(self, gradient: Gradient, inputs: Sequence[State], output: State) -> list[Gradient]:
        """An equal share for each position; at different ones gradients are independent."""
        layout = inputs[0].layout
        v = output.layout.mean(gradient.v) / layout.count
        same = output.layout.mean(output.layout.same(gradient.c)) / layout.count
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
        divide: Whether s² is the variance over samples and positions ("batch"), that of a sample over units ("sample",
            as in LayerNorm), its mean square ("square"), or 1 (None).
        frozen: Whether the gradient does not pass through the statistics of the batch; otherwise it loses its mean over
            samples and positions.
        parameters: Which of `gamma` and `beta` are trained.
    """

    name: str
    gamma2: float
    beta2: float = 0.0
    beta: float = 0.0
    eps: float = 0.0
    centre: bool = True
    divide: Literal["batch", "sample", "square"] | None = "batch"
    frozen: bool = True
    parameters: tuple[str, ...] = ("gamma", "beta")

    def forward(self, *inputs: State) -> State:
        """Subtract the mean over samples and positions; differences between positions remain."""
        (z,) = inputs
        v, c = self._normalized(z)
        mean = 0.0 if self.centre else z.mean * np.sqrt(self.gamma2 / self._variance(z))
        more = self.beta2 + 2 * self.beta * mean
        return replace(z, v=self.gamma2 * v + more, c=self.gamma2 * c + more, mean=mean + self.beta)

    def backward(self, gradient: Gradient, inputs: Sequence[State], output: State) -> list[Gradient]:
        """γ²/s²; s² = q − q_xy is the variance of a unit over samples, and not q as eq. 25 has it."""
        factor = self.gamma2 / self._variance(inputs[0])
        v, c = gradient.v, gradient.c
        if not self.frozen and self.centre and self.divide != "sample":
            v, c = _centred(output.layout, v, c)
        return [Gradient(factor * v, factor * c)]

    def terms(self, gradient: Gradient, inputs: Sequence[State], output: State) -> list[Term]:
        """The two terms of eq. 157."""
        terms = []
        if "gamma" in self.parameters:
            if gradient.radial is None:
                pair, single = output.layout.dot((gradient.v, gradient.c), self._normalized(inputs[0]))
            else:
                sums = output.layout.dot(gradient.radial(), output.layout.fill(1.0, 1.0, 1.0))
                pair, single = (x / self.gamma2 if self.gamma2 else 0.0 for x in sums)
            terms.append(Term(self.name, "gamma", pair, single))
        if "beta" in self.parameters:
            terms.append(Term(self.name, "beta", *_sums(gradient, output)))
        return terms

    def _variance(self, z: State) -> float:
        if self.divide is None:
            return 1.0
        mean = {"batch": z.layout.mean_pairs(z.c), "sample": z.mean**2, "square": 0.0}[self.divide]
        return max(z.layout.mean(z.v) - mean + self.eps, np.finfo(float).tiny)

    def _normalized(self, z: State) -> tuple[Array, Array]:
        s2 = self._variance(z)
        if self.divide == "sample":
            mean = z.mean**2 if self.centre else 0.0
            return (z.v - mean) / s2, (z.c - mean) / s2
        v, c = _centred(z.layout, z.v, z.c) if self.centre else (z.v, z.c)
        return v / s2, c / s2


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
        return replace(z, v=phi.value(v, v, v), c=phi.value(first, second, c), mean=mean)

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
        return replace(h, layout=h.layout.at(self.window.output(h.layout.size)), v=v, c=c)

    def backward(self, gradient: Gradient, inputs: Sequence[State], output: State) -> list[Gradient]:
        """The transpose."""
        return [Gradient(*inputs[0].layout.unpool(gradient.v, gradient.c, self.window, output.layout))]


@dataclass(frozen=True)
class Add(Parameterless):
    """The sum of a branch and a skip, the branch's last weights being independent of all else."""

    def forward(self, *inputs: State) -> State:
        """Order parameters add."""
        v, c, mean = (sum(getattr(x, name) for x in inputs) for name in ("v", "c", "mean"))
        products = mean**2 - sum(x.mean**2 for x in inputs)  # of one's mean and the other's
        return replace(inputs[0], v=v + products, c=c + products, mean=mean)

    def backward(self, gradient: Gradient, inputs: Sequence[State], output: State) -> list[Gradient]:
        """The gradient goes to both."""
        return [Gradient(gradient.v, gradient.c)] * len(inputs)


@dataclass(frozen=True)
class Reshape(Parameterless):
    """A change of the number of positions by an unknown operation; also new channels that are zero.

    Attributes:
        size: Height and width of the output.
        share: The share of channels that are not zero.
    """

    size: tuple[int, int]
    share: float = 1.0

    def forward(self, *inputs: State) -> State:
        """Means over positions, unless their number stays."""
        (h,) = inputs
        if self.size == h.layout.size:
            return replace(h, v=self.share * h.v, c=self.share * h.c, mean=self.share * h.mean)
        layout = h.layout.at(self.size)
        same, other = h.layout.mean(h.layout.same(h.c)), h.layout.mean_other(h.c)
        v, c = layout.fill(h.layout.mean(h.v), same, other)
        return State(layout, v, c, h.mean)

    def backward(self, gradient: Gradient, inputs: Sequence[State], output: State) -> list[Gradient]:
        """Sums over positions are kept."""
        here, there = inputs[0].layout, output.layout
        if self.size == here.size:
            return [Gradient(self.share * gradient.v, self.share * gradient.c)]
        ratio = there.count / here.count
        v, same = there.mean(gradient.v) * ratio, there.mean(there.same(gradient.c)) * ratio
        pairs = there.count * (there.count - 1) / max(here.count * (here.count - 1), 1)
        return [Gradient(*here.fill(v, same, there.mean_other(gradient.c) * pairs))]


def _sums(gradient: Gradient, output: State) -> tuple[float, float]:
    """Σ q̃ over pairs of positions, for two samples and for one."""
    return output.layout.dot((gradient.v, gradient.c), output.layout.fill(1.0, 1.0, 1.0))


def _centred(layout: Layout, v: Array, c: Array) -> tuple[Array, Array]:
    """The moments after the mean over samples and positions is subtracted."""
    mean = layout.mean_pairs(c)
    row, both = layout.row_means(c)
    return v - 2 * row + mean, c - both + mean
