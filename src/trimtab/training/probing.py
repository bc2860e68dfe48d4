"""Which probes a run has, by their names."""

import difflib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trimtab.probes import Monitor, Probe
    from trimtab.training.session import Session

# How far the landscape paper looks along the gradient, in steps: the VGG networks and the deep linear one (App. A).
FAR = {"dln25": (0.01, 30.0)}
NEAR = (0.5, 4.0)
POINTS = 8


def monitor(session: "Session") -> "Monitor | None":
    """What the settings ask for; None if nothing is measured."""
    settings = session.settings
    if not settings.probe:
        return None
    from trimtab.probes import Monitor

    return Monitor(
        [PROBES[name](session) for name in chosen(settings.probe)], every=settings.probe_every, at=settings.probe_at
    )


def chosen(names: tuple[str, ...]) -> tuple[str, ...]:
    """The probes of these names, each once; `all` are all.

    Raises:
        ValueError: If there is none of a name.
    """
    found: dict[str, None] = {}
    for name in names:
        if name != "all" and name not in PROBES:
            near = difflib.get_close_matches(name, [*PROBES, "all"], n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(PROBES)}, and all."
            raise ValueError(f"there is no probe {name!r}; {hint}")
        found |= dict.fromkeys(PROBES if name == "all" else [name])
    return tuple(found)


def _landscape(session: "Session") -> "Probe[Any]":
    from trimtab.probes import Landscape

    return Landscape(optimizer=session.optimizer, multiples=_multiples(session))


def _random(session: "Session") -> "Probe[Any]":
    from trimtab.probes import RandomLandscape

    return RandomLandscape(optimizer=session.optimizer, multiples=_multiples(session))


def _shift(session: "Session") -> "Probe[Any]":
    from trimtab.probes import CovariateShift

    return CovariateShift(optimizer=session.optimizer, most=5)


def _activations(session: "Session") -> "Probe[Any]":
    from trimtab.probes import Activations

    return Activations(most=5)


def _conditioning(session: "Session") -> "Probe[Any]":
    from trimtab.probes import Conditioning

    return Conditioning(bnp=session.bnp)


def _spectrum(session: "Session") -> "Probe[Any]":
    from trimtab.probes import Spectrum

    return Spectrum(optimizer=session.optimizer)


def _noise(session: "Session") -> "Probe[Any]":
    from trimtab.probes import BatchNoise

    return BatchNoise()


PROBES: dict[str, Callable[["Session"], "Probe[Any]"]] = {
    "landscape": _landscape,
    "random": _random,
    "shift": _shift,
    "activations": _activations,
    "conditioning": _conditioning,
    "spectrum": _spectrum,
    "noise": _noise,
}
"""By the name that a person types."""


def _multiples(session: "Session") -> tuple[float, ...]:
    low, high = FAR.get(session.settings.network, NEAR)
    return tuple(low + (high - low) * i / (POINTS - 1) for i in range(POINTS))
