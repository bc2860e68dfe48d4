"""What benchmarks/divergence.py found, by loss, optimizer and mode: a table, and what `print(prediction)` says."""

import math
from collections import Counter
from typing import Any

from trimtab.prediction.divergence import EARLY, HIGHEST, LOWEST, MOMENTUM, STEPS, middle

LOSSES = {"squared": "½‖f − y‖²", "cross_entropy": "cross-entropy"}
OPTIMIZERS = {"sgd": "SGD", "momentum": f"SGD, momentum {MOMENTUM}", "bnp": "BNP, SGD", "adam": "Adam"}
MODES = {"batch": "BatchNorm, train mode", "none": "no BatchNorm"}

Row = dict[str, Any]


def percentile(values: list[float], share: float) -> float:
    """The smallest value that at least this share of all are not above: some may be infinite."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


def spread(values: list[float]) -> dict[str, float | int | None]:
    """Percentiles and ends of some multiples; None stands for one above all rates that were tried."""
    shown = {
        "p10": percentile(values, 0.1),
        "median": percentile(values, 0.5),
        "p90": percentile(values, 0.9),
        "min": min(values),
        "max": max(values),
    }
    rounded = {name: float(f"{value:.3g}") if math.isfinite(value) else None for name, value in shown.items()}
    return {**rounded, "never": sum(map(math.isinf, values)), "always": values.count(0.0)}


def summary(rows: list[Row]) -> dict[str, Any]:
    """All groups, and what was done for them."""
    good = [row for row in rows if "problem" not in row]
    groups = []
    for loss in LOSSES:
        for optimizer in OPTIMIZERS:
            for mode in MODES:
                here = [row for row in good if (row["loss"], row["optimizer"], row["mode"]) == (loss, optimizer, mode)]
                if here:
                    found = {edge: spread([middle(row[edge]) for row in here]) for edge in ("rise", "fail")}
                    networks = len({row["network"] for row in here})
                    named = {"loss": loss, "optimizer": optimizer, "mode": mode}
                    groups.append({**named, "trainings": len(here), "networks": networks, **found})
    return {
        "made_by": "benchmarks/divergence.py --write",
        "trainings": len(good),
        "problems": len(rows) - len(good),
        "never_learned": sum(not row["learned"] for row in good),
        "runs": sum(row["runs"] for row in good),
        "data": sorted({row["data"] for row in good}),
        "samples": sorted({row["samples"] for row in good}),
        "steps": STEPS,
        "early_steps": EARLY,
        "momentum": MOMENTUM,
        "tried": [LOWEST, HIGHEST],
        "machine": sorted({row["machine"] for row in good}),
        "torch": sorted({row["torch"] for row in good}),
        "groups": groups,
    }


def table(rows: list[Row]) -> str:
    """In Markdown."""
    found = summary(rows)
    heads = ("loss", "optimizer", "mode", "trainings", "begins to rise, 10 % to 90 %", "median", "least to most")
    heads += ("fails, 10 % to 90 %", "median", "least to most", "never fails")
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for group in found["groups"]:
        names = (LOSSES[group["loss"]], OPTIMIZERS[group["optimizer"]], MODES[group["mode"]], str(group["trainings"]))
        cells = [cell for edge in ("rise", "fail") for cell in _cells(group[edge])]
        lines.append(f"| {' | '.join((*names, *cells, str(group['fail']['never'])))} |")
    lines += ["", f"{found['trainings']} cells, {found['runs']} trainings; {', '.join(found['machine'])}."]
    lines += [f"{found['never_learned']} were at no rate better than the best constant output."]
    problems = Counter(row["problem"] for row in rows if "problem" in row)
    return "\n".join([*lines, *(f"{count} ended with {problem}" for problem, count in problems.items())])


def _cells(found: dict[str, Any]) -> list[str]:
    low, middle, high, least, most = (_shown(found[name]) for name in ("p10", "median", "p90", "min", "max"))
    return [f"{low} to {high}", middle, f"{least} to {most}"]


def _shown(value: float | None) -> str:
    return f"> {HIGHEST:g}" if value is None else f"< {LOWEST:.2g}" if value == 0 else f"{value:.3g}"
