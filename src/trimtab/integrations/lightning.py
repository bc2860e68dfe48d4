"""Callbacks for Lightning 2: BNP, probes and the doctor, in a training that `Trainer.fit` runs.

    from trimtab.integrations.lightning import BNPCallback

    trainer = Trainer(callbacks=[BNPCallback()])

Fabric needs neither: `BNP.attach` takes the optimizer that `fabric.setup` returns, and `fabric.save` a BNP.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from trimtab.bnp import BNP, Report
from trimtab.bnp.attachment import parameter_ids
from trimtab.bnp.layers import layer_type
from trimtab.integrations.callback_options import Clip, check_bnp_options
from trimtab.integrations.lightning_doctor import DoctorCallback
from trimtab.integrations.lightning_steps import Callback, muted, training_loss
from trimtab.integrations.monitoring import MonitorFactory, Probes, scalars
from trimtab.integrations.trackers import TrackedResults, Tracker
from trimtab.notice import warn_user
from trimtab.probes import Monitor
from trimtab.probes.result import LossFunction, Result

__all__ = ["BNPCallback", "Callback", "DoctorCallback", "MonitorCallback"]


class BNPCallback(Callback):  # type: ignore[misc]
    """Preconditions the gradients of a training with BNP.

    It attaches at the start of a fit to each optimizer that holds a layer's weight, is saved in Lightning's checkpoints
    and resumed from them, and detaches at the end. A second fit of the same module goes on with its statistics.

    Args:
        clip: Whether Lightning clips gradients (`gradient_clip_val`) `"before"` BNP, as the gradients of the loss, or
            `"after"` it, as the step that is taken. In manual optimization, where you clip, it is always before.
        **options: Those of `trimtab.BNP`.

    Attributes:
        bnps: The BNP of each optimizer, since the last fit began.
        reports: What `report()` of each has said at the end of that fit, before it was detached.

    Raises:
        TypeError: If there is no such option of BNP.
        ValueError: If `clip` is another word.
    """

    def __init__(self, *, clip: Clip = "before", **options: Any) -> None:
        check_bnp_options(clip, options)
        self.clip = clip
        self.options = options
        self.bnps: list[BNP] = []
        self.reports: list[Report] = []
        self._loaded: list[dict[str, Any]] | None = None
        self._fitting = False

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Attach.

        Raises:
            ValueError: If the optimizers hold no weight that BNP can precondition, or a checkpoint is another model's.
        """
        if self.clip == "after" and not pl_module.automatic_optimization:
            raise ValueError(
                "clip='after' needs automatic optimization; in manual optimization make a trimtab.BNP of your own, and "
                "call its step() before you clip."
            )
        if self._loaded is None and self.bnps and self.bnps[0].model is pl_module:
            self._loaded = self.state_dict()["bnps"]
        self._detach()
        optimizers = _with_layers(pl_module, trainer.optimizers)
        self.bnps = [BNP(pl_module, **self.options) for _ in optimizers]
        self._fitting = True
        if self.clip == "before":
            for bnp, optimizer in zip(self.bnps, optimizers, strict=True):
                bnp.attach(optimizer)
        if self._loaded is not None:  # Lightning restores callbacks before the optimizers are there
            loaded, self._loaded = self._loaded, None
            self._load(loaded)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Lightning calls this after the backward and before it clips."""
        if self.clip == "after":
            self.bnps[0].step()

    def state_dict(self) -> dict[str, Any]:
        """For Lightning's checkpoints."""
        return {"bnps": [bnp.state_dict() for bnp in self.bnps]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """From Lightning's checkpoints.

        Raises:
            ValueError: If it is the state of another model or of other options.
        """
        if self._fitting:
            self._load(state_dict["bnps"])
        else:
            self._loaded = state_dict["bnps"] or None  # none was there if it was saved before a fit

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Mapping[str, Any]) -> None:
        """Say what is missing."""
        if self.state_key not in checkpoint.get("callbacks", {}):
            warn_user("The checkpoint was saved without BNPCallback: BNP begins with new statistics.")

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Detach."""
        self._detach()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Detach: an interrupted fit has no teardown."""
        self._detach()

    def _load(self, states: list[dict[str, Any]]) -> None:
        if len(states) != len(self.bnps):
            raise ValueError(
                f"The checkpoint has the state of BNP for {len(states)} optimizers with layers, and there are "
                f"{len(self.bnps)}: resume with the optimizers that it was saved with."
            )
        for bnp, state in zip(self.bnps, states, strict=True):
            bnp.load_state_dict(state)

    def _detach(self) -> None:
        if not self._fitting:
            return
        self._fitting = False
        self.reports = [bnp.report() for bnp in self.bnps]
        for bnp in self.bnps:
            bnp.detach()


class MonitorCallback(Callback):  # type: ignore[misc]
    """Measures with probes during a training, every so many steps, and changes nothing.

    The numbers go to the loggers of the trainer, as `landscape/smoothness` for instance.

    Args:
        probes: What to measure; or a function that makes the probes once the (first) optimizer of the training exists,
            such as `lambda optimizer: [Landscape(optimizer=optimizer)]`.
        every: Steps between two measurements, beginning with the first; in manual optimization batches.
        at: Measure at these steps instead, counted from 0.
        log: A file of records with all of the results, as in `trimtab.probes.Monitor`.
        tracker: One of `trimtab.integrations.trackers`, for the numbers in the results. It is not closed here.
        loss_fn: Called as `loss_fn(module, batch)`. Without it `training_step` is called, with `log` muted; give one if
            that does more than compute the loss (updates metrics), and in manual optimization.

    Attributes:
        results: The last results, by the probes' names.

    Raises:
        ValueError: If one of these is something else.
    """

    def __init__(
        self,
        probes: Probes,
        every: int = 64,
        *,
        at: Collection[int] = (),
        log: str | Path | None = None,
        tracker: Tracker | None = None,
        loss_fn: LossFunction | None = None,
    ) -> None:
        self._factory = MonitorFactory(probes, every, at, log)
        self._track = TrackedResults(tracker)
        self._loss_fn = loss_fn
        self._monitor: Monitor | None = None
        self._step = 0
        self.results: dict[str, Result] = {}

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Make the probes.

        Raises:
            ValueError: If there is no way to compute a loss.
        """
        if self._loss_fn is None and not pl_module.automatic_optimization:
            raise ValueError("MonitorCallback needs a loss_fn in manual optimization, where training_step takes steps.")
        self._close()
        self._monitor = self._factory(trainer.optimizers[0], trainer.is_global_zero)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Measure before a step, with the first of its batches."""
        if self._monitor is None or batch_idx % trainer.accumulate_grad_batches:
            return
        loss_fn = self._loss_fn or training_loss(trainer, batch_idx)
        step, self._step = self._step, self._step + 1
        self._monitor.step = step
        with muted(pl_module):
            found = self._monitor(pl_module, loss_fn, batch)
        if not found:
            return
        self.results |= found
        if trainer.is_global_zero:
            self._track(found, step)
        for logger in trainer.loggers:
            logger.log_metrics(scalars(found), step=trainer.global_step)

    def state_dict(self) -> dict[str, Any]:
        """For Lightning's checkpoints."""
        return {"step": self._step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """From Lightning's checkpoints."""
        self._step = state_dict["step"]

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Close the file of records."""
        self._close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Close the file of records: an interrupted fit has no teardown."""
        self._close()

    def _close(self) -> None:
        if self._monitor is not None:
            self._monitor.close()
            self._monitor = None


def _with_layers(model: nn.Module, optimizers: list[Optimizer]) -> list[Optimizer]:
    """Those of several optimizers that BNP has something to do for; one alone is left for BNP to judge."""
    if len(optimizers) == 1:
        return optimizers
    layers = [module for module in model.modules() if layer_type(module) is not None]
    weights = {id(p) for layer in layers for name, p in layer.named_parameters(recurse=False) if name == "weight"}
    found = [optimizer for optimizer in optimizers if weights & parameter_ids(optimizer)]
    if not found:
        raise ValueError("No optimizer holds the weight of a layer that BNP can precondition.")
    return found
