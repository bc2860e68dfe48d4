"""Data sets by name."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from trimtab.data.cifar import load_cifar
from trimtab.data.dataset import Dataset, Split
from trimtab.data.digits import load_digits
from trimtab.data.epochs import Batches, Options
from trimtab.data.idx import load_idx
from trimtab.data.imagefolder import FolderBatches, ImageFolder, load_imagefolder
from trimtab.data.places import data_root
from trimtab.data.synthetic import gaussian
from trimtab.nearest import nearest


@dataclass(frozen=True, slots=True)
class _Entry:
    description: str
    load: Callable[[Path, bool], Dataset]


_CATALOG = {
    "digits": _Entry("1797 handwritten digits, 8×8, from scikit-learn; nothing to fetch", lambda *_: load_digits()),
    "mnist": _Entry("70000 handwritten digits, 28×28", lambda root, check: load_idx("mnist", root, check=check)),
    "fashion-mnist": _Entry(
        "70000 pieces of clothing, 28×28", lambda root, check: load_idx("fashion-mnist", root, check=check)
    ),
    "cifar10": _Entry(
        "60000 colour photographs of 10 classes, 32×32", lambda root, check: load_cifar("cifar10", root, check=check)
    ),
    "cifar100": _Entry(
        "60000 colour photographs of 100 classes, 32×32", lambda root, check: load_cifar("cifar100", root, check=check)
    ),
    "imagefolder": _Entry(
        "images in ImageNet's layout, train/CLASS/*.JPEG and val/CLASS/*.JPEG, brought to 224×224",
        lambda root, _: load_imagefolder(root),
    ),
    "gaussian": _Entry("regression from 10 to 10 Gaussian dimensions, 1000 samples; drawn", lambda *_: gaussian()),
}

DATASETS: dict[str, str] = {name: entry.description for name, entry in _CATALOG.items()}
"""The data sets, each with one line on what it is."""


def load(name: str, root: Path | None = None, *, check: bool = True) -> Dataset:
    """Read a data set.

    Args:
        name: One of `DATASETS`.
        root: The folder of the data sets; by default what TRIMTAB_DATA says, else `data` in the current folder.
        check: Whether to compare checksums with the official ones; without, other data in the same formats can be
            read.

    Returns:
        The data set, in memory; an `ImageFolder` (of file numbers) for `imagefolder`.

    Raises:
        ValueError: There is no such data set.
        DataError: It is not there, or a file of it is damaged or another one.
    """
    check_name(name)
    return _CATALOG[name].load(data_root(root), check)


def check_name(name: str) -> None:
    """Refuse an unknown name.

    Raises:
        ValueError: There is none of this name.
    """
    if name not in _CATALOG:
        near = nearest(name, _CATALOG)
        guess = f"; did you mean {near!r}?" if near else ""
        raise ValueError(f"There is no data set {name!r}{guess} (known: {', '.join(_CATALOG)})")


def batches(
    split: Split, batch_size: int, *, dataset: Dataset, workers: int | None = None, **options: Unpack[Options]
) -> Batches:
    """The batches of any data set: `FolderBatches` for an image folder, `Batches` for all others.

    Args:
        split: A part of the data set.
        batch_size: Samples in a batch.
        dataset: The data set.
        workers: Processes that decode images; without effect on data that lie in memory.
        **options: Those of `Batches`.
    """
    if isinstance(dataset, ImageFolder):
        return FolderBatches(split, batch_size, dataset=dataset, workers=workers, **options)
    return Batches(split, batch_size, dataset=dataset, **options)
