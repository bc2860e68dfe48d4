"""The command line: `trimtab`."""

import argparse
import io
import sys
from collections.abc import Sequence

import trimtab
from trimtab.cli import compare, data, export, list, predict, probe, report, train
from trimtab.cli.common import CommandError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="trimtab", description="Batch normalization done to the gradients: a library and a lab."
    )
    parser.add_argument("--version", action="version", version=f"trimtab {trimtab.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    compare.add_demo(commands)
    compare.add_compare(commands)
    train.add(commands)
    probe.add(commands)
    report.add(commands)
    export.add(commands)
    predict.add(commands)
    data.add(commands)
    list.add(commands)
    options = parser.parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a character still gets the rest
    if options.command is None:
        parser.print_help()
        return 0
    try:
        status: int = options.run(options)
    except CommandError as error:
        print(f"trimtab: {error}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        print("trimtab: interrupted", file=sys.stderr)
        return 130
    return status
