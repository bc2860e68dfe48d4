"""The training of one stack: networks that differ in numbers only, as one batched computation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from trimtab.data import Batches, Dataset, batches
from trimtab.norms import trained_gammas
from trimtab.training.batch_stream import BatchStream
from trimtab.training.building import batch_size_of, build_schedule, check_loss, set_precision, split_data
from trimtab.training.explosion import LossWatch
from trimtab.training.network import Interface, network
from trimtab.training.objective import Objective
from trimtab.training.settings import Settings, resolved
from trimtab.training.stepping.optimizers import split_by_decay
from trimtab.training.stepping.steppers import choose_step_mode, make_stepper
from trimtab.training.sweep.stacked_network import StackedNetwork
from trimtab.training.sweep.stacked_update import StackedBNP, StackedOptimizer

OF_ONE_NETWORK = ("lr", "momentum", "weight_decay", "gamma", "sigma_w2", "sigma_b2", "init_scale", "zeta", "seed")
"""The settings in which networks of one stack may differ."""
OF_TRAINING = ("lr", "momentum", "weight_decay", "zeta")
"""Those among them that the initial network does not depend on."""
COMPACTED_AFTER = (10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000)
"""Steps after which exploded networks are taken out of the computation. Few, since a CUDA graph is captured anew."""
EVALUATED_ROWS = 1 << 16
"""Samples times networks that are evaluated at once."""


@dataclass(frozen=True, slots=True)
class StackedOutcome:
    """How one network of a stack has ended.

    Attributes:
        loss: On held-out data at the end; None if it exploded.
        accuracy: Likewise; None in regression too.
        exploded_at: The step, counted from 1, at which it exploded.
    """

    loss: float | None
    accuracy: float | None
    exploded_at: int | None


class Stack:
    """Trains several networks at once.

    Attributes:
        settings: Those of each network, resolved; they differ in `OF_ONE_NETWORK` only.
        step: Steps taken.
        total: Steps to take.
        network: The networks that are still in the computation,
        numbers: and which of the settings each of these belongs to.
    """

    def __init__(self, settings: Sequence[Settings], dataset: Dataset, device: torch.device) -> None:
        """Draw the weights, each network's as a run of its own would.

        Raises:
            ValueError: If the settings do not fit the data.
        """
        self.settings, self._device, self._classes = tuple(settings), device, dataset.classes
        common = self.settings[0]
        check_loss(dataset, common)
        train, held_out, _ = split_data(dataset, common)
        train, held_out = train.to(device), held_out.to(device)
        size = batch_size_of(common, len(train))
        set_precision(common, device)
        interface = Interface.of(dataset, common, size)
        per_epoch = len(train) // size
        self.step, self.total = 0, common.steps or resolved(common.epochs) * per_epoch
        models = _draw(self.settings, interface, self.total)
        decayed, _ = split_by_decay(models[0], resolved(common.decay_on))
        gammas = trained_gammas(models[0])
        self._gammas = [name for name, p in models[0].named_parameters() if any(p is gamma for gamma in gammas)]
        decayed_names = {name for name, p in models[0].named_parameters() if any(p is one for one in decayed)}
        self.network = StackedNetwork(models, device)
        self.numbers = torch.arange(len(self.settings))
        self._bnp = None
        if common.parsed_method.bnp:
            dense = {name: layer for name, layer in self.network.layers().items() if isinstance(layer, nn.Linear)}
            self._bnp = StackedBNP(common, dense, self.network.parameters)
        self._optimizer = StackedOptimizer(self.settings, self.network.parameters, decayed_names)
        self._zeta = torch.tensor([s.zeta for s in self.settings], device=device)
        self._objective = Objective(dataset.classes, 0.0, device, common.precision == "bf16", common.loss)
        self._loss = vmap(self._objective.data_loss)
        self._losses = torch.zeros(len(self.settings), device=device)
        self._watch = LossWatch(device, len(self.settings))
        self._within = torch.zeros(len(self.settings), dtype=torch.int64)  # steps up to an explosion

        how: dict[str, Any] = {"dataset": dataset, "normalize": resolved(common.normalize), "device": device}
        self._seeds = sorted({s.seed for s in self.settings})
        self._streams = [_stream(train, size, seed, augment=resolved(common.augment), **how) for seed in self._seeds]
        self._held_out = held_out, how
        self._schedules = [build_schedule(s, self.total, per_epoch) for s in self.settings]
        self._varies = common.schedule != "constant" or any(schedule.warmup for schedule in self._schedules)
        self._mode = choose_step_mode(common.step_mode, device, self.total, probes=False)
        self._arrange()

    def advance(self) -> None:
        """Take one step with all networks; after some steps, take those out that have exploded."""
        if self._varies:
            rates = [self._schedules[number].at(self.step) for number in self.numbers.tolist()]
            self._optimizer.lr.copy_(torch.tensor(rates, dtype=self._optimizer.lr.dtype))
        drawn = [stream.batch_of(self.step) for stream in self._streams]
        inputs, targets = (torch.stack(parts)[self._stream_of] for parts in zip(*drawn, strict=True))
        self._stepper(inputs, targets)
        self.step += 1
        if self.step == 1:
            self._watch.set_limit(self._losses)
        if self.step in COMPACTED_AFTER or self.step == self.total:
            self._compact()

    @property
    def finished(self) -> bool:
        """Whether all steps are taken, or no network is left."""
        return self.step == self.total or not len(self.numbers)

    @torch.no_grad()
    def outcomes(self) -> list[StackedOutcome]:
        """How each network has ended, in the order of the settings; call it at the end."""
        found = [StackedOutcome(None, None, int(steps) + 1) for steps in self._within]
        if not len(self.numbers):
            return found
        split, how = self._held_out
        rows = max(EVALUATED_ROWS // len(self.numbers), 1)
        loss, correct = torch.zeros(2, len(self.numbers), device=self._device)
        self.network.train(False)
        for inputs, targets in batches(split, rows, **how):
            everywhere = inputs.expand(len(self.numbers), *inputs.shape)
            wanted = targets.expand(len(self.numbers), *targets.shape)
            output = self._objective.output(self.network, everywhere)
            loss += self._loss(output, wanted) * (len(targets) if self._classes else 1)
            if self._classes:
                correct += (output.argmax(2) == wanted).sum(1)
        self.network.train()
        count = len(split) if self._classes else 1
        results = zip(self.numbers.tolist(), loss.tolist(), correct.tolist(), strict=True)
        for number, total, right in results:
            finite = total - total == 0
            accuracy = right / count if finite and self._classes else None
            found[number] = StackedOutcome(total / count, accuracy, None) if finite else _lost(self.total)
        return found

    def state(self) -> dict[str, Any]:
        """All there is to save."""
        network, optimizer, watch = self.network, self._optimizer, self._watch
        averages = {} if self._bnp is None else {name: one.tensors() for name, one in self._bnp.averages.items()}
        return {
            "step": self.step,
            "numbers": self.numbers,
            "within": self._within,
            "parameters": {name: value.detach() for name, value in network.parameters.items()},
            "constants": network.constants,
            "buffers": network.buffers,
            "optimizer": optimizer.state,
            "count": optimizer.count,
            "averages": averages,
            "limit": watch.limit,
            "steps": watch.steps,
            "streams": [stream.state() for stream in self._streams],
            "torch_generator": torch.get_rng_state(),
            "device_generator": torch.cuda.get_rng_state(self._device) if self._device.type == "cuda" else None,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what was saved of a stack with the same settings.

        Raises:
            ValueError: If it is of another one.
        """
        numbers = state["numbers"].cpu()
        self._keep(numbers)
        pairs = [(self.network.parameters, state["parameters"]), (self.network.constants, state["constants"])]
        for ours, saved in [*pairs, (self.network.buffers, state["buffers"])]:
            if {n: v.shape for n, v in ours.items()} != {n: v.shape for n, v in saved.items()}:
                raise ValueError("it is of other networks")
            for name, value in ours.items():
                value.detach().copy_(saved[name])
        for name, values in self._optimizer.state.items():
            for value, saved in zip(values, state["optimizer"][name], strict=True):
                value.copy_(saved)
        self._optimizer.count.copy_(state["count"])
        for name, running in self._bnp.averages.items() if self._bnp is not None else ():
            for key, value in running.tensors().items():
                value.copy_(state["averages"][name][key])
        self.step, self._within = state["step"], state["within"].cpu()
        self._watch.resume(self.step, state["steps"])
        self._watch.limit.copy_(state["limit"])
        for stream, saved in zip(self._streams, state["streams"], strict=True):
            stream.restore(saved)
        torch.set_rng_state(state["torch_generator"].cpu())
        if state["device_generator"] is not None and self._device.type == "cuda":
            torch.cuda.set_rng_state(state["device_generator"].cpu(), self._device)

    def _compact(self) -> None:
        """Write down which networks have exploded, and go on without them."""
        steps = self._watch.steps.cpu()
        self._within[self.numbers] = steps
        alive = (steps == self.step).nonzero().squeeze(1)
        if len(alive) < len(self.numbers):
            self._keep(alive)

    def _keep(self, alive: Tensor) -> None:
        """Go on with those at these places among the networks that there are."""
        here = alive.to(self._device)
        self.network.keep(here)
        self._optimizer.keep(here)
        self._watch.keep(here)
        if self._bnp is not None:
            self._bnp.keep(here)
        self._zeta, self._losses = self._zeta[here], self._losses[here]
        self.numbers = self.numbers[alive]
        self._arrange()

    def _arrange(self) -> None:
        """Prepare the steps of the networks that there are."""
        seeds = [self._seeds.index(self.settings[number].seed) for number in self.numbers.tolist()]
        self._stream_of = torch.tensor(seeds, device=self._device, dtype=torch.int64)
        self._stepper = make_stepper(self._mode, _Step(self._take_step), self._device)

    def _take_step(self, inputs: Tensor, targets: Tensor) -> None:
        """All that a step does on the device."""
        parameters = self.network.parameters
        output = self._objective.output(
            lambda x: self.network(x, None if self._bnp is None else self._bnp.observe), inputs
        )
        losses = self._loss(output, targets)
        total = losses.sum()
        if any(s.zeta for s in self.settings):
            squares = [parameters[name].square().flatten(1).sum(1) for name in self._gammas]
            total = total + (self._zeta * torch.stack(squares).sum(0)).sum()
        gradients = dict(zip(parameters, torch.autograd.grad(total, list(parameters.values())), strict=True))
        if self._bnp is not None:
            self._bnp.precondition(gradients)
        self._optimizer.step(parameters, gradients)
        self._losses.copy_(losses.detach())
        self._watch.add(losses)


class _Step:
    """The step of a stack, as steppers take it; nothing is left over from one that was not finished."""

    def __init__(self, take: Callable[[Tensor, Tensor], None]) -> None:
        self._take = take

    def __call__(self, inputs: Tensor, targets: Tensor) -> None:
        self._take(inputs, targets)

    def discard(self) -> None:
        pass


def _lost(total: int) -> StackedOutcome:
    """What is not finite in evaluation alone has exploded at the end."""
    return StackedOutcome(None, None, total)


def _draw(settings: Sequence[Settings], interface: Interface, steps: int) -> list[nn.Module]:
    """The initial networks, each drawn once for all that begin with the same one."""
    drawn: dict[Settings, nn.Module] = {}
    usual = {name: getattr(settings[0], name) for name in OF_TRAINING}
    models = []
    for one in settings:
        key = replace(one, **usual)
        if key not in drawn:
            with torch.random.fork_rng([]):
                torch.manual_seed(one.seed)
                drawn[key] = network(one, interface, steps)
        models.append(drawn[key])
    return models


def _stream(train: Any, size: int, seed: int, **how: Any) -> BatchStream:
    generator = torch.Generator().manual_seed(seed)
    made = batches(train, size, generator=generator, drop_last=True, **how)
    assert isinstance(made, Batches)
    return BatchStream(made, generator, torch.contiguous_format)
