"""`trimtab predict`: what it prints beside the table, and what it says of what makes no sense."""

import json
import subprocess
import sys

import pytest

from trimtab import cli
from trimtab.cli.predict import LOSSES
from trimtab.prediction.losses import NAMES

pytestmark = pytest.mark.usefixtures("few_draws")


def test_the_command_line_runs_as_a_module() -> None:
    told = [sys.executable, "-m", "trimtab.cli", "--version"]
    done = subprocess.run(told, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("trimtab ")


@pytest.mark.parametrize("norm", ["ghost", "noisy-bn", "bn4"])
def test_a_norm_without_frozen_statistics(norm: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = ["predict", "small-mlp", "--norm", norm, "--measure", "--samples", "32"]
    assert cli.main(told) == 0
    out = capsys.readouterr().out
    assert out.startswith("For cross-entropy, all outputs, train mode, momentum 0 (λ_max is the largest")
    assert "λ_max, measured on 32 samples" in out and "largest learning rate, measured" in out
    assert cli.main([*told, "--statistics", "frozen"]) == 2
    assert "not defined for" in capsys.readouterr().err


def test_data_are_measured_on_unless_told_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    told = ["predict", "small-mlp", "--norm", "bn", "--data", "digits", "--samples", "64", "--json"]
    found = []
    for more in ([], ["--no-measure"]):
        assert cli.main([*told, *more]) == 0
        found.append(json.loads(capsys.readouterr().out))
    measured, predicted = found
    assert (measured["kind"], predicted["kind"]) == ("measured", "predicted")
    assert measured["measurement"]["samples"] == 64 and predicted["measurement"] is None
    assert measured["samples"] == predicted["samples"] == 1397
    assert measured["predicted"] == predicted["predicted"] and measured["drawn"] is None
    assert predicted["lambda_max"] == predicted["drawn"]["lambda_max"]
    assert "from network to network" in " ".join(predicted["unseen"])  # BatchNorm of pixels that are mostly 0
    assert any("Extrapolated from 64 to 1397 samples" in note for note in measured["notes"])


def test_the_former_word_for_statistics_is_understood(capsys: pytest.CaptureFixture[str]) -> None:
    printed = []
    for word in ("batch", "train"):
        assert cli.main(["predict", "small-mlp", "--norm", "bn", "--statistics", word, "--json"]) == 0
        printed.append(capsys.readouterr())
    assert printed[0].out == printed[1].out and json.loads(printed[0].out)["statistics"] == "batch"
    assert printed[0].err == ""
    assert printed[1].err == "trimtab: --statistics train is now --statistics batch; the former word will go.\n"


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
    told = ["predict", "mf-mlp", "--loss", "squared", "--measure", "--samples", "4", "--json", "--sigma-w2"]
    assert cli.main([*told, "1e4"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 0.2 < found["lambda_max"] / found["predicted"] < 5
    assert cli.main([*told, "1e6"]) == 2
    assert "does not fit into single precision" in capsys.readouterr().err


def test_the_losses_are_those_of_the_library() -> None:
    """They are written twice, so that other commands need not import what predicts."""
    assert LOSSES == NAMES
