"""Whether the doctor is right: python benchmarks/doctor.py --half development --first-seed 0.

Trainings that go well are made ill, in one way or two, in three severities; a doctor looks along, and what it finds is
compared with what was planted. A case counts as ill only if it ended worse than its twin (the same without what was
planted, at its best rate) beyond the spread of the seeds; the rest counts as healthy, beside trainings in which nothing
was planted. Cases are in doctor_cases.py, networks in doctor_networks.py: one half was in view when the doctor's rules
were made, the figures that count are those of the other half, with --first-seed drawn after the rules were fixed.

--plan tells how many trainings there are and how long they take. Each is a line of JSON in --out; a run that was
stopped goes on where it was. --processes trains several at a time. --records keeps what the doctor measured as well;
--judge asks the rules as they are now of it, in seconds, and trains nothing. --table prints what is there.
"""

import argparse
import math
import time
from collections.abc import Iterator
from pathlib import Path

import doctor_records
import torch
from doctor_cases import Case, Spec, cases_of
from doctor_networks import BASES, HALVES
from doctor_table import table
from doctor_training import run
from doctor_work import Bench, How
from json_lines import read_lines

RESULTS = Path(__file__).parent / "results" / "doctor.jsonl"
SEEDS = 3
TUNINGS = 7  # rates of a search, usually
BESIDE = 1.25  # what the doctor and the judging take, with the training


def chosen(half: str, only: list[str], networks: list[str]) -> Iterator[tuple[str, Case]]:
    """The cases to look at, with their halves."""
    for name in HALVES:
        for base in HALVES[name] if half in (name, "both") else ():
            for case in cases_of(base) if not networks or any(word in base for word in networks) else ():
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


def main() -> None:
    """Look at what is not done yet, or tell what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS, help="lines of JSON, one for each training")
    parser.add_argument("--records", type=Path, help="where what the doctor measured is kept, for --judge")
    parser.add_argument("--half", choices=(*HALVES, "both"), default="development")
    parser.add_argument("--first-seed", type=int, default=0, help="of three")
    parser.add_argument("--level", default="standard", help="of the doctor")
    parser.add_argument("--doctor", default="trimtab:Doctor", metavar="MODULE:CLASS", help="another one")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="illnesses with one of these in a name")
    parser.add_argument("--networks", nargs="+", default=[], metavar="WORD", help="networks with one of these")
    parser.add_argument("--processes", type=int, default=1, help="trainings at the same time, each on one thread")
    parser.add_argument("--limit-seconds", type=float, default=math.inf, help="begin no training after this time")
    parser.add_argument("--steps", type=int, help="of each training, to try the program")
    parser.add_argument("--plan", action="store_true", help="only tell what there is to do")
    parser.add_argument("--table", action="store_true", help="print what was found in this half")
    parser.add_argument("--judge", action="store_true", help="print what today's rules find in --records")
    options = parser.parse_args()
    if options.judge and options.records is None:
        parser.error("--judge needs --records, the file of what was measured.")
    torch.set_num_threads(1)
    cases = list(chosen(options.half, options.only, options.networks))
    if options.plan:
        print(plan(cases))
        return
    if not options.table and not options.judge:
        seeds = range(options.first_seed, options.first_seed + SEEDS)
        how = How(options.doctor, options.level, time.monotonic() + options.limit_seconds, options.steps)
        for told in Bench(options.out, options.records, how, seeds, options.processes).run(cases):
            print(told, flush=True)
        if how.over:
            print("The time is over; the same command goes on from here.")
    rows = read_lines(options.out)
    if options.judge:
        rows = doctor_records.judged_again(rows, doctor_records.kept(options.records))
    halves = {row["key"]: row["half"] for row in rows if row["kind"] == "case"}
    print(table([row for row in rows if options.half in ("both", halves.get(row["key"]))]))


if __name__ == "__main__":
    main()
