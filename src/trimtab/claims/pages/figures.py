"""The figures of the ledger: curves of records, laid out as the papers' figures by `figures.toml`."""

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
    records = _largest(blocks)
    found: dict[str, list[PaperFigure]] = {block.block.number: [] for block in blocks}
    placed: set[tuple[str, str]] = set()
    for declared in layout():
        panels = tuple(_declared(declared, records))
        named = {(panel["experiment"], name) for panel in declared["panels"] for name in _curves_of(panel)}
        if declared["block"] in found and any(one.record for one in panels):
            found[declared["block"]].append(PaperFigure(declared["name"], declared["title"], panels))
            placed |= named
    for block in blocks:
        for name in dict.fromkeys(record.experiment for record in block.records):
            left = [panel for panel in records[name].curves if (name, panel) not in placed]
            if left:
                placed |= {(name, panel) for panel in left}
                found[block.block.number].append(_other(records[name], left))
    return found


def _largest(blocks: Sequence[JudgedBlock]) -> dict[str, Record]:
    """The records by experiment, each at the largest size at which it has curves."""
    found: dict[str, Record] = {}
    everything = [record for block in blocks for record in block.records]
    for record in sorted(everything, key=lambda one: (bool(one.curves), SIZES.index(one.size)), reverse=True):
        found.setdefault(record.experiment, record)
    return found


def _curves_of(panel: Mapping[str, Any]) -> list[str]:
    return [panel[key] for key in ("curve", "over") if key in panel]


def _declared(declared: Mapping[str, Any], records: Mapping[str, Record]) -> Iterator[PlacedPanel]:
    """The panels of a declared figure; one whose experiment has no record says so, one without a curve is left out."""
    for panel in declared["panels"]:
        x, y = (panel.get(axis, declared.get(axis, "")) for axis in ("x", "y"))
        record = records.get(panel["experiment"])
        if record is None:
            yield PlacedPanel(LinePanel(panel["title"], {}, x, y, empty="not run"))
        elif panel["curve"] in record.curves:
            lines = record.curves[panel["curve"]]
            if "over" in panel:
                over = record.curves.get(panel["over"], {})
                yield PlacedPanel(_map(panel["title"], lines, over, x, y), record)
            else:
                yield PlacedPanel(
                    LinePanel(panel["title"], lines, x, y, points=panel.get("points", False)),
                    record,
                    shaded=panel.get("shaded", OVER_SEEDS),
                )
        if panel.get("earlier"):
            for run in earlier_runs():
                if run.experiment == panel["experiment"]:
                    title = f"earlier run, seed {run.seed}, not counted"
                    yield PlacedPanel(LinePanel(title, run.lines, x, y), earlier=run)


def _map(title: str, lines: Lines, over: Lines, x: str, y: str) -> LinePanel:
    """A map over two axes; each line of the record is a row of it: `γ = 0.1`, with points (η, loss)."""
    rows = [(float(name.rpartition("=")[2]), points) for name, points in lines.items()]
    cells = tuple((point[0], height, point[1]) for height, points in rows for point in points)
    turned = {name: [[rate, height] for height, rate in points] for name, points in over.items()}
    return LinePanel(title, turned, x, y, cells=cells, of_cells="test loss")


def _other(record: Record, panels: Sequence[str]) -> PaperFigure:
    """Curves that no figure of a paper has."""
    named = tuple(PlacedPanel(LinePanel.named(panel, record.curves[panel]), record) for panel in panels)
    return PaperFigure(slug(record.experiment), f"Beside: {record.experiment}", named)
