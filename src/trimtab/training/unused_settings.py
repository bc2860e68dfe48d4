"""Refuses settings that were given but have no effect: the user must have meant something else."""

from collections.abc import Collection

from trimtab.training.methods import unused_by
from trimtab.training.settings import Settings


def check_unused_settings(given: Collection[str], settings: Settings) -> None:
    """Refuse settings without effect.

    Args:
        given: The names of those that were given one by one. What comes from a recipe or a file of settings is not
            among them: these have values for more than is used.
        settings: All of them, with what the recipe has.

    Raises:
        ValueError: If a setting has no effect beside the others.
    """
    unused_by(given, [settings.method])
    optimizer, schedule = settings.optimizer, settings.schedule
    for name in ("momentum", "nesterov"):
        if name in given and getattr(settings, name) and optimizer != "sgd":
            raise ValueError(f"{name} has no effect with optimizer {optimizer}; leave it out, or give --optimizer sgd")
    for name in ("init", "init_scale", "sigma_w2", "sigma_b2", "gamma"):
        if name in given and settings.init_from is not None:
            raise ValueError(f"{name} has no effect with init_from, which brings the weights; leave one of them out")
    for name in ("probe_at", "probe_every"):
        if name in given and not settings.probe:
            raise ValueError(f"{name} has no effect without probe; say what to measure with --probe")
    if "milestones" in given and settings.milestones and schedule != "step":
        raise ValueError(f"milestones have no effect with schedule {schedule}; give --schedule step")
    if "factor" in given and schedule not in ("step", "decay"):
        raise ValueError(f"factor has no effect with schedule {schedule}; give --schedule step or decay")
    if "schedule" in given and schedule == "step" and not settings.milestones:
        raise ValueError("schedule step has no effect without milestones; give --milestones")
