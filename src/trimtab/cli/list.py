"""`trimtab list`: the names that the other commands take."""

import argparse
import json
from typing import TYPE_CHECKING

from trimtab.cli.common import need

if TYPE_CHECKING:
    from trimtab.cli.parsing import Commands

KINDS = ("networks", "norms", "methods", "probes", "data")


def add(commands: "Commands") -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "list",
        help="list the networks, norms, methods, probes or data sets",
        description="Lists the names that the other commands take, each with a line on what it is.",
    )
    parser.add_argument("kind", choices=KINDS, metavar=f"{{{','.join(KINDS)}}}", help="what to list")
    parser.add_argument("--json", action="store_true", help="print them as one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print them."""
    descriptions = named(options.kind)
    if options.json:
        print(json.dumps(descriptions, indent=2, ensure_ascii=False))
        return 0
    need("rich")
    from rich.text import Text

    from trimtab.cli.entries import print_entries

    print_entries((name, Text(description)) for name, description in descriptions.items())
    if options.kind == "data":
        print("`trimtab data list` says which of them are there.")
    return 0


def named(kind: str) -> dict[str, str]:
    """The names of a kind, each with one line on what it is."""
    if kind == "networks":
        from trimtab.networks import NETWORKS

        return NETWORKS
    if kind == "norms":
        from trimtab.norms import NORMS

        return NORMS
    if kind == "methods":
        from trimtab.training.methods import METHODS

        return METHODS
    if kind == "probes":
        from trimtab.probe_registry import PROBES

        return {name: entry.description for name, entry in PROBES.items()}
    from trimtab.data import DATASETS

    return DATASETS
