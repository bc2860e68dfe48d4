"""The embedded default: 1797 real images of handwritten digits that come with scikit-learn."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from trimtab.data.dataset import Dataset, Split, channel_statistics
from trimtab.data.errors import missing_package

TEST, SCALE = 400, 16.0


@cache
def load_digits() -> Dataset:
    """The digits as 1×8×8 images, 1397 to train and validate on and 400 to test.

    They are mixed once and for all, so that every run sees the same parts; scikit-learn has them writer by writer.
    """
    numbers = _numbers()
    images = torch.tensor(numbers[:, :-1].reshape(-1, 1, 8, 8), dtype=torch.uint8)
    targets = torch.tensor(numbers[:, -1], dtype=torch.int64)
    order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(0))
    train, test = (Split(images[part], targets[part]) for part in order.tensor_split([len(order) - TEST]))
    mean, std = channel_statistics(train.inputs, SCALE)
    return Dataset(name="digits", train=train, test=test, classes=10, scale=SCALE, mean=mean, std=std)


def _numbers() -> np.ndarray:
    """A row for each digit: 64 pixels, then the class.

    They are read from scikit-learn's file, since to import scikit-learn takes longer than to train on them.
    """
    found = find_spec("sklearn")
    if found is None:
        raise missing_package("digits", "scikit-learn")
    for folder in found.submodule_search_locations or ():
        path = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if path.is_file():
            return np.loadtxt(path, delimiter=",")
    from sklearn import datasets

    raw = datasets.load_digits()
    return np.column_stack([raw.data, raw.target])
