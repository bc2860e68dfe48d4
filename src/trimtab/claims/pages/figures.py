"""The figures of the ledger: curves of records, laid out as the papers' figures by `figures.toml`."""

import fnmatch
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from trimtab.claims.pages.earlier import EarlierRun, earlier_runs
from trimtab.claims.pages.summary import JudgedBlock
from trimtab.claims.record import SIZES, Record
from trimtab.report.formatting import slug
from trimtab.report.line_figures import LinePanel, Lines

Curves = Mapping[str, Mapping[str, Record]]
"""By experiment and curve, the record that has it."""
OVER_SEEDS = "Lines are medians over seeds, shades their ranges."


@dataclass(frozen=True, slots=True)
class PlacedPanel:
    """A panel of a figure, and where its lines are from.

    Attributes:
        panel: What is drawn.
        record: Whose curves these are; None: not run, or an earlier run.
        earlier: The earlier run that is drawn, if it is one.
        shaded: What lines and shades are, where there are shades.
    """

    panel: LinePanel
    record: Record | None = None
    earlier: EarlierRun | None = None
    shaded: str = OVER_SEEDS

    @property
    def is_drawn(self) -> bool:
        """Whether there is something to draw; otherwise its experiment has not been run."""
        return self.record is not None or self.earlier is not None

    @property
    def shade(self) -> str:
        """What lines and shades are; empty without shades."""
        ranges = (len(point) > 3 for points in self.panel.lines.values() for point in points)
        return self.shaded if any(ranges) else ""

    @property
    def source(self) -> str:
        """Where its lines are from, in words."""
        if self.earlier is not None:
            return f"earlier run, seed {self.earlier.seed}, not counted in any verdict"
        if self.record is None:
            return "not run"
        neighbour = f"; {self.record.neighbour}" if self.record.neighbour else ""
        return f"{self.record.experiment}, size {self.record.size}{neighbour}"


@dataclass(frozen=True, slots=True)
class PaperFigure:
    """A figure of a block.

    Attributes:
        name: For a file.
        title: Which figure of the paper it is, and what it shows.
        panels: From left to right.
    """

    name: str
    title: str
    panels: tuple[PlacedPanel, ...]

    @property
    def experiments(self) -> set[str]:
        """Whose records it shows."""
        return {one.record.experiment for one in self.panels if one.record is not None}

    @property
    def caption(self) -> str:
        """Its title, where each panel's lines are from, and what is shaded."""
        sources = list(dict.fromkeys(one.source for one in self.panels))
        named = [one.source if one.earlier else f"{one.panel.title}: {one.source}" for one in self.panels]
        told = sources[0] if len(sources) == 1 else "; ".join(named)
        shades = dict.fromkeys(one.shade for one in self.panels if one.shade)
        return " ".join([f"{self.title} ({told}).", *shades])


@cache
def layout() -> tuple[Mapping[str, Any], ...]:
    """The figures of the papers, as they are declared."""
    text = (files("trimtab.claims.pages") / "figures.toml").read_text(encoding="utf-8")
    return tuple(tomllib.loads(text)["figure"])


def figures(blocks: Sequence[JudgedBlock]) -> dict[str, list[PaperFigure]]:
    """The figures of each block, by its number.

    First those of the papers that have a panel with a record, then all other curves, a figure for each experiment,
    where claims are first judged by it. So each curve is drawn once; of several sizes the largest one is.
    """
    curves = _curves(blocks)
    found: dict[str, list[PaperFigure]] = {block.block.number: [] for block in blocks}
    placed: set[tuple[str, str]] = set()
    for declared in layout():
        panels = tuple(_declared(declared, curves))
        if declared["block"] in found and any(one.record for one in panels):
            found[declared["block"]].append(PaperFigure(declared["name"], declared["title"], panels))
        placed |= {(panel["experiment"], name) for panel in declared["panels"] for name in _named(panel, curves)}
    for block in blocks:
        for experiment in dict.fromkeys(record.experiment for record in block.records):
            left = {name: one for name, one in curves[experiment].items() if (experiment, name) not in placed}
            if left:
                placed |= {(experiment, name) for name in left}
                found[block.block.number].append(_other(experiment, left))
    return found


def _curves(blocks: Sequence[JudgedBlock]) -> dict[str, dict[str, Record]]:
    """By experiment and curve, the record of the largest size that has it."""
    found: dict[str, dict[str, Record]] = {}
    everything = [record for block in blocks for record in block.records]
    for record in sorted(everything, key=lambda one: SIZES.index(one.size), reverse=True):
        known = found.setdefault(record.experiment, {})
        for name in record.curves:
            known.setdefault(name, record)
    return found


def _named(panel: Mapping[str, Any], curves: Curves) -> list[str]:
    """The curves that a declared panel names."""
    names = [panel[key] for key in ("curve", "over") if key in panel]
    known = curves.get(panel["experiment"], {})
    return [curve for name in names for curve in (fnmatch.filter(known, name) if name.endswith("*") else [name])]


def _declared(declared: Mapping[str, Any], curves: Curves) -> Iterator[PlacedPanel]:
    """The panels of a declared figure; one whose experiment has no record says so, one without a curve is left out."""
    for panel in declared["panels"]:
        x, y = (panel.get(axis, declared.get(axis, "")) for axis in ("x", "y"))
        known = curves.get(panel["experiment"])
        if known is None:
            yield PlacedPanel(LinePanel(panel.get("title", ""), {}, x, y, empty="not run"))
            continue
        over = panel.get("over")
        for name in _named(panel, curves):
            if name in known and name != over:
                record, lines = known[name], known[name].curves[name]
                title = panel.get("title") or name.removeprefix(panel["curve"].rstrip("*"))
                if over is not None:
                    yield PlacedPanel(_map(title, lines, record.curves.get(over, {}), x, y), record)
                else:
                    drawn = LinePanel(title, lines, x, y, points=panel.get("points", False))
                    yield PlacedPanel(drawn, record, shaded=panel.get("shaded", OVER_SEEDS))
        for run in earlier_runs() if panel.get("earlier") else ():
            if run.experiment == panel["experiment"]:
                title = f"earlier run, seed {run.seed}, not counted"
                yield PlacedPanel(LinePanel(title, run.lines, x, y), earlier=run)


def _map(title: str, lines: Lines, over: Lines, x: str, y: str) -> LinePanel:
    """A map over two axes; each line of the record is a row of it: `γ = 0.1`, with points (η, loss)."""
    rows = [(float(name.rpartition("=")[2]), points) for name, points in lines.items()]
    cells = tuple((point[0], height, point[1]) for height, points in rows for point in points)
    turned = {name: [[rate, height] for height, rate in points] for name, points in over.items()}
    return LinePanel(title, turned, x, y, cells=cells, of_cells="test loss")


def _other(experiment: str, records: Mapping[str, Record]) -> PaperFigure:
    """Curves that no figure of a paper has."""
    named = tuple(PlacedPanel(LinePanel.named(name, record.curves[name]), record) for name, record in records.items())
    return PaperFigure(slug(experiment), f"Beside: {experiment}", named)
