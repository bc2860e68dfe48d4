"""Probes along a run: named, recorded, resumed, drawn; and the run is the same as without them."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from trimtab.cli import main
from trimtab.data import Dataset, Split
from trimtab.probe_registry import PROBES, expand_probe_names
from trimtab.probes import ConditioningResult
from trimtab.records import EVENTS, History, Probed, read_events
from trimtab.training.probe_factories import make_monitor, robustness
from trimtab.training.recipes import resolve
from trimtab.training.run import Run
from trimtab.training.session import Session
from trimtab.training.settings import Settings

SMALL = ("--data", "digits", "--batch-size", "32", "--quiet", "--device", "cpu")


def run(folder: Path | None = None, **told: object) -> Session:
    usual = {"network": "small-cnn", "method": "bn", "batch_size": 32, "steps": 5, "log_every": 5}
    session = Session(resolve(Settings(**{**usual, **told})), torch.device("cpu"))
    run = Run(session, folder)
    if folder is not None:
        folder.mkdir()
    run.begin("test", {}, {})
    run.train()
    return session


@pytest.mark.parametrize("method", ["bn", "bnp", "noisy-bn"])
def test_a_run_with_every_probe_on_is_the_run_without(method: str, tmp_path: Path) -> None:
    told = {"method": method, "network": "small-mlp", "dropout": 0.0}
    plain = run(**told)
    probed = run(tmp_path / "run", probe=("all",), probe_every=2, **told)
    for name, value in plain.model.state_dict().items():
        assert torch.equal(value, probed.model.state_dict()[name]), name
    states = (s.optimizer.state_dict()["state"] for s in (plain, probed))
    for one, other in zip(*(state.values() for state in states), strict=True):
        assert all(torch.equal(one[key], other[key]) for key in one if isinstance(one[key], torch.Tensor))
    events = _events(tmp_path / "run")
    assert {event.probe for event in events} == set(PROBES)
    assert all(event.result["problem"] is None for event in events), [
        (event.probe, event.result["problem"]) for event in events if event.result["problem"]
    ]
    assert [event.step for event in events if event.probe == "landscape"] == [0, 2, 4]
    assert [event.step for event in events if event.probe == "activations"] == [0, 1, 2, 3, 4]


def _events(folder: Path) -> list[Probed]:
    return [event for event in read_events(folder / EVENTS) if isinstance(event, Probed)]


@pytest.mark.slow
def test_all_layers_of_the_five_layer_network_have_hessian_blocks() -> None:
    """At the paper's batch size and with images of CIFAR-10's size (bnp, Sec. 3.3)."""
    split = Split(torch.randint(256, (128, 3, 32, 32), dtype=torch.uint8), torch.randint(10, (128,)))
    dataset = Dataset(name="cifar10", train=split, test=split, classes=10, scale=255.0, mean=(0.5,) * 3, std=(0.3,) * 3)
    told = Settings(data="cifar10", network="cnn5", method="bnp", batch_size=128, steps=1, probe=("conditioning",))
    session = Session(resolve(told), torch.device("cpu"), dataset=dataset)
    monitor = make_monitor(session)
    assert monitor is not None
    (found,) = (monitor(session.model, session.loss_fn, session.next_batch()) or {}).values()
    assert isinstance(found, ConditioningResult)
    layers = list(found.layers.values())
    assert len(layers) == 5 and all(layer.note is None and layer.hessian_norm > 0 for layer in layers)


@pytest.mark.parametrize("normalize", ["unit", "standard", "pixel"])
def test_pixels_are_perturbed_however_inputs_are_normalized(normalize: str) -> None:
    """By steps of ε on the scale from 0 to 1, cut off at its ends."""
    told = Settings(network="small-mlp", method="bn", batch_size=32, steps=30, normalize=normalize)  # type: ignore[arg-type]
    session = Session(resolve(told), torch.device("cpu"))
    for _ in range(30):
        session.advance()
    found = robustness(session)(session.model, session.loss_fn, session.next_batch())
    test, train = (part.inputs / session.dataset.scale for part in (session.dataset.test, session.dataset.train))
    mean, std = {
        "unit": (torch.zeros(()), torch.ones(())),
        "standard": (train.mean(), train.std(correction=0)),
        "pixel": (train.mean(0), train.std(0, correction=0)),
    }[normalize]
    std = torch.where(std > 0, std, torch.ones(()))
    labels, model = session.dataset.test.targets, session.model.eval()
    pixels = test.clone().requires_grad_()
    (slope,) = torch.autograd.grad(F.cross_entropy(model((pixels - mean) / std), labels), pixels)
    for eps, accuracy in zip(found.eps, found.accuracies, strict=True):
        moved = (test + eps * slope.sign()).clamp(0, 1)
        right = (model((moved - mean) / std).argmax(1) == labels).float().mean()
        assert accuracy == pytest.approx(float(right), abs=0.004)
    assert found.accuracies[-1] < found.accuracy


def test_names() -> None:
    assert expand_probe_names(("landscape", "all")) == ("landscape", *(name for name in PROBES if name != "landscape"))
    with pytest.raises(ValueError, match="there is no probe 'landscap'; did you mean 'landscape'"):
        Settings(probe=("landscap",))
    with pytest.raises(ValueError, match="there are landscape, random"):
        Settings(probe=("zzz",))
    with pytest.raises(ValueError, match="probe_every must be 1 or more"):
        Settings(probe_every=0)


def test_a_run_goes_on_with_its_probes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = ("train", *SMALL, "--network", "small-mlp", "--method", "bnp", "--steps", "9")
    train = (*told, "--probe", "landscape,shift,activations", "--probe-every", "3")
    assert main([*train, "--out", str(tmp_path / "whole")]) == 0
    advance = Session.advance

    def interrupted(session: Session, batch: Any = None) -> None:
        advance(session, batch)
        if session.step == 4:
            os.kill(os.getpid(), signal.SIGINT)

    heeds = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(Session, "advance", interrupted)
            assert main([*train, "--out", str(tmp_path / "parts")]) == 130
    finally:
        signal.signal(signal.SIGINT, heeds)
    assert main(["train", "--quiet", "--device", "cpu", "--resume", "--out", str(tmp_path / "parts")]) == 0
    whole, parts = (
        [(event.step, event.probe, event.result) for event in History.read(tmp_path / name).probed]
        for name in ("whole", "parts")
    )
    assert repr(whole) == repr(parts)  # some numbers are NaN
    assert [step for step, probe, _ in whole if probe == "shift"] == [0, 3, 6]


@pytest.mark.slow
def test_the_command_trains_measures_and_draws(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "probed"
    command = ["probe", "small-mlp", *SMALL, "--methods", "vanilla,bn", "--steps", "7", "--out", str(out)]
    told = ["--probe", "landscape,activations", "--at", "0,5"]
    assert main([*command, *told]) == 0
    shown = capsys.readouterr().out.split()
    assert str(out / "report.html") == shown[0] and all(Path(path).stat().st_size > 1000 for path in shown)
    names = {Path(path).stem.rsplit("-small", 1)[0] for path in shown[1:]}
    assert {"landscape", "predictiveness", "moments", "histograms", "curves"} <= names
    page = (out / "report.html").read_text()
    assert "What was measured along the way" in page and "landscape paper, Figs. 4 and 10" in page
    monkeypatch.setattr("trimtab.report.write_figures", lambda *_: [])  # drawing them once is enough
    before = (out / "bn" / "events.jsonl").read_bytes()
    assert main([*command, *told]) == 0  # all is there
    assert (out / "bn" / "events.jsonl").read_bytes() == before
    capsys.readouterr()
    assert main([*command, "--probe", "landscape"]) == 2
    assert "other settings; replace it by --force" in capsys.readouterr().err
    assert main([*command, "--probe", "landscape", "--force", "--methods", "bn"]) == 0


@pytest.mark.slow
def test_seeds_are_added_to_a_folder_of_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trimtab.report.write_figures", lambda *_: [])
    out = tmp_path / "probed"
    told = ["probe", "small-mlp", *SMALL, "--methods", "vanilla,bn", "--steps", "3", "--probe", "noise", "--seed", "4"]
    told += ["--out", str(out), "--quiet"]
    assert main(told) == 0
    assert "in medians over the seeds" not in (out / "report.html").read_text()
    before = (out / "bn" / "events.jsonl").read_bytes()
    capsys.readouterr()
    assert main([*told, "--seeds", "3", "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("runs    4 ")

    real, taken = Session.advance, []

    def interrupted(self: Session, *more: Any) -> Any:
        taken.append(self.settings.seed)
        if taken.count(5) == 3:  # in the first new run, after its first step was tried
            signal.raise_signal(signal.SIGINT)
        return real(self, *more)

    heeds = signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored in a job in the background
    try:
        with monkeypatch.context() as patched:
            patched.setattr(Session, "advance", interrupted)
            assert main([*told, "--seeds", "3"]) == 130
    finally:
        signal.signal(signal.SIGINT, heeds)
    assert {path.name for path in out.iterdir() if path.is_dir()} == {"vanilla", "bn", "vanilla-seed5"}
    assert main([*told, "--seeds", "3"]) == 0  # goes on
    assert (out / "bn" / "events.jsonl").read_bytes() == before
    runs = {path.parent.name: History.read(path.parent) for path in out.rglob("events.jsonl")}
    seeds = {name: run.started.settings["seed"] for name, run in runs.items()}
    of_each = {name: int(name.partition("-seed")[2] or 4) for name in runs}
    assert seeds == of_each and sorted(seeds.values()) == [4, 4, 5, 5, 6, 6]
    assert all(run.ended is not None and run.ended.verdict == "finished" for run in runs.values())
    assert "in medians over the seeds" in (out / "report.html").read_text()
    alone = [*told[:-2], str(tmp_path / "alone"), "--quiet"]
    alone[alone.index("--seed") + 1] = "6"
    assert main(alone) == 0  # a seed is trained as by itself
    mine = [repr(event.result) for event in runs["bn-seed6"].probed]  # some numbers are NaN
    assert mine == [repr(event.result) for event in History.read(tmp_path / "alone" / "bn").probed]


def test_mistakes_are_named_and_leave_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    for wrong, words in (
        (["--probe", "land"], "there is no probe 'land'"),
        (["--at", "x"], "argument --at: must be a whole number, 0 or more, not 'x'"),
        (["--at=-1"], "argument --at: must be a whole number, 0 or more, not '-1'"),
        (["--at", "7"], "--at has step 7, but there are 2 steps"),
        (["--figures", "gif"], "not as 'gif'"),
        (["--seeds", "0"], "argument --seeds: must be a whole number, 1 or more, not '0'"),
        (["--methods", "bnn"], "bnn"),
    ):
        assert main(["probe", "small-mlp", *SMALL, "--steps", "2", "--out", str(out), *wrong]) == 2
        assert words in capsys.readouterr().err and not out.exists()


def test_probes_see_the_learning_rate_of_the_step(tmp_path: Path) -> None:
    told = {"lr": 0.4, "warmup": 4, "warmup_from": 0.01, "warmup_linear": True, "method": "bn"}
    session = run(tmp_path / "run", network="small-mlp", probe=("landscape",), probe_every=1, **told)
    sizes = [event.result["step_size"] for event in _events(tmp_path / "run")]
    assert sizes == pytest.approx([session.schedule.at(step) for step in range(5)])
    assert sizes[0] == 0.01 < sizes[1] < sizes[-1] == 0.4
