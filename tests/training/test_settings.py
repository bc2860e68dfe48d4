"""Settings, recipes, schedules: what a run is told."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from trimtab import cli
from trimtab.data import Dataset, Split
from trimtab.networks import NETWORKS
from trimtab.norms import NORMS
from trimtab.training import session as sessions
from trimtab.training.methods import Method
from trimtab.training.recipes import DEFAULTS, recipe, resolve
from trimtab.training.schedule import Schedule
from trimtab.training.session import Session
from trimtab.training.settings import Settings

CPU = torch.device("cpu")


def test_every_recipe_decides_all_that_is_open() -> None:
    names = {field.name for field in fields(Settings)}
    for network in NETWORKS:
        for name in ("vanilla", "bn", "bnp", "bnp+gn", "bnp-debias"):
            for data in ("mnist", "cifar10", "cifar100", "imagefolder"):
                told = recipe(network, data, Method.parse(name), None)
                assert told.keys() <= names
                resolved = Settings(network=network, data=data, method=name).resolved(told)
                left = [n for n in DEFAULTS if getattr(resolved, n) is None]
                assert left in ([], ["epochs"]), network
                assert resolved.epochs is not None or resolved.steps is not None


@pytest.mark.parametrize(
    ("network", "data", "method", "batch_size", "expected"),
    [
        ("mlp3x100", "mnist", "bn", 60, {"lr": 0.5, "optimizer": "sgd"}),
        ("mlp3x100", "cifar10", "vanilla", 1, {"lr": 0.0005}),
        ("mlp3x100", "cifar10", "bnp-debias", 6, {"lr": 0.05}),
        ("cnn5", "cifar10", "bnp", 2, {"lr": 0.01, "optimizer": "sgd", "conv_bias": True}),
        ("cnn5", "cifar10", "vanilla", 128, {"optimizer": "adam"}),
        ("cnn5", "cifar10", "vanilla", 2, {"optimizer": "sgd", "lr": 0.001}),
        ("cnn5", "cifar10", "bn4", 2, {"optimizer": "adam", "lr": 0.0001, "decay_on": "norms"}),
        ("cnn5", "cifar10", "bn", 2, {"norm_momentum": 0.01, "norm_eps": 1e-3}),
        ("preact18", "cifar10", "bn", None, {"weight_decay": 5e-4, "schedule": "constant", "warmup": 0}),
        ("resnet110", "cifar10", "gn", 32, {"warmup": 0, "warmup_epochs": 1, "warmup_linear": True}),
        ("resnet110", "cifar10", "bn", None, {"weight_decay": 1e-4, "warmup": 400, "warmup_linear": False}),
        ("resnet110", "cifar10", "bnp+gn", None, {"weight_decay": 1.5e-4, "init_scale": 0.1, "group_size": 4}),
        ("preact110", "cifar100", "bnp+gn", None, {"weight_decay": 2e-4, "init_scale": 0.4, "milestones": (150, 220)}),
        ("preact110", "cifar100", "bnp", None, {"lr": 0.01}),
        ("resnet18", "imagefolder", "bnp+gn", None, {"weight_decay": 8.5e-4, "group_size": 32, "batch_size": 256}),
        ("dln25", "gaussian", "bn", None, {"lr": 1e-6, "batch_size": 0, "steps": 10_000}),
        ("vgg", "cifar10", "bn", None, {"lr": 0.1, "batch_size": 128, "augment": False, "steps": 15_000}),
        ("regcnn", "cifar10", "bn", 256, {"schedule": "decay", "factor": 1e-4, "momentum": 0.9, "lr": 0.04}),
    ],
)
def test_recipes_say_what_the_papers_say(
    network: str, data: str, method: str, batch_size: int | None, expected: dict[str, Any]
) -> None:
    told = recipe(network, data, Method.parse(method), batch_size)
    assert {name: told[name] for name in expected} == expected


def test_flags_go_before_the_file_and_the_file_before_the_recipe(tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text("method: bn\nlr: 0.25\nbatch-size: 50\nmilestones: [1, 2]\n")
    out = tmp_path / "run"
    arguments = ["train", "--config", str(config), "--out", str(out), "--lr", "0.5", "--epochs", "1", "--quiet"]
    assert cli.main(arguments) == 0
    saved = yaml.safe_load((out / "settings.yaml").read_text())
    assert (saved["method"], saved["lr"], saved["batch_size"], saved["milestones"]) == ("bn", 0.5, 50, [1, 2])
    assert saved["optimizer"] == "sgd"
    assert cli.main(["train", "--config", str(out / "settings.yaml"), "--out", str(tmp_path / "again"), "--quiet"]) == 0
    assert yaml.safe_load((tmp_path / "again" / "settings.yaml").read_text()) == saved


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "cifar"], "There is no data set 'cifar'; did you mean 'cifar10'?"),
        (["--network", "resnet11"], "did you mean 'resnet110'?"),
        (["--method", "bnpp"], "there is no method 'bnpp'; did you mean 'bnp'?"),
        (["--method", "bnp-debais"], "did you mean 'bnp-debias'?"),
        (["--epochs", "0"], "epochs must be 1 or more, not 0"),
        (["--steps", "-3"], "steps must be 1 or more, not -3"),
        (["--log-every", "0"], "log_every must be 1 or more"),
        (["--lr", "nan"], "lr must be from 0 to 1e30"),
        (["--momentum", "2"], "momentum must be in [0, 1)"),
        (["--zeta", "1", "--method", "vanilla"], "zeta means nothing to vanilla; leave it out"),
        (["--device", "meta"], "training on 'meta' is not supported"),
        (["--milestones", "1,x"], "milestones"),
        (["--resume", "--force"], "give one of them"),
        (
            ["--network", "small-mlp", "--method", "bn", "--batch-size", "1"],
            "bn needs more than one value for each of its statistics, which a batch of 1",
        ),
        (["--method", "bnp+wn"], "BNP cannot change weights that weight normalization computes"),
        (["--lr", "fast"], "the command line: lr: must be a number, not 'fast'"),
        (["--epochs", "1.5"], "the command line: epochs"),
        (["--optimizer", "lbfgs"], "must be one of sgd, adam, adamw, not 'lbfgs'"),
        (["--device", "abacus"], "there is no device 'abacus'"),
        (["--config", "missing.yaml"], "cannot read missing.yaml"),
        (["--evaluate-on", "validation"], "set validation too"),
        (["--resume"], "there is no run in"),
        (["--data", "cifar10", "--data-root", "nowhere"], "cifar10 was not found"),
        (["--batch-size", "5000"], "batch_size is 5000, but there are 1397 samples"),
        (["--network", "small-mlp", "--method", "in"], "InstanceNorm"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", "--quiet", *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.startswith("trimtab: ")
    assert len(captured.err.splitlines()) == 1
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_an_output_that_is_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        assert cli.main(["train", "--quiet", "--out", str(out)]) == 2
        assert "cannot write to the folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("told", "steps", "epochs"),
    [({}, 15_000, None), ({"epochs": 2}, None, 2), ({"steps": 7}, 7, None)],
)
def test_steps_and_epochs_are_one_decision(told: dict[str, int], steps: int | None, epochs: int | None) -> None:
    resolved = resolve(Settings(network="vgg", data="cifar10", **told))
    assert (resolved.steps, resolved.epochs) == (steps, epochs)


def test_norms_before_the_activation_by_name() -> None:
    ran = Session(resolve(Settings(network="small-mlp", method="bn-pre", epochs=1)), CPU)
    kinds = [type(module).__name__ for module in ran.model]
    assert kinds.index("BatchNorm1d") < kinds.index("ReLU")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("momentun: 0.9", "there is no setting 'momentun'; did you mean 'momentum'?"),
        ("- a\n- b", "must hold settings as 'name: value'"),
        ("a: [", "is not a YAML file"),
        ("milestones: [1.7]", "milestones: must be a whole number"),
        ("milestones: true", "milestones: must be a whole number"),
        ("augment: 3", "augment: must be true or false, not 3"),
        ("lr: true", "lr: must be a number"),
    ],
)
def test_bad_files(content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(content)
    assert cli.main(["train", "--config", str(config), "--out", str(tmp_path / "run")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_another_runs_folder_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ["train", "--out", str(tmp_path / "run"), "--epochs", "1", "--quiet"]
    assert cli.main(run) == 0
    before = (tmp_path / "run" / "events.jsonl").read_bytes()
    assert cli.main(run) == 2
    assert "holds a run already" in capsys.readouterr().err
    assert cli.main([*run, "--resume", "--lr", "0.7"]) == 2
    assert "has lr 0.1, not 0.7" in capsys.readouterr().err
    assert (tmp_path / "run" / "events.jsonl").read_bytes() == before
    assert cli.main([*run, "--force", "--lr", "0.7"]) == 0
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    assert cli.main(["train", "--out", str(tmp_path / "mine"), "--force", "--quiet"]) == 2
    assert "holds other files (thesis.tex)" in capsys.readouterr().err


def test_methods() -> None:
    assert Method.parse("vanilla") == Method("vanilla", "none", bnp=False, debias=False)
    assert Method.parse("bnp") == Method("bnp", "none", bnp=True, debias=False)
    assert Method.parse("bnp-debias+gn") == Method("bnp-debias+gn", "gn", bnp=True, debias=True)
    assert Method.parse("wn+mean-bn") == Method("wn+mean-bn", "wn+mean-bn", bnp=False, debias=False)


def test_schedules() -> None:
    step = Schedule(lr=1.0, kind="step", total=100, milestones=(10, 20), factor=0.1)
    assert [step.at(n) for n in (0, 9, 10, 19, 20)] == pytest.approx([1, 1, 0.1, 0.1, 0.01])
    cosine = Schedule(lr=1.0, kind="cosine", total=110, warmup=10)
    assert [cosine.at(n) for n in (10, 60, 109)] == pytest.approx([1.0, 0.5, 0.0], abs=1e-3)
    decay = Schedule(lr=1.0, kind="decay", total=10, factor=1e-2)
    assert decay.at(7) == pytest.approx(0.99**7)
    rising = Schedule(lr=0.1, kind="constant", total=10, warmup=4, warmup_from=0.01)
    assert [rising.at(n) for n in (0, 2, 4)] == pytest.approx([0.01, 0.055, 0.1])
    jumping = replace(rising, warmup_linear=False)
    assert [jumping.at(n) for n in (0, 3, 4)] == pytest.approx([0.01, 0.01, 0.1])


def fake(classes: int, *shape: int) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(0, 256, (8, *shape), generator=generator, dtype=torch.uint8)
    targets = torch.randint(0, classes, (8,), generator=generator)
    split = Split(inputs, targets)
    channels = shape[0]
    return Dataset(
        name="cifar10",
        train=split,
        test=split,
        classes=classes,
        scale=255.0,
        mean=(0.5,) * channels,
        std=(0.25,) * channels,
    )


# Norms that combine with BNP (weight normalization computes the weights that BNP would change).
WITH_BNP = [norm for norm in NORMS if not norm.startswith("wn")]


@pytest.mark.parametrize("network", [n for n in NETWORKS if n != "dln25"])
@pytest.mark.parametrize(
    "method", ["bnp", "bnp+gn", *[pytest.param(m, marks=pytest.mark.slow) for m in ("vanilla", "bnp-debias", "bnp+bn")]]
)
def test_every_network_trains_a_step_by_every_kind_of_method(
    network: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = (1, 8, 8) if network.startswith("small") else (3, 32, 32)
    monkeypatch.setattr(sessions, "load", lambda *_: fake(10, *shape))
    told = Settings(data="cifar10", network=network, method=method, batch_size=4, steps=1, augment=False)
    ran = Session(resolve(told), CPU)
    before = {name: p.detach().clone() for name, p in ran.model.named_parameters()}
    ran.advance()
    loss, _ = ran.take_means()
    assert torch.tensor(loss).isfinite()
    assert any(not torch.equal(p, before[name]) for name, p in ran.model.named_parameters())
    if ran.bnp is not None:
        layers = [layer for layer in ran.bnp.report().layers if layer.left_alone is None]
        assert layers
        assert all(layer.steps == 1 and layer.bias for layer in layers), network


@pytest.mark.parametrize("norm", WITH_BNP)
def test_bnp_combines_with_every_norm(norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "load", lambda *_: fake(10, 1, 8, 8))
    told = Settings(data="cifar10", network="small-cnn", method=f"bnp+{norm}", batch_size=4, steps=1)
    ran = Session(resolve(told), CPU)
    ran.advance()
    assert torch.tensor(ran.take_means()[0]).isfinite()
