"""Resuming a run, possibly with more steps than it was planned for."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from trimtab.training.network import renorm_limits
from trimtab.training.settings import Settings, resolved

CHANGEABLE = ("step_mode", "log_every")
"""Settings that may be others when a run goes on: its results do not depend on them."""
LENGTH = ("epochs", "steps")


class OtherSettings(ValueError):  # noqa: N818
    """A run that cannot be resumed because its settings differ."""


def lengthened(settings: Settings, given: Mapping[str, Any]) -> Settings:
    """The settings with the length that was given, if any: steps replace epochs, and epochs replace steps."""
    length = {name: given[name] for name in LENGTH if given.get(name) is not None}
    return replace(settings, epochs=length.get("epochs"), steps=length.get("steps")) if length else settings


def changes(saved: Mapping[str, Any], wanted: Settings, steps_per_epoch: int, where: str) -> dict[str, Any]:
    """The settings that change when a saved run is resumed with other settings: only its length may grow.

    Neither the learning rate nor Batch Renorm's limits may depend on the length. The longer run is then, to the bit,
    the one that was so long from the beginning; only records and evaluations that are spread evenly over the run come
    at other steps.

    Raises:
        OtherSettings: If something else differs, or the length cannot be that.
    """
    own = asdict(wanted)
    other = [name for name in own if name not in (*CHANGEABLE, *LENGTH) and saved.get(name) != own[name]]
    if other:
        words = ", ".join(f"{name} {saved.get(name)!r} (now {own[name]!r})" for name in other)
        raise OtherSettings(
            f"the checkpoint in {where} was saved with {words}; go on with the settings it has, or start another run "
            "with --out"
        )
    longer = {name: own[name] for name in LENGTH if saved.get(name) != own[name]}
    if not longer:
        return {}
    before = _total(saved["epochs"], saved["steps"], steps_per_epoch)
    after = _total(wanted.epochs, wanted.steps, steps_per_epoch)
    if after < before:
        raise OtherSettings(
            f"the run in {where} has {before} steps: it can be made longer, not shorter, and {after} are fewer"
        )
    if after > before and wanted.schedule == "cosine":
        raise OtherSettings(
            f"the run in {where} has schedule cosine, whose learning rate falls to 0 at the last step, so that a "
            "longer run would have been another one from the first step on; start that with --out"
        )
    scheduled = wanted.parsed_method.norm.removesuffix("-pre") == "brn"
    if scheduled and renorm_limits(wanted, before) != renorm_limits(wanted, after):
        raise OtherSettings(
            f"the run in {where} has a schedule of brn that is scaled to its length, so that a longer run would have "
            "been another one from the first step on; start that with --out"
        )
    return longer


def _total(epochs: int | None, steps: int | None, steps_per_epoch: int) -> int:
    return steps or resolved(epochs) * steps_per_epoch
