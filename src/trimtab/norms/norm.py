"""A normalization by its name, with its settings: what a network is built with."""

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, asdict, dataclass, replace
from typing import Any, Self

import torch
from torch import nn
from torch.nn.utils import parametrizations

from trimtab.nearest import nearest
from trimtab.norms.checks import check_flags, check_numbers, check_whole
from trimtab.norms.ghost import GHOST_SIZE, FourThingsBatchNorm, GhostBatchNorm
from trimtab.norms.group import GroupNorm
from trimtab.norms.noisy import Noise, NoisyBatchNorm, StopGradientBatchNorm
from trimtab.norms.partial import LpNorm, MeanOnlyBatchNorm, VarianceOnlyBatchNorm
from trimtab.norms.renorm import BatchRenorm, RenormLimits

NORMS: dict[str, str] = {
    "none": "no normalization",
    "bn": "BatchNorm",
    "ln": "LayerNorm, over all channels and positions of a sample",
    "gn": "GroupNorm, over groups of channels of a sample",
    "in": "InstanceNorm, over the positions of each channel of a sample",
    "wn": "WeightNorm: each weight vector as a length times a direction",
    "brn": "Batch Renormalization, corrected towards the running statistics",
    "ghost": "Ghost BatchNorm, within sub-batches",
    "bn4": "BatchNorm with the four improvements of Summers and Dinneen",
    "noisy-bn": "BatchNorm followed by noise that changes from step to step",
    "noise-only": "that noise alone, without normalization",
    "l1": "mean removed, divided by the mean of absolute values",
    "l2": "mean removed, divided by the root of the mean square",
    "linf": "mean removed, divided by the largest absolute value",
    "mean-bn": "BatchNorm's mean only",
    "var-bn": "BatchNorm's variance only",
    "wn+mean-bn": "WeightNorm and BatchNorm's mean only",
    "wn+var-bn": "WeightNorm and BatchNorm's variance only",
    "bn-stopgrad": "BatchNorm whose gradient does not pass through its statistics",
}

# Ours that differ from each other by their class, or by one setting, alone.
_PLAIN: dict[str, tuple[Callable[..., nn.Module], dict[str, Any]]] = {
    "brn": (BatchRenorm, {}),
    "noisy-bn": (NoisyBatchNorm, {}),
    "l1": (LpNorm, {"p": 1}),
    "l2": (LpNorm, {"p": 2}),
    "linf": (LpNorm, {"p": math.inf}),
    "mean-bn": (MeanOnlyBatchNorm, {}),
    "var-bn": (VarianceOnlyBatchNorm, {}),
    "wn+var-bn": (VarianceOnlyBatchNorm, {}),
    "bn-stopgrad": (StopGradientBatchNorm, {}),
}
# Those whose output a constant added to a channel does not change, so that a bias before them does nothing. The ℓp
# norms are not among them: they remove the mean, but divide by the norm of what still has it.
_TAKE_UP_A_BIAS = {"bn", "in", "brn", "ghost", "noisy-bn", "mean-bn", "wn+mean-bn", "bn-stopgrad"}
WITHOUT_GAMMA = ("none", "noise-only")
WITHOUT_BETA = (*WITHOUT_GAMMA, "wn")
"""The norms that have no such parameter."""
_MAX_GROUPED_BATCH = 4
_GROUP_SIZE = 4
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@dataclass(frozen=True)
class Norm:
    """A normalization and its settings; `Norm("bn")`, or `Norm.parse("bn-pre")` from a name.

    Args:
        name: One of `NORMS`.
        before_activation: Whether it stands before the activation function; else it stands after it.
        gamma: Where each γ starts. For weight normalization, by how much the drawn weights' lengths are multiplied.
        fixed_gamma: Whether γ stays there.
        fixed_beta: Whether β stays at 0; not for norms without a β.
        group_size: Channels per group, for `gn` and `bn4`. None: 4, as the bnp paper has it, or the next larger number
            that divides the width; for `bn4` with ghosts of more than 4 samples, no grouping.
        ghost_size: Samples per sub-batch, for `ghost` and `bn4`. None: 16.
        zeta: The coefficient ζ of the penalty on γ; the training code passes it to `gamma_decay`.
        eps: Added to a divisor.
        momentum: The share of the new value in running averages.
        renorm: The limits of `brn` and their schedule. None: as published.
    """

    name: str = "none"
    _: KW_ONLY
    before_activation: bool = False
    gamma: float = 1.0
    fixed_gamma: bool = False
    fixed_beta: bool = False
    group_size: int | None = None
    ghost_size: int | None = None
    zeta: float = 0.0
    eps: float = 1e-5
    momentum: float = 0.1
    renorm: RenormLimits | None = None

    def __post_init__(self) -> None:
        """Check all fields; errors name the field."""
        if not isinstance(self.name, str) or self.name not in NORMS:
            raise ValueError(_unknown(self.name))
        check_numbers(gamma=self.gamma, zeta=self.zeta, eps=self.eps, momentum=self.momentum)
        check_flags(before_activation=self.before_activation, fixed_gamma=self.fixed_gamma, fixed_beta=self.fixed_beta)
        if self.fixed_beta and self.name in WITHOUT_BETA:
            raise ValueError(f"fixed_beta has no meaning for {self.name}, which has no β; leave it out.")
        if self.renorm is not None and self.name != "brn":
            raise ValueError(f"renorm has no meaning for {self.name}; it is for brn.")
        if not math.isfinite(self.gamma):
            raise ValueError(f"gamma must be a finite number, not {self.gamma}.")
        for field in ("zeta", "eps"):
            if not (getattr(self, field) >= 0 and math.isfinite(getattr(self, field))):
                raise ValueError(f"{field} must be a finite number, 0 or larger, not {getattr(self, field)}.")
        if not 0 <= self.momentum <= 1:
            raise ValueError(f"momentum must be in [0, 1], not {self.momentum}.")
        for field, names in (("group_size", ("gn", "bn4")), ("ghost_size", ("ghost", "bn4"))):
            size = getattr(self, field)
            if size is not None and self.name not in names:
                raise ValueError(f"{field} has no meaning for {self.name}; it is for {' and '.join(names)}.")
            if size is not None:
                check_whole(**{field: size})
        if self.name == "none" and (self.gamma != 1 or self.fixed_gamma or self.zeta):
            raise ValueError("Without a normalization there is no γ: leave out gamma, fixed_gamma and zeta.")

    @classmethod
    def parse(cls, norm: "str | Norm") -> "Norm":
        """A norm as it is, or by a name of `NORMS`; `-pre` after the name puts it before the activation."""
        if isinstance(norm, Norm):
            return norm
        name = norm.removesuffix("-pre") if isinstance(norm, str) else norm
        if not isinstance(name, str) or name not in NORMS:
            raise ValueError(_unknown(norm))
        return cls(name, before_activation=name != norm)

    def for_batch_size(self, batch_size: int) -> Self:
        """The settings that Summers and Dinneen recommend for this batch size; norms other than `bn4` stay as they are.

        `bn4` gets ghosts of at most 16 samples. Those of at most 4 are combined with groups of channels.
        """
        if self.name != "bn4" or self.ghost_size is not None:
            return self
        return replace(self, ghost_size=min(batch_size, GHOST_SIZE))

    @property
    def bias(self) -> bool:
        """Whether the layer before the norm needs a bias: not if the norm subtracts it again and has a β of its own."""
        takes_it_up = self.name in _TAKE_UP_A_BIAS or (self.name == "bn4" and not self._grouped)
        return not (self.before_activation and takes_it_up)

    def layer(self, width: int, space: int) -> nn.Module:
        """The normalization layer for so many features or channels and 0 to 3 spatial dimensions.

        It is `nn.Identity()` where the norm has no layer.
        """
        check_whole(width=width)
        if space not in (0, 1, 2, 3):
            raise ValueError(f"space must be 0 to 3 spatial dimensions, not {space}.")
        if self.name in ("none", "wn"):
            return nn.Identity()
        if self.name == "noise-only":
            return Noise()
        torchs = self._torchs_layer(width, space)
        return self._our_layer(width, space) if torchs is None else self._with_affine(torchs)

    def weight(self, layer: nn.Module) -> nn.Module:
        """The layer itself, or under weight normalization if the norm has it.

        The layer's weights must have been initialized: afterwards they are computed from length and direction, and
        writing into them does nothing. A norm has one γ. For `wn` and `wn+mean-bn` it is the length of the weights.
        For `wn+var-bn`, where dividing by the deviation undoes any length, it is that of the layer after it, and the
        length stays as it is.
        """
        if not self.name.startswith("wn"):
            return layer
        parametrizations.weight_norm(layer, dim=1 if isinstance(layer, _TRANSPOSED) else 0)
        length = layer.get_parameter("parametrizations.weight.original0")
        if self.name == "wn+var-bn":
            length.requires_grad_(False)
        else:
            with torch.no_grad():
                length.mul_(self.gamma)
            length.requires_grad_(not self.fixed_gamma)
        return layer

    def _torchs_layer(self, width: int, space: int) -> Any:
        """The layer of torch (or one close to it) for this norm; None if torch has none."""
        match self.name:
            case "bn":
                batch = (nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[space]
                return batch(width, eps=self.eps, momentum=self.momentum)
            case "ln" if space == 0:
                return nn.LayerNorm(width, eps=self.eps)
            case "ln":  # over channels and positions, with a γ and β per channel as all the others have
                return GroupNorm(1, width, eps=self.eps)
            case "gn":
                return GroupNorm(width // self._channels_per_group(width), width, eps=self.eps)
            case "in" if space == 0:
                raise ValueError(
                    "InstanceNorm needs positions to normalize over, which a dense layer has not; take ln."
                )
            case "in":
                instance = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)[space - 1]
                return instance(width, eps=self.eps, affine=True)
        return None

    def _our_layer(self, width: int, space: int) -> nn.Module:
        common: dict[str, Any] = {"space": space, "eps": self.eps, "momentum": self.momentum}
        common["fixed_beta"] = self.fixed_beta
        if self.name == "wn+mean-bn":  # its γ is the length of the weights
            return MeanOnlyBatchNorm(width, scale=False, **common)
        common |= {"gamma": self.gamma, "fixed_gamma": self.fixed_gamma}
        ghost_size = self.ghost_size or GHOST_SIZE
        if self.name == "ghost":
            return GhostBatchNorm(width, ghost_size=ghost_size, **common)
        if self.name == "bn4":
            group_size = self._channels_per_group(width) if self._grouped else 1
            return FourThingsBatchNorm(width, ghost_size=ghost_size, group_size=group_size, **common)
        make, settings = _PLAIN[self.name]
        if self.renorm is not None:
            settings = asdict(self.renorm)
        return make(width, **settings, **common)

    def _with_affine(self, layer: Any) -> nn.Module:
        nn.init.constant_(layer.weight, self.gamma)
        layer.weight.requires_grad_(not self.fixed_gamma)
        layer.bias.requires_grad_(not self.fixed_beta)
        assert isinstance(layer, nn.Module)
        return layer

    @property
    def _grouped(self) -> bool:
        """Whether `bn4` is combined with groups of channels."""
        if self.group_size is not None:
            return self.group_size > 1
        return (self.ghost_size or GHOST_SIZE) <= _MAX_GROUPED_BATCH

    def _channels_per_group(self, width: int) -> int:
        size = self.group_size or next((size for size in range(_GROUP_SIZE, width) if width % size == 0), width)
        if width % size:
            raise ValueError(f"group_size must divide the {width} channels of the layer, which {size} does not.")
        return size


def _unknown(name: object) -> str:
    near = nearest(name, NORMS, cutoff=0.5)  # the names are short
    guess = f"did you mean {near!r}?" if near else f"known are {', '.join(NORMS)}."
    return f"There is no normalization {name!r}; {guess}"
