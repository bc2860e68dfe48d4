"""Ray as the engine of comparisons: the same results as those of local processes, whatever is killed or stopped."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.bad_inputs.helpers import assert_refused
from trimtab.data import load
from trimtab.records import EVENTS, RESULTS, Comparison, History, read_events
from trimtab.training.compare import ComparisonProgress, ComparisonRunner
from trimtab.training.grid import Grid, PlannedRun, setups
from trimtab.training.run import CHECKPOINT
from trimtab.training.workers.engines import engine_named
from trimtab.training.workers.local_pool import LocalEngine
from trimtab.training.workers.pool import TrainingFailed
from trimtab.training.workers.ray_pool import MARK, RayPool
from trimtab.training.workers.task import Task, train

CPU = torch.device("cpu")
GRID = Grid(
    networks=("small-mlp",),
    methods=("bn", "bnp"),
    batch_sizes=(64, 1),
    epochs={64: 1, 1: 1},
    lrs=(0.1, 0.3),
    seeds=2,
    validation=1097,  # 300 samples are left to train on
)
EXAMPLE = Path(__file__).parents[2] / "examples" / "ray_compare.py"
TOLD = "--network small-mlp --methods vanilla,bnp --batch-sizes 8 --epochs 1 --lrs 0.01,0.03 --seeds 1 --jobs 2"
slow = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def pool() -> Iterator[RayPool]:
    """A pool on a Ray that these tests share."""
    pytest.importorskip("ray", reason="ray is not installed; it is in the dev extra")
    with engine_named("ray").pool(2, 1, CPU) as made:
        assert isinstance(made, RayPool)
        yield made


@pytest.fixture
def tasks(tmp_path: Path) -> list[Task]:
    """Two runs that take many seconds, so that they are under way whenever a test looks for them."""
    grid = replace(GRID, validation=None, methods=("bnp",), batch_sizes=(2,), epochs={2: 6})
    (place,) = setups(grid, load("digits"))
    return [Task(planned, tmp_path / "runs" / planned.name, "c", CPU, None) for planned in place.tuning()]


def losses(folder: Path) -> list[float]:
    history = History.read(folder)
    return [event.loss for event in (*history.trained, *history.evaluated)]


def workers(name: str = "ray::_train") -> list[int]:
    import psutil

    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has ended meanwhile
            words = process.cmdline()
            found += [process.pid] if words and words[0].startswith(name) else []
    return found


def kill_hard(pid: int) -> None:
    with suppress(ProcessLookupError):  # it has ended meanwhile
        os.kill(pid, signal.SIGKILL)


def assert_as_alone(task: Task, tmp_path: Path) -> None:
    alone = replace(task, folder=tmp_path / "alone" / task.run.name)
    train(alone)
    assert losses(task.folder) == losses(alone.folder)


class TestOnRay:
    pytestmark = slow

    def test_cells_are_those_of_local_workers(self, pool: RayPool, tmp_path: Path) -> None:
        seen: list[ComparisonProgress] = []
        found = {}
        for engine in (engine_named("ray"), LocalEngine()):
            out = tmp_path / type(engine).__name__
            runner = ComparisonRunner(GRID, out, command="c", device=CPU, jobs=2, engine=engine, show=seen.append)
            found[out.name] = runner.run(lambda _: "!")
            assert seen[-1].done == seen[-1].total
            assert not list(out.rglob(CHECKPOINT)) and not list(out.rglob(MARK))
        assert found["RayEngine"] == found["LocalEngine"] == Comparison.read(tmp_path / "RayEngine")
        assert found["RayEngine"].cells[2].why_not is not None

    def test_a_killed_worker_goes_on_from_its_checkpoint(
        self, pool: RayPool, tasks: list[Task], tmp_path: Path
    ) -> None:
        task = tasks[0]

        def interrupt(task: Task, step: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            list(pool.run([task], interrupt))
        pool.stop()
        assert (task.folder / CHECKPOINT).exists()
        stopped = History.read(task.folder).ended
        assert stopped is not None and stopped.verdict == "interrupted"
        killed: list[int] = []

        def kill_once(task: Task, step: int) -> None:
            if not killed and step > stopped.step:
                killed.extend(workers())
                for pid in killed:
                    kill_hard(pid)

        ((_, outcome),) = pool.run([task], kill_once)
        assert killed and outcome.last is not None
        resumed = [event.step for event in read_events(task.folder / EVENTS) if event.kind == "resumed"]
        assert resumed == [stopped.step]  # what the killed one had done since then is done again
        assert_as_alone(task, tmp_path)

    def test_workers_that_are_killed_beside_each_other(self, pool: RayPool, tasks: list[Task], tmp_path: Path) -> None:
        killed: list[int] = []

        def kill_all(task: Task, step: int) -> None:
            if not killed:
                killed.extend(workers())
                for pid in killed:
                    kill_hard(pid)

        assert len(list(pool.run(tasks, kill_all))) == 2 and killed
        for task in tasks:
            assert_as_alone(task, tmp_path)

    def test_a_worker_that_dies_twice_is_told(self, pool: RayPool, tasks: list[Task]) -> None:
        def kill(task: Task, step: int) -> None:
            for pid in workers():
                kill_hard(pid)

        with pytest.raises(TrainingFailed, match=r"small-mlp-bnp-.* died twice"):
            list(pool.run(tasks[:1], kill))

    def test_a_node_without_the_data_or_the_folder(self, pool: RayPool, tasks: list[Task], tmp_path: Path) -> None:
        task = tasks[0]
        elsewhere = replace(task, run=PlannedRun(replace(task.run.settings, data="cifar10"), 1), data_root=tmp_path)
        with pytest.raises(TrainingFailed, match=r"the node \S+ lacks the data: cifar10 was not found: looked in "):
            list(pool.run([elsewhere], lambda *_: None))
        (tmp_path / "runs" / MARK).write_text("of another machine")  # as where each has a folder of that name
        with pytest.raises(TrainingFailed, match=r"the node \S+ does not see \S+runs; name a folder that all nodes"):
            list(pool.run([task], lambda *_: None))
        pool.stop()
        impossible = replace(task, run=PlannedRun(replace(task.run.settings, init="nonsense"), 1))
        ((_, outcome),) = pool.run([impossible], lambda *_: None)
        assert outcome.why_not is not None and "nonsense" in outcome.why_not

    def test_an_address_and_two_comparisons_at_once(self, pool: RayPool, tasks: list[Task], tmp_path: Path) -> None:
        import ray

        address = ray.get_runtime_context().gcs_address
        words = ["compare", *TOLD.split(), "--engine", "ray", "--ray-address", address, "--out", "out", "--json"]
        with subprocess.Popen(
            [sys.executable, "-m", "trimtab", *words], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as other:
            assert len(list(pool.run(tasks, lambda *_: None))) == 2
            printed, error = other.communicate(timeout=300)
        assert other.returncode == 0, error
        assert printed.decode() == (tmp_path / "out" / RESULTS).read_text()
        for task in tasks:
            assert_as_alone(task, tmp_path)

    def test_what_no_node_can_train(self, pool: RayPool) -> None:
        with pytest.raises(ValueError, match="no node of Ray has 4000 cores, but 2 at most; give --threads so many"):
            engine_named("ray").default_jobs(CPU, 4000)
        with pytest.raises(ValueError, match="no node of Ray has a GPU"):
            engine_named("ray").default_jobs(torch.device("cuda"), 1)
        assert engine_named("ray").default_jobs(CPU, 1) == 2


class TestCommand:
    pytestmark = slow

    def test_stopped_by_ctrl_c_and_gone_on_with(self, tmp_path: Path) -> None:
        pytest.importorskip("ray", reason="ray is not installed; it is in the dev extra")
        command = [sys.executable, "-m", "trimtab", "compare", *TOLD.split(), "--engine", "ray", "--out"]
        local = [word for word in command if word not in ("--engine", "ray")]
        subprocess.run([*local, "local"], check=True, capture_output=True, cwd=tmp_path, timeout=300)
        out = tmp_path / "out"
        for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            with subprocess.Popen(
                [*command, "out"],
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                process_group=0,
                preexec_fn=lambda: signal.signal(
                    signal.SIGINT, signal.SIG_DFL
                ),  # ignored if tests run in the background
            ) as process:
                before = len(list(out.glob(f"runs/*/{EVENTS}")))
                while len(list(out.glob(f"runs/*/{EVENTS}"))) == before and process.poll() is None:
                    time.sleep(0.05)
                (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
                printed, error = process.communicate(timeout=300)
            assert (process.returncode, printed) == (status, b""), error
            *progress, sentence = error.decode().splitlines()
            assert sentence == "trimtab: interrupted; the same command goes on with what is in out"
            assert [line for line in progress if not line.startswith("all runs: step ")] == []
            assert not list(out.rglob(MARK))
        subprocess.run([*command, "out"], check=True, capture_output=True, cwd=tmp_path, timeout=300)
        assert Comparison.read(out).cells == Comparison.read(tmp_path / "local").cells

    def test_the_example(self, tmp_path: Path) -> None:
        pytest.importorskip("ray", reason="ray is not installed; it is in the dev extra")
        assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) < 60
        done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, cwd=tmp_path, timeout=300, text=True)
        assert done.returncode == 0, done.stderr
        *cells, verdict = done.stdout.splitlines()
        assert verdict == "the same results"
        assert [float(re.findall(r"accuracy ([\d.]+)", cell)[0]) > 0.8 for cell in cells] == [True, True]
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--engine", "slurm"], "argument --engine: invalid choice: 'slurm' (choose from"),
        (["--ray-address", "auto"], "--ray-address is where Ray runs; give --engine ray with it, or leave it out"),
        (
            ["--engine", "ray", "--ray-address", "ray://head:10001"],
            "is HOST:PORT, or auto on one of its machines, not ",
        ),
        (["--engine", "ray", "--ray-address", ""], "is HOST:PORT, or auto on one of its machines, not ''"),
        (["--engine", "ray", "--ray-address", "127.0.0.1:1"], "no Ray answers at 127.0.0.1:1: Connection refused; "),
        (["--engine", "ray", "--ray-address", "127.0.0.1:99999"], "no Ray answers at 127.0.0.1:99999: "),
    ],
)
def test_refused(
    words: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("ray", reason="ray is not installed; it is in the dev extra")
    monkeypatch.chdir(tmp_path)
    assert_refused(["compare", *words], re.escape(sentence), capsys, tmp_path)


def test_without_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)
    sentence = "this needs ray; pip install '.[ray]' in trimtab's source folder gets it"
    assert_refused(["compare", "--engine", "ray"], re.escape(sentence), capsys, tmp_path)
    with pytest.raises(ModuleNotFoundError, match=re.escape(sentence)):
        engine_named("ray")
    with pytest.raises(ValueError, match="engine must be one of local, ray, not 'slurm'"):
        engine_named("slurm")
