"""Records that are written down, for rules to judge."""

from typing import Any

from trimtab.doctor.record import Facts, LayerLook, Look, Record, Trial
from trimtab.doctor.trying import MULTIPLES

FALLING = [2.3 * 0.997**step for step in range(400)]
FLAT = [2.3] * 400
FALLEN = [2.3 * max(0.98**step, 1e-3) for step in range(400)]


ONWARD = (0.94, 0.93, 0.96, 1.5)
"""Losses along a way that it would help to go again, and once more; the step has led to 0.95."""
ONCE = (0.94, 0.96, 1.2, 3.0)
LITTLE = (0.9495, 0.96, 1.2, 3.0)
BACK = (0.96, 1.2, 3.0, 9.0)


def trial(step: int, **changes: Any) -> Trial:
    """A step of which twice as much would be best, after a way that it would help to go again."""
    usual: dict[str, Any] = {
        "lr": 0.1, "loss": 1.0, "after": 0.901, "promised": 0.1, "multiples": MULTIPLES, "other": 1.0,
        "others": (0.99, 0.97, 0.95, 0.93, 1.2), "path": ONWARD,
    }  # fmt: skip
    return Trial(step=step, **{**usual, **changes})


def layer(**changes: Any) -> LayerLook:
    usual: dict[str, Any] = {"layer": "0", "weight": 1.0, "gradient": 0.1, "update": 0.01, "rows": 16}
    return LayerLook(**{**usual, **changes})


def look(step: int, *layers: LayerLook, **changes: Any) -> Look:
    return Look(**{"step": step, "lr": 0.1, "gradient": 0.1, "layers": layers or (layer(),), **changes})


def record(losses: list[float], trials: Any = (), looks: Any = (), **facts: Any) -> Record:
    known = Facts(**{"batch_size": 32, "optimizer": "SGD", **facts})
    return Record(losses=list(losses), trials=list(trials), looks=list(looks), facts=known, level="standard")


STEPS = (16, 64, 128, 192)
EIGHT = (0.99, 0.97, 0.95, 0.93, 0.9)
"""Losses of which that after eight times the step is the least."""


def looks_of(
    first: LayerLook, later: LayerLook, *others: LayerLook, steps: tuple[int, ...] = (0, *STEPS)
) -> list[Look]:
    return [look(step, later if step else first, *others) for step in steps]


NEARLY_DONE = [2.3 * max(0.98**step, 0.015) for step in range(400)]
LAST = layer(layer="4", zeros=0.1)
