"""The embedded default: 1797 real images of handwritten digits that come with scikit-learn."""

from functools import cache

import torch

from trimtab.data.dataset import Dataset, Split, channel_statistics
from trimtab.data.errors import missing_package

TEST, SCALE = 400, 16.0


@cache
def load_digits() -> Dataset:
    """The digits as 1×8×8 images, 1397 to train and validate on and 400 to test.

    They are mixed once and for all, so that every run sees the same parts; scikit-learn has them writer by writer.
    """
    try:
        from sklearn import datasets
    except ModuleNotFoundError as error:
        raise missing_package("digits", "scikit-learn") from error

    raw = datasets.load_digits()
    images = torch.tensor(raw.images, dtype=torch.uint8).unsqueeze(1)
    targets = torch.tensor(raw.target, dtype=torch.int64)
    order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(0))
    train, test = (Split(images[part], targets[part]) for part in order.tensor_split([len(order) - TEST]))
    mean, std = channel_statistics(train.inputs, SCALE)
    return Dataset(name="digits", train=train, test=test, classes=10, scale=SCALE, mean=mean, std=std)
