"""Makes each probe of `trimtab.probe_registry` for a run: a function by the probe's name."""

from typing import TYPE_CHECKING, Any

from torch import nn

from trimtab._torch import BATCH_NORMS
from trimtab.norms import RunningNorm
from trimtab.probe_registry import PROBES, expand_probe_names

if TYPE_CHECKING:
    from trimtab.probes import Monitor, Probe
    from trimtab.training.session import Session


NORMS = (*BATCH_NORMS, nn.LayerNorm, nn.GroupNorm, RunningNorm)
MAX_LAYERS = 5
"""How many layers are looked at where each costs something."""


def make_monitor(session: "Session") -> "Monitor | None":
    """A monitor with the probes that the settings ask for; None if they ask for none."""
    settings = session.settings
    if not settings.probe:
        return None
    from trimtab.probes import Monitor

    probes = [PROBES[name].load_factory()(session) for name in expand_probe_names(settings.probe)]
    return Monitor(probes, every=settings.probe_every, at=settings.probe_at)


def landscape(session: "Session") -> "Probe[Any]":
    """The loss along the gradient, and how far the gradient can be trusted."""
    from trimtab.probes import Landscape

    return Landscape(optimizer=session.optimizer, multiples=_multiples(session))


def random(session: "Session") -> "Probe[Any]":
    """The same along random directions."""
    from trimtab.probes import RandomLandscape

    return RandomLandscape(optimizer=session.optimizer, multiples=_multiples(session))


def shift(session: "Session") -> "Probe[Any]":
    """Internal covariate shift: how a layer's gradient changes when those below it are updated."""
    from trimtab.probes import CovariateShift

    # Nothing is below the first layer.
    return CovariateShift(optimizer=session.optimizer, layers=_weight_layers(session)[1:], max_layers=MAX_LAYERS)


def activations(session: "Session") -> "Probe[Any]":
    """Mean, spread and distribution of the outputs of layers."""
    from trimtab.probes import Activations

    return Activations(layers=_norm_layers(session) or _weight_layers(session)[:-1], max_layers=MAX_LAYERS)


def conditioning(session: "Session") -> "Probe[Any]":
    """How ill-conditioned each layer's part of the Hessian is."""
    from trimtab.probes import Conditioning

    return Conditioning(bnp=session.bnp, units=1)


def spectrum(session: "Session") -> "Probe[Any]":
    """The largest eigenvalues of the Hessian, and the stable learning rate."""
    from trimtab.probes import Spectrum

    return Spectrum(optimizer=session.optimizer)


def noise(session: "Session") -> "Probe[Any]":
    """The noise that batch statistics and gradients have."""
    from trimtab.probes import BatchNoise

    return BatchNoise()


def _weight_layers(session: "Session") -> list[str]:
    """The names of dense layers and convolutions, which networks with and without norms have in common."""
    return [name for name, module in session.model.named_modules() if isinstance(module, nn.Linear | nn.Conv2d)]


def _norm_layers(session: "Session") -> list[str]:
    """The names of normalization layers: their output is what the next activation reads."""
    return [name for name, module in session.model.named_modules() if isinstance(module, NORMS)]


def _multiples(session: "Session") -> tuple[float, ...]:
    """How far to look along the gradient, in steps; the landscape paper: in deep linear networks further (App. A)."""
    from trimtab.probes.landscape import DLN_MULTIPLES, VGG_MULTIPLES

    if session.settings.probe_multiples is not None:
        return session.settings.probe_multiples
    return DLN_MULTIPLES if session.settings.network == "dln25" else VGG_MULTIPLES
