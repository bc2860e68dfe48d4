"""trimtab trains and measures as ever where torch lacks a name that `_torch.py` looks up."""

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.checkpoint import checkpoint

import trimtab
from tests.bnp.helpers import pending_rows
from trimtab import _torch


def numbers(*names: str) -> Any:
    """What comes out in a fresh process."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.missing_names", *names]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def expected() -> Any:
    return numbers()


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """All numbers and words by where they are."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if items is None:
        return {path: value}
    return {key: each for name, inner in items for key, each in flat(inner, f"{path}/{name}").items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", _torch.LOOKED_UP)
def test_nothing_else_comes_out_without_a_name(name: str, expected: Any) -> None:
    found, wanted = flat(numbers(name)), flat(expected)
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        same = pytest.approx(value, rel=1e-4, abs=1e-6, nan_ok=True) if isinstance(value, float) else value
        assert found[key] == same, key


@pytest.fixture(params=[False, True], ids=["there", "missing"])
def names(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Our file, with all names that it looks up and with none of them."""
    if request.param:
        for name in ("_graph_task_id", "_foreach_copy_", "_foreach_add_", "_foreach_sub", "_foreach_norm"):
            monkeypatch.setattr(_torch, name, None)
    return _torch


def test_whether_a_backward_is_running(names: ModuleType) -> None:
    seen = []

    class Layer(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(names.in_backward())
            return super().forward(x)

    layer = Layer(2, 2)
    loss = checkpoint(layer, torch.ones(1, 2), use_reentrant=False).sum()
    assert seen == [False]
    loss.backward()
    assert seen == [False, True]
    torch.autograd.grad(checkpoint(layer, torch.ones(1, 2), use_reentrant=False).sum(), layer.weight)
    layer(torch.ones(1, 2))
    assert seen == [False, True, False, True, False]


class Doubled(torch.autograd.Function):
    """A function of the user's, whose forward is no backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        assert not _torch.in_backward()
        return 2 * x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        assert _torch.in_backward()
        return 2 * grad


def test_the_forward_of_a_function_is_no_backward(names: ModuleType) -> None:
    x = torch.ones(1, requires_grad=True)
    Doubled.apply(x).backward()
    assert x.grad is not None and x.grad.item() == 2


def test_many_tensors_at_once(names: ModuleType) -> None:
    a, b = [torch.arange(4.0), torch.ones(2, 3)], [torch.full((4,), 2.0), torch.zeros(2, 3)]
    targets = [torch.empty_like(x) for x in a]
    names.copy_all_(targets, a)
    names.add_all_(targets, b, alpha=3.0)
    for target, x, y in zip(targets, a, b, strict=True):
        assert torch.equal(target, x + 3 * y)
    for difference, x, y in zip(names.subtract_all(a, b), a, b, strict=True):
        assert torch.equal(difference, x - y)
    for product, x, y in zip(names.multiply_all(a, b), a, b, strict=True):
        assert torch.equal(product, x * y)
    for norm, x in zip(names.norms(a), a, strict=True):
        assert norm.dtype == torch.float64
        assert norm == torch.linalg.vector_norm(x.double())


def test_classes_are_found_by_what_public_ones_have_in_common() -> None:
    class Own(nn.modules.batchnorm._BatchNorm):
        pass

    assert isinstance(Own(2), _torch.BATCH_NORMS) and not isinstance(nn.InstanceNorm1d(2), _torch.BATCH_NORMS)
    assert isinstance(nn.InstanceNorm3d(2), _torch.INSTANCE_NORMS)
    assert isinstance(nn.FeatureAlphaDropout(), _torch.DROPOUTS) and not isinstance(nn.Identity(), _torch.DROPOUTS)
    assert _torch._common_base(nn.Linear, nn.Conv2d) == (nn.Linear, nn.Conv2d)
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    assert type(layer.parametrizations.weight[0]) is _torch.weight_norm_type()


def test_a_step_without_the_hooks_for_all_optimizers(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    parameter = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    handle = register_optimizer_step_pre_hook(lambda *_: called.append(1))
    try:
        for missing in (False, True):
            if missing:
                monkeypatch.delattr(torch.optim.SGD.step, "hooked")
            parameter.grad = torch.ones(1)
            _torch.step_without_hooks(torch.optim.SGD)(optimizer)
            assert not called
    finally:
        handle.remove()
    assert parameter.item() == -1
    assert _torch.step_without_hooks(torch.optim.Optimizer) is torch.optim.Optimizer.step


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("name", ["_HAS_BASE", "_HAS_VERSION", "_PARAMETERS"])
def test_rows_count_as_ever_without_what_tensors_and_modules_have(
    name: str, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A view that is changed in place, a gradient that is set to zero, and layers that are put into the model."""
    if name == "_HAS_BASE":
        monkeypatch.setattr(_torch, "_HAS_BASE", False)
        monkeypatch.setattr(_torch, "base_of", lambda x: x)
    elif name == "_HAS_VERSION":
        monkeypatch.setattr(_torch, "version_of", lambda x: None)
    else:
        monkeypatch.setattr(_torch, "_PARAMETERS", "gone")
        monkeypatch.setattr(_torch, "_CHILDREN", "gone")
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 2, bias=False), nn.ReLU(inplace=True))
    bnp = trimtab.BNP(model, fast=fast)
    model(torch.randn(2, 5, 3)).sum().backward()
    assert pending_rows(bnp) == {"0": 10, "2": 10}
    model.zero_grad(set_to_none=False)
    model(torch.randn(7, 3)).sum().backward()
    assert pending_rows(bnp) == {"0": 7, "2": 7}
    bnp.step()
    model.append(nn.Linear(2, 2))
    model[0].weight = nn.Parameter(torch.randn(4, 3))
    model(torch.randn(6, 3)).sum().backward()
    assert pending_rows(bnp) == {"0": 6, "2": 6, "4": 6}
