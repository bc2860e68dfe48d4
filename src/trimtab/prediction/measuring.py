"""The largest eigenvalue of the Gauss–Newton matrix of a loss, measured with a model's own weights.

The matrix is the mean over batches of JᵀHJ, with J the derivative of the outputs with respect to the parameters and H
that of the loss, twice, with respect to the outputs. It is never formed: Lanczos' method needs its products only.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trimtab import _torch
from trimtab.norms.statistics import Statistics
from trimtab.prediction.losses import Loss, Outputs, check_loss, hessian_product
from trimtab.probes.isolation import IsolatedModel, Point
from trimtab.probes.result import CannotMeasure
from trimtab.probes.spectrum.lanczos import Ritz, extremes
from trimtab.probes.spectrum.operators import Curvature, GaussNewton
from trimtab.probes.spectrum.second_derivatives import twice_differentiable

TOLERANCE = 0.02
MAX_PRODUCTS = 40
SECONDS, BYTES = 60.0, 4 << 30
"""What a measurement may take, about: fewer samples are measured if all of them would take more."""
_EXPECTED_PRODUCTS = 8
_COPIES = 3  # of what a forward keeps, in the graph of a derivative of a derivative
_TRIED = (2, 12)  # samples, to see what they take

Batch = tuple[Tensor, Any]


@dataclass(frozen=True)
class Measurement:
    """A measured eigenvalue.

    Attributes:
        lambda_max: The eigenvalue.
        samples: How many samples it was measured on.
        batch_size: In batches of so many.
        products: With the matrix; each takes about as long as three forwards and backwards.
        converged: Whether it is within 2 % of an eigenvalue.
        note: Why not all samples were taken; empty if all were.
    """

    lambda_max: float
    samples: int
    batch_size: int
    products: int
    converged: bool
    note: str = ""


class BatchedGaussNewton(Curvature):
    """The mean of the Gauss–Newton matrices of several batches, each by its share of the samples.

    Args:
        isolated: The model.
        batches: Inputs and targets.
        loss: The loss.
        outputs: Of all outputs or of the first one.
        point: Values for the parameters; None: their own.

    Attributes:
        isolated: The model.
    """

    def __init__(
        self,
        isolated: IsolatedModel,
        batches: Sequence[Batch],
        loss: Loss,
        outputs: Outputs,
        point: Point | None = None,
    ) -> None:
        super().__init__(isolated.leaves(point))
        self.isolated = isolated
        self._batches, self._loss, self._which = batches, loss, outputs
        self._samples = sum(len(x) for x, _ in batches)
        self._only: GaussNewton | None = None  # its graph stays; those of several batches would not fit

    def block(self, names: Iterable[str]) -> "Curvature":
        """Blocks are not needed here."""
        raise NotImplementedError

    def _times(self, vector: list[Tensor]) -> list[Tensor]:
        return self.isolated.run(lambda: self._sum(lambda matrix: matrix._times(vector)), self.leaves)

    def _gradient(self, noise: torch.Generator) -> list[Tensor]:
        return self.isolated.run(lambda: self._sum(lambda matrix: matrix._gradient(noise)), self.leaves)

    def _sum(self, part: Callable[[GaussNewton], list[Tensor]]) -> list[Tensor]:
        total = [torch.zeros_like(leaf) for leaf in self.leaves.values()]
        for x, y in self._batches:
            self.isolated.rewind()
            with twice_differentiable():
                matrix = self._only or self._matrix(x, y)
                parts = part(matrix)
            for into, one in zip(total, parts, strict=True):
                into.add_(one, alpha=len(x) / self._samples)
            if len(self._batches) == 1:
                self._only = matrix
        return total

    def _matrix(self, x: Tensor, y: Any) -> GaussNewton:
        values = self.isolated.model(x)
        if not isinstance(values, Tensor) or not values.ndim or len(values) != len(x):
            raise ValueError("The model must return one tensor with a row for each sample.")
        values = values.unsqueeze(1) if values.ndim == 1 else values
        if self._loss == "cross_entropy" and values.shape[1] < 2:
            raise ValueError("loss='cross_entropy' is constant for a model with one output; give a loss of your own.")
        if not values.requires_grad:
            raise CannotMeasure("No gradient reaches the outputs of the model: its forward ends in detach or no_grad.")
        if self._which == "one":
            values = values.flatten(1)[:, :1]
        return GaussNewton(values, self.leaves, hessian_product(self._loss, values, y))


def measure_lambda_max(
    model: nn.Module,
    inputs: Tensor,
    targets: Any = None,
    *,
    loss: Loss = "squared",
    outputs: Outputs = "all",
    statistics: Statistics = "batch",
    batch_size: int | None = None,
    seconds: float = SECONDS,
    memory: float = BYTES,
) -> Measurement:
    """The largest eigenvalue of the Gauss–Newton matrix of a loss, with the model's weights as they are.

    Nothing of the model is changed. Dropout is off.

    Args:
        model: Any module that maps inputs to a tensor with a row for each sample.
        inputs: The samples.
        targets: As many; needed by a loss of your own only.
        loss: `squared`, `cross_entropy`, or a function of outputs and targets that returns a mean over samples.
        outputs: `all`, or `one`: the first, for the squared loss.
        statistics: See `trimtab.probes.isolation.IsolatedModel`.
        batch_size: How many samples share their statistics; None: all.
        seconds: Take fewer samples if all of them would take longer, by an estimate.
        memory: Likewise for bytes.

    Raises:
        ValueError: If an argument is invalid, or nothing in the model is trained.
        CannotMeasure: If numbers are not finite on the way, or an operation of the model has no second derivative.
    """
    check_loss(loss, outputs)
    _check_data(inputs, targets, loss, batch_size)
    isolated = IsolatedModel(model, statistics=statistics, dropout=False)
    size = min(batch_size or len(inputs), len(inputs))
    count, size, note = _affordable(isolated, inputs, targets, loss, outputs, size, seconds, memory)
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))[:count].to(inputs.device)
    whole = [part for part in order.split(size) if len(part) == size]  # a smaller last one would be another matrix
    batches = [(inputs[part], None if targets is None else targets[part]) for part in whole]
    ritz = largest_eigenvalue(BatchedGaussNewton(isolated, batches, loss, outputs))
    return Measurement(float(ritz.values[-1]), size * len(batches), size, ritz.products, ritz.converged, note)


def largest_eigenvalue(matrix: BatchedGaussNewton) -> Ritz:
    """The largest eigenvalue of a matrix, within 2 %, as the last of the values."""
    noise = torch.Generator().manual_seed(0)
    return matrix.isolated.run(
        lambda: extremes(
            matrix.times,
            matrix.start(noise),
            tolerance=TOLERANCE,
            max_products=MAX_PRODUCTS,
            max_vectors=16,
            min_products=3,
            stop_when_stable=True,
            noise=noise,
        )
    )


def _check_data(inputs: Any, targets: Any, loss: Loss, batch_size: Any) -> None:
    if not isinstance(inputs, Tensor) or inputs.ndim < 1 or not len(inputs):
        raise ValueError("inputs must be a tensor of one sample or more.")
    if inputs.is_floating_point() and not bool(inputs.isfinite().all()):
        raise ValueError("inputs must be finite; there is an infinity or a NaN among them.")
    if targets is None and callable(loss):
        raise ValueError("targets must be given: your loss is a function of outputs and targets.")
    if targets is not None and (not isinstance(targets, Tensor) or len(targets) != len(inputs)):
        raise ValueError(f"targets must be a tensor of {len(inputs)}, one for each input.")
    check_batch_size(batch_size)


def check_batch_size(batch_size: Any) -> None:
    """Refuse what is not a number of samples.

    Raises:
        ValueError: If it is neither None nor 1 or larger.
    """
    if batch_size is not None and (isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1):
        raise ValueError(f"batch_size must be None or a whole number, 1 or larger, not {batch_size!r}.")


def _affordable(
    isolated: IsolatedModel,
    inputs: Tensor,
    targets: Any,
    loss: Loss,
    outputs: Outputs,
    size: int,
    seconds: float,
    memory: float,
) -> tuple[int, int, str]:
    """How many samples to take, in batches of which size, and why fewer than asked for if so."""
    few, more = (
        _cost(isolated, inputs[:count], None if targets is None else targets[:count], loss, outputs)
        for count in (min(_TRIED[0], size), min(_TRIED[1], size))
    )
    slope = max(more[0] - few[0], 0.0) / max(min(_TRIED[1], size) - min(_TRIED[0], size), 1)
    rest = max(seconds / _EXPECTED_PRODUCTS - few[0], 0.0)  # which what does not depend on the samples leaves
    by_time = max(2, int(min(rest / slope, len(inputs)))) if slope > 0 and rest > 0 else len(inputs) if rest > 0 else 2
    by_memory = max(2, int(memory / (_COPIES * max(more[1] / min(_TRIED[1], size), 1))))
    new_size = min(size, by_memory, by_time)
    count = min(len(inputs) // new_size * new_size, max(by_time // new_size, 1) * new_size)
    if new_size == size and count >= len(inputs) // size * size:
        return count, size, ""
    reasons = [f"{seconds:.0f} s"] if by_time < min(len(inputs), by_memory) or new_size == size else []
    reasons += [f"{memory / 2**30:.3g} GiB"] if by_memory < size and by_memory <= by_time else []
    return (
        count,
        new_size,
        (
            f"Measured on {count} of {len(inputs)} inputs, in batches of {new_size}: more would take more than "
            f"{' or '.join(reasons) or 'is allowed'}, by an estimate."
        ),
    )


def _cost(isolated: IsolatedModel, inputs: Tensor, targets: Any, loss: Loss, outputs: Outputs) -> tuple[float, float]:
    """The seconds that a product with the matrix of some samples takes, and the bytes that its forward keeps."""
    matrix = BatchedGaussNewton(isolated, [(inputs, targets)], loss, outputs)
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    nothing = torch.zeros(matrix.size, device=inputs.device)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        matrix.times(nothing)
    begin = time.perf_counter()
    matrix.times(nothing)
    seconds = time.perf_counter() - begin
    own = {leaf.untyped_storage().data_ptr() for leaf in matrix.leaves.values()}
    return seconds, float(sum(number for place, number in kept.items() if place not in own))


def has_batch_statistics(model: nn.Module) -> bool:
    """Whether some layer normalizes by the statistics of the batch."""
    return any(isinstance(module, _torch.BATCH_NORMS) or _is_ours(module) for module in model.modules())


def _is_ours(module: nn.Module) -> bool:
    from trimtab.norms import RunningNorm

    return isinstance(module, RunningNorm)


def relative(a: float, b: float) -> float:
    """A over b; NaN where that says nothing."""
    return a / b if b and math.isfinite(a) and math.isfinite(b) else math.nan
