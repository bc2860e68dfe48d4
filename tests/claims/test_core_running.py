"""Running experiments: plans, budgets, records, training runs."""

import time
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch

from tests.claims.helpers import claim, record
from trimtab import cli
from trimtab.claims import running
from trimtab.claims.experiments.registry import Context, Experiment
from trimtab.claims.findings import Findings
from trimtab.claims.record import Record
from trimtab.claims.running import plan, run
from trimtab.claims.store import RecordStore
from trimtab.claims.training_runs import enter_runs, train_cases

CPU = torch.device("cpu")


def experiment(name: str, minutes: float, run: Any = lambda findings, context: None) -> Experiment:
    return Experiment(name, "An experiment.", MappingProxyType({"small": minutes}), {}, run)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> dict[str, Experiment]:
    named = {name: experiment(name, minutes) for name, minutes in (("a", 2.0), ("b", 5.0), ("c", 1.0))}
    monkeypatch.setattr(running, "experiment_named", named.__getitem__)
    return named


def context(tmp_path: Path, **more: Any) -> Context:
    return Context(size="small", device=CPU, data_root=None, work=tmp_path / "work", **more)


class TestPlans:
    def test_a_budget_takes_what_fits(self, known: dict[str, Experiment], tmp_path: Path) -> None:
        wanted = [claim("check x", experiment=name, name=name) for name in ("a", "b", "c", "a")]
        store = RecordStore(tmp_path, shipped=False)
        found = plan(wanted, "small", store, budget=4)
        assert ([one.name for one in found.now], [one.name for one in found.later]) == (["a", "c"], ["b"])
        assert [one.name for one in plan(wanted, "small", store).now] == ["a", "b", "c"]
        assert [one.name for one in plan(wanted, "gpu", store).without] == ["a", "b", "c"]

    def test_derived_claims_need_the_experiments_of_others(
        self, known: dict[str, Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        base = claim("check x", experiment="b", name="base")
        monkeypatch.setattr(running, "declared", lambda: {"base": base})
        derived = claim("claim base", "check y", experiment="a")
        found = plan([derived], "small", RecordStore(tmp_path, shipped=False))
        assert [one.name for one in found.now] == ["a", "b"]

    def test_what_has_a_record_is_not_run_again(self, known: dict[str, Experiment], tmp_path: Path) -> None:
        record(experiment="a").write(tmp_path)
        store, wanted = RecordStore(tmp_path, shipped=False), [claim("check x", experiment="a")]
        assert [one.name for one in plan(wanted, "small", store).done] == ["a"]
        assert [one.name for one in plan(wanted, "small", store, force=True).now] == ["a"]


class TestRuns:
    def test_a_record_is_written_when_an_experiment_is_done(self, tmp_path: Path) -> None:
        def measured(findings: Findings, context: Context) -> None:
            findings.number("count", "all", 3)
            findings.notes.append(str(context.work.name))

        def fails(findings: Findings, context: Context) -> None:
            raise ValueError("mnist is not here")

        seen: list[Record] = []
        with pytest.raises(ValueError, match="mnist is not here"):
            run(
                [experiment("a", 1, measured), experiment("b", 1, fails)],
                context(tmp_path, more=2),
                tmp_path / "results",
                finished=seen.append,
            )
        assert [path.name for path in (tmp_path / "results").iterdir()] == ["a.small.json"]
        written = Record.read(tmp_path / "results" / "a.small.json")
        assert written.numbers == {"count": {"all": {"all": 3.0}}} and written.notes == ["a"]
        assert written.command == "trimtab claims run --experiment a --size small --more-seeds 2"
        assert seen == [written] and written.versions["torch"] == torch.__version__

    def test_none_is_begun_that_would_end_too_late(self, tmp_path: Path) -> None:
        several = [experiment("a", 1), experiment("b", 60)]
        left = run(several, context(tmp_path), tmp_path / "results", deadline=time.monotonic() + 600)
        assert [one.name for one in left] == ["b"]

    def test_more_seeds_begin_with_the_same_ones(self, tmp_path: Path) -> None:
        assert context(tmp_path).seeds(3) == (101, 102, 103)
        assert context(tmp_path, more=2).seeds(2) == (101, 102, 103, 104)


@pytest.mark.usefixtures("forked_workers")
class TestTraining:
    SHARED = MappingProxyType({"data": "digits", "network": "small-mlp", "batch_size": 64, "steps": 20})

    def test_cases(self, tmp_path: Path) -> None:
        cases = {"bn": {"method": "bn", "lr": 0.1}, "bnp": {"method": "bnp", "lr": 0.1}}
        here = context(tmp_path, jobs=1)
        trained = train_cases(here, cases, self.SHARED, (101, 102))
        assert {name: list(case.runs) for name, case in trained.items()} == {"bn": [101, 102], "bnp": [101, 102]}
        findings = Findings()
        enter_runs(findings, trained, 10, " x")
        assert findings.chance == 10.0 and set(findings.numbers["acc x"]["bnp"]) == {"101", "102"}
        last = trained["bn"].runs[101].evaluated[-1]
        assert last.part == "test" and findings.numbers["acc x"]["bn"]["101"] == 100 * (last.accuracy or 0)
        assert len(findings.curves["accuracy x"]["bn"]) == 20
        before = {path: path.stat().st_mtime_ns for path in here.work.rglob("events.jsonl")}
        assert len(before) == 4
        train_cases(here, cases, self.SHARED, (101, 102))
        assert {path: path.stat().st_mtime_ns for path in here.work.rglob("events.jsonl")} == before

    def test_rates_are_chosen_on_validation_data(self, tmp_path: Path) -> None:
        cases = {"bn": {"method": "bn", "lr": 1e-6}}
        case = train_cases(context(tmp_path, jobs=1), cases, self.SHARED, (101,), rates=3)["bn"]
        rates = [candidate.lr for candidate in case.candidates]
        assert rates == [3e-7, 1e-6, 3e-6, 9e-6, 2.7e-5]  # widened twice, since more was better
        assert case.lr in rates and case.runs[101].started.settings["lr"] == case.lr
        assert case.runs[101].started.settings["validation"] == 0

    def test_what_cannot_be_trained_guesses(self, tmp_path: Path) -> None:
        cases = {"bn": {"method": "bn"}, "vanilla": {"method": "vanilla"}}
        trained = train_cases(context(tmp_path, jobs=1), cases, {**self.SHARED, "batch_size": 1, "steps": 5}, (101,))
        findings = Findings()
        enter_runs(findings, trained, 10)
        assert findings.numbers["acc"]["bn"] == {"101": 10.0} and "bn" in findings.refused


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run"], "say what to run"),
        (["run", "--all", "bnp-fig1"], "say what to run"),
        (["run", "nothing"], "there is no claim 'nothing'"),
        (["run", "--experiment", "fc-60-mnis"], "there is no experiment 'fc-60-mnis'; did you mean 'fc-60-mnist'?"),
        (["run", "--all", "--budget", "0"], "--budget must be a number of minutes above 0"),
        (["run", "--all", "--budget", "nan"], "--budget must be a number of minutes above 0"),
        (["show", "nothing"], "there is no claim 'nothing'"),
        (["list", "--verdict", "true"], "there is no verdict 'true'"),
        (["list", "--paper", "yours"], "argument --paper"),
    ],
)
def test_refused(
    arguments: list[str],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["claims", *arguments]) == 2
    assert sentence in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_damaged_record_is_one_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fc-60-mnist.small.json").write_text("{")
    assert cli.main(["claims", "list", "--block", "1.2", "--results", str(tmp_path)]) == 2
    assert "remove it or run it anew" in capsys.readouterr().err


def test_data_that_are_not_there(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    arguments = ["claims", "run", "--experiment", "fc-60-mnist", "--force", "--data-root", str(tmp_path / "empty")]
    assert cli.main(arguments) == 1
    assert "not run: " in capsys.readouterr().out
