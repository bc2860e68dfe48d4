"""One image file, decoded and cropped as is usual for ImageNet."""

import math

import numpy as np
import torch
from torch import Tensor

from trimtab.data.errors import DataError, missing_package

Box = tuple[float, float, float, float]

AREA = (0.08, 1.0)  # of the image, in a random crop
RATIO = (3 / 4, 4 / 3)  # width to height
ATTEMPTS = 10
MIDDLE = 224 / 256  # of the shorter side: the image is resized to 256, and 224 are cropped from its middle


def decode(path: str, side: int, seed: int | None) -> Tensor:
    """An image as uint8 of shape (3, side, side).

    Args:
        path: The file.
        side: Height and width of the result.
        seed: Of the random crop and flip; None takes the middle.
    """
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise missing_package("imagefolder", "Pillow") from error

    try:
        with Image.open(path) as file:
            image = file.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{path} cannot be decoded: {error}.") from error
    flip = False
    if seed is None:
        box = middle(image.width, image.height)
    else:
        generator = torch.Generator().manual_seed(seed)
        flip = torch.rand((), generator=generator).item() < 0.5
        box = random_box(image.width, image.height, generator)
    pixels = np.asarray(image.resize((side, side), Image.Resampling.BILINEAR, box=box))
    tensor = torch.from_numpy(pixels.copy()).permute(2, 0, 1).contiguous()
    return tensor.flip(2) if flip else tensor


def middle(width: int, height: int) -> Box:
    """The square in the middle that is left when the shorter side is resized to 256 and 224 are cropped."""
    side = MIDDLE * min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def random_box(width: int, height: int, generator: torch.Generator) -> Box:
    """A crop of random area and shape; the middle if none of ten drawn fits into the image."""
    low, high = math.log(RATIO[0]), math.log(RATIO[1])
    for area, shape, x, y in torch.rand(ATTEMPTS, 4, generator=generator, dtype=torch.float64).tolist():
        size = width * height * (AREA[0] + area * (AREA[1] - AREA[0]))
        ratio = math.exp(low + shape * (high - low))
        w, h = round(math.sqrt(size * ratio)), round(math.sqrt(size / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(x * (width - w + 1)), int(y * (height - h + 1))
            return left, top, left + w, top + h
    return middle(width, height)
