"""What is not run says what it needs."""

import json
import re
from pathlib import Path

import pytest

from tests.claims.helpers import Store, claim, record
from trimtab import cli
from trimtab.claims import RecordStore, best_first, claim_named, claims, verdict_on
from trimtab.claims.experiments.registry import experiments
from trimtab.claims.functions import FUNCTIONS
from trimtab.claims.needs import DATA, not_run_at, what_is_missing
from trimtab.claims.verdict import judge

COMMAND = re.compile(
    r"needs size (?P<size>\w+): `trimtab claims run(?P<named>( --experiment [\w-]+)+) --size (?P=size)`, "
    r"about (?P<number>[\d.]+) (?P<unit>min|h) on (two CPU cores|one H200)"
)
WITHOUT_COMMAND = {"bnp-cite-rnn"}
"""There is nothing to run; the reason says why."""
TOO_SHORT_WHEN_SMALL = {"bnp-fig4-left-brn-final", "bnp-fig4-right-fc-final"}


def says_what_it_needs(name: str, reason: str) -> None:
    if name in WITHOUT_COMMAND:
        assert "there is no command" in reason
        return
    found = COMMAND.search(reason)
    assert found, f"{name}: {reason}"
    named = found["named"].split(" --experiment ")[1:]
    minutes = sum(experiments()[one].minutes[found["size"]] for one in named)  # they have that size
    told = float(found["number"]) * (60 if found["unit"] == "h" else 1)
    assert told == pytest.approx(minutes, abs=0.5, rel=0.01)
    for data in {data for one in named for data in experiments()[one].needs.get(found["size"], ())}:
        assert DATA[data] in reason


@pytest.mark.parametrize("store", [RecordStore(), RecordStore(shipped=False)], ids=["these records", "no record"])
def test_every_claim_has_a_verdict_or_says_what_it_needs(store: RecordStore) -> None:
    without = set()
    for name, one in claims().items():
        best = best_first(one, store)[0]
        if best.state == "not run":
            without.add(name)
            says_what_it_needs(name, best.reason)
    assert without >= WITHOUT_COMMAND


def test_at_size_small_all_can_be_run_but_three() -> None:
    store = RecordStore(shipped=False)
    wanting = {
        name for name, one in claims().items() if "needs size small" not in verdict_on(one, "small", store).reason
    }
    assert wanting == WITHOUT_COMMAND | TOO_SHORT_WHEN_SMALL


def test_the_commands_are_ones_that_can_be_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("trimtab.claims.store._shipped_record", lambda experiment, size: None)
    needed = verdict_on(claim_named("meanfield-fig2-phases"), "small", RecordStore(shipped=False)).reason
    words = needed.split("`")[1].removeprefix("trimtab ").split()
    assert words.count("--experiment") == 4
    assert cli.main([*words, "--dry-run"]) == 0
    assert "4 experiments" in capsys.readouterr().out


class TestReasons:
    def test_only_what_has_no_record_is_named(self) -> None:
        phases = claim_named("meanfield-fig2-phases")
        some = Store(record(experiment="sweep-mnist-dense"), record(experiment="sweep-cifar10-dense"))
        told = what_is_missing(phases, "small", some, claims())
        assert "sweep-mnist-conv" in told and "sweep-cifar10-conv" in told and "dense" not in told

    def test_a_derived_claim_needs_what_its_origins_need(self) -> None:
        told = what_is_missing(claim_named("bnp-resnets-summary"), "small", Store(), claims())
        assert all(f"--experiment {name}" in told for name in ("resnet110", "preact110", "resnet18"))

    def test_what_a_record_is_too_short_for_needs_a_larger_size(self) -> None:
        final = claim_named("bnp-fig4-left-brn-final")
        told = judge(final, "small", Store(record(experiment="fc-6-cifar10")), claims(), FUNCTIONS).reason
        assert (
            told.startswith(final.needs) and "--experiment fc-6-cifar10 --size gpu`, about 10 min on one H200" in told
        )

    def test_a_record_that_lacks_a_number(self) -> None:
        for name, more in (("bnp-norms", ""), ("resnet110", "; needs size gpu: `trimtab claims run --experiment")):
            about = claim("check nothing", experiment=name)
            told = judge(about, "small", Store(record(experiment=name)), {}, FUNCTIONS).reason
            assert told.startswith(f"the record of {name} has no check nothing{more}")
            assert more or told.endswith("nothing")

    def test_data_that_do_not_come_with_trimtab(self) -> None:
        told = not_run_at(claim_named("bnp-fig6-right-gn"), Store(), claims())
        assert list(told) == ["small", "gpu", "paper"]
        assert told["paper"].endswith("h on one H200, with CIFAR-100 (`trimtab data fetch cifar100`)")
        assert "ImageNet" in not_run_at(claim_named("bnp-fig7-gn"), Store(), claims())["paper"]

    def test_other_inputs_stand_beside(self) -> None:
        told = what_is_missing(claim_named("bnp-fig3-left-ln"), "small", Store(), claims())
        assert "-standard" not in told

    def test_an_experiment_that_is_not_known(self) -> None:
        assert what_is_missing(claim("check x", experiment="none-such"), "small", Store(), {}) == (
            "experiment none-such was not run at size small"
        )


def test_list_show_and_json_say_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    for words in (["list", "--block", "5"], ["show", "bnp-cite-rnn"]):
        assert cli.main(["claims", *words]) == 0
        assert claim_named("bnp-cite-rnn").needs in capsys.readouterr().out
    assert cli.main(["claims", "show", "bnp-fig6-left-gn"]) == 0
    assert (
        "At size paper: not run; needs size paper: `trimtab claims run --experiment resnet110"
        in capsys.readouterr().out
    )
    assert cli.main(["claims", "show", "bnp-fig6-left-gn", "--json"]) == 0
    ((found,),) = json.loads(capsys.readouterr().out)
    assert list(found["not_run_at"]) == ["gpu", "paper"] and "about 10 min" in found["not_run_at"]["gpu"]
