"""Do signals and gradients come through the layers, and do all of them move?"""

import math
from statistics import median

from trimtab.doctor.cure import Cure
from trimtab.doctor.curves import middle_of
from trimtab.doctor.finding import Finding
from trimtab.doctor.record import LayerLook, Look, Record
from trimtab.doctor.rules.rates import FEW_ROWS, FEWEST, MOSTLY_DEAD, SLOW
from trimtab.doctor.suspicion import LARGE_SIGNAL, OUT_OF_PROPORTION
from trimtab.doctor.trend import DONE, Trend, trend

BEGINNING = 16
"""Signals that are too large at the start of a training do their harm in its first steps."""
RELIEF = 0.85
"""With the layer's weights scaled back the loss is at most this share of what it is: 0.23 to 0.84 where one layer's
weights were 10 to 100 times as large as usual and the training ended worse, above 1 in trained networks."""
DEAD = 0.98
"""A layer of which this share of outputs is dead passes on nothing that differs between samples."""
LOST = 0.02
"""The share of what distinguishes the samples at the input that is left after the layers: in deep networks that did not
begin to learn it was below 0.01, in those that did 0.05 and more."""
HARMFUL = 0.01
"""Without the step of one layer the loss of another batch is lower by this share of it, in the median."""
LONG_STEP = 0.3
"""A first step as long as this share of the layer's weights, where those of the others are a tenth as long or less."""


def exploding_layer(record: Record) -> Finding | None:
    """A layer makes its input so much larger at the start that the loss would be far lower with it scaled back."""
    found = None
    for trial in record.trials:
        look = _at(record, trial.step)
        if trial.step > BEGINNING or look is None:
            continue
        for layer in look.layers:
            scaled = trial.rescaled.get(layer.layer, math.nan)
            if layer.gain >= LARGE_SIGNAL and scaled <= RELIEF * trial.other and trial.step == 0:
                share = scaled / trial.other
                if found is None or share < found[1]:
                    found = layer, share, trial.other, scaled
    if found is None:
        return None
    layer, _, loss, scaled = found
    seen = trend(record)
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


def dead_units(record: Record) -> Finding | None:
    """Most outputs of a layer have had no gradient for several looks, and the loss does not fall."""
    seen = trend(record)
    if not record.looks or seen.broken is not None or not record.looks[-1].gradient > 0:
        return None
    layers = [layer for layer in record.looks[-1].layers if layer.dead >= (MOSTLY_DEAD if _stands(seen) else DEAD)]
    layers = [layer for layer in layers if layer.rows >= FEW_ROWS or layer.dead >= DEAD]
    if not layers or seen.recent <= SLOW * seen.middle:
        return None
    dead = max(layers, key=lambda layer: (layer.dead >= DEAD, layer.dead))
    whole = dead.dead >= DEAD
    return Finding(
        name="dead-units",
        layer=dead.layer,
        evidence={"dead": dead.dead, "outputs": float(dead.rows), "loss": seen.recent},
        sentence=f"{100 * dead.dead:.0f} % of its {dead.rows} outputs have had a gradient of exactly 0 in the last "
        f"looks, so they no longer learn, and the loss stays at {seen.recent:.3g}.",
        advice="Begin anew with the usual initialization and a lower learning rate; LeakyReLU or a normalization "
        "before "
        "the activation keeps units alive.",
        cure=Cure(setting="init", value="default", layer=dead.layer, sentence=f"initialize layer {dead.layer} anew"),
        certainty=0.6 if whole and not seen.leapt else 0.5,
        severity=1.0 if whole else 0.5,
    )


def vanishing_layer(record: Record) -> Finding | None:
    """What distinguishes the samples is lost on the way through the network, and the loss does not begin to fall."""
    seen = trend(record)
    if not record.looks or seen.broken is not None or not _stands(seen) or not seen.stuck or seen.leapt:
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


def step_out_of_proportion(record: Record) -> Finding | None:
    """One layer moves much farther than the others, and the step would be better without it, or the loss leapt."""
    return _better_without(record) or _leapt_by(record)


def _leapt_by(record: Record) -> Finding | None:
    seen = trend(record)
    if seen.done or not (seen.leapt or seen.broken is not None):
        return None
    found = [layer for look in record.looks[:1] for layer in look.layers if layer.ratio >= LONG_STEP]
    if not found:
        return None
    layer = max(found, key=lambda each: each.ratio).layer
    times = _times(record.looks[0], layer)
    if not times >= OUT_OF_PROPORTION:
        return None
    return _disproportion(
        layer,
        times,
        {"peak": seen.peak, "start": seen.start},
        f"and the loss leapt from {seen.start:.3g} to {seen.peak:.3g}.",
        certainty=0.6,
        severity=0.9,
    )


def _better_without(record: Record) -> Finding | None:
    tried: dict[str, list[float]] = {}
    for trial in record.trials:
        whole = trial.others[trial.multiples.index(1.0)]
        for layer, loss in trial.without.items():
            better = (whole - loss) / max(abs(trial.other), 1e-12) if math.isfinite(loss) else -math.inf
            tried.setdefault(layer, []).append(better if math.isfinite(whole) else math.inf)
    means = {
        layer: median(values) for layer, values in tried.items() if len(values) >= max(FEWEST, len(record.trials) // 2)
    }
    if not means or max(means.values()) < HARMFUL or trend(record).done:
        return None
    layer = max(means, key=means.__getitem__)
    times = middle_of(_times(look, layer) for look in record.looks)
    return _disproportion(
        layer,
        times,
        {"better_without": means[layer]},
        f"and without them a step would leave another batch's loss {100 * means[layer]:.2g} % lower.",
        certainty=0.9,
        severity=0.6,
    )


def _disproportion(
    layer: str, times: float, evidence: dict[str, float], harm: str, *, certainty: float, severity: float
) -> Finding:
    words = f"divide the learning rate of {layer} by {times:.2g}"
    return Finding(
        name="step-out-of-proportion",
        layer=layer,
        evidence={"times": times, **evidence},
        sentence=f"Its steps are {times:.2g} times as long, in lengths of its weights, as those of other layers, "
        f"{harm}",
        advice=f"{words[0].upper()}{words[1:]}.",
        cure=Cure(setting="lr", factor=1 / times, layer=layer, sentence=words),
        certainty=certainty,
        severity=severity,
    )


def _times(look: Look, layer: str) -> float:
    """How many times as far a layer moves as the median of the others."""
    own = next((each for each in look.layers if each.layer == layer), LayerLook(layer=layer))
    others = [each.ratio for each in look.layers if each.layer != layer and each.ratio > 0]
    return own.ratio / median(others) if others else math.nan


def _stands(seen: Trend) -> bool:
    """Whether there is something to be gained, and the loss does not go down to it."""
    return seen.broken is not None or (not seen.done and not seen.recent <= SLOW * seen.middle)


def _at(record: Record, step: int) -> Look | None:
    return next((look for look in record.looks if look.step == step), None)
