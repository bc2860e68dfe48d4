"""A folder of images in ImageNet's layout: train/CLASS/*.JPEG and val/CLASS/*.JPEG.

These do not fit into memory: a split holds the numbers of files, and `FolderBatches` has them decoded by worker
processes. Batches come in the same way as from `Batches`, and are normalized on the device; crops and flips are done
where an image is decoded, since images differ in size.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from trimtab.data.dataset import Dataset, Split
from trimtab.data.decode import decode
from trimtab.data.epochs import Batches, Options, Plan
from trimtab.data.errors import DataError
from trimtab.data.places import missing

FOLDERS = ("imagefolder", "imagenet", ".")
PARTS = {"train": "train", "test": "val"}
SUFFIXES = (".jpeg", ".jpg", ".png")
SIDE = 224
MOST_WORKERS = 8
# ImageNet's, by custom: measuring those of a large folder would take as long as training on it for an epoch.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFolder(Dataset):
    """A data set whose inputs are the numbers of files.

    Attributes:
        files: The files of both splits.
        labels: The names of the classes.
        side: Height and width to which images are brought.
    """

    files: tuple[str, ...]
    labels: tuple[str, ...]
    side: int = SIDE

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input, as a network gets it."""
        return (3, self.side, self.side)


def load_imagefolder(root: Path) -> ImageFolder:
    """List the images under ROOT/imagefolder, ROOT/imagenet or ROOT itself. Nothing is decoded yet."""
    homes = [root / folder for folder in FOLDERS]
    home = next((home for home in homes if (home / "train").is_dir()), None)
    if home is None or not (home / "val").is_dir():
        places = homes if home is None else [home]
        raise missing(
            "imagefolder", root, places, ["train/CLASS/*.JPEG and val/CLASS/*.JPEG"], "https://www.image-net.org"
        )
    labels = _classes(home / "train")
    unknown = set(_classes(home / "val")).difference(labels)
    if unknown:
        raise DataError(f"{home / 'val' / min(unknown)} is a class that {home / 'train'} does not have.")
    files: list[str] = []
    splits: dict[str, Split] = {}
    for part, folder in PARTS.items():
        first = len(files)
        targets: list[int] = []
        for target, label in enumerate(labels):
            images = _images(home / folder / label)
            files += images
            targets += [target] * len(images)
        if not targets:
            raise DataError(f"{home / folder} has no images ({', '.join(SUFFIXES)}) in the folders of its classes.")
        splits[part] = Split(torch.arange(first, len(files)), torch.tensor(targets))
    # Mixed once and for all: the last ones would otherwise be a validation set of one class.
    mixed = torch.randperm(len(splits["train"]), generator=torch.Generator().manual_seed(0))
    return ImageFolder(
        name="imagefolder",
        train=splits["train"].take(mixed),
        test=splits["test"],
        classes=len(labels),
        scale=255.0,
        mean=MEAN,
        std=STD,
        flips=True,
        files=tuple(files),
        labels=tuple(labels),
    )


class FolderBatches(Batches):
    """`Batches` of an image folder: the same epochs, plans and resumption, with images decoded by worker processes.

    Augmentation is a random crop of 8 to 100 % of the area and a flip; without it, the middle of the image is taken.
    What comes out does not depend on the number of workers.
    """

    dataset: ImageFolder

    def __init__(
        self,
        split: Split,
        batch_size: int,
        *,
        dataset: ImageFolder,
        workers: int | None = None,
        **options: Unpack[Options],
    ) -> None:
        """As for `Batches`.

        Args:
            split: A part of the data set.
            batch_size: Samples in a batch.
            dataset: The folder.
            workers: Processes that decode; 0 decodes in this one, None takes one per thread of torch, up to 8.
            **options: Those of `Batches`.
        """
        super().__init__(split, batch_size, dataset=dataset, **options)
        self.workers = min(torch.get_num_threads(), MOST_WORKERS) if workers is None else workers

    def _check_split(self, split: Split, dataset: Dataset) -> None:
        if split.inputs.dim() != 1 or split.inputs.is_floating_point():
            raise ValueError("The inputs of an image folder's split are the numbers of its files.")

    def _draw(self, count: int, generator: torch.Generator) -> Tensor:
        """A seed for each image: what a crop needs depends on its size, which is not known yet."""
        return torch.randint(0, 2**62, (count,), generator=generator)

    def _raw(self, plan: Plan, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        cuda = self.device.type == "cuda"
        order, targets = self._split.inputs.cpu()[plan.order], self._split.targets[plan.order.to(self.device)]
        places = list(self._places(start))
        wanted = [(order[place], None if plan.draws is None else plan.draws[place]) for place in places]
        loader = DataLoader(
            _Decoder(self.dataset, wanted),
            batch_size=None,  # an item is a batch already
            sampler=range(len(places)),
            num_workers=self.workers,
            pin_memory=cuda,
            generator=torch.Generator(),  # otherwise the loader would take a seed from the global one
        )
        for place, images in zip(places, loader, strict=True):
            if isinstance(images, str):
                raise DataError(images)
            yield images.to(self.device, non_blocking=cuda), targets[place]


class _Decoder(TorchDataset[Tensor | str]):
    """What a worker does: decode one batch, or say what is wrong with it.

    The error is handed back rather than raised, because the loader would wrap its sentence into a traceback.
    """

    def __init__(self, folder: ImageFolder, batches: list[tuple[Tensor, Tensor | None]]) -> None:
        self._folder = folder
        self._batches = batches

    def __getitem__(self, number: int) -> Tensor | str:
        index, seeds = self._batches[number]
        if not len(index):  # a part of a batch that is too small for so many parts
            return torch.empty(0, *self._folder.input_shape, dtype=torch.uint8)
        paths = [self._folder.files[file] for file in index.tolist()]
        given = [None] * len(paths) if seeds is None else seeds.tolist()
        try:
            return torch.stack([decode(path, self._folder.side, s) for path, s in zip(paths, given, strict=True)])
        except DataError as error:
            return str(error)


def _classes(folder: Path) -> list[str]:
    classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    if not classes:
        raise DataError(f"{folder} has no folders of classes; put the images of each class into a folder of its own.")
    return classes


def _images(folder: Path) -> list[str]:
    """The images of one class, sorted, so that the order does not depend on the file system."""
    if not folder.is_dir():
        return []
    return sorted(entry.path for entry in os.scandir(folder) if entry.name.lower().endswith(SUFFIXES))
