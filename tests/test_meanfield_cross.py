"""The benchmark of mean field against drawn networks: its own measurement, its drawing, its files."""

import contextlib
import copy
import importlib
import io
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
pytestmark = pytest.mark.skipif(not BENCHMARKS.exists(), reason="not in the source distribution")


def module(name: str) -> ModuleType:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(BENCHMARKS))


def jacobian(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """(samples, outputs, parameters) by a backward for each output of each sample, and the outputs."""
    parameters = list(model.parameters())
    f = model(x)
    rows = [torch.autograd.grad(value, parameters, retain_graph=True) for value in f.flatten()]
    flat = torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])
    return flat.reshape(*f.shape, -1), f.detach()


def with_batch_statistics(model: nn.Module, x: Tensor) -> nn.Module:
    """In evaluation mode, with the statistics of this batch as running ones."""
    model = copy.deepcopy(model).train()

    def keep(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        values = inputs[0].detach().transpose(0, 1).flatten(1)
        layer.running_mean = values.mean(1)
        layer.running_var = values.var(1, correction=0)

    norms = [one for one in model.modules() if isinstance(one, nn.BatchNorm1d | nn.BatchNorm2d)]
    hooks = [norm.register_forward_hook(keep) for norm in norms]
    model(x)
    for hook in hooks:
        hook.remove()
    return model.eval()


def dense_eigenvalues(model: nn.Module, x: Tensor, frozen: bool) -> tuple[float, float, float]:
    """Largest eigenvalues of P×P matrices JᵀHJ/n: the mean of those of one output, all outputs, cross-entropy."""
    j, f = jacobian(with_batch_statistics(model, x) if frozen else model.train(), x)
    n, c = f.shape

    def largest(matrix: Tensor) -> float:
        return float(torch.linalg.eigvalsh(matrix)[-1])

    one = sum(largest(j[:, a].T @ j[:, a] / n) for a in range(c)) / c
    everything = torch.einsum("iap,iaq->pq", j, j) / n
    seen = torch.zeros_like(everything)
    for i in range(n):
        target = torch.tensor(0)
        hessian = torch.autograd.functional.hessian(lambda out, t=target: F.cross_entropy(out, t), f[i])
        seen += j[i].T @ hessian @ j[i] / n
    return one, largest(everything), largest(seen)


def networks() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    torch.manual_seed(0)
    residual = module("meanfield_networks").Residual
    block = nn.Sequential(nn.Conv2d(3, 3, 3, 1, 1, bias=False), nn.BatchNorm2d(3))
    return {
        "batch norm": (nn.Sequential(nn.Linear(9, 6), nn.BatchNorm1d(6), nn.GELU(), nn.Linear(6, 3)), (9,)),
        "few inputs": (nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)), (3,)),
        "layer norm": (nn.Sequential(nn.Linear(9, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 3)), (9,)),
        "none": (nn.Sequential(nn.Linear(9, 6), nn.SiLU(), nn.Linear(6, 5), nn.ELU(), nn.Linear(5, 3)), (9,)),
        "convolutions": (
            nn.Sequential(
                nn.Conv2d(2, 3, 3, 2, 1),
                nn.BatchNorm2d(3),
                nn.ReLU(),
                nn.Conv2d(3, 4, 3),
                nn.BatchNorm2d(4),
                nn.GELU(),
                nn.MaxPool2d(2),
                nn.Flatten(),
                nn.Linear(4, 3),
            ),
            (2, 8, 8),
        ),
        "group norm": (
            nn.Sequential(
                nn.Conv2d(2, 4, 3),
                nn.GroupNorm(2, 4),
                nn.LeakyReLU(),
                nn.AvgPool2d(2),
                nn.AdaptiveAvgPool2d(1),
                nn.Flatten(),
                nn.Linear(4, 3),
            ),
            (2, 6, 6),
        ),
        "residual": (
            nn.Sequential(
                nn.Conv2d(2, 3, 3, 1, 1),
                residual(block, nn.Identity(), nn.ReLU()),
                nn.AdaptiveAvgPool2d(1),
                nn.Flatten(),
                nn.Linear(3, 3),
            ),
            (2, 4, 4),
        ),
    }


@pytest.mark.parametrize("frozen", [True, False], ids=["frozen", "train"])
@pytest.mark.parametrize(
    "name", ["batch norm", "few inputs", "layer norm", "none", "convolutions", "group norm", "residual"]
)
def test_eigenvalues_are_those_of_the_dense_matrix(name: str, frozen: bool) -> None:
    model, shape = networks()[name]
    model = model.double()
    with torch.no_grad():
        for parameter in model.parameters():  # γ, β and biases of all sizes
            parameter += 0.3 * torch.randn_like(parameter)
    x = torch.randn(6, *shape, dtype=torch.float64) + 0.5
    expected = dense_eigenvalues(model, x, frozen)
    for memory in (1e9, 1):  # in one chunk, and row by row
        found = module("meanfield_gram").eigenvalues(model, x, frozen=frozen, memory=memory)
        assert (found.one, found.all, found.ce) == pytest.approx(expected, rel=1e-9)


def test_drawn_networks_are_the_same_again_and_run() -> None:
    drawn = module("meanfield_networks")
    families = []
    for index in range(20):
        spec = drawn.draw(5, index)
        assert spec == drawn.draw(5, index) == json.loads(json.dumps(spec))
        families.append(spec["family"])
        for data in drawn.DATA:
            shape = drawn.input_shape(spec, data)
            one, same, other = (drawn.build(spec, shape, seed) for seed in (1, 1, 2))
            weights = [next(model.parameters()) for model in (one, same, other)]
            assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])
            assert one(torch.randn(3, *shape)).shape == (3, drawn.OUTPUTS)
    assert [families.count(name) for name in ("dense", "conv", "residual")] == [11, 6, 3]
    assert drawn.draw(5, 0) != drawn.draw(6, 0)


def test_parts_of_the_work_are_all_of_it() -> None:
    cross = module("meanfield_cross")
    whole = cross.cases(1, list(range(8)), 4)
    parts = [cross.share(whole, number, 3) for number in range(3)]
    keys = [case.key for part in parts for case in part]
    assert len(keys) == len(whole) and all(case.key in keys for case in whole)
    assert cross.numbers("0,3,5-7") == [0, 3, 5, 6, 7]


def run(folder: Path, command: str, *options: str) -> str:
    line = ["meanfield_cross.py", command, "--folder", str(folder), "--only", "3,8", "--data", "white,mnist"]
    told = io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(told),
        torch.random.fork_rng(),
    ):
        patch.setattr(sys, "argv", [*line, "--samples", "8", *options])
        patch.syspath_prepend(str(BENCHMARKS))
        module("meanfield_cross").main()
    return told.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    images = np.random.default_rng(0).integers(0, 256, (16, 1, 28, 28), dtype=np.uint8)
    np.savez(tmp_path / "inputs.npz", mnist=images, cifar10=np.repeat(images, 3, 1))
    return tmp_path


def values(folder: Path) -> dict[tuple[Any, ...], Any]:
    found: dict[tuple[Any, ...], Any] = module("meanfield_cross").measurements(folder)
    return found


def test_a_measurement_goes_on_where_it_was_stopped(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    run(folder, "measure", "--draws", "2")
    path = folder / "measured.jsonl"
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    assert len(lines) == len(values(folder)) >= 4
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:40])  # it was killed while it wrote
    assert len(values(folder)) == len(lines) - 1
    run(folder, "measure", "--draws", "2")
    again = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert [one["values"] for one in again] == [json.loads(line)["values"] for line in lines]

    run(folder, "measure", "--draws", "3")  # adds a third to each
    straight = tmp_path_factory.mktemp("straight")
    (straight / "inputs.npz").write_bytes((folder / "inputs.npz").read_bytes())
    run(straight, "measure", "--draws", "3")
    assert values(folder) == values(straight)
    assert run(folder, "measure", "--draws", "3") == ""
    run(folder, "measure", "--draws", "3", "--most", "5", "--error", "0")
    assert {len(one) for one in values(folder).values()} == {5}
    assert run(folder, "measure", "--draws", "3", "--most", "6", "--error", "9") == ""
    assert "out of time" in run(folder, "measure", "--draws", "6", "--limit-seconds", "0")


@pytest.mark.usefixtures("few_draws")
def test_predictions_are_put_beside_measurements(folder: Path) -> None:
    run(folder, "measure", "--draws", "2")
    for part in ("0/2", "1/2"):
        run(folder, "predict", "--shard", part)
    told = run(folder, "table", "--json", str(folder / "rows.json"))
    kept = json.loads((folder / "rows.json").read_text(encoding="utf-8"))["rows"]
    assert len(kept) == 3 * len(values(folder))
    for row in kept:
        assert row["ratio"] == pytest.approx(row["predicted"] / row["measured"]) and row["draws"] == 2
    assert f"| all | {len(kept)} |" in told
    assert "predicted ÷ measured" in run(folder, "table", "--worst", "5")
