"""Kernels in Triton, for tensors on an NVIDIA GPU: each does all layers of a network in one launch.

On a GPU a step of a small network is a matter of launches, not of arithmetic. So the moments of all inputs are computed
together, when the backward begins (`KernelMoments`), and one pair of kernels does the steps of all layers.

What differs from layer to layer is read from tables on the device. They are copied there again only if something in
them has changed, which with PyTorch's allocator is rare once training runs.
"""

import struct
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
import triton.language as tl
from torch import Tensor

from trimtab.bnp.kernels import triton_code as code
from trimtab.bnp.kernels.found import KernelMoments, SummedMoments
from trimtab.bnp.kernels.table import shares
from trimtab.bnp.options import Options
from trimtab.bnp.update import Update

# The kernels read numbers of these types; they compute in float32.
TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}

_MOST_TABLES = 16  # addresses come back after a few steps
_MOST_PLANS = 32


class _Launch:
    """One kernel, launched again and again with arguments of the same types.

    Triton finds out each time which of its compiled kernels is to be taken. Here it is the same each time, and what
    Triton hands back at the first launch can be launched again in a fraction of the time.
    """

    def __init__(self, kernel: Any, programs: int) -> None:
        """So many programs of a kernel."""
        self._kernel = kernel
        self._grid = (programs, 1, 1)
        self._again: Any = None

    def __call__(self, *args: Any) -> None:
        """Launch; the arguments are all positional, constants too."""
        if self._again is not None:
            try:
                self._again(*args)
                return
            except TypeError:  # another Triton may want other arguments
                self._again = None
        compiled = self._kernel[self._grid](*args)
        if hasattr(type(compiled), "__getitem__"):
            self._again = compiled[self._grid]


class _Table:
    """A table on the device that is copied there when it has not been before."""

    def __init__(self, device: torch.device) -> None:
        """An empty table."""
        self._device = device
        self._known: dict[bytes, Tensor] = {}
        self._kept: list[Tensor] = []

    def holding(self, content: bytes) -> Tensor:
        """The table with this content, a number of 8 bytes after the other."""
        tensor = self._known.get(content)
        if tensor is None:
            # From memory that the device reads by itself, so that nobody waits.
            host = torch.frombuffer(bytearray(content), dtype=torch.int64).pin_memory()
            tensor = host.to(self._device, non_blocking=True)
            if capturing():  # the copy is done again at each replay, from the same place
                self._kept.append(host)
                return tensor
            if len(self._known) >= _MOST_TABLES:
                del self._known[next(iter(self._known))]
            self._known[content] = tensor
        if capturing():
            self._kept.append(tensor)
        return tensor


class _MomentsPlan:
    """Tables and memory for the moments of a number of inputs of known layouts."""

    def __init__(self, told: tuple[torch.dtype, Sequence[tuple[int, int, int]]], device: torch.device) -> None:
        """Cut the work for inputs of a type; either all of them are rows, with one position, or none is."""
        _, layouts = told
        planes = layouts[0][2] > 1
        layers: list[list[int]] = []
        work: list[np.ndarray] = []
        self.first: list[int] = []
        columns_before = parts_before = 0
        for index, (samples, columns, positions) in enumerate(layouts):
            per_part = max(1, 4096 // positions) if planes else 8 * code.ROWS.value
            parts, blocks = -(-samples // per_part), columns if planes else -(-columns // code.COLUMNS.value)
            layers.append([samples, columns, positions, per_part, parts, columns_before, parts_before])
            grid = np.indices((blocks, parts)).reshape(2, -1)
            work.append(np.vstack([np.full(grid.shape[1], index), grid]).T)
            self.first.append(2 * columns_before)
            columns_before += columns
            parts_before += parts * blocks
        self.layers = torch.tensor(layers, dtype=torch.int32, device=device)
        self.work = _on(device, work)
        self.partial = torch.empty(parts_before * (2 if planes else 2 * code.COLUMNS.value), device=device)
        self.arrived = torch.zeros(columns_before, dtype=torch.int32, device=device)
        self.addresses = _Table(device)
        self.size = 2 * columns_before
        self.launch = _Launch(code.moments_of_planes if planes else code.moments_of_rows, len(self.work))


class _StepPlan:
    """Tables and memory for the steps of layers of known shapes."""

    def __init__(self, told: tuple[bool, Sequence[tuple[int, int, int, int, bool]]], device: torch.device) -> None:
        """Cut the work; each shape is that of the weights, and whether all sites share their statistics."""
        _, shapes = told
        by_group: list[np.ndarray] = []
        by_output: list[np.ndarray] = []
        first = 0
        for index, (groups, outputs, inputs, sites, shared) in enumerate(shapes):
            for work, count in ((by_group, groups), (by_output, groups * outputs)):
                work.append(np.stack([np.full(count, index), np.arange(count), np.full(count, first)], 1))
            first += 4 * groups * inputs * (1 if shared else sites)
        self.by_group, self.by_output = _on(device, by_group), _on(device, by_output)
        self.scratch = torch.empty(first, device=device)
        self.flags = torch.zeros(3 * len(shapes), dtype=torch.int32, device=device)
        self.alarm = torch.zeros((), dtype=torch.int32, device=device)
        self.table = _Table(device)
        self.prepare = _Launch(code.prepare, len(self.by_group))
        self.transform = _Launch(code.transform, len(self.by_output))


def _on(device: torch.device, rows: list[np.ndarray]) -> Tensor:
    """A table of small numbers, one row for each program."""
    return torch.from_numpy(np.ascontiguousarray(np.concatenate(rows), dtype=np.int32)).to(device)


def takes(update: Update) -> bool:
    """Whether layers like this are for the kernels; their gradients have to be without gaps, too."""
    dtype, bias, batch = torch.float32, update.bias, update.batch
    return (
        update.weight.is_cuda
        and update.weight.dtype is dtype
        and (type(batch) is SummedMoments or type(batch.count) is int)
        and update.by_output
        and batch.dtype is update.running.mean.dtype is dtype
        and (bias is None or bias.dtype is dtype)
    )


class Workshop:
    """The kernels, with the plans of one BNP."""

    def __init__(self) -> None:
        """Without plans."""
        self._plans: dict[Any, Any] = {}
        self._captured: list[Any] = []

    def compute(self, waiting: Sequence[KernelMoments]) -> None:
        """Compute moments that wait, all of one type and layout in one launch.

        Inputs of new sizes are left to compute themselves: it takes time to plan for them, and they may not come again.
        """
        groups: dict[Any, tuple[list[KernelMoments], list[Tensor]]] = {}
        for moments in waiting:
            if (x := moments.x) is not None:
                members, inputs = groups.setdefault((x.device, x.dtype, moments.recipe.layout[2] > 1), ([], []))
                members.append(moments)
                inputs.append(x)
        for (device, dtype, _), (members, inputs) in groups.items():
            layouts = tuple([moments.recipe.layout for moments in members])
            plan = self._plan(_MomentsPlan, (dtype, layouts), device)
            if plan is None:
                for moments in members:
                    moments.settle()
                continue
            addresses = struct.pack(f"{len(inputs)}q", *[x.data_ptr() for x in inputs])
            out = torch.empty(plan.size, device=device)
            with _current(device):
                plan.launch(
                    plan.addresses.holding(addresses),
                    plan.layers,
                    plan.work,
                    plan.partial,
                    plan.arrived,
                    out,
                    TYPES[dtype],
                )
            at = out.data_ptr()
            for moments, first in zip(members, plan.first, strict=True):
                moments.take(out, first, at + first * out.itemsize)

    def precondition(
        self, device: torch.device, layers: Sequence[tuple[Update, bytes]], options: Options, fold: bool
    ) -> Tensor | None:
        """The step of layers that the kernels take, all on one device, with their rows in the table.

        Returns:
            A flag on the device, not zero once something was not finite; None if the plain way has to be gone, since
            these shapes have not been met before.
        """
        shapes = tuple([(*update.shape, shares(update)) for update, _ in layers])
        plan = self._plan(_StepPlan, (fold, shapes), device)
        if plan is None:
            return None
        table = plan.table.holding(b"".join([row for _, row in layers]))
        step = 1 - options.rho
        with _current(device):
            plan.prepare(
                table,
                plan.by_group,
                plan.scratch,
                plan.flags,
                step,
                options.eps1,
                options.eps2,
                options.debias,
                options.statistics == "batch",
                options.no_bias == "second_moment",
                fold,
            )
            plan.transform(table, plan.by_output, plan.scratch, plan.flags, plan.alarm, step, options.debias, fold)
        alarm: Tensor = plan.alarm
        return alarm

    def _plan(self, kind: type[Any], told: Any, device: torch.device) -> Any:
        """The plan for something that has been met before; None the first time."""
        key = kind, told, device
        plan = self._plans.get(key)
        if plan is None and key in self._plans and not capturing():  # a graph cannot have the making of tables in it
            plan = self._plans[key] = kind(told, device)
        elif key not in self._plans:
            if len(self._plans) >= _MOST_PLANS:
                del self._plans[next(iter(self._plans))]
            self._plans[key] = None
        if plan is not None and capturing():
            self._captured.append(plan)  # it is used as long as the graph is
        return plan


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """Within, this is the current device."""
    return nullcontext() if torch.cuda.current_device() == device.index else torch.cuda.device(device)


def capturing() -> bool:
    """Whether what is done now goes into a CUDA graph."""
    return torch.cuda.is_current_stream_capturing()
