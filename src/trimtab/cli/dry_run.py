"""What `--dry-run` shows of `train`, `compare` and `probe`."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from trimtab.cli.common import size

if TYPE_CHECKING:
    from trimtab.cli.parsing import Parser
    from trimtab.training.estimate import Estimate


def add_dry_run(parser: "Parser") -> None:
    """Declare the flag."""
    words = (
        "write nothing: take a few steps, and say how many runs, steps and seconds, how much memory and disk it takes"
    )
    parser.add_argument("--dry-run", action="store_true", help=words)


def show_estimate(estimate: "Estimate", out: Path, *, notes: Sequence[str] = (), as_json: bool = False) -> int:
    """Print it, and return the exit status.

    Args:
        estimate: What the command takes.
        out: Where it would write to.
        notes: What else there is to say, a sentence each.
        as_json: Whether as JSON.
    """
    if as_json:
        print(json.dumps({**asdict(estimate), "folder": str(out), "notes": list(notes)}, indent=2))
        return 0
    from rich.text import Text

    from trimtab.cli.display import duration
    from trimtab.cli.entries import print_entries

    at_a_time = f", {estimate.at_a_time} at a time" if estimate.at_a_time > 1 else ""
    where = "of the GPU" if estimate.on_gpu else ""
    entries = {
        "runs": f"{estimate.runs}{at_a_time}",
        "steps": str(estimate.steps),
        "time": f"about {duration(estimate.seconds) if estimate.seconds > 60 else f'{estimate.seconds:.2g} s'}",
        "memory": f"about {size(estimate.memory)} {where}".rstrip(),
        "disk": f"at most {size(estimate.disk)} in {out}",
    }
    print_entries((name, Text(text)) for name, text in entries.items())
    for note in notes:
        print(note)
    print("This was a dry run: nothing is written.")
    return 0
