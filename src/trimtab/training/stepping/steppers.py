"""How a training step is executed: operation by operation, or all of it as one CUDA graph.

On a GPU the time of a small or deep network's step is spent on launching kernels: the device waits for Python. A graph
holds all launches of a step and is started by one call. It computes what the same operations compute one by one.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from trimtab._torch import replace_cuda_generator_state
from trimtab.notice import warn_user

WARM_UP_STEPS = 3
"""Steps before the capture. They create what is created once: kernels, momentum, running averages."""
MIN_STEPS = 50
"""A run with fewer steps is not captured: the capture alone takes as long as some of them."""


@dataclass(frozen=True, slots=True)
class StepMode:
    """How steps are executed.

    Attributes:
        kind: `eager` (operation by operation) or `captured` (as a CUDA graph).
        reason: Why not captured, where a user may wonder.
    """

    kind: Literal["eager", "captured"]
    reason: str = ""

    def __str__(self) -> str:
        """In a few words."""
        if self.kind == "captured":
            return "captured CUDA graph"
        return f"eager ({self.reason})" if self.reason else "eager"


def choose_step_mode(
    wanted: Literal["auto", "eager", "captured"],
    device: torch.device,
    steps: int,
    *,
    probes: bool,
    several_processes: bool = False,
) -> StepMode:
    """How to execute the steps of a run.

    Args:
        wanted: The setting `step_mode`.
        device: Where the training is.
        steps: How many there are.
        probes: Whether something is measured in between.
        several_processes: Whether others take the same steps.

    Raises:
        ValueError: If steps shall be captured where that is not possible.
    """
    if wanted == "eager":
        return StepMode("eager")
    if device.type != "cuda":
        if wanted == "captured":
            raise ValueError(
                f"step_mode captured needs a CUDA device, and this run is on {device.type}; use step_mode auto"
            )
        return StepMode("eager")
    if several_processes:
        return StepMode("eager", "steps of several processes are not captured")
    if wanted == "captured":
        return StepMode("captured")
    if steps < MIN_STEPS:
        return StepMode("eager", f"{steps} steps are too few to capture")
    if probes:
        return StepMode("eager", "there are probes")
    return StepMode("captured")


class Step(Protocol):
    """A training step, as `TrainingStep` is one."""

    def __call__(self, inputs: Tensor, targets: Tensor) -> None:
        """Take a step; nothing in it may depend on numbers that Python changes from step to step."""

    def discard(self) -> None:
        """Drop all gradients, and what else is left of a step that was not finished."""


class Stepper(Protocol):
    """Executes training steps.

    Attributes:
        mode: How it does so now.
    """

    mode: StepMode

    def __call__(self, inputs: Tensor, targets: Tensor) -> None:
        """Execute one step."""

    def reset(self) -> None:
        """Forget what was captured: tensors of the model or the optimizer were replaced."""


def make_stepper(mode: StepMode, step: Step, device: torch.device) -> Stepper:
    """The stepper of a mode."""
    return CapturedStepper(step, device) if mode.kind == "captured" else EagerStepper(mode, step)


class EagerStepper:
    """Executes steps operation by operation."""

    def __init__(self, mode: StepMode, step: Step) -> None:
        """Execute this step; the mode says why eagerly."""
        self.mode = mode
        self._step = step

    def __call__(self, inputs: Tensor, targets: Tensor) -> None:
        """Execute one step."""
        self._step(inputs, targets)

    def reset(self) -> None:
        """Nothing is captured."""


class CapturedStepper:
    """Executes a few steps operation by operation, captures the next one as a CUDA graph, then replays the graph.

    Capturing executes nothing, so each call is one step. If a step cannot be captured, there is one warning and the
    steps go on operation by operation. The graph reads and writes the memory that model, optimizer and running
    averages have when it is captured: whoever replaces one of these tensors calls `reset`.
    """

    def __init__(self, step: Step, device: torch.device) -> None:
        """Prepare; nothing is captured yet.

        Args:
            step: What is executed.
            device: A CUDA device. Batches must all have one size.
        """
        self._step, self._device = step, device
        self.reset()

    def reset(self) -> None:
        """Forget the graph, and begin with the warm-up again."""
        self.mode = StepMode("captured")
        self._warm_up_steps = 0
        self._static_batch: tuple[Tensor, Tensor] | None = None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._stream = torch.cuda.Stream(self._device)

    def __call__(self, inputs: Tensor, targets: Tensor) -> None:
        """Execute one step."""
        if self.mode.kind == "eager":
            self._step(inputs, targets)
            return
        with torch.cuda.device(self._device):
            self._execute(*self._copied(inputs, targets))

    def _copied(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The batch in the memory that the graph reads it from."""
        if self._static_batch is None:
            self._static_batch = inputs.clone(), targets.clone()
        else:
            self._static_batch[0].copy_(inputs)
            self._static_batch[1].copy_(targets)
        return self._static_batch

    def _execute(self, inputs: Tensor, targets: Tensor) -> None:
        if self._warm_up_steps < WARM_UP_STEPS:
            self._warm_up(inputs, targets)
            self._warm_up_steps += 1
            return
        if self._graph is None:
            self._graph = self._capture(inputs, targets)
        if self._graph is None:
            self._step(inputs, targets)
        else:
            self._graph.replay()

    def _warm_up(self, inputs: Tensor, targets: Tensor) -> None:
        """A step on the stream that will be captured: autograd remembers on which one it has added to a gradient."""
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            self._step(inputs, targets)
        current.wait_stream(self._stream)

    def _capture(self, inputs: Tensor, targets: Tensor) -> torch.cuda.CUDAGraph | None:
        """The step as a graph; None if it cannot be captured."""
        current = torch.cuda.current_stream()
        generator_state = torch.cuda.get_rng_state()
        self._step.discard()  # gradients are made anew in the graph's own memory
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads may allocate memory in the meantime, as those that load images do.
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                self._step(inputs, targets)
        except Exception as error:
            torch.cuda.set_stream(current)  # torch does not go back to it if the end of a capture fails
            replace_cuda_generator_state(generator_state)
            self._step.discard()
            reason = (str(error).splitlines() or ["no reason was given"])[0]
            self.mode = StepMode("eager", "the step could not be captured")
            warn_user(
                "The training step could not be captured as a CUDA graph and goes on without one. "
                f"({type(error).__name__}: {reason})"
            )
            return None
        return graph
