"""What an experiment collects while it runs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from trimtab.claims.record import Check, Contents, Unit
from trimtab.records import RunNumbers
from trimtab.theory.bounds import Sides

DRAWS = 200
TOLERANCE = 1e-9
RUN_UNITS: dict[str, Unit] = {
    **dict.fromkeys(("acc", "early", "late", "drop"), "points"),
    **dict.fromkeys(("tloss", "vloss", "eloss", "gap"), "loss"),
}
"""The numbers of a run, with their units."""


class Findings(Contents):
    """Collects numbers, checks and lines of figures; the runner makes a `Record` of them."""

    def number(self, measure: str, case: str, value: float, *, seed: int | str = "all", unit: Unit = "exact") -> None:
        """Enter a number.

        Args:
            measure: What it is a number of.
            case: Of which method, setting or layer.
            value: The number.
            seed: Of which run; numbers of one seed are paired.
            unit: What differences of the measure are judged by.

        Raises:
            ValueError: If the measure has another unit already.
        """
        if self.units.setdefault(measure, unit) != unit:
            raise ValueError(f"{measure!r} has the unit {self.units[measure]} already, not {unit}")
        self.numbers.setdefault(measure, {}).setdefault(case, {})[str(seed)] = float(value)

    def run(self, case: str, seed: int, numbers: RunNumbers, suffix: str = "") -> None:
        """Enter the numbers of a training run; `suffix` is added to the names of the measures, as in `acc 6`."""
        for name, unit in RUN_UNITS.items():
            value = getattr(numbers, name)
            if value is not None:
                self.number(name + suffix, case, value, seed=seed, unit=unit)

    def check(
        self,
        name: str,
        statement: Callable[[np.random.Generator], Sides | bool],
        *,
        draws: int = DRAWS,
        tolerance: float = TOLERANCE,
        seed: int = 101,
        about: Mapping[str, Any] | None = None,
    ) -> Check:
        """Compute a statement on random draws, and keep how many it holds for.

        Args:
            name: Of the check.
            statement: Draws an instance and returns both sides of the statement, or whether it holds.
            draws: How many.
            tolerance: Relative, for `Sides.holds`.
            seed: Of the generator. Draw i is that of `numpy.random.default_rng([seed, i])`.
            about: What else is to be recorded.
        """
        holds, nearest, first = 0, None, None
        for draw in range(draws):
            outcome = statement(np.random.default_rng([seed, draw]))
            held, (left, right, relation, slack) = _looked_at(outcome, tolerance)
            holds += held
            if nearest is None or slack < nearest[3]:
                nearest = left, right, relation, slack
            if not held and first is None:
                first = {"draw": draw, "left": left, "right": right}
        if nearest is None:
            raise ValueError(f"check {name!r} needs one draw at least")
        parameters = {"tolerance": tolerance, "seed": seed, **(about or {})}
        self.checks[name] = Check(nearest[2], draws, holds, nearest[0], nearest[1], parameters, first)
        return self.checks[name]

    def curve(self, panel: str, line: str, points: Sequence[Sequence[float]]) -> None:
        """Enter a line of a figure: points (x, y), or (x, median, lowest, highest)."""
        self.curves.setdefault(panel, {})[line] = [[float(value) for value in point] for point in points]


def _looked_at(outcome: Sides | bool, tolerance: float) -> tuple[bool, tuple[float, float, str, float]]:
    """Whether a draw holds; its two sides where they are nearest to violate it, and by how much they do not."""
    if isinstance(outcome, bool | np.bool_):
        return bool(outcome), (float(outcome), 1.0, "==", float(outcome))
    left, right = np.broadcast_arrays(np.atleast_1d(outcome.left).astype(float), np.asarray(outcome.right, dtype=float))
    slack = right - left if outcome.relation == "<=" else -np.abs(right - left)
    at = int(np.argmin(np.where(np.isnan(slack), -np.inf, slack)))
    scale = max(abs(float(left.flat[at])), abs(float(right.flat[at])), float(outcome.scale), 1e-300)
    sides = float(left.flat[at]), float(right.flat[at]), outcome.relation, float(slack.flat[at]) / scale
    return bool(outcome.holds(tolerance)), sides
