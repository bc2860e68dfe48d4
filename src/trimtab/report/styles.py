"""What the lines of a figure look like.

The colours are Okabe and Ito's, which colour-blind readers can tell apart, darkened for a light background and
lightened for a dark one where lines would be too faint. Figures are drawn in the light ones; in the page each stands
for a variable of the style sheet, so that one drawing suits both backgrounds. Markers and dashes differ too.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Literal

Dashes = Literal["-", "--", "-.", ":"] | tuple[float, tuple[float, ...]]
LIGHT = {
    "paper": "#ffffff",
    "ink": "#1b1f24",
    "muted": "#57606a",
    "grid": "#d8dce1",
    "grey": "#7d7d7d",
    "blue": "#0072b2",
    "orange": "#bf8300",
    "vermillion": "#d55e00",
    "green": "#009e73",
    "purple": "#b85c90",
    "sky": "#2d93cf",
    "olive": "#8a8300",
}
DARK = {
    "paper": "#15181c",
    "ink": "#e8eaed",
    "muted": "#a3abb5",
    "grid": "#3a4048",
    "grey": "#a0a0a0",
    "blue": "#3d9fe0",
    "orange": "#e69f00",
    "vermillion": "#f0742a",
    "green": "#1fbd8f",
    "purple": "#d98bb8",
    "sky": "#7cc8f5",
    "olive": "#d9ce3f",
}


@dataclass(frozen=True, slots=True)
class Style:
    """How one line is drawn.

    Attributes:
        color: A name in the palettes.
        marker: Its marker.
        line: Its dashes where all lines of a figure are of one kind.
        hollow: Whether the marker is empty.
    """

    color: str
    marker: str
    line: Dashes
    hollow: bool = False

    @property
    def ink(self) -> str:
        """The colour on paper."""
        return LIGHT[self.color]

    @property
    def measured(self) -> Dashes:
        """Dashes of what is measured on held-out data: a solid line, in the second round one with small gaps."""
        return (0, (9.0, 1.5)) if self.hollow else "-"

    @property
    def trained(self) -> Dashes:
        """Dashes of the training loss: dashed, in the second round finer."""
        return (0, (1.5, 1.5)) if self.hollow else (0, (4.0, 2.0))


FIXED = {
    "vanilla": Style("grey", "s", ":"),
    "bn": Style("blue", "^", "--"),
    "ln": Style("orange", "D", "-."),
    "bnp": Style("vermillion", "o", "-"),
}
FREE = (
    Style("green", "v", (0, (5.0, 1.0))),
    Style("purple", "P", (0, (3.0, 1.0, 1.0, 1.0))),
    Style("ink", "X", (0, (1.0, 1.0))),
    Style("sky", "<", (0, (8.0, 2.0))),
    Style("olive", ">", (0, (3.0, 1.0, 1.0, 1.0, 1.0, 1.0))),
)


def styles(lines: Iterable[tuple[str, str]]) -> dict[str, Style]:
    """A style for each label, given methods and labels in order.

    The first line of a well-known method gets that method's own style. The others get what is left, then all colours
    once more, each with another marker, which is empty, and other dashes: eighteen lines can be told apart.
    """
    chosen: dict[str, Style] = {}
    waiting = []
    for method, label in dict.fromkeys(lines):
        if method in FIXED and FIXED[method] not in chosen.values():
            chosen[label] = FIXED[method]
        else:
            waiting.append(label)
    everything = [*FREE, *FIXED.values()]
    left = [style for style in everything if style not in chosen.values()]
    again = [
        replace(style, marker=other.marker, line=other.line, hollow=True)
        for style, other in zip(everything, everything[5:] + everything[:5], strict=True)
    ]
    return chosen | dict(zip(waiting, cycle(left + again), strict=False))


_HOLLOW = {
    **{"noisy-bn": "green", "l1": "green", "l2": "purple", "linf": "ink", "wn+mean-bn": "green", "wn+var-bn": "purple"},
    **{"in": "purple", "elu": "ink", "selu": "sky"},
}
"""Methods beside the usual ones; those that never meet in a figure share a colour."""
_SOLID = ("vanilla", "bn", "ln", "bnp", "gn", "bnp+gn", "brn", "bn4", "wn")
_ALSO = {"sgd": "vanilla", "without bn": "vanilla"}
_OWN = styles((method, method) for method in _SOLID) | {
    method: replace(next(style for style in FREE if style.color == color), hollow=True)
    for method, color in _HOLLOW.items()
}
_RATES = {
    "η* paper": Style("vermillion", "v", "-"),
    "η* exact": Style("ink", "P", "-", hollow=True),  # its gaps show the paper's, where both are the same
    "η* train": Style("purple", "X", "-"),
    "η* loss": Style("orange", "D", "-"),
    "η_c": Style("green", "o", "-"),
    "best rate": Style("sky", "<", "-", hollow=True),
}
"""Learning rates that are predicted or measured."""


def method_styles(labels: Sequence[str]) -> dict[str, Style]:
    """A style for each line, the same for a method in every figure.

    A line belongs to the method that its label begins with: `bn`, `bn, N = 2000` and `BN, drawn` are lines of `bn`. The
    first one has that method's style, the others its colour with another marker. Lines of no method take colours that
    are left.
    """
    chosen: dict[str, Style] = {}
    lines = Counter[str]()
    for label in labels:
        word = label.partition(", ")[0].lower()
        method = _ALSO.get(word, word)
        if label in _RATES:
            chosen[label] = _RATES[label]
        elif method in _OWN:
            own, number = _OWN[method], lines[method]
            other = FREE[(number - 1) % len(FREE)]
            chosen[label] = own if not number else replace(own, marker=other.marker, line=other.line, hollow=True)
            lines[method] += 1
    taken = {style.color for style in chosen.values()}
    everything = [*FREE, *FIXED.values()]
    left = sorted(everything, key=lambda style: style.color in taken)  # the order is kept otherwise
    for i, label in enumerate([label for label in labels if label not in chosen]):
        own = left[i % len(left)]
        chosen[label] = replace(own, hollow=i >= len(left) or own.color in taken)
    return chosen
