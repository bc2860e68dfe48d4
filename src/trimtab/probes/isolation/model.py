"""Runs a model without changing it.

While something runs, parameters and buffers are replaced by copies (`torch.func.functional_call`), so that gradients,
running statistics and hooks on parameters belong to the copies. Plain attributes of modules, their modes and the random
generators are restored afterwards, also after Ctrl-C, and no BNP observes what is computed. Each run begins with the
random state that the training has at that moment: all runs draw the same dropout mask.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from trimtab import _torch
from trimtab.bnp.rows.hooks import paused
from trimtab.norms.statistics import Statistics, canonical_statistics
from trimtab.probes.isolation.attributes import ModuleAttributes
from trimtab.probes.isolation.frozen_statistics import freeze_statistics
from trimtab.probes.isolation.random_state import RandomState
from trimtab.probes.isolation.signals import DeferredSignals

T = TypeVar("T")
Point = Mapping[str, Tensor]
"""Values for the trained parameters, by name."""


class IsolatedModel:
    """A model to compute with, which is unchanged afterwards.

    Args:
        model: Any module. DataParallel, DistributedDataParallel and compiled modules stand for the module they wrap.
        statistics: What layers that normalize by the batch do. `batch`: as in training, with the gradient through the
            statistics of the batch; modules that were put in evaluation mode one by one stay in it. `frozen`: the same
            values, without a gradient through the statistics. `running`: everything in evaluation mode.
        dropout: Whether dropout layers that are in training mode drop anything.

    Attributes:
        model: The model itself.
        parameters: The values of the parameters that are trained, by name; they share memory with the model.

    Raises:
        ValueError: If `statistics` is none of these, no parameter is trained, or a layer has no parameters yet.
    """

    def __init__(self, model: nn.Module, *, statistics: Statistics = "batch", dropout: bool = True) -> None:
        self.model = _unwrapped(model)
        self.statistics = canonical_statistics(statistics)
        self.dropout = dropout
        parameters = dict(self.model.named_parameters())
        tensors = [*parameters.values(), *self.model.buffers()]
        if any(isinstance(tensor, nn.UninitializedParameter | nn.UninitializedBuffer) for tensor in tensors):
            raise ValueError("The model has lazy layers without parameters yet; call it once before it is measured.")
        self.parameters = {name: p.detach() for name, p in parameters.items() if p.requires_grad}
        if not self.parameters:
            raise ValueError("The model has no parameter that is trained, so that there is nothing to measure.")
        self._runner = _Runner(self.model)
        self._running: _Beginning | None = None  # how all was when the run began, while there is one
        self._copies: dict[str, Tensor] | None = None  # of tensors that are not trained, in the innermost run
        self._devices = sorted({t.device.index for t in tensors if t.device.type == "cuda"})
        self._device_types = {t.device.type for t in tensors}

    def leaves(self, point: Point | None = None) -> dict[str, Tensor]:
        """Leaf tensors to differentiate by: copies of the parameters, or the values of a point without a copy."""
        if point is None:
            copies = _torch.clone_all(list(self.parameters.values()))
            return {name: copy.requires_grad_() for name, copy in zip(self.parameters, copies, strict=True)}
        return {name: value.detach().requires_grad_() for name, value in point.items()}

    def run(self, work: Callable[[], T], point: Point | None = None) -> T:
        """Call a function while the parameters of the model have these values (None: copies of their own).

        Backward passes belong into that function too, since a model may compute something again in them
        (checkpointing). Whoever runs many functions does so within another run, which then has all copies made; before
        and after each of them random state, modes and attributes are as at the beginning of that.
        """
        values = self.leaves() if point is None else point
        if self._running is not None:
            self._running.restore()
            try:
                return self._call(work, values, self._running)
            finally:
                self._running.restore()
        # Parameters that are not trained may change in a forward, as a moving average does.
        all_tensors = [*self.model.named_parameters(), *self.model.named_buffers()]
        others = {name: tensor for name, tensor in all_tensors if name not in self.parameters}
        others.update(_counts_on_the_host(self.model))
        modules = list(self.model.modules())
        random_state, attributes = RandomState(modules, self._devices), ModuleAttributes(modules)
        with DeferredSignals() as signals, paused(self.model), _casts_not_kept(self._device_types):
            try:
                attributes.replace_by_copies()
                self._set_modes()
                self._running = _Beginning(others, random_state, ModuleAttributes(modules, contents=True))

                def interruptible() -> T:
                    with signals.delivered():
                        return work()

                # NaN is a result here, not an anomaly of the training.
                with _torch.not_compiled(), torch.enable_grad(), torch.autograd.set_detect_anomaly(False):
                    result = self._call(interruptible, values, self._running)
            finally:
                self._running = self._copies = None
                attributes.restore()
                random_state.restore()
        return result

    def _call(self, work: Callable[[], T], values: Point, beginning: "_Beginning") -> T:
        """Call a function while parameters have these values, and all other tensors are copies."""
        copies = _torch.clone_all(list(beginning.others.values()))
        outer, self._copies = self._copies, dict(zip(beginning.others, copies, strict=True))
        swapped = {f"model.{name}": tensor for name, tensor in {**values, **self._copies}.items()}
        try:
            result: T = functional_call(self._runner, swapped, (work,))
        finally:
            self._copies = outer
        return result

    def rewind(self) -> None:
        """To be called within `run`: restore everything but the parameters to its state at the beginning of the run."""
        assert self._running is not None and self._copies is not None, "only within run"
        with torch.no_grad():
            _torch.copy_all_(list(self._copies.values()), list(self._running.others.values()))
        self._running.restore()

    def _set_modes(self) -> None:
        if self.statistics == "running" or not self.model.training:
            self.model.train(self.statistics != "running")
        for name, module in self.model.named_modules():
            if not self.dropout and isinstance(module, (nn.RNNBase, nn.MultiheadAttention)):
                module.dropout = 0.0  # an attribute, which is restored with the others
            if not self.dropout and isinstance(module, _torch.DROPOUTS):
                module.eval()
            elif self.statistics == "frozen":
                freeze_statistics(name, module)


def _counts_on_the_host(model: nn.Module) -> dict[str, Tensor]:
    """The counts of batches of BatchNorm layers on a GPU, begun anew on the host: there each forward launches nothing.

    With a momentum nothing depends on them, and after the run they are what they were.
    """
    return {
        f"{name}.num_batches_tracked" if name else "num_batches_tracked": torch.zeros(
            (), dtype=torch.long, device="cpu"
        )
        for name, module in model.named_modules()
        if isinstance(module, _torch.BATCH_NORMS)
        and type(module).forward is nn.BatchNorm1d.forward
        and module.momentum is not None
        and isinstance(count := module.num_batches_tracked, Tensor)
        and count.is_cuda
    }


@contextmanager
def _casts_not_kept(device_types: Iterable[str]) -> Iterator[None]:
    """Within an autocast around all of this, have no copies of parameters in half precision kept.

    It would keep them until its end, whatever values the parameters take meanwhile. Those that the caller's own
    computations have left there stay.
    """
    several = [kind for kind in device_types if torch.amp.is_autocast_available(kind)]
    kept = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(kept and not any(map(torch.is_autocast_enabled, several)))
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(kept)


@dataclass(frozen=True)
class _Beginning:
    """What a run begins with.

    Attributes:
        others: The model's tensors that are not trained.
        random_state: Of all generators.
        attributes: Of the modules.
    """

    others: dict[str, Tensor]
    random_state: RandomState
    attributes: ModuleAttributes

    def restore(self) -> None:
        """Have the random state and the attributes again."""
        self.random_state.restore()
        self.attributes.restore()


class _Runner(nn.Module):
    """Calls any function within a functional_call that replaces the model's parameters."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, work: Callable[[], Any]) -> Any:
        return work()


def _unwrapped(model: nn.Module) -> nn.Module:
    """The module within wrappers for several devices and around compiled modules."""
    while True:
        inner = _torch.uncompiled(model)
        if isinstance(inner, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = inner.module
        if inner is model:
            return model
        model = inner
