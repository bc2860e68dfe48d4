"""What the tables of bad calls are made of, and how a row of them is tried."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

Row = tuple[Callable[[], object], type[Exception], str]


def each(values: Iterable[Any], call: Callable[[Any], object], kind: type[Exception], sentence: str) -> list[Row]:
    """A row for each of several values."""
    return [(lambda value=value: call(value), kind, sentence) for value in values]


def parameters(rows: list[Row]) -> Any:
    """The decorator of a test that tries all rows."""
    return pytest.mark.parametrize(("call", "kind", "sentence"), rows, ids=map(str, range(len(rows))))


def refused(call: Callable[[], object], kind: type[Exception], sentence: str) -> None:
    """The call raises this, with one sentence that matches."""
    with pytest.raises(kind, match=sentence) as raised:
        call()
    text = str(raised.value)
    assert "\n" not in text
    assert len(text) < 600
