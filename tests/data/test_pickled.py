"""The restricted unpickler: it reads CIFAR's files and executes nothing."""

import os
import pickle
import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.helpers import cifar_arrays, cifar_files, python2_pickle, write_cifar
from trimtab.data import DataError, load
from trimtab.data.files import Content
from trimtab.data.pickled import ALLOWED, unpickle

IMAGES = np.random.default_rng(0).integers(0, 256, (3, 3072), np.uint8)
LABELS = [3, 0, 9]


def _read(data: bytes, labels: str = "labels") -> Any:
    return unpickle(Content("file", data), labels)


def test_the_made_file_is_what_python_2_wrote() -> None:
    """Python's own unpickler and numpy make the same of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # numpy.core has moved since
        entries = pickle.loads(python2_pickle(IMAGES, b"labels", LABELS), encoding="bytes")
    assert np.array_equal(entries[b"data"], IMAGES)
    images, labels = _read(python2_pickle(IMAGES, b"labels", LABELS))
    assert np.array_equal(images, entries[b"data"])
    assert labels.tolist() == entries[b"labels"] == LABELS


@pytest.mark.parametrize("protocol", [3, 4])
def test_written_anew_by_python_3(protocol: int) -> None:
    images, labels = _read(pickle.dumps({"data": IMAGES, "fine_labels": LABELS}, protocol), "fine_labels")
    assert np.array_equal(images, IMAGES)
    assert labels.tolist() == LABELS


class Calls:
    """Pickled as a call."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    "function", [os.mkdir, os.system, eval, np.load, np.save, getattr, open], ids=lambda f: str(f.__name__)
)
def test_a_malicious_pickle_is_refused_and_not_executed(tmp_path: Path, protocol: int, function: Any) -> None:
    trap = tmp_path / "executed"
    argument = {"system": f"touch '{trap}'", "eval": f"__import__('os').mkdir({str(trap)!r})"}.get(
        function.__name__, trap
    )
    mode = ("w",) if function in (open, np.save, getattr) else ()
    batch = {"first": Calls(function, str(argument), *mode), "data": IMAGES, "labels": LABELS}
    # Operations of other protocols are refused before a name is looked at.
    reason = r"it asks for \S+" if protocol in (2, 3, 4) else "it has the operation [A-Z0-9]+"
    with pytest.raises(DataError, match=f"file is not a batch of CIFAR's python version: {reason}; fetch it again"):
        _read(pickle.dumps(batch, protocol))
    assert not trap.exists()


def test_the_trap_would_have_worked(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Calls(os.mkdir, str(tmp_path / "executed"))))
    assert (tmp_path / "executed").exists()


def test_a_malicious_file_in_the_data_folder(tmp_path: Path) -> None:
    trap = tmp_path / "executed"
    files = cifar_files("cifar10", "python", cifar_arrays("cifar10"))
    files["data_batch_4"] = pickle.dumps(Calls(os.mkdir, str(trap)), 2)
    write_cifar(tmp_path, "cifar10", "python", files)
    with pytest.raises(DataError, match=r"data_batch_4 is not a batch .*: it asks for posix\.mkdir"):
        load("cifar10", tmp_path, check=False)
    assert not trap.exists()


@pytest.mark.parametrize(
    "name", ["numpy\ncore.multiarray._reconstruct", "numpy\nload", "builtins\neval", "numpy.core.multiarray\narray"]
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(DataError, match=f"it asks for {name.replace(chr(10), '.')}"):
        _read(b"\x80\x02c" + name.encode() + b"\n.")


@pytest.mark.parametrize("name", [b"cnumpy\ndtype\n", b"cnumpy\nndarray\n", b"cnumpy.core.multiarray\n_reconstruct\n"])
@pytest.mark.parametrize("state", [b"}U\x04codeU\x01xs", b"N}U\x04codeU\x01xs\x86"], ids=["dict", "slots"])
def test_what_is_handed_out_cannot_be_altered(name: bytes, state: bytes) -> None:
    before = {key: vars(value).copy() for key, value in ALLOWED.items() if isinstance(value, type)}
    with pytest.raises(DataError):
        _read(b"\x80\x02" + name + state + b"b.")
    assert {key: vars(value).copy() for key, value in ALLOWED.items() if isinstance(value, type)} == before


@pytest.mark.parametrize(
    ("bomb", "message"),
    [
        (b"\x80\x02}r\xff\xff\xff\x7f.", "it numbers 2147483647 objects after 2 operations"),
        (b"\x80\x05\x96\xff\xff\xff\xff\xff\x00\x00\x00.", "expected 1099511627775 bytes"),
        (b"\x80\x05\x96\x01\x00\x00\x00\x00\x00\x00\x00x.", "it has the operation BYTEARRAY8"),
        (b"\x80\x02T\xff\xff\xff\x7f.", "expected 2147483647 bytes"),
    ],
)
def test_a_few_bytes_cannot_claim_the_memory(bomb: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        _read(bomb)


def _truncated(data: bytes, rows: int) -> bytes:
    """The array's shape says other than its bytes."""
    return data.replace(struct.pack("<cici", b"J", 3, b"J", 3072), struct.pack("<cici", b"J", rows, b"J", 3072))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (pickle.dumps([1]), "it does not hold a dict"),
        (pickle.dumps({"data": IMAGES}), "it has no entries data and labels"),
        (pickle.dumps({"data": [1], "labels": LABELS}), "it has no entries data and labels"),
        (pickle.dumps({"data": IMAGES, "labels": ["a"]}, 4), "its labels are not whole numbers"),
        (pickle.dumps({"data": IMAGES.astype(np.int32), "labels": LABELS}, 4), "its array is not a table of bytes"),
        (pickle.dumps({"data": IMAGES.reshape(-1), "labels": LABELS}, 4), "its array is not a table of bytes"),
        (pickle.dumps({"data": np.array(IMAGES.T.copy()).T, "labels": LABELS}, 4), "its array is not a table of bytes"),
        (_truncated(python2_pickle(IMAGES, b"labels", LABELS), 4), "cannot reshape"),
    ],
)
def test_wrong_entries(data: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        _read(data)


@given(st.data())
def test_damage_ends_in_a_data_error_or_in_arrays(data: st.DataObject) -> None:
    small = python2_pickle(IMAGES[:, :4], b"labels", LABELS)
    cut = data.draw(st.integers(0, len(small) - 1))
    with pytest.raises(DataError):
        _read(small[:cut])
    changed = bytearray(small)
    for place in data.draw(st.lists(st.integers(0, len(small) - 1), min_size=1, max_size=3)):
        changed[place] = data.draw(st.integers(0, 255))
    try:
        images, labels = _read(bytes(changed))
    except DataError:
        return
    assert images.dtype == np.uint8
    assert labels.dtype == np.int64
