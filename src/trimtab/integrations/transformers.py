"""Callbacks for the Trainer of transformers: BNP, probes and the doctor.

from trimtab.integrations.transformers import BNPCallback

trainer = Trainer(model, args, train_dataset=data, callbacks=[BNPCallback()])
"""

import inspect
import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from trimtab.bnp import BNP, Report
from trimtab.bnp.attachment import innermost
from trimtab.integrations.callback_options import Clip, check_bnp_options
from trimtab.integrations.monitoring import MonitorFactory, Probes
from trimtab.integrations.trackers import TrackedResults, Tracker
from trimtab.integrations.transformers_doctor import DoctorCallback
from trimtab.integrations.transformers_steps import TrainerCallback, own_loss
from trimtab.notice import warn_user
from trimtab.probes import Monitor
from trimtab.probes.result import LossFunction, Result
from trimtab.records.atomic import whole_file

__all__ = ["BNPCallback", "DoctorCallback", "MonitorCallback", "TrainerCallback"]
FILE = "bnp.pt"
"""The state of BNP in a checkpoint's folder."""


class BNPCallback(TrainerCallback):  # type: ignore[misc]
    """Preconditions the gradients of a training with BNP.

    It attaches when the training begins and detaches at its end. Its state is saved as `bnp.pt` in each checkpoint, and
    a training that is resumed goes on with it. So does a second `train()` of the same model.

    Args:
        clip: Whether the Trainer clips gradients (`max_grad_norm`, which is 1 if you do not set it) `"before"` BNP, as
            the gradients of the loss, or `"after"` it, as the step that is taken.
        resume_from: The folder of the checkpoint that a training is resumed from. It need not be given for a checkpoint
            in the training's own `output_dir`.
        **options: Those of `trimtab.BNP`. For language models see `tokens`.

    Attributes:
        bnp: The BNP of the training, since that has begun.
        report: What its `report()` has said at the end of the training, before it was detached.

    Raises:
        TypeError: If there is no such option of BNP.
        ValueError: If `clip` is another word.
    """

    def __init__(self, *, clip: Clip = "before", resume_from: str | Path | None = None, **options: Any) -> None:
        check_bnp_options(clip, options)
        self.clip = clip
        self.resume_from = resume_from
        self.options = options
        self.bnp: BNP | None = None
        self.report: Report | None = None
        self._clipping: RemovableHandle | None = None
        self._max_norm = 0.0
        self._silenced: Any = None  # the arguments whose max_grad_norm is zero for now

    def on_train_begin(
        self, args: Any, state: Any, control: Any, *, model: nn.Module, optimizer: Any, **_: Any
    ) -> None:
        """Attach, and resume.

        Raises:
            ValueError: If the state in the checkpoint is another model's or of other options.
        """
        self._detach()  # from a training that ended with an error
        if self.bnp is None or self.bnp.model is not model or state.global_step:
            self.bnp = BNP(model, **self.options)
        self.bnp.attach(optimizer)
        if self.clip == "after":
            self._clipping = innermost(optimizer).register_step_pre_hook(self._clip(model))
        if state.global_step:
            self._resume(args, state)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """With clip="after" the Trainer must not clip: it would do so before BNP."""
        self._give_back()  # a step that an epoch's end has cut short
        if self.clip == "after":
            self._silenced, self._max_norm, args.max_grad_norm = args, args.max_grad_norm, 0.0

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """What is saved of the arguments is what the user has set."""
        self._give_back()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Add the state of BNP to the checkpoint that was just saved."""
        folder = _checkpoint(args, state)
        if self.bnp is None or args.save_only_model or not folder.is_dir():
            return
        saved = self.bnp.state_dict()  # in every process, since it may need all of them
        if args.should_save:
            with whole_file(folder / FILE) as file:
                torch.save(saved, file)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Detach."""
        self.report = None if self.bnp is None else self.bnp.report()
        self._detach()

    def _clip(self, model: nn.Module) -> Callable[..., None]:
        """A hook before the optimizer's step, which runs after BNP's."""

        def clip(*_: Any) -> None:
            if self._max_norm > 0:
                nn.utils.clip_grad_norm_(model.parameters(), self._max_norm)

        return clip

    def _resume(self, args: Any, state: Any) -> None:
        """Load what is in the checkpoint that the training goes on from, of which callbacks are not told."""
        if self.resume_from is not None:
            folders = [Path(self.resume_from)]
        else:
            named = [Path(args.resume_from_checkpoint)] if args.resume_from_checkpoint else []
            folders = [each for each in (*named, _checkpoint(args, state)) if _is_of(each, state)]
        found = next((folder / FILE for folder in folders if (folder / FILE).is_file()), None)
        if found is not None:
            assert self.bnp is not None
            self.bnp.load_state_dict(torch.load(found, map_location="cpu", weights_only=True))
            return
        where = folders[0] if folders else f"the checkpoint, which is not in {args.output_dir}"
        warn_user(
            f"The training goes on at step {state.global_step}, but BNP begins with new statistics: no {FILE} was "
            f"found in {where}; name the folder with BNPCallback(resume_from=...)."
        )

    def _give_back(self) -> None:
        if self._silenced is not None:
            self._silenced.max_grad_norm, self._silenced = self._max_norm, None

    def _detach(self) -> None:
        self._give_back()
        if self._clipping is not None:
            self._clipping.remove()
            self._clipping = None
        if self.bnp is not None:
            self.bnp.detach()


class MonitorCallback(TrainerCallback):  # type: ignore[misc]
    """Measures with probes during a training, every so many steps, and changes nothing.

    Args:
        probes: What to measure; or a function that makes the probes once the optimizer of the training exists, such as
            `lambda optimizer: [Landscape(optimizer=optimizer)]`.
        every: Steps between two measurements, beginning with the first.
        at: Measure at these steps instead, counted from 0.
        log: A file of records with all of the results, as in `trimtab.probes.Monitor`.
        tracker: One of `trimtab.integrations.trackers`, for the numbers in the results. It is not closed here.
        loss_fn: Called as `loss_fn(model, inputs)` with a dictionary of what the model is called with. Without it the
            loss is that which the model computes itself, from `labels`.

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
        self._loss_fn = loss_fn or own_loss
        self._monitor: Monitor | None = None
        self._waiting: RemovableHandle | None = None
        self.results: dict[str, Result] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, *, optimizer: Any, **_: Any) -> None:
        """Make the probes."""
        self._close()
        self._monitor = self._factory(innermost(optimizer), state.is_world_process_zero)

    def on_step_begin(self, args: Any, state: Any, control: Any, *, model: nn.Module, **_: Any) -> None:
        """Measure when the model is called for the first time in this step: only then the batch is known here."""
        monitor = self._monitor
        if monitor is None or not any(monitor.due(state.global_step, probe) for probe in monitor.probes):
            return
        monitor.step = state.global_step

        def measure(called: nn.Module, args: tuple[Any, ...], inputs: dict[str, Any]) -> None:
            handle.remove()  # the probes call the model, too
            if args:
                inputs = {**inspect.signature(called.forward).bind_partial(*args).arguments, **inputs}
            found = monitor(called, self._loss_fn, inputs)
            self.results |= found
            if state.is_world_process_zero:
                self._track(found, state.global_step)

        handle = self._waiting = model.register_forward_pre_hook(measure, with_kwargs=True)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Close the file of records."""
        self._close()

    def _close(self) -> None:
        if self._waiting is not None:
            self._waiting.remove()
        if self._monitor is not None:
            self._monitor.close()
            self._monitor = None


def _checkpoint(args: Any, state: Any) -> Path:
    """The folder of the checkpoint at this step."""
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def _is_of(folder: Path, state: Any) -> bool:
    """Whether a checkpoint is that which a state was loaded from: its history is the same."""
    try:
        saved = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    # As text, in which a loss that is not a number equals itself.
    return all(
        json.dumps(saved.get(name)) == json.dumps(getattr(state, name)) for name in ("global_step", "log_history")
    )
