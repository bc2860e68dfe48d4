"""Comparisons, on a small grid of digits."""

import multiprocessing
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from tests.processes import SERVER, Command
from trimtab.data import Split, load
from trimtab.records import EVENTS, RESULTS, Candidate, Comparison, Evaluated, History
from trimtab.training import compare
from trimtab.training.cells import best_rate, cell_of
from trimtab.training.compare import ComparisonRunner
from trimtab.training.grid import Grid, PlannedRun, setups
from trimtab.training.run import CHECKPOINT, Run
from trimtab.training.session import Session
from trimtab.training.workers import local_pool
from trimtab.training.workers import task as task_module
from trimtab.training.workers.local_pool import LocalEngine, LocalPool, default_jobs
from trimtab.training.workers.pool import TrainingFailed
from trimtab.training.workers.task import Outcome, Task, outcome_of, train

CPU = torch.device("cpu")
GRID = Grid(
    networks=("small-mlp",),
    methods=("bn", "bnp"),
    batch_sizes=(64, 1),
    epochs={64: 2, 1: 1},
    lrs=(0.1, 0.3),
    seeds=2,
    validation=697,  # 700 samples are left to train on
)
SMALL = replace(GRID, methods=("bnp",), batch_sizes=(64,), epochs={64: 1}, validation=None)


def run(grid: Grid, out: Path, jobs: int = 2, force: bool = False) -> Comparison:
    return ComparisonRunner(grid, out, command="c", device=CPU, jobs=jobs, force=force).run(lambda _: "Nothing.")


pytestmark = pytest.mark.usefixtures("forked_workers")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, forked_workers: None) -> Path:
    """The folder of a finished comparison of `SMALL`."""
    folder = tmp_path_factory.mktemp("whole")
    run(SMALL, folder)
    return folder


def times(out: Path) -> dict[str, int]:
    return {path.parent.name: path.stat().st_mtime_ns for path in (out / "runs").rglob(EVENTS)}


def test_a_comparison_is_what_its_runs_are_one_by_one(tmp_path: Path) -> None:
    others = set(multiprocessing.active_children())  # of other tests
    progress: list[compare.ComparisonProgress] = []
    comparison = ComparisonRunner(GRID, tmp_path / "a", command="c", device=CPU, jobs=2, show=progress.append).run(
        lambda c: "!"
    )
    assert comparison == Comparison.read(tmp_path / "a")
    assert comparison.finished
    assert comparison.conclusion == "!"
    assert [(c.batch_size, c.method, len(c.trials)) for c in comparison.cells] == [
        *((64, "bn", 2), (64, "bnp", 2)),
        *((1, "bn", 0), (1, "bnp", 2)),
    ]
    impossible = comparison.cells[2]
    assert impossible.why_not is not None and "more than one value for each" in impossible.why_not
    assert impossible.lr is None
    for place, cell in zip(setups(GRID, load("digits")), comparison.cells, strict=True):
        if cell.lr is None:
            continue
        values = {}
        for planned in place.tuning():
            ending = Run(Session(planned.settings, CPU)).train()
            values[planned.settings.lr] = ending.evaluations[-1].accuracy, -ending.evaluations[-1].loss
        assert cell.lr == max(values, key=lambda lr: values[lr])
        for planned, trial in zip(place.final(cell.lr), cell.trials, strict=True):
            assert trial.value == Run(Session(planned.settings, CPU)).train().evaluations[-1].accuracy
            assert len(History.read(tmp_path / "a" / "runs" / trial.run).evaluated) == 20
    assert progress[-1].done == progress[-1].total
    assert not list((tmp_path / "a").rglob(CHECKPOINT))
    assert set(multiprocessing.active_children()) <= others


def test_runs_that_are_done_are_not_done_again(tmp_path: Path, whole: Path) -> None:
    first = Comparison.read(whole)
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    done = times(tmp_path)
    assert run(SMALL, tmp_path) == first
    assert times(tmp_path) == done
    more = run(replace(SMALL, seeds=3, lrs=(0.1, 0.2, 0.3)), tmp_path)
    assert len(more.cells[0].trials) == 3
    assert {name: when for name, when in times(tmp_path).items() if name in done} == done
    (tmp_path / "runs" / "mine.txt").write_text("")
    assert run(SMALL, tmp_path, force=True) == first
    assert (tmp_path / "runs" / "mine.txt").exists()
    assert set(times(tmp_path)) == set(done)
    assert not set(times(tmp_path).values()) & set(done.values())


def test_test_data_decide_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = load("digits")
    (place,) = setups(SMALL, dataset)
    cells = []
    for folder, inputs in (("a", dataset.test.inputs), ("b", torch.zeros_like(dataset.test.inputs))):
        changed = replace(dataset, test=Split(inputs, dataset.test.targets))
        monkeypatch.setattr(task_module, "loaded", lambda *_, changed=changed: changed)
        outcomes = {}
        for planned in [*place.tuning(), place.final(0.3)[0]]:
            came_out = train(Task(planned, tmp_path / folder / planned.name, "c", CPU, None))
            assert came_out is not None
            outcomes[planned.name] = came_out
        cells.append(cell_of(place, outcomes, 10))
    assert cells[0].candidates == cells[1].candidates
    assert cells[0].lr == cells[1].lr == 0.3
    assert cells[0].values != cells[1].values


TOLD = "--network small-mlp --methods vanilla,bnp --batch-sizes 16,8 --epochs 1 --lrs 0.01,0.03 --seeds 1"
COMMAND = ["compare", *TOLD.split(), "--jobs", "2", "--out", "out"]


@pytest.fixture(scope="module")
def left_alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a comparison from the command line, in new processes without any help of these tests."""
    folder = tmp_path_factory.mktemp("alone")
    subprocess.run([sys.executable, "-m", "trimtab", *COMMAND], check=True, capture_output=True, cwd=folder)
    return folder / "out"


@pytest.mark.parametrize(
    "how",
    [
        signal.SIGKILL,
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_a_comparison_that_is_stopped_goes_on_to_the_same_results(
    how: signal.Signals, tmp_path: Path, left_alone: Path
) -> None:
    out = tmp_path / "out"
    for begun in (1, 4, 9):  # of 12 runs, when it is stopped
        process = Command(COMMAND, tmp_path)
        process.wait_until(lambda begun=begun: len(list(out.glob(f"runs/*/{EVENTS}"))) >= begun)
        process.send(how, to_group=how == signal.SIGINT)
        ended = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[how]
        assert process.end() == ended, (begun, process.streams())
        if how != signal.SIGKILL:
            *progress, sentence = process.streams()[1].splitlines()
            assert sentence == "trimtab: interrupted; the same command goes on with what is in out"
            assert [line for line in progress if not line.startswith("all runs: step ")] == []
    assert Command(COMMAND, tmp_path).end() == 0
    assert (out / RESULTS).read_text() == (left_alone / RESULTS).read_text()
    for history in map(History.read, (left_alone / "runs").iterdir()):
        again = History.read(out / "runs" / history.folder.name)
        assert [event.loss for event in again.trained] == [event.loss for event in history.trained]
        assert [event.loss for event in again.evaluated] == [event.loss for event in history.evaluated]


def test_results_can_be_read_while_it_goes_on(tmp_path: Path) -> None:
    runner = ComparisonRunner(SMALL, tmp_path, command="c", device=CPU, jobs=1)
    seen: list[Comparison] = []
    runner._show = lambda stand: seen.append(Comparison.read(tmp_path))
    runner.run(lambda _: "")
    assert not seen[0].finished
    assert [len(c.cells[0].candidates) for c in seen] == sorted(len(c.cells[0].candidates) for c in seen)
    assert {0, 1, 2} <= {len(c.cells[0].candidates) for c in seen}


def outcome(accuracy: float, loss: float = 1.0) -> Outcome:
    return Outcome(Evaluated(1, 1.0, "validation", loss, accuracy, 0.0))


def test_a_run_that_diverged_counts_as_one_that_guesses() -> None:
    (place,) = setups(SMALL, load("digits"))
    low, high = place.tuning()
    outcomes = {low.name: outcome(0.5), high.name: Outcome()}
    assert cell_of(place, {low.name: outcome(0.5)}, 10).lr is None
    cell = cell_of(place, outcomes, 10)
    assert (cell.lr, cell.trials) == (0.1, ())
    assert [candidate.value for candidate in cell.candidates] == [0.5, None]
    one, two = place.final(0.1)
    cell = cell_of(place, {**outcomes, one.name: outcome(0.7), two.name: Outcome()}, 10)
    assert cell.values == (0.7, 0.1)
    assert [trial.diverged for trial in cell.trials] == [False, True]


def test_the_rate_is_chosen_by_value_then_by_loss() -> None:
    def candidate(lr: float, value: float | None, loss: float | None) -> Candidate:
        return Candidate(lr, value, loss, "")

    assert best_rate([candidate(1, 0.9, 1.0), candidate(2, 0.8, 0.1)], lower=False) == 1
    assert best_rate([candidate(1, 0.9, 1.0), candidate(2, 0.9, 0.1)], lower=False) == 2
    assert best_rate([candidate(1, None, None), candidate(2, 0.1, 9.0)], lower=False) == 2
    assert best_rate([candidate(1, 3.0, 3.0), candidate(2, 2.0, 2.0)], lower=True) == 2
    assert best_rate([candidate(1, None, None), candidate(2, None, None)], lower=True) == 1


def test_regression_is_compared_by_loss(tmp_path: Path) -> None:
    grid = Grid(
        data="gaussian", networks=("dln25",), methods=("vanilla",), lrs=(1e-7, 1e3), seeds=1, shared={"steps": 3}
    )
    comparison = run(grid, tmp_path)
    assert comparison.metric == "loss"
    assert comparison.cells[0].lr == 1e-7
    assert [candidate.value is None for candidate in comparison.cells[0].candidates] == [False, True]
    assert 0 < comparison.cells[0].values[0] < float("inf")


def test_when_nothing_can_be_trained(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none of these can be trained: .*more than one value"):
        run(replace(GRID, methods=("bn",), batch_sizes=(1,)), tmp_path)


def test_folders_of_others(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("")
    with pytest.raises(ValueError, match=r"holds other files \(mine.txt\)"):
        run(SMALL, tmp_path)
    with pytest.raises(ValueError, match="holds something else than a comparison"):
        run(SMALL, tmp_path / "mine.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    (tmp_path / RESULTS).write_text('{"mine": 1}')
    with pytest.raises(ValueError, match="holds something else than a comparison"):
        run(SMALL, tmp_path, force=True)
    assert (tmp_path / RESULTS).read_text() == '{"mine": 1}'


def test_a_first_write_that_was_cut_off_is_no_hindrance(tmp_path: Path, whole: Path) -> None:
    (tmp_path / f".{RESULTS}.unfinished").write_text("{")
    assert run(SMALL, tmp_path) == Comparison.read(whole)


def test_two_at_once(tmp_path: Path) -> None:
    with compare.folders.locked(tmp_path), pytest.raises(ValueError, match="another process is at work"):
        run(SMALL, tmp_path)


def test_what_is_broken_is_not_taken_for_done(tmp_path: Path, whole: Path) -> None:
    comparison = Comparison.read(whole)
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    (setup,) = setups(SMALL, load("digits"))
    first, second = setup.final(comparison.cells[0].lr or 0.0)
    folder = tmp_path / "runs" / first.name
    assert outcome_of(folder, first.settings) == Outcome(History.read(folder).evaluated[-1])
    assert outcome_of(folder, replace(first.settings, rho=0.5)) is None
    text = (folder / EVENTS).read_text()
    for broken in ("", "nonsense\n", text.rsplit("\n", 2)[0] + "\n"):
        (folder / EVENTS).write_text(broken)
        assert outcome_of(folder, first.settings) is None
    (folder / CHECKPOINT).write_bytes(b"half a checkpoint")
    (tmp_path / "runs" / second.name / "settings.yaml").unlink()
    assert run(SMALL, tmp_path) == comparison


def test_what_is_known_is_never_less_than_before(tmp_path: Path, whole: Path) -> None:
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    seen: list[Comparison] = []
    more = replace(SMALL, methods=("bnp", "vanilla"))
    runner = ComparisonRunner(
        more, tmp_path, command="c", device=CPU, show=lambda _: seen.append(Comparison.read(tmp_path))
    )
    runner.run(lambda _: "")
    assert seen
    assert all(one.cells[0] == seen[-1].cells[0] for one in seen)


def test_results_do_not_depend_on_how_many_run_at_a_time(tmp_path: Path, whole: Path) -> None:
    alone = run(SMALL, tmp_path, jobs=1)
    assert replace(alone, side_by_side=2) == Comparison.read(whole)


def _tasks(tmp_path: Path) -> list[Task]:
    (place,) = setups(SMALL, load("digits"))
    return [Task(planned, tmp_path / planned.name, "c", CPU, None) for planned in place.tuning()]


def test_a_process_that_dies_is_replaced(tmp_path: Path) -> None:
    killed: list[str] = []
    with LocalEngine().pool(2, 1, CPU) as pool:

        def kill_once(task: Task, step: int) -> None:
            if task.run.name not in killed:
                killed.append(task.run.name)
                next(process for process, busy in pool._busy.values() if busy == task).kill()

        found = dict(pool.run(_tasks(tmp_path), kill_once))
    assert len(killed) == 2
    assert {task.run.name for task in found} == set(killed)
    plain = {task.run.name: train(replace(task, folder=tmp_path / "plain" / task.run.name)) for task in found}
    for task, came_out in found.items():
        expected = plain[task.run.name]
        assert expected is not None and expected.last is not None and came_out.last is not None
        assert (came_out.last.loss, came_out.last.accuracy) == (expected.last.loss, expected.last.accuracy)


def test_a_process_that_dies_while_it_waits_is_replaced(tmp_path: Path) -> None:
    first, second = _tasks(tmp_path)
    with LocalEngine().pool(1, 1, CPU) as pool:
        list(pool.run([first], lambda *_: None))
        for process, _ in pool._free:
            process.kill()
            process.join()
        assert len(list(pool.run([second], lambda *_: None))) == 1


def test_a_process_that_dies_twice_is_told(tmp_path: Path) -> None:
    with LocalEngine().pool(1, 1, CPU) as pool:

        def kill(task: Task, step: int) -> None:
            next(process for process, busy in pool._busy.values() if busy == task).kill()

        with pytest.raises(TrainingFailed, match=r"small-mlp-bnp-.* died twice"):
            list(pool.run(_tasks(tmp_path)[:1], kill))


def test_an_error_of_a_run_is_told_with_its_name(tmp_path: Path) -> None:
    task, other = _tasks(tmp_path)
    (tmp_path / "file").write_text("")
    impossible = replace(other, run=PlannedRun(replace(other.run.settings, init="nonsense"), 1))
    with LocalEngine().pool(1, 1, CPU) as pool:
        ((_, came_out),) = pool.run([impossible], lambda *_: None)
        assert came_out.why_not is not None and "nonsense" in came_out.why_not
        with pytest.raises(TrainingFailed, match=rf"the run {task.run.name} failed: (.|\n)*cannot write to the folder"):
            list(pool.run([replace(task, folder=tmp_path / "file")], lambda *_: None))


@pytest.mark.slow
def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    parent = SERVER.Process(target=_start_workers, args=(tmp_path / "pids",))
    parent.start()
    while not (tmp_path / "pids").exists():
        assert parent.is_alive()
        time.sleep(0.01)
    children = [int(word) for word in (tmp_path / "pids").read_text().split()]
    assert all(map(_alive, children))
    parent.kill()
    parent.join()
    deadline = time.monotonic() + 60
    while any(map(_alive, children)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _start_workers(path: Path) -> None:
    workers = LocalPool(2, 1)
    started = [workers._start() for _ in range(2)]
    path.with_suffix(".unfinished").write_text(" ".join(str(process.pid) for process, _ in started))
    path.with_suffix(".unfinished").rename(path)
    signal.pause()


def _alive(child: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{child}/status").read_text()
    except OSError:
        return False


def test_cores_are_shared_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))  # where no service is
    monkeypatch.setattr(local_pool, "usable_cores", lambda: 16)
    monkeypatch.setattr(local_pool, "memory", lambda: 100 << 30)
    assert default_jobs(CPU) == 16
    assert default_jobs(CPU, 4) == 4
    assert default_jobs(CPU, 40) == 1
    assert default_jobs(torch.device("cuda")) == 4
    monkeypatch.setattr(local_pool, "memory", lambda: 3 << 30)
    assert default_jobs(CPU) == 3


@pytest.mark.slow
def test_images_are_decoded_by_processes_of_the_workers(tmp_path: Path) -> None:
    for part in ("train", "val"):
        for kind in "ab":
            folder = tmp_path / "data" / "imagefolder" / part / kind
            folder.mkdir(parents=True)
            for number in range(4):
                Image.new("RGB", (32, 32), (9 * number, 50, 90)).save(folder / f"{number}.png")
    grid = Grid(
        data="imagefolder",
        networks=("small-cnn",),
        methods=("vanilla",),
        batch_sizes=(4,),
        lrs=(0.01,),
        seeds=1,
        evaluations=1,
        shared={"epochs": 1},
    )
    runner = ComparisonRunner(grid, tmp_path / "out", command="c", device=CPU, data_root=tmp_path / "data")
    assert len(runner.run(lambda _: "").cells[0].trials) == 1
