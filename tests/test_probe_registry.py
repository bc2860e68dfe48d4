"""One table of probes, for the command line, training and report."""

import ast
import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from trimtab.cli import main
from trimtab.probe_registry import PROBES, ProbeEntry, expand_probe_names
from trimtab.probes import Activations
from trimtab.records import History
from trimtab.report import collect, figures
from trimtab.report.probe_figures import ProbeFigure
from trimtab.report.probe_series import ProbeSeries
from trimtab.report.report_data import Panel
from trimtab.training import probe_factories
from trimtab.training.session import Session


@pytest.mark.parametrize("name", PROBES)
def test_every_entry_has_a_factory_and_figures(name: str) -> None:
    entry = PROBES[name]
    assert list(inspect.signature(entry.load_factory()).parameters) == ["session"]
    assert list(inspect.signature(entry.load_figures()).parameters) == ["panel", "runs"]
    assert entry.description and entry.description[0].islower() and not entry.description.endswith(".")


def test_every_factory_and_every_figure_is_in_the_table() -> None:
    from trimtab.report import network_figures, probe_figures

    def public(module: Any, returns: str) -> set[str]:
        functions = [node for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.FunctionDef)]
        return {f.name for f in functions if f.returns is not None and ast.unparse(f.returns).strip("'") == returns}

    assert public(probe_factories, "Probe[Any]") == set(PROBES)
    drawn = [public(module, "Iterator[ProbeFigure]") for module in (probe_figures, network_figures)]
    assert drawn[0] | drawn[1] == set(PROBES) and not drawn[0] & drawn[1]


def test_names_are_expanded() -> None:
    assert expand_probe_names(["noise", "landscape", "noise"]) == ("noise", "landscape")
    assert expand_probe_names(["noise", "all"])[0] == "noise"
    assert set(expand_probe_names(["all"])) == set(PROBES)


class Mine(Activations):
    name = "mine"


def mine(session: Session) -> Mine:
    return Mine()


def my_figures(panel: Panel, runs: Sequence[ProbeSeries]) -> Iterator[ProbeFigure]:
    from matplotlib.figure import Figure

    (run,) = runs
    finding = f"{len(run.steps)} measurements."
    yield ProbeFigure(f"mine-{panel.name}", "Nothing.", Figure, lambda: ([], []), finding)


def test_one_entry_adds_a_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = ProbeEntry("what is mine", f"{__name__}:mine", f"{__name__}:my_figures")
    monkeypatch.setitem(PROBES, "mine", entry)
    assert main(["list", "probes"]) == 0
    assert "what is mine" in capsys.readouterr().out
    run = ["train", "--network", "small-mlp", "--steps", "3", "--probe", "mine", "--probe-every", "1", "--quiet"]
    assert main([*run, "--device", "cpu", "--out", str(tmp_path / "run")]) == 0
    assert [event.probe for event in History.read(tmp_path / "run").probed] == ["mine"] * 3
    assert "3 measurements." in [figure.finding for figure in figures(collect([tmp_path]))]
