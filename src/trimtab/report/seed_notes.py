"""What must be known of the seeds to read a figure of probes: how many there are, and which of them fall short."""

from collections.abc import Sequence

from trimtab.report.formatting import format_count, join_words
from trimtab.report.probe_series import ProbeSeries, RunResults, any_several


def about_seeds(
    runs: Sequence[ProbeSeries], lines: str = "Lines are medians over {}, shades the ranges.", *, by_step: bool = True
) -> str:
    """How to read a figure of several seeds, and which seeds fall short; empty where each run is the only one.

    Args:
        runs: What is drawn.
        lines: What lines and shades are; the braces stand for the seeds.
        by_step: Whether the steps are on the x axis, so that it is seen where a seed ends.
    """
    sentences = []
    if any_several(runs):
        sentences.append(lines.format(count_seeds({one.label: len(one.runs) for one in runs})))
    short = [words for one in runs if (words := _short(one))]
    if short:
        sentences.append(f"{'; '.join(short)}.")
    if not by_step:
        return " ".join(sentences)
    if any(one.several and one.spread(lambda run: run.steps).tails for one in runs):
        sentences.append("A median ends where its first seed ends; what others have beyond that is thin, seed by seed.")
    if any(one.several and run.ending == "diverged" for one in runs for run in one.runs):
        sentences.append("× is the last measurement of a seed that diverged.")
    return " ".join(sentences)


def count_seeds(counts: dict[str, int], *, short: bool = False) -> str:
    """How many seeds: 3 seeds; or where they differ by label, in short from least to most."""
    least, most = min(counts.values()), max(counts.values())
    if least == most:
        return format_count(most, "seed")
    if short:
        return f"{least} to {most} seeds"
    return f"the seeds ({join_words(f'{count} with {label}' for label, count in counts.items())})"


def _short(one: ProbeSeries) -> str:
    """Which seeds diverged, were measured less often than another, or not at all."""
    most = max(len(run.steps) for run in one.runs)
    parts = [_measured(run, most) for run in one.runs if one.several and _falls_short(run, most)]
    if one.unmeasured:
        parts.append(f"{join_words(one.unmeasured)} without a measurement, left out")
    return f"{one.label}: {', '.join(parts)}" if parts else ""


def _falls_short(run: RunResults, most: int) -> bool:
    return run.ending == "diverged" or len(run.steps) < most


def _measured(run: RunResults, most: int) -> str:
    words = f"seed {run.seed}"
    if run.ending != "finished":
        words += f" {run.ending}, at step {run.last_step}," if run.ending == "diverged" else f" ({run.ending})"
    return f"{words} with {len(run.steps)} of {most} measurements"
