"""A trained network for use elsewhere: `load_run` and `trimtab export`."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import trimtab
from trimtab import cli
from trimtab.data import batches, load
from trimtab.records import History
from trimtab.training import checkpoint, loading
from trimtab.training.loading import export_run, load_run

SHORT = ["--epochs", "1", "--batch-size", "16", "--quiet"]


def train(folder: Path, *told: str) -> Path:
    assert cli.main(["train", *SHORT, "--out", str(folder), *told]) == 0
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("runs") / "run", "--normalize", "standard")


@pytest.mark.parametrize(
    "told",
    [
        ["--method", "bnp", "--network", "small-mlp"],
        ["--method", "bn", "--normalize", "standard", "--gamma", "0.5"],
        ["--method", "bn4", "--batch-size", "3", "--steps", "20", "--epochs", "none"],
        ["--method", "wn", "--network", "small-mlp"],
        ["--method", "noisy-bn-pre", "--network", "small-mlp"],
        ["--method", "bnp+gn", "--group-size", "8"],
    ],
    ids=lambda told: told[1],
)
def test_a_loaded_network_is_the_one_that_was_trained(told: list[str], tmp_path: Path) -> None:
    """Its accuracy on the test data, given raw, is the run's last evaluation; so it is after `export`."""
    folder = train(tmp_path / "run", *told)
    last = History.read(folder).evaluated[-1]
    test = load("digits").test
    random = torch.get_rng_state()
    export_run(folder, tmp_path / "model.pt")
    for path in (folder, tmp_path / "model.pt"):
        run = load_run(path)
        assert torch.equal(torch.get_rng_state(), random)
        assert not run.model.training
        with torch.no_grad():
            right = (run.model(run.normalize(test.inputs)).argmax(1) == test.targets).sum().item()
        assert right / len(test) == last.accuracy
        assert run.evaluated == last
        assert (run.settings.method, run.step) == (told[1], last.step)


def test_inputs_are_normalized_to_the_bit_as_in_training(trained: Path) -> None:
    data, run = load("digits"), load_run(trained)
    (batch, _), *_ = batches(data.test, 50, dataset=data, normalize="standard")
    assert torch.equal(run.normalize(data.test.inputs[:50]), batch)
    assert torch.equal(run.normalize(data.test.inputs[7]), batch[7])  # one input alone
    assert (run.input_shape, run.classes, run.scale) == ((1, 8, 8), 10, data.scale)
    with pytest.raises(
        ValueError, match=r"inputs must have the shape \(1, 8, 8\), or a dimension of samples before it"
    ):
        run.normalize(torch.zeros(8, 8))


@pytest.mark.parametrize("inputs", ["x", None, 3, [[0.0] * 8] * 8, load("digits").test.inputs[:2].numpy()], ids=type)
def test_inputs_that_are_not_a_tensor(inputs: Any, trained: Path) -> None:
    with pytest.raises(TypeError, match=r"^inputs must be a tensor, not .*; torch\.as_tensor makes one of .*\.$"):
        load_run(trained).normalize(inputs)


def test_neither_data_nor_yaml_are_needed(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr("trimtab.training.session.load", refuse)
    monkeypatch.setattr("yaml.safe_load", refuse)
    assert load_run(trained).classes == 10


def test_regression(tmp_path: Path) -> None:
    told = ["--data", "gaussian", "--network", "dln25", "--method", "vanilla", "--lr", "1e-6"]
    run = load_run(train(tmp_path / "run", *told))
    assert (run.classes, run.input_shape) == (0, (10,))
    assert run.model(run.normalize(torch.zeros(3, 10))).shape == (3, 10)


def test_the_package_offers_it() -> None:
    assert trimtab.load_run is load_run
    assert "load_run" in trimtab.__all__


def test_an_exported_file_is_plain(trained: Path, tmp_path: Path) -> None:
    """It needs no trimtab to be read, and nothing in it is executed."""
    export_run(trained, tmp_path / "model.pt")
    told = torch.load(tmp_path / "model.pt", weights_only=True)
    assert {name: tensor.shape for name, tensor in told["state_dict"].items()} == {
        name: tensor.shape for name, tensor in load_run(trained).model.state_dict().items()
    }
    plain = {name: value for name, value in told.items() if name != "state_dict"}
    assert json.loads(json.dumps(plain))["input_shape"] == [1, 8, 8]
    assert told["settings"]["network"] == "small-cnn"
    assert told["evaluated"]["part"] == "test"


def test_the_command(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "model.pt"
    assert cli.main(["export", str(trained), str(file)]) == 0
    out = capsys.readouterr().out
    assert str(file) in out and "test accuracy" in out and "87 steps" in out
    before = file.read_bytes()
    assert cli.main(["export", str(trained), str(file)]) == 2
    assert "is there already; overwrite it with --force" in capsys.readouterr().err
    assert file.read_bytes() == before
    file.write_text("mine")
    assert cli.main(["export", str(trained), str(file), "--force"]) == 0
    assert load_run(file).step == 87
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


def spoiled(state: dict[str, Any], change: str) -> dict[str, Any]:
    if change == "no interface":
        del state["interface"]
    elif change == "weights":
        state["session"]["model"].popitem()
    elif change == "settings":
        state["settings"]["network"] = "nonsense"
    elif change in ("outputs", "scale", "mean", "input_shape", "labels"):
        told = {"outputs": "many", "scale": math.nan, "mean": None, "input_shape": (), "labels": 5}
        state["interface"][change] = told[change]
    elif change in ("int", "complex64", "nan"):
        model = state["session"]["model"]
        name = next(iter(model))
        model[name] = model[name] * math.nan if change == "nan" else model[name].to(getattr(torch, change))
    elif change in ("no settings", "settings 5"):
        state["settings"] = {} if change == "no settings" else 5
    elif change == "step":
        state["session"]["step"] = -5
    elif change == "evaluations":
        state["evaluations"][-1]["loss"] = "x"
    elif change == "session":
        state["session"] = None
    return state


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("no interface", "is damaged: it is not what a run saves"),
        ("weights", "does not fit"),
        ("settings", "There is no network 'nonsense'"),
        ("outputs", "is damaged"),
        ("scale", "is damaged"),
        ("mean", "is damaged: its mean is None"),
        ("input_shape", "is damaged: its input_shape has no dimensions"),
        ("labels", "is damaged: its labels is 5"),
        ("int", "is torch.int32 of shape"),
        ("complex64", "is torch.complex64 of shape"),
        ("nan", "has values that are not finite"),
        ("no settings", "is damaged: its settings do not say norm_momentum"),
        ("settings 5", "is damaged: its settings is 5, not a dictionary"),
        ("session", "is damaged"),
        ("step", "its step is -5"),
        ("evaluations", "loss"),
    ],
)
def test_what_cannot_be_loaded_is_a_sentence(
    change: str, sentence: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = checkpoint.load(trained / "checkpoint.pt", torch.device("cpu"))
    state.pop("schema")
    (tmp_path / "run").mkdir()
    checkpoint.save(tmp_path / "run" / "checkpoint.pt", spoiled(state, change))
    assert cli.main(["export", str(tmp_path / "run"), str(tmp_path / "model.pt")]) == 2
    error = capsys.readouterr().err
    assert sentence in error and error.count("\n") == 1
    assert not (tmp_path / "model.pt").exists()


def test_where_there_is_nothing_to_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="there is no run in"):
        load_run(tmp_path / "missing")
    with pytest.raises(ValueError, match="there is no run in"):
        load_run(tmp_path)
    (tmp_path / "settings.yaml").write_text("data: digits\n")
    with pytest.raises(ValueError, match=r"train it again with: trimtab train --config .*settings\.yaml --out"):
        load_run(tmp_path)
    (tmp_path / "settings.yaml").unlink()
    (tmp_path / "events.jsonl").write_text("")
    with pytest.raises(ValueError, match=r"neither its checkpoint nor its settings\.yaml; train it again$"):
        load_run(tmp_path)
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(ValueError, match="is a comparison, which keeps no checkpoints of its runs; train one of them"):
        load_run(tmp_path)
    with pytest.raises(TypeError, match="the path of its folder or file, not from 3"):
        load_run(3)  # type: ignore[arg-type]
    checkpoint.save(tmp_path / "other.pt", {"weights": 1})
    with pytest.raises(ValueError, match="is neither a checkpoint nor a file that trimtab export wrote"):
        load_run(tmp_path / "other.pt")
    assert cli.main(["export", str(tmp_path / "missing"), "model.pt"]) == 2
    assert capsys.readouterr().err.startswith("trimtab: there is no run in")


def test_a_device_that_is_not_there_is_not_called_damage(trained: Path) -> None:
    assert load_run(trained, "meta").model.get_parameter("0.weight").device.type == "meta"
    for device in ("nonsense", "cuda:99"):
        with pytest.raises(ValueError, match=f"there is no device '{device}' here; use 'cpu'"):
            load_run(trained, device)


@pytest.mark.parametrize("name", ["checkpoint.pt", "settings.yaml", "events.jsonl"])
def test_a_run_is_not_overwritten_by_its_export(name: str, trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (trained / name).read_bytes()
    assert cli.main(["export", str(trained), str(trained / ".." / trained.name / name), "--force"]) == 2
    assert "is a file of the run itself; name another file" in capsys.readouterr().err
    assert (trained / name).read_bytes() == before


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_only_a_file_can_be_written(
    force: list[str], trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for place in (str(tmp_path), "/dev/null"):
        assert cli.main(["export", str(trained), place, *force]) == 2
        assert f"{place} is a folder or a device; name a file" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_to(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["export", str(trained), str(tmp_path / "missing" / "model.pt"), "--force"]) == 1
    error = capsys.readouterr().err
    assert "cannot write" in error and error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_all_fields_are_documented() -> None:
    for field in loading.LoadedRun.__dataclass_fields__:
        assert f"{field}:" in (loading.LoadedRun.__doc__ or "")
