"""Which probes a run has, by their names."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import nn

from trimtab.nearest import nearest
from trimtab.norms import RunningNorm

if TYPE_CHECKING:
    from trimtab.probes import Monitor, Probe
    from trimtab.training.session import Session


NORMS = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm, RunningNorm)
LAYERS = 5
"""So many layers at most are looked at where each costs something."""


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
            near = nearest(name, [*PROBES, "all"])
            hint = f"did you mean {near!r}?" if near else f"there are {', '.join(PROBES)}, and all."
            raise ValueError(f"there is no probe {name!r}; {hint}")
        found |= dict.fromkeys(PROBES if name == "all" else [name])
    return tuple(found)


def _landscape(session: "Session") -> "Probe[Any]":
    """The loss along the gradient, and how far the gradient can be trusted."""
    from trimtab.probes import Landscape

    return Landscape(optimizer=session.optimizer, multiples=_multiples(session))


def _random(session: "Session") -> "Probe[Any]":
    """The same along random directions."""
    from trimtab.probes import RandomLandscape

    return RandomLandscape(optimizer=session.optimizer, multiples=_multiples(session))


def _shift(session: "Session") -> "Probe[Any]":
    """Internal covariate shift: how a layer's gradient changes when those below it are updated."""
    from trimtab.probes import CovariateShift

    # Nothing is below the first layer.
    return CovariateShift(optimizer=session.optimizer, layers=_weighted(session)[1:], max_layers=LAYERS)


def _activations(session: "Session") -> "Probe[Any]":
    """Mean, spread and distribution of what layers give out."""
    from trimtab.probes import Activations

    return Activations(layers=_normed(session) or _weighted(session)[:-1], max_layers=LAYERS)


def _conditioning(session: "Session") -> "Probe[Any]":
    """How ill-conditioned each layer's part of the Hessian is."""
    from trimtab.probes import Conditioning

    return Conditioning(bnp=session.bnp, units=1)


def _spectrum(session: "Session") -> "Probe[Any]":
    """The largest eigenvalues of the Hessian, and the stable learning rate."""
    from trimtab.probes import Spectrum

    return Spectrum(optimizer=session.optimizer)


def _noise(session: "Session") -> "Probe[Any]":
    """The noise that batch statistics and gradients have."""
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
"""By the name that a person types; the docstrings are what `trimtab list probes` says."""


def _weighted(session: "Session") -> list[str]:
    """Layers with weights, which networks with and without norms have in common, one by one."""
    return [name for name, module in session.model.named_modules() if isinstance(module, nn.Linear | nn.Conv2d)]


def _normed(session: "Session") -> list[str]:
    """Norms: what they give out is what the next activation reads."""
    return [name for name, module in session.model.named_modules() if isinstance(module, NORMS)]


def _multiples(session: "Session") -> tuple[float, ...]:
    """How far the landscape paper looks along the gradient, in steps: in deep linear networks further (App. A)."""
    from trimtab.probes.landscape import DLN_MULTIPLES, VGG_MULTIPLES

    return DLN_MULTIPLES if session.settings.network == "dln25" else VGG_MULTIPLES
