"""Synthetic data."""

import torch
from torch import Tensor

from trimtab.data.dataset import Dataset, Split, channel_statistics


def gaussian(samples: int = 1000, dimensions: int = 10, seed: int = 0) -> Dataset:
    """Regression for the deep linear network (landscape, appendix A): x ~ N(0, I), target A x, A i.i.d. N(0, 1).

    The paper has 1000 samples of 10 dimensions and trains on all of them; the test split is as many new samples under
    the same A. Network and targets have no noise: a loss of 0 can be reached.

    Args:
        samples: How many to train on, and how many to test on.
        dimensions: Of inputs and of targets.
        seed: Draws A and the samples.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(rows: int) -> Tensor:
        return torch.randn(rows, dimensions, generator=generator)

    matrix = normal(dimensions)
    train, test = (Split(inputs, inputs @ matrix.T) for inputs in (normal(samples), normal(samples)))
    mean, std = channel_statistics(train.inputs, 1.0)
    return Dataset(name="gaussian", train=train, test=test, classes=0, scale=1.0, mean=mean, std=std)
