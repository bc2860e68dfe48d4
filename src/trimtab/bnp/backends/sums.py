"""The sums of the rows of all layers as one vector, as several processes add them up."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from trimtab.bnp.algorithm.moments import Rows
from trimtab.bnp.backends.buffers import BufferMoments
from trimtab.bnp.row_sums import COUNTS, RowSums, sums_of

_MAX_KEPT = 32  # plans, and numbers: both come back after a few steps


class AllSums:
    """Makes the vector: `sums_of` one layer after the other, zeros where there are no rows.

    Where kernels have left the moments of many layers in few buffers, it takes a few operations for all layers together
    instead of several for each. Nothing waits for the device.
    """

    def __init__(self) -> None:
        """Without plans."""
        self._plans: dict[Any, _Plan] = {}
        self._numbers: dict[Any, Tensor] = {}
        self._captured: list[Any] = []  # what CUDA graphs read

    def of(self, rows: Sequence[Rows | RowSums | None], columns: Sequence[int], device: torch.device) -> Tensor:
        """The vector.

        Args:
            rows: What was seen of each layer.
            columns: How many columns each layer has.
            device: Where the vector is to be.
        """
        buffers: dict[int, tuple[Tensor, int]] = {}  # by identity, with the first place of each in `values`
        begins: list[int] = []  # of the moments of each layer in `values`; 0: it has none there
        counts: list[int] = []
        size = 1
        for each in rows:
            begin, numbers = 0, (0, 0, 0, 0)
            if (place := _place(each, device)) is not None:
                buffer, first, numbers = place
                if id(buffer) not in buffers:
                    buffers[id(buffer)] = buffer, size
                    size += buffer.numel()
                begin = buffers[id(buffer)][1] + first
            begins.append(begin)
            counts.extend(numbers)
        if not buffers:
            return torch.cat(
                [_vector(each, size, device) for each, size in zip(rows, columns, strict=True)]
                or [torch.zeros(0, dtype=torch.float64, device=device)]
            )
        sums = self._summed([buffer for buffer, _ in buffers.values()], begins, columns, counts, device)
        at = 0
        for each, begin, width in zip(rows, begins, columns, strict=True):
            if each is not None and not begin:
                sums[at : at + COUNTS + 2 * width] = _vector(each, width, device)
            at += COUNTS + 2 * width
        return sums

    def _summed(
        self,
        buffers: Sequence[Tensor],
        begins: Sequence[int],
        columns: Sequence[int],
        counts: Sequence[int],
        device: torch.device,
    ) -> Tensor:
        plan: _Plan = _kept(self._plans, (tuple(columns), device), lambda: _Plan(columns, device))
        numbers: Tensor = _kept(self._numbers, (*begins, *counts, device), lambda: _on(device, [*begins, *counts]))
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            self._captured += [plan, numbers]
        values = torch.cat([buffers[0].new_zeros(1), *buffers]).double()
        begin, count = numbers[: len(begins)][plan.layer], numbers[len(begins) :][plan.count].double()
        last = len(values) - 1  # layers without a place among the values may have more columns than there are values
        mean, variance = (values[(begin + place).clamp_(max=last)] for place in (plan.mean, plan.variance))
        factor = torch.where(plan.is_sum, mean, torch.addcmul(variance, mean, mean)).masked_fill_(plan.is_count, 1)
        return (count * factor).masked_fill_(count == 0, 0)  # where there are no rows, the numbers are any


class _Plan:
    """Which numbers the entries of the vector are made of: counts, count · mean, or count · (variance + mean²).

    Attributes:
        layer: The layer that an entry is of.
        count: Where its count is, among those of all layers.
        mean: Where its mean is, from the first of the layer's moments on.
        variance: Where its variance is, if it needs one.
        is_count: Whether it is a count.
        is_sum: Whether it is count · mean.
    """

    def __init__(self, columns: Sequence[int], device: torch.device) -> None:
        """For layers with so many columns."""
        entries: list[tuple[int, int, int, int, int]] = []
        for layer, width in enumerate(columns):
            first = COUNTS * layer
            entries += [(layer, first + i, 0, 0, 0) for i in range(COUNTS)]
            entries += [(layer, first, i, 0, 1) for i in range(width)]
            entries += [(layer, first, i, width + i, 2) for i in range(width)]
        flat = [number for entry in entries for number in entry]
        self.layer, self.count, self.mean, self.variance, kind = _on(device, flat).view(-1, 5).unbind(1)
        self.is_count, self.is_sum = kind == 0, kind == 1


def _place(rows: Rows | RowSums | None, device: torch.device) -> tuple[Tensor, int, tuple[int, int, int, int]] | None:
    """The buffer that has the moments of rows, the first entry there, and their counts; None if they are elsewhere."""
    if type(rows) is not Rows or type(rows.moments) is not BufferMoments:
        return None
    moments = rows.moments
    counts = (moments.count, rows.zeros, rows.samples, rows.positions)
    place = moments.place()
    if place is None or moments.device != device or not all(type(count) is int for count in counts):
        return None
    return *place, (int(moments.count), max(int(rows.zeros), 0), int(rows.samples), int(rows.positions))


def _vector(rows: Rows | RowSums | None, columns: int, device: torch.device) -> Tensor:
    """The entries of one layer."""
    if rows is None:
        return torch.zeros(COUNTS + 2 * columns, dtype=torch.float64, device=device)
    return (rows.sums if isinstance(rows, RowSums) else sums_of(rows)).to(device)


def _on(device: torch.device, numbers: Sequence[int]) -> Tensor:
    """Numbers on a device, which is not waited for."""
    if device.type != "cuda":
        return torch.tensor(numbers, dtype=torch.int64, device=device)
    return torch.tensor(numbers, dtype=torch.int64, pin_memory=True).to(device, non_blocking=True)


def _kept(known: dict[Any, Any], key: Any, make: Any) -> Any:
    if key not in known:
        if len(known) >= _MAX_KEPT:
            del known[next(iter(known))]
        known[key] = make()
    return known[key]
