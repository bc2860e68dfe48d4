"""Whether the doctor is right: python benchmarks/doctor.py --half development --first-seed 0.

Trainings that go well are made ill, in one way or two, in three severities; a doctor looks along, and what it finds is
compared with what was planted. A case counts as ill only if it ended worse than its twin (the same without what was
planted, at its best rate) beyond the spread of the seeds; the rest counts as healthy, beside trainings in which nothing
was planted. Cases are in doctor_cases.py, networks in doctor_networks.py: one half was in view when the doctor's rules
were made, the figures that count are those of the other half, with --first-seed drawn after the rules were fixed.

--plan tells how many trainings there are and how long they take. Each is a line of JSON in --out; a run that was
stopped goes on where it was, and --shard 0/4 takes every fourth network. --table prints what is there.
"""

import argparse
import importlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from doctor_cases import Case, Spec, cases_of
from doctor_networks import BASES, HALVES
from doctor_table import table
from doctor_training import MakeDoctor, run
from json_lines import append_line, read_lines

from trimtab.doctor.learning_rate_search import best_of, climb
from trimtab.records import machine

RESULTS = Path(__file__).parent / "results" / "doctor.jsonl"
SEEDS = 3
TUNING_SEED = 10_000
STARTS = {"sgd": 0.1, "momentum": 0.03, "adam": 0.003, "adamw": 0.003}
"""Where the search for the best rate begins, by steps of a factor of 3, and of √3 in the end."""
MOST = 9  # rates
TUNINGS = 7  # usually
BESIDE = 1.25  # what the doctor and the judging take, with the training


class OutOfTimeError(Exception):
    """The time is over; what is there stays."""


@dataclass
class Bench:
    """Trainings, each of which is made once.

    Attributes:
        out: The file that keeps them.
        doctor: Makes the doctor for each training.
        level: Of the doctor.
        seeds: Of the trainings.
        until: When to stop, by time.monotonic.
        steps: Instead of each base's own, to try the program.
    """

    out: Path
    doctor: MakeDoctor
    level: str
    seeds: range
    until: float = math.inf
    steps: int | None = None
    _known: dict[tuple[str, str, int, float | None], dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read what is there."""
        for row in read_lines(self.out):
            self._known[row["kind"], row["key"], row["seed"], row.get("tried")] = row

    def _once(
        self, kind: str, spec: Spec, seed: int, work: Callable[[], dict[str, Any]], tried: float | None = None
    ) -> dict[str, Any]:
        name = (kind, spec.key, seed, tried)
        if name not in self._known:
            if time.monotonic() > self.until:
                raise OutOfTimeError
            begin = time.process_time()
            row = {"kind": kind, "key": spec.key, "seed": seed, "tried": tried, **work()}
            row["seconds"] = round(time.process_time() - begin, 2)
            append_line(self.out, row)
            self._known[name] = row
        return self._known[name]

    def best_rate(self, spec: Spec) -> float:
        """Of a training in which nothing is planted but what the rate is tuned for."""
        tuned = spec.tuned_as()

        def loss(rate: float) -> float:
            row = self._once("tuning", tuned, TUNING_SEED, lambda: self._plain(tuned, rate), tried=rate)
            return math.inf if row["loss"] is None else float(row["loss"])

        coarse = climb(loss, STARTS[spec.made_of.optimizer], 3.0, MOST)
        best = best_of(coarse)
        return best_of(coarse | {rate: loss(rate) for rate in (best * 3**0.5, best / 3**0.5)})

    def _plain(self, spec: Spec, rate: float) -> dict[str, Any]:
        return {"loss": run(spec, rate, TUNING_SEED, steps=self.steps)["loss"]}

    def look(self, case: Case, half: str) -> None:
        """The trainings of a case with the doctor beside them, and the first one again with the doctor's cure."""
        rate = self.best_rate(case.spec)
        told = {
            "half": half,
            "twin": case.twin().key,
            "planted": list(case.planted),
            "severity": case.severity,
            "variant": case.variant,
            "rate": rate,
            "level": self.level,
            "machine": machine(),
            "torch": torch.__version__,
        }
        for seed in self.seeds:
            top: list[Any] = []

            def training(seed: int = seed, top: list[Any] = top) -> dict[str, Any]:
                found = run(case.spec, rate, seed, doctor=self.doctor, level=self.level, steps=self.steps)
                top.append(found.pop("top"))
                return told | found

            row = self._once("case", case.spec, seed, training)
            if case.planted and seed == self.seeds[0] and row["found"]:
                self._once("cure", case.spec, seed, lambda row=row, top=top: self._cure(case, rate, row, top))  # type: ignore[misc]

    def _cure(self, case: Case, rate: float, row: dict[str, Any], top: list[Any]) -> dict[str, Any]:
        seed = self.seeds[0]
        again: dict[str, Any] = {"doctor": self.doctor, "level": self.level, "steps": self.steps}
        finding = top[0] if top else run(case.spec, rate, seed, **again)["top"]
        told = {"of": row["found"][0], "sentence": getattr(finding.cure, "sentence", str(finding.cure))}
        try:
            return told | {"loss": run(case.spec, rate, seed, cure=finding.cure, steps=self.steps)["loss"]}
        except Exception as error:  # a cure that cannot be applied is a result
            return told | {"failed": f"{finding.name}: {type(error).__name__}: {error}"}


def chosen(half: str, only: list[str], shard: tuple[int, int]) -> Iterator[tuple[str, Case]]:
    """The cases to look at, with their halves; those of one network are in one shard, with their twins."""
    for name in HALVES:
        for place, base in enumerate(HALVES[name] if name == half or half == "both" else ()):
            if place % shard[1] == shard[0]:
                for case in cases_of(base):
                    if not case.planted or not only or any(word in each for word in only for each in case.planted):
                        yield name, case


def plan(cases: list[tuple[str, Case]]) -> str:
    """How many trainings, and how long they take here."""
    lines, trainings, seconds = [], 0, 0.0
    for base in dict.fromkeys(case.spec.base for _, case in cases):
        mine = [case for _, case in cases if case.spec.base == base]
        tuned = {case.spec.tuned_as() for case in mine}
        count = len(mine) * SEEDS + TUNINGS * len(tuned) + sum(bool(case.planted) for case in mine)
        run(Spec(base), 1e-3, 0, steps=1)
        begin = time.process_time()
        run(Spec(base), 1e-3, 0, steps=40)
        each = (time.process_time() - begin) / 40 * BASES[base].steps * BESIDE
        lines.append(f"{base}: {len(mine)} cases, {count} trainings of {each:.1f} s")
        trainings, seconds = trainings + count, seconds + count * each
    healthy = sum(not case.planted for _, case in cases) * SEEDS
    lines.append(f"\n{trainings} trainings, {healthy} of them healthy by intent, {seconds / 3600:.1f} hours of a core.")
    return "\n".join(lines)


def made(where: str) -> MakeDoctor:
    """A doctor's class: package.module:name."""
    module, _, name = where.partition(":")
    found: MakeDoctor = getattr(importlib.import_module(module), name)
    return found


def main() -> None:
    """Look at what is not done yet, or tell what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS, help="lines of JSON, one for each training")
    parser.add_argument("--half", choices=(*HALVES, "both"), default="development")
    parser.add_argument("--first-seed", type=int, default=0, help="of three")
    parser.add_argument("--level", default="standard", help="of the doctor")
    parser.add_argument("--doctor", default="trimtab:Doctor", metavar="MODULE:CLASS", help="another one")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="illnesses with one of these in a name")
    parser.add_argument("--networks", nargs="+", default=[], metavar="WORD", help="networks with one of these")
    parser.add_argument("--shard", default="0/1", metavar="I/N", help="every N-th network, from the I-th on")
    parser.add_argument("--limit-seconds", type=float, default=math.inf, help="stop after this time")
    parser.add_argument("--steps", type=int, help="of each training, to try the program")
    parser.add_argument("--plan", action="store_true", help="only tell what there is to do")
    parser.add_argument("--table", action="store_true", help="print what was found in this half")
    options = parser.parse_args()
    torch.set_num_threads(1)
    index, _, count = options.shard.partition("/")
    cases = list(chosen(options.half, options.only, (int(index), int(count))))
    if options.networks:
        cases = [(half, case) for half, case in cases if any(word in case.spec.base for word in options.networks)]
    if options.plan:
        print(plan(cases))
        return
    if not options.table:
        seeds = range(options.first_seed, options.first_seed + SEEDS)
        until = time.monotonic() + options.limit_seconds
        bench = Bench(options.out, made(options.doctor), options.level, seeds, until, options.steps)
        for number, (half, case) in enumerate(cases, 1):
            try:
                bench.look(case, half)
            except OutOfTimeError:
                print(f"The time is over: {number - 1} of {len(cases)} cases are done.")
                break
            print(f"{number}/{len(cases)} {case.spec.key}", flush=True)
    rows = read_lines(options.out)
    halves = {row["key"]: row["half"] for row in rows if row["kind"] == "case"}
    mine = [row for row in rows if options.half in ("both", halves.get(row["key"]))]
    print(table(mine))


if __name__ == "__main__":
    main()
