"""MNIST and Fashion-MNIST: four idx files, gzipped or not."""

import math
import struct
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from trimtab.data.checksums import accept_unverified, verify
from trimtab.data.dataset import Dataset, Split, channel_statistics
from trimtab.data.errors import DataError
from trimtab.data.files import Content, read
from trimtab.data.places import missing

PARTS = {"train": "train", "test": "t10k"}
SIDE, CLASSES, SCALE = 28, 10, 255.0
LONGEST_HEADER = 16  # that of images, with three dimensions
FOLDERS = {"mnist": ("mnist", "MNIST/raw", "."), "fashion-mnist": ("fashion-mnist", "FashionMNIST/raw", ".")}
SOURCES = {
    "mnist": "https://ossci-datasets.s3.amazonaws.com/mnist",
    "fashion-mnist": "https://github.com/zalandoresearch/fashion-mnist",
}
# Fashion-MNIST has as many images of each class; MNIST has not, but its checksums are all known.
EACH = {"train": 6000, "test": 1000}


def load_idx(name: str, root: Path, *, check: bool) -> Dataset:
    """Read `mnist` or `fashion-mnist` from the first folder that has most of its four files."""
    folders = [root / folder for folder in FOLDERS[name]]
    files = [f"{part}-{kind}-ubyte" for part in PARTS.values() for kind in ("images-idx3", "labels-idx1")]
    by_folder = [{file: path for file in files if (path := _find(folder, file)) is not None} for folder in folders]
    paths = max(by_folder, key=len)  # the first of the fullest
    if len(paths) < len(files):
        places = (
            [folder for folder, there in zip(folders, by_folder, strict=True) if there is paths] if paths else folders
        )
        raise missing(name, root, places, [f"{file}.gz" for file in files if file not in paths], SOURCES[name])
    splits = {part: _split(name, part, paths, check=check) for part in PARTS}
    mean, std = channel_statistics(splits["train"].inputs, SCALE)
    return Dataset(name=name, **splits, classes=CLASSES, scale=SCALE, mean=mean, std=std, flips=name == "fashion-mnist")


def size_by_header(header: bytes) -> int | None:
    """How long the header says that its file is; None if it is no header of an idx file of bytes."""
    dimensions = header[3] if len(header) > 3 else 0
    if header[:3] != bytes((0, 0, 8)) or len(header) < 4 + 4 * dimensions:
        return None
    sizes: tuple[int, ...] = struct.unpack_from(f">{dimensions}I", header, 4)
    return 4 + 4 * dimensions + math.prod(sizes)


def parse_idx(content: Content, dimensions: int) -> Tensor:
    """An array of bytes in the idx format: 0, 0, type 8, the number of dimensions, the dimensions, the bytes."""
    header = 4 + 4 * dimensions
    if content.data[:4] != bytes((0, 0, 8, dimensions)) or len(content.data) < header:
        raise DataError(
            f"{content.where} is not an idx file of bytes in {dimensions} dimension{'s' * (dimensions > 1)}; "
            "put the official file there."
        )
    shape = struct.unpack(f">{dimensions}I", content.data[4:header])
    promised, available = math.prod(shape), len(content.data) - header
    if available != promised:
        raise DataError(
            f"{content.where} is {'cut off' if available < promised else 'too long'}: its header promises {promised} "
            f"bytes of data and {available} follow; fetch it again."
        )
    return torch.from_numpy(np.frombuffer(content.data, np.uint8, offset=header).reshape(shape).copy())


def _split(name: str, part: str, paths: dict[str, Path], *, check: bool) -> Split:
    names = [f"{PARTS[part]}-images-idx3-ubyte", f"{PARTS[part]}-labels-idx1-ubyte"]
    images_content, labels_content = (read(paths[file]) for file in names)
    images, labels = parse_idx(images_content, 3), parse_idx(labels_content, 1)
    if images.shape[1:] != (SIDE, SIDE):
        raise DataError(f"{images_content.where} has images of {images.shape[1]}×{images.shape[2]}, not {SIDE}×{SIDE}.")
    if len(images) != len(labels):
        raise DataError(
            f"{images_content.where} has {len(images)} images and {labels_content.where} {len(labels)} labels; "
            "put the files that belong together there."
        )
    if not len(images):
        raise DataError(f"{images_content.where} has no images in it; fetch it again.")
    if labels.max() >= CLASSES:
        raise DataError(f"{labels_content.where} has the label {labels.max()}, but the classes are 0 to {CLASSES - 1}.")
    targets = labels.long()
    if check:
        contents = zip(names, (images_content, labels_content), strict=True)
        unverified = [content.where for file, content in contents if not verify(name, file, content)]
        if unverified:
            accept_unverified(unverified, targets, CLASSES, EACH[part])
    return Split(images.unsqueeze(1), targets)


def _find(folder: Path, file: str) -> Path | None:
    """The gzipped form first: its checksum is known for all files."""
    return next((path for path in (folder / f"{file}.gz", folder / file) if path.is_file()), None)
