"""bnp, blocks 1.3 to 1.5, 1.7 and 1.8: what is entered of training runs, and that it decides the claims."""

import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from tests.claims import helpers
from tests.claims.helpers import Store
from tests.claims.trained_by_hand import Images, Trainer, history, recorded
from trimtab.claims.declarations import claims
from trimtab.claims.experiments import (
    condition_numbers,
    fc_time,
    fully_connected,
    rates,
    residual,
    small_batches,
    small_cnn,
    variants,
)
from trimtab.claims.experiments.registry import experiment_named, experiments
from trimtab.claims.findings import Findings
from trimtab.claims.functions import FUNCTIONS
from trimtab.claims.judging import judge_part
from trimtab.claims.part import Part
from trimtab.claims.training_runs import TrainedCase
from trimtab.claims.verdict import judge
from trimtab.records import RunEnded
from trimtab.training.grid import around
from trimtab.training.recipes import resolve
from trimtab.training.settings import Settings, resolved

MODULES: tuple[ModuleType, ...] = (
    *(fully_connected, small_batches, small_cnn, residual, fc_time, rates, variants),
    condition_numbers,
)
TRAINED = (
    *("fc-6-cifar10", "fc-1-cifar10", "cnn5-1", "cnn5-128", "cnn5-2", "cnn5-optimizers", "smallest-batches"),
    *("resnet110", "preact110", "resnet18", "fc-time", "rates-table2", "rates-table3", "variants"),
)
ONE_ROW = ((1, "bn"), (1, "brn"))


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> Trainer:
    stands = Trainer(refused=ONE_ROW)
    replaced: dict[str, Any] = {"train_cases": stands.train_cases, "chosen_rates": stands.chosen_rates}
    replaced |= {"load": lambda name, root: Images(), "enter_norms": lambda findings, context, normalize: None}
    for module in MODULES:
        for name, stand in replaced.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, stand)
    return stands


@pytest.mark.parametrize("size", ["small", "gpu"])
@pytest.mark.parametrize("name", TRAINED)
def test_its_record_decides_each_part_that_names_it(name: str, size: str, trainer: Trainer, tmp_path: Path) -> None:
    if size not in experiment_named(name).minutes:
        pytest.skip("it has no such size")
    record = recorded(name, size, tmp_path)
    decided = 0
    for claim in claims().values():
        if not (claim.paper == "bnp" and name in claim.experiments):
            continue
        verdict = judge(claim, size, Store(record), claims(), FUNCTIONS)
        for outcome in verdict.outcomes + verdict.corrected:
            if outcome.part.kind != "claim" and (outcome.part.experiment or claim.experiment) == name:
                too_short = size == "small" and outcome.part.measure == "final acc"
                assert (outcome.state == "not run") == too_short, outcome.sentence
                decided += 1
    assert decided


@pytest.mark.parametrize("name", [name for name in TRAINED if name + "-standard" in experiments()])
def test_standardized_inputs_are_the_only_difference(name: str, trainer: Trainer, tmp_path: Path) -> None:
    recorded(name, "small", tmp_path)
    ours, trainer.asked = trainer.asked, []
    recorded(name + "-standard", "small", tmp_path)
    assert [(cases, {**shared, "normalize": "standard"}) for cases, shared in ours] == trainer.asked


class TestBatch60:
    def test_a_run_that_diverged_has_no_accuracy_to_lose(
        self, monkeypatch: pytest.MonkeyPatch, trainer: Trainer, tmp_path: Path
    ) -> None:
        run = history([30.0] * 10 + [29.0] * 10)
        diverged = type(run)(run.folder, run.started, (), (), RunEnded("diverged", 3, 1.0, 1.0))
        cases = {"bn": TrainedCase(0.1, {101: run}), "bnp": TrainedCase(0.1, {101: diverged})}
        monkeypatch.setattr(fully_connected, "train_cases", lambda *given, **options: cases)
        record = recorded("fc-60-cifar10", "small", tmp_path)
        assert record.numbers["overfitting after epoch 10"] == {"bn": {"101": pytest.approx(1.0)}}
        assert record.numbers["acc"]["bnp"] == {"101": 10.0}


class TestSmallBatches:
    def test_falls_and_distances(self, trainer: Trainer, tmp_path: Path) -> None:
        trainer.best = {"vanilla": 30, "bn": 35, "brn": 41, "ln": 52, "bnp": 48}
        record = recorded("fc-6-cifar10", "small", tmp_path)
        assert [shared["batch_size"] for _, shared in trainer.asked] == [6, 60]
        assert {shared["epochs"] for _, shared in trainer.asked} == {2}  # as many samples
        assert record.numbers["fall of acc from batch 60 to 6"]["bn"]["101"] == pytest.approx(0)
        distances = record.numbers["distance in acc from bnp"]
        assert [distances[name]["102"] for name in ("bn", "brn", "ln")] == pytest.approx([13, 7, 4])

    def test_the_early_gain_is_that_of_the_first_two_of_twenty_evaluations(self) -> None:
        findings = Findings()
        rising = TrainedCase(0.1, {101: history([10.0 + i for i in range(20)])})
        faster = TrainedCase(0.1, {101: history([20.0 + 3 * i for i in range(20)])})
        small_batches.enter_early_gain(findings, "N=1", {"vanilla": rising, "bnp": faster})
        assert findings.numbers["early gain of bnp"]["N=1"]["101"] == pytest.approx(21.5 - 10.5)

    def test_a_run_that_diverged_guesses_early_too(self) -> None:
        findings = Findings(chance=10.0)
        run = history([30.0, 31.0])
        diverged = type(run)(run.folder, run.started, (), (), RunEnded("diverged", 3, 1.0, 1.0))
        both = {"vanilla": TrainedCase(0.1, {101: diverged}), "bnp": TrainedCase(0.1, {101: run})}
        small_batches.enter_early_gain(findings, "N=1", both)
        assert findings.numbers["early gain of bnp"]["N=1"]["101"] == pytest.approx(30.5 - 10)

    def test_what_refuses_one_row_does_not_train(self, trainer: Trainer, tmp_path: Path) -> None:
        record = recorded("fc-1-cifar10", "small", tmp_path)
        assert record.refused.keys() == {"bn", "brn"}
        assert record.numbers["acc"]["bn"] == {"101": 10.0, "102": 10.0, "103": 10.0}
        verdict = judge(claims()["bnp-fig4-right-fc-bn"], "small", Store(record), claims(), FUNCTIONS)
        assert verdict.state == "holds"


class TestSmallCnn:
    def test_all_batch_sizes_are_trained_side_by_side(self, trainer: Trainer, tmp_path: Path) -> None:
        record = recorded("smallest-batches", "small", tmp_path)
        ((cases, _),) = trainer.asked
        assert len(cases) == 7 * (2 + 2) + 4
        assert (cases["brn at batch 3"]["batch_size"], cases["brn at batch 3"]["steps"]) == (3, 4000)
        assert cases["bn at batch 16, dense"]["network"] == "mlp3x100"
        assert cases["bn at batch 16, dense"]["steps"] == 2000
        assert record.numbers["acc at batch 2"].keys() == {"vanilla", "bn", "brn"}
        assert record.numbers["acc at batch 2, dense"].keys() == {"vanilla", "bn"}

    @pytest.mark.parametrize(
        ("network", "size", "row"),
        [("cnn5", 60, 128), ("cnn5", 16, 2), ("cnn5", 8, 2), ("mlp3x100", 16, 6), ("mlp3x100", 60, 60)],
    )
    def test_the_nearest_row_of_printed_rates(self, network: str, size: int, row: int) -> None:
        assert small_cnn.nearest_row(network, size) == row

    def test_the_smallest_batch_at_which_bn_works(self) -> None:
        findings = Findings()
        for size in (60, 16, 8, 6, 4, 3, 2):
            for words, bn in (("", 49.5 if size in (16, 4) else 40.0), (", dense", 48.9)):
                for name, acc in (("vanilla", 50.0), ("bn", bn)):
                    findings.number(f"acc at batch {size}{words}", name, acc, seed=101, unit="points")
        small_cnn.enter_smallest(findings)
        assert findings.numbers["smallest batch of bn"] == {"cnn5": {"101": 4.0}, "mlp3x100": {"101": 61.0}}
        findings.numbers["acc at batch 16"]["bn"]["101"] = findings.numbers["acc at batch 4"]["bn"]["101"] = 40.0
        small_cnn.enter_smallest(findings)
        assert findings.numbers["smallest batch of bn"]["cnn5"]["101"] == math.inf

    def test_the_norm_over_its_estimate(self) -> None:
        torch.manual_seed(0)
        layer = nn.Conv2d(2, 1, 3, stride=2, padding=1)
        images = torch.randn(3, 2, 6, 6) * torch.tensor([1.0, 5.0])[:, None, None] + 2
        # Column by column: the output of a kernel that is 1 at one place and 0 elsewhere.
        variance, mean = torch.var_mean(images.double(), (0, 2, 3), keepdim=True, correction=0)
        scale = (variance + 0.01 * variance.max() + 1e-4).sqrt()
        columns = [torch.ones(3 * 9, dtype=torch.float64)]
        for place in range(18):
            kernel = torch.zeros(18, dtype=torch.float64)
            kernel[place] = 1
            sites = torch.conv2d(images.double(), kernel.reshape(1, 2, 3, 3), stride=2, padding=1).flatten()
            channel = place // 9
            columns.append((sites - mean.flatten()[channel]) / scale.flatten()[channel])
        norm = torch.linalg.matrix_norm(torch.stack(columns, 1), 2) ** 2
        found = small_cnn.norms_over_estimate(nn.Sequential(layer), images)
        assert found == {"0": pytest.approx(float(norm) / (3 * 3.0))}

    def test_each_optimizer_is_given_its_own_rate(self, trainer: Trainer, tmp_path: Path) -> None:
        recorded("cnn5-optimizers", "small", tmp_path)
        (tuned, _), (printed, _), *_ = trainer.asked
        assert tuned["vanilla-adam"] == {"method": "vanilla", "optimizer": "adam", "lr": 0.001}
        assert tuned["vanilla-sgd"] == {"method": "vanilla", "optimizer": "sgd", "lr": 0.1}
        assert printed.keys() == {"bn-sgd", "bnp-sgd"}


class TestResidual:
    def test_before_and_after_the_decay(self) -> None:
        run = history([10, 20, 30, 35, 36, 37, 38, 50, 60])
        assert residual.around_decay(run.evaluated, 3) == pytest.approx((20, 50 - 30))

    def test_a_run_that_diverged_guesses_and_has_no_jump(self) -> None:
        findings, ended = Findings(chance=10.0), RunEnded("diverged", 30, 3.0, 1.0)
        run = history([10, 20, 30, 35, 36, 37, 38, 50])
        run = type(run)(run.folder, run.started, (), run.evaluated, ended)
        residual.enter_decay(findings, {"bn": TrainedCase(0.1, {101: run})}, 3)
        assert findings.numbers == {"before": {"bn": {"101": 10.0}}, "jump": {"bn": {"101": 0.0}}}

    def test_digits_are_a_neighbour_whose_warm_up_has_as_many_steps(self, trainer: Trainer, tmp_path: Path) -> None:
        record = recorded("resnet110", "small", tmp_path)
        assert record.neighbour == "digits instead of CIFAR-10"
        ((cases, shared),) = trainer.asked
        first, an_epoch = 18, 3000 // 128  # as many epochs hold 400 steps
        assert (shared["epochs"], shared["augment"]) == (first + 40, False)
        assert shared["milestones"] == (first + 20, first + 30)
        for name, case in cases.items():
            settings = resolve(Settings(**shared, **case))
            warmup = resolved(settings.warmup) + resolved(settings.warmup_epochs) * an_epoch
            assert warmup == (390 if "gn" in name else 400)


class TestTime:
    def test_seconds_of_each_epoch(self) -> None:
        run = history([50, 60, 70], seconds=[2.0, 3.0, 6.0])
        assert fc_time.epoch_seconds(run) == [2.0, 1.0, 3.0]

    def test_two_methods_take_turns(self, trainer: Trainer, tmp_path: Path) -> None:
        recorded("fc-time", "small", tmp_path)
        orders = [[name.split()[0] for name in cases][:2] for cases, _ in trainer.asked]
        assert orders == [["bn", "bnp"], ["bnp", "bn"], ["bn", "bnp"]]


class TestRates:
    def test_all_sixteen_entries_of_table_2(self, trainer: Trainer, tmp_path: Path) -> None:
        record = recorded("rates-table2", "small", tmp_path)
        entries = [case for name, cases in record.numbers.items() if name.startswith("best") for case in cases]
        assert len(entries) == 16

    @pytest.mark.parametrize("printed", [0.1, 0.5])
    def test_the_candidates_next_to_the_printed_rate_are_its_neighbours(self, printed: float) -> None:
        findings = Findings()
        for number, candidate in enumerate(around(printed, 5)):
            findings.number("best rate for x", f"method {number}", candidate, seed=0, unit="factor")
            findings.number("printed rate for x", f"method {number}", printed)
        rates.enter_share(findings, "table-2")
        assert findings.numbers[rates.NEAR] == {"table-2": {"0": 3 / 5}}

    @pytest.mark.parametrize(("of_bnp", "state"), [(0.3, "met"), (0.1, "undecided"), (0.03, "not met")])
    def test_equal_rates_of_one_run_each_are_no_certain_ones(self, of_bnp: float, state: str) -> None:
        findings = Findings()
        for method, best in (("bnp", of_bnp), ("vanilla", 0.1)):
            findings.number("best rate for x", method, best, seed=0, unit="factor")
        (outcome,) = judge_part(Part.parse("best rate for x: bnp ≥ vanilla"), helpers.recorded(findings))
        assert outcome.state == state


def test_variants_are_compared_at_one_rate() -> None:
    cases = variants.cases_at("fc", 60)
    assert {cases[name]["lr"] for name in ("bn", "bn-stopgrad", "bn-fixed")} == {0.5}
    assert cases["batch"] == {"method": "bnp", "lr": 0.1, "statistics": "batch"}
    assert variants.cases_at("cnn", 2).keys() == {"running", "batch"}
