"""What a data set is, once it has been read."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 4096  # samples whose squares are held in memory at a time


@dataclass(frozen=True, slots=True)
class Split:
    """One part of a data set: inputs and targets, row by row."""

    inputs: Tensor
    targets: Tensor

    def __post_init__(self) -> None:
        """Refuse inputs and targets of different lengths."""
        if len(self.inputs) != len(self.targets):
            raise ValueError(f"A split needs a target for each input, not {len(self.targets)} for {len(self.inputs)}.")

    def __len__(self) -> int:
        """The number of samples."""
        return len(self.targets)

    def to(self, device: torch.device | str) -> "Split":
        """The same samples on a device; nothing is copied if they are there already."""
        return Split(self.inputs.to(device), self.targets.to(device))

    def take(self, index: Tensor) -> "Split":
        """The samples with these numbers, in this order."""
        return Split(self.inputs[index], self.targets[index])


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """A data set that fits into memory.

    Attributes:
        name: One of `trimtab.data.DATASETS`.
        train: What to train (and validate) on; images are uint8 of shape (samples, channels, height, width).
        test: What to test on.
        classes: The number of classes, 0 for regression.
        scale: inputs / scale is on the scale [0, 1]; 1.0 if the inputs are floating point numbers already.
        mean: Mean of each channel of the train split (of each feature, for vectors), after division by `scale`.
        std: Standard deviation likewise, over all samples and positions (divided by their number, not one less).
        flips: Whether a mirrored image keeps its class, so that augmentation may flip it.
    """

    name: str
    train: Split
    test: Split
    classes: int
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    flips: bool = False

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input, as a network gets it."""
        return tuple(self.train.inputs.shape[1:])

    def with_validation(self, size: int, seed: int | None = None) -> tuple[Split, Split]:
        """Part the train split into one to train on and one to validate on.

        Args:
            size: How many samples to validate on; 0 leaves all for training.
            seed: None validates on the last `size` samples in the data set's own order, in which the classes
                are mixed; a number chooses them at random, the same ones for the same number.
        """
        count = len(self.train)
        if not 0 <= size < count:
            raise ValueError(f"The validation size must be from 0 to {count - 1} for {self.name}, not {size}.")
        if seed is None:
            order = torch.arange(count)
        else:
            order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
        rest, validation = order.tensor_split([count - size])
        return self.train.take(rest), self.train.take(validation)


def channel_statistics(inputs: Tensor, scale: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of inputs / scale for each channel (dimension 1).

    Whole numbers are summed as such, so that the result does not depend on the order of the samples.
    """
    exact = torch.float64 if inputs.is_floating_point() else torch.int64
    flat = inputs.flatten(2) if inputs.dim() > 2 else inputs.unsqueeze(2)
    count = flat.shape[0] * flat.shape[2]
    first, second = torch.zeros(2, flat.shape[1], dtype=exact)
    for chunk in flat.split(CHUNK):
        wide = chunk.to(exact if inputs.is_floating_point() else torch.int32)  # 255² fits, and is half the memory
        first += wide.sum((0, 2), dtype=exact)
        second += wide.square().sum((0, 2), dtype=exact)
    pairs = list(zip(first.tolist(), second.tolist(), strict=True))
    mean = tuple(one / (count * scale) for one, _ in pairs)
    std = tuple(math.sqrt(max(count * two - one * one, 0)) / (count * scale) for one, two in pairs)
    return mean, std
