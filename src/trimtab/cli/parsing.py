"""argparse with clearer errors, and with a record of all arguments, for shell completion."""

import argparse
from typing import Any, NoReturn, Protocol

from trimtab.cli.common import REFUSED, print_error
from trimtab.nearest import nearest


class Commands(Protocol):
    """What `add_subparsers` returns: a command is declared with it."""

    def add_parser(self, name: str, **options: Any) -> "Parser":
        """Declare a command."""


class TakesArguments(Protocol):
    """A parser, or a group of its arguments."""

    def add_argument(self, *names: str, **options: Any) -> argparse.Action:
        """Declare an argument."""


class Parser(argparse.ArgumentParser):
    """argparse's, but an error does not print the list of all flags before it, and no flag is abbreviated.

    `compare --seed 3` would mean `--seeds 3`, and that is something else.

    Attributes:
        actions: The arguments and flags that were declared, those in groups too.
        commands: The parsers of the commands that were declared, by name.
    """

    def __init__(self, **options: Any) -> None:
        """Take what argparse takes."""
        self.actions: list[argparse.Action] = []
        self.commands: dict[str, Parser] = {}
        super().__init__(allow_abbrev=False, **options)

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        """Declare an argument."""
        action = super().add_argument(*names, **options)
        self.actions.append(action)
        return action

    def group(self, title: str) -> TakesArguments:
        """A group of arguments under a heading of their own."""
        return _Group(self.add_argument_group(title), self.actions)

    def exclusive_group(self) -> TakesArguments:
        """A group of arguments of which one can be given."""
        return _Group(self.add_mutually_exclusive_group(), self.actions)

    def add_subparsers(self, **options: Any) -> Any:
        """Commands."""
        declared = super().add_subparsers(**options)
        self.commands = declared.choices
        return declared

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse an unknown argument here, where the flags are known that may have been meant."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            near = nearest(unknown[0].partition("=")[0], self.flags)
            self.error(f"unrecognized arguments: {' '.join(unknown)}" + (f"; did you mean {near}?" if near else ""))
        return known, unknown

    @property
    def flags(self) -> list[str]:
        """All flags that the help shows."""
        return [flag for one in self.actions if one.help != argparse.SUPPRESS for flag in one.option_strings]

    def print_help(self, file: Any = None) -> None:
        """Print it like all other output: argparse passes over a closed pipe and a full disk."""
        print(self.format_help(), end="", file=file)

    def error(self, message: str) -> NoReturn:
        """Print the message and end."""
        print_error(f"{message}; see {self.prog} --help")
        self.exit(REFUSED)


class _Group:
    """A group of a parser's arguments, which are recorded as those of the parser."""

    def __init__(self, group: TakesArguments, actions: list[argparse.Action]) -> None:
        self._group, self._actions = group, actions

    def add_argument(self, *names: str, **options: Any) -> argparse.Action:
        """Declare an argument."""
        action = self._group.add_argument(*names, **options)
        self._actions.append(action)
        return action


class RenamedFlag(argparse.Action):
    """A flag by its old name, not shown in the help: it works, and says how it is called now."""

    def __init__(self, *, now: str, **options: Any) -> None:
        """Take the flag's name of now, and what argparse takes."""
        super().__init__(help=argparse.SUPPRESS, **options)
        self._now = now

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        """Take the value."""
        print_error(f"{option_string} is now called {self._now}")
        setattr(namespace, self.dest, values)
