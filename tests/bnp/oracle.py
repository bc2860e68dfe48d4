"""BNP once more, slowly: dense matrices in numpy, written from the paper and not from our code.

The matrix 𝓗 of Lemma 8 is found by asking the layer itself: with a weight that is 1 in one place and 0 elsewhere,
its output is that place's column.
"""

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

Array = npt.NDArray[np.float64]


def is_transposed(layer: nn.Module) -> bool:
    return isinstance(layer, nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d)


def weights_by_group(layer: Any, weight: Tensor) -> Array:
    """(groups, outputs, columns), where the columns run over input channels and, fastest, over sites."""
    w = weight.detach().double().numpy()
    if isinstance(layer, nn.Linear):
        return w[None]
    groups = layer.groups
    if is_transposed(layer):
        per_group = np.split(w, groups, axis=0)
        return np.stack([np.swapaxes(p, 0, 1).reshape(p.shape[1], -1) for p in per_group])
    return np.stack([p.reshape(p.shape[0], -1) for p in np.split(w, groups, axis=0)])


def weight_from_groups(layer: Any, by_group: Array) -> Array:
    """The inverse of `weights_by_group`."""
    shape = tuple(layer.weight.shape)
    if isinstance(layer, nn.Linear):
        return by_group[0]
    if is_transposed(layer):
        inputs, outputs = shape[0] // layer.groups, shape[1]
        return np.concatenate([np.swapaxes(p.reshape(outputs, inputs, *shape[2:]), 0, 1) for p in by_group])
    return by_group.reshape(shape)


def batched(layer: Any, x: Tensor) -> Tensor:
    """With a batch dimension."""
    if isinstance(layer, nn.Linear):
        return x[None] if x.ndim == 1 else x
    return x[None] if x.ndim == len(layer.kernel_size) + 1 else x


@torch.no_grad()
def extended_matrix(layer: Any, x: Tensor) -> Array:
    """𝓗 of each group, (groups, rows, columns)."""
    x = batched(layer, x)
    probe = copy.deepcopy(layer)
    if isinstance(layer, nn.Linear):
        rows = x.reshape(-1, x.shape[-1]).double().numpy()
        return rows[None]
    if probe.bias is not None:
        probe.bias.zero_()
    groups = layer.groups
    outputs = layer.out_channels // groups
    inputs = layer.in_channels // groups
    columns: list[list[Array]] = [[] for _ in range(groups)]
    for channel in range(inputs):
        for site in np.ndindex(*layer.kernel_size):
            probe.weight.zero_()
            for g in range(groups):
                place = (g * inputs + channel, 0) if is_transposed(layer) else (g * outputs, channel)
                probe.weight[(*place, *site)] = 1
            y = probe(x)
            for g in range(groups):
                columns[g].append(y[:, g * outputs].reshape(-1).double().numpy())
    return np.stack([np.stack(c, axis=1) for c in columns])


def preconditioner(mean: Array, scale: Array) -> Array:
    """P = U D, dense, for one output unit."""
    n = len(mean)
    u = np.eye(n + 1)
    u[0, 1:] = -mean
    d = np.diag(np.concatenate([[1.0], 1 / np.sqrt(scale)]))
    return u @ d


class Reference:
    """One layer under BNP: Algorithm 2 or 3 and the choices of the specification, in float64."""

    def __init__(self, layer: nn.Module, **options: Any) -> None:
        self.layer: Any = layer
        self.rho = options.get("rho", 0.99)
        self.eps1 = options.get("eps1", 1e-2)
        self.eps2 = options.get("eps2", 1e-4)
        self.statistics = options.get("statistics", "running")
        self.debias = options.get("debias", False)
        self.spatial = options.get("spatial", "channel")
        self.tokens = options.get("tokens", "positions")
        self.no_bias = options.get("no_bias", "second_moment")
        self.t = 0
        self.mean: Array | float = 0.0
        self.variance: Array | float = 0.0 if self.debias else 1.0

    def running(self) -> tuple[Array | float, Array | float]:
        if not self.debias:
            return self.mean, self.variance
        if self.t == 0:
            return 0.0, 1.0
        return self.mean / (1 - self.rho**self.t), self.variance / (1 - self.rho**self.t)

    def batch(self, inputs: Sequence[Tensor]) -> tuple[Array, Array, int]:
        """Mean and variance of each column, all groups in a row, and how many rows they are of."""
        layer = self.layer
        inputs = [batched(layer, x) for x in inputs]
        if self.spatial == "site" and not isinstance(layer, nn.Linear):
            rows = np.concatenate([np.concatenate(list(extended_matrix(layer, x)), axis=1) for x in inputs])
            return rows.mean(0), rows.var(0), len(rows)
        if isinstance(layer, nn.Linear):
            rows = np.concatenate([x.detach().double().numpy().reshape(-1, x.shape[-1]) for x in inputs])
            sites = 1
        else:
            rows = np.concatenate(
                [np.moveaxis(x.detach().double().numpy(), 1, -1).reshape(-1, x.shape[1]) for x in inputs]
            )
            sites = math.prod(layer.kernel_size)
        mean, variance, count = rows.mean(0), rows.var(0), len(rows)
        if is_transposed(layer):
            positions = sum(layer(x)[:, 0].numel() for x in inputs)
            tau = min(1.0, count / positions)
            mean, variance = tau * mean, tau * (variance + mean**2) - tau**2 * mean**2
            count = max(count, positions)
        return np.repeat(mean, sites), np.repeat(variance, sites), count

    def step(self, inputs: Sequence[Tensor], weight_grad: Tensor, bias_grad: Tensor | None) -> tuple[Array, Any]:
        """The preconditioned gradients after one step over the forwards with these inputs."""
        mean_h, var_h, rows = self.batch(inputs)
        if rows == 1:
            before, _ = self.running()
            var_h = (mean_h - before) ** 2
        self.mean = self.rho * self.mean + (1 - self.rho) * mean_h
        self.variance = self.rho * self.variance + (1 - self.rho) * var_h
        self.t += 1
        mean, variance = self.running()
        if self.statistics == "batch" and rows > 1:
            mean, variance = mean_h, var_h

        samples = sum(batched(self.layer, x).shape[0] for x in inputs)
        if isinstance(self.layer, nn.Linear):
            positions = sum(batched(self.layer, x)[..., 0].numel() for x in inputs) / samples
            if self.tokens == "samples":
                samples, positions = int(samples * positions), 1
        else:
            positions = sum(self.layer(batched(self.layer, x))[:, 0].numel() for x in inputs) / samples

        by_group = weights_by_group(self.layer, weight_grad)
        groups, outputs, columns = by_group.shape
        q2 = max(columns / samples, math.sqrt(positions))
        mean_g = np.asarray(mean).reshape(groups, columns)
        variance_g = np.asarray(variance).reshape(groups, columns)
        new_weight = np.empty_like(by_group)
        new_bias = None if bias_grad is None else np.empty(groups * outputs)
        for g in range(groups):
            spread = variance_g[g]
            if bias_grad is None and self.no_bias == "second_moment":
                spread = spread + mean_g[g] ** 2
            scale = spread + self.eps1 * spread.max() + self.eps2
            matrix = preconditioner(mean_g[g], scale)
            matrix = matrix @ matrix.T / q2
            for i in range(outputs):
                if bias_grad is None or new_bias is None:
                    new_weight[g, i] = np.diag(1 / (q2 * scale)) @ by_group[g, i]
                else:
                    d = g * outputs + i
                    result = matrix @ np.concatenate([[float(bias_grad[d])], by_group[g, i]])
                    new_bias[d], new_weight[g, i] = result[0], result[1:]
        return weight_from_groups(self.layer, new_weight), new_bias
