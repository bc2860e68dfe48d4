"""The python version of CIFAR: pickles, read without ever executing what is in them.

A pickle is a program. The one in a CIFAR file calls three names of numpy to build an array. The unpickler here knows
these names only, and what it hands out under them are inert classes of its own that keep what they are given: no
function of numpy, nor any other, can be reached from a file. Before that, the operations of the program are looked
through: with others than such a file needs, a few bytes could claim all the memory there is.
"""

import io
import pickle
import pickletools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.data.errors import DataError
from trimtab.data.files import Content


class _Dtype:
    """Stands for numpy.dtype."""

    __slots__ = ("code",)

    def __init__(self, code: object, *_: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        """Byte order and the like: without meaning for single bytes."""


class _Array:
    """Stands for numpy's _reconstruct; the array's state comes afterwards."""

    __slots__ = ("state",)

    def __init__(self, *_: object) -> None:
        self.state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state

    def unpacked(self) -> NDArray[np.uint8]:
        """The array, if it is a plain two-dimensional one of bytes in C order."""
        match self.state:
            case (_, (int(rows), int(columns)), _Dtype(code="u1" | b"u1"), False | 0, bytes(raw)):
                return np.frombuffer(raw, np.uint8).reshape(rows, columns)
        raise ValueError("its array is not a table of bytes")


# The last is only ever an argument to the first.
ALLOWED: dict[tuple[str, str], object] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("numpy", "ndarray"): "ndarray",
}

# What Python 2 wrote into these files, and what Python 3 writes for the same objects (protocols 3 and 4).
REMEMBER = {"BINPUT", "LONG_BINPUT"}
OPERATIONS = REMEMBER.union(
    ("PROTO", "FRAME", "STOP", "MARK", "MEMOIZE", "BINGET", "LONG_BINGET"),
    ("GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD"),
    ("NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2"),
    ("SHORT_BINSTRING", "BINSTRING", "SHORT_BINBYTES", "BINBYTES", "SHORT_BINUNICODE", "BINUNICODE"),
    ("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
    ("EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_DICT", "SETITEM", "SETITEMS"),
)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """What a name in the pickle means."""
        try:
            return ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}") from None


def unpickle(content: Content, labels: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images (one per row) and labels of a CIFAR batch.

    Args:
        content: The file.
        labels: The name that the labels have in it.

    Raises:
        DataError: It is no pickle of a dict with such entries, or asks for anything else.
    """
    try:
        _look_through(content.data)
        batch = _Unpickler(io.BytesIO(content.data), encoding="bytes").load()
        if not isinstance(batch, dict):
            raise ValueError("it does not hold a dict")
        # Python 2 wrote the keys as bytes; who wrote the file anew with Python 3 has strings.
        entries = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
        if not isinstance(entries.get("data"), _Array) or not isinstance(entries.get(labels), list):
            raise ValueError(f"it has no entries data and {labels}")
        if not all(type(label) is int for label in entries[labels]):
            raise ValueError(f"its {labels} are not whole numbers")
        return entries["data"].unpacked(), np.array(entries[labels], np.int64)
    except Exception as error:  # a broken pickle can raise anything
        raise DataError(
            f"{content.where} is not a batch of CIFAR's python version: {error}; fetch it again."
        ) from error


def _look_through(data: bytes) -> None:
    """Refuse operations that are not needed, and numbers of remembered objects beyond what there can be."""
    for count, (operation, argument, _) in enumerate(pickletools.genops(data)):
        if operation.name not in OPERATIONS:
            raise ValueError(f"it has the operation {operation.name}")
        if operation.name in REMEMBER and (argument is None or argument > count):
            raise ValueError(f"it numbers {argument} objects after {count} operations")
