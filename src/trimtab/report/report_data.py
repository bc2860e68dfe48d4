"""What a report is about: comparisons and runs, sorted into panels and curves. `collect` reads them from folders."""

from dataclasses import dataclass

from trimtab.records import Cell, Comparison, History, Metric, Sweep
from trimtab.report.curves import Line, Quantity, line


@dataclass(frozen=True, slots=True)
class Curve:
    """Runs that differ in the seed only."""

    method: str
    label: str
    runs: tuple[History, ...]

    def line(self, quantity: Quantity, metric: Metric) -> Line:
        """The mean over the runs as a line, with the range over the runs."""
        return line(self.runs, quantity, metric)


@dataclass(frozen=True, slots=True)
class Panel:
    """The curves of one figure: runs of one network at one batch size.

    Attributes:
        name: Its name, for files.
        title: Its title, for people.
        metric: What is measured on held-out data.
        curves: The runs, as curves.
        cells: The cells of the comparison that have this network and batch size; empty without a comparison.
    """

    name: str
    title: str
    metric: Metric
    curves: tuple[Curve, ...]
    cells: tuple[Cell, ...] = ()

    @property
    def part(self) -> str:
        """Which part of the data the runs were evaluated on."""
        parts = {run.evaluated[-1].part for curve in self.curves for run in curve.runs if run.evaluated}
        return " or ".join(sorted(parts)) or "test"


@dataclass(frozen=True, slots=True)
class Subject:
    """A comparison with its runs, or all runs that belong to no comparison.

    Attributes:
        name: The prefix of the names of its figures; empty if it is the only subject.
        comparison: The results of the comparison; None for runs that belong to none.
        panels: The runs.
        folder: The name of the comparison's folder.
    """

    name: str
    comparison: Comparison | None
    panels: tuple[Panel, ...]
    folder: str = ""

    @property
    def curves(self) -> list[tuple[Panel, Curve]]:
        """All curves, each with its panel."""
        return [(panel, curve) for panel in self.panels for curve in panel.curves]


@dataclass(frozen=True, slots=True)
class SweepSubject:
    """A sweep, the name of its folder, and the prefix of the names of its figures."""

    name: str
    sweep: Sweep
    folder: str = ""


@dataclass(frozen=True, slots=True)
class ReportData:
    """Everything that a report is about, and a sentence for each record that cannot be read."""

    subjects: tuple[Subject, ...]
    problems: tuple[str, ...] = ()
    sweeps: tuple[SweepSubject, ...] = ()
