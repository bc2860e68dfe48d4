"""What all observed layers of a model have in common."""

from typing import Any

from torch import nn

from trimtab.bnp.backends import Backends
from trimtab.bnp.options import Options
from trimtab.bnp.rows.calls import OpenCalls
from trimtab.bnp.rows.hooks import Pause


class Observation:
    """What all observed layers of a model have in common.

    Attributes:
        model: The model.
        options: BNP's.
        backends: What computes moments and steps.
        open_calls: The calls that wait for a backward.
        pause: Whether the hooks do nothing for now.
    """

    def __init__(self, model: nn.Module, options: Options, backends: Backends) -> None:
        """For one BNP."""
        self.model = model
        self.options = options
        self.backends = backends
        self.open_calls = OpenCalls(backends)
        self.pause = Pause()

    def __getstate__(self) -> dict[str, Any]:
        """For copies: without calls."""
        return {"model": self.model, "options": self.options, "backends": self.backends}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Be a copy."""
        self.__init__(**state)  # type: ignore[misc]
