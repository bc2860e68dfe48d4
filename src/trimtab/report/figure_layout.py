"""The layout that all figures share: size, title and legend, and the text in axes without values."""

from collections.abc import Sequence
from textwrap import fill

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from trimtab.report.styles import LIGHT, Dashes, Style

WIDTH = 4.6
"""The width of a figure in inches. It fits a narrow screen, so that text is not scaled down there."""


def line_handle(look: Style, label: str, dashes: Dashes) -> Line2D:
    """A line as it looks in a legend."""
    face = LIGHT["paper"] if look.hollow else look.ink
    return Line2D(
        [],
        [],
        color=look.ink,
        linestyle=dashes,
        linewidth=1.8,
        marker=look.marker,
        markersize=5.5,
        markerfacecolor=face,
        label=label,
    )


def new_figure(height: float, labels: Sequence[str], width: float = WIDTH) -> Figure:
    """An empty figure with room for a title and a legend above axes of a certain height."""
    deep = -(-len(labels) // _columns(labels, 72 * width)) if labels else 0
    return Figure(figsize=(width, height + 0.2 + 0.2 * deep), layout="constrained")


def explain_empty(axes: Axes, why: str) -> None:
    """Write into axes without values why there are none. They get no ticks."""
    room = axes.get_window_extent().width / axes.get_figure(root=True).dpi * 72  # type: ignore[union-attr]
    axes.text(
        0.5,
        0.5,
        fill(why, max(int(room / 5.5), 12)),
        transform=axes.transAxes,
        horizontalalignment="center",
        verticalalignment="center",
        fontsize=9,
        color=LIGHT["muted"],
        in_layout=False,
    )
    axes.set_yticks([])
    axes.grid(visible=False)


def add_title_and_legend(figure: Figure, what: str, where: str, handles: Sequence[Line2D]) -> None:
    """Put the title (`what` is shown, `where` it was measured) and the legend above the axes."""
    text = "\n".join(filter(None, (what, where)))
    if not handles:
        figure.suptitle(text, fontsize=11)
        return
    legend = figure.legend(
        handles=handles,
        title=text,
        title_fontsize=11,
        loc="outside upper center",
        ncols=_columns([str(handle.get_label()) for handle in handles], 72 * figure.get_figwidth()),
        frameon=False,
        handlelength=2.0,
        columnspacing=1.0,
        handletextpad=0.4,
        borderaxespad=0.1,
    )
    legend.get_title().set_multialignment("center")


def _columns(labels: Sequence[str], width: float) -> int:
    """How many columns of a legend fit a width in points, if a letter takes about six points."""
    for columns in range(len(labels), 1, -1):
        deep = -(-len(labels) // columns)
        chunks = [labels[i : i + deep] for i in range(0, len(labels), deep)]
        if len(chunks) == columns and sum(36 + 6.2 * max(map(len, chunk)) for chunk in chunks) <= width:
            return columns
    return 1
