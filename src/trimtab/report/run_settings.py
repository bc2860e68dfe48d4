"""Settings of runs: which of them matter, in which runs differ, and how they are written for people."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from trimtab.report.formatting import format_exact

WITHOUT_EFFECT = (
    *("seed", "log_every", "evaluate_every", "evaluations", "train_subset", "probe", "probe_every", "probe_at"),
)
"""Settings in which the runs of one curve may differ: the seed, and what is recorded how often."""
PANEL_SETTINGS = ("data", "network", "batch_size")
"""Settings that all runs of a panel share."""


def training_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that decide how a run is trained, without the seed."""
    return {name: value for name, value in settings.items() if name not in WITHOUT_EFFECT}


def differing_settings(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of the settings that are not the same in all runs."""
    names = dict.fromkeys(name for one in settings for name in one)
    return [name for name in names if len({json.dumps(one.get(name)) for one in settings}) > 1]


def format_setting(value: Any) -> str:
    """The value of a setting, for people."""
    if value is None or value == []:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " ".join(map(format_setting, value))
    return format_exact(value) if isinstance(value, float) else str(value)
