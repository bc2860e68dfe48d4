"""benchmarks/divergence.py: edges that are known in closed form, what is kept of a run, and what is said of it."""

import json
import math
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp

from trimtab import predict
from trimtab.norms import Norm
from trimtab.prediction import divergence as rates
from trimtab.prediction.seen import NOT_SEEN, Spread, find

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
pytestmark = pytest.mark.skipif(not BENCHMARKS.exists(), reason="not in the source distribution")
FINE = 2.0 ** (1 / 8) * 1.0001  # the factor that is left after bisection


@pytest.fixture
def divergence(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import divergence

    return divergence


class Point(nn.Module):
    """Parameters to be driven to zero."""

    def __init__(self, at: list[float]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(at))

    def forward(self) -> Tensor:
        return self.w


def quadratic(curvatures: list[float], at: list[float]) -> Any:
    scale = torch.tensor(curvatures)
    return rates.Problem(Point(at), lambda model: (scale * model().square()).sum() / 2, math.inf)


@pytest.mark.parametrize("curvature", [0.3, 47.0])
def test_a_quadratic_rises_and_fails_where_theory_has_it(divergence: ModuleType, curvature: float) -> None:
    """SGD at 2/λ. With momentum μ it rises there too, in the first step, and fails at 2(1 + μ)/λ."""
    problem = quadratic([curvature, curvature / 5], [1.0, 0.2])
    for optimizer, rise, fail in (("sgd", 1.0, 1.0), ("momentum", 1 / 1.9, 1.0)):
        largest = 2 * (1 + divergence.momentum_of(optimizer)) / curvature
        found = divergence.edges(problem, optimizer, largest)
        for (low, high), expected in ((found.rise, rise), (found.fail, fail)):
            assert low <= expected * 1.01 and expected <= high * 1.06 and high / low <= FINE
        assert found.learned and found.runs > 10


class Linearized(nn.Module):
    """A network to first order in the distance from its weights, whose squared loss is a quadratic."""

    def __init__(self, model: nn.Module, x: Tensor) -> None:
        super().__init__()
        self.start = {name: weight.detach() for name, weight in model.named_parameters()}
        self.steps = nn.ParameterList(torch.zeros_like(weight) for weight in self.start.values())
        self.network = [model]  # not a part of this one

        def outputs(weights: dict[str, Tensor]) -> Tensor:
            return functional_call(model, weights, (x,))  # type: ignore[no-any-return]

        self.outputs = outputs

    def forward(self) -> Tensor:
        value, change = jvp(self.outputs, (self.start,), (dict(zip(self.start, self.steps, strict=True)),))
        return value + change  # type: ignore[no-any-return]


def test_a_network_to_first_order_fails_at_the_measured_rate(divergence: ModuleType) -> None:
    """So that where the network itself fails later or sooner, its curvature has changed on the way."""
    from divergence_networks import dense

    torch.manual_seed(0)
    x, y = torch.randn(24, 6) + 0.5, nn.functional.one_hot(torch.arange(24) % 10).float()
    model = dense((6,), 12, norm=Norm("bn", gamma=2.0))
    model[2].track_running_stats = False  # type: ignore[index,union-attr]
    largest = predict(model, (6,), inputs=x).max_learning_rate
    problem = divergence.Problem(Linearized(model, x), lambda model: (model() - y).square().sum(1).mean() / 2, math.inf)
    low, high = divergence.edges(problem, "sgd", largest).fail
    assert low < 1.03 and high > 0.98 and high / low <= FINE


def test_an_edge_is_looked_for_in_both_directions_and_may_be_nowhere(divergence: ModuleType) -> None:
    from trimtab.prediction.divergence import HIGHEST, LOWEST, START, edge

    for wanted in (3e-3, 0.0625, 0.7, 900.0):
        low, high = edge(lambda m, wanted=wanted: m >= wanted, START)
        assert low < wanted <= high and high / low <= FINE
    assert edge(lambda m: False, START) == (HIGHEST, None)
    assert edge(lambda m: True, START) == (None, LOWEST)


def test_what_became_of_a_training(divergence: ModuleType) -> None:
    from trimtab.prediction.divergence import STEPS, outcome, rises

    def losses(last: float) -> list[float]:
        return [2.5] + [last] * STEPS

    assert [outcome(losses(last), 2.3) for last in (1.0, 2.3, 2.4, 2.5, 9.0)] == [
        *("learns", "idle", "idle", "fails", "fails")
    ]
    assert outcome([2.5, math.nan], 2.3) == outcome([2.5, math.inf], 2.3) == outcome(losses(math.nan), 2.3) == "fails"
    assert rises([1.0, 0.5, 1.1]) and rises([1.0, math.nan]) and not rises([1.0, 0.9, 1.0])


def test_a_dead_network_has_failed_only_where_a_smaller_rate_learned(
    divergence: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(problem: Any, optimizer: str, rate: float, steps: int) -> list[float]:
        return [2.5] + [{"learns": 1.0, "idle": 2.4, "fails": 9.0}[at(rate)]] * steps

    monkeypatch.setattr(rates, "losses", ends)
    problem = quadratic([1.0], [1.0])
    object.__setattr__(problem, "constant", 2.3)
    for slow, dead, fails, expected in ((0.0, 4.0, 16.0, 4.0), (1.0, 4.0, 16.0, 4.0), (99.0, 99.0, 16.0, 16.0)):

        def at(rate: float, slow: float = slow, dead: float = dead, fails: float = fails) -> str:
            return "fails" if rate >= fails else "learns" if slow <= rate < dead else "idle"

        low, high = rates.edges(problem, "sgd", 1.0).fail
        assert low < expected <= high * 1.0001


def test_a_run_goes_on_where_it_was(
    divergence: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a line that was not finished; what ended with a problem is tried again."""
    out = tmp_path / "new" / "out.jsonl"
    cells = divergence.chosen(["dense 200", "digits", "squared", "sgd"], 0)
    assert [cell.network for cell in cells] == ["dense 200", "dense 200, BN"]
    row = {**vars(cells[0]), "rise": [1.0, 1.1]}
    divergence.append_line(out, row)
    with out.open("a", encoding="utf-8") as file:
        file.write(json.dumps({**vars(cells[1]), "fail": [1, 2]})[:-9])
    assert divergence.read(out) == [row] and divergence.done(out) == {cells[0]}
    failed = {**vars(cells[1]), "problem": "ValueError: no"}
    divergence.append_line(out, failed)
    assert divergence.read(out) == [row, failed] and divergence.done(out) == {cells[0]}
    divergence.append_line(out, {**vars(cells[1]), "rise": [2.0, 2.2]})
    lines = out.read_text(encoding="utf-8").splitlines()
    assert [json.loads(line).get("rise") for line in lines] == [[1.0, 1.1], None, [2.0, 2.2]]
    assert divergence.done(out) == set(cells)
    monkeypatch.setattr(divergence, "run", lambda *_: pytest.fail("all is done"))
    monkeypatch.setattr(divergence, "take", lambda path: {})
    told = ["divergence.py", "--out", str(out), "--only", "dense 200", "digits", "squared", "sgd"]
    monkeypatch.setattr(sys, "argv", told)
    divergence.main()
    assert "0 cells to do, 2 done" in capsys.readouterr().out


def test_the_cross_is_whole(divergence: ModuleType) -> None:
    cells = divergence.cells()
    networks = {cell.network for cell in cells}
    assert len(networks) >= 20 and len(set(cells)) == len(cells) == len(networks) * 2 * 4 * 3


@pytest.mark.slow
def test_a_killed_run_is_taken_up(divergence: ModuleType, tmp_path: Path) -> None:
    """Killed as soon as one cell is there; the second run makes the others, and all are as if looked at alone."""
    kept, out = tmp_path / "samples.pt", tmp_path / "out.jsonl"
    x = torch.randn(32, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    torch.save(dict.fromkeys(("digits", "mnist", "cifar10"), (x, torch.arange(32) % 10)), kept)
    words = ["dense 200", "digits", "sgd"]
    told = ["--samples", str(kept), "--out", str(out), "--only", *words]
    command = [sys.executable, str(BENCHMARKS / "divergence.py"), *told]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert first.stdout is not None
    while not first.stdout.readline().startswith("1/"):
        assert first.poll() is None
    first.kill()
    first.communicate()
    before = len(divergence.read(out))
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert f"{4 - before} cells to do, {before} done" in done.stdout and "0 left" in done.stdout
    found = {(row["network"], row["loss"]): row for row in divergence.read(out)}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for cell in divergence.chosen(words, 0):
        alone = json.loads(json.dumps(divergence.look(cell, divergence.take(kept))))
        assert {**found[cell.network, cell.loss], "seconds": 0} == {**alone, "seconds": 0} and "problem" not in alone
    torch.set_num_threads(threads)


def rows() -> list[dict[str, Any]]:
    """Ten trainings of each group: they rise at 1 to 10 times, and fail at 100 to 1000 times or never."""
    common = {"samples": 8, "learned": True, "runs": 3, "machine": "some", "torch": "2", "data": "digits"}
    return [
        {
            **{"network": str(k), "loss": loss, "optimizer": optimizer, "mode": mode, **common},
            **{"rise": [k, k], "fail": [None, 1e-4] if optimizer == "adam" else [100 * k, 100 * k if k < 10 else None]},
        }
        for k in range(1, 11)
        for loss in ("squared", "cross_entropy")
        for optimizer in ("sgd", "momentum", "bnp", "adam")
        for mode in ("batch", "none")
    ]


@pytest.mark.parametrize("loss", ["squared", "cross_entropy"])
@pytest.mark.parametrize("mode", ["batch", "none"])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_from_cells_to_sentences(divergence: ModuleType, loss: str, mode: str, optimizer: str) -> None:
    found = find(divergence.summary([*rows(), {"problem": "x"}]), loss, optimizer, mode)
    assert found is not None and (found.trainings, found.networks) == (10, 10)
    assert found.rise == Spread(p10=1, median=5, p90=9, min=1, max=10, never=0, always=0)
    assert found.fail == Spread(p10=100, median=500, p90=900, min=100, max=None, never=1, always=0)
    assert found.others["adam"].always == 10
    text = str(found)
    words = {"squared": "½‖f − y‖²", "cross_entropy": "cross-entropy"}[loss]
    norm = {"batch": "BatchNorm in train mode", "none": "no BatchNorm"}[mode]
    assert text.startswith(f"In 10 trainings with {words} and {norm} (10 small networks, digits, full batches, SGD")
    assert ("with momentum 0.9" in text) == ("rises above 0.53 times" in text) == (optimizer == "momentum")
    assert "rise at 1 to 9 times" in text and "failed at 100 to 900 times" in text
    assert "1 of them did not fail at up to 1,024 times" in text and "with Adam at 0.00024 to 0.00024 times" in text


def test_the_table_has_a_line_for_each_group_and_tells_what_failed(divergence: ModuleType) -> None:
    lines = divergence.table([*rows(), {"problem": "ValueError: no"}]).splitlines()
    assert sum(line.startswith(("| ½‖f − y‖² |", "| cross-entropy |")) for line in lines) == 16
    assert lines[2] == (
        "| ½‖f − y‖² | SGD | BatchNorm, train mode | 10 | 1 to 9 | 5 | 1 to 10 | 100 to 900 | 500 | 100 to > 1024 | 1 |"
    )
    assert lines[-1] == "1 ended with ValueError: no"


def test_what_is_said_is_what_the_results_give(divergence: ModuleType) -> None:
    kept = json.loads(divergence.SUMMARY.read_text(encoding="utf-8"))
    assert kept == divergence.summary(divergence.read(divergence.RESULTS))
    assert len(kept["groups"]) == 16 and kept["problems"] == 0 and kept["machine"] and kept["torch"]


@pytest.mark.usefixtures("few_draws")
def test_a_prediction_ends_with_it() -> None:
    torch.manual_seed(0)
    normed = nn.Sequential(nn.Linear(4, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 3))
    plain = nn.Sequential(nn.Linear(4, 30), nn.ReLU(), nn.Linear(30, 3))
    for model, mode in ((normed, "batch"), (plain, "none")):
        for loss in ("squared", "cross_entropy"):
            for momentum, optimizer in ((0.0, "sgd"), (0.5, "momentum")):
                found = predict(model, (4,), loss=loss, momentum=momentum)  # type: ignore[arg-type]
                seen = found.seen_in_training
                assert seen is not None and (seen.loss, seen.optimizer, seen.mode) == (loss, optimizer, mode)
                assert str(found).splitlines()[-1] == str(seen)
                told = json.loads(json.dumps(found.to_dict()))["seen_in_training"]
                assert told["trainings"] == seen.trainings and told["fail"]["p90"] == seen.fail.p90
    x, y = torch.randn(8, 4), torch.randint(3, (8,))
    without: list[tuple[nn.Module, dict[str, Any]]] = [
        (normed, {"statistics": "frozen"}),
        (normed, {"outputs": "one"}),
        (plain, {"loss": nn.functional.cross_entropy, "inputs": x, "targets": y}),
    ]
    for model, options in without:
        found = predict(model, (4,), **options)
        assert found.seen_in_training is None and found.to_dict()["seen_in_training"] is None
        assert str(found).splitlines()[-1] == NOT_SEEN
    assert predict(plain, (4,), statistics="frozen").seen_in_training is not None
