"""What the spectrum probe returns, and what learning rate it allows."""

import math
from dataclasses import dataclass, field

import torch

from trimtab.probes.result import Result


@dataclass(frozen=True, kw_only=True)
class SpectrumResult(Result):
    """Eigenvalues of a matrix over the parameters; NaN and empty where they were not asked for.

    Attributes:
        matrix: Which one.
        statistics: What layers that normalize by the batch did; see `IsolatedModel`.
        size: Rows of the matrix: entries of the parameters that are trained.
        largest: The largest eigenvalues, in descending order. Signed: the largest is not the largest in magnitude.
        residuals: Within its residual of each of these there is an eigenvalue.
        converged: Whether all that was asked for is within the tolerance.
        most_negative: The lowest eigenvalue, if it is negative. Unless the lower end was asked for, it comes from the
            same products as the largest, and the lowest eigenvalue may be lower still.
        smallest: The one nearest to zero among those that are not zero up to rounding, if the lower end was asked for.
        smallest_problem: Why that is not known, if it is not.
        trace: Of the matrix.
        trace_error: Its standard error; 0 where the trace is exact.
        density_grid: Places on the axis of eigenvalues.
        density: The share of eigenvalues there, for each unit of that axis.
        layers: The largest eigenvalue of the diagonal block of each layer.
        stable_learning_rate: The largest at which descent does not diverge on the quadratic function with this matrix:
            2/λ_max, with momentum larger (see `stable_factor`), with SGD's weight decay smaller. Infinite if no
            eigenvalue is positive. Steps that are preconditioned (Adam, BNP) have another limit.
        learning_rate: The one in use; the largest, if groups of parameters differ.
        products: How many products with the matrix or a block of it were needed.
    """

    matrix: str = ""
    statistics: str = ""
    size: int = 0
    largest: tuple[float, ...] = ()
    residuals: tuple[float, ...] = ()
    converged: bool = False
    most_negative: float = math.nan
    smallest: float = math.nan
    smallest_problem: str | None = None
    trace: float = math.nan
    trace_error: float = math.nan
    density_grid: tuple[float, ...] = ()
    density: tuple[float, ...] = ()
    layers: dict[str, float] = field(default_factory=dict)
    stable_learning_rate: float = math.nan
    learning_rate: float = math.nan
    products: int = 0


def stable_factor(momentum: float = 0.0, *, dampening: float = 0.0, nesterov: bool = False) -> float:
    """The largest η·λ at which SGD as torch has it does not diverge on ½λx².

    It is 2(1+μ) (meanfield, eq. 7), with Nesterov's momentum 2(1+μ)/(1+2μ); dampening τ makes it 1/(1−τ) as large.
    """
    if nesterov:
        return 2 * (1 + momentum) / (1 + 2 * momentum)
    return 2 * (1 + momentum) / (1 - dampening) if dampening < 1 else math.inf


def learning_rates(largest: float, optimizer: torch.optim.Optimizer | None) -> tuple[float, float]:
    """The stable learning rate, and the one in use (NaN without an optimizer).

    For SGD with its momentum and its weight decay, which adds to all eigenvalues; for all else as for plain descent.
    """
    factor, used = stable_factor(), math.nan
    if optimizer is not None:
        used = max(float(group["lr"]) for group in optimizer.param_groups)
    if isinstance(optimizer, torch.optim.SGD):
        factor = min(
            stable_factor(group["momentum"], dampening=group["dampening"], nesterov=group["nesterov"])
            if group["momentum"]
            else stable_factor()  # without momentum, dampening does nothing
            for group in optimizer.param_groups
        )
        largest += max(float(group["weight_decay"]) for group in optimizer.param_groups)
    return (factor / largest if largest > 0 else math.inf), used
