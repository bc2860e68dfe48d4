"""The properties of a layer's parameters that mean field needs."""

import math

import torch
from torch import Tensor


def finite_values(name: str, parameter: Tensor) -> Tensor:
    """A parameter's values.

    Raises:
        ValueError: If there are none, or one is not finite.
    """
    values = parameter.detach().double()
    if not values.numel():
        raise ValueError(
            f"model has a {name} of shape {tuple(values.shape)}, without a value; a width must be 1 or more."
        )
    if values.is_meta or not torch.isfinite(values).all():
        raise ValueError(f"model has values in {name} that are not finite or not there; nothing can be predicted.")
    return values


def significant_mean(values: Tensor) -> float:
    """The mean, or 0 if a random sample of mean 0 could have it by chance."""
    mean = float(values.mean())
    noise = float(values.std()) / math.sqrt(values.numel()) if values.numel() > 1 else 0.0
    return mean if abs(mean) > 5 * noise else 0.0
