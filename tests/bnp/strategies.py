"""Layers, inputs and options, drawn by Hypothesis."""

from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


@st.composite
def options(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "rho": draw(st.sampled_from([0.0, 0.5, 0.99])),
        "eps1": draw(st.sampled_from([0.0, 1e-2])),
        "eps2": draw(st.sampled_from([1e-4, 1e-1])),
        "statistics": draw(st.sampled_from(["running", "batch"])),
        "debias": draw(st.booleans()),
        "spatial": draw(st.sampled_from(["channel", "site"])),
        "tokens": draw(st.sampled_from(["positions", "samples"])),
        "no_bias": draw(st.sampled_from(["second_moment", "variance"])),
        "fast": draw(st.booleans()),
    }


@st.composite
def linear_case(draw: st.DrawFn) -> tuple[nn.Module, list[list[tuple[int, ...]]]]:
    """A Linear layer and, step by step, the shapes of its inputs."""
    features = draw(st.integers(1, 5))
    layer = nn.Linear(features, draw(st.integers(1, 3)), bias=draw(st.booleans()), dtype=torch.float64)
    extra = draw(st.integers(-1, 2))
    if extra == -1:
        return layer, _steps(draw, st.just((features,)))
    extent = st.tuples(*[st.integers(1, 3)] * extra)
    shape = st.tuples(st.integers(1, 4), extent).map(lambda s: (s[0], *s[1], features))
    return layer, _steps(draw, shape)


@st.composite
def convolution_case(draw: st.DrawFn, transposed: bool) -> tuple[nn.Module, list[list[tuple[int, ...]]]]:
    """A convolution, transposed or not, and, step by step, the shapes of its inputs."""
    space = draw(st.integers(1, 3))
    small = st.integers(1, 3 if space < 3 else 2)
    groups = draw(st.integers(1, 3))
    per_group = draw(st.integers(1, 2))
    out_per_group = draw(st.integers(1, 2))
    kernel = tuple(draw(small) for _ in range(space))
    dilation = tuple(draw(st.integers(1, 2)) for _ in range(space))
    settings: dict[str, Any] = {
        "kernel_size": kernel,
        "dilation": dilation,
        "groups": groups,
        "bias": draw(st.booleans()),
        "dtype": torch.float64,
    }
    if transposed:
        stride = tuple(draw(small) for _ in range(space))
        # Padding up to half of the kernel, so that no output is smaller than its input.
        padding = tuple(draw(st.integers(0, d * (k - 1) // 2)) for k, d in zip(kernel, dilation, strict=True))
        extra = tuple(draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True))
        settings |= {"stride": stride, "padding": padding, "output_padding": extra}
        layer = TRANSPOSED[space](groups * per_group, groups * out_per_group, **settings)
        size = tuple(draw(st.integers(1, 3)) for _ in range(space))
    else:
        settings["padding_mode"] = draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"]))
        kind = draw(st.sampled_from(["numbers", "same", "valid"]))
        if kind == "numbers":
            settings["stride"] = tuple(draw(small) for _ in range(space))
            settings["padding"] = tuple(draw(st.integers(0, 2)) for _ in range(space))
        else:
            settings["padding"] = kind
        layer = CONVOLUTIONS[space](groups * per_group, groups * out_per_group, **settings)
        # Large enough for the kernel and for any padding mode.
        least = [max(d * (k - 1) + 1, 4 if space < 3 else 3) for k, d in zip(kernel, dilation, strict=True)]
        size = tuple(draw(st.integers(n, n + 1)) for n in least)
    channels = groups * per_group
    if draw(st.booleans()):
        return layer, _steps(draw, st.just((channels, *size)))
    return layer, _steps(draw, st.integers(1, 3).map(lambda n: (n, channels, *size)))


def _steps(draw: st.DrawFn, shape: st.SearchStrategy[tuple[int, ...]]) -> list[list[tuple[int, ...]]]:
    return draw(st.lists(st.lists(shape, min_size=1, max_size=2), min_size=1, max_size=3))


def tensor(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Inputs whose columns have a mean and a spread of their own."""
    return 0.5 + 2 * torch.randn(shape, generator=generator, dtype=torch.float64)
