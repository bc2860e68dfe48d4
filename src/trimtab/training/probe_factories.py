"""Makes each probe of `trimtab.probe_registry` for a run: a function by the probe's name."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from trimtab._torch import BATCH_NORMS
from trimtab.norms import RunningNorm
from trimtab.probe_registry import PROBES, expand_probe_names
from trimtab.training.building import split_data
from trimtab.training.settings import resolved

if TYPE_CHECKING:
    from trimtab.probes import Monitor, Probe
    from trimtab.training.session import Session


NORMS = (*BATCH_NORMS, nn.LayerNorm, nn.GroupNorm, RunningNorm)
MAX_LAYERS = 5
"""How many layers are looked at where each costs something."""
SAMPLES = 512
"""On how many samples probes measure that have data of their own: the same at each step."""


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


def step(session: "Session") -> "Probe[Any]":
    """The loss along the step that the optimizer really takes."""
    from trimtab.probes import StepLandscape

    return StepLandscape(optimizer=session.optimizer, multiples=_multiples(session))


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

    # The limits are for networks of any size; of cnn5 at batch size 128 they would leave out the middle layers,
    # which take seconds, and of which the bnp paper speaks (Secs. 3.3 and 3.5).
    if session.settings.network == "cnn5":
        return Conditioning(bnp=session.bnp, units=1, max_entries=2**23, max_products=640)
    return Conditioning(bnp=session.bnp, units=1)


def spectrum(session: "Session") -> "Probe[Any]":
    """The largest eigenvalues of the Hessian, and the stable learning rate."""
    from trimtab.probes import Spectrum

    return Spectrum(optimizer=session.optimizer)


def noise(session: "Session") -> "Probe[Any]":
    """The noise that batch statistics and gradients have."""
    from trimtab.probes import BatchNoise

    return BatchNoise()


def weights(session: "Session") -> "Probe[Any]":
    """γ, β, norms of weights and of their gradients in each layer."""
    from trimtab.probes import Weights

    return Weights()


def fisher(session: "Session") -> "Probe[Any]":
    """The largest eigenvalue of mean field's Fisher matrix, beside that of the loss."""
    from trimtab.probes import Fisher
    from trimtab.probes.isolation.frozen_statistics import NEVER_FROZEN

    objective = session.loss_fn
    frozen = not any(isinstance(module, NEVER_FROZEN) for module in session.model.modules())
    return Fisher(
        statistics="frozen" if frozen else "batch",
        forward=lambda model, batch: objective.output(model, batch[0]),
        criterion=lambda outputs, batch: objective.data_loss(outputs, batch[1]),
        optimizer=session.optimizer,
    )


def gradients(session: "Session") -> "Probe[Any]":
    """The gradient at the outputs of normalization layers, in the parts of Theorem 4.1."""
    from trimtab.probes import NormGradients

    data = _samples(session, held_out=False)
    sizes = [size for size in (16, 32, 64, 128, 256, 512) if size <= len(data[1])]
    layers = _norm_layers(session) or _weight_layers(session)[:-1]
    return NormGradients(layers=layers, max_layers=MAX_LAYERS, sizes=sizes, data=data)


def robustness(session: "Session") -> "Probe[Any]":
    """Held-out accuracy under one-step sign perturbations of the inputs."""
    from trimtab.data import fitted, normalization
    from trimtab.probes import Robustness

    dataset = session.dataset
    values = normalization(dataset, resolved(session.settings.normalize))
    shift, divisor = (fitted(torch.tensor(each), dataset.input_shape) for each in values)
    images = dataset.classes > 0 and dataset.scale != 1  # whose pixels are from 0 to 1
    return Robustness(
        scale=1 / divisor,
        limits=((0 - shift) / divisor, (1 - shift) / divisor) if images else None,
        criterion=session.loss_fn.data_loss,
        data=_samples(session),
        forward=session.loss_fn.output,
    )


def ablation(session: "Session") -> "Probe[Any]":
    """Held-out accuracy while units are switched off in random order."""
    from trimtab.probes import Ablation

    return Ablation(data=_samples(session), forward=session.loss_fn.output)


def variance(session: "Session") -> "Probe[Any]":
    """How far the variance of BatchNorm's inputs in evaluation is from the running variance."""
    from trimtab.probes import VarianceShift

    return VarianceShift(max_layers=MAX_LAYERS, data=_samples(session))


def _samples(session: "Session", *, held_out: bool = True) -> tuple[Tensor, Tensor]:
    """Evenly over the held-out data or the training data, as an evaluation has them: without augmentation."""
    from trimtab.data import batches

    train, other, _ = split_data(session.dataset, session.settings)
    split = other if held_out else train
    count = min(SAMPLES, len(split))
    index = torch.arange(count) * len(split) // count
    options = {"normalize": resolved(session.settings.normalize), "device": session.device}
    (found,) = batches(split.take(index), count, dataset=session.dataset, **options)  # type: ignore[arg-type]
    return found


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
