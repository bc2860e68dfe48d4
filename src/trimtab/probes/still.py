"""A model held still: whatever is computed with it leaves no trace in it.

Parameters and buffers are swapped for copies while something runs (`torch.func.functional_call`), so that gradients,
running statistics and hooks on parameters belong to the copies. What modules keep in plain attributes, their modes and
the random generators are put back, also after Ctrl-C, and no BNP looks. Each run begins with the same random state,
that of the training at this moment: all see the same dropout mask.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from trimtab.bnp.hooks import unobserved
from trimtab.probes.attributes import Attributes
from trimtab.probes.dice import Dice
from trimtab.probes.frozen import freeze
from trimtab.probes.shield import Shield

Statistics = Literal["train", "frozen", "eval"]
T = TypeVar("T")
Point = Mapping[str, Tensor]
"""Values for the trained parameters, by name."""

_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


class Still:
    """A model to compute with as often as one likes.

    Args:
        model: Any module; DataParallel, DistributedDataParallel and torch.compile are looked through.
        statistics: How layers that normalize by the batch are taken. `train`: as in training, with the gradient through
            the statistics; modules that were put in evaluation mode one by one stay in it. `frozen`: by the statistics
            of the batch, but without a gradient through them. `eval`: all in evaluation mode.
        dropout: Whether there is any, where the mode allows it.

    Attributes:
        model: The model itself.
        parameters: The values of the parameters that are trained, by name; they share memory with the model.

    Raises:
        ValueError: If `statistics` is none of these, no parameter is trained, or a layer has no parameters yet.
    """

    def __init__(self, model: nn.Module, *, statistics: Statistics = "train", dropout: bool = True) -> None:
        if statistics not in ("train", "frozen", "eval"):
            raise ValueError(f"statistics must be 'train', 'frozen' or 'eval', not {statistics!r}.")
        self.model = _unwrapped(model)
        self.statistics = statistics
        self.dropout = dropout
        if any(nn.parameter.is_lazy(tensor) for tensor in (*self.model.parameters(), *self.model.buffers())):
            raise ValueError("The model has lazy layers without parameters yet; call it once before it is measured.")
        self.parameters = {name: p.detach() for name, p in self.model.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise ValueError("The model has no parameter that is trained, so that there is nothing to measure.")
        self._stage = _Stage(self.model)
        self._rewind: Callable[[], None] | None = None
        tensors = [*self.model.parameters(), *self.model.buffers()]
        self._devices = sorted({t.device.index for t in tensors if t.device.type == "cuda"})

    def leaves(self, point: Point | None = None) -> dict[str, Tensor]:
        """Copies of the parameters (or other values of them as they are) as leaves, to differentiate by."""
        if point is None:
            return {name: value.clone().requires_grad_() for name, value in self.parameters.items()}
        return {name: value.detach().requires_grad_() for name, value in point.items()}

    def run(self, work: Callable[[], T], point: Point | None = None) -> T:
        """Do some work while the model has these values for its parameters (None: copies of its own).

        Backward passes belong into the work too, in case the model recomputes something in them (checkpointing).
        """
        values = self.leaves() if point is None else point
        # Parameters that are not trained may be a moving average, say, which a forward moves.
        all_tensors = [*self.model.named_parameters(), *self.model.named_buffers()]
        resting = {name: tensor for name, tensor in all_tensors if name not in self.parameters}
        copies = {name: tensor.detach().clone() for name, tensor in resting.items()}
        swapped = {f"model.{name}": tensor for name, tensor in {**values, **copies}.items()}
        dice, attributes = Dice(self.model, self._devices), Attributes(self.model)
        with Shield() as shield, unobserved():
            try:
                attributes.replace()
                self._set_modes()
                prepared = Attributes(self.model)

                def rewind() -> None:
                    with torch.no_grad():
                        for name, copy in copies.items():
                            copy.copy_(resting[name])
                    dice.put_back()
                    prepared.put_back()

                def shielded() -> T:
                    with shield.opened():
                        return work()

                self._rewind = rewind
                # What is not a number here is a finding, and no anomaly of the training.
                with _not_compiled(), torch.enable_grad(), torch.autograd.set_detect_anomaly(False):
                    result: T = functional_call(self._stage, swapped, (shielded,))
            finally:
                self._rewind = None
                attributes.put_back()
                dice.put_back()
        return result

    def rewind(self) -> None:
        """In the middle of some work: let all but the parameters be again as it was at its beginning."""
        assert self._rewind is not None, "only within run"
        self._rewind()

    def _set_modes(self) -> None:
        if self.statistics == "eval" or not self.model.training:
            self.model.train(self.statistics != "eval")
        for name, module in self.model.named_modules():
            if not self.dropout and isinstance(module, _DROPOUT):
                module.eval()
            elif self.statistics == "frozen":
                freeze(name, module)


class _Stage(nn.Module):
    """Does any work, within a functional_call that knows the model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, work: Callable[[], Any]) -> Any:
        return work()


def _unwrapped(model: nn.Module) -> nn.Module:
    while True:
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        elif isinstance(getattr(model, "_orig_mod", None), nn.Module):
            model = model._orig_mod  # type: ignore[assignment]
        else:
            return model


@contextmanager
def _not_compiled() -> Iterator[None]:
    """Run compiled modules as they were written: compiled ones have no second derivatives and do not see new hooks."""
    if "torch._dynamo" not in sys.modules:  # then nothing is compiled, and asking for it takes a second
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield
