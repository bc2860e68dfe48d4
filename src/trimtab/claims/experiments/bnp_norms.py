"""bnp, Lemma A2 and Prop. 5: norms of random matrices, by which layers of all widths are brought to one size."""

import math
from collections.abc import Callable

import numpy as np

from trimtab.claims.experiments.bnp_draws import Rng, layer_inputs
from trimtab.claims.experiments.registry import Context, experiment
from trimtab.claims.findings import Findings
from trimtab.theory import bounds
from trimtab.theory.bounds.sides import Array

Entries = Callable[[Rng, tuple[int, ...]], Array]

SHAPES = ((3, 3), (3, 30), (30, 3), (30, 30), (3, 300), (300, 3), (30, 300), (300, 30), (300, 300))
ORDERS = (1.0, 2.0)
"""k of Lemma A2, within its limit 2 log max(m, n) for all shapes."""
WIDTHS = (3, 10, 30, 60, 100, 300, 1000)
SAMPLES = (6, 60)
MATRICES = 20
"""Expectations are means over so many."""
RARE = 60.0
"""The size of rare entries, which are there with probability 1/60²: mean 0, variance 1, fourth moment 60²."""


def gaussian(rng: Rng, shape: tuple[int, ...]) -> Array:
    """Standard normal."""
    return rng.normal(size=shape)


def laplace(rng: Rng, shape: tuple[int, ...]) -> Array:
    """Laplace, variance 1."""
    return np.asarray(rng.laplace(size=shape) / np.sqrt(2))


def sparse(rng: Rng, shape: tuple[int, ...]) -> Array:
    """0 with probability 0.9, otherwise normal; variance 1."""
    return np.asarray(rng.normal(size=shape) * (rng.random(shape) < 0.1) / np.sqrt(0.1))


def rare_large(rng: Rng, shape: tuple[int, ...]) -> Array:
    """0, or rarely ±60; variance 1."""
    return RARE * rng.choice([-1.0, 1.0], size=shape) * (rng.random(shape) < RARE**-2)


ENTRIES: dict[str, Entries] = {"gaussian": gaussian, "laplace": laplace, "sparse": sparse}
FOURTH: dict[str, tuple[Entries, float]] = {"gaussian": (gaussian, 3.0), "rare-large": (rare_large, RARE**2)}
"""With the fourth moment of an entry."""


@experiment("bnp-norms", "bnp: norms of random matrices", small=0.1)
def norms(findings: Findings, context: Context) -> None:
    """Lemma A2, Prop. 5, and the norm with a column of ones."""
    findings.check("norm-with-ones", norm_with_ones)
    for name, entries in ENTRIES.items():
        needed = {shape: constant_needed(entries, shape) for shape in SHAPES}
        findings.number("constant of Lemma A2", name, max(needed.values()))
        findings.curve("constant of Lemma A2", name, [(rows * columns, c) for (rows, columns), c in needed.items()])
    constants = findings.numbers["constant of Lemma A2"].values()
    findings.number("constant of Lemma A2", "all", max(each["all"] for each in constants))
    for name, (entries, fourth) in FOURTH.items():
        found = {(n, samples): normalized(entries, n, samples) for n in WIDTHS for samples in SAMPLES}
        (width, samples), largest = max(found.items(), key=lambda item: item[1])
        findings.number("norm", name, largest)
        findings.number("norm over fourth moment", name, largest / fourth**0.25)
        for size in SAMPLES:
            findings.curve(f"norm of normalized inputs, N = {size}", name, [(n, found[n, size]) for n in WIDTHS])
        findings.notes.append(
            f"E‖Ĝ‖/(q√N) of {name} entries is largest for n = {width}, N = {samples}: {largest:.3g}; divided by the "
            f"fourth root of E g⁴ it is {largest / fourth**0.25:.3g}."
        )
    for measure in ("norm", "norm over fourth moment"):  # one C is to be enough for all entries
        largest_of = findings.numbers[measure].values()
        findings.number(measure, "all", max(each["all"] for each in largest_of))
    findings.settings |= {"matrices": MATRICES, "orders": list(ORDERS)}


def norm_with_ones(rng: Rng) -> bounds.Sides:
    """Before Prop. 5: ‖[e, G]‖ for centred G, of more or of fewer columns than rows."""
    inputs = layer_inputs(rng) if rng.random() < 0.5 else rng.normal(size=(int(rng.integers(3, 9)), 12))
    return bounds.orthogonal_norm((inputs - inputs.mean(0)) / inputs.std(0))


def constant_needed(entries: Entries, shape: tuple[int, int]) -> float:
    """The smallest C for which Lemma A2 holds for matrices of this shape."""
    draws = entries(np.random.default_rng([101, *shape]), (MATRICES, *shape))
    sides = [bounds.seginer(draws, order, constant=1.0) for order in ORDERS]
    quotients = [float(each.left) / float(each.right) for each in sides]
    return max(math.pow(quotient, 1 / order) for quotient, order in zip(quotients, ORDERS, strict=True))


def normalized(entries: Entries, width: int, samples: int) -> float:
    """E‖Ĝ‖/(q√N)."""
    draws = entries(np.random.default_rng([101, width, samples]), (MATRICES, samples, width))
    return float(bounds.normalized_norm(draws).left) / math.sqrt(samples)
