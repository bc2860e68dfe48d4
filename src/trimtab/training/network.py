"""The network of a run and the format of its inputs: all that is needed to build it again without the data."""

import math
from dataclasses import dataclass, replace

from torch import nn

from trimtab.data import Dataset, ImageFolder, normalization
from trimtab.networks import build
from trimtab.norms import Norm, RenormLimits
from trimtab.records import shown
from trimtab.training.settings import Settings, resolved


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """The inputs and outputs that a network was made for.

    Attributes:
        input_shape: The shape of one input.
        outputs: The number of outputs.
        classes: As many as outputs, or 0 in regression.
        batch_size: Samples per step, on which some norms depend.
        scale: Inputs are divided by this first.
        mean: Then this is subtracted, channel by channel (feature by feature, for vectors), or pixel by pixel.
        std: Then they are divided by this.
        labels: The names of the classes, where the data set has them.
    """

    input_shape: tuple[int, ...]
    outputs: int
    classes: int
    batch_size: int
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse values that no data set has; a damaged file may have them."""
        for name in ("input_shape", "mean", "std", "labels"):
            if not isinstance(getattr(self, name), tuple):
                raise ValueError(f"its {name} is {shown(getattr(self, name))}")
        if not self.input_shape:
            raise ValueError("its input_shape has no dimensions")
        if not all(isinstance(label, str) for label in self.labels) or len(self.labels) not in (0, self.classes):
            raise ValueError(f"its labels are not {shown(self.classes)} names")
        counts = (self.outputs, self.classes, self.batch_size, *self.input_shape)
        if not all(isinstance(n, int) and n >= 0 for n in counts) or self.classes not in (0, self.outputs):
            raise ValueError(f"there are no inputs and outputs of these sizes: {counts}")
        numbers = (self.scale, *self.mean, *self.std)
        if not all(isinstance(x, float) and math.isfinite(x) for x in numbers) or 0 in (self.scale, *self.std):
            raise ValueError(f"inputs cannot be normalized with {numbers}")
        channels, pixels = self.input_shape[0], math.prod(self.input_shape)
        if len(self.mean) != len(self.std) or len(self.mean) not in (channels, pixels):
            raise ValueError(f"there must be a mean and a std for each of {channels} channels, or of {pixels} pixels")

    @classmethod
    def of(cls, dataset: Dataset, settings: Settings, batch_size: int) -> "Interface":
        """The interface of a run on a data set."""
        mean, std = normalization(dataset, resolved(settings.normalize))
        return cls(
            input_shape=dataset.input_shape,
            outputs=dataset.classes or dataset.train.targets.shape[1],
            classes=dataset.classes,
            batch_size=batch_size,
            scale=dataset.scale,
            mean=mean,
            std=std,
            labels=dataset.labels if isinstance(dataset, ImageFolder) else (),
        )


def network(settings: Settings, interface: Interface, steps: int | None = None) -> nn.Module:
    """The network of some settings, its weights drawn from torch's global generator.

    Args:
        settings: All settings, resolved.
        interface: What its inputs and outputs look like.
        steps: How long it will be trained, by which the schedule of Batch Renorm is scaled; None if it will not be.
    """
    named = Norm.parse(settings.parsed_method.norm)
    norm = replace(
        named,
        before_activation=settings.before_activation or named.before_activation,
        gamma=settings.gamma,
        fixed_gamma=settings.fixed_gamma,
        fixed_beta=settings.fixed_beta,
        group_size=settings.group_size,
        zeta=settings.zeta,
        momentum=resolved(settings.norm_momentum),
        eps=resolved(settings.norm_eps),
        renorm=renorm_limits(settings, steps) if named.name == "brn" else None,
    )
    return build(
        settings.network,
        norm.for_batch_size(interface.batch_size),
        input_shape=interface.input_shape,
        classes=interface.outputs,
        norm_layers=settings.norm_layers,
        init=settings.init,
        init_scale=resolved(settings.init_scale),
        conv_bias=settings.conv_bias,
        stem=resolved(settings.stem),
        dropout=settings.dropout,
        dropout_before=settings.dropout_before,
        sigma_w2=settings.sigma_w2,
        sigma_b2=settings.sigma_b2,
        activation=settings.activation,
        depth=settings.depth,
    )


def renorm_limits(settings: Settings, steps: int | None) -> RenormLimits:
    """Batch Renorm's limits in a run of so many steps; None is a long one.

    A part of the schedule that is not set gives way to what is set: it begins no later, and ends no earlier.
    """
    limits = RenormLimits(r_max=settings.r_max, d_max=settings.d_max)
    if steps is not None:
        limits = limits.scaled(steps)
    start, r_end, d_end = settings.renorm_start, settings.renorm_r_end, settings.renorm_d_end
    if start is None:
        start = min([limits.warmup, *(end for end in (r_end, d_end) if end is not None)])
    return replace(
        limits,
        warmup=start,
        r_steps=max(limits.r_steps, start) if r_end is None else r_end,
        d_steps=max(limits.d_steps, start) if d_end is None else d_end,
    )
