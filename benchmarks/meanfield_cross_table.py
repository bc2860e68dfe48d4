"""Tables of predicted over measured eigenvalues: used by meanfield_cross.py."""

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from meanfield_cross import KEY, Case, measurements, read
from meanfield_gram import TARGETS
from meanfield_networks import describe

CLOSE, FAR = (0.9, 1.1), (0.8, 1.25)


@dataclass(frozen=True)
class Row:
    """One prediction beside what was measured.

    Attributes:
        index: Of the network.
        family: Its kind.
        data: Its inputs.
        mode: `frozen`, `train` or `plain`.
        target: `one`, `all` or `ce`.
        measured: The mean over draws.
        draws: How many.
        spread: The deviation of single draws, as a share of the mean.
        predicted: What was predicted; NaN if that failed.
        unseen: Why it may be wrong.
        seconds: How long that took.
        text: The network in a line.
    """

    index: int
    family: str
    data: str
    mode: str
    target: str
    measured: float
    draws: int
    spread: float
    predicted: float
    unseen: tuple[str, ...]
    seconds: float
    text: str

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted / self.measured

    @property
    def error(self) -> float:
        """The standard error of the ratio."""
        return self.ratio * self.spread / math.sqrt(self.draws)

    @property
    def close(self) -> bool:
        """Within a tenth."""
        return CLOSE[0] <= self.ratio <= CLOSE[1]

    @property
    def far(self) -> bool:
        """Out of what may happen without a flag."""
        return not FAR[0] <= self.ratio <= FAR[1]


def rows(cases: Sequence[Case], options: argparse.Namespace) -> list[Row]:
    """All that was measured and predicted."""
    measured = measurements(options.folder)
    value, flags = ("formulas", "formulas_unseen") if options.formulas else ("predicted", "unseen")
    predicted: dict[tuple[Any, ...], dict[str, Any]] = {}
    for one in read(sorted(options.folder.glob("predicted*.jsonl"))):
        predicted[*(one[name] for name in KEY), one["target"]] = one
    found = []
    for case in cases:
        key = tuple(case.key.values())
        values = np.array(measured.get(key, []))
        for number, target in enumerate(TARGETS):
            told = predicted.get((*key, target))
            if told is None or len(values) < 2:
                continue
            mean, deviation = float(values[:, number].mean()), float(values[:, number].std(ddof=1))
            found.append(
                Row(
                    index=case.index,
                    family=case.spec["family"],
                    data=case.data,
                    mode=case.mode,
                    target=target,
                    measured=mean,
                    draws=len(values),
                    spread=deviation / mean,
                    predicted=math.nan if told.get(value) is None else told[value],
                    unseen=tuple(told[flags]),
                    seconds=told["seconds"],
                    text=describe(case.spec),
                )
            )
    return found


def _share(some: Sequence[Row], test: Callable[[Row], bool]) -> str:
    return f"{100 * sum(map(test, some)) / len(some):.0f} %" if some else "–"


def _line(name: str, some: Sequence[Row]) -> str:
    open_, flagged = [row for row in some if not row.unseen], [row for row in some if row.unseen]
    ratios = [row.ratio for row in open_]
    middle = f"{np.median(ratios):.3f}" if ratios else "–"
    ends = f"{min(ratios):.2f} to {max(ratios):.2f}" if ratios else "–"
    parts = (
        name,
        str(len(some)),
        _share(some, lambda row: bool(row.unseen)),
        _share(open_, lambda row: row.close),
        str(sum(row.far for row in open_)),
        middle,
        ends,
        _share(flagged, lambda row: row.close),
        _share(some, lambda row: row.close),
    )
    return f"| {' | '.join(parts)} |"


def summary(all_rows: Sequence[Row]) -> list[str]:
    """Shares, for all and for parts of the cross."""
    heads = ("", "cases", "flagged", "unflagged within 0.9–1.1", "outside 0.8–1.25", "median", "from, to")
    lines = [f"| {' | '.join((*heads, 'flagged within 0.9–1.1', 'all within 0.9–1.1'))} |", "|" + "---|" * 9]
    lines.append(_line("all", all_rows))
    groups = ("target", "family", "data", "mode", "family data", "data target", "family mode target")
    for names in map(str.split, groups):
        kinds = sorted({tuple(getattr(row, name) for name in names) for row in all_rows})
        for kind in kinds:
            some = [row for row in all_rows if tuple(getattr(row, name) for name in names) == kind]
            lines.append(
                _line(" ".join({"all": "all outputs", "one": "one output"}.get(word, word) for word in kind), some)
            )
    return lines


def flags(all_rows: Sequence[Row]) -> list[str]:
    """Each sentence without its numbers and names: how often it was said, and how often there was no need."""
    said: dict[str, list[Row]] = {}
    for row in all_rows:
        for sentence in row.unseen:
            short = " ".join(word for word in sentence.split() if not any(map(str.isdigit, word)))
            said.setdefault(short[:90], []).append(row)
    order = sorted(said.items(), key=lambda item: -len(item[1]))
    return [
        "| said | times | within 0.9–1.1 | outside 0.8–1.25 |",
        "|---|---|---|---|",
        *(
            f"| {text} | {len(some)} | {_share(some, lambda r: r.close)} | {sum(r.far for r in some)} |"
            for text, some in order
        ),
    ]


def each(some: Sequence[Row]) -> list[str]:
    """A line for each prediction."""
    lines = [
        "| # | network | data | mode | target | measured | spread | predicted ÷ measured | flags |",
        "|" + "---|" * 9,
    ]
    for row in some:
        marks = "far" if row.far and not row.unseen else ""
        marks += f"{len(row.unseen)}: {row.unseen[0][:60]}" if row.unseen else ""
        lines.append(
            f"| {row.index} | {row.text} | {row.data} | {row.mode} | {row.target} | {row.measured:.4g} | "
            f"{100 * row.spread:.0f} % | {row.ratio:.3f} ± {row.error:.3f} | {marks} |"
        )
    return lines


def compact(all_rows: Sequence[Row]) -> list[str]:
    """A line for each network, data and mode: the ratios for the three targets, in brackets if flagged."""
    lines = ["| # | network | data | mode | one output | all outputs | cross-entropy |", "|" + "---|" * 7]
    groups: dict[tuple[int, str, str, str], dict[str, Row]] = {}
    for row in all_rows:
        groups.setdefault((row.index, row.text, row.data, row.mode), {})[row.target] = row
    for (index, text, data, mode), of in groups.items():
        shown = []
        for target in TARGETS:
            ratio = f"{of[target].ratio:.2f}" if target in of else "–"
            shown.append(f"[{ratio}]" if target in of and of[target].unseen else ratio)
        lines.append(f"| {index} | {text} | {data} | {mode} | {' | '.join(shown)} |")
    return lines


def distance(row: Row) -> float:
    """How far a ratio is from one; a failure is the farthest."""
    return abs(math.log(row.ratio)) if row.ratio > 0 else math.inf


def show(cases: Sequence[Case], options: argparse.Namespace) -> None:
    """Print the tables, and keep all rows as JSON if asked to."""
    found = rows(cases, options)
    if not found:
        print("Nothing is both measured and predicted.")
        return
    draws = sorted({row.draws for row in found})
    networks = len({row.index for row in found})
    print(f"Seed {options.seed}, {networks} networks, {options.samples} samples, {draws[0]} to {draws[-1]} draws.")
    slow = max(found, key=lambda row: row.seconds)
    noise = max(row.spread / math.sqrt(row.draws) for row in found)
    print(f"The slowest prediction took {slow.seconds} s (# {slow.index}); standard errors are up to {noise:.1%}.\n")
    print("\n".join(summary(found)), "\n")
    print("\n".join(flags(found)), "\n")
    open_ = sorted((row for row in found if not row.unseen), key=distance, reverse=True)
    far = [row for row in open_ if row.far]
    print(f"Outside {FAR[0]}–{FAR[1]} and not flagged: {len(far)}\n")
    if options.worst:
        print("\n".join(each(open_[: options.worst])), "\n")
        specs = {case.index: case.spec for case in cases}
        for index in dict.fromkeys(row.index for row in open_[: options.worst]):
            print(index, json.dumps(specs[index]))
    else:
        print("\n".join(each(far)), "\n")
        print("\n".join(compact(found)))
    if options.json:
        kept = [{**asdict(row), "ratio": row.ratio, "error": row.error} for row in found]
        options.json.write_text(json.dumps({"seed": options.seed, "rows": kept}, ensure_ascii=False), encoding="utf-8")
