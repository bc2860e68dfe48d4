"""`torchrun ... -m trimtab train` as it is typed: against the same run in one process, and with what can go wrong."""

import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest
import torch

from trimtab import cli
from trimtab.records import Probed, Resumed, RunEnded, Trained, read_events
from trimtab.training import checkpoint

TIMEOUT = 150  # seconds, of a machine that is busy
SMALL = ["--network", "small-mlp", "--batch-size", "20", "--lr", "0.03"]
LONG = [*SMALL, "--method", "noisy-bn", "--steps", "1000", "--quiet"]


class Torchrun:
    """So many processes with some words after `-m trimtab`, in a folder."""

    def __init__(self, processes: int, *words: str, folder: Path, **options: Any) -> None:
        command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "-m", "trimtab"]
        self._process = subprocess.Popen(
            [sys.executable, *command, *words],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Torchrun ends the processes that it has started."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.communicate(timeout=TIMEOUT)

    def end(self) -> Self:
        """Wait for its end; a hang is a failure."""
        with self:
            self.out, self.err = self._process.communicate(timeout=TIMEOUT)
        self.status = self._process.returncode
        return self

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that the processes do."""
        while not condition():
            assert self._process.poll() is None, self._process.communicate()
            time.sleep(0.01)

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def ranks(self) -> list[int]:
        """The identities of the processes that it has started, in order."""
        return sorted(
            map(int, Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split())
        )

    @property
    def statuses(self) -> set[int]:
        """The exit statuses of the processes, as torchrun reports them."""
        return {int(status) for status in re.findall(r"exitcode +: (-?\d+)", self.err)}

    @property
    def sentences(self) -> list[str]:
        """What the processes have said is wrong."""
        return [line for line in self.err.splitlines() if line.startswith("trimtab: ")]


def saved(run: Path) -> dict[str, Any]:
    state: dict[str, Any] = checkpoint.load(run / "checkpoint.pt", torch.device("cpu"))["session"]
    return state


def check_same(ours: Path, theirs: Path, *, to_the_bit: bool = False) -> None:
    one, other = saved(ours)["model"], saved(theirs)["model"]
    assert one.keys() == other.keys()
    for name, value in one.items():
        same = torch.equal(value, other[name]) if to_the_bit else torch.allclose(value, other[name], atol=1e-5)
        assert same, name


def has_trained(run: Path) -> Callable[[], bool]:
    records = run / "events.jsonl"
    return lambda: records.exists() and b'"trained"' in records.read_bytes()


@pytest.mark.slow
def test_two_processes(tmp_path: Path) -> None:
    words = ["train", *SMALL, "--method", "bnp", "--steps", "20"]
    done = Torchrun(2, *words, "--out", "two", folder=tmp_path).end()
    assert done.status == 0, done.err
    assert done.out.count("Finished 20 steps") == 1
    assert done.err.count("2 processes with 10 samples each") == 1
    assert cli.main([*words, "--quiet", "--out", str(tmp_path / "one")]) == 0
    check_same(tmp_path / "two", tmp_path / "one")
    ours, theirs = (
        [e for e in read_events(tmp_path / f / "events.jsonl") if isinstance(e, Trained)] for f in ("two", "one")
    )
    assert [e.step for e in ours] == [e.step for e in theirs]
    assert [e.loss for e in ours] == pytest.approx([e.loss for e in theirs], rel=1e-5)
    assert [e.accuracy for e in ours] == [e.accuracy for e in theirs]


@pytest.mark.slow
def test_one_process_is_the_run_without_torchrun(tmp_path: Path) -> None:
    words = ["train", *SMALL, "--method", "noisy-bn", "--steps", "20", "--quiet"]
    assert Torchrun(1, *words, "--out", "ours", folder=tmp_path).end().status == 0
    assert cli.main([*words, "--out", str(tmp_path / "theirs")]) == 0
    check_same(tmp_path / "ours", tmp_path / "theirs", to_the_bit=True)


@pytest.mark.slow
def test_another_number_of_processes_goes_on(tmp_path: Path) -> None:
    """Two, then three, then one without torchrun, within an epoch."""
    words = ["train", *SMALL, "--method", "bnp", "--momentum", "0.5", "--quiet", "--log-every", "7"]
    assert cli.main([*words, "--steps", "90", "--out", str(tmp_path / "whole")]) == 0
    for steps, processes in ((20, 2), (55, 3)):
        more = ["--resume"] if steps > 20 else []
        done = Torchrun(processes, *words, "--steps", str(steps), "--out", "run", *more, folder=tmp_path).end()
        assert done.status == 0, done.err
        assert len(saved(tmp_path / "run")["processes"]) == processes
    assert cli.main([*words, "--steps", "90", "--resume", "--out", str(tmp_path / "run")]) == 0
    check_same(tmp_path / "run", tmp_path / "whole")
    ours, theirs = (list(read_events(tmp_path / run / "events.jsonl")) for run in ("run", "whole"))
    assert "3 processes" in next(e for e in ours if isinstance(e, Resumed)).execution
    losses = [{e.step: e.loss for e in events if isinstance(e, Trained)} for events in (ours, theirs)]
    assert {step: losses[0][step] for step in losses[1]} == pytest.approx(losses[1], rel=1e-4)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    assert Torchrun(2, "train", *LONG, "--out", "run", folder=folder).end().status == 0
    return folder / "run"


def check_going_on(run: Path, uninterrupted: Path) -> None:
    done = Torchrun(2, "train", "--resume", "--quiet", "--out", run.name, folder=run.parent).end()
    assert done.status == 0, done.err
    check_same(run, uninterrupted, to_the_bit=True)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_a_run_to_go_on_with(number: int, uninterrupted: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with Torchrun(2, "train", *LONG, "--out", "run", folder=tmp_path) as process:
        process.wait_until(has_trained(run))
        process.send(number)
        process.end()
    assert process.out.count("Interrupted at step") == 1
    assert "go on with: torchrun --nproc-per-node 2 -m trimtab train --resume --out run" in process.out
    last = list(read_events(run / "events.jsonl"))[-1]
    assert isinstance(last, RunEnded)
    assert (last.verdict, last.step) == ("interrupted", saved(run)["step"])
    check_going_on(run, uninterrupted)


@pytest.mark.slow
def test_an_error_in_one_process_ends_all(tmp_path: Path) -> None:
    """Of five samples the third process has one, by which nothing can be normalized; the others could go on."""
    words = ["train", "--network", "small-mlp", "--method", "bn", "--batch-size", "5", "--quiet", "--out", "run"]
    done = Torchrun(3, *words, folder=tmp_path).end()
    assert done.status != 0
    assert {2} <= done.statuses <= {2, -signal.SIGTERM}
    assert [line for line in done.sentences if "needs more than one value" in line] == done.sentences[1:]
    assert len(done.sentences) == 2, done.sentences  # the first one says by which samples bn normalizes
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_is_killed(rank: int, uninterrupted: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with Torchrun(2, "train", *LONG, "--checkpoint-seconds", "0", "--out", "run", folder=tmp_path) as process:
        process.wait_until((run / "checkpoint.pt").exists)
        os.kill(process.ranks()[rank], signal.SIGKILL)
        process.end()
    survivor = process.statuses - {-signal.SIGKILL}
    assert survivor <= {1, 143, -signal.SIGTERM}, process.err  # torchrun ends it by SIGTERM if it notices first
    if survivor == {1}:
        assert "another process has ended; go on with: torchrun" in process.sentences[-1]
        assert len(process.sentences) == 2, process.sentences  # the first one says by which samples noisy-bn normalizes
    check_going_on(run, uninterrupted)


@pytest.mark.slow
def test_a_full_disk(tmp_path: Path) -> None:
    """Only the first process writes."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    words = ["train", *SMALL, "--method", "vanilla", "--steps", "20", "--quiet", "--out", "run"]
    done = Torchrun(2, *words, folder=tmp_path, preexec_fn=limit).end()
    assert {1} <= done.statuses <= {1, -signal.SIGTERM}
    assert len(done.sentences) == 1
    assert "cannot write to" in done.sentences[0]
    assert not (tmp_path / "run" / "checkpoint.pt").exists()


@pytest.mark.slow
def test_divergence_is_a_verdict_of_all(tmp_path: Path) -> None:
    words = ["train", *SMALL[:-2], "--lr", "1e9", "--method", "vanilla", "--quiet", "--out", "run"]
    done = Torchrun(2, *words, folder=tmp_path).end()
    assert done.out.count("Diverged at step") == 1
    assert {3} <= done.statuses <= {3, -signal.SIGTERM}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["compare"], "compare does not run under torchrun"),
        (["train", "--bogus"], "unrecognized arguments: --bogus"),
        (["train", "--lr", "fast"], "lr: must be a number, not 'fast'"),
        (["train", "--data", "cifar10", "--network", "cnn5"], "cifar10"),
        (["train", "--batch-size", "1", "--method", "bn"], "a batch of 1 has no sample for some of 2 processes"),
        (["train", "--resume", "--out", "nothing"], "there is no run in nothing"),
        (["train", "--out", "/dev/null/run"], "cannot write to"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_refused_is_refused_once(words: list[str], sentence: str, tmp_path: Path) -> None:
    done = Torchrun(2, *words, folder=tmp_path).end()
    assert done.out == ""
    assert len(done.sentences) == 1, done.err
    assert sentence in done.sentences[0]
    assert {2} <= done.statuses <= {2, -signal.SIGTERM}  # torchrun may end a process before it ends itself
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_what_is_at_work_or_other_in_the_folder_is_refused(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with Torchrun(2, "train", *LONG, "--steps", "1000000", "--out", "run", folder=tmp_path) as working:
        working.wait_until(has_trained(run))
        second = Torchrun(2, "train", "--resume", "--out", "run", folder=tmp_path).end()
        assert "another process is at work in run" in second.sentences[0]
        assert second.statuses == {2}
        working.send(signal.SIGTERM)
        working.end()
    before = (run / "checkpoint.pt").read_bytes()
    other = Torchrun(3, "train", "--resume", "--method", "gn", "--out", "run", folder=tmp_path).end()
    assert len(other.sentences) == 1
    assert "has method 'noisy-bn', not 'gn'" in other.sentences[0]
    assert (run / "checkpoint.pt").read_bytes() == before


@pytest.mark.slow
def test_a_dry_run_and_probes(tmp_path: Path) -> None:
    words = ["train", *SMALL, "--method", "bnp", "--steps", "4", "--probe", "landscape,activations", "--probe-at", "2"]
    done = Torchrun(2, *words, "--dry-run", folder=tmp_path).end()
    assert done.status == 0, done.err
    assert done.out.count("2 processes with 10 samples each") == 1
    assert list(tmp_path.iterdir()) == []
    assert Torchrun(2, *words, "--quiet", "--out", "two", folder=tmp_path).end().status == 0
    assert cli.main([*words, "--quiet", "--out", str(tmp_path / "one")]) == 0
    two, one = (
        [e for e in read_events(tmp_path / f / "events.jsonl") if isinstance(e, Probed)] for f in ("two", "one")
    )
    assert [(e.step, e.probe, e.result["problem"]) for e in two] == [(e.step, e.probe, None) for e in one]
    assert two[0].result["loss"] == pytest.approx(one[0].result["loss"], rel=1e-5)
