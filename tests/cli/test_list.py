"""`trimtab list`, and how lists look on terminals of any width."""

import json

import pytest

from trimtab import cli
from trimtab.cli.list import KINDS, named
from trimtab.training.methods import Method
from trimtab.training.settings import Settings


@pytest.mark.parametrize("width", ["20", "40", "80", "120"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_name_has_its_line_and_nothing_is_cut(
    kind: str, width: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    assert cli.main(["list", kind]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    if kind == "data":
        lines.pop()  # a sentence
    assert max(map(len, lines)) <= int(width)
    for name, description in named(kind).items():
        assert description
        assert sum(line == name or line.startswith(f"{name} ") for line in lines) == 1, name
    if width == "40":
        assert "…" not in out


@pytest.mark.parametrize("kind", KINDS)
def test_as_json(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", kind, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == named(kind)


def test_what_is_listed_can_be_used() -> None:
    for method in named("methods"):
        Method.parse(method)
    for probe in named("probes"):
        Settings(probe=(probe,))


def test_another_kind_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "nonsense"]) == 2
    assert "networks" in capsys.readouterr().err


@pytest.mark.parametrize("width", ["40", "80"])
def test_predict_fits_the_terminal(
    width: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    assert cli.main(["predict", "mf-mlp", "--norm", "bn", "--measure", "--samples", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= int(width)
    assert any(line.startswith("  largest learning rate") for line in lines)
