"""Which backend does what."""

import importlib
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor

from trimtab import _torch
from trimtab.bnp.algorithm.moments import Moments
from trimtab.bnp.algorithm.step import LayerStep, layer_step
from trimtab.bnp.backends import cpu
from trimtab.bnp.backends.buffers import InputLayout
from trimtab.bnp.options import Options


class Backend(Protocol):
    """Kernels for the tensors of one kind of device, with all that they remember from step to step for one BNP.

    What it remembers of a layer is in `LayerStep.memo`. It holds addresses of tensors and is compared with the very
    tensors at each use: whoever replaces a tensor of a layer's statistics has nothing else to do.
    """

    def layout(self, x: Tensor, column: int) -> InputLayout | None:
        """How inputs like this one lie in memory, with their `moments`; None if they are not for the kernels."""

    def flush(self) -> None:
        """Compute the moments that wait for that, in `Backends.waiting`."""

    def record(self, step: LayerStep) -> bytes:
        """A step as the kernels read it, everything checked that they take on trust; empty if it is not for them.

        It is asked for steps only whose weights are rows in memory (`by_output`).
        """

    def step(self, steps: Sequence[LayerStep], records: Sequence[bytes], fold: bool) -> list[Tensor] | None:
        """As `layer_step` for each of some layers of one type on one device.

        Returns:
            Flags that are not zero if something was not finite; None if nothing was done.
        """


@cache
def _triton() -> Any:
    """The module with the Triton backend, or None without Triton. It is imported when it is first needed."""
    try:
        return importlib.import_module("trimtab.bnp.backends.triton")
    except ImportError:
        return None


def describe(device: torch.device | str = "cpu") -> str:
    """What BNP computes with on a device, in a few words."""
    kind = torch.device(device).type
    if kind == "cpu" and cpu.available():
        return cpu.describe()
    return "Triton" if kind == "cuda" and _triton() is not None else "plain PyTorch"


class Backends:
    """The backends of one BNP, one for each kind of device; where there is none, the reference.

    Attributes:
        layers: How many layers the model has.
        waiting: The moments that wait for `flush`; empty if it has nothing to do.
    """

    def __init__(self, options: Options) -> None:
        """Make them when they are needed."""
        self._options = options
        self.layers = 0
        self.waiting: list[Any] = []
        self._made: dict[str, Backend | None] = {}

    def __getstate__(self) -> dict[str, Any]:
        """For copies: without what the backends remember."""
        return {**self.__dict__, "_made": {}, "waiting": []}

    def _of(self, device: torch.device) -> Backend | None:
        """The backend for a device; None: the reference."""
        kind = device.type
        try:
            return self._made[kind]
        except KeyError:
            backend: Backend | None = None
            if self._options.fast and kind == "cpu" and cpu.available():
                backend = cpu.CpuBackend(self._options)
            elif self._options.fast and kind == "cuda" and _triton() is not None:
                backend = _triton().TritonBackend(self._options, self.layers, self.waiting)
            self._made[kind] = backend
            return backend

    def moments(self, x: Tensor, column: int, saved: bool = False) -> Moments:
        """The moments of one dimension's entries over all others, as `Moments.of`.

        Args:
            x: The input of a layer.
            column: The dimension.
            saved: Whether autograd keeps the input as it is until the backward. Then they may be computed later.
        """
        layout = self.layout(x, column)
        moments = None if layout is None else layout.moments(x, saved)
        return Moments.of(x, columns=column) if moments is None else moments

    def layout(self, x: Tensor, column: int) -> InputLayout | None:
        """What computes the moments of inputs like this one; None: the reference."""
        backend = self._of(x.device)
        return None if backend is None else backend.layout(x, column)

    def flush(self) -> None:
        """A backward or another forward begins: compute what has waited for that."""
        for backend in self._made.values():
            if backend is not None:
                backend.flush()

    def step(self, steps: Sequence[LayerStep], fold: bool) -> list[Tensor]:
        """The steps of some layers.

        Returns:
            Flags, on their devices or here, that are not zero if something was not finite.

        Raises:
            ValueError: If nothing can be done with a gradient; none is changed then.
        """
        if _torch.is_compiling():  # the compiler makes kernels of its own
            _refuse_gradients(steps)
            return _reference(steps, self._options, fold)
        groups: dict[Any, tuple[Backend | None, list[LayerStep], list[bytes], list[Tensor]]] = {}
        rest: list[LayerStep] = []
        device = dtype = None  # of the group at hand: mostly there is one
        for step in steps:
            weight = step.weight
            if weight.dtype is not dtype or weight.device != device:
                device, dtype = weight.device, weight.dtype
                group = groups.setdefault((device, dtype), (self._of(device), [], [], []))
                backend, members, records, changed = group
            record = b"" if backend is None or not step.by_output else backend.record(step)
            if record:
                members.append(step)
                records.append(record)
                changed.append(weight)
                if step.bias is not None:
                    changed.append(step.bias)
            else:
                rest.append(step)
        if rest:
            _refuse_gradients(rest)
        flags: list[Tensor] = []
        for backend, members, records, changed in groups.values():
            if backend is None or not members:
                continue
            raised = backend.step(members, records, fold)
            if raised is None:
                rest.extend(members)
                continue
            flags.extend(raised)
            torch.autograd.graph.increment_version(changed)  # autograd may have saved them
        return flags + _reference(rest, self._options, fold) if rest else flags


def _reference(steps: Iterable[LayerStep], options: Options, fold: bool) -> list[Tensor]:
    """The reference for some layers."""
    # Autocast would multiply a weight's gradient by the means in bfloat16.
    exactly = torch.autocast("cpu", enabled=False) if torch.is_autocast_enabled("cpu") else nullcontext()
    with torch.no_grad(), exactly:
        return [layer_step(step, options, fold) for step in steps]


def _refuse_gradients(steps: Iterable[LayerStep]) -> None:
    """Refuse gradients that nothing can be done with, before any is changed."""
    for step in steps:
        if step.replace is not None:
            continue
        groups, outputs, inputs, sites = step.shape
        for grad, numel in ((step.weight, groups * outputs * inputs * sites), (step.bias, groups * outputs)):
            if grad is not None and (problem := _problem_of(grad, numel)) is not None:
                raise ValueError(
                    f"A gradient of layer {step.name!r} {problem}, so that BNP cannot precondition it; name the layer "
                    "in skip."
                )


def _problem_of(grad: Tensor, numel: int) -> str | None:
    """Why a gradient cannot be preconditioned, in a few words; None if it can."""
    if hasattr(grad, "placements"):
        return "is sharded over several processes (a DTensor)"
    if grad.layout is not torch.strided:
        return f"is {str(grad.layout).removeprefix('torch.')}"
    if not grad.is_floating_point():
        return f"is {str(grad.dtype).removeprefix('torch.')}"
    if grad.numel() != numel:
        return f"has {grad.numel()} numbers instead of {numel}"
    if not _torch.is_compiling() and _torch.is_zero_tensor(grad):  # compiled code has none
        return "is a tensor of zeros without memory"
    if any(size > 1 and stride == 0 for size, stride in zip(grad.shape, grad.stride(), strict=True)):
        return "is expanded, so that several of its numbers are one in memory"
    return None
