"""What probes measured along runs, in a sentence for each figure.

Numbers are medians over the steps of a run: a single step says little. Of several seeds they are medians of these.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from trimtab.report import landscape
from trimtab.report.curves import Numbers
from trimtab.report.formatting import format_number, join_words
from trimtab.report.probe_series import ProbeSeries, RunResults, any_several
from trimtab.report.seed_notes import count_seeds
from trimtab.report.seeds import format_ends, format_spread, quantile


def compared(claim: str, quantity: str, found: Mapping[str, float | Numbers], *, largest: bool = False) -> str:
    """Which run it holds for, and the numbers of all, the best first.

    Args:
        claim: What holds for the best one, such as "The loss is smoothest".
        quantity: What the numbers are.
        found: The numbers, by the label of the run; of several seeds one for each.
        largest: Whether the largest number is the best.
    """
    numbers = {label: np.atleast_1d(np.asarray(values, dtype=float)) for label, values in found.items()}
    numbers = {label: finite for label, values in numbers.items() if len(finite := values[np.isfinite(values)])}
    if not numbers:
        return ""
    middle = {label: quantile(values) for label, values in numbers.items()}
    ends = {label: f" {format_ends(values)}" if len(values) > 1 else "" for label, values in numbers.items()}
    order = sorted(middle, key=lambda label: middle[label], reverse=largest)
    first = format_number(middle[order[0]])
    best = [label for label in order if format_number(middle[label]) == first]
    others = [f"{label} {format_number(middle[label])}{ends[label]}" for label in order if label not in best]
    seeds = _seeds({label: len(numbers[label]) for label in order})
    if len(order) == 1:
        who = f"{order[0]}; {seeds[2:]}" if seeds else f"{order[0]})"
        return f"{quantity.capitalize()}: {first}{ends[order[0]]} ({who}."
    tied = join_words(f"{label}{ends[label]}" for label in best)
    if not others:
        return f"{quantity.capitalize()}: {first}, the same for {tied}{seeds}."
    who = f"{best[0]}: {quantity} {first}{ends[best[0]]}" if len(best) == 1 else f"{tied}: {quantity} {first}"
    return f"{claim} with {who}; {', '.join(others)}{seeds}.{_chance(numbers, best[0], best)}"


def _seeds(counts: dict[str, int]) -> str:
    """Of how many seeds numbers are medians; empty if of one."""
    return f" (medians and ranges over {count_seeds(counts)})" if max(counts.values()) > 1 else ""


def _chance(numbers: Mapping[str, Numbers], first: str, best: Sequence[str]) -> str:
    """Whose ranges the seeds do not tell apart from that of the best."""
    low, high = numbers[first].min(), numbers[first].max()
    close = [
        label
        for label, values in numbers.items()
        if label not in best and min(len(values), len(numbers[first])) > 1
        if values.min() <= high and values.max() >= low
    ]
    return f" The ranges of {join_words([first, *close])} overlap: their order may be chance." if close else ""


def of_seeds(runs: Sequence[ProbeSeries], number: Callable[[RunResults], float]) -> dict[str, Numbers]:
    """A number of each seed's run, by label."""
    return {one.label: np.array([number(run) for run in one.runs]) for one in runs}


def smoothness(runs: Sequence[ProbeSeries], direction: str) -> str:
    """Of the loss along a direction, and how often the largest β is at an edge of the range."""
    medians = of_seeds(runs, lambda run: quantile(run.values("smoothness")))
    finding = compared(f"The loss is smoothest along {direction}", "median β-smoothness", medians)
    parts = []
    for one in runs:
        ends, count = {"nearest": 0, "farthest": 0}, 0
        for run in one.runs:
            where, edge = landscape.largest_at(run)
            nearest = np.abs(run.rows("multiples")).min(axis=1) == np.abs(where)
            ends["nearest"] += int((edge * nearest).sum())
            ends["farthest"] += int((edge * ~nearest).sum())
            count += len(where)
        told = [f"at the {end} point in {times}" for end, times in ends.items() if times]
        if told:
            parts.append(f"{join_words(told)} of {count} measurements with {one.label}")
    if finding and parts:
        finding += f" This is the largest β of the range of distances, and at an edge of it: {'; '.join(parts)}."
    return finding


def smoothness_far_away(runs: Sequence[ProbeSeries], direction: str) -> str:
    """Of the loss at the farthest distance that all runs have."""
    common = set.intersection(*(set(landscape.multiples(run)) for one in runs for run in one.runs))
    if not common:
        return ""
    far = max(common)

    def beta(run: RunResults) -> float:
        return quantile(landscape.smoothness(run)[:, landscape.multiples(run).tolist().index(far)])

    away = f"{format_number(far)} step{'' if far == 1 else 's'}"
    claim = f"{away.capitalize()} along {direction} the loss is smoothest"
    return compared(claim, f"median β at {away}", of_seeds(runs, beta))


def step_metric(runs: Sequence[ProbeSeries]) -> str:
    """How smooth the loss is along the optimizer's step, in the metric of that step."""
    medians = of_seeds(runs, lambda run: quantile(run.values("relative_smoothness")))
    return compared("In the metric of the optimizer's step the loss is smoothest", "median ηβ", medians)


def shift(runs: Sequence[ProbeSeries]) -> str:
    """How far gradients are turned by the steps of the layers below."""
    claim = "Gradients are turned least by the steps of the layers below"
    medians = of_seeds(runs, lambda run: over_layers(run, "cosine"))
    return compared(claim, "median cosine", medians, largest=True)


def moments(changing: Sequence[ProbeSeries]) -> str:
    """How far activations move."""
    medians = of_seeds(changing, lambda run: over_layers(run, "mean"))
    return compared("Activations move least from step to step", "median change of their mean", medians)


def rank(runs: Sequence[ProbeSeries]) -> str:
    """Of how many dimensions activations are, about."""
    medians = of_seeds(runs, lambda run: over_layers(run, "stable_rank"))
    return compared("The stable rank of activations is highest", "median", medians, largest=True)


def saturation(runs: Sequence[ProbeSeries]) -> str:
    """How many activations are near an end of their range."""
    medians = of_seeds(runs, lambda run: quantile(run.values("saturated")))
    return compared("Activations are saturated least", "median share", medians)


def conditioning(runs: Sequence[ProbeSeries]) -> str:
    """What BNP's preconditioning does to condition numbers: of Hessian blocks, or of inputs where there are none."""
    for what, before, done in (("a Hessian block", "hessian", "preconditioned"), ("inputs", "inputs", "normalized")):
        pairs = _pairs(runs, before, done)
        if pairs:
            parts = [f"{first} and {second} with {label}" for label, (first, second, _) in pairs.items()]
            seeds = _seeds({label: count for label, (*_, count) in pairs.items()})
            return f"Median condition number of {what}, as it is and {done} by BNP: {'; '.join(parts)}{seeds}."
    return ""


def stability(runs: Sequence[ProbeSeries]) -> str:
    """How often the learning rate was above the largest stable one."""
    above: dict[str, list[tuple[int, int]]] = {}
    for one in runs:
        for run in one.runs:
            used, stable = run.values("learning_rate"), run.values("stable_learning_rate")
            known = np.isfinite(used) & np.isfinite(stable)
            if known.any():
                above.setdefault(one.label, []).append((int((used > stable)[known].sum()), int(known.sum())))
    if not above:
        return ""
    if any_several(runs):
        shares = {label: np.array([100 * times / of for times, of in counts]) for label, counts in above.items()}
        parts = []
        for label, of in shares.items():
            ends = f" {format_ends(of, ' %')}" if len(of) > 1 else ""
            parts.append(f"{format_number(quantile(of))} %{ends} of measurements with {label}")
        words = f"{join_words(parts)}{_seeds({label: len(of) for label, of in shares.items()})}"
    else:
        words = join_words(f"{times} of {of} measurements with {label}" for label, [(times, of)] in above.items())
    return f"The learning rate is above the largest stable one, 2/λ, in {words}."


def noise(runs: Sequence[ProbeSeries]) -> str:
    """The gradient noise scale."""
    medians = of_seeds(runs, lambda run: quantile(run.values("noise_scale")))
    return compared("The gradient is least noisy", "median noise scale", medians)


def decay(runs: Sequence[ProbeSeries]) -> str:
    """The decay that batch noise amounts to, as predicted and as measured."""
    pairs = _pairs(runs, "zeta", "zeta_measured")
    parts = [f"{second} with {label}, where {first} is predicted" for label, (first, second, _) in pairs.items()]
    seeds = _seeds({label: count for label, (*_, count) in pairs.items()}) if pairs else ""
    return f"Batch noise amounts to a median decay ζ of {join_words(parts)}{seeds}." if parts else ""


def gaps(runs: Sequence[ProbeSeries], names: Sequence[str]) -> str:
    """Which runs have steps at which one of these numbers of the whole network is none, so that a line has a gap."""
    none: list[str] = []
    some: list[str] = []
    for one in runs:
        counts = np.min([one.values(name).counts for name in names], axis=0)
        few = 2 * counts <= len(one.runs)
        missing, fewer = int(few.sum()), int((~few & (counts < len(one.runs))).sum())
        for times, parts in ((missing, none), (fewer, some)):
            if times:
                parts.append(f"{one.label} at {times} of {len(one.steps)} steps")
    why = "half of the seeds or more have no finite value" if any_several(runs) else "no finite value was found"
    sentences = [f"A gap is where {why}: {join_words(none)}."] if none else []
    if some:
        sentences.append(f"The median is over fewer seeds where others have no finite value: {join_words(some)}.")
    return " ".join(sentences)


def over_layers(run: RunResults, name: str) -> float:
    """The median of a number over layers and measurements."""
    by_layer = [run.layer_values(layer, name) for layer in run.layer_names()]
    return quantile(np.concatenate(by_layer)) if by_layer else float("nan")


def _pairs(runs: Sequence[ProbeSeries], first: str, second: str) -> dict[str, tuple[str, str, int]]:
    """Two numbers of each label, written, over the seeds that have both; and how many these are."""
    pairs = {}
    for one in runs:
        both = np.array([[over_layers(run, first), over_layers(run, second)] for run in one.runs])
        both = both[np.isfinite(both).all(axis=1)]
        if len(both):
            texts = [format_spread(column) for column in both.T]
            pairs[one.label] = texts[0], texts[1], len(both)
    return pairs
