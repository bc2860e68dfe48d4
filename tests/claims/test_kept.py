"""What was computed before is not computed again."""

import math
from pathlib import Path

from trimtab.claims.kept import kept


def test_it_is_computed_once(tmp_path: Path) -> None:
    path, computed = tmp_path / "new" / "a.json", []

    def compute() -> dict[str, float]:
        computed.append(1)
        return {"a": 0.1, "b": math.inf}

    first = kept(path, compute)
    assert first == kept(path, compute) == {"a": 0.1, "b": math.inf} and len(computed) == 1


def test_what_was_cut_off_is_computed_again(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("[1, 2")
    assert kept(path, lambda: [1, 2, 3]) == kept(path, lambda: []) == [1, 2, 3]
