"""What the commands have in common."""

import argparse
import shlex
import sys
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

LAB = {"sklearn": "scikit-learn", "matplotlib": "matplotlib", "rich": "rich", "yaml": "pyyaml"}

PAGE = "report.html"


class CommandError(Exception):
    """What a user can mend, in one sentence, with the exit status."""

    def __init__(self, sentence: str, status: int = 2) -> None:
        super().__init__(sentence)
        self.status = status


def need(*modules: str) -> None:
    """Say what is missing. What belongs to the lab is imported where it is used, so that the library does without."""
    missing = [LAB[module] for module in modules if find_spec(module) is None]
    if missing:
        them = "it" if len(missing) == 1 else "them"
        raise CommandError(f"this needs {', '.join(missing)}; install {them} with: pip install 'trimtab[lab]'")


def add_settings(parser: argparse.ArgumentParser, title: str, without: Collection[str] = ()) -> None:
    """A flag for each setting of a run; `given_settings` finds those that were given."""
    from trimtab.training.settings import names_and_help

    group = parser.add_argument_group(title)
    for name, text, hint in names_and_help():
        if name in without:
            continue
        options: dict[str, Any] = {"dest": f"setting_{name}", "default": argparse.SUPPRESS, "help": text}
        if hint is bool or bool in get_args(hint):
            group.add_argument(_flag(name), action=argparse.BooleanOptionalAction, **options)
        else:
            group.add_argument(_flag(name), metavar="X", **options)


def given_settings(options: argparse.Namespace) -> dict[str, Any]:
    """The settings on the command line, over those of `--config`, checked and converted.

    Raises:
        ValueError: If one is not known or of the wrong type.
    """
    from trimtab.training.folder import read_settings
    from trimtab.training.settings import from_mapping

    prefix = "setting_"
    given = {name.removeprefix(prefix): v for name, v in vars(options).items() if name.startswith(prefix)}
    told = from_mapping(given, where="the command line")
    return {**(read_settings(options.config) if options.config else {}), **told}


def typed() -> str:
    """The command as a person can type it again."""
    return shlex.join(["trimtab", *sys.argv[1:]])


def add_machine(parser: argparse.ArgumentParser) -> None:
    """Where to train, and on what."""
    parser.add_argument("--device", help="cpu or cuda (cuda if there is one)")
    add_data_root(parser)


def add_data_root(parser: argparse.ArgumentParser) -> None:
    """Where the data sets are."""
    parser.add_argument("--data-root", type=Path, help="folder of the data sets (TRIMTAB_DATA, or data)")


def positive(text: str) -> int:
    """A whole number, 1 or more, for argparse."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, 1 or more, not {text!r}")
    return number


def words(text: str) -> tuple[str, ...]:
    """Words between commas, each once, for argparse."""
    found = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if not found:
        raise argparse.ArgumentTypeError("must be words with commas between them, as in bn,bnp")
    return found


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
