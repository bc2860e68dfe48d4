"""Running experiments: plans, budgets, records, training runs."""

import subprocess
import time
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch

import trimtab.claims
from tests.claims.helpers import claim, record
from trimtab import cli
from trimtab.claims import Claim, plans
from trimtab.claims.experiments.registry import Context, Experiment
from trimtab.claims.findings import Findings
from trimtab.claims.plans import Planned, plan, plan_first, plan_named, plan_second
from trimtab.claims.record import Record
from trimtab.claims.running import _commit, run
from trimtab.claims.store import RecordStore
from trimtab.claims.training_runs import enter_runs, train_cases
from trimtab.claims.verdict import judge
from trimtab.training.folder import locked
from trimtab.training.workers.pool import TrainingFailed

CPU = torch.device("cpu")


def experiment(name: str, minutes: float, run: Any = lambda findings, context: None, **more: Any) -> Experiment:
    return Experiment(name, "An experiment.", MappingProxyType({"small": minutes}), {}, run, **more)


def names(several: tuple[Planned, ...]) -> list[str]:
    return [one.experiment.name for one in several]


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> dict[str, Experiment]:
    named = {name: experiment(name, minutes) for name, minutes in (("a", 2.0), ("b", 5.0), ("c", 1.0))}
    monkeypatch.setattr(plans, "experiment_named", named.__getitem__)
    return named


def context(tmp_path: Path, **more: Any) -> Context:
    return Context(size="small", device=CPU, data_root=None, work=tmp_path / "work", **more)


class TestPlans:
    def test_a_budget_takes_what_fits(self, known: dict[str, Experiment], tmp_path: Path) -> None:
        wanted = [claim("check x", experiment=name, name=name) for name in ("a", "b", "c", "a")]
        store = RecordStore(tmp_path, shipped=False)
        found = plan(wanted, "small", store, budget=4)
        assert (names(found.now), names(found.later)) == (["a", "c"], ["b"])
        assert names(plan(wanted, "small", store).now) == ["a", "b", "c"]
        assert [one.name for one in plan(wanted, "gpu", store).without] == ["a", "b", "c"]

    def test_derived_claims_need_the_experiments_of_others(
        self, known: dict[str, Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        base = claim("check x", experiment="b", name="base")
        monkeypatch.setattr(plans, "declared", lambda: {"base": base})
        derived = claim("claim base", "check y", experiment="a")
        found = plan([derived], "small", RecordStore(tmp_path, shipped=False))
        assert names(found.now) == ["a", "b"]

    def test_what_has_a_record_is_not_run_again(self, known: dict[str, Experiment], tmp_path: Path) -> None:
        record(experiment="a").write(tmp_path)
        store, wanted = RecordStore(tmp_path, shipped=False), [claim("check x", experiment="a")]
        assert [one.name for one in plan(wanted, "small", store).done] == ["a"]
        assert names(plan(wanted, "small", store, force=True).now) == ["a"]


class TestSecondPass:
    @pytest.fixture
    def wanted(self, known: dict[str, Experiment], monkeypatch: pytest.MonkeyPatch) -> list[Claim]:
        """Claims judged by `a` with standardized inputs in `b`, and by `c`."""
        claims = [claim("acc: bn > ln", experiment="a", other_inputs="b"), claim("acc: bn > ln", experiment="c")]
        monkeypatch.setattr("trimtab.claims.verdict_on", lambda one, size, store: judge(one, size, store, {}, {}))
        return claims

    @staticmethod
    def written(folder: Path, name: str, bn: list[float], command: str = "trimtab claims run") -> None:
        replace(record({"acc": {"bn": bn, "ln": [90.0, 90.0]}}, experiment=name), command=command).write(folder)

    def test_what_stands_beside_decides_nothing(self, wanted: list[Claim], tmp_path: Path) -> None:
        store = RecordStore(tmp_path, shipped=False)
        assert names(plan(wanted, "small", store).now) == names(plan_first(wanted, "small", store).now) == ["a", "c"]
        second = plan_second(wanted, "small", store)
        assert names(second.now) == ["b"] and second.now[0].more == 1

    def test_seeds_and_experiments_that_the_first_leaves_out(
        self, wanted: list[Claim], known: dict[str, Experiment], tmp_path: Path
    ) -> None:
        known["a"] = experiment("a", 3.0, seeds=(2, 3))
        known["c"] = experiment("c", 9.0, second_pass=True)
        store = RecordStore(tmp_path, shipped=False)
        (first,) = plan_first(wanted, "small", store).now
        assert (first.experiment.name, first.at_most, first.minutes) == ("a", 2, pytest.approx(2.0))
        assert [one.at_most for one in plan(wanted, "small", store).now] == [None, None]
        second = plan_second(wanted, "small", store)
        assert {one.experiment.name: (one.at_most, one.minutes) for one in second.now} == {
            **{"a": (None, pytest.approx(1.0)), "c": (None, 9.0), "b": (None, 5.0)}
        }
        whole = plan(wanted, "small", store).minutes + known["b"].minutes["small"]
        assert first.minutes + second.minutes == pytest.approx(whole)

    def test_a_record_of_the_first_pass_is_none_of_all_seeds(
        self, wanted: list[Claim], known: dict[str, Experiment], tmp_path: Path
    ) -> None:
        known["a"] = experiment("a", 3.0, seeds=(2, 3))
        self.written(tmp_path, "a", [89.5, 92.0], "trimtab claims run --experiment a --size small --pass first")
        self.written(tmp_path, "c", [91.0, 92.0])
        store = RecordStore(tmp_path, shipped=False)
        assert not plan_first(wanted, "small", store).now
        assert names(plan(wanted, "small", store).now) == ["a"]
        second = plan_second(wanted, "small", store)  # all seeds first, though the first ones decide nothing
        assert [(one.experiment.name, one.more) for one in second.now] == [("a", 1), ("b", 1)]

    def test_other_sizes_have_all_seeds(self) -> None:
        one = Experiment("a", "", {"small": 3.0, "gpu": 4.0}, {}, lambda findings, context: None, seeds=(2, 3))
        assert (one.first_seeds("gpu"), one.first_minutes("gpu"), one.first_seeds("small")) == (None, 4.0, 2)

    def test_what_is_undecided_is_run_again_with_twice_the_seeds(self, wanted: list[Claim], tmp_path: Path) -> None:
        self.written(tmp_path, "a", [91.0, 92.0])
        self.written(tmp_path, "c", [89.5, 92.0])  # the range of the differences has 0 in it
        second = plan_second(wanted, "small", RecordStore(tmp_path, shipped=False))
        assert [(one.experiment.name, one.minutes, one.more) for one in second.now] == [("b", 5.0, 1), ("c", 2.0, 2)]
        assert second.minutes == 5 + 2

    def test_once(self, wanted: list[Claim], tmp_path: Path) -> None:
        self.written(tmp_path, "b", [91.0, 92.0])
        self.written(tmp_path, "c", [89.5, 92.0], "trimtab claims run --experiment c --size small --more-seeds 2")
        second = plan_second(wanted, "small", RecordStore(tmp_path, shipped=False))
        assert not second.now and [one.name for one in second.done] == ["b"]

    @pytest.mark.parametrize(("budget", "now"), [(7, ["b", "c"]), (6, ["b"]), (4, ["c"]), (1, [])])
    def test_a_budget_takes_what_fits(self, budget: float, now: list[str], wanted: list[Claim], tmp_path: Path) -> None:
        self.written(tmp_path, "c", [89.5, 92.0])
        second = plan_second(wanted, "small", RecordStore(tmp_path, shipped=False), budget=budget)
        assert names(second.now) == now
        assert second.minutes == 7 and len(second.later) == 2 - len(now)


class TestCommand:
    """`trimtab claims run` with two claims and three experiments, one of which stands beside."""

    @pytest.fixture
    def ran(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, int]]:
        """The names of experiments that were run, with how many seeds."""
        monkeypatch.chdir(tmp_path)
        ran: list[tuple[str, int]] = []

        def measured(name: str) -> Any:
            def run_it(findings: Findings, given: Context) -> None:
                ran.append((name, len(given.seeds(2))))
                for seed in given.seeds(2):
                    findings.number("acc", "bn", 90 + (-1) ** seed + given.more, seed=seed, unit="points")
                    findings.number("acc", "ln", 90.5, seed=seed, unit="points")

            return run_it

        named = {
            "first": experiment("first", 2.0, measured("first"), seeds=(1, 2)),
            "first-standard": experiment("first-standard", 2.0, measured("first-standard"), second_pass=True),
            "other": experiment("other", 2.0, measured("other")),
        }
        several = {
            "x": claim("acc: bn > ln", name="x", experiment="first", other_inputs="first-standard"),
            "y": claim("acc: bn > ln", name="y", experiment="other"),
        }
        monkeypatch.setattr(plans, "experiment_named", named.__getitem__)
        monkeypatch.setattr(plans, "declared", lambda: several)
        monkeypatch.setattr("trimtab.claims.claims", lambda: several)
        monkeypatch.setattr("trimtab.claims.verdict_on", lambda one, size, store: judge(one, size, store, {}, {}))
        return ran

    def test_passes_budgets_and_going_on(self, ran: list[tuple[str, int]], capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["claims", "run", "--all", "--dry-run"]) == 0
        told = capsys.readouterr().out
        assert "The first pass (--pass first) would run 2 experiments, some with fewer seeds: about 3 min." in told
        assert (
            "The second pass (--pass second) would run 2 experiments, 1 with all seeds, 1 with standardized "
            "inputs: about 3 min." in told
        )
        assert cli.main(["claims", "run", "--all", "--pass", "first", "--budget", "1.5"]) == 0
        assert ran == [("first", 1)]
        assert "Left: other; about 2 min." in capsys.readouterr().out
        assert cli.main(["claims", "run", "--all", "--pass", "first"]) == 0  # goes on
        assert ran == [("first", 1), ("other", 2)]
        told = capsys.readouterr().out
        assert "1 experiment has a record" in told and "Left" not in told
        assert cli.main(["claims", "run", "--all", "--pass", "second", "--dry-run"]) == 0
        told = capsys.readouterr().out
        assert "first: An experiment., with all seeds, about 1 min" in told
        assert "other: An experiment., with twice the seeds, about 4 min" in told
        assert cli.main(["claims", "run", "--all", "--pass", "second", "--budget", "3.5"]) == 0
        assert ran[2:] == [("first", 2), ("first-standard", 2)]
        assert "Left: other; about 4 min." in capsys.readouterr().out
        assert cli.main(["claims", "run", "--all", "--pass", "second"]) == 0
        assert ran[4:] == [("first", 4), ("other", 4)] and "Left" not in capsys.readouterr().out
        assert cli.main(["claims", "run", "--all"]) == 0
        assert len(ran) == 6 and "pass" not in capsys.readouterr().out

    def test_a_named_experiment_takes_a_budget_too(
        self, ran: list[tuple[str, int]], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cli.main(["claims", "run", "--experiment", "first", "--experiment", "other", "--budget", "3"]) == 0
        assert ran == [("first", 2)]
        told = capsys.readouterr().out
        assert "Left: other; about 2 min." in told and "pass" not in told

    def test_what_takes_all_of_the_budget_is_begun(
        self, ran: list[tuple[str, int]], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cli.main(["claims", "run", "--all", "--budget", "2"]) == 0
        assert ran == [("first", 2)]
        told = capsys.readouterr().out
        assert "Left: other; about 2 min." in told and "other: An experiment." not in told
        assert cli.main(["claims", "run", "--all", "--budget", "2"]) == 0
        assert ran == [("first", 2), ("other", 2)]

    def test_the_verdicts_on_claims_that_were_named_are_told(
        self, ran: list[tuple[str, int]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("trimtab.claims.claim_named", lambda name: trimtab.claims.claims()[name])
        assert cli.main(["claims", "run", "y"]) == 0
        assert "y: undecided (small, " in capsys.readouterr().out
        assert cli.main(["claims", "run", "y"]) == 0  # nothing is left to do, and that is an answer too
        told = capsys.readouterr().out
        assert ran == [("other", 2)] and "--force runs it again" in told and "y: undecided (small, " in told

    def test_a_named_experiment_can_have_its_first_seeds(self, ran: list[tuple[str, int]]) -> None:
        assert cli.main(["claims", "run", "--experiment", "first", "--experiment", "other", "--pass", "first"]) == 0
        assert ran == [("first", 1), ("other", 2)]


def test_anew_is_as_if_no_records_came_with_trimtab(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["claims", "run", "--block", "1.2", "--all", "--dry-run"]
    assert cli.main(words) == 0
    assert "3 experiments have a record" in capsys.readouterr().out
    assert cli.main([*words, "--anew"]) == 0
    told = capsys.readouterr().out
    assert "3 experiments, about" in told and "have a record" not in told
    record(experiment="fc-60-mnist").write(tmp_path / "runs" / "claims" / "results")
    assert cli.main([*words, "--anew"]) == 0  # goes on
    told = capsys.readouterr().out
    assert "1 experiment has a record" in told and "fc-60-mnist:" not in told and "fc-60-cifar10:" in told


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
                [Planned(experiment("a", 1, measured), 1), Planned(experiment("b", 1, fails), 1)],
                context(tmp_path, more=2),
                tmp_path / "results",
                finished=seen.append,
            )
        assert [path.name for path in (tmp_path / "results").iterdir()] == ["a.small.json"]
        written = Record.read(tmp_path / "results" / "a.small.json")
        assert written.numbers == {"count": {"all": {"all": 3.0}}} and written.notes == ["a"]
        assert written.command == "trimtab claims run --experiment a --size small --more-seeds 2"
        assert written.core_seconds is not None and written.core_seconds >= 0
        assert seen == [written] and written.versions["torch"] == torch.__version__

    def test_none_is_begun_that_would_end_too_late(self, tmp_path: Path) -> None:
        several = [Planned(experiment("a", 1), 1), Planned(experiment("b", 60), 60)]
        left = run(several, context(tmp_path), tmp_path / "results", deadline=time.monotonic() + 600)
        assert left == several[1:]

    def test_the_command_says_that_there_are_fewer_seeds(self, tmp_path: Path) -> None:
        def measured(findings: Findings, context: Context) -> None:
            findings.notes.append(str(context.seeds(3)))

        store = RecordStore(tmp_path, shipped=False)
        seeds, command = [], []
        for one in (experiment("a", 3, measured, seeds=(2, 3)), experiment("b", 3, measured)):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(plans, "experiment_named", lambda name, one=one: one)
                planned = plan_named([one.name], "small", store, first=True)
            run(
                planned.now,
                context(tmp_path),
                tmp_path,
                finished=lambda record: (seeds.append(record.notes[0]), command.append(record.command)),
            )
        assert seeds == ["(101, 102)", "(101, 102, 103)"]
        assert command == [
            "trimtab claims run --experiment a --size small --pass first",
            "trimtab claims run --experiment b --size small",
        ]

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
        (["run", "--experiment", "fc-60-mnist", "--pass", "second"], "--pass second is for --all or ids of claims"),
        (["run", "--all", "--pass", "second", "--force"], "leave --force out"),
        (["run", "--all", "--pass", "first", "--more-seeds", "2"], "leave --more-seeds out"),
        (["run", "nothing"], "there is no claim 'nothing'"),
        (["run", "--experiment", "fc-60-mnis"], "there is no experiment 'fc-60-mnis'; did you mean 'fc-60-mnist'?"),
        (["run", "--all", "--budget", "0"], "--budget must be a number of minutes above 0"),
        (["run", "--all", "--budget", "nan"], "--budget must be a number of minutes above 0"),
        (["show", "nothing"], "there is no claim 'nothing'"),
        (["list", "--verdict", "true"], "there is no verdict 'true'"),
        (["list", "--paper", "yours"], "argument --paper"),
        (["list", "--block", "9.9"], "there is no block '9.9'; there are 1.1, "),
        (["run", "--all", "--block", "9.9"], "there is no block '9.9'; there are 1.1, "),
        (["run", "bnp-fig1", "--paper", "bnp"], "--paper chooses among --all"),
        (["run", "--experiment", "fc-60-mnist", "--verdict", "holds"], "--verdict chooses among --all"),
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
    assert "remove it, then it can be run anew" in capsys.readouterr().err


def test_a_claim_that_nothing_can_be_run_for_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["claims", "run", "bnp-cite-rnn"]) == 0
    assert "bnp-cite-rnn has nothing to run: needs recurrent networks" in capsys.readouterr().out


def test_the_commit_is_that_of_trimtab_or_none(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        name = ["-c", "user.name=a", "-c", "user.email=a@b"]
        ran = subprocess.run(["git", *name, *words], cwd=tmp_path, check=True, capture_output=True, text=True)
        return ran.stdout.strip()

    git("init", "-q")
    file = tmp_path / "running.py"
    file.write_text("")
    git("commit", "-q", "--allow-empty", "-m", "of somebody else, with trimtab installed below")
    assert _commit(file) == ""
    git("add", "running.py")
    git("commit", "-q", "-m", "of trimtab")
    assert git("rev-parse", "HEAD").startswith(_commit(file)) and len(_commit(file)) == 10
    file.write_text("changed")
    assert _commit(file).endswith("-dirty")


def test_data_that_are_not_there(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    arguments = ["claims", "run", "--experiment", "fc-60-mnist", "--force", "--data-root", str(tmp_path / "empty")]
    assert cli.main(arguments) == 1
    assert "not run: " in capsys.readouterr().out


class TestWhatStopsACommand:
    """Each ends in a sentence, before anything is trained where that can be known."""

    @pytest.fixture
    def trains(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
        """An experiment whose training fails; the names of what was begun."""
        monkeypatch.chdir(tmp_path)
        begun: list[str] = []

        def fails(findings: Findings, given: Context) -> None:
            begun.append(given.work.name)
            raise TrainingFailed(
                "the run x failed: cannot write to the folder y: no space; name another folder with --out"
            )

        named = {name: experiment(name, 1.0, fails) for name in ("a", "b")}
        monkeypatch.setattr(plans, "experiment_named", named.__getitem__)
        return begun

    WORDS = ("claims", "run", "--experiment", "a", "--experiment", "b")

    def test_a_training_that_fails(self, trains: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main([*self.WORDS]) == 1
        assert capsys.readouterr().err == (
            "trimtab: the run x failed: cannot write to the folder y: no space; when that is mended, the same command "
            "goes on\n"
        )
        assert trains == ["a"] and not any(path.is_file() for path in Path.cwd().rglob("*"))

    @pytest.mark.parametrize("where", ["runs", "runs/claims", "runs/claims/results", "runs/claims/small"])
    def test_a_file_in_the_place_of_a_folder(
        self, where: str, trains: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        Path(where).parent.mkdir(parents=True, exist_ok=True)
        Path(where).write_text("")
        assert cli.main([*self.WORDS]) == 2
        told = capsys.readouterr().err
        assert "cannot write to runs/claims/" in told and f"{where} is no folder; remove it" in told
        assert not trains and Path(where).is_file()

    def test_records_that_are_to_be_read_from_a_folder_that_is_not_there(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for action in (["list"], ["show", "bnp-fig1"], ["report"]):
            assert cli.main(["claims", *action, "--results", str(tmp_path / "none")]) == 2
            assert "there is no folder" in capsys.readouterr().err

    def test_an_experiment_that_another_process_is_at_work_on(
        self, trains: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        with locked(Path("runs/claims/small/a")):
            assert cli.main(["claims", "run", "--experiment", "a"]) == 1
            assert "not run: a needs runs/claims/small/a for itself: another process is at work" in (
                capsys.readouterr().out
            )
            assert not trains


def test_the_folder_of_an_experiment_that_kept_nothing_is_removed(tmp_path: Path) -> None:
    run([Planned(experiment("a", 1), 1)], context(tmp_path), tmp_path / "results")
    assert not (tmp_path / "work" / "a").exists() and (tmp_path / "results" / "a.small.json").is_file()
