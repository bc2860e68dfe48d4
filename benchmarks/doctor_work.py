"""The trainings of benchmarks/doctor.py, in one process or several: rates first, then what is trained at them."""

import importlib
import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import doctor_records
import torch
from doctor_cases import Case, Spec
from doctor_training import MakeDoctor, run
from json_lines import append_line, read_lines

from trimtab.doctor.learning_rate_search import best_of, climb
from trimtab.records import machine

Row = dict[str, Any]
TUNING_SEED = 10_000
STARTS = {"sgd": 0.1, "momentum": 0.03, "adam": 0.003, "adamw": 0.003}
"""Where the search for the best rate begins, by steps of a factor of 3, and of √3 in the end."""
MOST = 9  # rates


@dataclass(frozen=True)
class How:
    """What all trainings have in common.

    Attributes:
        doctor: The class of the doctor, as package.module:name.
        level: Of the doctor.
        until: When no training begins any more, by time.monotonic.
        steps: Instead of each base's own, to try the program.
    """

    doctor: str = "trimtab:Doctor"
    level: str = "standard"
    until: float = math.inf
    steps: int | None = None

    @property
    def over(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() > self.until

    def make(self) -> MakeDoctor:
        """The doctor's class."""
        module, _, name = self.doctor.partition(":")
        found: MakeDoctor = getattr(importlib.import_module(module), name)
        return found


@dataclass(frozen=True)
class Done:
    """What a task has to tell.

    Attributes:
        rows: Of results.
        rate: The best one, of a tuning.
        record: What the doctor measured.
        over: Whether the time was over before it ended.
    """

    rows: tuple[Row, ...] = ()
    rate: float = math.nan
    record: Any = None
    over: bool = False


class OutOfTimeError(Exception):
    """The time is over; what is there stays."""


def tune(spec: Spec, how: How, known: dict[float, float | None]) -> Done:
    """The best rate of a training in which nothing is planted but what the rate is tuned for."""
    rows: list[Row] = []
    losses = dict(known)

    def loss(rate: float) -> float:
        if rate not in losses:
            if how.over:
                raise OutOfTimeError
            begin = time.process_time()
            losses[rate] = run(spec, rate, TUNING_SEED, steps=how.steps)["loss"]
            seconds = round(time.process_time() - begin, 2)
            row = {"kind": "tuning", "key": spec.key, "seed": TUNING_SEED, "tried": rate, "loss": losses[rate]}
            rows.append(row | {"seconds": seconds})
        found = losses[rate]
        return math.inf if found is None else found

    try:
        coarse = climb(loss, STARTS[spec.made_of.optimizer], 3.0, MOST)
        best = best_of(coarse)
        rate = best_of(coarse | {each: loss(each) for each in (best * 3**0.5, best / 3**0.5)})
    except OutOfTimeError:
        return Done(tuple(rows), over=True)
    return Done(tuple(rows), rate)


def look(case: Case, half: str, rate: float, seed: int, how: How, with_cure: bool) -> Done:
    """A training of a case with the doctor beside it, and the same again with the doctor's cure."""
    if how.over:
        return Done(over=True)
    begin = time.process_time()
    found = run(case.spec, rate, seed, doctor=how.make(), level=how.level, steps=how.steps)
    top, record = found.pop("top"), found.pop("record")
    row = {
        "kind": "case",
        "key": case.spec.key,
        "seed": seed,
        "tried": None,
        "half": half,
        "twin": case.twin().key,
        "planted": list(case.planted),
        "severity": case.severity,
        "variant": case.variant,
        "rate": rate,
        "level": how.level,
        "machine": machine(),
        "torch": torch.__version__,
        **found,
        "seconds": round(time.process_time() - begin, 2),
    }
    if not with_cure or top is None:
        return Done((row,), record=record)
    begin = time.process_time()
    told = {"kind": "cure", "key": case.spec.key, "seed": seed, "tried": None, "of": top.name}
    told["sentence"] = getattr(top.cure, "sentence", str(top.cure))
    try:
        told["loss"] = run(case.spec, rate, seed, cure=top.cure, steps=how.steps)["loss"]
    except Exception as error:  # a cure that cannot be applied is a result
        told["failed"] = f"{top.name}: {type(error).__name__}: {error}"
    return Done((row, told | {"seconds": round(time.process_time() - begin, 2)}), record=record)


class Here(Executor):
    """Does what it is given at once, in this process."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Do it."""
        done: Future[Any] = Future()
        done.set_result(work(*args, **kwargs))
        return done


@dataclass
class Bench:
    """Trainings, each of which is made once, and written down as soon as it ends.

    Attributes:
        out: The file of results.
        records: The file of what the doctor measured; None to keep nothing.
        how: What they have in common.
        seeds: Of the trainings.
        processes: How many of them train at the same time.
    """

    out: Path
    records: Path | None
    how: How
    seeds: range
    processes: int = 1

    def run(self, cases: list[tuple[str, Case]]) -> Iterator[str]:
        """Train what is not there yet; yields the keys of what was trained."""
        rows = read_lines(self.out)
        known = {(row["key"], row["seed"]) for row in rows if row["kind"] == "case"}
        tried: dict[str, dict[float, float | None]] = defaultdict(dict)
        for row in rows:
            if row["kind"] == "tuning":
                tried[row["key"]][row["tried"]] = row["loss"]
        of: dict[Spec, list[tuple[str, Case, int]]] = defaultdict(list)
        for half, case in cases:
            for seed in self.seeds:
                if (case.spec.key, seed) not in known:
                    of[case.spec.tuned_as()].append((half, case, seed))
        waiting: deque[tuple[Callable[..., Done], tuple[Any, ...]]] = deque(
            (tune, (spec, self.how, tried[spec.key])) for spec in of
        )
        pool: Executor = Here()
        if self.processes > 1:
            pool = ProcessPoolExecutor(self.processes, mp_context=get_context("fork"))
        running: dict[Future[Done], tuple[Any, ...]] = {}
        with pool:
            while waiting or running:
                while waiting and len(running) < self.processes:
                    work, args = waiting.popleft()
                    running[pool.submit(work, *args)] = args
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    args = running.pop(future)
                    try:
                        done = future.result()
                    except Exception as error:  # one training that fails is no reason to lose the others
                        yield f"FAILED: {args[0]}: {type(error).__name__}: {error}"
                        continue
                    self.write(done)
                    if done.rate > 0:
                        for half, case, seed in of[args[0]]:
                            cure = bool(case.planted) and seed == self.seeds[0]
                            waiting.append((look, (case, half, done.rate, seed, self.how, cure)))
                    if not done.over:
                        yield ", ".join(f"{row['key']} ({row['kind']}, {row['seed']})" for row in done.rows[:1])

    def write(self, done: Done) -> None:
        """Append what a task has to tell to the files."""
        for row in done.rows:
            append_line(self.out, row)
        if self.records is not None and done.record is not None and done.rows:
            doctor_records.keep(self.records, done.rows[0]["key"], done.rows[0]["seed"], done.record)
