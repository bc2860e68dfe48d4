"""How commands end that are stopped on the way: by a disk, a pipe or a signal, and names that are hard to print."""

import errno
import io
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.bad_inputs.helpers import assert_refused
from trimtab import cli, data, report
from trimtab.records import Comparison, EventLog
from trimtab.training import checkpoint, folder
from trimtab.training.session import Session
from trimtab.training.workers.local_pool import LocalPool
from trimtab.training.workers.task import Task, train

resource = pytest.importorskip("resource")
SMALL = ["--network", "small-mlp", "--batch-size", "20", "--method", "bn"]
FULL = OSError(errno.ENOSPC, "No space left on device")


def failing(*_: object, **__: object) -> None:
    raise FULL


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run in a folder whose name a shell takes apart."""
    out = tmp_path / "a  run; [bold]"
    assert cli.main(["train", "--quiet", *SMALL, "--steps", "4", "--out", str(out)]) == 0
    return out


@pytest.mark.parametrize("where", [(checkpoint, "save"), (EventLog, "write"), (EventLog, "position")])
def test_a_disk_that_fills_during_training(
    where: tuple[Any, str], run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old = (run / "checkpoint.pt").read_bytes()
    capsys.readouterr()
    with monkeypatch.context() as patched:
        patched.setattr(*where, failing)
        assert cli.main(["train", "--quiet", "--resume", "--steps", "8", "--out", str(run)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"trimtab: cannot write to {run}: No space left on device; what was done is kept")
    assert (run / "checkpoint.pt").read_bytes() == old
    command = shlex.split(error.partition("go on with: ")[2])
    assert command[:3] == ["trimtab", "train", "--resume"]
    assert cli.main([*command[1:], "--quiet"]) == 0


def test_a_disk_that_cannot_hold_the_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """torch has words of its own for that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        status = cli.main(["train", "--quiet", *SMALL, "--steps", "4", "--out", str(tmp_path / "run")])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert status == 1
    assert "is the disk full?; what was done is kept" in capsys.readouterr().err
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"settings.yaml", "events.jsonl"}


@pytest.mark.parametrize("where", [(report, "write_page"), (checkpoint, "save"), (report, "write_figures")])
def test_a_disk_that_fills_during_measurements(
    where: tuple[Any, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = ["probe", "small-mlp", "--methods", "bn", "--probe", "noise", "--steps", "2", "--quiet"]
    monkeypatch.setattr(*where, failing)
    assert cli.main([*told, "--out", str(tmp_path / "new")]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "No space left on device; what was done is kept: when that is mended, go on with the same command" in error


def test_a_disk_that_fills_during_a_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Comparison, "write", failing)
    assert cli.main(["compare", "--jobs", "1", "--out", str(tmp_path / "new")]) == 1
    error = capsys.readouterr().err
    assert "No space left on device" in error and "the same command goes on with what is in" in error
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_a_disk_that_fills_while_others_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = ["--methods", "bn", "--rates", "1", "--seeds", "1", "--jobs", "1", "--steps", "2"]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        status = cli.main(["compare", "--network", "small-mlp", *told, "--out", str(tmp_path / "new")])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    error = capsys.readouterr().err.splitlines()[-1]
    assert status == 1
    assert "is the disk full?; the same command goes on with what is in" in error
    assert "Traceback" not in error


def test_a_folder_that_is_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def forbidden(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(folder, "whole_file", forbidden)
    told = ["train", "--quiet", "--out", str(tmp_path / "a" / "b")]
    assert_refused(
        told, r"cannot write to the folder \S+: Permission denied; name another folder with --out", capsys, tmp_path
    )


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried ..."),
    ],
)
def test_too_little_memory(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(*_: object) -> None:
        raise error

    monkeypatch.setattr(Session, "advance", failing)
    assert cli.main(["train", "--quiet", *SMALL, "--out", str(tmp_path / "run")]) == 1
    assert capsys.readouterr().err.startswith("trimtab: there is not enough memory; a smaller batch size")


def test_an_error_of_ours_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(Session, "advance", failing)
    with pytest.raises(RuntimeError, match="a defect"):
        cli.main(["train", "--quiet", *SMALL, "--out", str(tmp_path / "run")])


PRINTING = [
    ["list", "networks"],
    ["data", "list"],
    ["predict", "small-mlp", "--measure", "--samples", "8"],
    ["predict", "small-mlp", "--measure", "--samples", "8", "--json"],
    [],
    ["--help"],
    ["train", "--help"],
    ["data", "fetch", "--help"],
    ["--version"],
]


@pytest.mark.parametrize("command", PRINTING, ids=" ".join)
@pytest.mark.parametrize("buffer", [-1, 0], ids=["buffered", "at once"])
def test_a_closed_pipe(
    command: list[str], buffer: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `| head` closes it: nothing is said, and the status is that of a program that it ended."""
    reader, writer = os.pipe()
    os.close(reader)
    with io.TextIOWrapper(os.fdopen(writer, "wb", buffer), write_through=buffer == 0) as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert cli.main(command) == 141
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", PRINTING, ids=" ".join)
@pytest.mark.parametrize("buffer", [-1, 0], ids=["buffered", "at once"])
def test_an_output_that_is_full(
    command: list[str], buffer: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with io.TextIOWrapper(open("/dev/full", "wb", buffer), write_through=buffer == 0) as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert cli.main(command) == 1
    assert capsys.readouterr().err == "trimtab: cannot write the output: No space left on device\n"


def test_no_output_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert cli.main(["list", "networks"]) == 0
    assert cli.main(["train", "--epochs", "0"]) == 2


@pytest.fixture(params=[signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def number(request: pytest.FixtureRequest) -> Iterator[int]:
    """A signal that ends the process, even if the tests run in the background, where SIGINT is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield int(request.param)
    signal.signal(signal.SIGINT, before)


def after(steps: int, number: int) -> Callable[..., None]:
    """Steps of a session, of which one is interrupted."""
    advance = Session.advance

    def step(session: Session, *args: Any) -> None:
        advance(session, *args)
        if session.step == steps:
            signal.raise_signal(number)

    return step


def test_a_signal_during_training(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, root = tmp_path / "it's [/] a run", tmp_path / "data $HOME"
    with monkeypatch.context() as patched:
        patched.setattr(Session, "advance", after(3, number))
        told = ["--steps", "6", "--out", str(out), "--data-root", str(root), "--device", "cpu"]
        assert cli.main(["train", *SMALL, *told]) == 128 + number
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    assert printed.out.startswith("Interrupted at step 3 of 6; go on with: trimtab train --resume --out ")
    command = shlex.split(printed.out.partition("go on with: ")[2])
    assert command[3:] == ["--out", str(out), "--data-root", str(root), "--device", "cpu"]
    assert cli.main(command[1:]) == 0
    assert "Finished 6 steps" in capsys.readouterr().out


def test_a_signal_during_measurements(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Session, "advance", after(2, number))  # the first step is tried before the run begins
    told = ["probe", "small-mlp", "--methods", "bn", "--probe", "noise", "--steps", "3", "--quiet"]
    assert cli.main([*told, "--out", str(tmp_path / "new")]) == 128 + number
    assert capsys.readouterr().err == "trimtab: interrupted; go on with the same command\n"


def test_a_signal_during_a_comparison(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Comparison, "write", lambda *_: signal.raise_signal(number))
    assert cli.main(["compare", "--jobs", "1", "--out", str(tmp_path)]) == 128 + number
    assert capsys.readouterr().err.startswith("trimtab: interrupted; the same command goes on with what is in")


@pytest.mark.parametrize(
    ("where", "command", "said"),
    [
        ("inventory", ["data", "list"], ("interrupted", "terminated")),
        ("load", ["predict", "mf-mlp", "--data", "digits"], ("interrupted", "terminated")),
        ("fetch", ["data", "fetch", "mnist"], ("interrupted; the same command goes on where it stopped",) * 2),
    ],
)
def test_a_signal_in_other_commands(
    where: str,
    command: list[str],
    said: tuple[str, str],
    number: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(data, where, lambda *_, **__: signal.raise_signal(number))
    assert cli.main(command) == 128 + number
    assert capsys.readouterr().err == f"trimtab: {said[number == signal.SIGTERM]}\n"


@pytest.mark.parametrize(("one", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("module", ["trimtab", "trimtab.cli"])
def test_a_signal_during_the_imports(one: signal.Signals, status: int, module: str, tmp_path: Path) -> None:
    """Of a torch that takes long, and passes over exceptions as parts of the real one do."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(
        "import time\nprint('importing', flush=True)\ntry:\n    time.sleep(60)\nexcept BaseException:\n    pass\n"
    )
    source = str(Path(cli.__file__).parents[2])
    process = subprocess.Popen(
        [sys.executable, "-m", module, "list", "networks"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), source])},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"importing\n"
    process.send_signal(one)
    _, error = process.communicate(timeout=60)
    assert process.returncode == status
    assert error in (b"trimtab: interrupted\n", b"trimtab: terminated\n")


def test_names_that_are_hard_to_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bytes that are no UTF-8, markup, control characters: in progress, results, records and the page."""
    out = tmp_path / os.fsdecode(b"r\xff[bold][/]\x1b[31m <script>")
    monkeypatch.setattr(sys, "argv", ["trimtab", "train", "--out", str(out)])
    assert cli.main(["train", *SMALL, "--steps", "2", "--out", str(out)]) == 0
    assert cli.main(["report", str(out)]) == 0
    assert "<script>" not in (out / "report.html").read_text().partition("</head>")[2]
    capsys.readouterr()
    assert cli.main(["train", *SMALL, "--steps", "2", "--out", str(out)]) == 2
    assert r"r\udcff[bold][/]\x1b[31m <script> holds a run already" in capsys.readouterr().err
    raw = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", raw)
    assert cli.main(["train", *SMALL, "--resume", "--quiet", "--out", str(out)]) == 0


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of a comparison in this process, which spares starting others."""

    def run(pool: LocalPool, tasks: list[Task], advance: object) -> Iterator[tuple[Any, Any]]:
        return ((task, train(task)) for task in tasks)

    monkeypatch.setattr(LocalPool, "run", run)


@pytest.mark.usefixtures("here")
def test_settings_that_are_foreign_to_a_method(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = ["--network", "small-mlp", "--methods", "vanilla,bn,gn", "--group-size", "10", "--gamma", "0.5"]
    few = ["--rates", "1", "--seeds", "1", "--steps", "2", "--jobs", "1"]
    assert cli.main(["compare", *told, *few, "--out", str(tmp_path)]) == 0
    notes = [
        "group_size is left out for vanilla, bn: it means nothing there.",
        "gamma is left out for vanilla: it means nothing there.",
    ]
    printed = capsys.readouterr().out
    results = json.loads((tmp_path / "results.json").read_text())
    assert sorted(results["notes"]) == sorted(notes)
    assert all(note in printed and note in (tmp_path / "report.html").read_text() for note in notes)
    assert [cell["why_not"] for cell in results["cells"]] == [None] * 3
    used = [yaml.safe_load(path.read_text()) for path in sorted(tmp_path.glob("runs/*/settings.yaml"))]
    assert {one["method"]: (one["group_size"], one["gamma"]) for one in used} == {
        "vanilla": (None, 1.0),
        "bn": (None, 0.5),
        "gn": (10, 0.5),
    }


@pytest.mark.parametrize("command", [["compare", "--network"], ["probe"]])
def test_a_dry_run_says_what_is_left_out(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = ["small-mlp", "--methods", "vanilla,gn", "--gamma", "0.5", "--steps", "2", "--out", str(tmp_path / "new")]
    assert cli.main([*command, *told, "--dry-run"]) == 0
    assert "gamma is left out for vanilla: it means nothing there.\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        ("results.json", "holds a comparison; name another folder with --out"),
        ("settings.yaml", "holds a run; name another folder with --out"),
        ("mine.txt", "holds other files (mine.txt); name another folder with --out"),
    ],
)
@pytest.mark.parametrize("more", [[], ["--dry-run"], ["--force"]])
def test_measurements_are_not_put_among_other_files(
    more: list[str], file: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / file).write_text("")
    assert cli.main(["probe", "small-mlp", "--steps", "2", "--out", str(tmp_path), *more]) == 2
    assert f"{tmp_path} {sentence}" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [file]


@pytest.mark.usefixtures("here")
def test_a_comparison_of_what_cannot_train_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = ["--network", "small-mlp", "--methods", "bn", "--batch-sizes", "1", "--rates", "1", "--seeds", "1"]
    assert cli.main(["compare", *told, "--jobs", "1", "--out", str(tmp_path / "a" / "b")]) == 2
    assert "none of these can be trained: bn needs more than one value" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("force", [[], ["--force"]])
def test_a_comparison_of_what_cannot_train_leaves_another_as_it_is(force: list[str], tmp_path: Path) -> None:
    few = ["compare", "--network", "small-mlp", "--steps", "2", "--rates", "1", "--seeds", "1", "--out", str(tmp_path)]
    assert cli.main([*few, "--methods", "vanilla", "--batch-sizes", "64"]) == 0
    before = contents(tmp_path)
    assert cli.main([*few, "--methods", "bn", "--batch-sizes", "1", *force]) == 2
    assert contents(tmp_path) == before
    assert cli.main([*few, "--methods", "bn,vanilla", "--batch-sizes", "1", *force]) == 0  # one of them can


@pytest.mark.parametrize(
    ("command", "run"), [(["train", "--network", "small-mlp", "--method", "bn"], "."), (["probe", "small-mlp"], "bn")]
)
def test_a_run_that_cannot_train_leaves_another_as_it_is(command: list[str], run: str, tmp_path: Path) -> None:
    told = [*command, "--steps", "2", "--out", str(tmp_path), *(["--methods", "bn"] if run == "bn" else [])]
    assert cli.main(told) == 0
    before = contents(tmp_path)
    assert cli.main([*told, "--batch-size", "1", "--force"]) == 2
    assert contents(tmp_path) == before
    assert cli.main([*told, "--batch-size", "8", "--force"]) == 0
    assert yaml.safe_load((tmp_path / run / "settings.yaml").read_text())["batch_size"] == 8


def test_a_run_without_a_checkpoint_that_cannot_go_on_is_left_as_it_is(tmp_path: Path) -> None:
    told = ["train", "--network", "small-mlp", "--method", "bn", "--steps", "2", "--out", str(tmp_path)]
    assert cli.main(told) == 0
    (tmp_path / "checkpoint.pt").unlink()
    events = tmp_path / "events.jsonl"
    events.write_text(events.read_text().splitlines(keepends=True)[0])  # as if it had been killed
    settings = tmp_path / "settings.yaml"
    settings.write_text(settings.read_text().replace("batch_size: 64", "batch_size: 1"))
    before = contents(tmp_path)
    assert b"batch_size: 1\n" in before["settings.yaml"]
    assert cli.main(["train", "--resume", "--out", str(tmp_path)]) == 2
    assert contents(tmp_path) == before


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_probes_do_not_warn_of_what_keeps_the_network_from_training(
    dry: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = ["probe", "small-mlp", "--methods", "bn", "--batch-size", "1", "--steps", "2", "--quiet"]
    assert cli.main([*told, "--out", str(tmp_path / "new"), *dry]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("trimtab: bn needs more than one value for each of its statistics")
    assert not (tmp_path / "new").exists()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_probe_heeds_its_file(tmp_path: Path) -> None:
    config = tmp_path / "probe.yaml"
    config.write_text("network: small-mlp\nmethod: ln\nseed: 7\nprobe: [noise]\nprobe_at: [1]\nepochs: 3\n")
    out = tmp_path / "new"
    assert cli.main(["probe", "--config", str(config), "--steps", "2", "--quiet", "--out", str(out)]) == 0
    (used,) = (yaml.safe_load(path.read_text()) for path in out.glob("*/settings.yaml"))
    heeded = {"network": "small-mlp", "method": "ln", "seed": 7, "probe": ["noise"], "probe_at": [1]}
    assert {name: used[name] for name in heeded} == heeded
    assert (used["steps"], used["epochs"]) == (2, None)
