"""Shared parts of the commands: errors, flags, types of arguments."""

import argparse
import math
import os
import shlex
import signal
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trimtab.cli.parsing import Parser, TakesArguments
    from trimtab.records import Evaluated
    from trimtab.training.settings import SettingInfo

LAB = {"sklearn": "scikit-learn", "matplotlib": "matplotlib", "rich": "rich", "yaml": "pyyaml"}
"""What experiments need, by the names of the modules."""
PACKAGES = {
    **LAB,
    "shtab": "shtab",
    "ray": "ray",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "mlflow": "mlflow-skinny",
}

JOBS = "one per core; on a GPU one per 4 cores, per 2 with NVIDIA's multi-process service"
PAGE = "report.html"
RECIPES = "What is not given is taken from the recipe of the paper that the network is from."
FEW = 4
"""So many choices stand beside a flag in the help; more follow in its text."""

REFUSED = 2
"""The exit status where something has to be mended first: nothing was done, and nothing is left behind."""
FAILED = 1
"""The exit status where something went wrong on the way: what was done is kept."""


class CommandError(Exception):
    """An error that the user can fix: one sentence, and the exit status."""

    def __init__(self, sentence: str, status: int = REFUSED) -> None:
        super().__init__(sentence)
        self.status = status


class Terminated(BaseException):
    """Raised on SIGTERM, the signal by which a cluster or a container ends a process."""


@contextmanager
def terminable() -> Iterator[None]:
    """Raise `Terminated` on SIGTERM while the context is active, so that a run can be saved."""

    def end(number: int, frame: object) -> None:
        raise Terminated

    try:
        previous = signal.signal(signal.SIGTERM, end)
    except ValueError:  # not in the main thread, where signals cannot be handled
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextmanager
def resumable(out: Path, go_on: str) -> Iterator[None]:
    """Turn interruptions of resumable work into a sentence that says how to resume.

    Args:
        out: The folder that is written to.
        go_on: How to resume, as in "go on with the same command".
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        where = out if error.filename is None else os.fsdecode(error.filename)
        why = f"cannot write to {where}: {error.strerror or error}"
        raise CommandError(f"{why}; what was done is kept: when that is mended, {go_on}", FAILED) from error
    except (KeyboardInterrupt, Terminated) as error:
        status = 143 if isinstance(error, Terminated) else 130
        raise CommandError(f"interrupted; {go_on}" if out.exists() else "interrupted", status) from None


def print_error(sentence: str) -> None:
    """Print a sentence to stderr, in one line, whatever characters a name in it has."""
    with suppress(OSError):  # nobody is there to read it
        print("trimtab:", one_line(sentence), file=sys.stderr, flush=True)


def one_line(sentence: str) -> str:
    """A text without line breaks and other characters that cannot be printed."""
    line = sentence.replace("\n", " ")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def need(*modules: str, extra: str = "lab") -> None:
    """Refuse to go on without these modules, naming the extra that has them. The library alone does not need them."""
    missing = [PACKAGES[module] for module in modules if find_spec(module) is None]
    if missing:
        them = "it" if len(missing) == 1 else "them"
        raise CommandError(
            f"this needs {', '.join(missing)}; pip install '.[{extra}]' in trimtab's source folder gets {them}"
        )


def add_settings(parser: "Parser", without: Collection[str] = ()) -> None:
    """A flag for each setting of a run, in groups; `given_settings` finds those that were given."""
    from trimtab.cli.parsing import RenamedFlag
    from trimtab.records import RENAMED_SETTINGS
    from trimtab.training.recipes import DEFAULTS
    from trimtab.training.settings import setting_infos

    old_names = {new: old for old, new in RENAMED_SETTINGS.items()}

    groups: dict[str, TakesArguments] = {}
    for setting in setting_infos():
        if setting.name in without:
            continue
        if setting.group not in groups:
            groups[setting.group] = parser.group(setting.group)
        text, metavar = setting.help, "N" if setting.hint in (int, tuple[int, ...]) else "X"
        if len(setting.choices) > FEW:  # they would not fit on the line of the flag
            text, metavar = f"{text}: {', '.join(setting.choices)}", "NAME"
        elif setting.choices:
            metavar = f"{{{','.join(setting.choices)}}}"
        options: dict[str, Any] = {"dest": f"setting_{setting.name}", "default": argparse.SUPPRESS}
        options["help"] = f"{text} (default: {_default(setting, DEFAULTS)})".replace("%", "%%")
        if setting.hint is bool:
            options["action"] = argparse.BooleanOptionalAction
        else:
            options["metavar"] = f"{metavar},..." if setting.several else metavar
        groups[setting.group].add_argument(_flag(setting.name), **options)
        if setting.name in old_names:
            taken = {"dest": options["dest"], "default": argparse.SUPPRESS, "now": _flag(setting.name)}
            groups[setting.group].add_argument(_flag(old_names[setting.name]), action=RenamedFlag, **taken)


def _default(setting: "SettingInfo", recipe: Mapping[str, Any]) -> str:
    """The default of a setting, in words."""
    if setting.default is not None:
        return _value(setting.default)
    if setting.unset:
        return setting.unset
    common = recipe.get(setting.name)
    return "recipe" if common is None else f"recipe, else {_value(common)}"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def given_settings(options: argparse.Namespace) -> dict[str, Any]:
    """The settings on the command line, over those of `--config`, checked and converted.

    Raises:
        ValueError: If one is not known or of the wrong type.
    """
    from trimtab.training.config import read_settings

    flags = flagged_settings(options)
    file = read_settings(options.config) if options.config else {}
    if "steps" in flags or "epochs" in flags:  # one decision, of which the file has no half
        file = {name: value for name, value in file.items() if name not in ("steps", "epochs")}
    return {**file, **flags}


def flagged_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Those on the command line alone."""
    from trimtab.training.settings import from_mapping

    prefix = "setting_"
    given = {name.removeprefix(prefix): v for name, v in vars(options).items() if name.startswith(prefix)}
    return from_mapping(given, where="the command line")


def size(number: float) -> str:
    """A number of bytes, for people.

    >>> size(1234567)
    '1 MB'
    """
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.0f} {unit}"
        number /= 1000
    return f"{number:.1f} GB"


def result(last: "Evaluated") -> str:
    """An evaluation in a few words."""
    value = f"loss {last.loss:.4g}" if last.accuracy is None else f"accuracy {100 * last.accuracy:.2f} %"
    return f"{last.part} {value}"


def typed() -> str:
    """The command as a person can type it again."""
    return shlex.join(["trimtab", *sys.argv[1:]])


def add_machine(parser: "Parser") -> None:
    """Add the flags for the device and the folder of the data sets."""
    parser.add_argument("--device", metavar="{cpu,cuda}", help="where to train (default: cuda if there is one)")
    add_data_root(parser)


def add_data_root(parser: "Parser") -> None:
    """Where the data sets are."""
    parser.add_argument(
        "--data-root", type=place, metavar="FOLDER", help="folder of the data sets (default: TRIMTAB_DATA, else data)"
    )


def place(text: str) -> Path:
    """A file or a folder, there or not, for argparse."""
    if not text:
        raise argparse.ArgumentTypeError("must be the name of a file or a folder, not ''")
    try:
        os.stat(text)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass  # whoever needs it says so
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"cannot be used: {getattr(error, 'strerror', error)}") from error
    return Path(text)


def seconds(text: str) -> float:
    """A time, for argparse."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of seconds, 0 or more, not {text!r}")
    return number


def positive(text: str) -> int:
    """A whole number, 1 or more, for argparse."""
    return _at_least(1, text)


def count(text: str) -> int:
    """A whole number, 0 or more, for argparse."""
    return _at_least(0, text)


def steps(text: str) -> tuple[int, ...]:
    """Steps between commas, each once, for argparse."""
    return tuple(dict.fromkeys(count(word) for word in words(text, what="steps counted from 0")))


def _at_least(least: int, text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < least:
        raise argparse.ArgumentTypeError(f"must be a whole number, {least} or more, not {text!r}")
    return number


def words(text: str, what: str = "words") -> tuple[str, ...]:
    """Words between commas, each once, for argparse; `what` they are, for the sentence if there is none."""
    separated = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if not separated:
        raise argparse.ArgumentTypeError(f"must be {what} with commas between them, not {text!r}")
    return separated


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
