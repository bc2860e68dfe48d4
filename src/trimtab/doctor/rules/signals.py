"""Do signals and gradients come through the layers, and do all of them move?"""

import math
from statistics import median

from trimtab.doctor.cure import Cure
from trimtab.doctor.curves import middle_of
from trimtab.doctor.finding import Finding
from trimtab.doctor.record import LayerLook, Record
from trimtab.doctor.rules.layers import FEW_ROWS, LITTLE_LEFT, MANY_DEAD, beginning, dead_from_the_start, moves
from trimtab.doctor.rules.rates import FAR, FEWEST, SLOW
from trimtab.doctor.suspicion import OUT_OF_PROPORTION
from trimtab.doctor.trend import Trend, trend

DEAD = 0.98
"""A layer of which this share of outputs is dead passes on nothing that differs between samples."""
NEARLY_ALL = 0.9
"""A layer with so many dead outputs ended far worse in all networks but those with a way around it."""
UNLIKE = 10.0
"""The sizes of a layer's inputs at the upper quartile over that at the lower one, in all looks at activations: 1.0 to
7.3 at the beginning of healthy trainings, 11 to 100 where the inputs of a layer are multiplied by factors that span a
factor of 300 or 3000."""
VERY_LITTLE_LEFT = 0.005
"""Ill-conditioned layers cost most of it on validation data: of training data most are learned all the same."""
HARMFUL = 0.05
"""Without the step of one layer the loss of another batch is lower by this share of it, in the median: 0.03 by chance
in batches of 2."""
FIRST_STEPS = 4
"""In the first steps a larger rate shows; later the layer's larger weights and gradients hide it."""
LONG_STEP = 0.3
"""A first step as long as this share of the layer's weights, where those of the others are a tenth as long or less."""


def dead_units(record: Record) -> Finding | None:
    """Most outputs of a layer have had no gradient for several looks, and the loss does not fall."""
    seen = trend(record)
    if not record.looks or seen.broken is not None or not record.looks[-1].gradient > 0:
        return None
    always = dead_from_the_start(record)
    if always is not None and seen.recent >= LITTLE_LEFT * seen.start:
        return _never_alive(always, seen)
    layers = [layer for layer in record.looks[-1].layers if layer.dead >= (MANY_DEAD if stands(seen) else DEAD)]
    layers = [layer for layer in layers if layer.rows >= FEW_ROWS or layer.dead >= DEAD]
    if not layers or seen.recent <= SLOW * seen.middle:
        return None
    dead = max(layers, key=lambda layer: (layer.dead >= DEAD, layer.dead))
    whole = dead.dead >= DEAD
    return _dead(
        dead,
        seen,
        f"in the last looks, so they no longer learn, and the loss stays at {seen.recent:.3g}.",
        certainty=0.6 if whole and not seen.leapt else 0.5,
        severity=1.0 if whole else 0.5,
    )


def _never_alive(layer: LayerLook, seen: Trend) -> Finding:
    return _dead(
        layer,
        seen,
        f"since the first step, so they never learn, and the loss is {seen.recent:.3g}.",
        certainty=0.8,
        severity=1.0 if seen.stuck or layer.dead >= DEAD else 0.9 if layer.dead >= NEARLY_ALL else 0.7,
    )


def _dead(layer: LayerLook, seen: Trend, since: str, *, certainty: float, severity: float) -> Finding:
    return Finding(
        name="dead-units",
        layer=layer.layer,
        evidence={"dead": layer.dead, "outputs": float(layer.rows), "loss": seen.recent},
        sentence=f"{100 * layer.dead:.0f} % of its {layer.rows} outputs have had a gradient of exactly 0 {since}",
        advice="Begin anew with the usual initialization, biases near 0, and a rate at which the loss does not leap; "
        "LeakyReLU or a normalization before the activation keeps units alive.",
        cure=Cure(setting="init", value="default", layer=layer.layer, sentence=f"initialize layer {layer.layer} anew"),
        certainty=certainty,
        severity=severity,
    )


def ill_conditioned_layer(record: Record) -> Finding | None:
    """The features that a layer is given differ in size so much that no rate suits the weights of all of them."""
    seen = trend(record)
    if seen.broken is None and seen.recent < VERY_LITTLE_LEFT * seen.start:
        return None
    first = beginning(record)
    unlike = {layer.layer: layer.columns for layer in first.layers if layer.columns >= UNLIKE} if first else {}
    for look in record.looks:
        for layer in look.layers:
            if layer.layer in unlike and layer.columns < UNLIKE:
                del unlike[layer.layer]
    if not unlike:
        return None
    most = max(unlike, key=unlike.__getitem__)
    return Finding(
        name="ill-conditioned-layer",
        layer=most,
        evidence={"columns": unlike[most], "loss": seen.recent},
        sentence=f"Of the features that it is given, one at the upper quartile is {unlike[most]:.2g} times as large as "
        f"one at the lower quartile, where 1 to 7 is usual, so that a rate that suits one is too high or too low for "
        f"others; the loss is {seen.recent:.3g}.",
        advice="Attach a trimtab.BNP to the optimizer, put a normalization before the layer, or bring its inputs to "
        "the same size.",
        cure=_preconditioned(record),
        certainty=0.6,
        severity=0.6,
    )


def _preconditioned(record: Record) -> Cure:
    """A step of BNP is shorter than the plain one at the same rate, but with optimizers that scale it themselves."""
    words = "attach a trimtab.BNP to the optimizer"
    if record.facts.optimizer != "SGD":
        return Cure(setting="bnp", sentence=words)
    return Cure(setting="bnp", factor=3.0, sentence=f"{words}, and multiply the learning rate by 3")


def step_out_of_proportion(record: Record) -> Finding | None:
    """One layer moves much farther than the others, and the step would be better without it, or the loss leapt."""
    return _better_without(record) or _leapt_by(record) or _own_rate(record)


def _leapt_by(record: Record) -> Finding | None:
    seen = trend(record)
    harmed = seen.broken is not None or (seen.leapt and (seen.stuck or seen.peak > FAR * seen.start))
    if seen.done or not harmed:
        return None
    found = [layer for look in record.looks[:1] for layer in look.layers if layer.ratio >= LONG_STEP]
    if not found:
        return None
    layer = max(found, key=lambda each: each.ratio).layer
    times = moves(record.looks[0], layer)
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


def _own_rate(record: Record) -> Finding | None:
    """A layer with a rate of its own, which moves as much farther as the rate is larger, until it has grown.

    Not where there is a normalization, under which weights that have grown have a smaller effective rate: with 100
    times the rate in one layer no such training ended worse.
    """
    seen = trend(record)
    if seen.done or not record.looks or record.facts.normalized:
        return None
    early = [look for look in record.looks if look.step <= FIRST_STEPS]
    for layer in record.looks[0].layers:
        others = [each.lr for each in record.looks[0].layers if each.layer != layer.layer and each.lr > 0]
        moved = middle_of(moves(look, layer.layer) for look in early)
        if others and layer.lr >= OUT_OF_PROPORTION * median(others) and moved >= OUT_OF_PROPORTION:
            return _disproportion(
                layer.layer,
                layer.lr / median(others),
                {"moved": moved, "loss": seen.recent},
                f"at a learning rate of {layer.lr:.2g} where others have {median(others):.2g}; the loss is "
                f"{seen.recent:.3g}.",
                certainty=0.6,
                severity=0.7,
            )
    return None


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
    times = middle_of(moves(look, layer) for look in record.looks)
    if not 0 < times < math.inf:  # it stands still in most looks; in the steps that were tried it moved so far at least
        times = OUT_OF_PROPORTION
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


def stands(seen: Trend) -> bool:
    """Whether there is something to be gained, and the loss does not go down to it."""
    return seen.broken is not None or (not seen.done and not seen.recent <= SLOW * seen.middle)
