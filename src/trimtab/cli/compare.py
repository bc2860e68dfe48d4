"""`trimtab compare`, and `trimtab demo`, which is one comparison of it."""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from trimtab.cli.common import (
    FAILED,
    JOBS,
    LAB,
    PAGE,
    RECIPES,
    CommandError,
    add_machine,
    add_settings,
    count,
    given_settings,
    need,
    place,
    positive,
    resumable,
    typed,
    words,
)
from trimtab.cli.dry_run import add_dry_run, show_estimate

if TYPE_CHECKING:
    from trimtab.cli.parsing import Commands, Parser
    from trimtab.training.grid import Grid

N = TypeVar("N", int, float)
# Settings of a run that a comparison decides.
DECIDED = (
    *("data", "network", "method", "batch_size", "epochs", "lr", "seed", "validation"),
    *("evaluate_on", "evaluate_every", "evaluations", "log_every", "init_from", "fold"),
)


def add_demo(commands: "Commands") -> None:
    """Declare `demo`."""
    parser = commands.add_parser(
        "demo",
        help="train small networks with and without BNP and compare them (about 2 minutes on two cores)",
        description="Trains a small CNN and a small fully connected network on scikit-learn's digits at batch sizes "
        "64, 4, 2 and 1, as they are, with BatchNorm, with LayerNorm and with BNP, and says which is best.",
    )
    _add_common(parser, "trimtab-demo")
    parser.set_defaults(run=_demo)


def add_compare(commands: "Commands") -> None:
    """Declare `compare`."""
    from trimtab.data import DATASETS
    from trimtab.networks import NETWORKS

    parser = commands.add_parser(
        "compare",
        usage="trimtab compare [--data NAME] [--network A,B] [--methods A,B] [--SETTING VALUE ...] [options]",
        help="say which method is better on a network and data set: learning rates chosen, several seeds, a page",
        description="Trains every method at every batch size. The learning rate is chosen on validation data, among "
        "equally many candidates for each method; then new seeds are trained at it and tested. The same "
        "command goes on where it was stopped. " + RECIPES,
    )
    parser.add_argument(
        "--data", default="digits", metavar="NAME", help=f"one of {', '.join(DATASETS)} (default: %(default)s)"
    )
    parser.add_argument(
        "--network",
        type=words,
        default=("small-cnn",),
        metavar="A,B",
        help=f"some of {', '.join(NETWORKS)} (default: small-cnn)",
    )
    parser.add_argument(
        "--methods",
        type=words,
        default=("vanilla", "bn", "ln", "bnp"),
        metavar="A,B",
        help="vanilla, norms, bnp, bnp+NORM, as `trimtab list methods` has them (default: vanilla,bn,ln,bnp)",
    )
    parser.add_argument(
        "--batch-sizes", type=_sizes, default=(), metavar="N,M", help="samples per step (default: recipe)"
    )
    parser.add_argument(
        "--epochs",
        type=_epochs,
        default={},
        metavar="N | SIZE=N,...",
        help="for all batch sizes, or by batch size (default: recipe)",
    )
    rates = parser.exclusive_group()
    rates.add_argument("--lrs", type=_rates, default=(), metavar="X,Y", help="candidates for every method")
    rates.add_argument(
        "--rates",
        type=positive,
        choices=range(1, 26),
        default=5,
        metavar="N",
        help="so many around the recipe's own (default: %(default)s)",
    )
    parser.add_argument(
        "--validation",
        type=count,
        metavar="N",
        help="samples to choose the rate on (default: a tenth of the training data)",
    )
    parser.add_argument(
        "--evaluations", type=positive, default=20, metavar="N", help="along each run (default: %(default)s)"
    )
    parser.add_argument(
        "--config", type=place, metavar="FILE", help="YAML file with settings of all runs; flags go before it"
    )
    _add_common(parser, None)
    add_dry_run(parser)
    add_machine(parser)
    add_settings(parser, without=DECIDED)
    parser.set_defaults(run=_compare)


def _add_common(parser: "Parser", out: str | None) -> None:
    shown = out or "runs/compare-DATA-NETWORK"
    parser.add_argument(
        "--out", type=place, default=out and Path(out), metavar="FOLDER", help=f"for the results (default: {shown})"
    )
    parser.add_argument(
        "--seeds", type=positive, default=3, metavar="N", help="runs at the chosen learning rate (default: %(default)s)"
    )
    parser.add_argument("--jobs", type=positive, metavar="N", help=f"runs at a time (default: {JOBS})")
    parser.add_argument("--threads", type=positive, default=1, metavar="N", help="of each run (default: %(default)s)")
    parser.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="who trains the runs: processes on this machine, or Ray (default: %(default)s)",
    )
    parser.add_argument(
        "--ray-address",
        metavar="HOST:PORT",
        help="of a Ray cluster, whose nodes share the folder --out; auto: the one that runs here (default: "
        "RAY_ADDRESS, else a Ray is started here)",
    )
    parser.add_argument("--force", action="store_true", help="do all runs anew")
    parser.add_argument("--json", action="store_true", help="print the results as JSON instead of the table")


def _demo(options: argparse.Namespace) -> int:
    """The comparison that the README shows."""
    need(*LAB)
    from trimtab.training.demo import DEMO

    options.device, options.data_root, options.dry_run = "cpu", None, False
    command = f"trimtab demo --seeds {options.seeds}"
    return _run(replace(DEMO, seeds=options.seeds), options.out, options, command)


def _compare(options: argparse.Namespace) -> int:
    """Any other comparison."""
    need(*LAB)
    from trimtab.training.grid import Grid

    shared = given_settings(options)
    for name in DECIDED:
        if name in shared:
            raise CommandError(f"{options.config}: {name} is decided by the comparison; leave it out there")
    epochs, sizes = options.epochs, options.batch_sizes
    if isinstance(epochs, int):
        shared["epochs"], epochs = epochs, {}
    if unknown := set(epochs) - set(sizes):
        raise CommandError(f"--epochs names the batch size {min(unknown)}, which is not among --batch-sizes")
    grid = Grid(
        data=options.data,
        networks=options.network,
        methods=options.methods,
        batch_sizes=sizes,
        epochs=epochs,
        lrs=options.lrs,
        rates=options.rates,
        seeds=options.seeds,
        validation=options.validation,
        evaluations=options.evaluations,
        shared=shared,
    )
    out = options.out or Path("runs") / "-".join(["compare", grid.data, *grid.networks])
    return _run(grid, out, options, typed())


def _run(grid: "Grid", out: Path, options: argparse.Namespace, command: str) -> int:
    """Train and test, then print the results and write the page."""
    from trimtab.cli.display import display_comparison
    from trimtab.cli.terminal import Terminal
    from trimtab.report import collect, conclusion, table, write_page
    from trimtab.training.compare import ComparisonRunner
    from trimtab.training.device import device_named
    from trimtab.training.workers.engines import engine_named
    from trimtab.training.workers.gpu_sharing import sharing_notes
    from trimtab.training.workers.pool import TrainingFailed

    if options.engine == "ray":
        need("ray", extra="ray")
    engine = engine_named(options.engine, options.ray_address)
    started = time.monotonic()
    go_on = f"the same command goes on with what is in {out}"
    device = device_named(options.device)
    try:
        with resumable(out, go_on), display_comparison() as show:
            runner = ComparisonRunner(
                grid,
                out,
                command=command,
                device=device,
                data_root=options.data_root,
                jobs=options.jobs,
                threads=options.threads,
                force=options.force,
                engine=engine,
                show=show,
            )
            if options.dry_run:
                estimate, cannot = runner.estimate()
                sharing = sharing_notes(device) if options.engine == "local" else []
                notes = [*runner.notes, *sharing, *(f"{what} cannot be trained: {why}" for what, why in cannot.items())]
                return show_estimate(estimate, out, notes=notes, as_json=options.json)
            comparison = runner.run(conclusion)
    except TrainingFailed as error:
        raise CommandError(f"{error}; {go_on}", FAILED) from error
    seconds = time.monotonic() - started
    try:  # before the table is shown: nobody may be there to see it
        write_page(collect([out]), out / PAGE)
        problem = None
    except OSError as error:
        problem = CommandError(f"the page could not be written to {out}: {error.strerror}", FAILED)
    if options.json:
        print(comparison.to_json())
    else:
        console = Terminal()
        console.print(table(comparison, console.width))
        for sentence in (comparison.conclusion, *comparison.notes):
            console.print(sentence, highlight=False, markup=False)
        console.print(f"{seconds:.0f} s on {comparison.machine}.", highlight=False, markup=False, soft_wrap=True)
    if problem is not None:
        raise problem
    if not options.json:
        console.print(f"Page: {out / PAGE}", highlight=False, markup=False, soft_wrap=True)
    return 0


def _sizes(text: str) -> tuple[int, ...]:
    sizes = (_number(word, int, "whole numbers, 0 or more", lambda n: n >= 0) for word in words(text, "numbers"))
    return tuple(dict.fromkeys(sizes))


def _rates(text: str) -> tuple[float, ...]:
    rates = (
        _number(word, float, "numbers from 1e-30 to 1e30", lambda x: 1e-30 <= x <= 1e30)
        for word in words(text, "numbers")
    )
    return tuple(dict.fromkeys(rates))


def _epochs(text: str) -> int | dict[int, int]:
    if "=" not in text:
        return positive(text)
    pairs = [word.partition("=") for word in words(text)]
    return {_sizes(size)[0]: positive(number) for size, _, number in pairs}


def _number(word: str, kind: type[N], wanted: str, allowed: Callable[[N], bool]) -> N:
    try:
        number = kind(word)
    except ValueError:
        number = None
    if number is None or not allowed(number):
        raise argparse.ArgumentTypeError(f"must be {wanted}, separated by commas, not {word!r}")
    return number
