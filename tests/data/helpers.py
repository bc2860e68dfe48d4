"""Small made files in the official formats, written from their descriptions."""

import gzip
import io
import struct
import tarfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Images = NDArray[np.uint8]
IDX_NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
CIFAR10_TRAIN = [f"data_batch_{number}" for number in range(1, 6)]


def idx(array: Images) -> bytes:
    """http://yann.lecun.com/exdb/mnist: 0, 0, 8 for bytes, the number of dimensions, the dimensions, the bytes."""
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def idx_arrays(train: int = 30, test: int = 10) -> dict[str, Images]:
    random = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", train), ("t10k", test)):
        arrays[f"{part}-images-idx3-ubyte"] = random.integers(0, 256, (count, 28, 28), np.uint8)
        arrays[f"{part}-labels-idx1-ubyte"] = random.integers(0, 10, count, np.uint8)
    return arrays


def write_idx(folder: Path, arrays: dict[str, Images], *, zipped: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        if zipped:
            (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array), 1))
        else:
            (folder / name).write_bytes(idx(array))


def cifar_arrays(name: str, count: int = 4) -> dict[str, tuple[Images, list[int]]]:
    """By the name of the python version's file: images (count, 3072) and labels."""
    random = np.random.default_rng(1)
    files = [*CIFAR10_TRAIN, "test_batch"] if name == "cifar10" else ["train", "test"]
    classes = 10 if name == "cifar10" else 100
    return {
        file: (random.integers(0, 256, (count, 3072), np.uint8), random.integers(0, classes, count).tolist())
        for file in files
    }


def cifar_files(name: str, version: str, arrays: dict[str, tuple[Images, list[int]]]) -> dict[str, bytes]:
    """The content of all files of a version, by their names."""
    if version == "python":
        key = b"labels" if name == "cifar10" else b"fine_labels"
        return {file: python2_pickle(images, key, labels) for file, (images, labels) in arrays.items()}
    contents = {}
    for file, (images, labels) in arrays.items():
        coarse = b"" if name == "cifar10" else b"\x07"
        records = [coarse + bytes([label]) + image.tobytes() for image, label in zip(images, labels, strict=True)]
        contents[f"{file}.bin"] = b"".join(records)
    return contents


CIFAR_FOLDERS = {
    ("cifar10", "binary"): "cifar-10-batches-bin",
    ("cifar10", "python"): "cifar-10-batches-py",
    ("cifar100", "binary"): "cifar-100-binary",
    ("cifar100", "python"): "cifar-100-python",
}


def write_cifar(root: Path, name: str, version: str, files: dict[str, bytes], *, archive: bool = False) -> Path:
    """Into the official folder, or the official archive. Returns that."""
    folder = CIFAR_FOLDERS[name, version]
    if not archive:
        (root / folder).mkdir(parents=True)
        for file, data in files.items():
            (root / folder / file).write_bytes(data)
        return root / folder
    path = root / f"{name.replace('cifar', 'cifar-')}-{version}.tar.gz"
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        for file, data in {"readme.html": b"<html>", **files}.items():
            member = tarfile.TarInfo(f"{folder}/{file}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def python2_pickle(images: Images, key: bytes, labels: list[int]) -> bytes:
    """What cPickle of Python 2 wrote, protocol 2: strings of bytes, numpy's array in its state.

    Python 3 cannot write such strings any more, so that the opcodes are put together here.
    """

    def string(text: bytes) -> bytes:
        return b"U" + bytes([len(text)]) + text

    rows, columns = images.shape
    dtype = b"cnumpy\ndtype\n" + string(b"u1") + b"K\x00K\x01\x87R"
    dtype += b"(K\x03" + string(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + string(b"b") + b"\x87R"
    array += b"(K\x01" + struct.pack("<cicic", b"J", rows, b"J", columns, b"\x86") + dtype + b"\x89"
    array += b"T" + struct.pack("<i", images.size) + images.tobytes() + b"tb"
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    entries = (string(b"batch_label") + string(b"a batch"), string(key) + numbers, string(b"data") + array)
    return b"\x80\x02}(" + b"".join(entries) + b"u."
