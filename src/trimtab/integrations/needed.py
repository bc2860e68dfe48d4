"""Packages that a module of this room cannot do without."""

from importlib import import_module
from types import ModuleType


def needed(*names: str, extra: str) -> ModuleType:
    """The first of these modules that is installed.

    Args:
        *names: Modules that are alike, the best first.
        extra: The extra of trimtab that installs the first of them.

    Raises:
        ModuleNotFoundError: If none is, with what to do.
    """
    for name in names:
        package = name.partition(".")[0]
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] != package:
                raise  # it is there, but something that it needs is not
    raise ModuleNotFoundError(
        f"this needs {names[0].partition('.')[0]}; pip install '.[{extra}]' in trimtab's source folder gets it",
        name=names[0],
    )
