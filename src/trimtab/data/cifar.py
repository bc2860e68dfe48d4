"""CIFAR-10 and CIFAR-100: the binary and the python version, in a folder or in the official .tar.gz."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from trimtab.data.checksums import accept_unverified, verify
from trimtab.data.dataset import Dataset, Split, channel_statistics
from trimtab.data.errors import DataError
from trimtab.data.files import Content, read, read_archive
from trimtab.data.pickled import unpickle
from trimtab.data.places import missing

PIXELS, SCALE = 3 * 32 * 32, 255.0
SOURCE = "https://www.cs.toronto.edu/~kriz/cifar.html"


@dataclass(frozen=True, slots=True)
class Version:
    """One of the two official forms of a CIFAR data set.

    Attributes:
        folder: The folder in the archive.
        archive: The archive.
        train: The files to train on.
        test: The file to test on.
        label_bytes: Bytes before each image's pixels, the last of which is the label; 0 for the python version.
    """

    folder: str
    archive: str
    train: tuple[str, ...]
    test: str
    label_bytes: int

    @property
    def files(self) -> tuple[str, ...]:
        """All files that are read."""
        return (*self.train, self.test)


@dataclass(frozen=True, slots=True)
class Kind:
    """What distinguishes CIFAR-10 and CIFAR-100.

    Attributes:
        classes: The number of classes.
        labels: What the labels are called in the python version.
        versions: In the order in which they are looked for.
    """

    classes: int
    labels: str
    versions: tuple[Version, Version]

    def each(self, part: str) -> int:
        """How many images of each class there are in a part."""
        return {"train": 50_000, "test": 10_000}[part] // self.classes


_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
_BINARY = tuple(f"{batch}.bin" for batch in _BATCHES)
KINDS = {
    "cifar10": Kind(
        10,
        "labels",
        (
            Version("cifar-10-batches-bin", "cifar-10-binary.tar.gz", _BINARY, "test_batch.bin", 1),
            Version("cifar-10-batches-py", "cifar-10-python.tar.gz", _BATCHES, "test_batch", 0),
        ),
    ),
    "cifar100": Kind(
        100,
        "fine_labels",
        (
            Version("cifar-100-binary", "cifar-100-binary.tar.gz", ("train.bin",), "test.bin", 2),
            Version("cifar-100-python", "cifar-100-python.tar.gz", ("train",), "test", 0),
        ),
    ),
}


def load_cifar(name: str, root: Path, *, check: bool) -> Dataset:
    """Read `cifar10` or `cifar100`, from folders rather than archives."""
    kind = KINDS[name]
    version, contents = _contents(name, root)
    parts = {"train": version.train, "test": (version.test,)}
    splits = {part: _split(name, part, version, {f: contents[f] for f in parts[part]}, check=check) for part in parts}
    mean, std = channel_statistics(splits["train"].inputs, SCALE)
    return Dataset(name=name, **splits, classes=kind.classes, scale=SCALE, mean=mean, std=std, flips=True)


def _contents(name: str, root: Path) -> tuple[Version, dict[str, Content]]:
    """All files of the first version that is there, and whole."""
    versions = KINDS[name].versions
    homes = [root, root / name]
    incomplete: list[DataError] = []
    for home in homes:
        for version in versions:
            for folder in (home / version.folder, home):
                there = [file for file in version.files if (folder / file).is_file()]
                if len(there) == len(version.files):
                    return version, {file: read(folder / file) for file in version.files}
                if there:
                    lacking = [file for file in version.files if file not in there]
                    incomplete.append(missing(name, root, [folder], lacking, SOURCE))
    for archive, version in ((home / version.archive, version) for home in homes for version in versions):
        if archive.is_file():
            return version, read_members(name, archive)
    if incomplete:
        raise incomplete[0]
    ways = [f"{version.folder}/ or {version.archive}" for version in versions]
    raise missing(name, root, homes, [" or ".join(ways)], SOURCE)


def read_members(name: str, archive: Path) -> dict[str, Content]:
    """The files of one of the official archives.

    Raises:
        DataError: The archive is damaged, or a file is not in it.
    """
    version = next(version for version in KINDS[name].versions if version.archive == archive.name)
    members = {f"{version.folder}/{file}": file for file in version.files}
    contents = {members[member]: content for member, content in read_archive(archive, members).items()}
    lacking = [member for member, file in members.items() if file not in contents]
    if lacking:
        raise DataError(f"{archive} is not the official archive: {', '.join(lacking)} is not in it.")
    return contents


def parse_file(name: str, path: Path) -> None:
    """Read a file or an archive whole.

    Raises:
        DataError: It is cut off, or not in its format.
    """
    contents = read_members(name, path) if path.name.endswith(".tar.gz") else {path.name: read(path)}
    for file, content in contents.items():
        _parse(content, _version_of(name, file), KINDS[name])


def record_size(name: str, file: str) -> int:
    """Bytes of an image with its label in the binary version; 0 for files of the python version."""
    label_bytes = _version_of(name, file).label_bytes
    return label_bytes + PIXELS if label_bytes else 0


def _version_of(name: str, file: str) -> Version:
    return next(version for version in KINDS[name].versions if file in version.files)


def _split(name: str, part: str, version: Version, contents: dict[str, Content], *, check: bool) -> Split:
    kind = KINDS[name]
    batches = [_parse(content, version, kind) for content in contents.values()]
    images = np.concatenate([images for images, _ in batches]).reshape(-1, 3, 32, 32)
    targets = torch.from_numpy(np.concatenate([labels for _, labels in batches]))
    if check:
        unverified = [content.where for file, content in contents.items() if not verify(name, file, content)]
        if unverified:
            accept_unverified(unverified, targets, kind.classes, kind.each(part))
    return Split(torch.from_numpy(images), targets)


def _parse(content: Content, version: Version, kind: Kind) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images, planar and one per row, and labels of one file."""
    if version.label_bytes:
        images, labels = _records(content, version.label_bytes)
    else:
        images, labels = unpickle(content, kind.labels)
    if images.shape != (len(labels), PIXELS):
        raise DataError(
            f"{content.where} has {len(labels)} labels for {images.shape[0]} images of {images.shape[1]} bytes "
            f"(they should have {PIXELS}); fetch it again."
        )
    if not len(images):
        raise DataError(f"{content.where} has no images in it; fetch it again.")
    wrong = labels[(labels < 0) | (labels >= kind.classes)]
    if len(wrong):
        raise DataError(
            f"{content.where} has the label {wrong[0]}, but the classes are 0 to {kind.classes - 1}; "
            "put the official file there."
        )
    return images, labels


def _records(content: Content, label_bytes: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The binary version: records of one or two labels and the pixels."""
    size = label_bytes + PIXELS
    if not content.data or len(content.data) % size:
        raise DataError(
            f"{content.where} is cut off or not CIFAR's binary version: its {len(content.data)} bytes are not a whole "
            f"number of records of {size}; fetch it again."
        )
    records = np.frombuffer(content.data, np.uint8).reshape(-1, size)
    return records[:, label_bytes:], records[:, label_bytes - 1].astype(np.int64)
