"""What layers are like at a training's first step, and how far they move since: what several rules ask."""

from statistics import median

from trimtab.doctor.curves import middle_of
from trimtab.doctor.record import LayerLook, Look, Record

LITTLE_LEFT = 0.03
"""A loss above this share of its beginning leaves something to be gained, so that a layer that learns nothing matters:
with 0.02 a third more trainings had a finding for what did no harm, and hardly any more that were ill the right one."""
FEW_ROWS = 8
"""Of fewer outputs, half of them dead may be one that the loss does not use."""
AT_FIRST_LESS = 0.3
"""Outputs that have died on the way: at the first step so much less of the layer's gradient was 0."""
MANY_DEAD = 0.7
"""A layer with so many outputs that have no gradient: in healthy trainings 0.19 at most from the first step on, and
0.56 later, in layers of 8 and 16 outputs. (97 % of digits are learned with 90 % of a layer dead at a tuned rate, so
that this is no finding by itself.)"""
SLACK = 0.1
"""Of a layer's gradient so much less than the dead outputs' share may be 0 at the first step: some die after it."""


def beginning(record: Record) -> Look | None:
    """The look at the first step, with activations; None if there is none."""
    first = record.looks[0] if record.looks else None
    return first if first is not None and first.step == 0 and first.layers else None


def dead_from_the_start(record: Record) -> LayerLook | None:
    """The layer with most outputs dead in all looks that can tell, and in the first step, as it is now."""
    first = beginning(record)
    if first is None:
        return None
    found = None
    for layer in record.looks[-1].layers:
        shares = [each.dead for look in record.looks for each in look.layers if each.layer == layer.layer]
        told = [share for share in shares if share > 0]
        early = next((each.zeros for each in first.layers if each.layer == layer.layer), 0.0)
        if layer.rows < FEW_ROWS or len(told) < 3 or min(*told, layer.dead) < MANY_DEAD:
            continue
        if early >= layer.dead - SLACK and (found is None or layer.dead > found.dead):
            found = layer
    return found


def died(record: Record) -> LayerLook | None:
    """The layer of which most outputs are dead now that were not at the first step; None if they are not many."""
    first = beginning(record)
    early = {layer.layer: layer.zeros for layer in first.layers} if first else {}
    found = [
        layer
        for layer in (record.looks[-1].layers if record.looks else ())
        if layer.rows >= FEW_ROWS
        and layer.dead >= MANY_DEAD
        and early.get(layer.layer, 1.0) <= layer.dead - AT_FIRST_LESS
    ]
    return max(found, key=lambda layer: layer.dead, default=None)


def moves(look: Look, layer: str) -> float:
    """How many times as far a layer moves as the median of the others, in lengths of their weights."""
    own = next((each for each in look.layers if each.layer == layer), LayerLook(layer=layer))
    others = [each.ratio for each in look.layers if each.layer != layer and each.ratio > 0]
    return own.ratio / median(others) if others else float("nan")


def times_since(record: Record, layer: str) -> float:
    """The same after the first look, in the median."""
    return middle_of(moves(look, layer) for look in record.looks[1:])
