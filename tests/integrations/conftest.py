"""Settings for the tests of frameworks."""

import sys
from collections.abc import Iterator

import pytest


def _forget() -> None:
    if "accelerate" in sys.modules:
        from accelerate.state import AcceleratorState, GradientState

        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()


@pytest.fixture(autouse=True)
def _fresh_accelerate() -> Iterator[None]:
    """Accelerate keeps the precision of the first Accelerator in a process for all that are made later."""
    _forget()
    yield
    _forget()
