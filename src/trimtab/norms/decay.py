"""A penalty on γ: the regularization that the noise of BatchNorm's statistics is equivalent to."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from trimtab import _torch
from trimtab.norms.base import RunningNorm
from trimtab.norms.checks import check_numbers

_NORMALIZATIONS: tuple[type[nn.Module], ...] = (
    RunningNorm,
    *_torch.BATCH_NORMS,
    *_torch.INSTANCE_NORMS,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)


def gamma_decay(model: nn.Module, zeta: float) -> Tensor:
    """ζ Σγ², to be added to the loss (regularization paper, Theorem 1 and Sec. 5).

    The sum is over each γ that is trained: of the model's normalization layers, torch's and ours, and the lengths of
    weights under weight normalization. A fixed γ would add a constant and is left out.

    Raises:
        TypeError: If `model` is not a module.
        ValueError: If `zeta` is not a number, or is negative.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"gamma_decay takes a torch.nn.Module, not {type(model).__name__}.")
    check_numbers(zeta=zeta)
    if not zeta >= 0:
        raise ValueError(f"zeta must be 0 or larger, not {zeta}.")
    squares = [gamma.square().sum() for gamma in trained_gammas(model)]
    return zeta * torch.stack(squares).sum() if squares else torch.zeros(())


def trained_gammas(model: nn.Module) -> list[Tensor]:
    """The parameters that `gamma_decay` is for."""
    return [gamma for module in model.modules() for gamma in gammas_of(module) if gamma.requires_grad]


def gammas_of(module: nn.Module) -> Iterator[Tensor]:
    """γ of a normalization layer, and the lengths of a layer's weights under weight normalization."""
    gamma = _torch.parameters_of(module).get("weight")
    if isinstance(module, _NORMALIZATIONS) and gamma is not None:
        yield gamma
    if parametrize.is_parametrized(module, "weight"):
        chain = module.get_submodule("parametrizations.weight")
        length = _torch.parameters_of(chain).get("original0")
        if length is not None and any(isinstance(step, _torch.weight_norm_type()) for step in chain.children()):
            yield length
