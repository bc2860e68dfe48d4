"""The speed benchmark: it measures, keeps what it found, and the document is made of that and nothing else."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
pytestmark = pytest.mark.skipif(not BENCHMARKS.exists(), reason="not in the source distribution")


def run(script: str, *options: str) -> str:
    command = [sys.executable, str(BENCHMARKS / script), *options]
    surroundings = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=surroundings)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_case_is_measured_kept_and_told(tmp_path: Path) -> None:
    out = tmp_path / "results" / "cpu.json"
    run("speed.py", "--device", "cpu", "--only", "small", "--seconds", "0.05", "--out", str(out))
    found = json.loads(out.read_text(encoding="utf-8"))
    group = found["groups"]["small"]
    assert group["failed"] == {}
    assert [ratio["name"] for ratio in group["ratios"]] == [
        f"FC net, batch {size}: {name} ÷ vanilla" for size in (1, 2) for name in ("BNP", "plain BNP")
    ]
    for ratio in group["ratios"]:
        assert 0 < ratio["low"] <= ratio["value"] <= ratio["high"] and ratio["rounds"] >= 6
    assert {step["contender"] for step in group["steps"]} == {"vanilla", "BNP", "plain BNP"}
    assert group["run"]["threads"] == 1 and group["run"]["kernels"]

    run("speed_table.py", "--results", str(out.parent), "--to", str(tmp_path / "table.md"), "--no-picture")
    table = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert f"| {found['machine']} | goal | measured | met |" in table
    measured = next(line for line in table.splitlines() if line.startswith("| FC net, batch 1: BNP ÷ vanilla | ≤ 1.30"))
    assert f"{group['ratios'][0]['value']:.3f} (" in measured and "not measured" not in measured
    assert "| 5-layer CNN, batch 128: BNP ÷ BN | ≤ 0.90 | not measured | – |" in table
    assert "`python benchmarks/speed.py --device cpu --only small --seconds 0.05`" in table


def test_precisions_of_one_machine_share_a_table(tmp_path: Path) -> None:
    run_ = {"options": " --precision bf16", "torch": "2", "threads": 1, "precision": "bf16", "kernels": "none"}
    ratio = {"name": "FC net, batch 1: BNP ÷ vanilla", "value": 1.2}
    for name, machine, group in [
        ("a", "one", "small"),
        ("a-bf16", "one", "fc"),
        ("b", "one", "fc"),
        ("c", "two", "fc"),
    ]:
        found = {"run": run_, "ratios": [ratio], "steps": [], "failed": {}}
        results = {"device": "cpu", "machine": machine, "groups": {group: found}}
        (tmp_path / f"{name}.json").write_text(json.dumps(results), encoding="utf-8")
    run("speed_table.py", "--results", str(tmp_path), "--to", str(tmp_path / "table.md"), "--no-picture")
    table = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert table.count("| one | goal | measured | met |") == 2  # fc was measured twice there
    assert table.count("| two | goal | measured | met |") == 1


@pytest.mark.slow
def test_a_whole_run_from_a_short_one() -> None:
    """The minutes are those of the run that was measured, and as many times an epoch of it as are left."""
    script = """
import json, sys
sys.path.insert(0, "benchmarks")
import speed_training
run = ("--data", "digits", "--network", "small-mlp", "--method", "bnp")
print(json.dumps(speed_training.whole_run_minutes(run, 21, "cpu", "fp32")))
try:
    speed_training.whole_run_minutes(("--data", "digits", "--network", "nothing"), 21, "cpu", "fp32")
except RuntimeError as error:
    print(json.dumps(str(error)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found, refused = map(json.loads, done.stdout.splitlines())
    assert found["seconds an epoch"] > 0
    assert found["minutes"] == pytest.approx((found["seconds to start"] + 160 * found["seconds an epoch"]) / 60)
    assert "There is no network 'nothing'" in refused


def test_what_failed_is_told(tmp_path: Path) -> None:
    name = "ResNet-110, batch 128, captured: BNP+GN ÷ GN"
    settings = {"options": "", "torch": "2", "threads": 1, "precision": "fp32", "kernels": "none"}
    group = {"run": settings, "ratios": [], "steps": [], "failed": {name: "failed: RuntimeError: no"}}
    results = {"device": "cuda", "machine": "a GPU", "groups": {"resnet": group}}
    (tmp_path / "gpu.json").write_text(json.dumps(results), encoding="utf-8")
    run("speed_table.py", "--results", str(tmp_path), "--to", str(tmp_path / "table.md"))
    table = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert f"| {name} | ≤ 1.10 | failed: RuntimeError: no | – |" in table


def test_the_document_is_what_the_results_give(tmp_path: Path) -> None:
    run("speed_table.py", "--to", str(tmp_path / "RESULTS.md"), "--no-picture")
    assert (tmp_path / "RESULTS.md").read_bytes() == (BENCHMARKS / "RESULTS.md").read_bytes()


def test_an_exponent_is_the_slope_of_logarithms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import speed_scaling

    assert speed_scaling.exponent([10, 100, 1000], [3.0, 30.0, 300.0]) == pytest.approx(1)
    assert speed_scaling.exponent([1, 10], [2.0, 200.0]) == pytest.approx(2)
    assert speed_scaling.exponent([1, 10], [-2.0, 200.0]) is None
    assert speed_scaling.exponent([1], [2.0]) is None


@pytest.mark.slow
def test_the_first_pass_in_pieces(tmp_path: Path) -> None:
    shipped, some, file = ROOT / "src" / "trimtab" / "claims" / "results", tmp_path / "some", tmp_path / "pass.jsonl"
    some.mkdir()
    for name in ("bnp-descent", "reg-dynamics"):
        record = json.loads((shipped / f"{name}.small.json").read_text(encoding="utf-8"))
        record |= {"seconds": 36.0, "core_seconds": 72.0}
        (some / f"{name}.small.json").write_text(json.dumps(record), encoding="utf-8")
    for _ in range(2):  # what is there is not added again
        lines = run("first_pass.py", "--records", str(some), "--file", str(file)).splitlines()
        assert "2 of 79 experiments: 0.02 h by the clock, half of their core-seconds 0.02 h" in lines[0]
        left = lines[1].split("trimtab claims run ")[1]
        assert left.count("--experiment") == 77 and left.endswith("--anew --pass first") and "bnp-descent" not in left
        found = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        judged = [row for row in found if "claim" in row]
        assert len(judged) > 5 and lines[2].startswith(
            f"{len(judged)} claims have a verdict by these records, {len(judged)} "
        )
