"""What was measured of a training: plain numbers, which the rules judge."""

import math
from dataclasses import dataclass, field
from typing import Any

PATH = (1.0, 2.0, 4.0, 8.0)
"""So many times as far on as the training has come since an earlier trial. A single step has the noise of its batch in
it, a way of many steps hardly has."""


@dataclass(frozen=True, kw_only=True)
class LayerLook:
    """One layer with a weight at one step.

    Attributes:
        layer: Its name.
        weight: The norm of its weight.
        gradient: The norm of the weight's gradient.
        update: How far the optimizer's step moved the weight; NaN if it was not seen.
        rows: How many outputs (units, channels) it has.
        dead: The share of the outputs whose weights and bias have had a gradient of exactly 0 in this look and the
            `DEAD_LOOKS` - 1 before it.
        zeros: The share of the entries of the weight's gradient that are exactly 0.
        input_rms: The root of the mean square of its input; NaN if it was not seen.
        output_rms: That of its output.
        input_spread: How far the samples' inputs are from each other: the root of the mean variance over samples.
        output_spread: That of its outputs.
        columns: How unlike the sizes of its inputs are: the root mean square of a feature or channel at the upper
            quartile over that at the lower one, among those that are not 0 throughout; NaN if it was not seen, and for
            the network's inputs.
        lr: The learning rate of its weight.
    """

    layer: str
    weight: float = math.nan
    gradient: float = math.nan
    update: float = math.nan
    rows: int = 0
    dead: float = 0.0
    zeros: float = 0.0
    input_rms: float = math.nan
    output_rms: float = math.nan
    input_spread: float = math.nan
    output_spread: float = math.nan
    columns: float = math.nan
    lr: float = math.nan

    @property
    def ratio(self) -> float:
        """The update in lengths of the weight."""
        return self.update / self.weight if self.weight > 0 else math.nan

    @property
    def gain(self) -> float:
        """How much larger its output is than its input."""
        return self.output_rms / self.input_rms if self.input_rms > 0 else math.nan

    @property
    def kept(self) -> float:
        """How much of what distinguishes the samples comes out of it: spread of the output over that of the input."""
        return self.output_spread / self.input_spread if self.input_spread > 0 else math.nan


@dataclass(frozen=True, kw_only=True)
class NormLook:
    """The statistics of one batch in a layer that keeps running ones, beside those.

    Attributes:
        layer: Its name.
        shift: The mean over channels of (batch mean - running mean)² / running variance.
        ratio: The median over channels of batch variance / running variance.
        values: How many values of a channel the statistics are of: samples times positions; NaN if it was not seen.
    """

    layer: str
    shift: float
    ratio: float
    values: float = math.nan


@dataclass(frozen=True, kw_only=True)
class InputLook:
    """What one of the first layers is given: the inputs of the network.

    Attributes:
        layer: Its name.
        rms: The root of the mean square of all entries.
        offset: The root of the mean square of the channels' (features') means, in lengths of their mean deviation.
        smallest: The smallest standard deviation of a channel (feature) that is not constant.
        largest: The largest.
    """

    layer: str
    rms: float
    offset: float
    smallest: float
    largest: float


@dataclass(frozen=True, kw_only=True)
class Look:
    """What was seen at one step without computing anything twice.

    Attributes:
        step: Counted from 0.
        lr: The largest learning rate of the optimizer's groups.
        gradient: The norm of all gradients.
        layers: In the order of the model.
        norms: Layers with running statistics.
        inputs: The layers that are given the network's inputs.
        half: Whether something was computed in half precision (float16 or bfloat16).
    """

    step: int
    lr: float
    gradient: float
    layers: tuple[LayerLook, ...] = ()
    norms: tuple[NormLook, ...] = ()
    inputs: tuple[InputLook, ...] = ()
    half: bool = False


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One step of the training, measured: θ before it, d the step that was taken.

    Attributes:
        step: Counted from 0.
        lr: The largest learning rate of the optimizer's groups.
        loss: L(θ) on the step's own batch.
        after: L(θ + d) on it.
        promised: -g·d, the decrease that the gradient at θ promises.
        multiples: The s at which was tried.
        others: L(θ + s·d) on another batch for each s.
        other: L(θ) on the other batch.
        evaluated: L(θ) on the own batch in evaluation mode; NaN if it was not measured.
        grown: L(1.1 θ) on the other batch, all weights a tenth larger.
        path: L(θ + d + a·w) on the other batch for each a of `PATH`, where w is the way from an earlier trial to
            this one, of 48 steps or more; empty if there is none.
        without: L(θ + d without the step of one layer) on the other batch, by layer.
        rescaled: L(θ with one layer's weight rescaled) on the other batch, by layer.
        undone: The share of what the gradient's step promises that weight decay takes back.
        underflow: The share of the entries of the gradients that are 0 in the training, and not if the loss is scaled.
        validation: The loss on validation data in evaluation mode; NaN without such data.
    """

    step: int
    lr: float
    loss: float
    after: float
    promised: float
    multiples: tuple[float, ...]
    others: tuple[float, ...]
    other: float
    evaluated: float = math.nan
    grown: float = math.nan
    path: tuple[float, ...] = ()
    without: dict[str, float] = field(default_factory=dict)
    rescaled: dict[str, float] = field(default_factory=dict)
    undone: float = math.nan
    underflow: float = math.nan
    validation: float = math.nan

    @property
    def linearity(self) -> float:
        """The actual decrease on the own batch over the promised one."""
        return (self.loss - self.after) / self.promised if self.promised > 0 else math.nan


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something that could not be measured.

    Attributes:
        step: When.
        what: What was to be measured.
        sentence: Why not.
    """

    step: int
    what: str
    sentence: str


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What does not change along a training, or is known from its first batch.

    Attributes:
        optimizer: The name of its class.
        weight_decay: The largest of its groups.
        batch_size: Samples in a batch; 0 if they cannot be counted.
        batchnorms: The names of the layers that normalize by the batch.
        normalized: Whether some layer is a normalization, of whatever kind.
        bnp: Whether a BNP is attached.
        dtype: Of the parameters.
    """

    optimizer: str = ""
    weight_decay: float = 0.0
    batch_size: int = 0
    batchnorms: tuple[str, ...] = ()
    normalized: bool = False
    bnp: bool = False
    dtype: str = "float32"


@dataclass(kw_only=True)
class Record:
    """All that was measured of a training so far.

    Attributes:
        losses: Of all steps.
        looks: In the order of the steps.
        trials: In the order of the steps; none at level "light".
        facts: What does not change.
        probed: Results of probes as (step, result), by the probe's name.
        problems: What could not be measured.
    """

    losses: list[float] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    facts: Facts = field(default_factory=Facts)
    probed: dict[str, list[tuple[int, Any]]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    level: str = "light"
