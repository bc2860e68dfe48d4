"""The largest eigenvalue of the Gauss–Newton matrix of a loss, measured with a model's own weights."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.norms.statistics import Statistics
from trimtab.prediction.gauss_newton import MAX_PRODUCTS, TOLERANCE, BatchedGaussNewton
from trimtab.prediction.losses import Loss, Outputs, check_loss
from trimtab.prediction.products import Batch, operations
from trimtab.probes.isolation import IsolatedModel

CHEAP = 2e11  # floating-point operations of all products that there may be, up to which the tolerance is the fine one
PER_PRODUCT = 5  # times those of a forward
SECONDS, BYTES = 60.0, 4 << 30
"""What a measurement may take, about: fewer samples are measured if all of them would take more."""
_EXPECTED_PRODUCTS = 8
_COPIES = 3  # times what the graph of the derivative keeps, for what comes and goes beside it
TRIED, _FEW = 12, 2  # samples, to see what they take
_TRIAL = 1.75  # products: one, the start and the outputs


@dataclass(frozen=True)
class Measurement:
    """A measured eigenvalue.

    Attributes:
        lambda_max: The eigenvalue.
        samples: How many samples it was measured on.
        batch_size: In batches of so many.
        products: With the matrix; each takes about as long as two forwards and backwards.
        converged: Whether it is within 2 % of an eigenvalue.
        note: Why not all samples were taken; empty if all were.
        uncertainty: By how much of itself it would differ for as many other samples of the same kind, about: the
            standard error of the mean of what each sample adds to it, with the eigenvector held fixed.
    """

    lambda_max: float
    samples: int
    batch_size: int
    products: int
    converged: bool
    note: str = ""
    uncertainty: float = 0.0


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
        CannotMeasure: If numbers are not finite on the way, or an operation of the model has neither forward mode nor
            a second derivative.
    """
    check_loss(loss, outputs)
    _check_data(inputs, targets, loss, batch_size)
    isolated = IsolatedModel(model, statistics=statistics, dropout=False)
    size = min(batch_size or len(inputs), len(inputs))
    count, size, note = _affordable(isolated, inputs, targets, loss, outputs, size, seconds, memory)
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))[:count].to(inputs.device)
    whole = [part for part in order.split(size) if len(part) == size]  # a smaller last one would be another matrix
    batches = [(inputs[part], None if targets is None else targets[part]) for part in whole]
    matrix = BatchedGaussNewton(isolated, batches, loss, outputs)
    ritz, added = matrix.largest_by_sample(fine=_is_cheap(isolated, batches))
    value = float(ritz.values[-1])
    converged = ritz.converged or float(ritz.residuals[-1]) <= TOLERANCE * value
    return Measurement(value, size * len(batches), size, ritz.products, converged, note, _standard_error(added))


def _standard_error(values: Sequence[float]) -> float:
    """Of the mean of some numbers, as a share of it."""
    mean = fmean(values)
    return stdev(values) / math.sqrt(len(values)) / mean if len(values) > 1 and mean > 0 else 0.0


def _is_cheap(isolated: IsolatedModel, batches: Sequence[Batch]) -> bool:
    """Whether as many products as there may be take little time, by their floating-point operations."""
    x, _ = batches[0]
    forward = sum(2 * values.numel() for values in isolated.parameters.values()) * len(x)  # at least
    most = CHEAP / (MAX_PRODUCTS * PER_PRODUCT * len(batches))
    if forward > most:  # counting takes a second
        return False
    few = x[:2]
    return operations(isolated, few)[0] * len(x) / len(few) <= most


def _check_data(inputs: Any, targets: Any, loss: Loss, batch_size: Any) -> None:
    if not isinstance(inputs, Tensor) or inputs.ndim < 1 or not len(inputs):
        raise ValueError("inputs must be a tensor of one sample or more.")
    if inputs.is_floating_point() and not bool(inputs.isfinite().all()):
        raise ValueError("inputs must be finite; there is an infinity or a NaN among them.")
    if targets is None and callable(loss):
        raise ValueError("targets must be given: your loss is a function of outputs and targets.")
    check_targets(targets, len(inputs))
    check_batch_size(batch_size)


def check_targets(targets: Any, samples: int) -> None:
    """Refuse targets that are not one for each input.

    Raises:
        ValueError: If they are neither None nor that.
    """
    if targets is not None and (not isinstance(targets, Tensor) or not targets.ndim or len(targets) != samples):
        raise ValueError(f"targets must be a tensor of {samples}, one for each input.")


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
    tried = [min(count, size) for count in (_FEW, TRIED)]

    def cost(count: int) -> tuple[float, float]:
        return _cost(isolated, inputs[:count], None if targets is None else targets[:count], loss, outputs)

    more = cost(tried[1])
    whole = len(inputs) // size * size
    # If it is short enough, though the first product takes longer than those that follow, nothing else has to be tried.
    if (
        more[0] / _TRIAL * whole / tried[1] <= seconds / _EXPECTED_PRODUCTS
        and _COPIES * more[1] * size / tried[1] <= memory
    ):
        return whole, size, ""
    few, more = min(cost(tried[0]), cost(tried[0])), cost(tried[1])
    slope = max(more[0] - few[0], 0.0) / max(tried[1] - tried[0], 1)
    rest = max(seconds / _EXPECTED_PRODUCTS - few[0], 0.0)  # which what does not depend on the samples leaves
    by_time = max(2, int(min(rest / slope, len(inputs)))) if slope > 0 and rest > 0 else len(inputs) if rest > 0 else 2
    by_memory = max(2, int(memory / (_COPIES * max(more[1] / tried[1], 1))))
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


def _half_square(outputs: Tensor, _targets: Any) -> Tensor:
    return outputs.square().sum() / (2 * len(outputs))


def _cost(isolated: IsolatedModel, inputs: Tensor, targets: Any, loss: Loss, outputs: Outputs) -> tuple[float, float]:
    """The seconds that a product with the matrix of some samples takes, and the bytes that its forward keeps."""
    # A loss of the user's may not be defined on so few, as one that ignores all of these targets.
    stand_in = _half_square if callable(loss) else loss
    matrix = BatchedGaussNewton(isolated, [(inputs, targets)], stand_in, outputs)
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    begin = time.perf_counter()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        matrix.largest(max_products=1)
    seconds = time.perf_counter() - begin
    own = {leaf.untyped_storage().data_ptr() for leaf in matrix.derivative.leaves.values()}
    return seconds, float(sum(number for place, number in kept.items() if place not in own))


def relative(a: float, b: float) -> float:
    """A over b; NaN where that says nothing."""
    return a / b if b and math.isfinite(a) and math.isfinite(b) else math.nan
