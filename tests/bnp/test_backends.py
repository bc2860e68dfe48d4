"""The compiled kernels against the plain way, of which the oracle is the judge."""

import copy
import pickle
import runpy
import subprocess
import sys
import types
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch._subclasses import FakeTensorMode

import trimtab
from tests.bnp.helpers import gradients, statistics
from trimtab.bnp import Moments, Options
from trimtab.bnp.backends import Backends, cpu
from trimtab.bnp.backends.buffers import division_by

needs_library = pytest.mark.skipif(not cpu.available(), reason="the C kernels were not built")


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(8, 8, 3, groups=4, bias=False),
        nn.ReLU(),
        nn.Conv2d(8, 40, 3, stride=2),
        nn.Flatten(),
        nn.Linear(40 * 4, 700),
        nn.ReLU(),
        nn.Linear(700, 5),
    )


@pytest.fixture
def _two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def step(net: nn.Sequential, bnp: trimtab.BNP, inputs: list[torch.Tensor], spoilt: int | None) -> None:
    net.zero_grad()
    for x in inputs:
        net(x).square().mean().backward()
    if spoilt is not None:
        grad = net[spoilt].weight.grad
        assert grad is not None
        grad[tuple(size // 2 for size in grad.shape)] = float("inf")
    bnp.step()


@needs_library
@pytest.mark.usefixtures("_two_threads")
@pytest.mark.filterwarnings("ignore::trimtab.TrimtabWarning")
@pytest.mark.parametrize("spatial", ["channel", "site", "channels last in memory"])
@pytest.mark.parametrize(
    "options", [{}, {"statistics": "batch"}, {"debias": True}, {"no_bias": "variance", "rho": 0.3}], ids=str
)
def test_steps_equal_the_plain_ones(options: dict[str, str], spatial: str) -> None:
    """Steps of one and of many samples, of two backwards, with infinite inputs and gradients."""
    fast, plain = network(), network()
    if spatial not in ("channel", "site"):
        fast, spatial = fast.to(memory_format=torch.channels_last), "channel"
    with (
        trimtab.BNP(fast, spatial=spatial, **options) as ours,  # type: ignore[arg-type]
        trimtab.BNP(plain, spatial=spatial, fast=False, **options) as theirs,  # type: ignore[arg-type]
    ):
        generator = torch.Generator().manual_seed(1)
        steps = [((7,), None), ((1,), None), ((3, 2), None), ((4,), 4), ((4,), 2), ((2,), None), ((9,), None)]
        for sizes, spoilt in steps:
            inputs = [2 + torch.randn(size, 3, 7, 7, generator=generator) for size in sizes]
            if sizes == (2,):
                inputs[0][1, 2, 3, 4] = float("inf")
            for net, bnp in ((fast, ours), (plain, theirs)):
                step(net, bnp, inputs, spoilt)
            torch.testing.assert_close(gradients(fast), gradients(plain), rtol=1e-4, atol=1e-6, equal_nan=True)
            torch.testing.assert_close(statistics(ours), statistics(theirs), rtol=1e-5, atol=1e-6)
        assert [statistics(ours)[f"{layer}.skipped"].item() for layer in (0, 2, 4, 6, 8)] == [1, 2, 2, 1, 1]


@needs_library
def test_the_kernel_is_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the test above would compare the plain way with itself."""
    taken: list[int] = []
    do = cpu.CpuBackend.step
    monkeypatch.setattr(cpu.CpuBackend, "step", lambda *args: taken.append(len(args[1])) or do(*args))
    net = network()
    with trimtab.BNP(net) as bnp:
        step(net, bnp, [torch.randn(2, 3, 7, 7)], None)
    with trimtab.BNP(net, fast=False) as bnp:
        step(net, bnp, [torch.randn(2, 3, 7, 7)], None)
    assert taken == [5]


SHAPES = [
    ((1, 5), -1),
    ((16, 3072), -1),
    ((3001, 7), -1),
    ((5, 9, 700), -1),
    ((70000, 3), -1),
    ((128, 16, 8, 9), 1),
    ((2, 3, 100, 101), 1),
    ((4, 6, 1, 1), 1),
    ((4, 6, 9), 1),
    ((2, 3, 4, 5, 6), 1),
]


@needs_library
@pytest.mark.usefixtures("_two_threads")
@pytest.mark.parametrize(("shape", "column"), SHAPES, ids=str)
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_moments(shape: tuple[int, ...], column: int, offset: float) -> None:
    """Also for columns that are far from zero for their spread, where sums that are not shifted give −1."""
    x = offset + torch.randn(shape, generator=torch.Generator().manual_seed(0)) * (1e-2 if offset else 1)
    true = Moments.of(x.double(), columns=column)
    layouts = [x]
    if x.ndim > 3:
        layouts.append(x.to(memory_format=torch.channels_last if x.ndim == 4 else torch.channels_last_3d))
    for laid_out in layouts:
        layout = Backends(Options()).layout(laid_out, column)
        assert layout is not None
        found = layout.moments(laid_out, False)
        assert found is not None
        assert found.count == true.count
        torch.testing.assert_close(found.mean.double(), true.mean, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(found.variance.double(), true.variance, rtol=1e-4, atol=1e-12)


@given(st.integers(1, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_division_by_a_number_that_is_known_before(divisor: int, number: int) -> None:
    magic, shift = division_by(divisor)
    assert -(2**31) <= magic < 2**31
    for n in {number, number // divisor * divisor, max(number // divisor * divisor - 1, 0), 2**31 - 1}:
        product = n * (magic % 2**32)
        assert (product >> 32) + n < 2**32  # as the kernel adds them
        assert ((product >> 32) + n) >> shift == n // divisor


@needs_library
def test_moments_do_not_depend_on_the_number_of_threads() -> None:
    x = torch.randn(700, 1300)
    results = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        results.append(Backends(Options()).moments(x, -1))
    torch.set_num_threads(1)
    for other in results[1:]:
        assert torch.equal(results[0].mean, other.mean)
        assert torch.equal(results[0].variance, other.variance)


def test_what_the_kernel_does_not_take_goes_the_plain_way() -> None:
    for x in (torch.randn(6, 4).t(), torch.randn(4, 6).bfloat16(), torch.empty(0, 6), torch.randn(8, 6)[::2]):
        ours, plain = Backends(Options()).moments(x, -1), Moments.of(x, columns=-1)
        assert (ours.count, ours.mean.dtype) == (plain.count, plain.mean.dtype)
        torch.testing.assert_close((ours.mean, ours.variance), (plain.mean, plain.variance))


@needs_library
def test_autograd_sees_that_gradients_were_changed() -> None:
    layer = nn.Linear(3, 2)
    with trimtab.BNP(layer) as bnp:
        layer(torch.randn(4, 3)).sum().backward()
        assert layer.weight.grad is not None and layer.bias.grad is not None
        versions = layer.weight.grad._version, layer.bias.grad._version
        bnp.step()
        assert layer.weight.grad._version > versions[0]
        assert layer.bias.grad._version > versions[1]


def two_linears() -> tuple[nn.Linear, nn.Linear]:
    torch.manual_seed(0)
    layer = nn.Linear(300, 4)
    return layer, copy.deepcopy(layer)


def backward(layer: nn.Module, x: torch.Tensor) -> None:
    layer.zero_grad()
    layer(x).float().square().mean().backward()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_model_that_is_converted_between_backward_and_step(dtype: torch.dtype) -> None:
    """The second step could take the first one's way to the kernel, with numbers of another size."""
    pair = two_linears()
    for layer, fast in zip(pair, (True, False), strict=True):
        with trimtab.BNP(layer, fast=fast) as bnp:
            for _ in range(3):
                backward(layer.float(), torch.ones(8, 300))
                bnp.step()
                backward(layer, torch.ones(8, 300))
                layer.to(dtype)
                bnp.step()
    torch.testing.assert_close(gradients(pair[0]), gradients(pair[1]))


def test_a_bias_of_another_type_that_comes_later() -> None:
    pair = two_linears()
    for layer, fast in zip(pair, (True, False), strict=True):
        layer.bias.data = layer.bias.data.bfloat16()
        with trimtab.BNP(layer, fast=fast) as bnp:
            for without in (True, False, False):
                with torch.autocast("cpu", torch.bfloat16):
                    backward(layer, torch.ones(8, 300))
                if without:
                    layer.bias.grad = None
                bnp.step()
    torch.testing.assert_close(gradients(pair[0]), gradients(pair[1]))


def test_a_weight_that_gets_another_shape() -> None:
    """Inputs and outputs are as before, so nothing else tells."""
    results = []
    for fast in (True, False):
        torch.manual_seed(0)
        layer = nn.Conv2d(4, 8, 3, padding=1)
        with trimtab.BNP(layer, fast=fast) as bnp:
            for _ in range(2):
                backward(layer, torch.ones(2, 4, 6, 6))
                bnp.step()
            layer.zero_grad()
            layer.weight.data = torch.ones(8, 4, 5, 5)
            layer.padding, layer.kernel_size = (2, 2), (5, 5)
            backward(layer, torch.ones(2, 4, 6, 6))
            bnp.step()
        results.append(gradients(layer))
    torch.testing.assert_close(*results)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
def test_inputs_without_memory() -> None:
    layer = nn.Linear(6, 4)
    with trimtab.BNP(layer) as bnp:
        for known in (False, True):  # before and after an input of this shape was seen
            with FakeTensorMode(allow_non_fake_inputs=True):
                layer(torch.randn(8, 6))
            layer(torch._efficientzerotensor((8, 6)))
            layer(torch.randn(8, 6).to_sparse_csr())
            negative = torch._neg_view(torch.full((8, 6), 3.0))
            backward(layer, negative)
            assert bnp.state_dict()["layers"][""]["pending"]["mean"].tolist() == [-3.0] * 6, known
            backward(layer, torch.randn(8, 6))
            bnp.step()
        layer(torch.randn(8, 6)).sum().backward()
        layer.weight.grad = torch._efficientzerotensor((4, 6))
        with pytest.raises(ValueError, match="zeros without memory"):
            bnp.step()


def unaligned(x: torch.Tensor) -> torch.Tensor:
    """A copy at an address that is no multiple of the numbers' size, as in a file that is mapped into memory."""
    content = torch.cat([torch.zeros(1, dtype=torch.uint8), x.detach().contiguous().view(torch.uint8).flatten()])
    return torch.frombuffer(content.numpy(), dtype=x.dtype, offset=1).view(x.shape)


@needs_library
def test_numbers_that_are_not_aligned_are_not_for_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not all processors read them, and C does not allow it."""
    taken: list[str] = []
    step, layout = cpu.CpuBackend.step, cpu.CpuBackend.layout
    monkeypatch.setattr(cpu.CpuBackend, "step", lambda *args: taken.append("step") or step(*args))

    def spied(backend: cpu.CpuBackend, x: torch.Tensor, column: int) -> object:
        found = layout(backend, x, column)
        assert found is not None
        moments = found.moments

        def spied_moments(x: torch.Tensor, saved: bool) -> object:
            result = moments(x, saved)
            taken.extend(["moments"] * (result is not None))
            return result

        found.moments = spied_moments  # type: ignore[method-assign,assignment]
        return found

    monkeypatch.setattr(cpu.CpuBackend, "layout", spied)
    layer = nn.Linear(6, 4)
    with trimtab.BNP(layer) as bnp:
        backward(layer, torch.randn(8, 6))
        bnp.step()
        assert taken == ["moments", "step"]
        backward(layer, unaligned(torch.randn(8, 6)))
        assert layer.weight.grad is not None
        layer.weight.grad = unaligned(layer.weight.grad)
        bnp.step()
        assert taken == ["moments", "step"]


def test_a_copy_knows_no_addresses() -> None:
    """A BNP that is copied with its model in the middle of training goes on as the original does."""
    layer = nn.Linear(6, 4)
    layer.bnp = trimtab.BNP(layer)
    x = torch.randn(8, 6)
    for _ in range(3):
        backward(layer, x)
        layer.bnp.step()
    twins = [copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))]
    for twin in twins:
        twin.bnp.detach()
        optimizer = torch.optim.SGD(twin.parameters(), lr=0.0)
        twin.bnp.attach(optimizer)
        for _ in range(2):
            backward(twin, x)
            optimizer.step()
    for _ in range(2):
        backward(layer, x)
        layer.bnp.step()
    for twin in twins:
        torch.testing.assert_close(gradients(twin), gradients(layer))
        torch.testing.assert_close(statistics(twin.bnp), statistics(layer.bnp))
        assert statistics(twin.bnp)[".steps"] == 5


def test_nothing_holds_a_gradient_after_the_step() -> None:
    layer = nn.Linear(6, 4)
    with trimtab.BNP(layer) as bnp:
        for _ in range(3):
            backward(layer, torch.randn(8, 6))
            bnp.step()
            assert layer.weight.grad is not None
            held = weakref.ref(layer.weight.grad)
            layer.zero_grad()
            assert held() is None


@pytest.mark.parametrize("cc", ["true", "gcc -E", "nonsense", "false", "gcc '"])
def test_a_compiler_that_compiles_nothing(cc: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "hatchling.builders.hooks.plugin.interface"  # which is there when a wheel is built, and only then
    interface = types.ModuleType(name)
    interface.BuildHookInterface = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, interface)
    for end in ("hatchling", "hatchling.builders", "hatchling.builders.hooks", "hatchling.builders.hooks.plugin"):
        monkeypatch.setitem(sys.modules, end, types.ModuleType(end))
    build = runpy.run_path("hatch_build.py")["build"]
    monkeypatch.setenv("CC", cc)
    assert build(Path("src/trimtab/bnp/backends/native.c"), tmp_path / "_native.so").endswith(".")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_without_the_library_all_works(tmp_path: Path) -> None:
    """In a process of its own, where the file is looked for in an empty folder and one of another version is found."""
    script = """
import ctypes, pathlib, sys
from trimtab.bnp import backends
from trimtab.bnp.backends import cpu
cpu.LIBRARY = pathlib.Path(sys.argv[1]) / "_native.so"
cpu._FUNCTIONS = cpu._load()
assert not cpu.available() and backends.describe() == "plain PyTorch"
import torch, trimtab
layer = torch.nn.Linear(3, 2)
bnp = trimtab.BNP(layer)
layer(torch.randn(4, 3)).sum().backward()
bnp.step()
cpu.LIBRARY.write_text("not a library")
assert cpu._load() == {}
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
