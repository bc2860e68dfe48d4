"""Which kernel does what."""

import importlib
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from trimtab.bnp.kernels import native
from trimtab.bnp.kernels.found import KernelMoments, Recipe, layout
from trimtab.bnp.kernels.table import has_gaps
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
    recipe = _recipe(x, column, kept) if options.fast and not torch.compiler.is_compiling() else None
    found = recipe.moments(x) if recipe is not None else None
    return Moments.of(x, columns=column) if found is None else found


def _recipe(x: Tensor, column: int, kept: bool) -> Recipe | None:
    if not x.numel():
        return None
    if x.is_cpu:
        return native.recipe(x, column)
    if kept and x.is_cuda and (gpu := _gpu()) is not None and x.dtype in gpu.TYPES:
        laid_out = layout(x, column)
        if laid_out is not None:
            return Recipe(x, column, laid_out, torch.float32, None)
    return None


def _kernel(update: Update) -> str:
    """What is to do a layer's step."""
    if native.takes(update):
        return "native"
    return "gpu" if update.weight.is_cuda and _gpu() is not None and _gpu().takes(update) else "plain"


class Kernels:
    """What one BNP computes with.

    Attributes:
        waiting: What is to be computed by the next `compute`.
    """

    def __init__(self, options: Options) -> None:
        """Nothing waits."""
        self._options = options
        self.waiting: list[KernelMoments] = []
        self._workshop: Any = None

    def compute(self) -> None:
        """Compute all that waits."""
        if self.waiting:
            waiting, self.waiting = self.waiting, []
            self._on_gpu().compute(waiting)

    def forget(self) -> None:
        """Let nothing wait any longer; what is asked for nevertheless is computed then."""
        self.waiting.clear()

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
            if update.kernel is None:
                update.kernel = _kernel(update)
            if update.kernel == "plain" or has_gaps(update):
                rest.append(update)
            elif update.kernel == "native":
                on_cpu.append(update)
            else:
                on_gpu.setdefault(update.weight.device, []).append(update)
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
