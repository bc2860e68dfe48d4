"""`trimtab predict`: what it prints beside the table, and what it says of what makes no sense."""

import json
import subprocess
import sys

import pytest

from trimtab import cli


def test_the_command_line_runs_as_a_module() -> None:
    told = [sys.executable, "-m", "trimtab.cli", "--version"]
    done = subprocess.run(told, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("trimtab ")


@pytest.mark.parametrize("norm", ["ghost", "noisy-bn", "bn4"])
def test_without_frozen_statistics_the_rest_is_printed(norm: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = ["predict", "small-mlp", "--norm", norm, "--measure", "--samples", "32"]
    assert cli.main(told) == 0
    out = capsys.readouterr().out
    assert "largest learning rate" in out
    assert "train mode, one output" in out and "train mode, all outputs" in out
    assert "frozen statistics, one output" not in out
    sentence = out.splitlines()[-1]
    assert sentence.startswith("Frozen statistics not measured: Layer ")
    assert "not defined for" in sentence and sentence.endswith(".") and "statistics=" not in sentence
    assert cli.main([*told, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [row["statistics"] for row in result["measured"]] == ["batch", "batch"]
    assert list(result["not_measured"]) == ["frozen"]


def test_the_former_word_for_statistics_is_understood(capsys: pytest.CaptureFixture[str]) -> None:
    printed = []
    for word in ("batch", "train"):
        assert cli.main(["predict", "small-mlp", "--norm", "bn", "--statistics", word, "--json"]) == 0
        printed.append(capsys.readouterr())
    assert printed[0].out == printed[1].out and json.loads(printed[0].out)["statistics"] == "batch"
    assert printed[0].err == ""
    assert printed[1].err == "trimtab: --statistics train is now --statistics batch; the former word will go.\n"


def test_with_frozen_statistics_nothing_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["predict", "small-mlp", "--norm", "bn", "--measure", "--samples", "16", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert len(result["measured"]) == 4 and result["not_measured"] == {}


def test_more_samples_than_there_are_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["predict", "small-mlp", "--data", "digits", "--samples", "100000"]) == 0
    told = capsys.readouterr()
    assert "--samples 100000: digits has 1397 to train on, and all are taken." in told.err
    assert "λ_max" in told.out
    assert cli.main(["predict", "small-mlp", "--data", "digits", "--samples", "50"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--norm", "bn", "--measure", "--samples", "1"], "--samples must be 2 or larger with --measure or --data"),
        (["--data", "digits", "--samples", "1"], "--samples must be 2 or larger with --measure or --data"),
        (["--norm", "bn", "--gamma", "1e200"], "argument --gamma: must be a number of at most 1,000,000 in size"),
        (["--norm", "bn", "--gamma", "nan"], "argument --gamma: must be a number"),
        (["--sigma-w2", "x"], "argument --sigma-w2: must be a number"),
        (["--seed", "99999999999999999999"], "argument --seed: must be a whole number from 0 to 2^63 - 1"),
        (["--seed", "1.5"], "argument --seed: must be a whole number"),
    ],
)
def test_what_is_wrong_is_named(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    status = cli.main(["predict", "small-mlp", *words])
    told = capsys.readouterr()
    assert status == 2
    assert sentence in told.err
    assert "Traceback" not in told.err and told.out == ""


def test_what_single_precision_does_not_hold_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    told = ["predict", "mf-mlp", "--measure", "--samples", "4", "--json", "--sigma-w2"]
    assert cli.main([*told, "1e4"]) == 0
    for row in json.loads(capsys.readouterr().out)["measured"]:
        assert 0.2 < row["measured"] / row["predicted"] < 5
    assert cli.main([*told, "1e6"]) == 2
    assert "does not fit into single precision, lower --gamma or --sigma-w2" in capsys.readouterr().err
