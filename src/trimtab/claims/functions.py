"""Named functions for parts of criteria that no comparator fits.

A function takes the part that names it and the record of the experiment, and returns what came out.
"""

from trimtab.claims.verdict import PartFunction

FUNCTIONS: dict[str, PartFunction] = {}


def part_function(function: PartFunction) -> PartFunction:
    """Register a function under its own name."""
    FUNCTIONS[function.__name__] = function
    return function
