"""The largest eigenvalue of networks that are drawn like a model: with its weights in random order.

The formulas of mean field give λ_max of a random network where layers are wide and samples are much alike. Elsewhere
(all outputs of narrow layers, real data, BatchNorm in train mode) they do not, and such networks are drawn: the entries
of each parameter are shuffled, which keeps their distribution and nothing else that training has put into them. For how
many samples, and how many can be afforded, follows from the operations that it takes, and not from a clock; how many
are needed follows from how much the first of them differ. So the same call gives the same number.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import torch
from torch import Tensor, nn

from trimtab.norms.statistics import Statistics
from trimtab.prediction.gauss_newton import BatchedGaussNewton
from trimtab.prediction.losses import Loss, Outputs
from trimtab.prediction.products import Batch, operations
from trimtab.prediction.shuffling import Shuffle
from trimtab.probes.isolation import IsolatedModel

WORK = {"cpu": 1.6e12, "cuda": 8e12}
"""Floating-point operations that all draws together may take: half a minute on two cores, less on a GPU."""
PER_SAMPLE = 30  # times those of a forward: some five products with the matrix, each like three forwards and backwards
PER_PARAMETER = 5000  # operations, of Lanczos' method with its vectors; memory is what they wait for
PER_GROUP = {"cpu": 8e7, "cuda": 4e8}
"""Operations in whose time PyTorch differentiates one group of a convolution twice: it does so group by group."""
MAX_SAMPLES, MIN_SAMPLES = 128, 8  # half of the first is enough for a straight line; half of that was not (mf-mlp)
MIN_DRAWS, MAX_DRAWS = 12, 100  # the first are always drawn, and tell how many are needed
PRECISE = 0.025  # the standard error of the mean, as a share of it, for which there are enough
UNCERTAIN = 0.08  # above which it is not to be trusted
FEW_WEIGHTS = 0.15  # chance in the weights' variances, above which the mean is not to be trusted
FAR = 0.15  # change by extrapolation, above which the extrapolated value is not
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@dataclass(frozen=True)
class DrawnNetworks:
    """The eigenvalues of drawn networks.

    Attributes:
        lambda_max: Their mean, for the size of the data set that was asked for.
        spread: The deviation from network to network, as a share of it.
        draws: How many networks there were.
        samples: How many samples they saw.
        batch_size: In batches of so many.
        unseen: What the mean leaves out, a sentence for each.
    """

    lambda_max: float
    spread: float
    draws: int
    samples: int
    batch_size: int
    unseen: tuple[str, ...]


def draw_networks(
    model: nn.Module,
    shape: Sequence[int],
    inputs: Tensor | None,
    *,
    loss: Loss,
    outputs: Outputs,
    statistics: Statistics,
    batch_size: int | None,
    samples: int | None,
) -> DrawnNetworks | None:
    """The mean λ_max of networks like a model; None if that would take too long.

    Args:
        model: The model, which is not changed.
        shape: Of one input.
        inputs: Data; None: white noise, which is drawn for each network.
        loss: The loss, by name.
        outputs: All, or one.
        statistics: What BatchNorm normalizes by.
        batch_size: How many samples share BatchNorm's statistics; None: all.
        samples: The size of the data set; None: infinite. If there are fewer, or fewer can be afforded, the value is
            extrapolated along a straight line in one over the number of samples.

    Raises:
        CannotMeasure: If numbers are not finite on the way.
    """
    isolated = IsolatedModel(model, statistics=statistics, dropout=False)
    like = next(iter(isolated.parameters.values()))
    example = torch.zeros(2, *shape, dtype=like.dtype, device=like.device) if inputs is None else inputs[:2]
    forward, is_random = operations(isolated, example)
    each = PER_SAMPLE * forward / len(example)
    kind = like.device.type if like.device.type in WORK else "cpu"
    groups = sum(module.groups for module in model.modules() if isinstance(module, _CONVOLUTIONS) and module.groups > 1)
    always = PER_PARAMETER * sum(values.numel() for values in isolated.parameters.values()) + PER_GROUP[kind] * groups
    most = WORK[kind]
    sizes = _sizes(MAX_SAMPLES if inputs is None else len(inputs), samples, batch_size, most / MIN_DRAWS, each, always)
    if sizes is None:
        return None
    size, few, batch = sizes
    noise, shuffle = torch.Generator().manual_seed(0), Shuffle(isolated.parameters)
    here: list[float] = []
    at_few: list[float] = []

    def draw() -> None:
        point = shuffle(noise)
        x = _some(inputs, size, shape, like, noise)
        for count, values in ((size, here), (few, at_few)):
            if count:
                batches: list[Batch] = [(part, None) for part in x[:count].split(min(batch, count))]
                matrix = BatchedGaussNewton(isolated, batches, loss, outputs, point)
                values.append(float(matrix.largest().values[-1]))

    def draw_all() -> None:
        for _ in range(MIN_DRAWS):
            draw()
        affordable = min(MAX_DRAWS, int(most / ((size + few) * each + (1 + bool(few)) * always)))
        for _ in range(min(math.ceil((_spread(here) / PRECISE) ** 2), affordable) - MIN_DRAWS):
            draw()

    with torch.random.fork_rng(enabled=is_random):
        if is_random:
            torch.manual_seed(0)
        isolated.run(draw_all)
    value = fmean(here)
    unseen = [*_unlike(model, shuffle)]
    if is_random:
        unseen.append("The model draws random numbers, as functional dropout does; all networks have the same ones.")
    if size != samples and not few:
        unseen.append(f"It is for {size} samples, which are too few to extrapolate from: measure it on more inputs.")
    if few:
        share = ((0.0 if samples is None else 1 / samples) - 1 / size) / (1 / few - 1 / size)
        value = max(value + share * (fmean(at_few) - fmean(here)), 0.0)
        if not abs(value - fmean(here)) <= FAR * fmean(here):
            whole = "infinitely many" if samples is None else f"{samples:,}"
            unseen.append(
                f"It is extrapolated from {size} to {whole} samples, by {fmean(here):.3g} → {value:.3g}: measure it on "
                "more inputs."
            )
    if (error := _spread(here) / math.sqrt(len(here))) > UNCERTAIN:
        unseen.append(
            f"λ_max differs by {100 * _spread(here):.0f} % from network to network, so that a mean over {len(here)} is "
            f"uncertain by {100 * error:.0f} %: measure yours."
        )
    return DrawnNetworks(value, _spread(here), len(here), size, batch, tuple(unseen))


def _sizes(
    available: int, samples: int | None, batch_size: int | None, most: float, each: float, always: float
) -> tuple[int, int, int] | None:
    """How many samples the networks see, how many beside for extrapolating (or 0), and in batches of how many.

    None if one draw would take more than `most` operations; a sample takes `each`, a draw takes `always` beside.
    """
    wanted = min(available, MAX_SAMPLES if samples is None else min(samples, MAX_SAMPLES))
    size = wanted
    if wanted != samples or wanted * each + always > most:  # of so many, and of half of them
        size = min(wanted, int((most - 2 * always) / max(1.5 * each, 1)))
    if size < min(wanted, MIN_SAMPLES):
        return None
    batch = size if batch_size is None else min(batch_size, size)
    size = size // batch * batch
    few = 0 if size == samples or size < 4 else size // 2 if size < 2 * batch else size // (2 * batch) * batch
    return size, few, batch


def _unlike(model: nn.Module, shuffle: Shuffle) -> Iterator[str]:
    """A sentence for each property of the model that networks with its weights in random order do not have."""
    if shuffle.structured:
        names = ", ".join(shuffle.structured[:3]) + (" and others" if len(shuffle.structured) > 3 else "")
        yield (
            f"The numbers of {names} are not in random order, as after training or orthogonal initialization, while "
            "those of drawn networks are: measure it."
        )
    if shuffle.chance > FEW_WEIGHTS:
        yield (
            f"There are so few weights that chance has moved their variances by {100 * shuffle.chance:.0f} % or so, "
            "which all drawn networks share: measure it."
        )
    if any("parametrizations" in name.split(".") for name, _ in model.named_buffers()):
        yield "Some weights are computed with buffers, as by spectral_norm, which fit the model's own only: measure it."


def _some(inputs: Tensor | None, count: int, shape: Sequence[int], like: Tensor, noise: torch.Generator) -> Tensor:
    if inputs is None:
        return torch.randn(count, *shape, generator=noise).to(like)
    if count == len(inputs):
        return inputs
    return inputs[torch.randperm(len(inputs), generator=noise)[:count].to(inputs.device)]


def _spread(values: Sequence[float]) -> float:
    """The deviation of some numbers, as a share of their mean."""
    mean = fmean(values)
    return stdev(values) / mean if mean > 0 else 0.0
