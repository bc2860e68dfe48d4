"""A training run at some step: model, data, optimizer, and what a checkpoint saves of them."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trimtab.bnp import backends
from trimtab.data import Dataset, Split, batches, load
from trimtab.training.batch_stream import BatchStream
from trimtab.training.building import (
    attach_bnp,
    batch_size_of,
    build_schedule,
    check_loss,
    choose_memory_format,
    set_precision,
    split_data,
    training_subset,
    use_channels_last,
)
from trimtab.training.evaluation import Evaluator, evaluation_batch_size
from trimtab.training.network import Interface, network
from trimtab.training.objective import Objective
from trimtab.training.processes import (
    ALONE,
    Processes,
    allow_shares,
    counts_in_words,
    shares_in_words,
    uses_batch_statistics,
)
from trimtab.training.settings import Settings, resolved
from trimtab.training.stepping.compiling import residual_blocks
from trimtab.training.stepping.optimizers import build_optimizer, load_state, make_capturable, portable_state, set_rate
from trimtab.training.stepping.step import TrainingStep
from trimtab.training.stepping.steppers import choose_step_mode, make_stepper
from trimtab.training.totals import Totals


class NoSuchStep(ValueError):  # noqa: N818
    """A probe is to run at a step that the run does not have.

    Attributes:
        step: That step.
        total: How many the run has.
    """

    def __init__(self, step: int, total: int, name: str = "probe_at") -> None:
        """Name the setting or flag that asks for it."""
        super().__init__(f"{name} has step {step}, but there are {total} steps, from 0 on")
        self.step, self.total = step, total


class Session:
    """A network, its data and its optimizer, at some step of their training.

    Attributes:
        settings: All settings, resolved.
        device: Where it is trained.
        dataset: What it is trained on.
        model: The network.
        interface: What its inputs look like.
        optimizer: Updates its parameters.
        bnp: What is attached to the optimizer; None if the method is without BNP.
        loss_fn: What a step differentiates, as a function of model and batch, for probes.
        evaluate: Mean loss and accuracy on the data that are not trained on; takes the largest number of batches.
        evaluate_train: The same on a fixed subset of those that are; None if the settings have none.
        schedule: The learning rate of each step.
        step: Steps taken.
        total: Steps to take.
        batch_size: Samples per step.
        steps_per_epoch: The number of full batches in the training data.
        part: What evaluations are on: `validation` or `test`.
        processes: Those that train it together; each has a session with its share of every batch.
        initial: Where its first weights come from, if not drawn but taken over from another run.
    """

    def __init__(
        self,
        settings: Settings,
        device: torch.device,
        data_root: Path | None = None,
        dataset: Dataset | None = None,
        processes: Processes = ALONE,
    ) -> None:
        """Load the data, unless they are given, and draw the weights."""
        self.settings = settings
        self.initial: dict[str, Any] | None = None
        self.processes = processes
        self.device = device
        self.dataset: Dataset = load(settings.data, data_root) if dataset is None else dataset
        check_loss(self.dataset, settings)
        train, held_out, self.part = split_data(self.dataset, settings)
        self.batch_size = batch_size_of(settings, len(train))

        set_precision(settings, device)
        torch.manual_seed(settings.seed)
        self.interface = Interface.of(self.dataset, settings, self.batch_size)
        self.steps_per_epoch = len(train) // self.batch_size
        self.total = settings.steps or resolved(settings.epochs) * self.steps_per_epoch
        self.model = network(settings, self.interface, self.total).to(device)
        if processes.several:
            allow_shares(self.model, settings.method, processes.shares(self.batch_size))
            processes.seed(settings.seed)
        self._memory_format = choose_memory_format(settings, device, self.model)
        if self._memory_format is torch.channels_last:
            use_channels_last(self.model)
        self.optimizer = build_optimizer(settings, self.model)
        self.bnp = attach_bnp(settings, self.model, self.optimizer)

        generator = torch.Generator().manual_seed(settings.seed)
        common = {"dataset": self.dataset, "normalize": resolved(settings.normalize), "device": device}
        common["part"] = processes.rank, processes.size
        training_batches = batches(
            train,
            self.batch_size,
            generator=generator,
            augment=resolved(settings.augment),
            drop_last=True,
            **common,  # type: ignore[arg-type]
        )
        self._batches = BatchStream(training_batches, generator, self._memory_format)
        self.step = 0
        self.schedule = build_schedule(settings, self.total, self.steps_per_epoch)
        if any(step >= self.total for step in settings.probe_at):
            raise NoSuchStep(max(settings.probe_at), self.total)

        classes, bf16 = self.dataset.classes, settings.precision == "bf16"
        self.loss_fn = Objective(classes, settings.zeta, device, bf16, settings.loss)

        # To compile the evaluation, too, takes seconds on a GPU, and more on a CPU than is ever gained.
        def evaluator(split: Split) -> Evaluator:
            return Evaluator(
                self.model,
                self.loss_fn,
                batches(split, evaluation_batch_size(self.dataset, device), **common),  # type: ignore[arg-type]
                run_uncompiled=settings.compile and device.type != "cuda",
                processes=processes,
            )

        self.evaluate = evaluator(held_out)
        size = settings.train_subset
        self.evaluate_train = evaluator(training_subset(train, size, settings.seed)) if size else None
        self._totals = Totals(device, classes=classes, batch_size=self.batch_size, processes=processes)
        mode = choose_step_mode(
            settings.step_mode,
            device,
            self.total,
            probes=bool(settings.probe),
            several_processes=processes.several,
        )
        if mode.kind == "captured":
            make_capturable(self.optimizer, device)
        step = TrainingStep(
            self.model,
            self.optimizer,
            self.bnp,
            self.loss_fn,
            self._totals,
            compile=settings.compile,
            batch_size=self.batch_size,
            processes=processes,
        )
        self._stepper = make_stepper(mode, step, device)

    @property
    def execution(self) -> str:
        """How the steps are executed, in words."""
        step = str(self._stepper.mode)
        if self.settings.compile:
            step += ", blocks compiled" if residual_blocks(self.model) else ", compiled"
        if self._memory_format is torch.channels_last:
            step += ", channels last, convolutions tuned"
        parts = [f"step: {step}"]
        if self.processes.several:
            parts.append(shares_in_words(self.processes.shares(self.batch_size)))
        if self.bnp is not None:
            parts.append(f"BNP: {backends.describe(self.device)}")
        return "; ".join([*parts, f"precision: {self.settings.precision}"])

    @property
    def note(self) -> str:
        """What a user has to know of a run in several processes that is not the run in one; empty if nothing."""
        if not self.processes.several or not uses_batch_statistics(self.model):
            return ""
        samples = counts_in_words(self.processes.shares(self.batch_size))
        return (
            f"{self.settings.method} normalizes by the samples of each process, {samples} of a batch of "
            f"{self.batch_size}; in one process it would normalize by all of them"
        )

    def advance(self, batch: tuple[Tensor, Tensor] | None = None) -> None:
        """Take one step, with the batch that `next_batch` gave, and add its loss and accuracy to the totals."""
        inputs, targets = self.next_batch() if batch is None else batch
        self._stepper(inputs, targets)
        self.step += 1
        self._totals.steps += 1

    def wait(self) -> None:
        """Wait until the device has done all that was asked for."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """The batch of this step, for which the learning rate is set."""
        set_rate(self.optimizer, self.schedule.at(self.step))
        return self._batches.batch_of(self.step)

    def loss_so_far(self) -> float:
        """The sum of the losses since the last `take_means`; this waits for the device."""
        return self._totals.loss()

    def set_loss_limit(self, first_loss: float) -> None:
        """Call losses an explosion that are too large beside that of the first step."""
        self._totals.watch.set_limit(first_loss)

    def exploded_at(self) -> int | None:
        """The first step, counted from 1, with such a loss or one that is not finite; this waits for the device."""
        (step,) = self.processes.largest(self._totals.watch.exploded_at(self.step) or 0)
        return step or None

    @property
    def steps_in_means(self) -> int:
        """The number of steps since the last `take_means`."""
        return self._totals.steps

    def means(self) -> tuple[float, float | None]:
        """Mean loss and accuracy over the steps since the last `take_means`; this waits for the device."""
        return self._totals.means()

    def take_means(self) -> tuple[float, float | None]:
        """The same, and start new means."""
        means = self.means()
        self._totals.reset()
        return means

    def state(self) -> dict[str, Any]:
        """The state of the run, for a checkpoint."""
        return {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": portable_state(self.optimizer),
            "bnp": None if self.bnp is None else self.bnp.state_dict(),
            **self._batches.state(),
            "torch_generator": torch.get_rng_state(),
            "device_generator": torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None,
            "sums": self._totals.state(),
        }

    def state_of_all(self) -> dict[str, Any]:
        """The same with what each process has of its own, complete in the first one; for all at the same time."""
        state = self.state()
        if self.processes.several:
            loss, correct, steps = self._totals.state()
            mine = {"torch_generator": state["torch_generator"], "device_generator": state["device_generator"]}
            own = self.processes.gathered({**mine, "sums": (loss.cpu(), correct.cpu(), steps)})
            state["processes"] = own
            state["sums"] = (*self.processes.added(torch.stack([loss, correct])).unbind(), steps)
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a saved state, of as many processes or of another number.

        With as many, each gets back its random numbers and sums. With another number the first one gets the random
        numbers of the first and the sums of all, and the others new random numbers.
        """
        self.wait()  # a graph may still run
        self.step = state["step"]
        self.model.load_state_dict(state["model"])
        load_state(self.optimizer, state["optimizer"])
        if self.bnp is not None:
            self.bnp.load_state_dict(state["bnp"])
        self._batches.restore(state)
        saved = state.get("processes", [])
        same = len(saved) == self.processes.size
        own = saved[self.processes.rank] if same else state
        torch.set_rng_state(own["torch_generator"].cpu())
        if self.device.type == "cuda" and own["device_generator"] is not None:
            torch.cuda.set_rng_state(own["device_generator"].cpu(), self.device)
        self._totals.restore(own["sums"])
        self._totals.watch.resume(self.step)
        if not same and not self.processes.first:
            self.processes.seed(self.settings.seed, self.step)
            self._totals.clear_sums()
        self._stepper.reset()  # a graph would go on with the tensors that were replaced
