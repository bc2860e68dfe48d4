"""bnp, Fig. 8 and Secs. 3.3, 3.5: what is entered of condition numbers, and that it decides the claims."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.claims.helpers import Store, record
from tests.claims.trained_by_hand import Images, Trainer, recorded
from trimtab.claims.declarations import claims
from trimtab.claims.experiments import condition_numbers
from trimtab.claims.experiments.registry import Context
from trimtab.claims.findings import Findings
from trimtab.claims.functions import FUNCTIONS
from trimtab.claims.judging import judge_part
from trimtab.claims.probed_training import ProbedRun, middle_layer, probe_along, weight_layers
from trimtab.claims.verdict import judge
from trimtab.networks import build
from trimtab.probes import Conditioning, LayerConditioning
from trimtab.probes.conditioning.probe import ConditioningResult


def layer(hessian: float, preconditioned: float, scaling: float, norm: float = 1.0) -> LayerConditioning:
    return LayerConditioning(
        rows=60,
        used_rows=60,
        columns=101,
        rank=60,
        inputs=1.0,
        centred=1.0,
        normalized=1.0,
        scaling=scaling,
        hessian=hessian,
        preconditioned=preconditioned,
        hessian_norm=norm,
        preconditioned_norm=norm / 2,
        q2=norm,
    )


class TestCondition:
    def test_medians_of_the_thirds(self) -> None:
        findings = Findings()
        kappas = [100.0, 200.0, 300.0, 10.0, 20.0, 30.0, 1.0, 2.0, 3.0]
        condition_numbers.enter_condition_numbers(findings, 101, [layer(k, k / 10, 100.0) for k in kappas])
        numbers = findings.numbers
        found = [numbers[f"κ in the {name} third"]["hessian"]["101"] for name in ("first", "second", "last")]
        assert found == [200.0, 20.0, 2.0]
        assert numbers["κ in the last third"]["preconditioned"]["101"] == pytest.approx(0.2)

    def test_the_share_in_the_range_and_the_distance_of_the_gain(self) -> None:
        findings = Findings()
        layers = [layer(1e6, 1e2, 1e2), layer(1e6, 1e3, 1e5), layer(1e6, 1e2, 50.0), layer(1e6, 1e2, math.inf)]
        condition_numbers.enter_condition_numbers(findings, 101, layers)
        share = findings.numbers["share of steps with κ(D) from 100 to 100000"]["bnp"]["101"]
        distance = findings.numbers["distance of log₁₀ gain and log₁₀ κ(D)²"]["bnp"]["101"]
        assert share == 0.5
        # 0, 7, 4 − 2 log₁₀ 50 and infinity
        assert distance == pytest.approx((4 - 2 * math.log10(50) + 7) / 2)


class TestAlong:
    def test_it_is_probed_before_the_step_on_its_batch(self, tmp_path: Path) -> None:
        context = Context(size="small", device=torch.device("cpu"), data_root=None, work=tmp_path)
        run = ProbedRun("small-mlp", "none", True, 0.1, 20, "unit", 5, double=True, data="digits")
        seen: list[Any] = []

        def probes(bnp: Any) -> dict[str, Conditioning]:
            seen.append(bnp)
            return {"all": Conditioning(units=1)}

        found = probe_along(context, run, {0, 3}, probes)
        assert found.keys() == {0, 3}
        assert seen[0].statistics is not None
        torch.manual_seed(5)
        first = build("small-mlp").double()
        assert list(found[0]["all"].layers) == weight_layers(first)
        assert found[0]["all"].layers["1"].rows == 20
        assert found[3]["all"].layers["1"].inputs != found[0]["all"].layers["1"].inputs
        assert probe_along(context, run, {3}, probes)[3]["all"].layers == found[3]["all"].layers
        assert len(seen) == 2
        again = probe_along(context, run, {0, 3}, probes)
        assert repr(again) == repr(found) and len(seen) == 2  # not trained again; NaN is in it

    def test_the_layer_in_the_middle(self) -> None:
        for network, norm, index in (("mlp3x100", "none", 2), ("mlp3x100", "ln", 2), ("cnn5", "gn", 2)):
            assert middle_layer(network, norm) == weight_layers(build(network, norm))[index]


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch) -> None:
    def stand(context: Context, run: ProbedRun, steps: set[int], probes: Any) -> dict[int, dict[str, Any]]:
        names = weight_layers(build(run.network, run.norm))
        layers = {name: layer(1e4 + i, 1e2, 200.0, 10.0 ** (i + 1)) for i, name in enumerate(names)}
        return {step: dict.fromkeys(("exact", "with ε", ""), ConditioningResult(layers=layers)) for step in steps}

    monkeypatch.setattr(condition_numbers, "probe_along", stand)
    monkeypatch.setattr(condition_numbers, "train_cases", Trainer().train_cases)
    monkeypatch.setattr(condition_numbers, "load", lambda name, root: Images())


@pytest.mark.parametrize("size", ["small", "gpu"])
@pytest.mark.parametrize("name", ["condition-numbers", "illconditioned", "hessian-blocks"])
def test_its_record_decides_each_part_that_names_it(name: str, size: str, probed: None, tmp_path: Path) -> None:
    found = recorded(name, size, tmp_path)
    about = [claim for claim in claims().values() if claim.experiment == name]
    assert about
    for claim in about:
        for outcome in judge(claim, size, Store(found), claims(), FUNCTIONS).outcomes:
            assert outcome.state != "not run", outcome.sentence


def test_ratios_of_norms_are_those_of_all_layers(probed: None, tmp_path: Path) -> None:
    found = recorded("hessian-blocks", "small", tmp_path)
    ratios = found.numbers["largest over smallest norm in mlp3x100"]
    assert (ratios["hessian"]["101"], ratios["divided"]["101"]) == (1e3, 1.0)


@pytest.mark.parametrize(
    ("norm", "state"),
    [([10.0, 9.0, 11.0], "met"), ([1.0, 2.0, 1.5], "not met"), ([3.0, 2.0, 9.0], "undecided")],
)
def test_the_opposite_of_a_clear_improvement(norm: list[float], state: str) -> None:
    kappas = record({"κ in mlp3x100": {"ln": norm, "vanilla": [10.0, 10.0, 10.0]}}, {"κ in mlp3x100": "factor"})
    of_ln, of_gn, _ = claims()["bnp-sec35-illcond"].parts
    assert [one.state for part in (of_ln, of_gn) for one in judge_part(part, kappas)] == [state, "not run"]


@pytest.mark.parametrize(
    ("early", "acc", "state"),
    [
        ([41.0, 42.0], [39.0, 38.0], "met"),
        ([39.0, 38.0], [41.0, 42.0], "met"),
        ([39.0, 45.0], [39.0, 38.0], "undecided"),
        ([39.0, 38.0], [39.0, 38.0], "not met"),
    ],
)
def test_early_or_at_the_end(early: list[float], acc: list[float], state: str) -> None:
    numbers = {
        f"{measure}, fc at 60": {"bn": values, "bn-stopgrad": [40.0, 40.0]}
        for measure, values in (("early", early), ("acc", acc))
    }
    found = record(numbers, dict.fromkeys(numbers, "points"))
    (outcome,) = judge_part(claims()["bnp-sec34-full-bn"].parts[0], found)
    assert outcome.state == state
    assert "early, fc at 60: bn" in outcome.sentence
