"""The normalizations in numpy, written from the papers' formulas, one channel and one statistic at a time.

Inputs are (samples, channels, positions). A function takes the running statistics as a dict of lists and returns the
normalized input, before γ and β, together with the statistics that the batch itself would enter them with.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Running = dict[str, Array]
EPS = 1e-5


def by_channel(x: Array, function: Any) -> tuple[Array, dict[str, Array]]:
    """Apply (values of a channel, channel) -> (normalized values, statistics) to each channel."""
    results = [function(x[:, c, :], c) for c in range(x.shape[1])]
    statistics = {name: np.array([s[name] for _, s in results]) for name in results[0][1]}
    return np.stack([y for y, _ in results], axis=1), statistics


def biased(values: Array) -> float:
    return float(np.sum((values - np.mean(values)) ** 2) / values.size)


def unbiased(values: Array) -> float:
    return float(np.sum((values - np.mean(values)) ** 2) / (values.size - 1))


def mean_and_variance(values: Array) -> dict[str, float]:
    return {"running_mean": float(values.mean()), "running_var": unbiased(values)}


def batchnorm(x: Array, running: Running, step: int) -> tuple[Array, Running]:
    """Ioffe and Szegedy 2015."""
    return by_channel(x, lambda v, c: ((v - v.mean()) / np.sqrt(biased(v) + EPS), mean_and_variance(v)))


def batchnorm_eval(x: Array, running: Running) -> Array:
    return np.stack(
        [(x[:, c] - running["running_mean"][c]) / np.sqrt(running["running_var"][c] + EPS) for c in range(x.shape[1])],
        axis=1,
    )


def renorm(
    x: Array, running: Running, step: int, r_max: float, d_max: float, warmup: int, r_steps: int, d_steps: int
) -> tuple[Array, Running]:
    """Ioffe 2017, Algorithm 1, with limits that stay at 1 and 0 in the warm-up and then grow in a straight line."""
    r_limit = np.interp(step, [warmup, r_steps], [1.0, r_max])
    d_limit = np.interp(step, [warmup, d_steps], [0.0, d_max])

    def channel(v: Array, c: int) -> tuple[Array, dict[str, float]]:
        sigma_batch, sigma = np.sqrt(biased(v) + EPS), np.sqrt(running["running_var"][c] + EPS)
        r = min(max(sigma_batch / sigma, 1 / r_limit), r_limit)
        d = min(max((v.mean() - running["running_mean"][c]) / sigma, -d_limit), d_limit)
        return (v - v.mean()) / sigma_batch * r + d, mean_and_variance(v)

    return by_channel(x, channel)


def ghosts(samples: int, size: int) -> list[range]:
    """The samples of each ghost; what is left over joins the last."""
    count = max(samples // size, 1)
    starts = [i * size for i in range(count)]
    return [range(start, end) for start, end in zip(starts, [*starts[1:], samples], strict=True)]


def ghost(x: Array, running: Running, step: int, ghost_size: int) -> tuple[Array, Running]:
    """Hoffer et al. 2017, with the running statistics of the whole batch."""

    def channel(v: Array, c: int) -> tuple[Array, dict[str, float]]:
        y = np.empty_like(v)
        for part in ghosts(len(v), ghost_size):
            y[part] = (v[part] - v[part].mean()) / np.sqrt(biased(v[part]) + EPS)
        return y, mean_and_variance(v)

    return by_channel(x, channel)


def four_things(x: Array, running: Running, step: int, ghost_size: int, group_size: int) -> tuple[Array, Running]:
    """Summers and Dinneen 2020: statistics over a ghost's samples and a group's channels."""
    y = np.empty_like(x)
    for part in ghosts(len(x), ghost_size):
        for first in range(0, x.shape[1], group_size):
            block = x[part, first : first + group_size]
            y[part, first : first + group_size] = (block - block.mean()) / np.sqrt(biased(block) + EPS)
    moments = {"running_mean": x.mean(axis=(0, 2)), "running_square": (x**2).mean(axis=(0, 2))}
    return y, moments


def four_things_eval(x: Array, running: Running, group_size: int, alpha: float) -> Array:
    """Summers and Dinneen 2020: an example's moments mixed with the running ones."""
    y = np.empty_like(x)
    for i in range(len(x)):
        for first in range(0, x.shape[1], group_size):
            group = slice(first, first + group_size)
            block = x[i, group]
            mean = alpha * block.mean() + (1 - alpha) * running["running_mean"][group].mean()
            square = alpha * (block**2).mean() + (1 - alpha) * running["running_square"][group].mean()
            y[i, group] = (block - mean) / np.sqrt(square - mean**2 + EPS)
    return y


def lp(x: Array, running: Running, step: int, p: float) -> tuple[Array, Running]:
    """Landscape paper, Sec. 3.3: the norm of the raw activations."""

    def channel(v: Array, c: int) -> tuple[Array, dict[str, float]]:
        norm = {1: np.abs(v).mean(), 2: np.sqrt((v**2).mean()), np.inf: np.abs(v).max()}[p]
        return (v - v.mean()) / (norm + EPS), {"running_mean": v.mean(), "running_norm": norm}

    return by_channel(x, channel)


def lp_eval(x: Array, running: Running) -> Array:
    return (x - running["running_mean"][:, None]) / (running["running_norm"][:, None] + EPS)


def mean_only(x: Array, running: Running, step: int) -> tuple[Array, Running]:
    """Salimans and Kingma 2016, Sec. 4."""
    return by_channel(x, lambda v, c: (v - v.mean(), {"running_mean": v.mean()}))


def mean_only_eval(x: Array, running: Running) -> Array:
    return x - running["running_mean"][:, None]


def variance_only(x: Array, running: Running, step: int) -> tuple[Array, Running]:
    """Regularization paper, Sec. 5."""
    return by_channel(x, lambda v, c: (v / np.sqrt(biased(v) + EPS), {"running_var": unbiased(v)}))


def variance_only_eval(x: Array, running: Running) -> Array:
    return x / np.sqrt(running["running_var"][:, None] + EPS)
