"""Which layers a trial is to look at more closely: indicators that are cheap, and that alone say nothing."""

from statistics import median

from trimtab.doctor.record import Look

OUT_OF_PROPORTION = 10.0
"""A layer whose update, in lengths of its weight, is so many times the median of the others' is tried without it."""
LARGE_SIGNAL = 4.0
SMALL_SIGNAL = 1 / 8
"""A layer whose output is so many times as large as its input, or less, is tried with its weight rescaled."""
MOST = 2
"""So many layers at a time: each costs a forward."""


def out_of_proportion(look: Look) -> dict[str, float]:
    """The layers with the most outstanding updates, and how many times the others' median they are."""
    found = {}
    for layer in look.layers:
        others = [each.ratio for each in look.layers if each is not layer and each.ratio > 0]
        if len(others) >= 2 and layer.ratio > 0:
            times = layer.ratio / median(others)
            if times >= OUT_OF_PROPORTION:
                found[layer.layer] = times
    return _largest(found)


def large_signals(look: Look) -> dict[str, float]:
    """The layers that enlarge their input most, and by how much."""
    return _largest({layer.layer: layer.gain for layer in look.layers if layer.gain >= LARGE_SIGNAL})


def small_signals(look: Look) -> dict[str, float]:
    """The layers that shrink their input most, and by how much."""
    gains = {layer.layer: 1 / layer.gain for layer in look.layers if 0 < layer.gain <= SMALL_SIGNAL}
    return {name: 1 / times for name, times in _largest(gains).items()}


def _largest(found: dict[str, float]) -> dict[str, float]:
    return dict(sorted(found.items(), key=lambda item: -item[1])[:MOST])
