"""The probe of the spectrum."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from trimtab.norms.statistics import Statistics
from trimtab.probes import options
from trimtab.probes.isolation import IsolatedModel
from trimtab.probes.result import LossFunction, Probe, by_layer
from trimtab.probes.spectrum.lanczos import Ritz, extremes, signs
from trimtab.probes.spectrum.operators import (
    Curvature,
    GaussNewton,
    Hessian,
    Leaves,
    categorical_hessian,
    criterion_hessian,
    gaussian_hessian,
)
from trimtab.probes.spectrum.result import SpectrumResult, learning_rates
from trimtab.probes.spectrum.second_derivatives import twice_differentiable
from trimtab.probes.spectrum.stochastic import mean_and_error, quadrature, rest_of_trace, smoothed
from trimtab.probes.surface import Surface
from trimtab.renamed import renamed_options

Matrix = Literal["hessian", "ggn", "fisher"]
Likelihood = Literal["categorical", "gaussian"]

_GRID = 512
_NARROW = 0.003  # of the range, about what the grid resolves
_MIN_PRODUCTS = 4  # products, so that eigenvectors of which the gradient has nothing come out of the noise


@renamed_options(most_layers="max_layers", most_products="max_products", most_vectors="max_vectors")
@dataclass(frozen=True, kw_only=True)
class Spectrum(Probe[SpectrumResult]):
    """Eigenvalues of the Hessian, the Gauss–Newton or the Fisher matrix, which is never formed.

    One forward and one gradient are computed; each product is then a backward pass through both. A Hessian product
    costs about twice a forward and backward.

    The three matrices:
        `hessian`: of `loss_fn`, whatever it is.
        `ggn`: JᵀSJ, J the derivative of the outputs `forward(model, batch)` and S the Hessian of
            `criterion(outputs, batch)` with respect to the outputs. `loss_fn` is not called.
        `fisher`: the expectation, over targets that the model itself predicts, of the outer product of the gradient of
            the log-likelihood. It is JᵀSJ too. `categorical`: outputs are logits with classes in the last dimension,
            and S = (diag(p) − ppᵀ)/m for the m distributions, as in the mean cross-entropy's `ggn`. `gaussian`: S = I/m
            for m samples, as for the mean of ½‖f − y‖² (meanfield, eq. 10; `fisher_lambda_max`). `loss_fn` is not
            called.

    Peak memory, beyond the model: the graph of the gradient, which is about twice what a training step keeps, and while
    a product is computed about four times as much as a training step (ResNet-18); up to `max_vectors` vectors of the
    parameters' size for the largest eigenvalues, which stay while the trace is estimated, and later `density_steps` of
    them for the density; a few more in between.

    Attributes:
        matrix: Which matrix.
        statistics: See `IsolatedModel`.
        top: How many of the largest eigenvalues.
        tolerance: How far off an eigenvalue may be, as a share of it. It is good when its residual, which bounds the
            distance to an eigenvalue, is below that, or when it no longer moves (see `extremes`). With parameters in
            half precision, products are hardly better than 1 %.
        lower_end: Whether to find the lower end as well. Matrices with at most `dense_up_to` rows (or outputs, for
            `ggn` and `fisher`) are formed for it, and everything is exact up to rounding. Of larger ones Lanczos'
            method finds the lowest eigenvalue of the Hessian, and the smallest that is not zero of `ggn` and `fisher`
            if `max_products` are enough, which they often are not. It cannot find eigenvalues of a Hessian near zero,
            since these are inside of the spectrum.
        dense_up_to: See `lower_end`.
        trace_vectors: How many random vectors for the trace; 0: no trace.
        density_vectors: How many random vectors for the density, with `density_steps` products each; 0: no density.
        density_steps: See there.
        density_width: The standard deviation of the Gaussian that smooths the density, as a share of the spectrum's
            range; at least 0.003.
        per_layer: Whether to find the largest eigenvalue of the diagonal block of each layer.
        max_layers: Only so many layers, those with the most parameters.
        forward: From model and batch to one tensor of outputs; for `ggn` and `fisher`.
        criterion: From outputs and batch to the loss; for `ggn`.
        likelihood: For `fisher`.
        optimizer: Whose learning rate is in use.
        seed: Of the random vectors.
        max_products: For the largest eigenvalues, and for each layer.
        max_vectors: See above; Lanczos' method restarts with its best vectors when there are so many.
    """

    name: ClassVar[str] = "spectrum"
    result: ClassVar[type[SpectrumResult]] = SpectrumResult

    matrix: Matrix = "hessian"
    statistics: Statistics = "batch"
    top: int = 1
    tolerance: float = 1e-2
    lower_end: bool = False
    dense_up_to: int = 256
    trace_vectors: int = 0
    density_vectors: int = 0
    density_steps: int = 32
    density_width: float = 0.01
    per_layer: bool = False
    max_layers: int = 64
    forward: Callable[[nn.Module, Any], Tensor] | None = None
    criterion: Callable[[Tensor, Any], Tensor] | None = None
    likelihood: Likelihood = "categorical"
    optimizer: torch.optim.Optimizer | None = field(default=None, repr=False)
    seed: int = 0
    max_products: int = 100
    max_vectors: int = 32

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: If an option is invalid.
        """
        for option, kinds in (("matrix", Matrix), ("likelihood", Likelihood)):
            options.check_choice(self, option, get_args(kinds))
        options.check_statistics(self)
        options.check_whole(self, "top", "density_steps", "max_layers", "max_products", minimum=1)
        options.check_whole(self, "dense_up_to", "trace_vectors", "density_vectors", minimum=0)
        options.check_whole(self, "max_vectors", minimum=self.top + 4)
        options.check_flag(self, "lower_end", "per_layer")
        options.check_function(self, "forward", "model, batch")
        options.check_function(self, "criterion", "outputs, batch")
        options.check_optimizer(self)
        options.check_seed(self)
        if not (options.is_finite(self.tolerance) and 0 < self.tolerance < 1):
            raise ValueError(f"tolerance must be a number between 0 and 1, not {self.tolerance!r}.")
        if not (options.is_finite(self.density_width) and _NARROW <= self.density_width < 1):
            raise ValueError(f"density_width must be a number from {_NARROW} to 1, not {self.density_width!r}.")
        if self.matrix != "hessian" and self.forward is None:
            raise ValueError(f"matrix={self.matrix!r} needs forward, a function from model and batch to the outputs.")
        if self.matrix == "ggn" and self.criterion is None:
            raise ValueError("matrix='ggn' needs criterion, a function from outputs and batch to the loss.")

    def measure(self, model: nn.Module, loss_fn: LossFunction, batch: Any) -> SpectrumResult:
        """Measure, or raise CannotMeasure."""
        with twice_differentiable():
            if self.matrix == "hessian":
                surface = Surface(model, loss_fn, batch, statistics=self.statistics)
                return surface.inside(lambda loss, leaves: self._result(Hessian(loss, leaves)))
            isolated = IsolatedModel(model, statistics=self.statistics)
            leaves = isolated.leaves()
            return isolated.run(lambda: self._result(self._gauss_newton(isolated.model, leaves, batch)), leaves)

    def _gauss_newton(self, model: nn.Module, leaves: Leaves, batch: Any) -> GaussNewton:
        assert self.forward is not None
        outputs = self.forward(model, batch)
        if not isinstance(outputs, Tensor) or not outputs.ndim:
            raise TypeError("forward must return a tensor of outputs with one dimension or more.")
        if self.matrix == "ggn":
            assert self.criterion is not None
            return GaussNewton(outputs, leaves, criterion_hessian(outputs, self.criterion, batch))
        return GaussNewton(
            outputs, leaves, (categorical_hessian if self.likelihood == "categorical" else gaussian_hessian)(outputs)
        )

    def _result(self, matrix: Curvature) -> SpectrumResult:
        noise = torch.Generator().manual_seed(self.seed)
        exact = self.lower_end and matrix.rank <= self.dense_up_to
        result = self._exact(matrix) if exact else self._by_lanczos(matrix, noise)
        if self.per_layer:
            result = self._with_layers(result, matrix, noise)
        stable, used = learning_rates(result.largest[0], self.optimizer)
        return replace(
            result,
            matrix=self.matrix,
            statistics=self.statistics,
            size=matrix.size,
            stable_learning_rate=stable,
            learning_rate=used,
            products=result.products + matrix.products,
        )

    def _exact(self, matrix: Curvature) -> SpectrumResult:
        """Everything from all eigenvalues."""
        values = matrix.eigenvalues()
        rounding = _rounding(values, matrix)
        nonzero = values[values.abs() > rounding]
        grid, density = self._density(values, torch.ones_like(values)) if self.density_vectors else ((), ())
        return SpectrumResult(
            largest=tuple(values.flip(0)[: self.top].tolist()),
            residuals=(rounding,) * min(self.top, len(values)),
            converged=True,
            most_negative=_negative(values, rounding),
            smallest=float(nonzero[nonzero.abs().argmin()]) if len(nonzero) else math.nan,
            smallest_problem=None if len(nonzero) else "All eigenvalues are zero.",
            trace=float(values.sum()),
            trace_error=0.0,
            density_grid=grid,
            density=density,
        )

    def _by_lanczos(self, matrix: Curvature, noise: torch.Generator) -> SpectrumResult:
        start = matrix.start(noise)
        within = self.lower_end and self.matrix != "hessian"
        if within:
            pushed = matrix.times(start)  # into the range, so that no eigenvalue found is zero
            start = pushed if float(pushed.norm()) > 0 else start
        bottom = int(self.lower_end)
        ritz = self._extremes(matrix, start, top=self.top, bottom=bottom, noise=None if within else noise)
        values, residuals, converged = ritz.values, ritz.residuals, ritz.converged
        rounding = _rounding(values, matrix)
        smallest, problem = math.nan, None
        if within:
            smallest, problem = self._smallest(values, residuals, rounding)
        elif self.lower_end:
            problem = (
                f"The Hessian has {matrix.size} rows, more than dense_up_to, and eigenvalues near zero are inside of "
                "its spectrum, where Lanczos' method finds none."
            )
        trace, error = math.nan, math.nan
        if self.trace_vectors:
            rest, error = rest_of_trace(matrix.times, ritz.basis, start, self.trace_vectors, noise)
            trace = float(values.sum()) + rest
        del ritz  # and its vectors
        grid: tuple[float, ...] = ()
        density: tuple[float, ...] = ()
        if self.density_vectors:
            starts = (signs(start, noise) for _ in range(self.density_vectors))
            parts = [quadrature(matrix.times, start, self.density_steps) for start in starts]
            grid, density = self._density(torch.cat([n for n, _ in parts]), torch.cat([w for _, w in parts]))
            if not self.trace_vectors:
                trace, error = mean_and_error(torch.stack([matrix.size * (n @ w) for n, w in parts]))
        return SpectrumResult(
            largest=tuple(values.flip(0)[: self.top].tolist()),
            residuals=tuple(residuals.flip(0)[: self.top].tolist()),
            converged=converged,
            most_negative=_negative(values, rounding),
            smallest=smallest,
            smallest_problem=problem,
            trace=trace,
            trace_error=error,
            density_grid=grid,
            density=density,
        )

    def _smallest(self, values: Tensor, residuals: Tensor, rounding: float) -> tuple[float, str | None]:
        """The smallest eigenvalue of a matrix without negative ones that is not zero, or why it is not known."""
        if float(values[0]) < -rounding:
            return math.nan, "The matrix has negative eigenvalues, so that those near zero are inside of its spectrum."
        nonzero = values > rounding
        if not bool(nonzero.any()):
            return math.nan, "All eigenvalues are zero."
        value, residual = float(values[nonzero][0]), float(residuals[nonzero][0])
        if residual > self.tolerance * value:
            return math.nan, f"Lanczos' method did not reach the smallest eigenvalue; it is at most {value:.3g}."
        return value, None

    def _with_layers(self, result: SpectrumResult, matrix: Curvature, noise: torch.Generator) -> SpectrumResult:
        groups = by_layer(matrix.leaves)
        sizes = {layer: sum(matrix.leaves[name].numel() for name in names) for layer, names in groups.items()}
        chosen = set(sorted(sizes, key=lambda layer: -sizes[layer])[: self.max_layers])
        layers, products, converged = {}, 0, result.converged
        for layer in (layer for layer in groups if layer in chosen):
            block = matrix.block(groups[layer])
            ritz = self._extremes(block, block.start(noise), top=1, bottom=0, noise=noise)
            layers[layer] = float(ritz.values[-1])
            products += block.products
            converged = converged and ritz.converged
        return replace(result, layers=layers, products=products, converged=converged)

    def _extremes(
        self, matrix: Curvature, start: Tensor, *, top: int, bottom: int, noise: torch.Generator | None
    ) -> Ritz:
        return extremes(
            matrix.times,
            start,
            top=top,
            bottom=bottom,
            tolerance=self.tolerance,
            max_products=self.max_products,
            max_vectors=self.max_vectors,
            min_products=_MIN_PRODUCTS,
            stop_when_stable=True,
            noise=noise,
        )

    def _density(self, nodes: Tensor, weights: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
        grid, density = smoothed(nodes, weights, width=self.density_width, points=_GRID)
        return tuple(grid.tolist()), tuple(density.tolist())


def _rounding(values: Tensor, matrix: Curvature) -> float:
    """What may be zero: the usual bound for a dense matrix, and what products in half precision are off by."""
    share = min(max(256, len(values)) * matrix.eps, max(4 * matrix.eps, 1e-3))
    return share * float(values.abs().max())


def _negative(values: Tensor, rounding: float) -> float:
    return float(values[0]) if float(values[0]) < -rounding else math.nan
