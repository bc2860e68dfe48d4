"""CIFAR-10 and CIFAR-100 from made files."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from tests.data.helpers import cifar_arrays, cifar_files, write_cifar
from trimtab.data import DataError, load
from trimtab.data.checksums import CONTENT, PACKED

ALL = [(name, version) for name in ("cifar10", "cifar100") for version in ("binary", "python")]


@pytest.mark.parametrize("archive", [False, True])
@pytest.mark.parametrize("home", [".", "name"])
@pytest.mark.parametrize(("name", "version"), ALL)
def test_what_is_read_is_what_was_written(tmp_path: Path, name: str, version: str, home: str, archive: bool) -> None:
    arrays = cifar_arrays(name)
    place = tmp_path / name if home == "name" else tmp_path
    place.mkdir(exist_ok=True)
    write_cifar(place, name, version, cifar_files(name, version, arrays), archive=archive)
    data = load(name, tmp_path, check=False)
    *train, test = arrays.values()
    images = np.concatenate([images for images, _ in train])
    assert data.train.targets.tolist() == [label for _, labels in train for label in labels]
    assert data.test.targets.tolist() == test[1]
    for position, (channel, row, column) in {0: (0, 0, 0), 1029: (1, 0, 5), 2 * 1024 + 3 * 32 + 7: (2, 3, 7)}.items():
        assert np.array_equal(data.train.inputs[:, channel, row, column], images[:, position])
    assert np.array_equal(data.test.inputs.flatten(1), test[0])
    assert (data.input_shape, data.classes, data.flips) == ((3, 32, 32), 10 if name == "cifar10" else 100, True)
    planes = images.reshape(-1, 3, 1024) / 255
    assert data.mean == pytest.approx(planes.mean((0, 2)))
    assert data.std == pytest.approx(planes.std((0, 2)))
    assert not archive or sorted(path.suffix for path in place.iterdir()) == [".gz"]


@pytest.mark.parametrize(("name", "version"), ALL)
def test_the_folder_itself_can_be_named(tmp_path: Path, name: str, version: str) -> None:
    folder = write_cifar(tmp_path, name, version, cifar_files(name, version, cifar_arrays(name)))
    assert len(load(name, folder, check=False).test) == 4


def test_a_whole_archive_is_taken_before_a_part_of_a_folder(tmp_path: Path) -> None:
    arrays = cifar_arrays("cifar10")
    folder = write_cifar(tmp_path, "cifar10", "binary", cifar_files("cifar10", "binary", arrays))
    (folder / "data_batch_3.bin").unlink()
    with pytest.raises(DataError, match=r"looked in \S+batches-bin for data_batch_3\.bin; put"):
        load("cifar10", tmp_path)
    write_cifar(tmp_path, "cifar10", "python", cifar_files("cifar10", "python", arrays), archive=True)
    assert len(load("cifar10", tmp_path, check=False).train) == 20


def test_a_missing_set_says_where_and_what(tmp_path: Path) -> None:
    with pytest.raises(DataError) as nothing:
        load("cifar100", tmp_path)
    for part in (str(tmp_path), str(tmp_path / "cifar100"), "cifar-100-python.tar.gz", "cifar-100-binary", "https://"):
        assert part in str(nothing.value)


@pytest.mark.parametrize(
    ("name", "version", "file", "content", "message"),
    [
        ("cifar10", "binary", "test_batch.bin", b"\x01" * 5000, "5000 bytes are not a whole number of records of 3073"),
        ("cifar10", "binary", "data_batch_2.bin", b"", "0 bytes are not a whole number"),
        ("cifar10", "binary", "data_batch_2.bin", b"\x0a" * 3073, "has the label 10, but the classes are 0 to 9"),
        ("cifar100", "binary", "train.bin", b"\x64" * 3074, "has the label 100, but the classes are 0 to 99"),
        ("cifar10", "python", "test_batch", b"<html>", "is not a batch of CIFAR's python version"),
        ("cifar10", "python", "test_batch", b"", "is not a batch of CIFAR's python version"),
    ],
)
def test_bad_files(tmp_path: Path, name: str, version: str, file: str, content: bytes, message: str) -> None:
    files = cifar_files(name, version, cifar_arrays(name)) | {file: content}
    write_cifar(tmp_path, name, version, files)
    with pytest.raises(DataError, match=f"{file} .*{message}"):
        load(name, tmp_path, check=False)


def test_bad_archives(tmp_path: Path) -> None:
    files = cifar_files("cifar10", "python", cifar_arrays("cifar10"))
    archive = write_cifar(tmp_path, "cifar10", "python", {"test_batch": files["test_batch"]}, archive=True)
    with pytest.raises(DataError, match=r"is not the official archive: cifar-10-batches-py/data_batch_1, "):
        load("cifar10", tmp_path)
    archive = write_cifar(tmp_path, "cifar10", "python", files, archive=True)
    whole = archive.read_bytes()
    for content in (whole[: len(whole) // 2], b"<html>", b"", whole[:500] + b"\xff" * 500 + whole[1000:]):
        archive.write_bytes(content)
        with pytest.raises(DataError, match=r"cifar-10-python\.tar\.gz is cut off or damaged, or no tar\.gz archive"):
            load("cifar10", tmp_path)


@pytest.mark.parametrize("archive", [False, True])
@pytest.mark.parametrize(("name", "version"), [one for one in ALL if one != ("cifar100", "binary")])
def test_checksums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, version: str, archive: bool) -> None:
    files = cifar_files(name, version, cifar_arrays(name))
    write_cifar(tmp_path, name, version, files, archive=archive)
    first = next(iter(files))
    with pytest.raises(DataError, match=rf"{first}\)? is not the official {first} of {name}: the MD5") as wrong:
        load(name, tmp_path)
    assert CONTENT[name, first] in str(wrong.value)
    assert hashlib.md5(files[first]).hexdigest() in str(wrong.value)
    for file, content in files.items():
        monkeypatch.setitem(CONTENT, (name, file), hashlib.md5(content).hexdigest())
    assert len(load(name, tmp_path).test) == 4


def test_cifar100_binary_is_known_by_its_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = cifar_files("cifar100", "binary", cifar_arrays("cifar100"))
    archive = write_cifar(tmp_path, "cifar100", "binary", files, archive=True)
    with pytest.raises(DataError, match=r"train\.bin\) cannot be the official data: class \d+ has \d samples"):
        load("cifar100", tmp_path)
    for file in files:
        monkeypatch.setitem(PACKED, ("cifar100", file), hashlib.md5(archive.read_bytes()).hexdigest())
    assert len(load("cifar100", tmp_path).test) == 4
