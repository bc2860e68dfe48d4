"""The backend for tensors on an NVIDIA GPU: kernels in Triton, each for all layers of a network in one launch.

On a GPU a step of a small network is a matter of launches, not of arithmetic. So the moments of all inputs that
autograd keeps until the backward are computed together, when it begins, and one kernel does the steps of all layers.

What differs from layer to layer is read from tables on the device. They are copied there again only if something in
them has changed, which with PyTorch's allocator is rare once training runs.
"""

import struct
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from typing import Any

import numpy as np
import torch
import triton.language as tl
from torch import Tensor

from trimtab.bnp.algorithm.step import LayerStep, Shape
from trimtab.bnp.backends import record
from trimtab.bnp.backends import triton_kernels as kernels
from trimtab.bnp.backends.buffers import BufferMoments, InputLayout, sizes_in_memory
from trimtab.bnp.options import Options

# The kernels read numbers of these types; they compute in float32.
TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}

MAX_NUMBERS = 2**31 - 2**12  # in a tensor: they are counted with 32 bits, up to one block beyond the last one
_MAX_WAITING = 64  # inputs, or two per layer if that is more: they stay in memory, also if no backward comes
_MAX_TABLES = 16  # addresses come back after a few steps
_MAX_PLANS, _MAX_ALONE = 32, 1024
_ENOUGH_PROGRAMS = 2048  # for the moments of one input
_MAX_PROGRAMS, _MIN_PROGRAMS, _MANY_COLUMNS = 1024, 128, 4096  # for one layer, or a few more

# Flags on the host are never let go: a kernel that is still to run may set one when its BNP is gone.
_FLAGS: list[Tensor] = []


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

    def __call__(self, moving: tuple[Tensor, ...], constants: tuple[Any, ...], *, raw: bool | None = None) -> None:
        """Launch; the kernel's arguments are the tensors that move from launch to launch, the others, and constants.

        Args:
            moving: The tensors that move.
            constants: The constants.
            raw: Whether to launch by addresses, where that is possible; None: if it has been found to work.
        """
        if self._again is not None and (_raw_launch_works() if raw is None else raw):
            try:
                self._again(*[tensor.data_ptr() for tensor in moving], *self._addresses, *constants)
                return
            except TypeError:  # another Triton may want other arguments
                self._again = None
        compiled = self._kernel[self._grid](*moving, *self._tensors, *constants)
        if hasattr(type(compiled), "__getitem__"):
            self._again = compiled[self._grid]


class _Table:
    """A table on the device that is copied there when it has not been before.

    It is copied from pinned memory, which the device reads by itself, so that nobody waits. Such memory takes long to
    get: there are a few pieces of it, and each is used again when the copy from it is done.
    """

    def __init__(self, device: torch.device) -> None:
        """An empty table."""
        self._device = device
        self._known: dict[bytes, Tensor] = {}
        self._pinned: list[tuple[Tensor, torch.cuda.Event]] = []
        self._captured: list[Tensor] = []  # what CUDA graphs read

    def holding(self, content: bytes, captured: bool) -> Tensor:
        """The table with this content, a number of 8 bytes after the other; whether a CUDA graph will read it, too."""
        tensor = self._known.get(content)
        if tensor is None:
            if captured:  # the copy is done again at each replay, from the same place
                host = torch.frombuffer(bytearray(content), dtype=torch.int64).pin_memory()
                self._captured.append(host)
                return host.to(self._device, non_blocking=True)
            tensor = self._copied(content)
            if len(self._known) >= _MAX_TABLES:
                del self._known[next(iter(self._known))]
            self._known[content] = tensor
        if captured:
            self._captured.append(tensor)
        return tensor

    def _copied(self, content: bytes) -> Tensor:
        numbers = len(content) // 8
        if len(self._pinned) < _MAX_TABLES:
            host, done = torch.empty(numbers, dtype=torch.int64, pin_memory=True), torch.cuda.Event()
        else:
            host, done = self._pinned.pop(0)
            done.synchronize()  # it was over long ago
            if len(host) != numbers:
                host = torch.empty(numbers, dtype=torch.int64, pin_memory=True)
        host.numpy()[:] = np.frombuffer(content, dtype=np.int64)
        tensor = host.to(self._device, non_blocking=True)
        done.record(torch.cuda.current_stream(self._device))
        self._pinned.append((host, done))
        return tensor


class _MomentsPlan:
    """Tables and memory for the moments of a number of inputs of known layouts."""

    def __init__(
        self, dtype: torch.dtype, layouts: Sequence[tuple[int, int, int]], device: torch.device, alone: bool = False
    ) -> None:
        """Cut the work for inputs of a type; either all of them are rows, with one position, or none is.

        Args:
            dtype: Of the inputs.
            layouts: Their samples, columns and positions.
            device: Where they are.
            alone: Whether there is one input, which is given to the kernel itself.
        """
        self.constants = (TYPES[dtype], alone)
        planes = layouts[0][2] > 1
        layers: list[list[int]] = []
        work: list[np.ndarray] = []
        self.first: list[int] = []
        columns_before = parts_before = 0
        for index, (samples, columns, positions) in enumerate(layouts):
            # Parts of rows or, of planes, of all numbers of a column: enough of them to keep the device busy
            blocks = columns if planes else -(-columns // kernels.COLUMNS.value)
            length, together = (
                (samples * positions, 8 * kernels.PLANE.value) if planes else (samples, kernels.ROWS.value)
            )
            per_part = -(-max(1, length * blocks // _ENOUGH_PROGRAMS) // together) * together
            parts = -(-length // per_part)
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
            kernels.moments_of_planes if planes else kernels.moments_of_rows,
            len(programs),
            torch.tensor(layers, dtype=torch.int32, device=device),
            programs,
            torch.empty(parts_before * (2 if planes else 2 * kernels.COLUMNS.value), device=device),  # partial sums
            torch.zeros(columns_before, dtype=torch.int32, device=device),  # how many of them have arrived
        )


class _StepPlan:
    """Tables and memory for the steps of layers of known shapes."""

    def __init__(self, flag: Tensor, shapes: Sequence[Shape], device: torch.device) -> None:
        """Cut the work; each shape is that of the weights. The kernel sets the flag if something is not finite."""
        work: list[np.ndarray] = []
        for index, (groups, outputs, inputs, sites) in enumerate(shapes):
            # Each program of a layer begins with the statistics of all columns, which is to be the lesser part.
            rows, columns = groups * outputs, groups * inputs * sites
            together = max(1, rows // _MAX_PROGRAMS, min(rows // _MIN_PROGRAMS, columns // _MANY_COLUMNS))
            first = np.arange(0, outputs, together)
            begins = (np.arange(groups)[:, None] * outputs + first).ravel()
            ends = (np.arange(groups)[:, None] * outputs + np.minimum(first + together, outputs)).ravel()
            layer, programs = np.full(len(begins), index), np.full(len(begins), len(begins))
            work.append(np.stack([layer, begins, ends, programs], 1))
        self.table = _Table(device)
        flags = torch.zeros(2 * len(shapes), dtype=torch.int32, device=device)
        parts = _on(device, work)
        # A launch is for constants that stay; whether the averages move is the one that does not.
        self.launch = {fold: _Launch(kernels.precondition, len(parts), parts, flags, flag) for fold in (False, True)}


def _on(device: torch.device, rows: list[np.ndarray]) -> Tensor:
    """A table of small numbers, one row for each program."""
    return torch.from_numpy(np.ascontiguousarray(np.concatenate(rows), dtype=np.int32)).to(device)


class _Plans:
    """Plans for what has been met before."""

    def __init__(self, make: Callable[..., Any], most: int) -> None:
        """Without any; `make` makes one of what it is found by, `most` are remembered."""
        self._make, self._most = make, most
        self._known: dict[Any, Any] = {}
        self._captured: list[Any] = []

    def find(self, key: tuple[Any, ...], captured: bool) -> Any:
        """The plan for this; None the first time."""
        plan = self._known.get(key)
        if plan is None and key in self._known and not captured:  # a graph cannot have the making of tables in it
            plan = self._known[key] = self._make(*key)
        elif key not in self._known:
            if len(self._known) >= self._most:
                del self._known[next(iter(self._known))]
            self._known[key] = None
        if plan is not None and captured:
            self._captured.append(plan)  # it is used as long as the graph is
        return plan


_Group = tuple[torch.device, _MomentsPlan | None, list[int]]
"""A device, a plan, and the numbers of the moments that are computed together there."""


class TritonBackend:
    """Moments and steps by the Triton kernels, for one BNP."""

    def __init__(self, options: Options, layers: int, waiting: list[BufferMoments]) -> None:
        """Without plans, for a model with so many layers; moments wait in `waiting`."""
        self._options = options
        self._max_waiting = max(_MAX_WAITING, 2 * layers)
        # On the host, where the device can write to it: so it is looked at without asking the device for anything.
        self._flag = torch.zeros((), dtype=torch.int32, pin_memory=True)
        _FLAGS.append(self._flag)
        self._waiting = waiting
        self._moments_plans = _Plans(_MomentsPlan, _MAX_PLANS)
        self._plans_for_one = _Plans(partial(_MomentsPlan, alone=True), _MAX_ALONE)
        self._step_plans = _Plans(partial(_StepPlan, self._flag), _MAX_PLANS)
        # The last moments, to see that the next ones are the same but for addresses, and their plans.
        self._last_moments: tuple[list[InputLayout], list[_Group]] | None = None

    def layout(self, x: Tensor, column: int) -> InputLayout | None:
        """How inputs like this one lie in memory; None if they are not for the kernel."""
        if type(x) is not Tensor or x.layout is not torch.strided or x.dtype not in TYPES or x.is_neg():
            return None
        sizes = sizes_in_memory(x, column) if 0 < x.numel() < MAX_NUMBERS else None
        return None if sizes is None else InputLayout(x, column, sizes, torch.float32)

    def moments(self, layout: InputLayout, x: Tensor, saved: bool) -> BufferMoments:
        """The moments of an input with this layout.

        Args:
            layout: As `layout` gives it.
            x: The input of a layer.
            saved: Whether autograd keeps the input as it is until the backward. Then the moments wait until `flush`,
                which is to be called when a backward begins; else they are computed now.
        """
        moments = BufferMoments(layout, x, None)
        if saved:
            self._waiting.append(moments)
            if len(self._waiting) > self._max_waiting:
                self.flush()
        else:
            self._compute_now(moments)
        return moments

    def flush(self) -> None:
        """Compute all that waits."""
        if self._waiting:
            waiting = self._waiting.copy()
            self._waiting.clear()
            self._compute(waiting)

    def _compute(self, waiting: Sequence[BufferMoments]) -> None:
        """Compute moments, all of one type and layout in one launch.

        Inputs of new sizes are left to compute themselves: it takes time to plan for them, and they may not come again.
        """
        waiting = [moments for moments in waiting if moments.can_be_computed()]
        captured, layouts = is_capturing(), [moments.layout for moments in waiting]
        if self._last_moments is not None and not captured and layouts == self._last_moments[0]:
            groups = self._last_moments[1]
        else:
            groups = self._grouped(layouts, captured)
            if len(waiting) > 1 and all(plan is not None for _, plan, _ in groups):
                self._last_moments = layouts, groups
        for device, plan, members in groups:
            if plan is None:
                for i in members:
                    waiting[i].materialize()
                continue
            inputs = [x for i in members if (x := waiting[i].x) is not None]
            addresses = struct.pack(f"{len(inputs)}q", *[x.data_ptr() for x in inputs])
            out = torch.empty(plan.size, device=device)
            with _current(device):
                plan.launch((plan.addresses.holding(addresses, captured), out), plan.constants)
            at = out.data_ptr()
            for i, first in zip(members, plan.first, strict=True):
                waiting[i].written(out, first, at + 4 * first)

    def _compute_now(self, moments: BufferMoments) -> None:
        """Compute the moments of one input in a launch of its own."""
        x, layout, captured = moments.x, moments.layout, is_capturing()
        plan = self._plans_for_one.find((layout.dtype, (layout.sizes,), layout.device), captured)
        if plan is None or x is None:
            moments.materialize()
            return
        out = torch.empty(plan.size, device=layout.device)
        with _current(layout.device):
            plan.launch((x, out), plan.constants)
        moments.written(out, 0, out.data_ptr())

    def _grouped(self, layouts: Sequence[InputLayout], captured: bool) -> list[_Group]:
        """What is computed together, each with its plan."""
        groups: dict[Any, list[int]] = {}
        for i, layout in enumerate(layouts):
            groups.setdefault((layout.device, layout.dtype, layout.positions > 1), []).append(i)
        return [
            (
                device,
                self._moments_plans.find((dtype, tuple([layouts[i].sizes for i in members]), device), captured),
                members,
            )
            for (device, dtype, _), members in groups.items()
        ]

    def record(self, step: LayerStep) -> bytes:
        """The step as the kernel reads it; empty if it is not for the kernel."""
        weight = step.weight
        return record.record(step) if weight.dtype is torch.float32 and weight.numel() < MAX_NUMBERS else b""

    def step(self, steps: Sequence[LayerStep], records: Sequence[bytes], fold: bool) -> list[Tensor] | None:
        """The steps of layers on one device, by their records.

        Returns:
            Flags, not zero once something was found not to be finite; None if nothing was done, since layers of these
            shapes have not been met before.
        """
        device, options, captured = steps[0].weight.device, self._options, is_capturing()
        plan = self._step_plans.find((tuple([step.shape for step in steps]), device), captured)
        if plan is None:
            return None
        use_batch, second_moment = options.statistics == "batch", options.no_bias == "second_moment"
        with _current(device):
            plan.launch[fold](
                (plan.table.holding(b"".join(records), captured),),
                (1 - options.rho, options.eps1, options.eps2, options.debias, use_batch, second_moment, fold),
            )
        return [self._flag]


@cache
def _raw_launch_works() -> bool:
    """Whether a kernel launched by addresses does what it does when launched in the ordinary way: tried once."""
    if is_capturing():
        return True  # it has been tried when the plan was made, before the capture
    device = torch.device("cuda", torch.cuda.current_device())
    x = torch.arange(12.0, device=device)
    plan = _MomentsPlan(torch.float32, [(4, 3, 1)], device)
    addresses = torch.tensor([x.data_ptr()], device=device)
    results = [torch.zeros(plan.size, device=device) for _ in range(2)]
    for result, raw in zip(results, (False, True), strict=True):
        plan.launch((addresses, result), plan.constants, raw=raw)
    return torch.equal(*results) and bool(results[0].any())


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """Within, this is the current device."""
    return nullcontext() if torch.cuda.current_device() == device.index else torch.cuda.device(device)


def is_capturing() -> bool:
    """Whether what is done now goes into a CUDA graph."""
    return torch.cuda.is_current_stream_capturing()
