"""What a doctor cannot be made with, or called with, each in one sentence."""

from collections.abc import Iterable
from typing import Any, get_args

from torch import Tensor, nn
from torch.optim import Optimizer

from trimtab.bnp.attachment import parameter_ids
from trimtab.doctor.schedule import Level
from trimtab.probes.options import check_call, described


def check_doctor(model: Any, optimizer: Any, loss_fn: Any, level: Any, validation: Any) -> None:
    """Refuse what the doctor cannot look at.

    Raises:
        TypeError: If one of these is something else.
        ValueError: If model and optimizer do not belong together, or there is no such level.
    """
    check_call(model, loss_fn)
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer must be an optimizer of torch.optim, not {described(optimizer)}.")
    if level not in get_args(Level):
        raise ValueError(f"level must be one of {', '.join(map(repr, get_args(Level)))}, not {level!r}.")
    if validation is not None and (not isinstance(validation, Iterable) or isinstance(validation, Tensor | str)):
        raise TypeError(f"validation must be a loader, or a list of batches, or None, not {described(validation)}.")
    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        raise ValueError("The model has no parameter that is trained, so that there is nothing to look at.")
    if not parameter_ids(optimizer) & {id(p) for p in trained}:
        raise ValueError("The optimizer holds none of the model's trained parameters; is it another model's?")
    devices = sorted({str(p.device) for p in model.parameters()})
    if len(devices) > 1:
        raise ValueError(
            f"The model's parameters are on several devices ({', '.join(devices)}); the doctor looks at a model that "
            "is "
            "on one of them."
        )


def check_step(model: nn.Module, loss: Any, *, stepped: bool) -> None:
    """Refuse a call of step() that no step could be right with.

    Args:
        model: The model.
        loss: Of the batch.
        stepped: Whether the optimizer has taken its step since the forward.

    Raises:
        TypeError: If the loss is no tensor of one number.
        ValueError: If there is no gradient, or the step is taken.
    """
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.is_floating_point():
        found = (
            f"a tensor of shape {tuple(loss.shape)} and {loss.dtype}" if isinstance(loss, Tensor) else described(loss)
        )
        raise TypeError(f"loss must be a tensor of one number, the loss of the batch, not {found}.")
    if all(p.grad is None for p in model.parameters()):
        raise ValueError(
            "No parameter has a gradient: call doctor.step(batch, loss) between loss.backward() and optimizer.step()."
        )
    if stepped:
        raise ValueError(
            "The parameters have changed since the forward: call doctor.step(batch, loss) before optimizer.step()."
        )
