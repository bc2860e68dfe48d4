"""Data files that are cut off, foreign or hostile, as `trimtab train` meets them."""

import gzip
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.bad_inputs.helpers import assert_refused
from tests.data.helpers import (
    CIFAR_FOLDERS,
    IDX_NAMES,
    cifar_arrays,
    cifar_files,
    idx,
    idx_arrays,
    write_cifar,
    write_idx,
)
from tests.data.test_imagefolder import photograph

ARRAYS = idx_arrays()
TRAIN, LABELS, *_ = IDX_NAMES
GOOD = idx(ARRAYS[TRAIN])


def refused(data: str, root: Path, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    network = ["--network", "mlp2x100"] if data != "imagefolder" else ["--network", "resnet18"]
    told = ["train", "--quiet", "--data", data, "--data-root", str(root / "data"), "--out", str(root / "out")]
    assert_refused(
        [*told, *network, "--method", "vanilla", "--steps", "2", "--batch-size", "2"], sentence, capsys, root
    )


IDX: list[tuple[str, bytes, str]] = [
    (TRAIN, GOOD[:-5], r"is cut off: its header promises 23520 bytes of data and 23515 follow"),
    (TRAIN, GOOD + b"x", r"is too long"),
    (TRAIN, GOOD[:9], r"is not an idx file"),
    (TRAIN, b"", r"is not an idx file"),
    (TRAIN, b"<html>not found</html>", r"is not an idx file"),
    (TRAIN, bytes((0, 0, 13, 3)) + GOOD[4:], r"is not an idx file of bytes"),
    (TRAIN, bytes((0, 0, 8, 3)) + b"\xff" * 12, r"is cut off|is not an idx file"),
    (TRAIN, idx(ARRAYS[LABELS]), r"is not an idx file of bytes in 3 dimensions"),
    (TRAIN, idx(ARRAYS[TRAIN].repeat(2, axis=1)), r"has images of 56×28, not 28×28"),
    (TRAIN, idx(ARRAYS[TRAIN][:0]), r"has 0 images"),
    (TRAIN, idx(ARRAYS[TRAIN][:7]), r"has 7 images and .* 30 labels"),
    (TRAIN, gzip.compress(GOOD)[:-9], r"is cut off or damaged"),
    (TRAIN, gzip.compress(GOOD)[:40] + b"\xff" * 4000, r"is cut off or damaged"),
    (TRAIN, b"\x1f\x8b", r"is cut off or damaged|is not an idx file"),
    (LABELS, idx(np.full(30, 10, np.uint8)), r"has the label 10, but the classes are 0 to 9"),
    (LABELS, b"", r"is not an idx file"),
    (LABELS, GOOD, r"is not an idx file of bytes in 1 dimension"),
    (TRAIN, GOOD, r"is not the official train-images-idx3-ubyte of mnist"),
]


@pytest.mark.parametrize(("file", "content", "sentence"), IDX, ids=[f"{row[0]}: {row[2][:30]}" for row in IDX])
def test_idx(file: str, content: bytes, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_idx(tmp_path / "data", ARRAYS, zipped=False)
    (tmp_path / "data" / file).write_bytes(content)
    refused("mnist", tmp_path, rf"{file} {sentence}", capsys)


@pytest.mark.parametrize("missing", IDX_NAMES)
def test_idx_files_that_are_not_there(missing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_idx(tmp_path / "data", {name: array for name, array in ARRAYS.items() if name != missing}, zipped=True)
    refused("mnist", tmp_path, missing, capsys)


class Hostile:
    def __reduce__(self) -> Any:
        return print, ("executed",)


CIFAR: list[tuple[str, str, str, bytes, str]] = [
    ("cifar10", "binary", "data_batch_1.bin", b"\x01" * 5000, r"5000 bytes are not a whole number of records of 3073"),
    ("cifar10", "binary", "data_batch_2.bin", b"", r"0 bytes are not a whole number"),
    ("cifar10", "binary", "data_batch_2.bin", b"\x0a" * 3073, r"has the label 10, but the classes are 0 to 9"),
    ("cifar100", "binary", "train.bin", b"\x64" * 3074, r"has the label 100, but the classes are 0 to 99"),
    ("cifar100", "binary", "train.bin", b"\x01" * 3073, r"not a whole number of records"),
    ("cifar10", "python", "data_batch_1", b"<html>", r"is not a batch of CIFAR's python version"),
    ("cifar10", "python", "data_batch_1", b"", r"is not a batch of CIFAR's python version"),
    ("cifar10", "python", "data_batch_1", pickle.dumps(Hostile()), r"is not a batch of CIFAR's python version"),
    ("cifar10", "python", "data_batch_1", pickle.dumps({b"data": 3, b"labels": []}), r"has no entries data and labels"),
    ("cifar10", "python", "data_batch_1", pickle.dumps([1, 2]), r"does not hold a dict"),
    ("cifar100", "python", "train", pickle.dumps({}), r"has no entries"),
    ("cifar100", "python", "train", b"\x80\x02" + b"(" * 1000, r"is not a batch of CIFAR's python version"),
]


@pytest.mark.parametrize(
    ("name", "version", "file", "content", "sentence"),
    CIFAR,
    ids=[f"{row[0]} {row[2]}: {row[4][:30]}" for row in CIFAR],
)
def test_cifar(
    name: str,
    version: str,
    file: str,
    content: bytes,
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_cifar(tmp_path / "data", name, version, cifar_files(name, version, cifar_arrays(name)) | {file: content})
    refused(name, tmp_path, rf"{file}.*{sentence}", capsys)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
@pytest.mark.parametrize("version", ["binary", "python"])
@pytest.mark.parametrize("content", [b"", b"<html>", b"\x1f\x8b" + b"\xff" * 500])
def test_cifar_archives(
    name: str, version: str, content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    archive = tmp_path / "data" / f"{name.replace('cifar', 'cifar-')}-{version}.tar.gz"
    archive.write_bytes(content)
    refused(name, tmp_path, r"is cut off or damaged, or no tar\.gz archive", capsys)


def test_an_empty_folder_of_cifar(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data" / CIFAR_FOLDERS["cifar10", "binary"]).mkdir(parents=True)
    refused("cifar10", tmp_path, r"cifar10 was not found", capsys)


def test_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data"
    data.mkdir()
    refused("imagefolder", tmp_path, r"train/CLASS", capsys)
    photograph(data / "train" / "a" / "x.jpg", 0)
    refused("imagefolder", tmp_path, r"imagefolder was not found", capsys)
    photograph(data / "val" / "x.jpg", 0)
    refused("imagefolder", tmp_path, r"val has no folders of classes", capsys)
    (data / "val" / "b").mkdir()
    refused("imagefolder", tmp_path, r"val/b is a class that \S+train does not have", capsys)
    (data / "val" / "b").rename(data / "val" / "a")
    refused("imagefolder", tmp_path, r"val has no images", capsys)
