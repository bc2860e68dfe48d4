"""One stack of a sweep, with its files: the checkpoint while it is trained, and then how its networks have ended."""

import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from trimtab.data import Dataset
from trimtab.records import whole_file
from trimtab.training import checkpoint
from trimtab.training.interruption import interruptible
from trimtab.training.settings import Settings
from trimtab.training.sweep.stack import Stack

CHECKPOINT_SECONDS, CHECKPOINT_SHARE = 30.0, 0.05
"""Seconds between two checkpoints of a stack; more, if they would take a larger share of the time."""

Outcome = dict[str, Any]
"""`loss`, `accuracy` and `exploded_at` of a network, or `why_not`."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM while a stack was trained, whose checkpoint was saved.

    Attributes:
        signal: Its number.
    """

    def __init__(self, signal: int) -> None:
        """By a signal of this number."""
        super().__init__()
        self.signal = signal


class StackFiles:
    """The stack of one number in a folder.

    Attributes:
        members: The numbers of its networks in the sweep.
    """

    def __init__(self, folder: Path, number: int, members: Sequence[int]) -> None:
        """Nothing is read or written yet."""
        self.members = list(members)
        self._outcomes, self._state = folder / f"{number:04}.json", folder / f"{number:04}.pt"

    def outcomes(
        self, settings: Sequence[Settings], dataset: Dataset, device: torch.device, advance: Callable[[int], None]
    ) -> list[Outcome]:
        """How each network has ended; what was not trained yet is trained now.

        Args:
            settings: Those of each network.
            dataset: What they are trained on,
            device: and where.
            advance: Called with the number of steps after each of them.

        Raises:
            Interrupted: By a signal.
        """
        found = self._read()
        if found is None:
            # Noise is drawn from torch's generator: whatever was trained before, it is that of this stack.
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                torch.manual_seed((settings[0].seed + (self.members[0] << 32)) % 2**63)
                found = self._train(settings, dataset, device, advance)
            with whole_file(self._outcomes) as file:
                file.write(json.dumps({"networks": self.members, "outcomes": found}).encode())
        self._state.unlink(missing_ok=True)
        return found

    def _read(self) -> list[Outcome] | None:
        """What was written of the finished stack; None if there is nothing that can be used."""
        try:
            content = json.loads(self._outcomes.read_bytes())
        except (OSError, ValueError, RecursionError):
            return None
        if not isinstance(content, dict) or content.get("networks") != self.members:
            return None
        found = content.get("outcomes")
        if not isinstance(found, list) or len(found) != len(self.members):
            return None
        return found if all(_is_outcome(one) for one in found) else None

    def _train(
        self, settings: Sequence[Settings], dataset: Dataset, device: torch.device, advance: Callable[[int], None]
    ) -> list[Outcome]:
        try:
            stack = self._begun(settings, dataset, device)
            saved, wait = time.monotonic(), CHECKPOINT_SECONDS
            with interruptible() as interrupted:
                while not stack.finished:
                    stack.advance()
                    advance(stack.step)
                    number = interrupted()
                    if number or time.monotonic() - saved > wait:
                        began = time.monotonic()
                        checkpoint.save(self._state, {"stack": stack.state()})
                        saved = time.monotonic()
                        wait = max(CHECKPOINT_SECONDS, (saved - began) / CHECKPOINT_SHARE)
                    if number:
                        raise Interrupted(number)
        except ValueError as error:
            return [{"why_not": str(error)}] * len(self.members)
        return [asdict(outcome) for outcome in stack.outcomes()]

    def _begun(self, settings: Sequence[Settings], dataset: Dataset, device: torch.device) -> Stack:
        """The stack as it was saved; from its first step, if nothing was that it can go on with."""
        generator = torch.get_rng_state()
        if self._state.exists():
            stack = Stack(settings, dataset, device)
            # All that a file that was not written by a stack like this one can lead to.
            with suppress(ValueError, KeyError, TypeError, AttributeError, IndexError, RuntimeError):
                stack.restore(checkpoint.load(self._state, device)["stack"])
                return stack
            torch.set_rng_state(generator)
        return Stack(settings, dataset, device)


def _is_outcome(one: object) -> bool:
    if not isinstance(one, dict):
        return False
    if one.keys() == {"why_not"}:
        return isinstance(one["why_not"], str)
    if one.keys() != {"loss", "accuracy", "exploded_at"}:
        return False
    at, numbers = one["exploded_at"], (one["loss"], one["accuracy"])
    return (at is None or type(at) is int) and all(
        number is None or (type(number) in (int, float) and math.isfinite(number)) for number in numbers
    )
