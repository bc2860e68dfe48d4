"""Estimates time, memory and disk space of runs, by taking a few steps of each. Nothing is written."""

import io
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from time import monotonic

import torch

try:
    import resource
except ImportError:  # not known on this system
    resource = None  # type: ignore[assignment]

from trimtab.records import encoded
from trimtab.training.cadence import evaluation_is_due, record_every
from trimtab.training.evaluation import Evaluator
from trimtab.training.probe_factories import make_monitor
from trimtab.training.session import Session
from trimtab.training.stepping.steppers import WARM_UP_STEPS

STEPS_AT_ONCE, MAX_STEPS, MAX_SECONDS = 3, 48, 0.5
"""Steps that are timed: some at once, since a GPU is not to be waited for after each; as many of these as fit into so
many seconds, and at most so many steps."""
EVALUATED_BATCHES = 3
"""Batches of held-out data that are timed."""
PROCESS_START_SECONDS = 5.0
"""Seconds until a process that trains has imported torch."""
RECORD_BYTES = 250
"""Bytes of a record of a training loss or an evaluation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of a run.

    Attributes:
        steps: Steps that are left.
        start: Seconds of the first steps beyond the usual time, in which kernels are chosen and code is compiled.
        step: Seconds of a step.
        evaluation: Seconds of an evaluation.
        evaluations: How many are left.
        measurement: Seconds of a measurement by all probes.
        measurements: How many are left.
        memory: Bytes that the process has needed, or all of several processes; on a GPU those of one GPU.
        on_gpu: Whether it is on one.
        checkpoint: Bytes of a checkpoint.
        records: Bytes of the records until the end.
    """

    steps: int
    start: float
    step: float
    evaluation: float
    evaluations: int
    measurement: float
    measurements: int
    memory: int
    on_gpu: bool
    checkpoint: int
    records: int

    @property
    def seconds(self) -> float:
        """The total time."""
        steps = self.start + self.steps * self.step
        return steps + self.evaluations * self.evaluation + self.measurements * self.measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The cost of all runs of a command.

    Attributes:
        runs: How many are left to do.
        steps: The steps of all of them.
        seconds: Until they are done.
        memory: Bytes, of those that go side by side together; on a GPU those of the GPU.
        disk: Bytes at most: checkpoints, two of each run under way, and records.
        at_a_time: How many runs are trained at the same time.
        on_gpu: Whether the memory is that of a GPU.
    """

    runs: int
    steps: int
    seconds: float
    memory: int
    disk: int
    at_a_time: int = 1
    on_gpu: bool = False


def cost(session: Session) -> Cost:
    """Take a few steps of a run, evaluate a little, and measure once if something is measured.

    Args:
        session: The run, at its current step; it cannot be trained further afterwards.

    Raises:
        ValueError: If the run cannot be trained.
    """
    _forget_peak(session.device)
    on_gpu = session.device.type == "cuda"
    steps = range(session.step, session.total)
    measurement, bytes_measured = _measure(session)
    started = monotonic()
    _advance(session, WARM_UP_STEPS + 1)
    start = monotonic() - started
    started = monotonic()
    taken = 0
    processes = session.processes
    while taken == 0 or processes.largest(taken < MAX_STEPS and monotonic() - started < MAX_SECONDS)[0]:
        _advance(session, STEPS_AT_ONCE)
        taken += STEPS_AT_ONCE
    step = (monotonic() - started) / taken
    evaluation = sum(_evaluation_seconds(each) for each in (session.evaluate, session.evaluate_train) if each)
    settings, per_epoch = session.settings, session.steps_per_epoch
    evaluations = sum(evaluation_is_due(n + 1, session.total, settings, per_epoch) for n in steps)
    due = settings.probe_at or range(0, session.total, settings.probe_every)
    measurements = sum(n in steps for n in due) if settings.probe else 0
    logged = len(steps) // record_every(session.total, settings) + 1
    return Cost(
        steps=len(steps),
        start=max(start - (WARM_UP_STEPS + 1) * step, 0.0),
        step=step,
        evaluation=evaluation,
        evaluations=evaluations,
        measurement=measurement,
        measurements=measurements,
        memory=int(processes.added(torch.tensor(_peak(session.device)))) // (processes.size if on_gpu else 1),
        on_gpu=on_gpu,
        checkpoint=_size(session),
        records=RECORD_BYTES * (logged + evaluations) + bytes_measured * measurements,
    )


def one_after_another(costs: Iterable[Cost]) -> Estimate:
    """Runs that are trained one after another and keep their checkpoints."""
    all_of_them = list(costs)
    largest = max((one.checkpoint for one in all_of_them), default=0)
    return Estimate(
        runs=len(all_of_them),
        steps=sum(one.steps for one in all_of_them),
        seconds=sum(one.seconds for one in all_of_them),
        memory=max((one.memory for one in all_of_them), default=0),
        disk=largest + sum(one.checkpoint + one.records for one in all_of_them),
        on_gpu=any(one.on_gpu for one in all_of_them),
    )


def in_a_comparison(costs: Iterable[tuple[Cost, int]], jobs: int) -> Estimate:
    """Runs of a comparison, so many of each and so many at a time, which lose their checkpoints when they are done."""
    several = [(one, count) for one, count in costs if count]
    runs = sum(count for _, count in several)
    at_a_time = min(jobs, max(runs, 1))
    return Estimate(
        runs=runs,
        steps=sum(one.steps * count for one, count in several),
        seconds=sum(one.seconds * count for one, count in several) / at_a_time
        + (PROCESS_START_SECONDS if several else 0.0),
        memory=at_a_time * max((one.memory for one, _ in several), default=0),
        disk=at_a_time * 2 * max((one.checkpoint for one, _ in several), default=0)
        + sum(one.records * count for one, count in several),
        at_a_time=at_a_time,
        on_gpu=any(one.on_gpu for one, _ in several),
    )


def _advance(session: Session, steps: int) -> None:
    for _ in range(steps):
        session.advance()
    session.wait()


def _evaluation_seconds(evaluate: Evaluator) -> float:
    """Of one evaluation, measured on a part of it."""
    evaluate(1)  # what the first one takes longer is not what all take
    started = monotonic()
    evaluate(EVALUATED_BATCHES)
    return (monotonic() - started) * max(len(evaluate.batches) / EVALUATED_BATCHES, 1.0)


def _measure(session: Session) -> tuple[float, int]:
    """Seconds and bytes of one measurement by all probes."""
    probes = make_monitor(session)
    if probes is None:
        return 0.0, 0
    _advance(session, 1)  # what keeps the network from training is told by the step, not by warnings of the probes
    step = min(session.settings.probe_at, default=0)
    successive = any(probe.successive for probe in probes.probes) and session.settings.probe_every > 1
    seconds, size = 0.0, 0
    for due in (step, step + 1) if successive else (step,):  # some look at two steps that follow each other
        batch = session.next_batch()
        started = monotonic()
        whole_batch = session.processes.whole_batch(batch)
        if whole_batch is not None:
            events = probes.measure(due, session.model, session.loss_fn, whole_batch)
            session.wait()
            seconds += monotonic() - started
            size += sum(len(encoded(event)) for event, _ in events)
        session.advance(batch)
    return seconds, size


def _size(session: Session) -> int:
    """Bytes of a checkpoint."""
    file = io.BytesIO()
    torch.save(session.state(), file)
    return file.tell()


def _forget_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def _peak(device: torch.device) -> int:
    """The most memory that was in use."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    if resource is None:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
