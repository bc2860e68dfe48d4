"""`trimtab claims`: the claims of the papers, their verdicts, and the experiments that decide them."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from trimtab.cli.claims_report import add_report, report
from trimtab.cli.claims_run import WORK, run_experiments
from trimtab.cli.claims_text import as_json, described, line
from trimtab.cli.common import JOBS, CommandError, add_machine, need, place, positive

if TYPE_CHECKING:
    from trimtab.claims import Claim, RecordStore, Verdict
    from trimtab.cli.parsing import Commands, Parser

PAPERS = ("bnp", "landscape", "meanfield", "regularization", "trimtab")
SIZES = ("small", "gpu", "paper")
FILTERS = ("paper", "kind", "block", "verdict")


def add(commands: "Commands") -> None:
    """Declare `claims list`, `claims show`, `claims run` and `claims report`."""
    parser = commands.add_parser("claims", help="list, show, run or report the papers' claims, each with its verdict")
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    listing = actions.add_parser("list", help="one line for each claim: verdict, size, date; also what no ACTION does")
    _add_filters(listing)
    listing.add_argument("--json", action="store_true", help="print them as JSON")
    _add_results(listing)
    listing.set_defaults(run=_list)
    parser.set_defaults(run=_list, **{name: listing.get_default(name) for name in (*FILTERS, "json", "results")})
    showing = actions.add_parser("show", help="a claim with its criterion, numbers and verdict")
    showing.add_argument("ids", nargs="+", metavar="ID", help="of the claim, as `trimtab claims list` has it")
    showing.add_argument("--json", action="store_true", help="print it as JSON")
    _add_results(showing)
    showing.set_defaults(run=_show)
    running = actions.add_parser(
        "run",
        usage="trimtab claims run (ID ... | --all | --experiment NAME) [--size SIZE] [--budget MINUTES] [options]",
        help="run the experiments that decide claims",
        description="Runs the experiments that decide claims and writes a record of each. What has a record is not run "
        "again, and training runs that were done are found again: the same command goes on where it was stopped. It "
        "ends with how long each of the two passes would take.",
    )
    running.add_argument("ids", nargs="*", metavar="ID", help="of claims, as `trimtab claims list` has them")
    running.add_argument("--all", action="store_true", help="all claims, or those that the filters leave")
    running.add_argument(
        "--experiment", action="append", default=[], metavar="NAME", help="this experiment; repeatable"
    )
    _add_filters(running)
    running.add_argument("--size", choices=SIZES, default="small", help="how large (default: %(default)s)")
    running.add_argument(
        "--budget", type=float, metavar="MINUTES", help="run what fits into so many minutes, and say what is left"
    )
    running.add_argument(
        "--more-seeds", type=positive, default=1, metavar="N", help="so many times the usual number of seeds"
    )
    running.add_argument("--jobs", type=positive, metavar="N", help=f"training runs at a time (default: {JOBS})")
    running.add_argument(
        "--engine", choices=("local", "ray"), default="local", help="who trains (default: %(default)s)"
    )
    running.add_argument("--ray-address", metavar="HOST:PORT", help="of a Ray cluster, as for `trimtab compare`")
    running.add_argument(
        "--pass",
        dest="which",
        choices=("first", "second"),
        help="first: the first seeds at the papers' learning rates; second: what that leaves out, and twice the seeds "
        "where something is undecided (default: all that decides a claim)",
    )
    running.add_argument(
        "--anew",
        action="store_true",
        help="as if no records came with trimtab: those in --results count, so that the same command goes on",
    )
    running.add_argument("--force", action="store_true", help="run again what has a record")
    running.add_argument("--dry-run", action="store_true", help="say what would be run, and how long it takes")
    _add_results(running)
    add_machine(running)
    running.set_defaults(run=_run)
    reporting = add_report(actions, WORK)
    _add_results(reporting)
    reporting.set_defaults(run=lambda options: report(options, _store(options)))


def _add_filters(parser: "Parser") -> None:
    parser.add_argument("--paper", choices=PAPERS, help="only claims of this paper; trimtab: our own")
    parser.add_argument("--kind", choices=("T", "M", "C", "S"), help="theorem, measurement, curves compared, timed")
    parser.add_argument("--block", metavar="N.N", help="only this block of claims, such as 1.2")
    parser.add_argument("--verdict", metavar="VERDICT", help="only those with this verdict, such as holds")


def _add_results(parser: "Parser") -> None:
    parser.add_argument(
        "--results",
        type=place,
        metavar="FOLDER",
        help=f"records of experiments; they come before those that trimtab has (default: {WORK / 'results'})",
    )


def _store(options: argparse.Namespace) -> "RecordStore":
    from trimtab.claims import RecordStore

    if options.results is not None and not options.results.is_dir():
        raise CommandError(f"there is no folder {options.results}; name one that has records, or leave --results out")
    return RecordStore(_results(options))


def _results(options: argparse.Namespace) -> Path:
    folder: Path = options.results or WORK / "results"
    return folder


def _chosen(options: argparse.Namespace, store: "RecordStore") -> "list[Claim]":
    """The claims that the filters leave."""
    from trimtab.claims import VERDICTS, claims

    if options.verdict is not None and options.verdict not in VERDICTS:
        raise CommandError(f"there is no verdict {options.verdict!r}; there are {', '.join(VERDICTS)}")
    numbers = dict.fromkeys(claim.block for claim in claims().values())
    if options.block is not None and options.block not in numbers:
        raise CommandError(f"there is no block {options.block!r}; there are {', '.join(numbers)}")
    chosen = [
        claim
        for claim in claims().values()
        if options.paper in (None, claim.paper)
        and options.kind in (None, claim.kind)
        and options.block in (None, claim.block)
    ]
    if options.verdict is None:
        return chosen
    return [claim for claim in chosen if _best(claim, store).state == options.verdict]


def _best(claim: "Claim", store: "RecordStore") -> "Verdict":
    """The verdict at the largest size that decides it."""
    from trimtab.claims import best_first

    return best_first(claim, store)[0]


def _not_run_at(store: "RecordStore") -> "Callable[[Claim], dict[str, str]]":
    """Says for a claim what each size needs that it was not run at."""
    from trimtab.claims import claims
    from trimtab.claims.needs import not_run_at

    return lambda claim: not_run_at(claim, store, claims())


def _list(options: argparse.Namespace) -> int:
    need("yaml", *([] if options.json else ["rich"]))
    store = _store(options)
    rows = [(claim, _best(claim, store)) for claim in _chosen(options, store)]
    not_run = _not_run_at(store)
    if options.json:
        print(
            json.dumps(
                [as_json(claim, verdict, not_run(claim)) for claim, verdict in rows], indent=1, ensure_ascii=False
            )
        )
        return 0
    from rich.text import Text

    from trimtab.cli.entries import print_entries

    print_entries((claim.id, Text(line(claim, verdict))) for claim, verdict in rows)
    counts: dict[str, int] = {}
    for _, verdict in rows:
        counts[verdict.state] = counts.get(verdict.state, 0) + 1
    told = ", ".join(f"{number} {state}" for state, number in counts.items())
    print(f"{len(rows)} {'claim' if len(rows) == 1 else 'claims'}" + (f": {told}" if told else ""))
    return 0


def _show(options: argparse.Namespace) -> int:
    need("yaml")
    from trimtab.claims import best_first, claim_named, verdicts

    store = _store(options)
    named = map(claim_named, options.ids)
    shown = [(claim, list(verdicts(claim, store).values()) or best_first(claim, store)) for claim in named]
    not_run = _not_run_at(store)
    if options.json:
        several = [[as_json(claim, verdict, not_run(claim)) for verdict in found] for claim, found in shown]
        print(json.dumps(several, indent=1, ensure_ascii=False))
        return 0
    for number, (claim, found) in enumerate(shown):
        print(*([""] if number else []), *described(claim, found, not_run(claim)), sep="\n")
    return 0


def _run(options: argparse.Namespace) -> int:
    need("sklearn", "yaml")
    from trimtab.claims import RecordStore

    if not options.all and (given := [f"--{name}" for name in FILTERS if getattr(options, name) is not None]):
        raise CommandError(f"{given[0]} chooses among --all; give --all with it, or leave it out")
    store = RecordStore(_results(options), shipped=not options.anew)
    return run_experiments(options, _chosen, store, _results(options))
