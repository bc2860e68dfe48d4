"""What the launches of the Triton kernels need: plans for the shapes at hand, and tables on the device."""

import math
import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
import triton.language as tl
from torch import Tensor

from trimtab.bnp.algorithm.step import Shape
from trimtab.bnp.backends import triton_moments, triton_step
from trimtab.bnp.backends.buffers import division_by

# The kernels read numbers of these types; they compute in float32.
TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}

ALIGNED = 16
"""The kernels for moments take inputs that begin at a multiple of so many bytes."""

_MAX_TABLES = 16  # addresses come back after a few steps
# About so many programs share the work of a launch: for moments of planes, of rows, and for the step
_PLANE_PROGRAMS, _ROW_PROGRAMS, _STEP_PROGRAMS = 2048, 1024, 2048
_MAX_SHARE = 2**20  # numbers for one program, see `MAX_NUMBERS`


class Launch:
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


class Table:
    """A table on the device that is copied there when it has not been before.

    It is copied from pinned memory, which the device reads by itself, so that nobody waits. Such memory takes long to
    get: there are a few pieces of it, and each is used again when the copy from it is done.
    """

    def __init__(self, device: torch.device) -> None:
        """An empty table."""
        self._device = device
        self._known: dict[bytes, Tensor] = {}
        self._last: tuple[bytes, Tensor] | None = None  # in `_known`: comparing takes less time than looking it up
        self._pinned: list[tuple[Tensor, torch.cuda.Event]] = []
        self._captured: list[Tensor] = []  # what CUDA graphs read

    def holding(self, content: bytes, captured: bool) -> Tensor:
        """The table with this content, a number of 8 bytes after the other; whether a CUDA graph will read it, too."""
        if self._last is not None and content == self._last[0] and not captured:
            return self._last[1]
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
        self._last = content, tensor
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


class MomentsPlan:
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
        at_once = ALIGNED // dtype.itemsize
        self.constants = (TYPES[dtype], alone, at_once)
        planes = layouts[0][2] > 1
        programs = (_PLANE_PROGRAMS if planes else _ROW_PROGRAMS) // (2 if alone else 1)
        share = min(sum(map(math.prod, layouts)) // programs, _MAX_SHARE)  # in numbers
        layers: list[list[int]] = []
        work: list[np.ndarray] = []
        self.first: list[int] = []
        columns_before = parts_before = 0
        for index, (samples, columns, positions) in enumerate(layouts):
            # Parts of the rows of a block of columns or, of planes, of the groups of numbers of a column
            wide = at_once if (positions if planes else columns) % at_once == 0 else 1
            if planes:
                blocks, length, each = columns, samples * positions // wide, wide
                together = 4 * triton_moments.NUMBERS.value // wide
            else:
                block = triton_moments.COLUMNS.value
                blocks, length, each = -(-columns // block), samples, min(columns, block)
                together = triton_moments.ROWS.value
            per_part = -(-max(1, share // each) // together) * together
            parts = -(-length // per_part)
            divide = division_by(positions // wide if planes else 1)
            cut = [per_part, parts, columns_before, parts_before, wide, *divide]
            layers.append([samples, columns, positions, *cut])
            grid = np.indices((blocks, parts)).reshape(2, -1)
            work.append(np.vstack([np.full(grid.shape[1], index), grid]).T)
            self.first.append(2 * columns_before)
            columns_before += columns
            parts_before += parts * blocks
        self.addresses, self.pack = Table(device), struct.Struct(f"{len(layouts)}q").pack
        self.size = 2 * columns_before
        parts_of_all = _on(device, work)
        self.launch = Launch(
            triton_moments.moments_of_planes if planes else triton_moments.moments_of_rows,
            len(parts_of_all),
            torch.tensor(layers, dtype=torch.int32, device=device),
            parts_of_all,
            # The partial sums, and how many of them have arrived
            torch.empty(parts_before * (2 if planes else 2 * triton_moments.COLUMNS.value), device=device),
            torch.zeros(columns_before, dtype=torch.int32, device=device),
        )


class StepPlan:
    """Tables and memory for the steps of layers of known shapes."""

    def __init__(self, flag: Tensor, shapes: Sequence[Shape], device: torch.device) -> None:
        """Cut the work; each shape is that of the weights. The kernel sets the flag if something is not finite."""
        work: list[np.ndarray] = []
        share = sum(map(math.prod, shapes)) // _STEP_PROGRAMS
        for index, (groups, outputs, inputs, sites) in enumerate(shapes):
            # Each program of a layer begins with the statistics of all columns, which is to be the lesser part.
            together = max(1, share // (inputs * sites))
            first = np.arange(0, outputs, together)
            begins = (np.arange(groups)[:, None] * outputs + first).ravel()
            ends = (np.arange(groups)[:, None] * outputs + np.minimum(first + together, outputs)).ravel()
            layer, programs = np.full(len(begins), index), np.full(len(begins), len(begins))
            work.append(np.stack([layer, begins, ends, programs], 1))
        self.table = Table(device)
        flags = torch.zeros(2 * len(shapes), dtype=torch.int32, device=device)
        parts = _on(device, work)
        # A launch is for constants that stay; whether the averages move is the one that does not.
        self.launch = {fold: Launch(triton_step.precondition, len(parts), parts, flags, flag) for fold in (False, True)}


def _on(device: torch.device, rows: list[np.ndarray]) -> Tensor:
    """A table of small numbers, one row for each program."""
    return torch.from_numpy(np.ascontiguousarray(np.concatenate(rows), dtype=np.int32)).to(device)


class Plans:
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


@cache
def _raw_launch_works() -> bool:
    """Whether a kernel launched by addresses does what it does when launched in the ordinary way: tried once."""
    if is_capturing():
        return True  # it has been tried when the plan was made, before the capture
    device = torch.device("cuda", torch.cuda.current_device())
    x = torch.arange(12.0, device=device)
    plan = MomentsPlan(torch.float32, [(4, 3, 1)], device)
    addresses = torch.tensor([x.data_ptr()], device=device)
    results = [torch.zeros(plan.size, device=device) for _ in range(2)]
    for result, raw in zip(results, (False, True), strict=True):
        plan.launch((addresses, result), plan.constants, raw=raw)
    return torch.equal(*results) and bool(results[0].any())


def is_capturing() -> bool:
    """Whether what is done now goes into a CUDA graph."""
    return torch.cuda.is_current_stream_capturing()
