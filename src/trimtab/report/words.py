"""Names and numbers as a reader wants them."""

import math
import re
from collections.abc import Iterable, Sequence

from trimtab.records import Metric

HEADINGS = {"vanilla": "vanilla", "bn": "BatchNorm", "ln": "LayerNorm", "gn": "GroupNorm", "bnp": "BNP"}
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
TITLES = {"small-cnn": "small CNN", "small-mlp": "small fully connected network"}


def heading(method: str) -> str:
    """A method's name above a column and in a legend."""
    return HEADINGS.get(method, method)


def title(network: str) -> str:
    """A network's name above a figure."""
    return TITLES.get(network, network)


def batch(size: int) -> str:
    """A batch size; 0 stands for all samples."""
    return str(size) if size else "all"


def number(x: float, digits: int = 3) -> str:
    """A number with so many digits that count."""
    if math.isnan(x):
        return "not a number"
    if math.isinf(x):
        return "∞" if x > 0 else "−∞"
    if x == 0:
        return "0"
    if 1e-3 <= abs(x) < 1e6:
        whole = len(str(int(abs(x))))
        plain = f"{x:.{digits}g}" if whole <= digits else f"{x:.0f}"
        return plain.replace("-", "−")
    return power(x, digits)


def power(x: float, digits: int = 3) -> str:
    """A number as a power of ten, the one notation for very small and very large ones: 1.5·10⁻⁷."""
    head, _, exponent = f"{x:.{digits - 1}e}".partition("e")
    head = (head.rstrip("0").rstrip(".") if "." in head else head).replace("-", "−")
    raised = "10" + str(int(exponent)).translate(_RAISED)
    return {"1": raised, "−1": f"−{raised}"}.get(head, f"{head}·{raised}")


def typed(x: float) -> str:
    """A number as a person gave it, a learning rate for one: with all its digits, up to six."""
    return number(x, 6)


def shown(value: float, metric: Metric) -> str:
    """An accuracy in % (without the sign), or a loss."""
    return f"{100 * value:.1f}" if metric == "accuracy" else number(value)


def ranged(values: Sequence[float], metric: Metric) -> str:
    """The range of some values."""
    return f"[{shown(min(values), metric)}–{shown(max(values), metric)}]"


def listed(words: Iterable[object]) -> str:
    """A, b and c."""
    *front, last = list(map(str, words)) or [""]
    return f"{', '.join(front)} and {last}" if front else last


def counted(count: int, noun: str) -> str:
    """1 seed, 2 seeds."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def slug(text: str) -> str:
    """A text as part of a file name."""
    return re.sub(r"[^A-Za-z0-9.+]+", "-", text).strip("-.") or "x"
