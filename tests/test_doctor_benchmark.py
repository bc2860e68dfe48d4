"""The benchmark of the doctor: what it plants is there, what it judges is right, and it runs with any doctor."""

import importlib
import json
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trimtab.doctor.record import Record

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
pytestmark = pytest.mark.skipif(not BENCHMARKS.exists(), reason="not in the source distribution")

Modules = dict[str, ModuleType]

STUB = '''
class Cure:
    setting, factor, value, layer, sentence = "lr", 0.1, None, None, "Divide the rate by 10."

    def apply(self, model, optimizer):
        for group in optimizer.param_groups:
            group["lr"] *= self.factor


class Finding:
    name, layer, cure = "learning-rate-too-high", None, Cure()


class Diagnosis:
    def __init__(self, findings):
        self.findings = findings


class Doctor:
    """Says that the rate is too high where a weight is large."""

    def __init__(self, model, optimizer, loss_fn, *, level, validation):
        assert level == "light" and len(validation) == 4 and loss_fn(model, validation[0]).item() > 0
        self.model, self.steps = model, 0

    def step(self, batch, loss):
        assert loss.requires_grad and all(p.grad is not None for p in self.model.parameters())
        self.steps += 1

    def diagnosis(self):
        assert self.steps > 0
        large = max(float(p.detach().abs().max()) for p in self.model.parameters())
        return Diagnosis([] if large < 2 else [Finding()])
'''


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Iterator[Modules]:
    """The modules of the benchmark, which are not left in the way of others."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    names = ["small_trainings", "doctor_networks", "doctor_cases", "doctor_training", "doctor_table"]
    names += ["doctor_records", "doctor_work", "doctor"]
    yield {name: importlib.import_module(name) for name in names}
    for name in [*names, "suggest_lr", "divergence_networks"]:
        sys.modules.pop(name, None)


@pytest.mark.slow
def test_it_runs_with_any_doctor_goes_on_where_it_was_and_tells_it(
    benchmark: Modules,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "stub_doctor.py").write_text(STUB, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    out = tmp_path / "doctor.jsonl"

    def run(*more: str) -> str:
        words = ["--out", str(out), "--networks", "dense 64-64, digits", "--only", "too-high", "--steps", "24", *more]
        words += ["--doctor", "stub_doctor:Doctor", "--level", "light", "--first-seed", "5"]
        monkeypatch.setattr(sys, "argv", ["doctor.py", *words])
        benchmark["doctor"].main()
        return capsys.readouterr().out

    assert "The time is over; the same command goes on from here." in run("--limit-seconds", "0")
    run("--processes", "2")
    lines = out.read_text(encoding="utf-8")
    rows = [json.loads(line) for line in lines.splitlines()]
    cases = [row for row in rows if row["kind"] == "case"]
    assert len(cases) == 9 * 3 and {row["seed"] for row in cases} == {5, 6, 7}
    assert {row["seed"] for row in rows if row["kind"] == "tuning"} == {10_000}
    (cure,) = [
        row for row in rows if row["kind"] == "cure" and "rate_factor=30" in row["key"] and "labels" not in row["key"]
    ]
    sick = next(row for row in cases if row["key"] == cure["key"] and row["seed"] == 5)
    assert cure["of"] == "learning-rate-too-high" and (sick["loss"] is None or cure["loss"] < sick["loss"])
    again = run()
    assert out.read_text(encoding="utf-8") == lines  # nothing is done twice
    assert run("--table") == again[again.index("27 trainings") :]
    assert "| learning-rate-too-high |" in again and "## By the loss curve" in again
    assert "trainings of" in run("--plan")


def test_what_was_measured_is_kept_for_rules_to_judge_again(
    benchmark: Modules, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, cases, records = benchmark["doctor_work"], benchmark["doctor_cases"], benchmark["doctor_records"]
    spec = cases.Spec("dense 64-64, digits", rate_factor=300.0)
    out, kept = tmp_path / "out.jsonl", tmp_path / "out.records"
    done = work.look(cases.Case(spec, ("learning-rate-too-high",), 3), "development", 0.1, 0, work.How(steps=100), True)
    assert [row["kind"] for row in done.rows] == ["case", "cure"] and done.rows[0]["early_at"] == 34
    bench = work.Bench(out, kept, work.How(), range(1))
    bench.write(done)
    rows = benchmark["doctor"].read_lines(out)
    assert records.judged_again(rows, records.kept(kept)) == rows  # by the same rules, at the end and on the way
    assert rows[0]["found"][0] == "learning-rate-too-high"

    def other_rules(record: Record) -> Any:
        return SimpleNamespace(findings=[SimpleNamespace(name="another", layer="4")] * (len(record.losses) > 50))

    monkeypatch.setattr(records, "judge", other_rules)
    (again,) = records.judged_again(rows, records.kept(kept))  # the cure was that of what is on top no longer
    assert again["found"] == ["another"] and again["early"] == [] and again["loss"] == rows[0]["loss"]


def test_halves_share_no_network_and_names_are_the_doctors(benchmark: Modules) -> None:
    networks, cases = benchmark["doctor_networks"], benchmark["doctor_cases"]
    assert not networks.DEVELOPMENT.keys() & networks.HELD_OUT.keys()
    held = [case for base in networks.HELD_OUT for case in cases.cases_of(base)]
    assert sum(not case.planted for case in held) * benchmark["doctor"].SEEDS >= 60
    for case in held:
        assert case.planted or case.twin() == case.spec
        assert case.twin() in [one.spec for one in held if not one.planted]
        assert case.twin().tuned_as() == case.twin()
    planted = {(name, case.severity) for case in held for name in case.planted if len(case.planted) == 1}
    assert planted == {(name, severity) for name in cases.NAMED for severity in (1, 2, 3)}
    assert len({case.spec.key for case in held}) == len(held)


def made(benchmark: Modules, base: str, **planted: Any) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    training = benchmark["doctor_training"]
    spec = benchmark["doctor_cases"].Spec(base, **planted)
    samples = training.data_of(spec, 0)
    model = training.model_of(spec, samples, 0)
    return model, training.optimizer_of(spec, model, 0.1), samples


@pytest.mark.parametrize("base", ["dense 64-64, digits", "dense 64-64 BN, digits", "conv 8-16 GN, digits"])
def test_dead_units_are_dead(benchmark: Modules, base: str) -> None:
    model, _, samples = made(benchmark, base, dead=0.5)
    hidden = benchmark["doctor_networks"].BASES[base].hidden
    after = [name for name, module in model.named_modules() if isinstance(module, nn.ReLU)][1]
    seen: list[Tensor] = []
    model.get_submodule(after).register_forward_hook(lambda module, inputs, output: seen.append(output))
    model(samples.train[0][:64])
    width = model.get_submodule(hidden).weight.shape[0]  # type: ignore[union-attr]
    alive = seen[0].transpose(0, 1).flatten(1).sum(1) > 0
    assert not bool(alive[: width // 2].any()) and int(alive.sum()) > 0.8 * (width - width // 2)


def test_what_is_planted_is_there(benchmark: Modules) -> None:
    base = "dense 64-64 BN, digits"
    plain, _, samples = made(benchmark, base)
    weight = plain.get_submodule("4").weight
    model, _, _ = made(benchmark, base, init=20.0)
    torch.testing.assert_close(model.get_submodule("4").weight, 20 * weight)
    model, _, _ = made(benchmark, base, statistics=0.01)
    assert {m.momentum for m in model.modules() if isinstance(m, nn.BatchNorm1d)} == {0.01}
    _, optimizer, _ = made(benchmark, base, rate_factor=3.0, own_rate=10.0)
    sizes = [(group["lr"], len(group["params"])) for group in optimizer.param_groups]
    assert sizes == [(pytest.approx(0.3), 8), (pytest.approx(3.0), 2)] and optimizer.param_groups[1]["momentum"] == 0.9
    _, optimizer, _ = made(benchmark, base, decay=0.01)
    assert optimizer.param_groups[0]["weight_decay"] == pytest.approx(0.1)
    _, _, moved = made(benchmark, base, offset=30.0)
    torch.testing.assert_close(moved.train[0], samples.train[0] + 30)
    _, _, put_right = made(benchmark, base, offset=30.0, standardize=True)
    assert abs(float(put_right.train[0].mean())) < 1e-4
    _, _, wrong = made(benchmark, base, random_labels=1.0)
    assert float((wrong.train[1] == samples.train[1]).double().mean()) == pytest.approx(0.1, abs=0.03)
    model, _, _ = made(benchmark, base, condition=300.0)
    seen: list[Tensor] = []
    model.get_submodule("4").register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    model(samples.train[0][:8])
    plain.get_submodule("4").register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    plain(samples.train[0][:8])
    factors = (seen[0] / seen[1]).detach().nan_to_num(0.0).amax(0)
    assert float(factors.max() / factors[factors > 0].min()) == pytest.approx(300, rel=0.2)


def test_small_losses_are_the_same_training_but_for_half_precision(benchmark: Modules) -> None:
    """The rate makes up for the factor of the loss, so that only its gradients, rounded to 16 bits, are harmed."""
    spec, run = benchmark["doctor_cases"].Spec, benchmark["doctor_training"].run
    losses = {
        key: run(spec("dense 64-64, digits", precision=key[0], loss_factor=key[1]), 0.1, 0, steps=60)["loss"]
        for key in (("float32", 1.0), ("float32", 1e-5), ("float16", 1.0), ("float16", 1e-7))
    }
    plain = losses["float32", 1.0]
    assert losses["float32", 1e-5] == pytest.approx(plain, rel=1e-3)
    assert losses["float16", 1.0] == pytest.approx(plain, rel=0.05)
    assert losses["float16", 1e-7] > 1.2 * plain


def test_cures_that_are_changes_of_the_training(benchmark: Modules) -> None:
    cases = benchmark["doctor_cases"]
    spec = cases.Spec("dense 64-64 BN, digits", batch_size=2, loss_factor=1e-4, precision="float16")
    assert cases.cured(spec, "batch_size", 8.0, None).batch_size == 16
    assert cases.cured(spec, "norm", None, "gn").norm_used == "gn"
    assert cases.cured(spec, "inputs", None, "standardize").standardize
    assert cases.cured(spec, "precision", None, "scaled").loss_factor == 1.0
    assert cases.cured(spec, "precision", None, "bfloat16").precision == "bfloat16"
    assert cases.cured(spec, "lr", 0.1, None) is None and cases.cured(spec, "init", 0.1, None) is None
    ill = cases.Spec("dense 64-64, digits", dead=0.5, init=20.0, rate_factor=3.0)
    assert cases.cured(ill, "init", None, "default") == cases.Spec("dense 64-64, digits", rate_factor=3.0)


def test_ill_is_what_ends_worse_than_its_twin_beyond_the_spread(benchmark: Modules) -> None:
    is_ill = benchmark["doctor_table"].is_ill
    assert is_ill([2.0, 2.1, math.inf], [1.0, 1.1, 0.9])
    assert not is_ill([1.05, 2.1, 2.2], [1.0, 1.1, 0.9])  # one of them is as good
    assert not is_ill([1.15, 1.15, 1.15], [1.0, 1.1, 0.9])  # 0.15 worse, where seeds differ by 0.2
    assert not is_ill([2.0], []) and not is_ill([2.0], [math.inf, 1.0])


def row(key: str, seed: int, loss: float | None, found: list[str], **more: Any) -> dict[str, Any]:
    given = {"kind": "case", "planted": [], "severity": 0, "variant": "", "twin": "a", "early": [], "curve": [2.0, 1.0]}
    return given | {"key": key, "seed": seed, "loss": loss, "found": found, "tried": None} | more


def test_the_table_counts_what_was_found(benchmark: Modules) -> None:
    low, high = "learning-rate-too-low", "learning-rate-too-high"
    rows = [row("a", seed, 1.0 + 0.1 * seed, [high] if seed == 2 else [], early=[low]) for seed in range(3)]
    rows += [row("b", s, 3.0, [low, high] if s % 2 == 0 else [high, low], planted=[low], severity=2) for s in range(3)]
    rows += [row("c", s, None, [high], planted=[high], severity=3, curve=[2.0, None]) for s in range(3)]
    rows += [row("d", s, 1.05, [high] * (s == 1), planted=[high], severity=1) for s in range(3)]  # harmless
    rows += [row("b; e", s, 9.0, [low, high], planted=[low, high], severity=2) for s in range(3)]
    rows += [row("b; high", s, 8.0, [high], planted=[high], severity=2) for s in range(3)]
    rows += [row("b; mild", s, 9.0, [low], planted=[low, "dead-units"], severity=2) for s in range(3)]
    rows.append(row("f", 0, 9.0, [], planted=[low], severity=2, twin="not there yet"))
    rows.append({"kind": "cure", "key": "b", "seed": 0, "of": low, "loss": 1.0})
    rows.append({"kind": "cure", "key": "b", "seed": 1, "of": low, "loss": 2.2})  # from 3, where the twin has 1.1
    rows.append({"kind": "cure", "key": "c", "seed": 0, "of": high, "loss": None})
    rows.append({"kind": "cure", "key": "d", "seed": 0, "of": high, "loss": 0.1})  # of nothing ill
    told = benchmark["doctor_table"].table(rows)
    doctor, commonest, curve = told.split("\n## ")[1:]
    assert told.startswith("21 trainings: 3 cases with one illness that harms, 1 with one that does not, 1 healthy, 2 ")
    assert f"| {low} | – | 2, 3 of 3 | – |" in doctor
    assert f"| {high} | no harm | 3, 3 of 3 | 3, 3 of 3 |" in doctor
    assert "Mean over 2 illnesses at severities 2 and 3: 83% on top, 100% at all." in doctor
    assert "False alarms, healthy, at the end: 1 of 3 (33.3%)." in doctor and f"- tuned: 1 of 3: {high} 1" in doctor
    assert f"False alarms, healthy, a third of the way: 3 of 3 (100.0%).\n- tuned: 3 of 3: {low} 3" in doctor
    assert "did no harm: 1 of 3 (33.3%); 1 of them name what was planted, 0 where trainings ended worse in" in doctor
    assert f"in the mean.\n- {high}: 1 of 3: {high} 1" in doctor
    assert f"| is \\ on top | (nothing) | {high} | {low} |" in doctor and "| (healthy) | 4 | 2 |  |" in doctor
    assert f"| {low} |  | 1 | 5 |" in doctor and f"| {low} + {high} |  |  | 3 |" in doctor
    assert "each of which harms alone: both named in 3, one in 0 of 3 trainings." in doctor
    assert "Cures of what was on top: 2 of 3 lowered the final validation loss, 1 by half of the way to" in doctor
    assert "where that was right, 2 of 3." in doctor
    assert "False alarms, healthy, at the end: 3 of 3 (100.0%)." in commonest
    assert f"| {high} | no harm | 0, 0 of 3 | 3, 3 of 3 |" in curve


def test_the_document_has_what_the_doctor_found(
    benchmark: Modules, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["doctor.py", "--half", "held-out", "--table"])
    benchmark["doctor"].main()
    told = capsys.readouterr().out
    own = told[told.index("## The doctor") : told.index("## Always the commonest")]
    document = (BENCHMARKS.parent / "docs" / "doctor.md").read_text(encoding="utf-8")
    document = document[document.index("### The held-out half") :]
    on_top = int(re.search(r"2 and 3: (\d+)% on top", own)[1])  # type: ignore[index]
    at_end, later = re.findall(r"False alarms, healthy, .*: (\d+ of \d+) ", own)
    both, one, pairs = re.search(r"both named in (\d+), one in (\d+) of (\d+)", own).groups()  # type: ignore[union-attr]
    harmless, named, worse = re.search(
        r"did no harm: (\d+ of \d+) .*; (\d+) of them name what was planted, (\d+) where", own
    ).groups()  # type: ignore[union-attr]
    cures = re.search(r"Cures of what was on top: (\d+ of \d+) ", own)[1]  # type: ignore[index]
    for cell in (f"**{on_top} %**", f"**{at_end}**", later, harmless, cures, f"{both} of {pairs}; {one}"):
        assert f"| {cell} |" in document
    assert f"{named} name what was planted; {worse} of these" in document
    confusion = own[own.index("| is \\ on top") :].split("\n\n")[0].splitlines()
    assert len(confusion) > 13 and all(line in document for line in confusion[1:])
    readme = (BENCHMARKS.parent / "README.md").read_text(encoding="utf-8")
    assert f"it named first what had been planted in {on_top} %" in readme


@pytest.mark.slow
def test_suggest_lr_is_compared_with_a_sweep(
    benchmark: Modules,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    compared = importlib.import_module("suggest_lr")
    out = tmp_path / "suggest_lr.jsonl"

    def run(*more: str) -> str:
        words = ["--settings", "development", "--only", "digits, SGD", "--steps", "24", "--out", str(out), *more]
        monkeypatch.setattr(sys, "argv", ["suggest_lr.py", *words])
        compared.main()
        return capsys.readouterr().out

    assert "not done." in run("--table")
    told = run()
    assert "| dense 64-64, digits, SGD |" in told and "of 1;" in told
    lines = out.read_text(encoding="utf-8")
    kinds = [json.loads(line)["kind"] for line in lines.splitlines()]
    assert kinds.count("suggested") == 3
    run()
    assert out.read_text(encoding="utf-8") == lines


@pytest.mark.parametrize(
    ("settings", "first_seed", "in_full"),
    [("first", "40", False), ("second", "70", True), ("second", "74", False), ("third", "80", True)],
)
def test_the_document_has_what_was_found(
    settings: str,
    first_seed: str,
    in_full: bool,
    benchmark: Modules,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["suggest_lr.py", "--table", "--settings", settings, "--first-seed", first_seed]
    monkeypatch.setattr(sys, "argv", words)
    importlib.import_module("suggest_lr").main()
    *table, suggested, finder = [
        line for line in capsys.readouterr().out.splitlines() if line.startswith(("|", "suggest_lr:", "lr-finder:"))
    ]
    document = (BENCHMARKS.parent / "docs" / "bnp.md").read_text(encoding="utf-8")
    good, mean, worst = re.search(
        r"in (\d+ of \d+); .* by (\S+ %) in the mean, .*, (\S+ %) at worst", suggested
    ).groups()  # type: ignore[union-attr]
    (row,) = [line for line in document.splitlines() if line.startswith(f"| {settings}, {first_seed}")]
    cells = [cell.strip() for cell in row.split("|")]
    assert (cells[3], cells[5], cells[7]) == (good, mean, worst)
    if in_full:
        assert len(table) == 2 + int(good.split()[-1])
        assert all(line in document for line in table)
    if settings == "second" and in_full:
        by_finder = re.search(r"in (\d+) of", finder)[1]  # type: ignore[index]
        assert f"It is good in {good} (the goal), lr-finder in {by_finder}." in document
