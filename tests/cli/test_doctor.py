"""`trimtab doctor`: status, words, JSON, page; a run's folder is only read; models and loaders of one's own."""

import json
import sys
from pathlib import Path

import pytest

from trimtab import cli

MODEL = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 2))


def make_loader():
    torch.manual_seed(1)
    x = torch.randn(512, 20)
    return DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), 32, shuffle=True)


def squared(model, batch):
    return (model(batch[0])[:, 0] - batch[1]).square().mean()


def breaks():
    for number, batch in enumerate(make_loader()):
        if number == 7:
            raise OSError("the disk is gone")
        yield batch


def talks():
    print("this is no JSON")
    return make_loader()


calls = []


def late(model, batch):
    calls.append(1)
    if len(calls) > 40:
        raise KeyError("late")
    return squared(model, batch)


def once():
    return iter(make_loader())


def broken():
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))

        def forward(self, x):
            raise TypeError("the user's own mistake")

    return Broken()
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a module of the user's."""
    (tmp_path / "owncode.py").write_text(MODEL, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "owncode", raising=False)
    return tmp_path


def test_a_healthy_training(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "small-mlp", "--data", "digits", "--lr", "0.3", "--batch-size", "32", "--quiet"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("Nothing was found that holds this training back (300 steps, level standard).")
    assert not printed.err


def test_an_ill_one_with_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = "doctor small-mlp --data digits --lr 5 --batch-size 32 --steps 200 --json --quiet"
    assert cli.main(words.split()) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["findings"][0]["name"] == "learning-rate-too-high"
    assert found["findings"][0]["cure"]["setting"] == "lr" and found["findings"][0]["cure"]["factor"] < 1
    assert found["settings"]["lr"] == 5 and found["steps"] == 200


def test_plain_lines_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trimtab.cli.display.FIRST_LINE", 0.0)
    assert cli.main(
        ["doctor", "small-mlp", "--data", "digits", "--lr", "0.3", "--batch-size", "32", "--steps", "60"]
    ) in (0, 1)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("small-mlp: step 1 of 60 (1 %), loss 2.")
    assert "0 findings so far" in lines[0]


def test_static_takes_one_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "small-mlp", "--data", "digits", "--static", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["steps"], found["level"]) == (2, "full")


def test_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "report.html"
    words = f"doctor small-mlp --data digits --lr 5 --batch-size 32 --steps 100 --quiet --page {page}"
    assert cli.main(words.split()) == 1
    text = page.read_text(encoding="utf-8")
    assert "learning-rate-too-high" in text and "<svg" in text
    assert "http://" not in text.replace("http://www.w3.org", "") and "<script" not in text
    assert capsys.readouterr().out.endswith(f"{page}\n")


def test_a_model_and_a_loader_of_ones_own(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "doctor owncode:make_model --loader owncode:make_loader --lr 0.3 --steps 200 --quiet"
    assert cli.main(words.split()) == 0, capsys.readouterr()
    assert cli.main([*words.replace("0.3", "1e-4").split(), "--loss-fn", "owncode:squared"]) == 1
    assert "learning-rate-too-low" in capsys.readouterr().out


def test_a_loader_that_ends(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "doctor owncode:make_model --loader owncode:once --lr 0.3 --steps 200 --quiet --json"
    assert cli.main(words.split()) in (0, 1)
    found = json.loads(capsys.readouterr().out)
    assert found["steps"] == 16
    assert any("few-steps" in note["name"] for note in found["notes"])


def test_a_model_of_ones_own_on_data_of_the_lab(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wider = MODEL.replace("nn.Linear(20, 16)", "nn.Flatten(), nn.Linear(64, 32)").replace("(16, 2)", "(32, 10)")
    (own / "images.py").write_text(wider, encoding="utf-8")
    words = ["doctor", "images:make_model", "--data", "digits", "--batch-size", "32", "--quiet", "--lr"]
    assert cli.main([*words, "0.3"]) == 0
    assert cli.main([*words, "0.001"]) == 1
    assert "learning-rate-too-low" in capsys.readouterr().out


def test_a_model_that_fails_is_one_sentence(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "owncode:broken", "--loader", "owncode:make_loader", "--quiet"]) == 2
    said = capsys.readouterr().err
    assert "the loss of the first batch cannot be computed (TypeError: the user's own mistake)" in said
    assert said.count("\n") == 1


OWN = "doctor owncode:make_model --loader owncode:make_loader --quiet "


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--loader owncode:breaks", "batch 8 cannot be read (OSError: the disk is gone)"),
        ("--loss-fn owncode:late", " failed (KeyError: 'late')"),
        ("--method bn", "method bn is for the networks of the lab; a model of your own has the norms that it has"),
        ("--schedule cosine", "schedule would have no effect on a model of your own; leave it out"),
        ("--batch-size 8", "batch_size would have no effect with a loader of your own; leave it out"),
        ("--page nowhere/report.html", "nowhere/report.html cannot be written: there is no folder nowhere"),
    ],
)
def test_status_1_is_a_finding_and_no_failure(
    own: Path, capsys: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    assert cli.main([*OWN.split(), *words.split()]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and said in printed.err and printed.err.count("\n") == 1


def test_json_is_of_what_was_looked_at_and_nothing_else_is_printed(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*OWN.split(), "--loader", "owncode:talks", "--steps", "60", "--json", "--lr", "0.3"]) in (0, 1)
    printed = capsys.readouterr()
    settings = json.loads(printed.out)["settings"]
    assert (settings["data"], settings["batch_size"], settings["lr"]) == ("owncode:talks", 32, 0.3)
    assert printed.err == "this is no JSON\n"


def test_a_run_is_only_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    train = "train --network small-mlp --data digits --lr 1e-4 --batch-size 32 --method vanilla --epochs 2 --quiet"
    assert cli.main([*train.split(), "--out", str(run)]) == 0
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in sorted(run.rglob("*")) if path.is_file()}
    capsys.readouterr()
    assert cli.main(["doctor", str(run), "--quiet"]) == 1
    printed = capsys.readouterr().out
    assert "nothing was written there" in printed and "learning-rate-too-low" in printed
    after = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in sorted(run.rglob("*")) if path.is_file()}
    assert before == after
    assert cli.main(["doctor", str(run), "--lr", "3"]) == 2
    assert "has settings of its own; leave lr out" in capsys.readouterr().err
    assert cli.main(["doctor", str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err
