"""What was computed before and need not be again, when a command was stopped and goes on."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trimtab.records import whole_file


def kept(path: Path, compute: Callable[[], Any]) -> Any:
    """What is computed, from a file if it was before; kept there if not.

    Args:
        path: Of the file. Its name has to have everything that the result depends on.
        compute: Returns something that JSON can hold; infinities and NaN too.
    """
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):  # not there, or cut off
        pass
    found = compute()
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file:
        file.write(json.dumps(found).encode())
    return found
