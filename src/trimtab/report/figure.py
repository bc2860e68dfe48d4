"""A comparison as a figure."""

import os
from pathlib import Path

from trimtab.records import Comparison
from trimtab.report.table import HEADINGS

# Okabe and Ito's palette, which colour-blind readers can tell apart; markers and lines differ too.
STYLES = {
    "vanilla": ("#999999", "s", ":"),
    "bn": ("#0072B2", "^", "--"),
    "ln": ("#E69F00", "D", "-."),
    "bnp": ("#D55E00", "o", "-"),
}
TICKS = (0.1, 0.2, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99)
TITLES = {"small-cnn": "small CNN", "small-mlp": "small fully connected network"}


def draw(comparison: Comparison, path: Path) -> None:
    """Test accuracy against batch size, one panel per network; whole or not at all.

    The scale is logistic, since the step from 98 to 99 % halves the errors and that from 58 to 59 % does not.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter, NullLocator

    networks = list(dict.fromkeys(cell.network for cell in comparison.cells))
    sizes = list(dict.fromkeys(cell.batch_size for cell in comparison.cells))
    with mpl.rc_context({"font.size": 11, "svg.fonttype": "none"}):
        figure = Figure(figsize=(10, 4.4), layout="constrained")
        panels = figure.subplots(1, len(networks), sharey=True, squeeze=False)[0]
        for panel, network in zip(panels, networks, strict=True):
            for shift, (method, (color, marker, line)) in enumerate(STYLES.items()):
                found = [c for c in comparison.cells if (c.network, c.method) == (network, method) and c.accuracies]
                if not found:
                    continue
                places = [sizes.index(c.batch_size) + 0.08 * (shift - 1.5) for c in found]
                means = [_inside(c.mean or 0) for c in found]
                below = [mean - _inside(min(c.accuracies)) for mean, c in zip(means, found, strict=True)]
                above = [_inside(max(c.accuracies)) - mean for mean, c in zip(means, found, strict=True)]
                panel.errorbar(
                    places,
                    means,
                    yerr=[below, above],
                    color=color,
                    marker=marker,
                    linestyle=line,
                    markersize=6,
                    linewidth=1.8,
                    capsize=3,
                    label=HEADINGS[method],
                )
            panel.set_title(TITLES.get(network, network))
            panel.set_xticks(range(len(sizes)), [str(size) for size in sizes])
            panel.set_xlabel("batch size")
            panel.set_yscale("logit")
            panel.set_yticks(TICKS, [f"{100 * tick:g}" for tick in TICKS])
            panel.yaxis.set_minor_formatter(NullFormatter())
            panel.yaxis.set_minor_locator(NullLocator())
            panel.grid(axis="y", alpha=0.3)
            panel.spines[["top", "right"]].set_visible(False)
        panels[0].set_ylabel("test accuracy in % (logistic scale)")
        panels[-1].legend(frameon=False)
        figure.text(0.005, -0.03, f"{comparison.data}. {comparison.machine}.", fontsize=8, color="#555555")
        unfinished = path.with_name(f".{path.name}.unfinished")
        try:
            figure.savefig(unfinished, format=path.suffix[1:], dpi=150, bbox_inches="tight")
            os.replace(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)


def _inside(accuracy: float) -> float:
    """Away from 0 and 1, which a logistic scale cannot show."""
    return min(max(accuracy, 0.01), 0.999)
