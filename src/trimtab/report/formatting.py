"""Names and numbers, written for people."""

import math
import re
from collections.abc import Iterable, Sequence

from trimtab.records import Metric

METHOD_LABELS = {"vanilla": "vanilla", "bn": "BatchNorm", "ln": "LayerNorm", "gn": "GroupNorm", "bnp": "BNP"}
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
NETWORK_LABELS = {"small-cnn": "small CNN", "small-mlp": "small fully connected network"}


def method_label(method: str) -> str:
    """The name of a method, for the head of a column or a legend."""
    return METHOD_LABELS.get(method, method)


def network_label(network: str) -> str:
    """The name of a network, for the title of a figure."""
    return NETWORK_LABELS.get(network, network)


def batch_label(size: int) -> str:
    """A batch size; 0 stands for all samples."""
    return str(size) if size else "all"


def format_number(x: float, digits: int = 3) -> str:
    """A number with so many significant digits."""
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
    return format_power(x, digits)


def format_power(x: float, digits: int = 3) -> str:
    """A number in scientific notation: 1.5·10⁻⁷."""
    head, _, exponent = f"{x:.{digits - 1}e}".partition("e")
    head = (head.rstrip("0").rstrip(".") if "." in head else head).replace("-", "−")
    raised = "10" + str(int(exponent)).translate(_RAISED)
    return {"1": raised, "−1": f"−{raised}"}.get(head, f"{head}·{raised}")


def format_exact(x: float) -> str:
    """A number as a person typed it, for instance a learning rate: with all its digits, up to six."""
    return format_number(x, 6)


def format_metric(value: float, metric: Metric) -> str:
    """An accuracy in percent, without the sign; or a loss."""
    return f"{100 * value:.1f}" if metric == "accuracy" else format_number(value)


def format_range(values: Sequence[float], metric: Metric) -> str:
    """The least and the largest of some values: [97.1–98.3]."""
    return f"[{format_metric(min(values), metric)}–{format_metric(max(values), metric)}]"


def join_words(words: Iterable[object]) -> str:
    """A list in a sentence: a, b and c."""
    *front, last = list(map(str, words)) or [""]
    return f"{', '.join(front)} and {last}" if front else last


def format_count(count: int, noun: str) -> str:
    """A number and its noun: 1 seed, 2 seeds."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def natural_order(word: str) -> tuple[int, str]:
    """A key by which 10 comes after 9."""
    return len(word), word


def slug(text: str) -> str:
    """A text as part of a file name."""
    return re.sub(r"[^A-Za-z0-9.+]+", "-", text).strip("-.") or "x"
