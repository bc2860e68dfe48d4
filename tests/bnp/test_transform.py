"""The pure functions, against the dense matrix."""

import ast
import inspect
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.bnp.oracle import preconditioner
from trimtab.bnp.algorithm import transform
from trimtab.bnp.backends import choice


def test_steps_4_and_5_are_the_matrix() -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(1, 3, 4, 1, dtype=torch.float64), torch.randn(1, 3, 1, 1, dtype=torch.float64)
    mean, scale = torch.randn(1, 1, 4, 1, dtype=torch.float64), torch.rand(1, 1, 4, 1, dtype=torch.float64) + 0.1
    new_weight, new_bias = transform.precondition(weight, bias, mean, scale, q2=2.5)
    p = preconditioner(mean.flatten().numpy(), scale.flatten().numpy())
    for i in range(3):
        expected = p @ p.T @ np.concatenate([bias[0, i].flatten(), weight[0, i].flatten()]) / 2.5
        np.testing.assert_allclose(np.concatenate([new_bias[0, i, 0], new_weight[0, i, :, 0]]), expected, rtol=1e-13)


def test_it_is_linear_so_a_loss_scale_passes_through() -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(2, 3, 4, 9), torch.randn(2, 3, 1, 1)
    mean, scale = torch.randn(2, 1, 4, 1), torch.rand(2, 1, 4, 1) + 0.1
    new_weight, new_bias = transform.precondition(weight, bias, mean, scale, q2=1.5)
    scaled = transform.precondition(1024 * weight, 1024 * bias, mean, scale, q2=1.5)
    torch.testing.assert_close((1024 * new_weight, 1024 * new_bias), scaled)


@pytest.mark.parametrize(
    ("fan_in", "samples", "outputs", "expected"),
    [
        (100, 60, 60, 100 / 60),  # dense, n > N
        (100, 200, 200, 1.0),  # dense, n < N
        (27, 128, 128 * 32 * 32, 32.0),  # convolution, √(r s)
        (4608, 2, 2 * 16, 2304.0),  # convolution, c k²/N
        (64, 1, 1, 64.0),  # one sample
    ],
)
def test_squared_norm(fan_in: int, samples: int, outputs: int, expected: float) -> None:
    assert transform.squared_norm(fan_in, samples, outputs) == pytest.approx(expected)


def test_regularized_takes_the_maximum_of_each_group() -> None:
    variance = torch.tensor([[1.0, 2.0], [10.0, 5.0]]).reshape(2, 1, 2, 1)
    expected = torch.tensor([[1.0 + 0.2 + 0.5, 2.0 + 0.2 + 0.5], [10.0 + 1 + 0.5, 5.0 + 1 + 0.5]])
    torch.testing.assert_close(transform.regularized(variance, 0.1, 0.5).reshape(2, 2), expected)


def test_uncentred_columns_scaled_by_the_second_moment_have_equal_norm() -> None:
    """Lemma A1's scaling; by the variance a large mean would leave them far apart."""
    h = torch.randn(500, 3, dtype=torch.float64) * torch.tensor([1.0, 5.0, 0.2]) + torch.tensor([10.0, 0.0, 3.0])
    square = transform.second_moment(h.mean(0), h.var(0, correction=0))
    norms = (h / square.sqrt()).norm(dim=0)
    torch.testing.assert_close(norms, torch.full((3,), math.sqrt(500), dtype=torch.float64))


def test_transform_is_pure() -> None:
    """It imports arithmetic and tensors only: no hooks, no modules, no state."""
    tree = ast.parse(inspect.getsource(transform))
    imports = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert imports == [
        "import math",
        "import torch",
        "from torch import Tensor",
        "from trimtab.bnp.algorithm.moments import Count",
    ]
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def test_the_algorithm_is_public_pytorch_and_nothing_else() -> None:
    """No hooks, no addresses, nothing about compiling; and of trimtab it needs only the options."""
    folder = Path(inspect.getsourcefile(transform) or "").parent
    for path in folder.glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert not {name for name in names if name.startswith("_") and not name.startswith("__")}, path
        assert not names & {"compiler", "is_compiling", "data_ptr", "register_hook", "register_forward_hook"}, path
        modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
        ours = {module for module in modules if module.startswith("trimtab")}
        assert ours <= {"trimtab.bnp.options"} | {m for m in ours if m.startswith("trimtab.bnp.algorithm")}, path


def test_the_algorithm_has_less_than_500_lines_and_no_file_of_bnp_more_than_300() -> None:
    """So that it can be read in a quarter of an hour."""
    algorithm = Path(inspect.getsourcefile(transform) or "").parent
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in algorithm.parent.rglob("*.py")}
    reference = len(inspect.getsourcelines(choice._reference)[0])
    assert sum(lines[path] for path in algorithm.glob("*.py")) + reference < 500
    assert {str(path): count for path, count in lines.items() if count > 300} == {}
