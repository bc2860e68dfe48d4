"""The inputs of one layer: the rows of Ĥ, their statistics, and the change of variables that BNP makes."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from trimtab import _torch
from trimtab.bnp.algorithm import transform
from trimtab.bnp.algorithm.moments import Moments, Rows
from trimtab.bnp.layers import LayerType
from trimtab.bnp.options import Options
from trimtab.probes.conditioning.patches import groups_of, row_count, rows_of
from trimtab.probes.conditioning.selection import NotMeasurable


def trained_bias(layer: nn.Module) -> bool:
    """Whether there is a bias that is trained, which takes up the centring."""
    bias = _torch.parameters_of(layer).get("bias")
    return bias is not None and bias.requires_grad


class LayerInputs:
    """Observes the calls of one layer, and copies the chosen rows of its inputs.

    Args:
        layer: A layer whose rows `patches` knows.
        kind: What BNP knows of its type.
        options: BNP's.
        groups: Of which groups of channels.
        chosen: Which rows, counted through all calls, in their order.
        shifted: Whether to add zeros to its outputs, to differentiate with respect to.

    Attributes:
        shifts: These zeros, for each call.
        eps: The precision of its inputs.
    """

    def __init__(
        self, layer: nn.Module, kind: LayerType, options: Options, groups: Iterable[int], chosen: Tensor, shifted: bool
    ) -> None:
        self.shifts: list[Tensor] = []
        self.eps = 0.0
        self._kind = kind
        self._options = options
        self._bias = trained_bias(layer)  # asked for now: during the run other tensors stand for the parameters
        self._chosen = chosen
        self._shifted = shifted
        self._parts: dict[int, list[Tensor]] = {group: [] for group in groups}
        self._rows: Rows | None = None
        self._count = 0

    def observe(self, name: str, layer: nn.Module, x: Tensor, y: Tensor) -> Tensor | None:
        """Look at one call; returns its output with the zeros added."""
        count = row_count(layer, y)
        within = (self._chosen >= self._count) & (self._chosen < self._count + count)
        chosen = self._chosen[within] - self._count
        self._count += count
        for group, parts in self._parts.items():
            parts.append(rows_of(layer, x, y, group, chosen))
        rows = self._kind.observe(layer, x, y, self._options).rows()
        self._rows = rows if self._rows is None else self._rows.merge(rows)
        self.eps = max(self.eps, float(torch.finfo(x.dtype).eps))
        if not self._shifted:
            return None
        self.shifts.append(torch.zeros_like(y, requires_grad=True))
        return y + self.shifts[-1]

    def matrix(self, group: int) -> Tensor:
        """The chosen rows of Ĥ, or of H if no bias is trained.

        Raises:
            NotMeasurable: If they are not finite.
        """
        rows = torch.cat(self._parts[group])
        if not bool(torch.isfinite(rows).all()):
            raise NotMeasurable("its inputs are not finite")
        return torch.cat([rows.new_ones(len(rows), 1), rows], 1) if self._bias else rows

    def moments(self) -> Moments:
        """Mean and variance of each column, of all rows."""
        assert self._rows is not None
        return self._rows.columns()

    def squared_norm(self, fan_in: int) -> float:
        """q², by which BNP divides, for so many weights of a unit."""
        assert self._rows is not None
        return float(transform.squared_norm(fan_in, self._rows.samples, self._rows.positions))


class ChangeOfVariables(NamedTuple):
    """ŵ = U D z for one output unit (bnp paper, eqs. 12 and 15).

    Attributes:
        mean: μ of each column; None if there is no bias, and so no U.
        sigma: σ̃ of each column.
    """

    mean: Tensor | None
    sigma: Tensor

    def centred(self, core: Tensor) -> Tensor:
        """A U, for a matrix A with the columns of Ĥ."""
        if self.mean is None:
            return core
        return torch.cat([core[:, :1], core[:, 1:] - core[:, :1] * self.mean], 1)

    def applied(self, core: Tensor) -> Tensor:
        """A U D."""
        return self.centred(core) * self._diagonal()

    def kappa(self) -> float:
        """κ(D)."""
        diagonal = self._diagonal()
        return float(diagonal.max() / diagonal.min())

    def _diagonal(self) -> Tensor:
        inverse = 1 / self.sigma
        return inverse if self.mean is None else torch.cat([inverse.new_ones(1), inverse])


def change_of_variables(layer: Any, group: int, mean: Tensor, variance: Tensor, options: Options) -> ChangeOfVariables:
    """The change of variables for the units of one group, from statistics as BNP keeps them.

    A column without variance, if ε₁ and ε₂ are 0, keeps its scale.

    Args:
        layer: The layer.
        group: The group's number.
        mean: Of each input, or of each input and kernel site; those of all groups in a row.
        variance: In the same shape.
        options: BNP's.
    """
    groups, bias = groups_of(layer), trained_bias(layer)
    sites = math.prod(getattr(layer, "kernel_size", (1,)))
    mean, variance = (t.reshape(groups, 1, t.shape[0] // groups, -1) for t in (mean, variance))
    if not bias and options.no_bias == "second_moment":
        variance = transform.second_moment(mean, variance)
    scale = transform.regularized(variance, options.eps1, options.eps2)
    scale = torch.where(scale > 0, scale, 1)
    mean, scale = (t[group, 0].expand(-1, sites).reshape(-1) for t in (mean, scale))
    return ChangeOfVariables(mean if bias else None, scale.sqrt())
