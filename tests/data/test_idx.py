"""MNIST and Fashion-MNIST from made files."""

import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest

from tests.data.helpers import IDX_NAMES, Images, idx, idx_arrays, write_idx
from trimtab.data import DataError, load
from trimtab.data.checksums import CONTENT, PACKED

IMAGES = "train-images-idx3-ubyte"


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("mnist", "mnist"),
        ("mnist", "MNIST/raw"),
        ("mnist", "."),
        ("fashion-mnist", "fashion-mnist"),
        ("fashion-mnist", "FashionMNIST/raw"),
        ("fashion-mnist", "."),
    ],
)
def test_what_is_read_is_what_was_written(tmp_path: Path, name: str, folder: str, zipped: bool) -> None:
    arrays = idx_arrays()
    write_idx(tmp_path / folder, arrays, zipped=zipped)
    data = load(name, tmp_path, check=False)
    assert np.array_equal(data.train.inputs[:, 0], arrays[IDX_NAMES[0]])
    assert np.array_equal(data.train.targets, arrays[IDX_NAMES[1]])
    assert np.array_equal(data.test.inputs[:, 0], arrays[IDX_NAMES[2]])
    assert np.array_equal(data.test.targets, arrays[IDX_NAMES[3]])
    assert (data.name, data.input_shape, data.classes, data.scale) == (name, (1, 28, 28), 10, 255.0)
    assert data.mean == pytest.approx([(arrays[IMAGES] / 255).mean()])
    assert data.std == pytest.approx([(arrays[IMAGES] / 255).std()])
    assert data.flips == (name == "fashion-mnist")


def test_gzipped_under_a_name_without_gz(tmp_path: Path) -> None:
    arrays = idx_arrays()
    write_idx(tmp_path, arrays, zipped=False)
    (tmp_path / IMAGES).write_bytes(gzip.compress(idx(arrays[IMAGES])))
    assert np.array_equal(load("mnist", tmp_path, check=False).train.inputs[:, 0], arrays[IMAGES])


def test_the_whole_set_is_taken_before_a_part_of_one(tmp_path: Path) -> None:
    arrays = idx_arrays()
    write_idx(tmp_path / "mnist", {IMAGES: arrays[IMAGES]}, zipped=True)
    write_idx(tmp_path, arrays, zipped=False)
    assert len(load("mnist", tmp_path, check=False).train) == 30


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError) as nothing:
        load("mnist", tmp_path)
    for part in (*IDX_NAMES, str(tmp_path / "mnist"), str(tmp_path / "MNIST/raw"), "https://", "TRIMTAB_DATA"):
        assert part in str(nothing.value)
    arrays = idx_arrays()
    del arrays["t10k-labels-idx1-ubyte"]
    write_idx(tmp_path / "MNIST/raw", arrays, zipped=True)
    with pytest.raises(DataError, match=r"looked in \S+raw for t10k-labels-idx1-ubyte\.gz; put"):
        load("mnist", tmp_path)


def _bad(arrays: dict[str, Images], *, fault: str) -> tuple[str, bytes]:
    """A file and its bad content."""
    good, labels = idx(arrays[IMAGES]), IDX_NAMES[1]
    return {
        "cut": (IMAGES, good[:-5]),
        "long": (IMAGES, good + b"x"),
        "header": (IMAGES, good[:9]),
        "empty": (IMAGES, b""),
        "foreign": (IMAGES, b"<html>not found</html>"),
        "floats": (IMAGES, bytes((0, 0, 13, 3)) + good[4:]),
        "labels": (IMAGES, idx(arrays[labels])),
        "size": (IMAGES, idx(arrays[IMAGES].repeat(2, axis=1))),
        "none": (IMAGES, idx(arrays[IMAGES][:0])),
        "fewer": (IMAGES, idx(arrays[IMAGES][:7])),
        "class": (labels, idx(np.full(30, 10, np.uint8))),
        "zip": (IMAGES, gzip.compress(good)[:-9]),
        "damaged": (IMAGES, gzip.compress(good)[:40] + b"\xff" * 4000),
    }[fault]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("cut", "is cut off: its header promises 23520 bytes of data and 23515 follow"),
        ("long", "is too long: its header promises 23520 bytes of data and 23521 follow"),
        ("header", "is not an idx file of bytes in 3 dimensions"),
        ("empty", "is not an idx file"),
        ("foreign", "is not an idx file"),
        ("floats", "is not an idx file of bytes"),
        ("labels", "is not an idx file of bytes in 3 dimensions"),
        ("size", "has images of 56×28, not 28×28"),
        ("none", "has 0 images and .* 30 labels"),
        ("fewer", "has 7 images and .*train-labels-idx1-ubyte 30 labels"),
        ("class", "has the label 10, but the classes are 0 to 9"),
        ("zip", "is cut off or damaged"),
        ("damaged", "is cut off or damaged"),
    ],
)
def test_bad_files_are_named_with_their_fault(tmp_path: Path, fault: str, message: str) -> None:
    arrays = idx_arrays()
    write_idx(tmp_path, arrays, zipped=False)
    file, content = _bad(arrays, fault=fault)
    (tmp_path / file).write_bytes(content)
    with pytest.raises(DataError, match=f"{file} {message}"):
        load("mnist", tmp_path)


def test_no_images_at_all(tmp_path: Path) -> None:
    write_idx(tmp_path, idx_arrays(train=0), zipped=False)
    with pytest.raises(DataError, match=f"{IMAGES} has no images"):
        load("mnist", tmp_path, check=False)


@pytest.mark.parametrize("zipped", [True, False])
def test_checksums_are_of_the_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zipped: bool) -> None:
    arrays = idx_arrays()
    write_idx(tmp_path, arrays, zipped=zipped)
    with pytest.raises(DataError) as wrong:
        load("mnist", tmp_path)
    for part in (IMAGES, CONTENT["mnist", IMAGES], hashlib.md5(idx(arrays[IMAGES])).hexdigest()):
        assert part in str(wrong.value)
    for name in IDX_NAMES:
        monkeypatch.setitem(CONTENT, ("mnist", name), hashlib.md5(idx(arrays[name])).hexdigest())
    assert len(load("mnist", tmp_path).train) == 30
    with pytest.raises(DataError, match=r"is train-images-idx3-ubyte of mnist, not train-images\S+ of fashion-mnist"):
        load("fashion-mnist", tmp_path)


def test_without_a_checksum_of_the_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fashion-MNIST: the official .gz is verified; any other form must have the official number of each class."""
    arrays = idx_arrays()
    write_idx(tmp_path, arrays, zipped=True)
    with pytest.raises(DataError, match=r"cannot be the official data: class 0 has \d+ samples instead of 6000"):
        load("fashion-mnist", tmp_path)
    for name in IDX_NAMES:
        official = hashlib.md5((tmp_path / f"{name}.gz").read_bytes()).hexdigest()
        monkeypatch.setitem(PACKED, ("fashion-mnist", name), official)
    assert len(load("fashion-mnist", tmp_path).train) == 30


def test_balanced_classes_pass_with_a_warning(tmp_path: Path) -> None:
    arrays = {
        f"{part}-{kind}": array
        for part, count in (("train", 60_000), ("t10k", 10_000))
        for kind, array in (
            ("images-idx3-ubyte", np.zeros((count, 28, 28), np.uint8)),
            ("labels-idx1-ubyte", (np.arange(count) % 10).astype(np.uint8)),
        )
    }
    write_idx(tmp_path, arrays, zipped=False)
    with pytest.warns(UserWarning, match="no checksum to verify the content") as warned:
        data = load("fashion-mnist", tmp_path)
    assert len(data.train) == 60_000
    assert len(warned) == 2
