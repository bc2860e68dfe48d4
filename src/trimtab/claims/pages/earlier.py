"""Runs of ours that had been seen when criteria were written: shown beside verdicts, and no part of any.

They are files of their own kind in `earlier/`, which no store of records looks into.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from trimtab.claims.pages.summary import JudgedBlock

SHOWN = (1, 5, 10, 20, 40, 80, 85, 120, 160)
"""Epochs that tables show: on the way, before the first decay, five epochs after it, before the second, at the end."""


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """One run for each of several methods.

    Attributes:
        experiment: Beside whose claims it is shown.
        title: What was trained.
        seed: Of all of them.
        command: How.
        machine: The hardware.
        commit: Of trimtab's source.
        versions: Of what it was run with.
        minutes: The least and the most that one of them took.
        about: How they were run.
        accuracy: By method, test accuracy in points after each epoch.
    """

    experiment: str
    title: str
    seed: int
    command: str
    machine: str
    commit: str
    versions: str
    minutes: tuple[float, float]
    about: str
    accuracy: dict[str, list[float]]

    @property
    def lines(self) -> dict[str, list[list[float]]]:
        """As lines of a figure."""
        return {method: [[i, y] for i, y in enumerate(ys, start=1)] for method, ys in self.accuracy.items()}

    @property
    def head(self) -> list[str]:
        """The columns of its table."""
        return ["epoch", *(str(epoch) for epoch in SHOWN)]

    @property
    def rows(self) -> list[list[str]]:
        """The rows of its table."""
        return [[method, *(f"{ys[epoch - 1]:.2f}" for epoch in SHOWN)] for method, ys in self.accuracy.items()]

    @property
    def sentence(self) -> str:
        """What it is, and that it does not count."""
        return (
            f"An earlier run, seen when the criteria were written, not counted in any verdict: {self.title}, "
            f"seed {self.seed}, one run for each method. Test accuracy in %:"
        )

    @property
    def about_it(self) -> str:
        """With what it was made."""
        least, most = self.minutes
        return f"{self.machine}, {self.versions}, commit {self.commit}, {least:g} to {most:g} min each; {self.about}"


@cache
def earlier_runs() -> tuple[EarlierRun, ...]:
    """All of them."""
    found = sorted((files("trimtab.claims") / "earlier").iterdir(), key=lambda file: file.name)
    contents = [json.loads(file.read_text(encoding="utf-8")) for file in found if file.name.endswith(".json")]
    return tuple(EarlierRun(**{**content, "minutes": tuple(content["minutes"])}) for content in contents)


def earlier_in(block: JudgedBlock) -> Sequence[EarlierRun]:
    """Those that are shown in a block: in the first one that has claims on their experiment as its own."""
    own = {row.claim.experiment for row in block.rows}
    return [run for run in earlier_runs() if run.experiment in own]
