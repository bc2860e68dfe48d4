"""How runs ended, and with what."""

from trimtab.records import Evaluated, History, Metric
from trimtab.report.formatting import join_words
from trimtab.report.report_data import Curve, Panel, Subject


def runs(subject: Subject) -> list[History]:
    """All runs of a subject."""
    return [run for _, curve in subject.curves for run in curve.runs]


def ending(run: History) -> str:
    """How a run ended, in a word or two."""
    return run.ended.verdict if run.ended is not None else "not finished"


def last_step(run: History) -> int:
    """How far it came."""
    if run.ended is not None:
        return run.ended.step
    return max([event.step for event in run.trained] + [event.step for event in run.evaluated], default=0)


def endings(panel: Panel) -> list[str]:
    """Which runs of a panel did not finish, in words."""
    sentences = []
    for curve in panel.curves:
        for word in dict.fromkeys(map(ending, curve.runs)):
            ended = [run for run in curve.runs if ending(run) == word]
            if word != "finished":
                steps = join_words(sorted(set(map(last_step, ended))))
                sentences.append(f"{curve.label}: {len(ended)} of {len(curve.runs)} {word}, at step {steps}.")
    return sentences


def last_evaluations(curve: Curve) -> list[Evaluated]:
    """The last evaluation of each run that finished."""
    return [run.evaluated[-1] for run in curve.runs if run.evaluated and ending(run) == "finished"]


def finals(curve: Curve, metric: Metric) -> list[float]:
    """What the runs that finished came to."""
    values = [one.accuracy if metric == "accuracy" else one.loss for one in last_evaluations(curve)]
    return [value for value in values if value is not None]
