"""What probes measured along runs, in a sentence for each figure. Numbers are medians: a single step says little."""

from collections.abc import Mapping, Sequence

import numpy as np

from trimtab.report import landscape
from trimtab.report.curves import Numbers
from trimtab.report.formatting import format_number, join_words
from trimtab.report.probe_series import ProbeSeries


def compared(claim: str, quantity: str, medians: Mapping[str, float], *, largest: bool = False) -> str:
    """Which run it holds for, and the numbers of all, the best first.

    Args:
        claim: What holds for the best one, such as "The loss is smoothest".
        quantity: What the numbers are.
        medians: The numbers, by the label of the run.
        largest: Whether the largest number is the best.
    """
    finite = {label: value for label, value in medians.items() if np.isfinite(value)}
    if not finite:
        return ""
    order = sorted(finite, key=lambda label: finite[label], reverse=largest)
    if len(order) == 1:
        return f"{quantity.capitalize()}: {format_number(finite[order[0]])} ({order[0]})."
    first = format_number(finite[order[0]])
    best = [label for label in order if format_number(finite[label]) == first]
    others = [f"{label} {format_number(finite[label])}" for label in order if label not in best]
    if not others:
        return f"{quantity.capitalize()}: {first}, the same for {join_words(best)}."
    return f"{claim} with {join_words(best)}: {quantity} {first}; {', '.join(others)}."


def smoothness(runs: Sequence[ProbeSeries], direction: str) -> str:
    """Of the loss along a direction, and how often the largest β is at an edge of the range."""
    medians = {run.label: median(run.values("smoothness")) for run in runs}
    finding = compared(f"The loss is smoothest along {direction}", "median β-smoothness", medians)
    parts = []
    for run in runs:
        where, edge = landscape.largest_at(run)
        nearest = np.abs(run.rows("multiples")).min(axis=1) == np.abs(where)
        ends = {"nearest": int((edge * nearest).sum()), "farthest": int((edge * ~nearest).sum())}
        told = [f"at the {end} point in {count}" for end, count in ends.items() if count]
        if told:
            parts.append(f"{join_words(told)} of {len(where)} measurements with {run.label}")
    if finding and parts:
        finding += f" This is the largest β of the range of distances, and at an edge of it: {'; '.join(parts)}."
    return finding


def smoothness_far_away(runs: Sequence[ProbeSeries], direction: str) -> str:
    """Of the loss at the farthest distance that all runs have."""
    shared = set.intersection(*(set(run.rows("multiples")[0]) for run in runs))
    if not shared:
        return ""
    far = max(shared)
    medians = {
        run.label: median(landscape.smoothness(run)[:, run.rows("multiples")[0].tolist().index(far)]) for run in runs
    }
    away = f"{format_number(far)} step{'' if far == 1 else 's'}"
    return compared(f"{away.capitalize()} along {direction} the loss is smoothest", f"median β at {away}", medians)


def shift(runs: Sequence[ProbeSeries]) -> str:
    """How far gradients are turned by the steps of the layers below."""
    medians = {run.label: over_layers(run, "cosine") for run in runs}
    claim = "Gradients are turned least by the steps of the layers below"
    return compared(claim, "median cosine", medians, largest=True)


def moments(changing: Sequence[ProbeSeries]) -> str:
    """How far activations move."""
    medians = {run.label: over_layers(run, "mean") for run in changing}
    return compared("Activations move least from step to step", "median change of their mean", medians)


def conditioning(runs: Sequence[ProbeSeries]) -> str:
    """What BNP's preconditioning does to condition numbers: of Hessian blocks, or of inputs where there are none."""
    for what, before, done in (("a Hessian block", "hessian", "preconditioned"), ("inputs", "inputs", "normalized")):
        parts = []
        for run in runs:
            ends = over_layers(run, before), over_layers(run, done)
            if np.isfinite(ends).all():
                parts.append(f"{format_number(ends[0])} and {format_number(ends[1])} with {run.label}")
        if parts:
            return f"Median condition number of {what}, as it is and {done} by BNP: {'; '.join(parts)}."
    return ""


def stability(runs: Sequence[ProbeSeries]) -> str:
    """How often the learning rate was above the largest stable one."""
    parts = []
    for run in runs:
        used, stable = run.values("learning_rate"), run.values("stable_learning_rate")
        known = np.isfinite(used) & np.isfinite(stable)
        if known.any():
            parts.append(f"{int((used > stable)[known].sum())} of {int(known.sum())} measurements with {run.label}")
    return f"The learning rate is above the largest stable one, 2/λ, in {join_words(parts)}." if parts else ""


def noise(runs: Sequence[ProbeSeries]) -> str:
    """The gradient noise scale."""
    medians = {run.label: median(run.values("noise_scale")) for run in runs}
    return compared("The gradient is least noisy", "median noise scale", medians)


def decay(runs: Sequence[ProbeSeries]) -> str:
    """The decay that batch noise amounts to, as predicted and as measured."""
    parts = []
    for run in runs:
        ends = over_layers(run, "zeta"), over_layers(run, "zeta_measured")
        if np.isfinite(ends).all():
            parts.append(f"{format_number(ends[1])} with {run.label}, where {format_number(ends[0])} is predicted")
    return f"Batch noise amounts to a median decay ζ of {join_words(parts)}." if parts else ""


def gaps(runs: Sequence[ProbeSeries], names: Sequence[str]) -> str:
    """Which runs have steps at which one of these numbers of the whole network is none, so that a line has a gap."""
    parts = []
    for run in runs:
        missing = int((~np.isfinite([run.values(name) for name in names])).any(axis=0).sum())
        if missing:
            parts.append(f"{run.label} at {missing} of {len(run.steps)} steps")
    return f"A gap is where no finite value was found: {join_words(parts)}." if parts else ""


def median(values: Numbers) -> float:
    """Over what is finite; NaN if nothing is."""
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else float("nan")


def over_layers(run: ProbeSeries, name: str) -> float:
    """The median of a number over layers and measurements."""
    by_layer = [run.layer_values(index, name) for index in range(len(run.layer_names()))]
    return median(np.concatenate(by_layer)) if by_layer else float("nan")
