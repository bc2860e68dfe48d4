"""Meanfield, Figs. 1a and 1c, and Claim 6.1: python benchmarks/meanfield_gamma.py [--picture FILE] (five minutes).

λ_max over γ with and without BatchNorm, by the printed theory, by the exact one and on drawn networks; then how far
m samples are from the limit of many.
"""

import argparse
import math
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch

from trimtab.probes import fisher_lambda_max
from trimtab.records import machine
from trimtab.theory.mean_field import Conv, Dense, Layer, draw_network, mean_field

SIGMAS: dict[str, Any] = {"sigma_w2": 2.0, "sigma_b2": 0.5}
GAMMAS = (0.1, 0.5, 1.0, 2.0, 2.5, 3.0, 4.0)
SIZES = (30, 100, 300, 1000)
MANY = 8000
# Layers, the shape of an input, samples.
NETWORKS: dict[str, tuple[list[Layer], tuple[int, ...], int]] = {
    "dense": ([Dense(784, 1000), Dense(1000, 1000), Dense(1000, 1000), Dense(1000, 10)], (784,), 300),
    "conv": (
        [Conv(3, 30, 3, 2, size=32), Conv(30, 60, 3, 2), Conv(60, 90, 3, 2), Dense(810, 10)],
        (3, 32, 32),
        128,
    ),
}


def drawn(name: str, gamma: float | None, samples: int, draws: int) -> list[float]:
    """λ_max of one output of networks with random weights, on white noise."""
    layers, shape, _ = NETWORKS[name]
    found = []
    for draw in range(draws):
        torch.manual_seed(draw)
        network = draw_network(layers, gamma=gamma, **SIGMAS)
        x = torch.randn(samples, *shape)
        found.append(fisher_lambda_max(network, x, outputs=0, method="lanczos", tolerance=1e-3))
    return found


def predicted(name: str, gamma: float | None, **told: Any) -> float:
    """λ_max by mean field."""
    norm: dict[str, Any] = {} if gamma is None else {"norm": "batch", "gamma": gamma}
    return mean_field(NETWORKS[name][0], **norm, **told, **SIGMAS).lambda_max


def crossing(values: list[float], plain: float) -> float:
    """The γ at which λ_max is that of the network without BatchNorm, by a line in the logarithms."""
    return float(np.exp(np.interp(math.log(plain), np.log(values), np.log(GAMMAS))))


def over_gamma(name: str, draws: int) -> dict[str, list[float]]:
    """A row for each γ, and where the curves cross; the network without BatchNorm comes last in each list."""
    samples = NETWORKS[name][2]
    print(f"\n{name}, {draws} draws, {samples} samples: λ_max; without BatchNorm in the last row")
    rows: dict[str, list[float]] = {"printed": [], "exact": [], "drawn": []}
    for gamma in (*GAMMAS, None):
        rows["printed"].append(predicted(name, gamma, variant="paper"))
        rows["exact"].append(predicted(name, gamma, bias_terms=True, samples=samples))
        found = drawn(name, gamma, samples, draws)
        rows["drawn"].append(fmean(found))
        error = stdev(found) / math.sqrt(draws) / fmean(found) if draws > 1 else math.nan
        shown = "".join(f"{key:>9} {values[-1]:<10.4g}" for key, values in rows.items())
        print(f"γ = {gamma or '–':<5}{shown} ± {error:.1%}", flush=True)
    for key, (*values, plain) in rows.items():
        below = all(v < plain for v, gamma in zip(values, GAMMAS, strict=True) if gamma <= 2)
        print(f"  {key}: below for all γ ≤ 2: {below}; crosses at γ = {crossing(values, plain):.2f}", flush=True)
    return rows


def over_samples(draws: int) -> None:
    """The difference to the limit, which is mean field's, or what the same networks have on many samples."""
    limit = predicted("dense", 1.0, bias_terms=True)
    found = {size: fmean(drawn("dense", 1.0, size, draws)) for size in (*SIZES, MANY)}
    print(f"\ndense, γ = 1, {draws} draws; mean field's limit {limit:.5g}, {MANY} samples {found[MANY]:.5g}")
    for size in SIZES:
        print(
            f"  m = {size:<6}{found[size]:.5g}   predicted {predicted('dense', 1.0, bias_terms=True, samples=size):.5g}"
        )
    for what, value in (("mean field's limit", limit), (f"that of {MANY} samples", found[MANY])):
        away = [abs(found[size] - value) for size in SIZES]
        print(f"  slope of the difference to {what}: {np.polyfit(np.log(SIZES), np.log(away), 1)[0]:.2f}", flush=True)


def picture(path: Path, found: dict[str, dict[str, list[float]]]) -> None:
    """Two panels, as the paper's Figs. 1a and 1c."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(8, 3.6), layout="constrained")
    styles = {"printed": ("#E69F00", "--", ""), "exact": ("#0072B2", "-", ""), "drawn": ("#0072B2", "none", "o")}
    for panel, (name, rows) in zip(panels, found.items(), strict=True):
        for key, (colour, line, marker) in styles.items():
            *values, plain = rows[key]
            panel.plot(GAMMAS, values, c=colour, ls=line, marker=marker or None, label=f"BN, {key}")
            if key != "drawn":
                panel.axhline(plain, c=colour, ls=line, lw=0.8, alpha=0.6, label=f"without, {key}")
        panel.set(xscale="log", yscale="log", xlabel="γ", ylabel="λ_max", title=name)
        panel.legend(fontsize=7)
    figure.savefig(path, dpi=90)


def main() -> None:
    """Print everything, and draw it if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--draws", type=int, default=20)
    told = parser.parse_args()
    print(machine())
    found = {name: over_gamma(name, told.draws) for name in NETWORKS}
    if told.picture is not None:
        picture(told.picture, found)
    over_samples(told.draws)


if __name__ == "__main__":
    main()
