"""Without the package that a module is for: one sentence that names the extra."""

import sys
from importlib import import_module
from pathlib import Path

import pytest

import trimtab
from trimtab.integrations.needed import needed


@pytest.mark.parametrize(
    ("module", "packages", "extra"),
    [
        ("lightning", ["lightning", "pytorch_lightning"], "lightning"),
        ("transformers", ["transformers"], "transformers"),
    ],
)
def test_missing(module: str, packages: list[str], extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in packages:
        for name in [package, *(name for name in sys.modules if name.startswith(f"{package}."))]:
            monkeypatch.setitem(sys.modules, name, None)
    for name in [name for name in sys.modules if name.startswith(f"trimtab.integrations.{module}")]:
        monkeypatch.delitem(sys.modules, name)
    sentence = rf"this needs {packages[0]}; pip install '\.\[{module}\]' in trimtab's source folder gets it"
    with pytest.raises(ModuleNotFoundError, match=sentence):
        import_module(f"trimtab.integrations.{module}")


def test_something_that_a_package_needs_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "framework_of_a_test.py").write_text("import nothing_of_that_name")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="No module named 'nothing_of_that_name'"):
        needed("framework_of_a_test", extra="lightning")


def test_the_room_itself_needs_nothing() -> None:
    assert trimtab.integrations.__doc__
