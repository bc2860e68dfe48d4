"""docs/versions.md: tests.versions changes rows of its table, nothing else; pyproject.toml promises what it shows."""

import tomllib

from tests.versions import PAGE, ROOT, ROW, read_outcome, row, with_rows

OUTPUT = """...F
=========================== short test summary info ============================
SKIPPED [1] tests/a.py:3: needs a CUDA device
FAILED tests/a.py::test_one[in a model] - assert 1 == 2
FAILED tests/a.py::test_one[alone]
ERROR tests/b.py::test_two - a - b
== 2 failed, 7 passed, 1 error in 9.00s ==
"""
BEFORE = """# Title

| torch | outcome | failures |
|---|---|---|
| 2.10.0 | 3 passed | none |

## By hand

Kept.
"""


def test_what_pytest_prints() -> None:
    last, failed = read_outcome(OUTPUT)
    assert failed == ["tests/a.py::test_one[in a model]", "tests/a.py::test_one[alone]", "tests/b.py::test_two"]
    expected = "| 2.9.1 | 2 failed, 7 passed, 1 error | `tests/a.py::test_one` (2), `tests/b.py::test_two` |\n"
    assert row("2.9.1", last, failed) == expected


def test_rows_are_changed_and_the_rest_is_kept() -> None:
    new = {"2.9.1": row("2.9.1", "1 passed in 2s", []), "2.10.0": row("2.10.0", "4 passed in 2s", [])}
    assert with_rows(BEFORE, new) == BEFORE.replace(
        "| 2.10.0 | 3 passed | none |\n", "| 2.9.1 | 1 passed | none |\n| 2.10.0 | 4 passed | none |\n"
    )


def test_the_oldest_version_that_is_promised_passes() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bound = next(name.removeprefix("torch>=") for name in project["dependencies"] if name.startswith("torch>="))
    page = PAGE.read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(f"torch {bound} or newer" in text for text in (page, readme))
    (oldest,) = [found[0] for found in ROW.finditer(page) if found[1].startswith(f"{bound}.")]
    assert oldest.endswith("| none |\n")
