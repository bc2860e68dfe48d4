"""The largest eigenvalue of the Gauss–Newton matrix of a loss, measured with a model's own weights.

The matrix is the mean over batches of JᵀHJ, with J the derivative of the outputs with respect to the parameters and H
that of the loss, twice, with respect to the outputs. It is never formed: Lanczos' method needs its products only.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.norms.statistics import Statistics
from trimtab.prediction.losses import Loss, Outputs, Product, check_loss, hessian_product, hessian_root
from trimtab.prediction.products import Batch, OutputDerivative, operations
from trimtab.probes.isolation import IsolatedModel, Point
from trimtab.probes.spectrum.basis import norm, products
from trimtab.probes.spectrum.lanczos import Ritz, extremes, gaussian

TOLERANCE, FINE_TOLERANCE = 0.02, 0.001
CHEAP = 2e11  # floating-point operations of all products that there may be, up to which the tolerance is the fine one
PER_PRODUCT = 5  # times those of a forward
MIN_PRODUCTS, FINE_MIN_PRODUCTS, MAX_PRODUCTS = 5, 12, 40
"""Of random starts, one in a hundred had so little of the largest eigenvector that after 3 or 4 products the second
eigenvalue was taken for it (0.76 of the largest, all others below 0.3); after 5, one in six hundred."""
SECONDS, BYTES = 60.0, 4 << 30
"""What a measurement may take, about: fewer samples are measured if all of them would take more."""
_EXPECTED_PRODUCTS = 8
_COPIES = 3  # times what the graph of the derivative keeps, for what comes and goes beside it
TRIED, _FEW = 12, 2  # samples, to see what they take
_TRIAL = 1.75  # products: one, the start and the outputs


Projection = Callable[[Sequence[Tensor]], Tensor]
Parts = Callable[[Tensor], Sequence[Tensor]]


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


class BatchedGaussNewton:
    """The mean of the Gauss–Newton matrices JᵀHJ of several batches, each by its share of the samples.

    If H = RRᵀ, its eigenvalues are those of RᵀJJᵀR, which has a row for each output. That matrix is taken where it is
    the smaller one: Lanczos' vectors cost nothing then, and have no part that J cannot see.

    To be used within a run of the isolated model.

    Args:
        isolated: The model.
        batches: Inputs and targets.
        loss: The loss.
        outputs: Of all outputs or of the first one.
        point: Values for the parameters; None: their own.

    Attributes:
        isolated: The model.
        derivative: J.
    """

    def __init__(
        self,
        isolated: IsolatedModel,
        batches: Sequence[Batch],
        loss: Loss,
        outputs: Outputs,
        point: Point | None = None,
    ) -> None:
        self.isolated = isolated
        self.derivative = OutputDerivative(isolated, batches, lambda values: _selected(values, loss, outputs), point)
        self._loss = loss
        samples = sum(len(x) for x, _ in batches)
        self._shares = [len(x) / samples for x, _ in batches]

    def largest(self, max_products: int = MAX_PRODUCTS, fine: bool = False) -> Ritz:
        """The largest eigenvalue as the last of the values, within 2 %, or, with more products, within 0.1 %."""
        return self.isolated.run(lambda: self._largest(max_products, fine)[0], self.derivative.leaves)

    def largest_by_sample(self, fine: bool = False) -> tuple[Ritz, list[float]]:
        """The same, and what each sample adds to the largest eigenvalue."""

        def work() -> tuple[Ritz, list[float]]:
            ritz, parts = self._largest(MAX_PRODUCTS, fine)
            added = parts(ritz.basis.combined(ritz.vectors[:, -1]))
            return ritz, torch.cat([each.double().reshape(len(each), -1).sum(1) for each in added]).tolist()

        return self.isolated.run(work, self.derivative.leaves)

    def _largest(self, max_products: int, fine: bool) -> tuple[Ritz, Parts]:
        noise = torch.Generator().manual_seed(0)
        values, leaves = self.derivative.outputs(), list(self.derivative.leaves.values())
        rows, columns = (sum(t.numel() for t in tensors) for tensors in (values, leaves))
        roots = [root for each in values if (root := hessian_root(self._loss, each)) is not None]
        by_outputs = rows <= columns and len(roots) == len(values)
        product, project, parts = self._of_outputs(roots, values) if by_outputs else self._of_parameters(values)
        # Noise that went through the matrix once, or halfway: most of it lies where eigenvalues are large.
        start = project([gaussian(leaf, noise).view_as(leaf) for leaf in leaves])
        if not norm(start) > 0:
            start = gaussian(start, noise)
        ritz = extremes(
            product,
            start,
            tolerance=FINE_TOLERANCE if fine else TOLERANCE,
            max_products=max_products,
            max_vectors=16,
            min_products=FINE_MIN_PRODUCTS if fine else MIN_PRODUCTS,
            stop_when_stable=True,
            noise=noise,
        )
        return ritz, parts

    def _of_outputs(
        self, roots: Sequence[tuple[Product, Product]], values: Sequence[Tensor]
    ) -> tuple[Product, Projection, Parts]:
        """The product with RᵀJJᵀR, that with RᵀJ, and what each output adds to the eigenvalue of a vector."""
        scales = [share**0.5 for share in self._shares]
        like = [each.to(torch.promote_types(each.dtype, torch.float32)) for each in values]

        def product(vector: Tensor) -> Tensor:
            parts = zip(roots, scales, _split(vector, like), strict=True)
            u = [root(part) * scale for (root, _), scale, part in parts]
            gradient = self.derivative.transposed(u)
            moved = self.derivative.times(gradient)
            square = _dot(gradient, gradient)
            if not self.derivative.agrees(_dot(u, moved), square, square):
                moved = self.derivative.times(gradient)
            return transposed(moved)

        def transposed(tensors: Sequence[Tensor]) -> Tensor:
            parts = zip(roots, scales, tensors, like, strict=True)
            return _flat([root(one.to(each)) * scale for (_, root), scale, one, each in parts])

        def parts(vector: Tensor) -> list[Tensor]:
            # The eigenvector of JᵀHJ is v = JᵀRq/√λ, so that RᵀJv = √λ q.
            return [part.square() for part in _split(vector, like)]

        return product, lambda along: transposed(self.derivative.times(along)), parts

    def _of_parameters(self, values: Sequence[Tensor]) -> tuple[Product, Projection, Parts]:
        """The product with JᵀHJ, of a vector and of one tensor for each parameter, and what each output adds."""
        targets = [y for _, y in self.derivative.batches]
        hessians = [hessian_product(self._loss, each, y) for each, y in zip(values, targets, strict=True)]
        leaves = list(self.derivative.leaves.values())

        def split(vector: Tensor) -> list[Tensor]:
            return [part.to(leaf) for part, leaf in zip(_split(vector, leaves), leaves, strict=True)]

        def parts(vector: Tensor) -> list[Tensor]:
            moved = self.derivative.times(split(vector))
            return [a * b for a, b in zip(curved(moved), moved, strict=True)]

        def project(along: Sequence[Tensor]) -> Tensor:
            moved = self.derivative.times(along)
            u = curved(moved)
            gradient = self.derivative.transposed(u)
            scale = (_dot(u, u) * _dot(moved, moved)) ** 0.5
            if not self.derivative.agrees(_dot(u, moved), _dot(gradient, along), scale):
                gradient = self.derivative.transposed(curved(self.derivative.times(along)))
            return _flat(gradient)

        def curved(tensors: Sequence[Tensor]) -> list[Tensor]:
            parts = zip(hessians, self._shares, tensors, values, strict=True)
            return [hessian(one.to(like)) * share for hessian, share, one, like in parts]

        return (lambda vector: project(split(vector))), project, parts


def _selected(values: Tensor, loss: Loss, outputs: Outputs) -> Tensor:
    """The outputs that count.

    Raises:
        ValueError: If the loss says nothing about so few.
    """
    if callable(loss):  # which takes them as they are
        return values
    values = values.unsqueeze(1) if values.ndim == 1 else values
    if loss == "cross_entropy" and values.shape[1] < 2:
        raise ValueError("loss='cross_entropy' is constant for a model with one output; give a loss of your own.")
    return values.flatten(1)[:, :1] if outputs == "one" else values


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    """All entries as one vector, in float32 at least."""
    kind = torch.float32
    for tensor in tensors:
        kind = torch.promote_types(kind, tensor.dtype)
    return torch.cat([tensor.flatten().to(kind) for tensor in tensors])


def _split(vector: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The inverse of `_flat`, but for the type of the entries."""
    parts = vector.split([tensor.numel() for tensor in like])
    return [part.view_as(tensor) for part, tensor in zip(parts, like, strict=True)]


def _dot(first: Sequence[Tensor], second: Sequence[Tensor]) -> float:
    """The scalar product."""
    pairs = zip(first, second, strict=True)
    return math.fsum(float(products(a.reshape(1, -1).float(), b.flatten().float())) for a, b in pairs)


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
