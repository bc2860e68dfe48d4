"""Which kernel does what."""

import importlib
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from trimtab.bnp.kernels import native
from trimtab.bnp.kernels.found import KernelMoments, layout
from trimtab.bnp.options import Options
from trimtab.bnp.statistics import Moments
from trimtab.bnp.update import Update, plain


@cache
def _gpu() -> Any:
    """The module with the kernels for GPUs, or None without Triton. It is imported when it is first needed."""
    try:
        return importlib.import_module("trimtab.bnp.kernels.gpu")
    except ImportError:
        return None


def describe(device: torch.device | str = "cpu") -> str:
    """What BNP computes with on a device, in a few words."""
    kind = torch.device(device).type
    if kind == "cpu" and native.available():
        return native.describe()
    return "Triton" if kind == "cuda" and _gpu() is not None else "plain PyTorch"


def moments(x: Tensor, column: int, options: Options, *, kept: bool = False) -> Moments:
    """The moments of one dimension's entries over all others, as `Moments.of`, computed in the fastest way there is.

    Args:
        x: The input of a layer.
        column: The dimension.
        options: BNP's.
        kept: Whether autograd keeps the input as it is until the backward; then the moments may wait until then.
    """
    if options.fast and x.numel() and not torch.compiler.is_compiling():
        if x.is_cpu:
            found = native.moments(x, column)
            if found is not None:
                return found
        elif kept and x.is_cuda and (gpu := _gpu()) is not None and x.dtype in gpu.TYPES:
            laid_out = layout(x, column)
            if laid_out is not None:
                return KernelMoments(x, column, laid_out, torch.float32).wait(x)
    return Moments.of(x, columns=column)


class Kernels:
    """What one BNP computes with, and what waits to be computed."""

    def __init__(self, options: Options) -> None:
        """Nothing waits."""
        self._options = options
        self._waiting: list[KernelMoments] = []
        self._workshop: Any = None

    def let_wait(self, moments: Moments) -> None:
        """Compute these with the next `compute`, if they wait."""
        if type(moments) is KernelMoments and moments.x is not None:
            self._waiting.append(moments)

    def compute(self) -> None:
        """Compute all that waits."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            self._on_gpu().compute(waiting)

    def forget(self) -> None:
        """Let nothing wait any longer; what is asked for nevertheless is computed then."""
        self._waiting.clear()

    def precondition(self, updates: Sequence[Update], fold: bool) -> list[Tensor]:
        """Replace the gradients of some layers.

        Returns:
            Flags on their devices, not zero if something was not finite.
        """
        options = self._options
        if not options.fast or torch.compiler.is_dynamo_compiling():  # the compiler makes kernels of its own
            return [~plain(update, options, fold) for update in updates]
        on_cpu: list[Update] = []
        on_gpu: dict[torch.device, list[Update]] = {}
        rest: list[Update] = []
        for update in updates:
            if native.takes(update):
                on_cpu.append(update)
            elif update.weight.is_cuda and _gpu() is not None and _gpu().takes(update):
                on_gpu.setdefault(update.weight.device, []).append(update)
            else:
                rest.append(update)
        flags: list[Tensor] = []
        if on_cpu and native.precondition(on_cpu, options, fold):
            flags.append(torch.ones((), dtype=torch.bool))
        for group in on_gpu.values():
            flag = self._on_gpu().precondition(group, options, fold)
            if flag is None:
                rest.extend(group)
            else:
                flags.append(flag)
        flags.extend(~plain(update, options, fold) for update in rest)
        return flags

    def _on_gpu(self) -> Any:
        if self._workshop is None:
            self._workshop = _gpu().Workshop()
        return self._workshop
