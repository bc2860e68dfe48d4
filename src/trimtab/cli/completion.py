"""`trimtab completion`: a script by which a shell completes commands, flags and their values.

The script knows all names itself, so that pressing TAB starts no Python: torch alone would take a second.
"""

import argparse
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from trimtab.cli.common import need, place, words

if TYPE_CHECKING:
    from trimtab.cli.parsing import Commands, Parser

SHELLS = ("bash", "zsh", "fish")
# The last of several words with commas between them; the shells other than bash have this built in.
BASH = """
_trimtab_among() {
  local before="" word="$1"
  [[ "$word" == *,* ]] && before="${word%,*}," && word="${word##*,}"
  compgen -P "$before" -W "${*:2}" -- "$word"
}
"""


def add(commands: "Commands") -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "completion",
        help="print a script that lets a shell complete commands, settings and their values",
        description="Prints a script for a shell. For bash: trimtab completion bash > "
        "~/.local/share/bash-completion/completions/trimtab; for fish: trimtab completion fish > "
        "~/.config/fish/completions/trimtab.fish; for zsh: trimtab completion zsh > _trimtab, in a folder of $fpath. "
        "Do this again after an update.",
    )
    parser.add_argument("shell", choices=SHELLS, metavar=f"{{{','.join(SHELLS)}}}", help="the shell")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the script."""
    need("shtab")
    import shtab

    from trimtab.cli.program import parser

    made, functions = parser(), []
    for action in _actions(made):
        names = values(action)
        if action.type is place:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif names and _takes_several(action):
            name = f"_trimtab_{action.dest}"
            functions.append(f'{name}() {{ _trimtab_among "$1" {shlex.join(names)}; }}')
            action.complete = {  # type: ignore[attr-defined]
                "bash": name,
                "zsh": f"_sequence compadd - {shlex.join(names)}",
                "fish": f"(__fish_complete_list , 'printf %s\\n {shlex.join(names)}')",
            }
        elif names:
            action.choices = names
    preamble = "\n".join([BASH, *dict.fromkeys(functions)]) if options.shell == "bash" else ""
    print(shtab.complete(made, shell=options.shell, preamble=preamble))
    return 0


def values(action: argparse.Action) -> tuple[str, ...]:
    """The values that a flag or an argument can have; empty if there is no list of them."""
    from trimtab.data import DATASETS
    from trimtab.data.sources import SOURCES
    from trimtab.networks import NETWORKS
    from trimtab.norms import NORMS
    from trimtab.probe_registry import PROBES
    from trimtab.report.figures import KINDS
    from trimtab.training.methods import METHODS
    from trimtab.training.settings import setting_infos

    methods = (*METHODS, *(f"bnp+{norm}" for norm in NORMS if norm != "none" and not norm.startswith("wn")))
    named: dict[str, tuple[str, ...]] = {f"setting_{setting.name}": setting.choices for setting in setting_infos()}
    named |= {"data": (*DATASETS,), "network": (*NETWORKS,), "methods": methods, "setting_method": methods}
    named |= {"probe": (*PROBES, "all"), "norm": (*NORMS,), "name": (*SOURCES,), "figures": (*KINDS,)}
    named |= {"device": ("cpu", "cuda")}
    return named.get(action.dest, ())


def _takes_several(action: argparse.Action) -> bool:
    return action.type is words or action.dest == "setting_probe"


def _actions(parser: "Parser") -> Iterator[argparse.Action]:
    """Those of a parser and of all commands in it."""
    yield from parser.actions
    for command in parser.commands.values():
        yield from _actions(command)
