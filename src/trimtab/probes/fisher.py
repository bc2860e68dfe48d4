"""The largest eigenvalue of mean field's Fisher matrix along a training, beside the Gauss–Newton matrix of the loss."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from trimtab.norms.statistics import Statistics
from trimtab.probes import options
from trimtab.probes.result import CannotMeasure, LossFunction, Probe, Result
from trimtab.probes.spectrum import Spectrum


@dataclass(frozen=True, kw_only=True)
class FisherResult(Result):
    """Three eigenvalues, and the learning rate that each allows: `SpectrumResult.stable_learning_rate`.

    Attributes:
        one_output: λ_max of JᵀJ/m for the m samples, J the derivative of one output: the Fisher matrix of the meanfield
            paper (eqs. 10 and 150).
        all_outputs: The same for all outputs: that of the mean over samples of ½‖f − y‖².
        gauss_newton: λ_max of the Gauss–Newton matrix of the loss in use, with the gradient through the statistics of
            the batch, as a training step has it; NaN without `criterion`.
        one_output_rate: The largest stable learning rate by `one_output`.
        all_outputs_rate: By `all_outputs`.
        gauss_newton_rate: By `gauss_newton`.
        statistics: What layers that normalize by the batch did, for the two Fisher matrices; see `IsolatedModel`.
        learning_rate: The one in use; NaN without an optimizer.
        converged: Whether all eigenvalues are within the tolerance.
        products: How many products with a matrix were needed.
    """

    one_output: float = math.nan
    all_outputs: float = math.nan
    gauss_newton: float = math.nan
    one_output_rate: float = math.nan
    all_outputs_rate: float = math.nan
    gauss_newton_rate: float = math.nan
    statistics: str = ""
    learning_rate: float = math.nan
    converged: bool = False
    products: int = 0


@dataclass(frozen=True, kw_only=True)
class Fisher(Probe[FisherResult]):
    """λ_max of the Fisher matrix as mean field defines it, of a network in training (meanfield, eq. 10 and Sec. 2.1).

    The expectation is over the samples of the batch; targets do not matter for it, nor does the loss. Beside it stands
    the Gauss–Newton matrix of the loss in use, which decides about real steps. Each matrix is measured by `Spectrum`,
    one after the other, and takes the memory that is documented there. `loss_fn` is not called.

    Attributes:
        forward: From model and batch to one tensor of outputs, with a row for each sample.
        criterion: From outputs and batch to the loss; None: no `gauss_newton`.
        output: Which output is the one.
        statistics: What layers that normalize by the batch do, for the two Fisher matrices; the paper assumes that no
            gradient passes through their statistics.
        optimizer: Whose learning rate is in use.
        tolerance: How far off an eigenvalue may be, as a share of it.
        max_products: For each eigenvalue.
        seed: Of the random vectors.
    """

    name: ClassVar[str] = "fisher"
    result: ClassVar[type[Result]] = FisherResult

    forward: Callable[[nn.Module, Any], Tensor] | None = None
    criterion: Callable[[Tensor, Any], Tensor] | None = None
    output: int = 0
    statistics: Statistics = "frozen"
    optimizer: torch.optim.Optimizer | None = field(default=None, repr=False)
    tolerance: float = 1e-2
    max_products: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: If an option is invalid.
        """
        options.check_function(self, "forward", "model, batch")
        if self.forward is None:
            raise ValueError("forward must be a function that is called as forward(model, batch), not None.")
        options.check_whole(self, "output", minimum=0)
        self._matrices()  # which check the rest

    def _matrices(self) -> dict[str, Spectrum]:
        common: dict[str, Any] = {
            "optimizer": self.optimizer,
            "tolerance": self.tolerance,
            "max_products": self.max_products,
            "seed": self.seed,
        }
        fisher = {"matrix": "fisher", "likelihood": "gaussian", "statistics": self.statistics, **common}
        matrices = {
            "one_output": Spectrum(forward=self._one, **fisher),
            "all_outputs": Spectrum(forward=self._all, **fisher),
        }
        options.check_function(self, "criterion", "outputs, batch")
        if self.criterion is not None:
            matrices["gauss_newton"] = Spectrum(
                matrix="ggn", forward=self.forward, criterion=self.criterion, statistics="batch", **common
            )
        return matrices

    def measure(self, model: nn.Module, loss_fn: LossFunction, batch: Any) -> FisherResult:
        """Measure one matrix after the other, or raise CannotMeasure."""
        found = {name: matrix.measure(model, loss_fn, batch) for name, matrix in self._matrices().items()}
        numbers: dict[str, Any] = {name: one.largest[0] for name, one in found.items()}
        numbers |= {f"{name}_rate": one.stable_learning_rate for name, one in found.items()}
        return FisherResult(
            **numbers,
            statistics=found["one_output"].statistics,
            learning_rate=found["one_output"].learning_rate,
            converged=all(one.converged for one in found.values()),
            products=sum(one.products for one in found.values()),
        )

    def _all(self, model: nn.Module, batch: Any) -> Tensor:
        """A row of outputs for each sample."""
        assert self.forward is not None
        outputs = self.forward(model, batch)
        if not isinstance(outputs, Tensor) or not outputs.ndim:
            raise TypeError("forward must return a tensor of outputs with one dimension or more.")
        return outputs.unsqueeze(1) if outputs.ndim == 1 else outputs.flatten(1)

    def _one(self, model: nn.Module, batch: Any) -> Tensor:
        outputs = self._all(model, batch)
        if self.output >= outputs.shape[1]:
            raise CannotMeasure(f"There is no output {self.output}: the model has {outputs.shape[1]}, counted from 0.")
        return outputs[:, self.output : self.output + 1]
