"""All commands in one parser, and all their failures in one place."""

import io
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

import torch

import trimtab
from trimtab.cli import (
    claims,
    compare,
    completion,
    data,
    doctor,
    export,
    list,
    predict,
    probe,
    report,
    several,
    sweep,
    train,
)
from trimtab.cli.common import FAILED, REFUSED, CommandError, Terminated, one_line, print_error, terminable
from trimtab.cli.parsing import Parser

CLOSED_PIPE = 141
"""What a shell shows for a program that `| head` ended: 128 and SIGPIPE."""


def parser() -> Parser:
    """The parser of all commands."""
    made = Parser(prog="trimtab", description="Batch normalization done to the gradients: a library and a lab.")
    made.add_argument("--version", action="store_true", help="show the version and exit")
    commands = made.add_subparsers(dest="command", metavar="COMMAND")
    compare.add_demo(commands)
    compare.add_compare(commands)
    train.add(commands)
    probe.add(commands)
    sweep.add(commands)
    report.add(commands)
    claims.add(commands)
    export.add(commands)
    predict.add(commands)
    doctor.add(commands)
    data.add(commands)
    list.add(commands)
    completion.add(commands)
    return made


def run(arguments: Sequence[str]) -> int:
    """Run a command and return its exit status; one of several processes ends instead."""
    try:
        status = _run(arguments)
    except Exception:
        if not several.launched():
            raise
        status = several.fail_unexpectedly()
    return several.leave(status)


def _run(arguments: Sequence[str]) -> int:
    """Run a command and return its exit status; every failure that can be expected is one sentence."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a character still gets the rest
    try:
        with terminable(), several.joined(), several.needing_all(), _plain_warnings():
            status = _command(arguments)
            if sys.stdout is not None:
                sys.stdout.flush()  # what Python could not write at its end it would only complain of
            return status
    except BrokenPipeError:
        _flushed_or_silenced(sys.stdout)
        _flushed_or_silenced(sys.stderr)
        return several.first_to_fail(CLOSED_PIPE)[0]
    except CommandError as error:
        return _fail(str(error), error.status)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except Terminated:
        return _fail("terminated", 143)
    except ValueError as error:
        return _fail(str(error), REFUSED)
    except (MemoryError, RuntimeError) as error:  # of which torch's own are a kind
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "allocate memory" not in str(error):
            raise
        return _fail("there is not enough memory; a smaller batch size or network takes less", FAILED)
    except OSError as error:
        _flushed_or_silenced(sys.stdout)
        where = "cannot write the output" if error.filename is None else os.fsdecode(error.filename)
        return _fail(f"{where}: {error.strerror or error}", FAILED)


def _command(arguments: Sequence[str]) -> int:
    made = parser()
    try:
        with several.first_speaks():
            options = made.parse_args(arguments)
    except SystemExit as ended:  # argparse's way to end, after help as after a refusal
        return int(ended.code or 0)
    if options.version:
        print(f"trimtab {trimtab.__version__}")
        return 0
    if options.command is None:
        made.print_help()
        return 0
    several.check_command(options.command)
    status: int = options.run(options)
    return status


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Print warnings of ours as one line without source code: the user of a command has written none."""
    before = warnings.formatwarning

    def plain(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> str:
        ours = issubclass(category, trimtab.TrimtabWarning)
        return f"trimtab: {one_line(str(message))}\n" if ours else before(message, category, *where, **more)

    warnings.formatwarning = plain
    try:
        yield
    finally:
        warnings.formatwarning = before


def _fail(sentence: str, status: int) -> int:
    status, first = several.first_to_fail(status)
    if first:
        print_error(sentence)
    return status


def _flushed_or_silenced(stream: TextIO | None) -> None:
    """Flush a stream. If that fails (closed pipe, full disk), silence it, since Python would flush again at exit."""
    if stream is None:
        return
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
