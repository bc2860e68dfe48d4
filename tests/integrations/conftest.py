"""Settings for the tests of frameworks."""

import os
import sys
from collections.abc import Iterator

import pytest


def _forget() -> None:
    if "accelerate" in sys.modules:
        from accelerate.state import AcceleratorState, GradientState

        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
    os.environ.pop("ACCELERATE_MIXED_PRECISION", None)


@pytest.fixture(autouse=True)
def _fresh_accelerate() -> Iterator[None]:
    """Accelerate, and the Trainer with it, keep the precision of the first training in a process for later ones."""
    _forget()
    yield
    _forget()
