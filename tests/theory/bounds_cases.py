"""Inputs for the theorems: Hypothesis draws shapes, scales and a seed, numpy the values."""

import numpy as np
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]
SEEDS = st.integers(0, 2**32 - 1)


def generator(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


@st.composite
def batches(draw: st.DrawFn, tall: bool = True, width: int = 6) -> Array:
    """Inputs H of a layer, features of unlike mean and scale; with `tall`, N ≥ n + 2, so that Ĥ has full rank."""
    n = draw(st.integers(1, width))
    samples = draw(st.integers(n + 2, n + 12)) if tall else draw(st.integers(2, n + 1))
    spread, shift = draw(st.floats(0, 1.5)), draw(st.floats(0, 5))
    rng = generator(draw(SEEDS))
    return rng.normal(size=(samples, n)) * np.exp(spread * rng.normal(size=n)) + shift * rng.normal(size=n)


@st.composite
def units(draw: st.DrawFn) -> tuple[Array, float, Array, Array]:
    """Activations, γ, gradient and Hessian of one unit."""
    rng, size = generator(draw(SEEDS)), draw(st.integers(3, 9))
    half = rng.normal(size=(size, size)) * draw(st.floats(0, 2))
    hessian = half @ half.T if draw(st.booleans()) else half + half.T
    activations = draw(st.floats(0.2, 5)) * rng.normal(size=size) + draw(st.floats(-3, 3))
    return activations, draw(st.floats(0.2, 3)), rng.normal(size=size), hessian


def tensor(values: Array | float) -> Tensor:
    return torch.as_tensor(np.asarray(values), dtype=torch.float64)
