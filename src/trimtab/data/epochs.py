"""Epochs of batches, on the training device."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypedDict, get_args

import torch
from torch import Tensor

from trimtab.data.dataset import Dataset, Split, channel_statistics

Normalize = Literal["unit", "standard", "pixel"]
MOST_PADDING = 4


class Options(TypedDict, total=False):
    """The settings of `Batches` that can be left out; see there."""

    generator: torch.Generator | None
    augment: bool
    normalize: Normalize
    drop_last: bool
    device: torch.device | str
    part: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Plan:
    """All that is random in one epoch.

    Attributes:
        order: The numbers of the split's samples, in the order in which they are seen.
        draws: For each of them, in the same order, what its augmentation needs; None without augmentation.
    """

    order: Tensor
    draws: Tensor | None

    def to(self, device: torch.device) -> "Plan":
        """The plan on a device."""
        return Plan(self.order.to(device), None if self.draws is None else self.draws.to(device))


class Batches:
    """Epochs of a split: `for inputs, targets in batches` is one.

    The samples lie on the device as they were read (images as uint8); batches are picked, augmented, converted to
    float32 and normalized there, with no loop over images. Augmentation pads with black, crops at random to the old
    size and flips every second image on average, if the data set `flips`.

    All that is random in an epoch is drawn from the generator at its beginning, as a `Plan`. A run that was saved with
    the generator's state from before the epoch and the number of batches it had seen goes on by
    `batches.epoch(batches.plan(), start)`.
    """

    def __init__(
        self,
        split: Split,
        batch_size: int,
        *,
        dataset: Dataset,
        generator: torch.Generator | None = None,
        augment: bool = False,
        normalize: Normalize = "standard",
        drop_last: bool = False,
        device: torch.device | str = "cpu",
        part: tuple[int, int] = (0, 1),
    ) -> None:
        """Move the split to the device.

        Args:
            split: A part of the data set.
            batch_size: Samples in a batch.
            dataset: Says how to convert and normalize.
            generator: Gives each epoch its order and augmentation, on the CPU so that they do not depend on the
                device; None leaves the samples in the split's order (for evaluation) and cannot augment.
            augment: Whether to crop and flip at random.
            normalize: `unit`: inputs / scale; `standard`: (inputs / scale - mean) / std, channel by channel;
                `pixel`: the same, pixel by pixel.
            drop_last: Whether to leave out a last batch that is not full.
            device: Where the batches are wanted.
            part: Which part of each batch is wanted, counted from 0, and of how many: as `part_of` divides it. The
                plan of an epoch does not depend on it.
        """
        if batch_size < 1:
            raise ValueError(f"The batch size must be 1 or more, not {batch_size}.")
        if drop_last and batch_size > len(split):
            raise ValueError(f"With drop_last there is no batch of {batch_size} among {len(split)} samples.")
        if normalize not in get_args(Normalize):
            raise ValueError(f"normalize must be one of {', '.join(get_args(Normalize))}, not {normalize!r}.")
        if generator is not None and generator.device.type != "cpu":
            raise ValueError(f"The generator must be on the CPU, not on {generator.device}.")
        if augment and generator is None:
            raise ValueError("Augmentation needs a generator.")
        if augment and len(dataset.input_shape) != 3:
            raise ValueError(f"Augmentation is for images, and {dataset.name} has none.")
        self._check_split(split, dataset)
        self.batch_size = batch_size
        self.dataset = dataset
        self.generator = generator
        self.augment = augment
        self.drop_last = drop_last
        self.device = torch.device(device)
        self.part = part
        self._split = split.to(self.device)
        self._shift, self._divisor = self._normalization(normalize)

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        full, rest = divmod(len(self._split), self.batch_size)
        return full + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """A new epoch."""
        return self.epoch(self.plan())

    def plan(self) -> Plan:
        """Draw what is random in one epoch; all that ever takes from the generator."""
        count = len(self._split)
        if self.generator is None:
            return Plan(torch.arange(count), None)
        order = torch.randperm(count, generator=self.generator)
        return Plan(order, self._draw(count, self.generator) if self.augment else None)

    def epoch(self, plan: Plan, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """The epoch of a plan, from batch number `start` (counted from 0) to its end.

        Yields:
            Inputs (float32) and targets of a batch, on the device.
        """
        if not 0 <= start <= len(self):
            raise ValueError(f"An epoch of {len(self)} batches cannot start at batch {start}.")
        return ((self._normalized(inputs), targets) for inputs, targets in self._raw(plan, start))

    def _check_split(self, split: Split, dataset: Dataset) -> None:
        if tuple(split.inputs.shape[1:]) != dataset.input_shape:
            raise ValueError(
                f"The inputs of the split have the shape {tuple(split.inputs.shape[1:])} instead of {dataset.name}'s "
                f"{dataset.input_shape}; an image folder's batches come from trimtab.data.batches."
            )

    def _draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Row and column at which the crop begins in the padded image, and whether to flip it."""
        begin = torch.randint(0, 2 * padding(self.dataset.input_shape) + 1, (count, 2), generator=generator)
        flip = torch.randint(0, 2 if self.dataset.flips else 1, (count, 1), generator=generator)
        return torch.cat([begin, flip], 1)

    def _raw(self, plan: Plan, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and targets as they lie on the device."""
        here = plan.to(self.device)
        for batch in self._places(start):
            index = here.order[batch]
            if here.draws is None:
                yield self._split.inputs[index], self._split.targets[index]
            else:
                yield crop_and_flip(self._split.inputs, index, here.draws[batch]), self._split.targets[index]

    def _places(self, start: int) -> Iterator[slice]:
        """Where in the epoch's order the samples of each batch are, or those of the part that is wanted."""
        for first in range(start * self.batch_size, len(self) * self.batch_size, self.batch_size):
            wanted = part_of(min(self.batch_size, len(self._split) - first), *self.part)
            yield slice(first + wanted.start, first + wanted.stop)

    def _normalization(self, normalize: Normalize) -> tuple[Tensor, Tensor]:
        shift, divisor = (
            fitted(torch.tensor(values, device=self.device), self.dataset.input_shape)
            for values in normalization(self.dataset, normalize)
        )
        return shift, divisor

    def _normalized(self, inputs: Tensor) -> Tensor:
        return inputs.float().div_(self.dataset.scale).sub_(self._shift).div_(self._divisor)


def part_of(count: int, number: int, parts: int) -> slice:
    """One of several parts of so many samples; the first ones have a sample more where they are not equal.

    >>> [part_of(5, number, 3) for number in range(3)]
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    size, more = divmod(count, parts)
    first = number * size + min(number, more)
    return slice(first, first + size + (number < more))


def normalization(dataset: Dataset, normalize: Normalize) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """What is subtracted from each channel of inputs / scale, and what that is divided by; with `pixel` of each pixel.

    Raises:
        ValueError: If the data set does not lie in memory and its pixels are wanted.
    """
    if normalize == "unit":
        return (0.0,) * len(dataset.mean), (1.0,) * len(dataset.std)
    mean, std = dataset.mean, dataset.std
    if normalize == "pixel":
        if not isinstance(dataset, Dataset):
            raise ValueError("normalize pixel is for data in memory, and these are read from files; take standard.")
        mean, std = channel_statistics(dataset.train.inputs.flatten(1), dataset.scale)
    return mean, tuple(one if one > 0 else 1.0 for one in std)  # a constant channel becomes 0


def fitted(values: Tensor, input_shape: tuple[int, ...]) -> Tensor:
    """One value per channel, or one per pixel, shaped to act on inputs."""
    if len(values) == math.prod(input_shape):
        return values.view(input_shape)
    return values.view((-1,) + (1,) * (len(input_shape) - 1))


def padding(input_shape: tuple[int, ...]) -> int:
    """Pixels of padding on each side: the usual 4 for images of 28 or 32, fewer for smaller ones."""
    return min(MOST_PADDING, min(input_shape[-2:]) // 7)


def crop_and_flip(images: Tensor, index: Tensor, draws: Tensor) -> Tensor:
    """Pad the chosen images with zeros, crop them to their old size, flip some.

    Nothing is padded: each pixel wanted is looked up in the original, and is 0 where it would lie outside.

    Args:
        images: All images, (samples, channels, height, width).
        index: Which of them make the batch.
        draws: For each of these, the row and the column of the padded image at which the crop begins (0 to twice the
            padding), and 1 if it is flipped left to right.
    """
    height, width = images.shape[-2:]
    pad = padding(tuple(images.shape))
    rows = torch.arange(height, device=images.device) + draws[:, :1] - pad
    columns = torch.arange(width, device=images.device) + draws[:, 1:2] - pad
    columns = torch.where(draws[:, 2:] == 1, columns.flip(1), columns)
    inside = _within(rows, height)[:, None, :, None] & _within(columns, width)[:, None, None, :]
    pixels = images[
        index[:, None, None, None],
        torch.arange(images.shape[1], device=images.device)[:, None, None],
        rows.clamp(0, height - 1)[:, None, :, None],
        columns.clamp(0, width - 1)[:, None, None, :],
    ]
    return pixels * inside


def _within(places: Tensor, size: int) -> Tensor:
    return (places >= 0) & (places < size)
