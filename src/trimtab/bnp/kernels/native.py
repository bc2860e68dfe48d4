"""The kernels of native.c, for tensors on the CPU."""

import ctypes
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, get_num_threads

from trimtab.bnp.kernels.found import KernelMoments, Recipe, layout
from trimtab.bnp.options import Options
from trimtab.bnp.update import Update

LIBRARY = Path(__file__).with_name("_native.so")
VERSION = 3  # trimtab_version in native.c
_SUFFIX = {torch.float32: "_f32", torch.float64: "_f64"}
_INPUTS = struct.Struct("3qPq")  # `Inputs`
_OPTIONS = struct.Struct("3d4q")  # `Options`
# So many results lie in one piece of memory, if it is not of more numbers: getting it takes as long as a result does.
_TOGETHER, _MOST_NUMBERS = 8, 16384

_Functions = dict[torch.dtype, tuple[Any, Any]]


def _load() -> _Functions:
    """The functions for each type of number: the moments, and the step. Empty if not built."""
    try:
        library = ctypes.PyDLL(str(LIBRARY))  # the calls are too short to let go of the interpreter's lock
        if library.trimtab_version() != VERSION:
            return {}
        functions = {}
        for dtype, suffix in _SUFFIX.items():
            moments, step = (getattr(library, name + suffix) for name in ("moments", "precondition"))
            pointer, size = ctypes.c_void_p, ctypes.c_int64
            moments.argtypes = [pointer, pointer, ctypes.c_char_p]
            step.argtypes = [ctypes.c_char_p, size, ctypes.c_char_p, pointer, ctypes.c_uint]
            step.restype = size
            functions[dtype] = moments, step
    except (OSError, AttributeError):
        return {}
    return functions


def _threads_of_torch() -> int | None:
    """The address of GOMP_parallel in the OpenMP runtime that PyTorch has loaded, if that is to be had."""
    try:
        return ctypes.cast(ctypes.CDLL(None).GOMP_parallel, ctypes.c_void_p).value
    except (OSError, AttributeError, TypeError):
        return None


_FUNCTIONS = _load()
_PARALLEL = _threads_of_torch()


def available() -> bool:
    """Whether the library is there."""
    return bool(_FUNCTIONS)


def describe() -> str:
    """What is used, in a few words."""
    threads = torch.get_num_threads() if _PARALLEL else 1
    return f"compiled C, {threads} thread{'s' if threads != 1 else ''}"


class NativeRecipe(Recipe):
    """Moments by the kernel, at once."""

    waits = False

    def __init__(self, x: Tensor, column: int, laid_out: tuple[int, int, int]) -> None:
        """For inputs like this one."""
        super().__init__(x, column, laid_out, x.dtype)
        self._itemsize = x.dtype.itemsize
        self._threads = 0
        self._told = b""
        self._places: Iterator[tuple[Tensor, int, int]] = iter(())

    def moments(self, x: Tensor) -> KernelMoments | None:
        """The moments of an input of this kind; None if they cannot be had."""
        try:
            address = x.data_ptr()
        except RuntimeError:  # no memory of its own, as under torch.func
            return None
        if not address or x.is_neg() or address % self._itemsize:  # nor here, or not with these numbers, or cut in two
            return None
        place = next(self._places, None) or self._new_place()
        if place is None:
            return None
        if (threads := get_num_threads()) != self._threads:
            self._told = _INPUTS.pack(*self.layout, _PARALLEL or 0, threads)
            self._threads = threads
        if _FUNCTIONS[self.dtype][0](address, place[2], self._told):
            return None
        return KernelMoments(self, None, *place)

    def _new_place(self) -> tuple[Tensor, int, int] | None:
        """Where the next moments go: a tensor, the first of its numbers that is theirs, and the address of that.

        Each is given out once, whatever threads ask.
        """
        numbers = 2 * self.layout[1]
        count = max(1, min(_TOGETHER, _MOST_NUMBERS // numbers))
        memory = torch.empty(count * numbers, dtype=self.dtype, device="cpu")
        if type(memory) is not Tensor or not (at := memory.data_ptr()):  # a mode is active that has none
            return None
        size = self.dtype.itemsize * numbers
        places = iter([(memory, i * numbers, at + i * size) for i in range(count)])
        self._places = places
        return next(places)


def recipe(x: Tensor, column: int) -> Recipe | None:
    """How to get the moments of inputs like this, or None where this is not for the kernel."""
    if type(x) is not Tensor or x.dtype not in _FUNCTIONS or not x.is_cpu:
        return None
    laid_out = layout(x, column)
    return None if laid_out is None else NativeRecipe(x, column, laid_out)


def takes(update: Update) -> bool:
    """Whether layers like this are for the kernel; their gradients have to be without gaps, too."""
    dtype, bias, batch = update.weight.dtype, update.bias, update.batch
    return (
        dtype in _FUNCTIONS
        and update.weight.is_cpu
        and type(batch.count) is int
        and update.by_output
        and batch.dtype is update.running.mean.dtype is dtype
        and (bias is None or bias.dtype is dtype)
    )


def told(options: Options, fold: bool) -> bytes:
    """`Options` in native.c."""
    return _OPTIONS.pack(
        options.rho,
        options.eps1,
        options.eps2,
        options.debias,
        options.statistics == "batch",
        options.no_bias == "second_moment",
        fold,
    )


def precondition(rows: dict[torch.dtype, list[bytes]], told: bytes) -> int:
    """The step of layers that the kernel takes, by their rows in its table and the type of their numbers.

    Args:
        rows: As `table.packed` gives them.
        told: As `told` gives it.

    Returns:
        How many had something that is not finite.
    """
    not_finite = 0
    for dtype, layers in rows.items():
        result = _FUNCTIONS[dtype][1](b"".join(layers), len(layers), told, _PARALLEL, get_num_threads())
        if result < 0:
            raise MemoryError("There is no memory left for the preconditioning of the gradients.")
        not_finite += result
    return not_finite
