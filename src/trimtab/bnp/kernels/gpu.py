"""Kernels in Triton, for tensors on an NVIDIA GPU: each does all layers of a network in one launch.

On a GPU a step of a small network is a matter of launches, not of arithmetic. So the moments of all inputs are computed
together, when the backward begins (`KernelMoments`), and one kernel does the steps of all layers.

What differs from layer to layer is read from tables on the device. They are copied there again only if something in
them has changed, which with PyTorch's allocator is rare once training runs.
"""

import operator
import struct
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
import triton.language as tl
from torch import Tensor

from trimtab.bnp.kernels import triton_code as code
from trimtab.bnp.kernels.found import MOST_NUMBERS, KernelMoments, Recipe, SummedMoments
from trimtab.bnp.options import Options
from trimtab.bnp.update import Update

# The kernels read numbers of these types; they compute in float32.
TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}

_MOST_TABLES = 16  # addresses come back after a few steps
_MOST_PLANS = 32
_MOST_PROGRAMS, _FEWEST_PROGRAMS, _MANY_COLUMNS = 1024, 128, 4096  # for one layer, or a few more

# Alarms are never let go: a kernel that is still to run may set one when its BNP is gone.
_ALARMS: list[Tensor] = []


class _Launch:
    """One kernel, launched again and again with arguments of the same types.

    Triton finds out each time which of its compiled kernels is to be taken, and where its tensors are. Here that is the
    same each time, and what Triton hands back at the first launch can be launched again in a fraction of the time.
    """

    def __init__(self, kernel: Any, programs: int, *tensors: Tensor) -> None:
        """So many programs of a kernel, with these tensors among its arguments."""
        self._kernel = kernel
        self._grid = (programs, 1, 1)
        self._tensors = tensors
        self._addresses = [tensor.data_ptr() for tensor in tensors]
        self._again: Any = None

    def __call__(self, moving: tuple[Tensor, ...], constants: tuple[Any, ...]) -> None:
        """Launch; the kernel's arguments are the tensors that move from launch to launch, the others, and constants."""
        if self._again is not None:
            try:
                self._again(*[tensor.data_ptr() for tensor in moving], *self._addresses, *constants)
                return
            except TypeError:  # another Triton may want other arguments
                self._again = None
        compiled = self._kernel[self._grid](*moving, *self._tensors, *constants)
        if hasattr(type(compiled), "__getitem__"):
            self._again = compiled[self._grid]


class _Table:
    """A table on the device that is copied there when it has not been before."""

    def __init__(self, device: torch.device) -> None:
        """An empty table."""
        self._device = device
        self._known: dict[bytes, Tensor] = {}
        self._kept: list[Tensor] = []

    def holding(self, content: bytes, captured: bool) -> Tensor:
        """The table with this content, a number of 8 bytes after the other; whether a CUDA graph will read it, too."""
        tensor = self._known.get(content)
        if tensor is None:
            # From memory that the device reads by itself, so that nobody waits.
            host = torch.frombuffer(bytearray(content), dtype=torch.int64).pin_memory()
            tensor = host.to(self._device, non_blocking=True)
            if captured:  # the copy is done again at each replay, from the same place
                self._kept.append(host)
                return tensor
            if len(self._known) >= _MOST_TABLES:
                del self._known[next(iter(self._known))]
            self._known[content] = tensor
        if captured:
            self._kept.append(tensor)
        return tensor


class _MomentsPlan:
    """Tables and memory for the moments of a number of inputs of known layouts."""

    def __init__(self, dtype: torch.dtype, layouts: Sequence[tuple[int, int, int]], device: torch.device) -> None:
        """Cut the work for inputs of a type; either all of them are rows, with one position, or none is."""
        self.constants = (TYPES[dtype],)
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
        self.addresses = _Table(device)
        self.size = 2 * columns_before
        programs = _on(device, work)
        self.launch = _Launch(
            code.moments_of_planes if planes else code.moments_of_rows,
            len(programs),
            torch.tensor(layers, dtype=torch.int32, device=device),
            programs,
            torch.empty(parts_before * (2 if planes else 2 * code.COLUMNS.value), device=device),  # partial sums
            torch.zeros(columns_before, dtype=torch.int32, device=device),  # how many of them have arrived
        )


class _StepPlan:
    """Tables and memory for the steps of layers of known shapes."""

    def __init__(self, alarm: Tensor, shapes: Sequence[tuple[int, int, int, int]], device: torch.device) -> None:
        """Cut the work; each shape is that of the weights. The kernel sets the alarm if something is not finite."""
        work: list[np.ndarray] = []
        for index, (groups, outputs, inputs, sites) in enumerate(shapes):
            # Each program of a layer begins with the statistics of all columns, which is to be the lesser part.
            rows, columns = groups * outputs, groups * inputs * sites
            together = max(1, rows // _MOST_PROGRAMS, min(rows // _FEWEST_PROGRAMS, columns // _MANY_COLUMNS))
            first = np.arange(0, outputs, together)
            begins = (np.arange(groups)[:, None] * outputs + first).ravel()
            ends = (np.arange(groups)[:, None] * outputs + np.minimum(first + together, outputs)).ravel()
            layer, programs = np.full(len(begins), index), np.full(len(begins), len(begins))
            work.append(np.stack([layer, begins, ends, programs], 1))
        self.table = _Table(device)
        flags = torch.zeros(2 * len(shapes), dtype=torch.int32, device=device)
        parts = _on(device, work)
        # A launch is for constants that stay; whether the averages move is the one that does not.
        self.launch = {fold: _Launch(code.precondition, len(parts), parts, flags, alarm) for fold in (False, True)}


def _on(device: torch.device, rows: list[np.ndarray]) -> Tensor:
    """A table of small numbers, one row for each program."""
    return torch.from_numpy(np.ascontiguousarray(np.concatenate(rows), dtype=np.int32)).to(device)


def takes(update: Update) -> bool:
    """Whether layers like this are for the kernels; their gradients have to be without gaps, too."""
    dtype, bias, batch = torch.float32, update.bias, update.batch
    return (
        update.weight.is_cuda
        and update.weight.dtype is dtype
        and update.numel < MOST_NUMBERS
        and (type(batch) is SummedMoments or type(batch.count) is int)
        and update.by_output
        and batch.dtype is update.running.mean.dtype is dtype
        and (bias is None or bias.dtype is dtype)
    )


class _Plans:
    """Plans for what has been met before."""

    def __init__(self, make: Callable[..., Any]) -> None:
        """Without any; `make` makes one of what it is found by."""
        self._make = make
        self._known: dict[Any, Any] = {}
        self._captured: list[Any] = []

    def find(self, told: tuple[Any, ...], captured: bool) -> Any:
        """The plan for this; None the first time."""
        plan = self._known.get(told)
        if plan is None and told in self._known and not captured:  # a graph cannot have the making of tables in it
            plan = self._known[told] = self._make(*told)
        elif told not in self._known:
            if len(self._known) >= _MOST_PLANS:
                del self._known[next(iter(self._known))]
            self._known[told] = None
        if plan is not None and captured:
            self._captured.append(plan)  # it is used as long as the graph is
        return plan


_Group = tuple[torch.device, _MomentsPlan | None, list[int]]
"""A device, a plan, and the numbers of the moments that are computed together there."""


class Workshop:
    """The kernels, with the plans of one BNP."""

    def __init__(self) -> None:
        """Without plans."""
        # On the host, where the device can write to it: so it is looked at without asking the device for anything.
        self._alarm = torch.zeros((), dtype=torch.int32, pin_memory=True)
        _ALARMS.append(self._alarm)
        self._moments_plans = _Plans(_MomentsPlan)
        self._step_plans = _Plans(partial(_StepPlan, self._alarm))
        # The last moments and the last step, to see that the next ones are the same but for addresses, and their plans.
        self._last_moments: tuple[list[Recipe], list[_Group]] | None = None
        self._last_step: tuple[list[Update], _StepPlan] | None = None

    def compute(self, waiting: Sequence[KernelMoments]) -> None:
        """Compute moments that wait, all of one type and layout in one launch.

        Inputs of new sizes are left to compute themselves: it takes time to plan for them, and they may not come again.
        """
        waiting = [moments for moments in waiting if moments.still_waits()]
        captured, recipes = capturing(), [moments.recipe for moments in waiting]
        if self._last_moments is not None and not captured and recipes == self._last_moments[0]:
            groups = self._last_moments[1]
        else:
            groups = self._grouped(recipes, captured)
            if all(plan is not None for _, plan, _ in groups):
                self._last_moments = recipes, groups
        for device, plan, members in groups:
            if plan is None:
                for i in members:
                    waiting[i].settle()
                continue
            inputs = [x for i in members if (x := waiting[i].x) is not None]
            addresses = struct.pack(f"{len(inputs)}q", *[x.data_ptr() for x in inputs])
            out = torch.empty(plan.size, device=device)
            with _current(device):
                plan.launch((plan.addresses.holding(addresses, captured), out), plan.constants)
            at = out.data_ptr()
            for i, first in zip(members, plan.first, strict=True):
                waiting[i].take(out, first, at + 4 * first)

    def _grouped(self, recipes: Sequence[Recipe], captured: bool) -> list[_Group]:
        """What is computed together, each with its plan."""
        groups: dict[Any, list[int]] = {}
        for i, recipe in enumerate(recipes):
            groups.setdefault((recipe.device, recipe.dtype, recipe.layout[2] > 1), []).append(i)
        return [
            (
                device,
                self._moments_plans.find((dtype, tuple([recipes[i].layout for i in members]), device), captured),
                members,
            )
            for (device, dtype, _), members in groups.items()
        ]

    def precondition(
        self, device: torch.device, updates: list[Update], rows: Sequence[bytes], options: Options, fold: bool
    ) -> Tensor | None:
        """The step of layers that the kernels take, all on one device, with their rows in the table.

        Returns:
            A flag, not zero once something was found not to be finite; None if the plain way has to be gone, since
            these shapes have not been met before.
        """
        captured, last = capturing(), self._last_step
        if last is not None and not captured and _same(updates, last[0]):
            plan = last[1]
        else:
            shapes = tuple([update.shape for update in updates])
            plan = self._step_plans.find((shapes, device), captured)
            if plan is None:
                return None
            self._last_step = updates, plan
        use_batch, second_moment = options.statistics == "batch", options.no_bias == "second_moment"
        with _current(device):
            plan.launch[fold](
                (plan.table.holding(b"".join(rows), captured),),
                (1 - options.rho, options.eps1, options.eps2, options.debias, use_batch, second_moment, fold),
            )
        return self._alarm


def _same(some: list[Update], others: list[Update]) -> bool:
    """Whether these are the same objects, not only equal ones."""
    return len(some) == len(others) and all(map(operator.is_, some, others))


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """Within, this is the current device."""
    return nullcontext() if torch.cuda.current_device() == device.index else torch.cuda.device(device)


def capturing() -> bool:
    """Whether what is done now goes into a CUDA graph."""
    return torch.cuda.is_current_stream_capturing()
