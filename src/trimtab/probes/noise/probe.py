"""The noise of a batch: in BatchNorm's statistics, and in the gradient."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from trimtab.probes import options
from trimtab.probes.batches import samples_of, split_batch
from trimtab.probes.layer_calls import observe_calls
from trimtab.probes.noise.batch_statistics import CURVATURES, normalizes, reason_left_out
from trimtab.probes.noise.gradient_noise import gradient_noise
from trimtab.probes.noise.layer_noise import LayerCall, LayerNoise, PartStatistics
from trimtab.probes.result import LossFunction, Probe, Result, out_of_memory
from trimtab.probes.surface import Surface

Split = Callable[[Any, int], Sequence[Any]]
"""split(batch, parts) → the parts, of equal size."""


@dataclass(frozen=True, kw_only=True)
class BatchNoiseResult(Result):
    """The result of `BatchNoise`.

    Attributes:
        layers: By name; a layer that is called again is there again, as "name, call 2".
        left_out: Layers that could normalize by the batch and were not measured, and why.
        noise_scale: The simple noise scale tr(Σ)/|G|², in samples; NaN if |G|² is lost in the noise.
        gradient_trace: tr(Σ).
        gradient_square: |G|².
        layer_noise_scales: The noise scale of each layer's parameters alone.
        parts: Into how many parts the batch was split.
        part_size: How many samples each has.
        note: Why there is no noise scale, if the batch was not split.
    """

    layers: dict[str, LayerNoise] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    noise_scale: float = math.nan
    gradient_trace: float = math.nan
    gradient_square: float = math.nan
    layer_noise_scales: dict[str, float] = field(default_factory=dict)
    parts: int = 0
    part_size: int = 0
    note: str | None = None


@dataclass(frozen=True, kw_only=True)
class BatchNoise(Probe[BatchNoiseResult]):
    """The noise of batch statistics and of gradients (regularization paper, eq. 2 and Theorem 1; McCandlish 2018).

    For each layer that normalizes by its batch, torch's and ours, the samples of the batch stand for all data: batches
    of M samples are drawn from its input with replacement, and the variances of their μ_B and σ_B are compared with
    eq. 2, whose σ_P and ρ are measured too. Whole samples are drawn, since the positions of a sample depend on each
    other: a convolution's batch is worth neither M independent values nor M · positions, but `effective` ones.
    (In a dense layer Var μ_B = σ_P²/M holds for any data that are drawn so; σ_B and convolutions tell something.)
    The more samples the probe is given, the better it knows σ_P and ρ; M need not be their number.

    ζ is that of the paper's single layer, whose loss is A(h) − y·h, with the input, γ and β of this layer: what its
    noise would amount to as a decay ζγ² if the activation after it were followed by that loss. In a deep network the
    loss comes through other layers, which scale it; so it is an estimate, to compare layers and batch sizes by. It is
    for statistics of a batch that a sample is not in.

    For the gradient noise scale the batch is split, and gradients of the parts are compared. With BatchNorm in train
    mode the gradient of a part is that with the statistics of the part, so that the scale is that of batches of this
    size; noise of the statistics counts as noise of the gradient. All parts see the same dropout noise, which does not
    count.

    Peak memory: that of a training step, one more copy of the gradient (in float32 at least), and up to 7 copies of a
    layer's input in double precision, one layer at a time.

    Args:
        batch_size: M; as many samples as the layer is given if None, which is right if this is a batch of training.
        draws: How many batches are drawn; a variance then has a relative error of about √(2/draws).
        link: What stands for the activation in ζ: "relu" (softplus, as in the paper), "linear" or "sigmoid".
        parts: Into how many parts the batch is split for the gradient noise; 0 for none. Fewer if there are too few
            samples, two for each part if there are layers that normalize by the batch.
        split: `split(batch, parts)` returns the parts, of equal size; `split_batch` if None, which cuts every tensor
            along its first dimension.
        seed: Of the draws.
        gradient_only: Whether to leave the noise of batch statistics out, which is about half of the work.

    Raises:
        ValueError: If an option is invalid.
    """

    name: ClassVar[str] = "noise"
    result: ClassVar[type[Result]] = BatchNoiseResult

    batch_size: int | None = None
    draws: int = 1000
    link: str = "relu"
    parts: int = 8
    split: Split | None = None
    seed: int = 0
    gradient_only: bool = False

    def __post_init__(self) -> None:
        """Check the options."""
        options.check_whole(self, "batch_size", minimum=1, optional=True)
        options.check_whole(self, "draws", minimum=2)
        options.check_choice(self, "link", CURVATURES)
        options.check_whole(self, "parts", minimum=0)
        if self.parts == 1:
            raise ValueError("parts must be 0 or at least 2, not 1: one part has nothing to be compared with.")
        options.check_flag(self, "gradient_only")
        options.check_function(self, "split", "batch, parts")
        options.check_seed(self)

    def measure(self, model: nn.Module, loss_fn: LossFunction, batch: Any) -> BatchNoiseResult:
        """Measure the statistics on the whole batch, the gradient on its parts; or raise CannotMeasure."""
        surface = Surface(model, loss_fn, batch)
        layers = {name: module for name, module in surface.isolated.model.named_modules() if normalizes(module)}
        left_out: dict[str, str] = {}
        seen: dict[str, list[LayerCall]] = {}

        def see(name: str, layer: nn.Module, x: Tensor, y: Tensor) -> None:
            reason = reason_left_out(layer) or ("the batch has one sample" if len(x) < 2 else None)
            if reason is None:
                seen.setdefault(name, []).append(LayerCall.of(layer, x, self.link, self.batch_size))
            else:
                left_out[name] = reason

        parts, note = self._parts(batch, least=2 if layers else 1)
        if self.gradient_only:
            layers = {}
        else:
            with observe_calls(layers, see):
                surface.loss()
            left_out |= {name: "the loss does not call it" for name in layers if name not in seen | left_out}
        if not parts:
            return BatchNoiseResult(layers=self._noises(seen, []), left_out=left_out, note=note)
        splits: list[Calls] = []
        try:
            whole, each = gradient_noise(_gradients(model, loss_fn, parts, layers, splits), samples_of(parts[0]) or 0)
        except (RuntimeError, ValueError, TypeError, LookupError) as error:
            if out_of_memory(error):
                raise
            note = f"the loss of a part of the batch cannot be computed ({type(error).__name__}: {error}); give a split"
            return BatchNoiseResult(layers=self._noises(seen, []), left_out=left_out, note=note)
        return BatchNoiseResult(
            layers=self._noises(seen, splits),
            left_out=left_out,
            noise_scale=whole.scale,
            gradient_trace=whole.trace,
            gradient_square=whole.square,
            layer_noise_scales={name: noise.scale for name, noise in each.items()},
            parts=len(parts),
            part_size=samples_of(parts[0]) or 0,
        )

    def _parts(self, batch: Any, least: int) -> tuple[Sequence[Any], str | None]:
        """The parts of the batch, with so many samples each at least, or why there are none."""
        count = samples_of(batch)
        if not self.parts:
            return [], "the batch was not to be split"
        if self.split is None:
            if count is None or count < 2 * least:
                return [], "the batch has too few samples, or none that can be counted, to be split"
            return split_batch(batch, min(self.parts, count // least)), None
        parts = self.split(batch, self.parts)
        sizes = {samples_of(part) for part in parts}
        if len(parts) < 2 or len(sizes) != 1 or None in sizes:
            return [], "split did not return two parts or more with the same number of samples"
        return parts, None

    def _noises(self, seen: dict[str, list[LayerCall]], splits: "list[Calls]") -> dict[str, LayerNoise]:
        """Each call of each layer."""
        found = {}
        for name, calls in seen.items():
            for number, call in enumerate(calls):
                generator = torch.Generator().manual_seed(self.seed)
                drawn = call.population.drawn(call.batch_size, self.draws, generator)
                parts = [split[name][number] for split in splits if len(split.get(name, [])) == len(calls)]
                found[f"{name}, call {number + 1}" if number else name] = call.noise(drawn, parts)
        return found


Calls = dict[str, list[PartStatistics]]
"""By the layer's name, for each call of it."""


def _gradients(
    model: nn.Module, loss_fn: LossFunction, parts: Sequence[Any], layers: dict[str, nn.Module], splits: list[Calls]
) -> Iterator[dict[str, Tensor]]:
    """The gradient of each part; the statistics of its layers' inputs are added to a list."""
    for part in parts:
        calls: Calls = {}
        splits.append(calls)
        with observe_calls(layers, lambda name, layer, x, y, calls=calls: _record_statistics(calls, name, x)):  # type: ignore[misc]
            _, gradient = Surface(model, loss_fn, part).gradient()
        yield gradient


def _record_statistics(calls: Calls, name: str, x: Tensor) -> None:
    calls.setdefault(name, []).append(PartStatistics.of(x))
