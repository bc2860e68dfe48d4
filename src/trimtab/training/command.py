"""`trimtab train`: from what a person typed to a run in its folder."""

import shlex
import sys
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from platform import python_version
from typing import Any

import torch
from rich.console import Console

import trimtab
from trimtab.training import folder as folders
from trimtab.training.display import display
from trimtab.training.recipes import recipe
from trimtab.training.run import CHECKPOINT, Ending, Run, device_named
from trimtab.training.session import Session
from trimtab.training.settings import Settings, from_mapping

STATUS = {"finished": 0, "diverged": 3, "interrupted": 130}


def train(
    given: Mapping[str, Any],
    *,
    config: Path | None,
    out: Path | None,
    resume: bool,
    force: bool,
    device: str | None,
    data_root: Path | None,
    checkpoint_seconds: float,
    quiet: bool,
) -> int:
    """Start a run, or go on with one, and say how it ended.

    Raises:
        ValueError: If something about the settings, the data or the folder is wrong; nothing is written then.
    """
    if resume and force:
        raise ValueError("--resume goes on with a run and --force overwrites it; give one of them")
    told = from_mapping(given, where="the command line")
    told = {**(folders.read_settings(config) if config else {}), **told}
    if resume and out is not None:
        settings = folders.resumed_settings(out, told)
    else:
        settings = resolve(Settings(**told))
        out = out or Path("runs") / default_name(settings)
        if resume:
            settings = folders.resumed_settings(out, told)
    session = Session(settings, device_named(device), data_root)
    if not resume:
        folders.begin(out, settings, force=force)
    with nullcontext() if quiet else display(out.name) as show:
        run = Run(session, out, show, checkpoint_seconds=checkpoint_seconds)
        if resume and (out / CHECKPOINT).exists():
            run.resume()
        else:
            run.begin(shlex.join(["trimtab", *sys.argv[1:]]), versions(), asdict(settings))
        try:
            ending = run.train()
        except ValueError:
            if not resume and session.step == 0:  # not even the first step could be taken
                folders.remove(out)
                with suppress(OSError):  # something else is in it
                    out.rmdir()
            raise
    Console().print(sentence(ending, session, out), highlight=False, soft_wrap=True)
    return STATUS[ending.verdict]


def resolve(settings: Settings) -> Settings:
    """With what is open taken from the recipe."""
    return settings.resolved(recipe(settings.network, settings.data, settings.parsed_method, settings.batch_size))


def default_name(settings: Settings) -> str:
    """A folder name that tells the run."""
    parts = (settings.data, settings.network, settings.method, f"b{settings.batch_size}", f"s{settings.seed}")
    return "-".join(parts)


def versions() -> dict[str, str]:
    """What the run depends on."""
    return {"trimtab": trimtab.__version__, "torch": torch.__version__, "python": python_version()}


def sentence(ending: Ending, session: Session, out: Path) -> str:
    """How a run ended, for a person."""
    if ending.verdict == "diverged":
        return f"Diverged at step {session.step}: the loss left all bounds. Records: {out}"
    if ending.verdict == "interrupted":
        return f"Interrupted at step {session.step} of {session.total}; go on with: trimtab train --resume --out {out}"
    last = ending.evaluations[-1]
    result = f"loss {last.loss:.4g}" if last.accuracy is None else f"accuracy {100 * last.accuracy:.2f} %"
    return f"Finished {session.total} steps: {last.part} {result}. Records: {out}"
