"""Which kernel does what."""

import importlib
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor

from trimtab.bnp.kernels import native
from trimtab.bnp.kernels.found import MOST_NUMBERS, KernelMoments, Recipe, layout
from trimtab.bnp.kernels.table import packed
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
    if (
        kept
        and type(x) is Tensor
        and x.is_cuda
        and not x.is_neg()
        and x.numel() < MOST_NUMBERS
        and (gpu := _gpu()) is not None
        and x.dtype in gpu.TYPES
    ):
        laid_out = layout(x, column)
        if laid_out is not None:
            return Recipe(x, column, laid_out, torch.float32)
    return None


def _kernel(update: Update) -> str:
    """What is to do a layer's step."""
    if native.takes(update):
        return "native"
    return "gpu" if update.weight.is_cuda and _gpu() is not None and _gpu().takes(update) else "plain"


def _refuse_gradients(updates: Iterable[Update]) -> None:
    """Refuse gradients that nothing can be done with, before any is changed."""
    for update in updates:
        groups, outputs, _, _ = update.shape
        for grad, numbers in ((update.weight, update.numel), (update.bias, groups * outputs)):
            if grad is not None and (problem := _problem_of(grad, numbers)) is not None:
                raise ValueError(
                    f"A gradient of shape {tuple(grad.shape)} {problem}, so that BNP cannot precondition it; name its "
                    "layer in skip."
                )


def _problem_of(grad: Tensor, numbers: int) -> str | None:
    """Why a gradient cannot be preconditioned, in a few words; None if it can."""
    if grad.layout is not torch.strided:
        return f"is {str(grad.layout).removeprefix('torch.')}"
    if not grad.is_floating_point():
        return f"is {str(grad.dtype).removeprefix('torch.')}"
    if grad.numel() != numbers:
        return f"has {grad.numel()} numbers instead of {numbers}"
    if not torch.compiler.is_dynamo_compiling() and grad._is_zerotensor():  # compiled code has none
        return "is a tensor of zeros without memory"
    if any(size > 1 and stride == 0 for size, stride in zip(grad.shape, grad.stride(), strict=True)):
        return "is expanded, so that several of its numbers are one in memory"
    return None


def _plainly(updates: Iterable[Update], options: Options, fold: bool) -> list[Tensor]:
    """The plain way for some layers; returns flags that are true where something was not finite."""
    # Autocast would multiply a weight's gradient by the means in bfloat16.
    exactly = torch.autocast("cpu", enabled=False) if torch.is_autocast_enabled("cpu") else nullcontext()
    with torch.no_grad(), exactly:
        accepted = [plain(update, options, fold) for update in updates]
    return [~flag if isinstance(flag, Tensor) else torch.tensor(True) for flag in accepted if flag is not True]


class Kernels:
    """What one BNP computes with.

    Attributes:
        waiting: What is to be computed by the next `compute`.
        most: How many may wait; what waits keeps an input in memory, also if no backward comes.
    """

    def __init__(self, options: Options) -> None:
        """Nothing waits."""
        self._options = options
        self._told = {fold: native.told(options, fold) for fold in (False, True)}
        self.waiting: list[KernelMoments] = []
        self.most = 64
        self._workshop: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """For copies: without what waits here, and without what is on this machine's GPU."""
        return {**self.__dict__, "waiting": [], "_workshop": None}

    def let_wait(self, moments: KernelMoments) -> None:
        """Compute these with the next `compute`, which is now if many wait."""
        self.waiting.append(moments)
        if len(self.waiting) > self.most:
            self.compute()

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
            Flags, on their devices or here, not zero if something was not finite.
        """
        options = self._options
        if not options.fast or torch.compiler.is_dynamo_compiling():  # the compiler makes kernels of its own
            _refuse_gradients(updates)
            return _plainly(updates, options, fold)
        on_cpu: dict[torch.dtype, list[bytes]] = {}
        on_gpu: dict[torch.device, tuple[list[Update], list[bytes]]] = {}
        rest: list[Update] = []
        changed: list[Tensor] = []
        for update in updates:
            if update.kernel is None:
                update.kernel = _kernel(update)
            row = b"" if update.kernel == "plain" else packed(update)
            if not row:
                rest.append(update)
                continue
            weight = update.weight
            if update.kernel == "native":
                on_cpu.setdefault(weight.dtype, []).append(row)
            else:
                members, rows = on_gpu.setdefault(weight.device, ([], []))
                members.append(update)
                rows.append(row)
            changed.append(weight)
            if update.bias is not None:
                changed.append(update.bias)
        _refuse_gradients(rest)
        flags: list[Tensor] = []
        if on_cpu and native.precondition(on_cpu, self._told[fold]):
            flags.append(torch.ones((), dtype=torch.bool))
        for device, (members, rows) in on_gpu.items():
            flag = self._on_gpu().precondition(device, members, rows, options, fold)
            if flag is None:
                rest.extend(members)
            else:
                flags.append(flag)
        if changed:
            torch.autograd.graph.increment_version(changed)  # autograd may have saved them
        if rest:
            flags.extend(_plainly(rest, options, fold))
        return flags

    def _on_gpu(self) -> Any:
        if self._workshop is None:
            self._workshop = _gpu().Workshop()
        return self._workshop
