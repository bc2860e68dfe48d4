"""`trimtab claims run`: the experiments that decide claims, within a budget of time."""

import argparse
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trimtab.cli.common import FAILED, CommandError, need, resumable, typed

if TYPE_CHECKING:
    from trimtab.claims import Claim, RecordStore
    from trimtab.claims.experiments.registry import Experiment
    from trimtab.claims.plans import Plan, Planned

WORK = Path("runs") / "claims"
GO_ON = "the same command goes on"
OUT = "; name another folder with --out"
"""What failures of `trimtab train` advise, which has that flag."""


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

    if bool(options.ids) + options.all + bool(options.experiment) != 1:
        raise CommandError("say what to run: ids of claims, --all, or --experiment NAME")
    if options.budget is not None and not options.budget > 0:
        raise CommandError(f"--budget must be a number of minutes above 0, not {options.budget:g}")
    if options.which == "first" and options.more_seeds > 1:
        raise CommandError("--pass first has fewer seeds than usual; leave it out, or leave --more-seeds out")
    if options.which == "second" and options.experiment:
        raise CommandError("--pass second is for --all or ids of claims; leave it out, the experiment is named already")
    if options.which == "second" and options.force:
        raise CommandError("--pass second runs what has no record, and what is undecided; leave --force out")
    if options.engine == "ray":
        need("ray", extra="ray")
    claims: list[Claim] = []
    if not options.experiment:
        claims = [claim_named(name) for name in options.ids] if options.ids else chosen(options, store)
    planned = _planned(claims, options, store)
    for one in planned.without:
        print(f"{one.name} has no size {options.size}; it has {', '.join(one.minutes)}.")
    for claim in _without_experiment(claims) if options.ids else ():
        print(f"{claim.id} has nothing to run: {claim.needs}.")
    if planned.done:
        one_only = len(planned.done) == 1
        again = "" if options.which == "second" else f"; --force runs {'it' if one_only else 'them'} again"
        have = "has" if one_only else "have"
        print(f"{_counted(planned.done)} {have} a record{again}.")
    if options.dry_run:
        return _tell(planned, options, claims, store)
    failed, left = _run(planned, options, results)
    _say_left([*left, *planned.later])
    store.forget()
    for claim in claims if options.ids else ():
        _say_verdict(claim, options.size, store)
    _say_passes(claims, options, store)
    return FAILED if failed else 0


def _planned(claims: "Sequence[Claim]", options: argparse.Namespace, store: "RecordStore") -> "Plan":
    """What the options ask for."""
    from trimtab.claims.plans import plan, plan_first, plan_named, plan_second

    size, budget, force, first = options.size, options.budget, options.force, options.which == "first"
    if options.experiment:
        return plan_named(options.experiment, size, store, first=first, budget=budget, force=force)
    if options.which == "second":
        return plan_second(claims, size, store, budget=budget)
    return (plan_first if first else plan)(claims, size, store, budget=budget, force=force)


def _tell(planned: "Plan", options: argparse.Namespace, claims: "Sequence[Claim]", store: "RecordStore") -> int:
    """What would be run."""
    from trimtab.claims.needs import duration
    from trimtab.training.device import device_named
    from trimtab.training.workers.gpu_sharing import sharing_notes

    print(*planned.now, sep="\n", end="\n" if planned.now else "")
    print(f"{_counted(planned.now)}, about {duration(sum(one.minutes for one in planned.now))}.")
    if options.jobs is None and options.engine == "local" and planned.now:
        for note in sharing_notes(device_named(options.device)):
            print(note)
    _say_left(planned.later)
    _say_passes(claims, options, store)
    return 0


def _run(planned: "Plan", options: argparse.Namespace, results: Path) -> "tuple[int, list[Planned]]":
    """Run what is planned; how many failed, and what there was no time for."""
    from trimtab.claims.experiments.registry import Context
    from trimtab.claims.running import run
    from trimtab.training.device import device_named
    from trimtab.training.workers.engines import engine_named
    from trimtab.training.workers.pool import TrainingFailed

    for folder in (results, WORK / options.size):
        _check_writable(folder)
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
    failed = 0
    left: list[Planned] = []
    with resumable(WORK, GO_ON):
        for one in planned.now:
            try:
                left += run(
                    [one],
                    context,
                    results,
                    # The first one fits, says the plan; by the clock what needs the whole budget would never begin.
                    deadline=None if one is planned.now[0] else deadline,
                    begun=lambda planned: print(planned, flush=True),
                    finished=lambda record: print(f"  {record.seconds:.0f} s", flush=True),
                )
            except TrainingFailed as error:  # a full disk, say, which is full for the others too
                raise CommandError(f"{str(error).removesuffix(OUT)}; when that is mended, {GO_ON}", FAILED) from error
            except ValueError as error:  # data that are not there, say
                failed += 1
                print(f"  not run: {error}", flush=True)
    return failed, left


def _check_writable(folder: Path) -> None:
    """Refuse a folder that cannot be written to, before anything is trained for it."""
    there = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    if not there.is_dir():
        raise CommandError(f"cannot write to {folder}: {there} is no folder; remove it, or work in another folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise CommandError(f"cannot write to {folder}: {there} is not writable; change that, or work in another folder")


def _say_verdict(claim: "Claim", size: str, store: "RecordStore") -> None:
    """Say what came out for a claim, where its experiments have records at the size."""
    from trimtab.claims import verdict_on
    from trimtab.cli.claims_text import line

    verdict = verdict_on(claim, size, store)
    if verdict.records and verdict.state != "not run":
        print(f"{claim.id}: {line(claim, verdict)}")


def _without_experiment(claims: "Sequence[Claim]") -> "list[Claim]":
    """Claims that nothing can be run for."""
    from trimtab.claims import claims as declared
    from trimtab.claims.needs import with_origins

    return [claim for claim in claims if not any(one.deciding for one in with_origins([claim], declared()))]


def _counted(several: "Sequence[Experiment] | Sequence[Planned]") -> str:
    return f"{len(several)} experiment{'' if len(several) == 1 else 's'}"


def _say_left(left: "Sequence[Planned]") -> None:
    if left:
        minutes = sum(one.minutes for one in left)
        print(f"Left: {', '.join(one.experiment.name for one in left)}; about {minutes:.3g} min.")


def _say_passes(claims: "Sequence[Claim]", options: argparse.Namespace, store: "RecordStore") -> None:
    """Say what each of the passes over these claims would take that was not asked for."""
    from trimtab.claims.needs import duration
    from trimtab.claims.plans import plan_first, plan_second

    if options.which == "second" or not claims:
        return
    if options.which is None and (first := plan_first(claims, options.size, store)).now:
        took = duration(first.minutes)
        fewer = ", some with fewer seeds" if any(one.at_most is not None for one in first.now) else ""
        print(f"The first pass (--pass first) would run {_counted(first.now)}{fewer}: about {took}.")
    second = plan_second(claims, options.size, store)
    if second.now:
        kinds = Counter(one.how for one in second.now)
        told = ", ".join(f"{number} {how}" for how, number in kinds.items())
        took = duration(second.minutes)
        print(f"The second pass (--pass second) would run {_counted(second.now)}, {told}: about {took}.")
