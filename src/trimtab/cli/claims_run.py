"""`trimtab claims run`: the experiments that decide claims, within a budget of time."""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trimtab.cli.common import FAILED, CommandError, need, resumable, typed

if TYPE_CHECKING:
    from trimtab.claims import Claim, RecordStore
    from trimtab.claims.experiments.registry import Experiment
    from trimtab.claims.running import Plan

WORK = Path("runs") / "claims"
GO_ON = "the same command goes on"


def run_experiments(
    options: argparse.Namespace,
    chosen: "Callable[[argparse.Namespace, RecordStore], list[Claim]]",
    store: "RecordStore",
    results: Path,
) -> int:
    """Run them; returns the exit status.

    Args:
        options: Of the command line.
        chosen: The claims that its filters leave.
        store: The records that there are.
        results: The folder of new ones.
    """
    from trimtab.claims import claim_named
    from trimtab.claims.running import plan, plan_named, plan_second

    if bool(options.ids) + options.all + bool(options.experiment) != 1:
        raise CommandError("say what to run: ids of claims, --all, or --experiment NAME")
    if options.budget is not None and not options.budget > 0:
        raise CommandError(f"--budget must be a number of minutes above 0, not {options.budget:g}")
    if options.second_pass and options.experiment:
        raise CommandError("--second-pass is for --all or ids of claims; leave it out, the experiment is named already")
    if options.second_pass and options.force:
        raise CommandError("--second-pass runs what has no record, and what is undecided; leave --force out")
    if options.engine == "ray":
        need("ray", extra="ray")
    size, budget = options.size, options.budget
    if options.experiment:
        claims: list[Claim] = []
        planned = plan_named(options.experiment, size, store, budget=budget, force=options.force)
    else:
        claims = [claim_named(name) for name in options.ids] if options.ids else chosen(options, store)
        if options.second_pass:
            planned = plan_second(claims, size, store, budget=budget)
        else:
            planned = plan(claims, size, store, budget=budget, force=options.force)
    for one in planned.without:
        print(f"{one.name} has no size {size}; it has {', '.join(one.minutes)}.")
    if planned.done:
        again = "" if options.second_pass else "; --force runs them again"
        have = "has" if len(planned.done) == 1 else "have"
        print(f"{_counted(planned.done)} {have} a record{again}.")
    if options.dry_run:
        return _tell(planned, options, claims, store)
    failed, left = _run(planned, options, results)
    _say_left([*left, *planned.later], size)
    store.forget()
    _say_second(claims, options, store)
    return FAILED if failed else 0


def _tell(planned: "Plan", options: argparse.Namespace, claims: "Sequence[Claim]", store: "RecordStore") -> int:
    """What would be run."""
    from trimtab.claims.needs import duration
    from trimtab.training.device import device_named
    from trimtab.training.workers.gpu_sharing import sharing_notes

    size = options.size
    for one in planned.now:
        print(f"{one.name}: {one.title}, about {one.minutes[size]:g} min")
    for one in planned.again:
        print(f"{one.name}: {one.title}, with twice the seeds, about {one.minutes[size]:g} min")
    both = (*planned.now, *planned.again)
    print(f"{_counted(both)}, about {duration(sum(one.minutes[size] for one in both))}.")
    if options.jobs is None and options.engine == "local" and both:
        for note in sharing_notes(device_named(options.device)):
            print(note)
    _say_left(planned.later, size)
    _say_second(claims, options, store)
    return 0


def _run(planned: "Plan", options: argparse.Namespace, results: Path) -> "tuple[int, list[Experiment]]":
    """Run what is planned; how many failed, and what there was no time for."""
    from trimtab.claims.experiments.registry import Context
    from trimtab.claims.running import MORE, run
    from trimtab.training.device import device_named
    from trimtab.training.workers.engines import engine_named

    context = Context(
        size=options.size,
        device=device_named(options.device),
        data_root=options.data_root,
        work=WORK / options.size,
        jobs=options.jobs,
        engine=engine_named(options.engine, options.ray_address),
        more=options.more_seeds,
        command=typed(),
        show=lambda text: print(f"  {text}", flush=True),
    )
    deadline = None if options.budget is None else time.monotonic() + 60 * options.budget
    several: list[tuple[Experiment, Context]] = [(one, context) for one in planned.now]
    several += [(one, replace(context, more=max(MORE, context.more))) for one in planned.again]
    failed = 0
    left: list[Experiment] = []
    with resumable(WORK, GO_ON):
        for one, given in several:
            print(f"{one.name}: {one.title}, about {one.minutes[options.size]:g} min", flush=True)
            try:
                left += run(
                    [one],
                    given,
                    results,
                    deadline=deadline,
                    finished=lambda record: print(f"  {record.seconds:.0f} s", flush=True),
                )
            except ValueError as error:  # data that are not there, say
                failed += 1
                print(f"  not run: {error}", flush=True)
    return failed, left


def _counted(several: "Sequence[Experiment]") -> str:
    return f"{len(several)} experiment{'' if len(several) == 1 else 's'}"


def _say_left(left: "Sequence[Experiment]", size: str) -> None:
    if left:
        minutes = sum(one.minutes[size] for one in left)
        print(f"Left: {', '.join(one.name for one in left)}; about {minutes:g} min.")


def _say_second(claims: "Sequence[Claim]", options: argparse.Namespace, store: "RecordStore") -> None:
    """Say what a second pass over these claims would take."""
    from trimtab.claims.needs import duration
    from trimtab.claims.running import plan_second

    if options.second_pass or not claims:
        return
    second = plan_second(claims, options.size, store)
    if second.now or second.again:
        print(
            f"A second pass (--second-pass) would run {_counted(second.now)} with standardized inputs and "
            f"{len(second.again)} again with twice the seeds: about {duration(second.minutes(options.size))}."
        )
