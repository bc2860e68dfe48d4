"""Does a layer start with weights of a size at which the training goes well?"""

import math

from trimtab.doctor.cure import Cure
from trimtab.doctor.finding import Finding
from trimtab.doctor.record import LayerLook, Look, Record
from trimtab.doctor.rules.layers import LITTLE_LEFT, beginning, dead_from_the_start, moves, times_since
from trimtab.doctor.rules.signals import DEAD, stands
from trimtab.doctor.suspicion import LARGE_SIGNAL, OUT_OF_PROPORTION
from trimtab.doctor.trend import DONE, Trend, trend

BEGINNING = 16
"""Signals that are too large at the start of a training do their harm in its first steps."""
RELIEF = 0.85
"""With the layer's weights scaled back the loss is at most this share of what it is: 0.23 to 0.84 where one layer's
weights were 10 to 100 times as large as usual and the training ended worse, above 1 in trained networks."""
LOST = 0.02
"""The share of what distinguishes the samples at the input that is left after the layers: in deep networks that did not
begin to learn it was below 0.01, in those that did 0.05 and more."""
ENLARGES = 6.0
"""At the first step the samples' outputs are so many times as far from each other as their inputs: 0.36 to 0.78 in
layers that start as torch does, 1.4 with He's initialization."""
SHRINKS = 0.03
"""... or only this share as far."""
FROZEN = 1 / 3
"""A layer with weights so large that a norm makes up for them moves at most this share of what others do, in lengths of
its weights: 0.002 to 0.25 where its weights were 20 times as large as usual, with SGD and Adam."""


def exploding_layer(record: Record) -> Finding | None:
    """A layer makes its input so much larger at the start that the loss would be far lower with it scaled back."""
    found = None
    for trial in record.trials:
        look = _at(record, trial.step)
        if trial.step > BEGINNING or look is None:
            continue
        for layer in look.layers:
            scaled = trial.rescaled.get(layer.layer, math.nan)
            if layer.gain >= LARGE_SIGNAL and trial.other != 0 and scaled <= RELIEF * trial.other and trial.step == 0:
                share = scaled / trial.other
                if found is None or share < found[1]:
                    found = layer, share, trial.other, scaled
    seen = trend(record)
    if found is None:
        return _frozen(record, seen)
    layer, _, loss, scaled = found
    if seen.broken is None and seen.recent < DONE * scaled:  # it was borne
        return None
    return Finding(
        name="exploding-layer",
        layer=layer.layer,
        evidence={"gain": layer.gain, "loss": loss, "loss_rescaled": scaled},
        sentence=f"At the start its output is {layer.gain:.2g} times as large as its input, and the loss is "
        f"{loss:.3g}; "
        f"with its weights divided by that it would be {scaled:.3g}.",
        advice=f"Divide the weights that {layer.layer} starts with by {layer.gain:.2g}, or initialize it as torch "
        "does.",
        cure=Cure(
            setting="init",
            factor=1 / layer.gain,
            layer=layer.layer,
            sentence=f"divide the first weights of {layer.layer} by {layer.gain:.2g}",
        ),
        certainty=0.9,
        severity=1.0 if seen.broken is not None or seen.recent > 0.5 * scaled else 0.6,
    )


def _frozen(record: Record, seen: Trend) -> Finding | None:
    """A norm brings the signal back to its size, and the layer, whose weights stay large, hardly learns."""
    first = beginning(record)
    if first is None or seen.broken is not None or seen.recent < LITTLE_LEFT * seen.start:
        return None
    large = [layer for layer in first.layers if layer.kept >= ENLARGES and times_since(record, layer.layer) <= FROZEN]
    if not large:
        return None
    layer = max(large, key=lambda each: each.kept)
    share = times_since(record, layer.layer)
    return Finding(
        name="exploding-layer",
        layer=layer.layer,
        evidence={"kept": layer.kept, "times": share, "loss": seen.recent},
        sentence=f"At the start its outputs are {layer.kept:.2g} times as far from each other as its inputs, and since "
        f"then it has moved {share:.2g} times as far as other layers, in lengths of its weights: it hardly learns.",
        advice=f"Divide the weights that {layer.layer} starts with by {layer.kept:.2g}, or initialize it as torch "
        "does.",
        cure=_scaled(layer, 1 / layer.kept),
        certainty=0.7,
        severity=0.6,
    )


def _scaled(layer: LayerLook, factor: float) -> Cure:
    words = (
        f"multiply the first weights of {layer.layer} by"
        if factor > 1
        else f"divide the first weights of {layer.layer} by"
    )
    return Cure(setting="init", factor=factor, layer=layer.layer, sentence=f"{words} {max(factor, 1 / factor):.2g}")


def vanishing_layer(record: Record) -> Finding | None:
    """What distinguishes the samples is lost on the way through the network, and the loss does not begin to fall."""
    seen = trend(record)
    if not record.looks or seen.broken is not None or dead_from_the_start(record) is not None:
        return None
    return _shrunken(record, seen) or _nothing_left(record, seen)


def _shrunken(record: Record, seen: Trend) -> Finding | None:
    """One layer starts so small that almost nothing comes through, or that its first step is far longer than it is.

    In the second case a norm brings the signal back to its size, but the layer is too large after that step, and hardly
    learns.
    """
    first = beginning(record)
    if first is None or seen.recent < LITTLE_LEFT * seen.start:
        return None
    start, end = first.layers[0].input_spread, first.layers[-1].input_spread
    small = [layer for layer in first.layers[:-1] if 0 < layer.kept <= SHRINKS]
    small = [layer for layer in small if end <= LOST * start or _thrown(record, first, layer)]
    if not small:
        return None
    layer = min(small, key=lambda each: each.kept)
    return Finding(
        name="vanishing-layer",
        layer=layer.layer,
        evidence={"kept": layer.kept, "first_times": moves(first, layer.layer), "loss": seen.recent},
        sentence=f"At the start {100 * layer.kept:.2g} % of what distinguishes its inputs comes through, and its first "
        f"step is {layer.ratio:.2g} times as long as its weights, {moves(first, layer.layer):.2g} times as long as "
        f"those of other layers are; the loss is {seen.recent:.3g}.",
        advice=f"Multiply the weights that {layer.layer} starts with by {1 / layer.kept:.2g}, or initialize it as "
        "torch does.",
        cure=_scaled(layer, 1 / layer.kept),
        certainty=0.7,
        severity=1.0 if seen.stuck else 0.7,
    )


def _thrown(record: Record, first: Look, layer: LayerLook) -> bool:
    far = layer.ratio >= 1 and moves(first, layer.layer) >= OUT_OF_PROPORTION
    return far and times_since(record, layer.layer) <= FROZEN


def _nothing_left(record: Record, seen: Trend) -> Finding | None:
    if not stands(seen) or not seen.stuck or seen.leapt:
        return None
    first, look = record.looks[0], record.looks[-1]
    layers = [layer for layer in first.layers if layer.output_spread > 0 and layer.input_spread > 0]
    if len(layers) < 2 or any(layer.dead >= DEAD for layer in look.layers):
        return None
    left = min(layer.output_spread for layer in layers) / layers[0].input_spread
    if left > LOST:
        return None
    weakest = min(layers, key=lambda layer: layer.kept)
    return Finding(
        name="vanishing-layer",
        layer=weakest.layer,
        evidence={"left": left, "kept": weakest.kept, "loss": seen.recent},
        sentence=f"Of what distinguishes the samples {100 * left:.2g} % is left after {len(layers)} layers, least of "
        "it "
        f"comes through {weakest.layer}, and the loss stays at {seen.recent:.3g}.",
        advice="Add a normalization between the layers, or begin with larger weights (He's initialization for ReLU).",
        cure=Cure(
            setting="init",
            factor=1 / max(weakest.kept, 1e-3),
            layer=weakest.layer,
            sentence=f"multiply the first weights of {weakest.layer} by {1 / max(weakest.kept, 1e-3):.2g}",
        ),
        certainty=0.6,
        severity=1.0,
    )


def _at(record: Record, step: int) -> Look | None:
    return next((look for look in record.looks if look.step == step), None)
