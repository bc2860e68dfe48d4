"""The backend for tensors on the CPU: the kernels of native.c."""

import ctypes
import struct
from collections.abc import Iterator, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, get_num_threads

from trimtab.bnp.algorithm.step import LayerStep
from trimtab.bnp.backends import record
from trimtab.bnp.backends.buffers import BufferMoments, InputLayout, sizes_in_memory
from trimtab.bnp.options import Options

LIBRARY = Path(__file__).with_name("_native.so")
VERSION = 4  # trimtab_version in native.c
_SUFFIX = {torch.float32: "_f32", torch.float64: "_f64"}
_INPUTS = struct.Struct("3qPq")  # `Inputs` in native.c
_OPTIONS = struct.Struct("3d4q")  # `Options`
# So many results lie in one buffer, if it is not of more numbers: getting memory takes as long as a result does.
_RESULTS_PER_BUFFER, _NUMBERS_PER_BUFFER = 16, 16384

_Functions = dict[torch.dtype, tuple[Any, Any]]


def _load() -> _Functions:
    """The functions for each type of number: the moments, and the step. Empty if there is no library that fits."""
    try:
        library = ctypes.PyDLL(str(LIBRARY))  # the calls are too short to let go of the interpreter's lock
        size = ctypes.c_int64
        library.trimtab_version.restype = library.trimtab_layout.restype = size
        library.trimtab_layout.argtypes = [size]
        layout = [library.trimtab_layout(i) for i in range(len(record.FIELDS) + 2)]
        if library.trimtab_version() != VERSION or layout != [*record.LAYOUT, -1]:
            return {}
        functions = {}
        for dtype, suffix in _SUFFIX.items():
            moments, step = (getattr(library, name + suffix) for name in ("moments", "precondition"))
            pointer = ctypes.c_void_p
            moments.argtypes = [pointer, pointer, ctypes.c_char_p]
            step.argtypes = [ctypes.c_char_p, size, ctypes.c_char_p, pointer, ctypes.c_uint]
            step.restype = size
            functions[dtype] = moments, step
    except (OSError, AttributeError):
        return {}
    return functions


def _gomp_parallel() -> int | None:
    """The address of GOMP_parallel in the OpenMP runtime that PyTorch has loaded, if that is to be had."""
    try:
        return ctypes.cast(ctypes.CDLL(None).GOMP_parallel, ctypes.c_void_p).value
    except (OSError, AttributeError, TypeError):
        return None


_FUNCTIONS = _load()
_PARALLEL = _gomp_parallel()


def available() -> bool:
    """Whether the library is there."""
    return bool(_FUNCTIONS)


def describe() -> str:
    """What is used, in a few words."""
    threads = torch.get_num_threads() if _PARALLEL else 1
    return f"compiled C, {threads} thread{'s' if threads != 1 else ''}"


class CpuBackend:
    """Moments and steps by the C kernels, for one BNP."""

    def __init__(self, options: Options) -> None:
        """Remember the options as the kernels read them."""
        self._options = {fold: _packed(options, fold) for fold in (False, True)}

    def layout(self, x: Tensor, column: int) -> InputLayout | None:
        """How inputs like this one lie in memory; None if they are not for the kernel."""
        if type(x) is not Tensor or x.layout is not torch.strided or x.dtype not in _FUNCTIONS or not x.numel():
            return None
        sizes = sizes_in_memory(x, column)
        return None if sizes is None else _CpuLayout(x, column, sizes)

    def flush(self) -> None:
        """Nothing waits here."""

    record = staticmethod(record.record)  # it is empty for other types than those of averages: float32 and float64

    def step(self, steps: Sequence[LayerStep], records: Sequence[bytes], fold: bool) -> list[Tensor]:
        """The steps of layers of one type, by their records; returns a flag if something was not finite."""
        kernel = _FUNCTIONS[steps[0].weight.dtype][1]
        not_finite = kernel(b"".join(records), len(records), self._options[fold], _PARALLEL, get_num_threads())
        if not_finite < 0:
            raise MemoryError("There is no memory left for the preconditioning of the gradients.")
        return [torch.ones((), dtype=torch.bool)] if not_finite else []


class _CpuLayout(InputLayout):
    """Inputs of one kind, whose moments the kernel computes at once."""

    def __init__(self, x: Tensor, column: int, sizes: tuple[int, int, int]) -> None:
        """Of inputs like this one."""
        super().__init__(x, column, sizes, x.dtype)
        self._kernel, self._itemsize = _FUNCTIONS[x.dtype][0], x.dtype.itemsize
        self._arguments = b""
        self._threads = 0
        self._places: Iterator[tuple[Tensor, int, int]] = iter(())

    def moments(self, x: Tensor, saved: bool) -> BufferMoments | None:
        """The moments of an input of this kind; None if they cannot be had."""
        try:
            address = x.data_ptr()
        except RuntimeError:  # no memory of its own, as under torch.func
            return None
        # No memory here either, or negated when it is read, or not where a processor expects a number to begin
        if not address or not x.is_cpu or x.is_neg() or address % self._itemsize:
            return None
        place = next(self._places, None) or self._new_place()
        if place is None:
            return None
        if (threads := get_num_threads()) != self._threads:
            self._arguments = _INPUTS.pack(*self.sizes, _PARALLEL or 0, threads)
            self._threads = threads
        buffer, first, found_at = place
        if self._kernel(address, found_at, self._arguments):
            return None
        return BufferMoments(self, None, buffer, first, found_at)

    def _new_place(self) -> tuple[Tensor, int, int] | None:
        """Where the next moments go: a buffer, the first of its entries that is theirs, and the address of that.

        Each is given out once, whatever threads ask.
        """
        numbers = 2 * self.columns
        count = max(1, min(_RESULTS_PER_BUFFER, _NUMBERS_PER_BUFFER // numbers))
        buffer = torch.empty(count * numbers, dtype=self.dtype, device=self.device)
        if type(buffer) is not Tensor or not (at := buffer.data_ptr()):  # a mode is active that gives no memory
            return None
        size = self._itemsize * numbers
        firsts, addresses = range(0, count * numbers, numbers), range(at, at + count * size, size)
        places = zip(repeat(buffer), firsts, addresses, strict=False)
        first = next(places)
        self._places = places
        return first


def _packed(options: Options, fold: bool) -> bytes:
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
