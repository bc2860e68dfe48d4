"""Parameters of a network like a model's: the same numbers in random order.

What is chance in the model's own parameters is not kept, since all networks that are drawn would share it: a mean close
to zero, and a variance close to that of the initialization that the model was evidently given. Both are small, but
activations that are all positive add up the one, and eigenvalues are in proportion to products of the others.
"""

import math
from collections.abc import Callable
from statistics import fmean, stdev

import torch
from torch import Tensor

from trimtab.probes.isolation import Point
from trimtab.theory.from_model.parameters import significant_mean

Fans = tuple[int, int]
INITIALIZATIONS: dict[str, Callable[[Fans], float]] = {
    "PyTorch's default": lambda fans: 1 / (3 * fans[0]),
    "He, fan-in": lambda fans: 2 / fans[0],
    "He, fan-out": lambda fans: 2 / fans[1],
    "LeCun": lambda fans: 1 / fans[0],
    "Glorot": lambda fans: 2 / sum(fans),
    "0.02": lambda fans: 0.02**2,
}
"""The variances of weights by fan-in and fan-out in usual initializations."""
SHUFFLES, FAR_OUT, NOTICEABLE = (24, 8), 5.0, 0.03  # to see structure: how many, deviations, and share of the value
LARGE = 100_000  # entries, for which fewer shuffles are enough: they hardly differ, and the share decides
BLOCKS = 25.0  # what is χ² of one to three degrees of freedom for a vector in random order; 2e-5 are larger
CHANCE = 4.0  # standard errors by which a variance may differ from that of its initialization
EVIDENT = 0.1  # the largest standard error, as a share, of a variance that shows how a model was initialized


class Shuffle:
    """Draws parameters like those of a model.

    Args:
        parameters: The model's, by name.

    Attributes:
        structured: The names of parameters that are not in random order, as after orthogonal initialization or
            training, or biases of gates.
        chance: By how much of itself the product of the variances of weights can be off by chance, where no
            initialization tells them.
    """

    def __init__(self, parameters: Point) -> None:
        self._parameters = parameters
        self._moments = {name: _Moments(values) for name, values in parameters.items()}
        known = set().union(*(self._shown_by(name) for name in parameters))
        scales = {name: self._scale(name, known) for name in parameters}
        self._scales = {name: scale or 1.0 for name, scale in scales.items()}
        weights = {name: values for name, values in parameters.items() if values.ndim > 1}
        unknown = [name for name in weights if scales[name] is None and not self._moments[name].significant]
        self.chance = math.sqrt(sum(self._moments[name].error ** 2 for name in unknown))
        noise = torch.Generator().manual_seed(0)
        self.structured = [name for name, values in parameters.items() if _has_structure(values, noise)]

    def __call__(self, noise: torch.Generator) -> Point:
        """The parameters of one network."""
        return {name: self._drawn(name, noise) for name in self._parameters}

    def _drawn(self, name: str, noise: torch.Generator) -> Tensor:
        values, moments = self._parameters[name], self._moments[name]
        order = torch.randperm(values.numel(), generator=noise).to(values.device)
        found = values.flatten()[order].view_as(values)
        if moments.significant:
            return found
        chance = moments.deviation / math.sqrt(values.numel()) * float(torch.randn((), generator=noise))
        return self._scales[name] * (found + (chance - moments.mean))

    def _shown_by(self, name: str) -> set[str]:
        """The initializations that weights show, if there are enough of them to tell one variance from all others."""
        weight, moments = self._parameters[name], self._moments[name]
        if weight.ndim < 2 or moments.error > EVIDENT:
            return set()
        variances = {kind: variance(_fans(weight)) for kind, variance in INITIALIZATIONS.items()}
        possible = {kind: variance for kind, variance in variances.items() if moments.could_have(variance)}
        return set(possible) if len(set(possible.values())) == 1 else set()

    def _scale(self, name: str, known: set[str]) -> float | None:
        """What turns the variance into the one that it has by an initialization that the model is known to have.

        None if it has none.
        """
        moments = self._moments[name]
        if self._parameters[name].ndim > 1:
            fans, kinds = _fans(self._parameters[name]), known
        else:  # of biases PyTorch's default alone is not zero; it goes by the fan-in of the weights
            weight = self._parameters.get(name.removesuffix("bias") + "weight") if name.endswith("bias") else None
            if weight is None or weight.ndim < 2:
                return None
            fans, kinds = _fans(weight), known & {"PyTorch's default"}
        variances = [variance for kind in kinds if moments.could_have(variance := INITIALIZATIONS[kind](fans))]
        if not variances:
            return None
        nearest = min(variances, key=lambda variance: abs(math.log(variance) - 2 * math.log(moments.deviation)))
        return math.sqrt(nearest) / moments.deviation


class _Moments:
    """Mean and deviation of numbers, and how far chance can have moved them.

    Attributes:
        mean: Of the numbers.
        deviation: Of the numbers.
        error: The standard error of their variance, as a share of it.
        significant: Whether the mean is more than chance.
    """

    def __init__(self, values: Tensor) -> None:
        exact = values.detach().double().flatten()
        self.mean = float(exact.mean())
        self.deviation = float(exact.std(correction=0))
        self.significant = bool(significant_mean(exact)) if exact.numel() > 1 else True
        kurtosis = float((exact - self.mean).pow(4).mean()) / self.deviation**4 if self.deviation > 0 else 1.0
        self.error = math.sqrt(max(kurtosis - 1, 0.0) / exact.numel())

    def could_have(self, variance: float) -> bool:
        """Whether numbers drawn with mean zero and this variance can be these."""
        if self.significant or not self.deviation > 0:
            return False
        return abs(self.deviation**2 / variance - 1) <= CHANCE * self.error


def _fans(weight: Tensor) -> Fans:
    """Fan-in and fan-out, as torch.nn.init counts them."""
    sites = math.prod(weight.shape[2:])
    return weight.shape[1] * sites, weight.shape[0] * sites


def _has_blocks(values: Tensor) -> bool:
    """Whether halves, thirds or quarters of a vector have other means, as biases of gates."""
    exact = values.double()
    variance = float(exact.var(correction=0)) if len(exact) else 0.0
    return variance > 0 and any(
        len(exact) // count * float(exact.view(count, -1).mean(1).var(correction=0)) * count > BLOCKS * variance
        for count in (2, 3, 4)
        if len(exact) % count == 0
    )


def _has_structure(weight: Tensor, noise: torch.Generator) -> bool:
    """Whether the sum of the fourth powers of a weight's singular values is not that of its numbers in random order.

    Of vectors, whether they have blocks.
    """
    squeezed = weight.detach().squeeze()  # an embedding of positions begins with a dimension of one
    if squeezed.ndim < 2:
        return _has_blocks(squeezed.flatten())
    rows = squeezed.flatten(1)
    rows = rows if rows.shape[0] <= rows.shape[1] else rows.T
    rows = rows.to(torch.promote_types(rows.dtype, torch.float32))
    size = float(rows.abs().max())
    if not size > 0:
        return False

    def fourth_powers(matrix: Tensor) -> float:
        return math.log(float((matrix @ matrix.T).double().square().sum()))

    rows = rows / size
    orders = (torch.randperm(rows.numel(), generator=noise) for _ in range(SHUFFLES[rows.numel() > LARGE]))
    others = [fourth_powers(rows.flatten()[order.to(rows.device)].view(rows.shape)) for order in orders]
    distance = abs(fourth_powers(rows) - fmean(others))
    return distance > max(FAR_OUT * stdev(others), NOTICEABLE)
