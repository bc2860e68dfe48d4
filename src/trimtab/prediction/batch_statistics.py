"""Whether a model normalizes by the statistics of the batch, in layers made for that or in another way."""

import torch
from torch import Tensor, nn

from trimtab import _torch
from trimtab.norms import RunningNorm
from trimtab.probes.isolation import IsolatedModel

_FEW = 4  # samples


def has_batch_statistics(model: nn.Module) -> bool:
    """Whether some layer normalizes by the statistics of the batch in training.

    A layer that was put in evaluation mode by itself does not.
    """
    layers = [module for module in model.modules() if isinstance(module, (*_torch.BATCH_NORMS, RunningNorm))]
    return any(layer.training or not model.training for layer in layers)


def mixes_samples(model: nn.Module, inputs: Tensor) -> bool:
    """Whether the gradient of one output reaches other samples with the statistics of all such layers held fixed.

    That is how BatchNorm is found that is not a layer: `F.batch_norm`, or written by hand. It is not looked for in
    models of whole numbers, nor where statistics cannot be held fixed.
    """
    if not inputs.is_floating_point():
        return False
    isolated = IsolatedModel(model, statistics="frozen", dropout=False)
    x = inputs[:_FEW].detach().clone().requires_grad_()

    def reached() -> bool:
        first = isolated.model(x.clone())[0].sum()
        (slope,) = torch.autograd.grad(first, x, allow_unused=True)
        if slope is None:
            return False
        own, others = slope[0].abs().max(), slope[1:].abs().max()
        return bool(others > 1e-5 * own)

    try:
        return isolated.run(reached)
    except (RuntimeError, ValueError, TypeError, IndexError):  # which is told where the model is run
        return False
