"""How a training step is taken: operation by operation, or all of it as one CUDA graph.

On a GPU a step of a small or deep network is a matter of launches: the device waits for Python. A graph has all the
launches of a step in it and is started by one call. What it computes is what the same operations compute one by one.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from trimtab.notice import warn_user

Kind = Literal["eager", "captured"]

WARM_UP = 3
"""So many steps come before the capture: what is made in the first ones (kernels, momentum, averages) is there then."""
WORTHWHILE = 50
"""A run with fewer steps is not captured: that alone takes as long as some of them."""


@dataclass(frozen=True, slots=True)
class Choice:
    """How the steps are taken.

    Attributes:
        kind: `eager` or `captured`.
        why: Why not captured, where that is worth a word.
    """

    kind: Kind
    why: str = ""

    def __str__(self) -> str:
        """In a few words."""
        if self.kind == "captured":
            return "captured CUDA graph"
        return f"eager ({self.why})" if self.why else "eager"


def choose(wanted: Literal["auto", "eager", "captured"], device: torch.device, steps: int, *, probes: bool) -> Choice:
    """How to take steps.

    Args:
        wanted: What a person asked for.
        device: Where the training is.
        steps: How many there are.
        probes: Whether something is measured in between.

    Raises:
        ValueError: If steps shall be captured where that is not possible.
    """
    if wanted == "eager":
        return Choice("eager")
    if device.type != "cuda":
        if wanted == "captured":
            raise ValueError(f"step captured needs a CUDA device, and this run is on {device.type}; use step auto")
        return Choice("eager")
    if wanted == "captured":
        return Choice("captured")
    if steps < WORTHWHILE:
        return Choice("eager", f"{steps} steps are too few to capture")
    if probes:
        return Choice("eager", "there are probes")
    return Choice("captured")


class Training(Protocol):
    """What steps are taken of."""

    def work(self, inputs: Tensor, targets: Tensor) -> None:
        """Do a whole step; nothing in it may depend on numbers that Python changes from step to step."""

    def clear(self) -> None:
        """Let all gradients go, and what else is left of a step that was not finished."""


class Stepper(Protocol):
    """Takes steps. It is told of what at each step, since it does not outlive that.

    Attributes:
        choice: How.
    """

    choice: Choice

    def __call__(self, training: Training, inputs: Tensor, targets: Tensor) -> None:
        """Take one."""


class Eager:
    """Takes steps operation by operation."""

    def __init__(self, choice: Choice) -> None:
        """For a reason."""
        self.choice = choice

    def __call__(self, training: Training, inputs: Tensor, targets: Tensor) -> None:
        """Take a step."""
        training.work(inputs, targets)


class Captured:
    """Takes a few steps operation by operation, records the next one as a CUDA graph, and replays that from then on.

    Recording executes nothing, so each call is one step. If a step cannot be recorded, that is said once and the steps
    go on operation by operation. The graph is made of the memory of model, optimizer and averages as they are: whoever
    replaces one of these tensors by another takes a new stepper.
    """

    def __init__(self, device: torch.device) -> None:
        """Nothing is recorded yet.

        Args:
            device: A CUDA device. Batches must all have one size.
        """
        self.choice = Choice("captured")
        self._device = device
        self._taken = 0
        self._batch: tuple[Tensor, Tensor] | None = None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._stream = torch.cuda.Stream(device)

    def __call__(self, training: Training, inputs: Tensor, targets: Tensor) -> None:
        """Take a step."""
        if self.choice.kind == "eager":
            training.work(inputs, targets)
            return
        with torch.cuda.device(self._device):
            self._take(training, *self._held(inputs, targets))

    def _held(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The batch in the memory that the graph reads it from."""
        if self._batch is None:
            self._batch = inputs.clone(), targets.clone()
        else:
            self._batch[0].copy_(inputs)
            self._batch[1].copy_(targets)
        return self._batch

    def _take(self, training: Training, inputs: Tensor, targets: Tensor) -> None:
        if self._taken < WARM_UP:
            self._step_aside(training, inputs, targets)
            self._taken += 1
            return
        if self._graph is None:
            self._graph = self._capture(training, inputs, targets)
        if self._graph is None:
            training.work(inputs, targets)
        else:
            self._graph.replay()

    def _step_aside(self, training: Training, inputs: Tensor, targets: Tensor) -> None:
        """A step on the stream that will be recorded: autograd remembers on which one it has added to a gradient."""
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            training.work(inputs, targets)
        current.wait_stream(self._stream)

    def _capture(self, training: Training, inputs: Tensor, targets: Tensor) -> torch.cuda.CUDAGraph | None:
        """The step as a graph; None if that cannot be."""
        current = torch.cuda.current_stream()
        random = torch.cuda.get_rng_state()
        training.clear()  # gradients are made anew in the graph's own memory
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads may allocate memory in the meantime, as those that load images do.
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                training.work(inputs, targets)
        except Exception as error:
            torch.cuda.set_stream(current)  # torch does not go back to it if the end of a capture fails
            _set_new_generator_state(random)
            training.clear()
            why = (str(error).splitlines() or ["no reason was given"])[0]
            self.choice = Choice("eager", "the step could not be captured")
            warn_user(
                "The training step could not be captured as a CUDA graph and goes on without one. "
                f"({type(error).__name__}: {why})"
            )
            return None
        return graph


def _set_new_generator_state(random: Tensor) -> None:
    """Give the current device's generator this state as a new object: the old one believes to be captured still."""
    fresh = torch.Generator(torch.device("cuda", torch.cuda.current_device()))
    fresh.set_state(random)
    torch.cuda.default_generators[torch.cuda.current_device()].graphsafe_set_state(fresh.graphsafe_get_state())
