"""The spectrum of the Fisher matrix of a real network on real data, through its Jacobian.

For the mean over samples of ½‖f(x) − y‖² the Fisher matrix (and the Gauss–Newton matrix) is JᵀJ/m, where J has a row
for each sample and output and a column for each parameter. Its nonzero eigenvalues are those of JJᵀ/m, which is as
large as the outputs are. The matrix of all parameters is never formed.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from trimtab import _torch
from trimtab.norms.statistics import Statistics
from trimtab.probes.isolation import IsolatedModel
from trimtab.probes.spectrum.lanczos import lanczos_max

Outputs = Literal["all", "sum"] | int

GRAM_ROWS = 32  # up to so many rows each is computed by itself; above, Lanczos needs fewer products


class Jacobian:
    """The derivative J of a network's outputs with respect to its parameters, at one batch, as a linear map.

    Nothing of the network is changed. Dropout is off.

    Args:
        model: Any module that maps inputs to a tensor whose first dimension is that of the samples.
        inputs: The batch.
        statistics: See `IsolatedModel`; mean field assumes `frozen`.
        outputs: `all` of them, the one with that number, or the `sum` of all.

    Attributes:
        rows: Samples times outputs.
        samples: How many samples the batch has.
    """

    def __init__(
        self, model: nn.Module, inputs: Tensor, *, statistics: Statistics = "frozen", outputs: Outputs = "all"
    ) -> None:
        """Run the network once.

        Raises:
            ValueError: If an argument is invalid, or nothing in the model is trained.
        """
        if not isinstance(inputs, Tensor) or inputs.ndim < 1 or not len(inputs):
            raise ValueError("inputs must be a tensor of one sample or more.")
        isolated = IsolatedModel(model, statistics=statistics, dropout=False)
        leaves = isolated.leaves()
        self._parameters = list(leaves.values())
        values = isolated.run(lambda: isolated.model(inputs.detach().clone()), leaves)
        self._y = _select_outputs(values, outputs, len(inputs))
        self.samples = len(inputs)
        self.rows = self._y.numel()
        # Linear in u, so that its derivative with respect to u is the product with J, and no forward mode is needed.
        self._u = torch.zeros_like(self._y, requires_grad=True)
        self._gradient = self._backward(self._u, create_graph=True)

    def transposed(self, u: Tensor) -> list[Tensor]:
        """Jᵀu, one tensor for each parameter."""
        return self._backward(u.reshape(self._y.shape))

    def times(self, v: list[Tensor]) -> Tensor:
        """Jv, one number for each row."""
        used = [(g, t) for g, t in zip(self._gradient, v, strict=True) if g.requires_grad]
        (result,) = _torch.gradients([g for g, _ in used], [self._u], [t for _, t in used], retain_graph=True)
        return result.flatten()

    def gram_times(self, u: Tensor) -> Tensor:
        """JJᵀu/m."""
        return self.times(self.transposed(u)) / self.samples

    def gram(self) -> Tensor:
        """JJᵀ/m, row by row."""
        eye = torch.eye(self.rows, dtype=self._y.dtype, device=self._y.device)
        gram = torch.stack([self.gram_times(row) for row in eye])
        return (gram + gram.T) / 2

    def start(self) -> Tensor:
        """A vector to begin iterations with: near that of all ones, which mean field takes, and something of others."""
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(self.rows, generator=generator, dtype=self._y.dtype)
        return (1 + 0.3 * noise).to(self._y.device)

    def _backward(self, u: Tensor, create_graph: bool = False) -> list[Tensor]:
        return _torch.gradients([self._y], self._parameters, [u], retain_graph=True, create_graph=create_graph)


def fisher_lambda_max(
    model: nn.Module,
    inputs: Tensor,
    *,
    statistics: Statistics = "frozen",
    outputs: Outputs = "all",
    method: Literal["auto", "gram", "lanczos"] = "auto",
    tolerance: float = 1e-4,
) -> float:
    """The largest eigenvalue of the Fisher matrix of the mean over samples of ½‖f(x) − y‖² (meanfield, eqs. 10, 150).

    Args:
        model: See `Jacobian`; nothing of it is changed.
        inputs: The batch.
        statistics: See `Jacobian`.
        outputs: See `Jacobian`; the mean-field paper takes one.
        method: `gram` forms JJᵀ/m, `lanczos` multiplies with it; `auto` chooses by the number of rows.
        tolerance: How far Lanczos' value may be from an eigenvalue, as a share of it.

    Raises:
        ValueError: If an argument is invalid.
        CannotMeasure: If numbers are not finite on the way.
    """
    if method not in ("auto", "gram", "lanczos"):
        raise ValueError(f"method must be 'auto', 'gram' or 'lanczos', not {method!r}.")
    jacobian = Jacobian(model, inputs, statistics=statistics, outputs=outputs)
    if method == "gram" or (method == "auto" and jacobian.rows <= GRAM_ROWS):
        return float(torch.linalg.eigvalsh(jacobian.gram().double())[-1])
    return lanczos_max(jacobian.gram_times, jacobian.start(), tolerance=tolerance)


def _select_outputs(values: object, outputs: Outputs, samples: int) -> Tensor:
    """The outputs asked for, a row for each sample."""
    if not isinstance(values, Tensor) or values.ndim < 1 or len(values) != samples:
        raise ValueError("The model must return one tensor with a row for each sample.")
    flat = values.flatten(1) if values.ndim > 1 else values.unsqueeze(1)
    if outputs == "all":
        return flat
    if outputs == "sum":
        return flat.sum(1, keepdim=True)
    if isinstance(outputs, bool) or not isinstance(outputs, int) or not 0 <= outputs < flat.shape[1]:
        raise ValueError(f"outputs must be 'all', 'sum' or a number from 0 to {flat.shape[1] - 1}, not {outputs!r}.")
    return flat[:, outputs : outputs + 1]
