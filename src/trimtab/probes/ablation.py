"""Accuracy while more and more units are switched off."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from trimtab.probes import options
from trimtab.probes.channels import channel_dimension, default_layer, is_norm
from trimtab.probes.isolation import IsolatedModel
from trimtab.probes.labelled import AccuracyProbe
from trimtab.probes.layer_calls import observe_calls
from trimtab.probes.layer_selection import select_layers
from trimtab.probes.result import CannotMeasure, LossFunction, Result

SHARES = tuple(n / 10 for n in range(1, 11))
_NOT_UNITWISE = (nn.Softmax, nn.LogSoftmax, nn.Softmin, nn.Softmax2d, nn.MultiheadAttention)
Key = tuple[str, int]
"""A module's name, and the number of its call within a forward."""


@dataclass(frozen=True, kw_only=True)
class AblationResult(Result):
    """Accuracy by the share of units that are switched off.

    Attributes:
        accuracy: With all units.
        units: How many there are.
        shares: Shares of the units that are switched off.
        accuracies: With each of these, one row for each random order.
        halved: Of each order, the share at which accuracy first is half of `accuracy` or less, on the straight line
            between the shares measured; NaN if it never is.
        halved_at: Their median; NaN if half of the orders or more have none.
        area: The mean over orders of the area below accuracy over `accuracy`, from no unit to the largest share,
            divided by that share: 1 if nothing is lost.
        samples: How many samples were measured.
    """

    accuracy: float = math.nan
    units: int = 0
    shares: tuple[float, ...] = ()
    accuracies: tuple[tuple[float, ...], ...] = ()
    halved: tuple[float, ...] = ()
    halved_at: float = math.nan
    area: float = math.nan
    samples: int = 0


@dataclass(frozen=True, kw_only=True)
class Ablation(AccuracyProbe[AblationResult]):
    """Accuracy while units are switched off in random order (landscape, Sec. 5, on Morcos et al., 2018).

    A unit is a feature, or a feature map with all its positions. It is switched off by putting 0 in the place of its
    output, after the activation. All units of all chosen layers are put in one random order, and the first of them are
    switched off, more and more. All in evaluation mode by default.

    It costs a forward for each share and order, and one.

    Args:
        layers: Patterns of modules' names whose outputs' channels are the units; none: all activation modules of torch,
            or, without these, all dense and convolution layers but the last.
        shares: The shares of the units that are switched off.
        orders: How many random orders.
        seed: Of the orders.
        data: See `AccuracyProbe`.
        pair: See `AccuracyProbe`.
        forward: See `AccuracyProbe`.
        statistics: See `AccuracyProbe`.
    """

    name: ClassVar[str] = "ablation"
    result: ClassVar[type[Result]] = AblationResult

    layers: Sequence[str] = ()
    shares: Sequence[float] = SHARES
    orders: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: If an option is invalid.
        """
        super().__post_init__()
        options.check_strings(self, "layers")
        options.check_increasing(self, "shares", "numbers above 0, up to 1", lambda each: 0 < each <= 1)
        if not self.shares:
            raise ValueError("shares must be one number or more, not none.")
        options.check_whole(self, "orders", minimum=1)
        options.check_seed(self)

    def measure(self, model: nn.Module, loss_fn: LossFunction, batch: Any) -> AblationResult:
        """Switch off and count, or raise CannotMeasure."""
        inputs, labels = self.labelled(batch)
        isolated = IsolatedModel(model, statistics=self.statistics)

        def work() -> AblationResult:
            layers = self._selected(isolated.model)
            channels: dict[Key, int] = {}
            with _outputs(layers, lambda key, y, d: _count(channels, key, y.shape[d])):
                clean = self.accuracy(isolated, inputs, labels)
            if not channels:
                raise CannotMeasure("No layer was called whose units could be switched off.")
            units = sum(channels.values())
            rows = []
            for number in range(self.orders):
                order = torch.randperm(units, generator=torch.Generator().manual_seed((self.seed + number) % 2**64))
                row = []
                for share in self.shares:
                    masks = _masks(channels, order[: round(share * units)])
                    with _outputs(layers, lambda key, y, d, masks=masks: _masked(y, masks[key], d)):  # type: ignore[misc]
                        row.append(self.accuracy(isolated, inputs, labels))
                rows.append(tuple(row))
            return self._result(clean, units, rows, len(labels))

        return isolated.run(work)

    def _result(self, clean: float, units: int, rows: Sequence[tuple[float, ...]], samples: int) -> AblationResult:
        shares = tuple(float(share) for share in self.shares)
        halved = [_halved(clean, shares, row) for row in rows]
        known = [one for one in halved if math.isfinite(one)]
        areas = [_area((0.0, *shares), (clean, *row)) / (clean * shares[-1]) for row in rows] if clean else []
        return AblationResult(
            accuracy=clean,
            units=units,
            shares=shares,
            accuracies=tuple(rows),
            halved=tuple(halved),
            halved_at=float(np.median(known)) if 2 * len(known) > len(halved) else math.nan,
            area=float(np.mean(areas)) if areas else math.nan,
            samples=samples,
        )

    def _selected(self, model: nn.Module) -> dict[str, nn.Module]:
        modules = dict(model.named_modules())
        if self.layers:
            names = list(modules)
        else:
            names = [name for name, module in modules.items() if _is_activation(module)]
            names = names or [n for n, module in modules.items() if default_layer(module) and not is_norm(module)][:-1]
        if not names:
            raise CannotMeasure("The model has no activation module and no hidden layer; name some in `layers`.")
        return {name: modules[name] for name in select_layers(names, self.layers, None)}


@contextmanager
def _outputs(layers: dict[str, nn.Module], look: Callable[[Key, Tensor, int], Tensor | None]) -> Iterator[None]:
    """Call a function with each output of these layers, counted by call, and with the dimension of its channels."""
    calls: dict[str, int] = {}

    def see(name: str, module: nn.Module, x: Tensor, y: Tensor) -> Tensor | None:
        number = calls.setdefault(name, 0)
        calls[name] += 1
        return look((name, number), y, channel_dimension(module, y)) if y.ndim > 1 else None

    with observe_calls(layers, see):
        yield


def _count(channels: dict[Key, int], key: Key, count: int) -> None:
    channels[key] = count


def _masks(channels: dict[Key, int], off: Tensor) -> dict[Key, Tensor]:
    """1 for units that stay, by layer, where all units of all layers are numbered in order."""
    kept = torch.ones(sum(channels.values()))
    kept[off] = 0
    return dict(zip(channels, kept.split(list(channels.values())), strict=True))


def _masked(y: Tensor, mask: Tensor, dimension: int) -> Tensor:
    shape = [1] * y.ndim
    shape[dimension] = -1
    # Not a product, which would leave infinities and NaN.
    return torch.where(mask.to(y.device).view(shape) > 0, y, torch.zeros((), dtype=y.dtype, device=y.device))


def _halved(clean: float, shares: Sequence[float], row: Sequence[float]) -> float:
    """Where the curve first is at half of its start or below."""
    points = [(0.0, clean), *zip(shares, row, strict=True)]
    for (before, high), (after, low) in pairwise(points):
        if low <= clean / 2 < high:
            return before + (after - before) * (high - clean / 2) / (high - low)
    return math.nan


def _area(x: Sequence[float], y: Sequence[float]) -> float:
    """Below the straight lines between points."""
    return sum((b - a) * (c + d) / 2 for (a, c), (b, d) in pairwise(zip(x, y, strict=True)))


def _is_activation(module: nn.Module) -> bool:
    own = type(module).__module__ == nn.ReLU.__module__
    return own and not isinstance(module, _NOT_UNITWISE)
