"""One training run: what it is made of, how it goes on by a step, how it is saved and taken up."""

import math
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trimtab.bnp import BNP, kernels
from trimtab.data import Dataset, Split, batches, load
from trimtab.norms import gamma_decay
from trimtab.training.compiling import compiled, not_compiled, repeated
from trimtab.training.network import Interface, network
from trimtab.training.optimizing import load_state, make_capturable, portable_state, set_rate
from trimtab.training.schedule import Schedule
from trimtab.training.settings import Settings, settled
from trimtab.training.stepping import Captured, Eager, Stepper, choose

EVALUATION_BATCH = 1000
"""Samples that are evaluated at once."""
SMALL, MANY_SMALL = 4096, 5000
"""Of samples with so few numbers, so many on a GPU: it is launches that take the time there."""


class NoSuchStep(ValueError):  # noqa: N818
    """A measurement is wanted at a step that the run does not have.

    Attributes:
        step: That step.
        total: How many the run has.
    """

    def __init__(self, step: int, total: int, name: str = "probe_at") -> None:
        """Say it of the setting or flag of this name."""
        super().__init__(f"{name} has step {step}, but there are {total} steps, from 0 on")
        self.step, self.total = step, total


class Session:
    """A network, its data and its optimizer, at some step of their training.

    Attributes:
        settings: Resolved.
        model: The network.
        interface: What its inputs look like.
        step: Steps taken.
        total: Steps to take.
        batch_size: Samples per step.
        steps_per_epoch: Full batches in the training data.
        evaluation_batches: How many an evaluation takes.
        part: What evaluations are on: `validation` or `test`.
    """

    def __init__(
        self,
        settings: Settings,
        device: torch.device,
        data_root: Path | None = None,
        dataset: Dataset | None = None,
    ) -> None:
        """Load the data, unless they are given, and draw the weights."""
        self.settings = settings
        self.device = device
        self.method = settings.parsed_method
        self.dataset: Dataset = load(settings.data, data_root) if dataset is None else dataset
        train, held_out = self._parts()
        self.batch_size = settled(settings.batch_size) or len(train)
        if self.batch_size > len(train):
            raise ValueError(
                f"batch_size is {self.batch_size}, but there are {len(train)} samples to train on; take so many or "
                "less, or 0 for all of them"
            )

        _set_precision(settings, device)
        torch.manual_seed(settings.seed)
        self.interface = Interface.of(self.dataset, settings, self.batch_size)
        self.model = network(settings, self.interface).to(device)
        self._layout = _layout(settings, device, self.model)
        if self._layout is torch.channels_last:
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            torch.backends.cudnn.benchmark = True  # of these convolutions it does not know the fastest otherwise
        self.optimizer = _optimizer(settings, self.model)
        self.bnp = self._attach() if self.method.bnp else None
        self._forward: Callable[[Tensor], Tensor] = compiled(self.model) if settings.compile else self.model

        self._generator = torch.Generator().manual_seed(settings.seed)
        common = {"dataset": self.dataset, "normalize": settled(settings.normalize), "device": device}
        self._train = batches(
            train,
            self.batch_size,
            generator=self._generator,
            augment=settled(settings.augment),
            drop_last=True,
            **common,  # type: ignore[arg-type]
        )
        self._held_out = batches(held_out, _evaluation_batch(self.dataset, device), **common)  # type: ignore[arg-type]
        self.evaluation_batches = len(self._held_out)
        self.step = 0
        self.steps_per_epoch = len(self._train)
        self.total = settings.steps or settled(settings.epochs) * self.steps_per_epoch
        self.schedule = _schedule(settings, self.total, self.steps_per_epoch)
        if any(step >= self.total for step in settings.probe_at):
            raise NoSuchStep(max(settings.probe_at), self.total)
        self._before_epoch = self._generator.get_state()
        self._epoch: Iterator[tuple[Tensor, Tensor]] | None = None
        self._loss_sum = torch.zeros((), device=device)
        self._correct = torch.zeros((), device=device)
        self._summed = 0
        self._choice = choose(settings.step, device, self.total, probes=bool(settings.probe))
        if self._captures:
            make_capturable(self.optimizer, device)
        self._stepper = self._new_stepper()

    @property
    def execution(self) -> str:
        """How the steps are taken, in words."""
        step = str(self._stepper.choice)
        if self.settings.compile:
            step += ", blocks compiled" if repeated(self.model) else ", compiled"
        if self._layout is torch.channels_last:
            step += ", channels last, convolutions tuned"
        parts = [f"step: {step}"]
        if self.method.bnp:
            parts.append(f"BNP: {kernels.describe(self.device)}")
        return "; ".join([*parts, f"precision: {self.settings.precision}"])

    def advance(self, batch: tuple[Tensor, Tensor] | None = None) -> None:
        """Take one step, with the batch that `next_batch` gave, and add its loss and accuracy to the sums."""
        inputs, targets = self.next_batch() if batch is None else batch
        self._stepper(self, inputs, targets)
        self.step += 1
        self._summed += 1

    def work(self, inputs: Tensor, targets: Tensor) -> None:
        """A whole step on the device: all that a replay of it has to do, and nothing that Python counts."""
        self.optimizer.zero_grad()
        with self._autocast():
            output = self._forward(inputs)
        loss = self._loss(output.float(), targets)
        self._penalized(loss).backward()
        self.optimizer.step()
        self._loss_sum += loss.detach()
        if self.dataset.classes:
            self._correct += (output.detach().argmax(1) == targets).sum()

    def clear(self) -> None:
        """Let go what is left of a step."""
        self.optimizer.zero_grad()
        if self.bnp is not None:
            self.bnp.discard()

    def wait(self) -> None:
        """Wait until the device has done all that was asked for."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """The batch of this step, for which the learning rate is set.

        An epoch that was begun before a checkpoint is drawn again and gone on with.
        """
        set_rate(self.optimizer, self.schedule.at(self.step))
        position = self.step % self.steps_per_epoch
        if position == 0:
            self._before_epoch = self._generator.get_state()
            self._epoch = self._train.epoch(self._train.plan())
        elif self._epoch is None:
            self._generator.set_state(self._before_epoch)
            self._epoch = self._train.epoch(self._train.plan(), position)
        assert self._epoch is not None
        inputs, targets = next(self._epoch)
        return inputs.contiguous(memory_format=self._layout), targets

    def loss_fn(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """What a step differentiates, for probes."""
        inputs, targets = batch
        with self._autocast():
            output = model(inputs)
        return self._penalized(self._loss(output.float(), targets))

    def loss_so_far(self) -> float:
        """The sum of the losses since the last `take_means`; this waits for the device."""
        return self._loss_sum.item()

    def take_means(self) -> tuple[float, float | None]:
        """Mean loss and accuracy over the steps since the last call; this waits for the device."""
        means = self.means()
        self._loss_sum.zero_()
        self._correct.zero_()
        self._summed = 0
        return means

    def means(self) -> tuple[float, float | None]:
        """The same, and the next call is over these steps too."""
        loss = self._loss_sum.item() / max(self._summed, 1)
        accuracy = self._correct.item() / max(self._summed * self.batch_size, 1) if self.dataset.classes else None
        return loss, accuracy

    @torch.no_grad()
    def evaluate(self, most: int | None = None) -> tuple[float, float | None]:
        """Loss and accuracy on the data that are not trained on; the loss is a mean, or a sum in regression.

        Args:
            most: So many batches at most; None: all of them.
        """
        self.model.eval()
        loss = torch.zeros((), device=self.device)
        correct = torch.zeros((), device=self.device)
        count = 0
        # Compiling for it, too, takes seconds on a GPU, and more on a CPU than is ever gained.
        with not_compiled(self.settings.compile and self.device.type != "cuda"):
            for inputs, targets in islice(self._held_out, most):
                with self._autocast():
                    output = self.model(inputs)
                loss += self._loss(output.float(), targets) * (len(targets) if self.dataset.classes else 1)
                count += len(targets)
                if self.dataset.classes:
                    correct += (output.argmax(1) == targets).sum()
        self.model.train()
        if not self.dataset.classes:
            return loss.item(), None
        return loss.item() / count, correct.item() / count

    def state(self) -> dict[str, Any]:
        """Everything that decides how the run goes on."""
        return {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": portable_state(self.optimizer),
            "bnp": None if self.bnp is None else self.bnp.state_dict(),
            "before_epoch": self._before_epoch,
            "order_generator": self._generator.get_state(),
            "torch_generator": torch.get_rng_state(),
            "device_generator": torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None,
            "sums": (self._loss_sum, self._correct, self._summed),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take up a state."""
        self.wait()  # a graph may still run
        self.step = state["step"]
        self.model.load_state_dict(state["model"])
        load_state(self.optimizer, state["optimizer"], self.device if self._captures else None)
        if self.bnp is not None:
            self.bnp.load_state_dict(state["bnp"])
        self._before_epoch = state["before_epoch"].cpu()
        self._generator.set_state(state["order_generator"].cpu())
        self._epoch = None
        torch.set_rng_state(state["torch_generator"].cpu())
        if self.device.type == "cuda" and state["device_generator"] is not None:
            torch.cuda.set_rng_state(state["device_generator"].cpu(), self.device)
        loss_sum, correct, self._summed = state["sums"]
        self._loss_sum.copy_(loss_sum)
        self._correct.copy_(correct)
        self._stepper = self._new_stepper()  # a graph would go on with the tensors that were replaced

    @property
    def _captures(self) -> bool:
        return self._choice.kind == "captured"

    def _new_stepper(self) -> Stepper:
        return Captured(self.device) if self._captures else Eager(self._choice)

    def _parts(self) -> tuple[Split, Split]:
        """What is trained on and what is evaluated."""
        size = self.settings.validation
        train, validation = self.dataset.with_validation(size) if size else (self.dataset.train, None)
        self.part = self.settings.evaluate_on or ("test" if validation is None else "validation")
        if self.part == "test":
            return train, self.dataset.test
        if validation is None:
            raise ValueError("evaluate_on is validation, but no samples are set aside for it; set validation too")
        return train, validation

    def _attach(self) -> BNP:
        s = self.settings
        bnp = BNP(
            self.model,
            rho=s.rho,
            eps1=s.eps1,
            eps2=s.eps2,
            statistics=s.statistics,
            debias=self.method.debias,
            spatial=s.spatial,
            no_bias=s.no_bias,
        )
        return bnp.attach(self.optimizer)

    def _loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy; in regression the squared error summed over outputs and samples (landscape, App. A)."""
        if self.dataset.classes:
            return F.cross_entropy(output, targets)
        return (output - targets).square().sum()

    def _penalized(self, loss: Tensor) -> Tensor:
        return loss + gamma_decay(self.model, self.settings.zeta) if self.settings.zeta else loss

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.settings.precision == "bf16")


def _optimizer(settings: Settings, model: nn.Module) -> torch.optim.Optimizer:
    lr = settled(settings.lr)
    decayed, others = _decayed(model, settled(settings.decay_on))
    groups: list[dict[str, Any]] = [{"params": decayed, "weight_decay": settled(settings.weight_decay)}]
    if others:
        groups.append({"params": others, "weight_decay": 0.0})
    if settings.optimizer == "adam":
        return torch.optim.Adam(groups, lr=lr)
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=lr)
    return torch.optim.SGD(groups, lr=lr, momentum=settled(settings.momentum), nesterov=settled(settings.nesterov))


def _decayed(model: nn.Module, kind: str) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The parameters that the weight decay is for, and the others.

    `weights` are those of dense layers and convolutions (under weight norm, the directions), and γ and β of layers that
    want it; `norms` are γ and β of all normalization layers.
    """
    decayed: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for module in model.modules():
        layer = isinstance(module, nn.Linear | nn.Conv2d)
        for name, parameter in module.named_parameters(recurse=False):
            weight = (layer and name == "weight") or name == "original1"
            norm = not layer and name in ("weight", "bias")
            wanted = norm and getattr(module, "decay_gamma_beta", False)
            chosen = kind == "all" or (kind == "weights" and (weight or wanted)) or (kind == "norms" and norm)
            (decayed if chosen else others).append(parameter)
    return decayed, others


def _schedule(settings: Settings, total: int, steps_per_epoch: int) -> Schedule:
    return Schedule(
        lr=settled(settings.lr),
        kind=settled(settings.schedule),
        total=total,
        milestones=tuple(epoch * steps_per_epoch for epoch in settled(settings.milestones)),
        factor=settled(settings.factor),
        warmup=settled(settings.warmup) + settled(settings.warmup_epochs) * steps_per_epoch,
        warmup_from=settled(settings.warmup_from),
        warmup_linear=settled(settings.warmup_linear),
    )


def _layout(settings: Settings, device: torch.device, model: nn.Module) -> torch.memory_format:
    """The order of images in memory: channels last where convolutions are faster so and no other layer is slower.

    That is in bfloat16 on a GPU, with the layers in between compiled: as it is, group normalization turns images back.
    """
    fits = device.type == "cuda" and settings.precision == "bf16" and settings.compile
    images = any(isinstance(module, nn.Conv2d) for module in model.modules())
    return torch.channels_last if fits and images else torch.contiguous_format


def _evaluation_batch(dataset: Dataset, device: torch.device) -> int:
    small = math.prod(dataset.input_shape) <= SMALL
    return MANY_SMALL if small and device.type == "cuda" else EVALUATION_BATCH


def _set_precision(settings: Settings, device: torch.device) -> None:
    if device.type == "cuda":
        tf32 = settings.precision == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.backends.cudnn.allow_tf32 = tf32
