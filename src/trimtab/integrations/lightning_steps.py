"""What the callbacks for Lightning have in common: their base, and the loss of a training step without its logging."""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from trimtab.integrations.needed import needed
from trimtab.probes.result import LossFunction

# Both packages have the same callbacks, and the trainer of each takes those of the other.
Callback: Any = needed("lightning.pytorch", "pytorch_lightning", extra="lightning").Callback


def training_loss(trainer: Any, batch_idx: int) -> LossFunction:
    """What `training_step` returns, in the precision of the training."""

    def loss_fn(module: Any, batch: Any) -> Tensor:
        batch = trainer.precision_plugin.convert_input(batch)  # as Lightning has, if it is not from elsewhere
        arguments = (batch, batch_idx)[: len(inspect.signature(module.training_step).parameters)]
        with trainer.precision_plugin.train_step_context():
            result = module.training_step(*arguments)
        loss: Tensor = result["loss"] if isinstance(result, Mapping) else result
        return loss

    return loss_fn


@contextmanager
def muted(module: nn.Module) -> Iterator[None]:
    """While a module logs nothing: what it computes is for a probe."""
    before = dict(vars(module))
    vars(module).update(log=_nothing, log_dict=_nothing)
    try:
        yield
    finally:
        for name in ("log", "log_dict"):
            del vars(module)[name]
            if name in before:
                vars(module)[name] = before[name]


def _nothing(*_: Any, **__: Any) -> None:
    """In the place of a function that logs."""
