"""`trimtab claims run` is killed in the middle: a training is lost at most, and the record is the same."""

import json
import signal
from pathlib import Path

import pytest

from tests.processes import Command
from trimtab.claims.experiments.registry import Context, experiment
from trimtab.claims.findings import Findings
from trimtab.claims.kept import kept
from trimtab.claims.training_runs import enter_runs, train_cases
from trimtab.records.events import EVENTS

NAME = "made"
WORDS = ["claims", "run", "--experiment", NAME, "--jobs", "1"]
RUNS = 4
OF_THE_CALL = ("date", "seconds", "core_seconds", "commit")


def register() -> None:
    """An experiment of four trainings and of something that is computed seed by seed."""

    @experiment(NAME, "Four trainings on digits", small=0.1)
    def made(findings: Findings, context: Context) -> None:
        shared = {"data": "digits", "network": "small-mlp", "batch_size": 64, "steps": 300}
        cases = {method: {"method": method, "lr": 0.1} for method in ("vanilla", "bn")}
        enter_runs(findings, train_cases(context, cases, shared, context.seeds(RUNS // 2)), 10)
        for seed in context.seeds(2):
            findings.number(
                "computed", "all", kept(context.work / f"seed-{seed}.json", lambda s=seed: 1 / s), seed=seed
            )


def record_in(folder: Path) -> dict[str, object]:
    """What was recorded, without what is of the call itself."""
    content = json.loads((folder / "runs" / "claims" / "results" / f"{NAME}.small.json").read_text())
    return {name: value for name, value in content.items() if name not in OF_THE_CALL}


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="signals as on POSIX")
def test_it_goes_on_to_the_same_record(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    command = Command(WORDS, whole, register)
    assert command.end() == 0, command.streams()
    work = parts / "runs" / "claims" / "small" / NAME
    done: dict[Path, int] = {}
    for number, begun in ((signal.SIGKILL, 2), (signal.SIGTERM, 3), (signal.SIGKILL, RUNS)):
        command = Command(WORDS, parts, register)
        command.wait_until(lambda begun=begun: len(list(work.glob(f"*/{EVENTS}"))) >= begun)
        command.send(number)
        assert command.end() == {signal.SIGKILL: -9, signal.SIGTERM: 143}[number], command.streams()
        if number == signal.SIGTERM:
            assert command.streams()[1].splitlines()[-1] == "trimtab: interrupted; the same command goes on"
        ended = [path for path in work.glob(f"*/{EVENTS}") if '"finished"' in path.read_text()]
        assert len(ended) >= begun - 1  # one at a time: all that were begun but the last
        done |= {path: path.stat().st_mtime_ns for path in ended if path not in done}
    assert not (parts / "runs" / "claims" / "results").exists()
    command = Command(WORDS, parts, register)
    assert command.end() == 0, command.streams()
    assert record_in(parts) == record_in(whole)
    assert all(path.stat().st_mtime_ns == time for path, time in done.items()), "a training was made again"
    command = Command(WORDS, parts, register)
    assert command.end() == 0 and "1 experiment has a record" in command.streams()[0]
