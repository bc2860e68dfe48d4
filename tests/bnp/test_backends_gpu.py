"""The kernels in Triton against the plain way, and a captured step against one that is not."""

import math

import pytest
import torch
from torch import Tensor, nn

import trimtab
from tests.bnp.helpers import gradients, statistics
from tests.bnp.test_backends import network, step
from tests.bnp.test_gpu import no_synchronization
from trimtab.bnp import backends, layers
from trimtab.bnp.backends import Backends
from trimtab.bnp.backends.buffers import BufferMoments

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(autouse=True)
def _exact() -> None:
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False


def test_triton_is_there() -> None:
    assert backends.describe("cuda") == "Triton"


@pytest.mark.filterwarnings("ignore::trimtab.TrimtabWarning")
@pytest.mark.parametrize("spatial", ["channel", "site", "channels last in memory"])
@pytest.mark.parametrize(
    "options", [{}, {"statistics": "batch"}, {"debias": True}, {"no_bias": "variance", "rho": 0.3}], ids=str
)
def test_steps_equal_the_plain_ones(options: dict[str, str], spatial: str) -> None:
    """Each size comes thrice, since the kernels are not used the first time."""
    fast, plain = network().cuda(), network().cuda()
    if spatial not in ("channel", "site"):
        fast, spatial = fast.to(memory_format=torch.channels_last), "channel"
    with (
        trimtab.BNP(fast, spatial=spatial, **options) as ours,  # type: ignore[arg-type]
        trimtab.BNP(plain, spatial=spatial, fast=False, **options) as theirs,  # type: ignore[arg-type]
    ):
        generator = torch.Generator().manual_seed(1)
        sizes = [((7,), None), ((1,), None), ((3, 2), None), ((4,), 4), ((4,), 2), ((2,), None), ((9,), None)] * 3
        for size, spoilt in sizes:
            inputs = [2 + torch.randn(n, 3, 7, 7, generator=generator).cuda() for n in size]
            if size == (2,):
                inputs[0][1, 2, 3, 4] = float("inf")
            for net, bnp in ((fast, ours), (plain, theirs)):
                step(net, bnp, inputs, spoilt)
            torch.testing.assert_close(gradients(fast), gradients(plain), rtol=1e-4, atol=1e-5, equal_nan=True)
            torch.testing.assert_close(statistics(ours), statistics(theirs), rtol=1e-5, atol=1e-6)
        assert [statistics(ours)[f"{layer}.skipped"].item() for layer in (0, 2, 4, 6, 8)] == [3, 6, 6, 3, 3]


def test_many_outputs_and_steps_with_closures() -> None:
    """A program of the kernel then does several outputs; after the first run of a closure the averages stay."""
    results = []
    for fast in (True, False):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(5, 2500), nn.Unflatten(1, (2500, 1)), nn.Conv1d(2500, 2600, 1, groups=2)).cuda()
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
        trimtab.BNP(net, fast=fast).attach(optimizer)
        generator = torch.Generator().manual_seed(1)
        for _ in range(4):
            x = torch.randn(7, 5, generator=generator).cuda()

            def closure(net: nn.Module = net, x: Tensor = x) -> Tensor:
                net.zero_grad()
                loss: Tensor = net(x).square().mean()
                loss.backward()
                return loss

            optimizer.step(closure)
            closure()
            optimizer.step()
            optimizer.step(closure)
        results.append([parameter.detach().clone() for parameter in net.parameters()])
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_moments_of_many_inputs(dtype: torch.dtype, memory_format: torch.memory_format) -> None:
    torch.manual_seed(0)
    room = Backends(trimtab.bnp.Options())
    shapes = [(128, 16, 32, 32), (3, 5, 7, 7), (2, 3, 100, 101), (70, 64, 8, 8), (64, 24, 56, 56)]
    for _ in range(3):
        inputs = [(3 + torch.randn(s, device="cuda")).to(dtype).to(memory_format=memory_format) for s in shapes]
        found = [room.moments(x, 1, saved=True) for x in inputs]
        rows = [(3 + torch.randn(s, device="cuda")).to(dtype) for s in ((1, 5), (16, 3072), (5000, 70), (100_003, 96))]
        found += [room.moments(x, -1, saved=True) for x in rows]
        for moments in found:
            assert isinstance(moments, BufferMoments)
            assert moments.x is not None
        room.flush()
        for moments, x in zip(found, [x.movedim(1, -1) for x in inputs] + rows, strict=True):
            true = trimtab.bnp.Moments.of(x.double(), columns=-1)
            assert moments.count == true.count
            torch.testing.assert_close(moments.mean.double(), true.mean, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(moments.variance.double(), true.variance, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize("shape", [(3000, 64), (20, 8, 7, 8)])
def test_inputs_may_begin_anywhere_in_memory(shape: tuple[int, ...], saved: bool, dtype: torch.dtype) -> None:
    """The kernels read 16 bytes at once, which is a fault where they do not begin at a multiple of 16."""
    room = Backends(trimtab.bnp.Options())
    memory = (3 + torch.randn(2 + math.prod(shape), device="cuda")).to(dtype)
    for begin in (0, 0, 0, 1, 2, 1, 0, 1):
        x = memory[begin : begin + math.prod(shape)].view(shape)
        column = -1 if len(shape) == 2 else 1
        moments = room.moments(x, column, saved=saved)
        room.flush()
        true = trimtab.bnp.Moments.of(x.double(), columns=column)
        torch.testing.assert_close(moments.mean.double(), true.mean, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(moments.variance.double(), true.variance, rtol=1e-5, atol=1e-6)


def test_moments_of_numbers_whose_sum_is_no_number() -> None:
    room = Backends(trimtab.bnp.Options())
    x = torch.full((64, 8), 2e37, device="cuda")
    for _ in range(3):
        moments = room.moments(x, -1, saved=True)
        room.flush()
        assert torch.equal(moments.mean, x[0]) and not moments.variance.any()


def captured(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> torch.cuda.CUDAGraph:
    """The whole step as a graph, after three steps that are not."""

    def train() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            train()
    torch.cuda.current_stream().wait_stream(stream)
    optimizer.zero_grad()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        train()
    return graph


@pytest.mark.parametrize("fast", [True, False])
def test_a_captured_step_goes_on_like_the_others(fast: bool) -> None:
    torch.manual_seed(0)
    ours, theirs = network().cuda(), network().cuda()
    inputs = [2 + torch.randn(6, 3, 7, 7).cuda() for _ in range(10)]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9) for net in (ours, theirs)]
    bnps = [
        trimtab.BNP(net, fast=fast).attach(optimizer) for net, optimizer in zip((ours, theirs), optimizers, strict=True)
    ]
    x = inputs[0].clone()
    graph = captured(ours, optimizers[0], x)  # three steps with the first input
    for given in inputs:
        x.copy_(given)
        graph.replay()
    for given in [inputs[0]] * 3 + inputs:
        optimizers[1].zero_grad()
        theirs(given).square().mean().backward()
        optimizers[1].step()
    torch.testing.assert_close(list(ours.parameters()), list(theirs.parameters()), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(statistics(bnps[0]), statistics(bnps[1]), rtol=1e-4, atol=1e-5)
    assert statistics(bnps[0])["0.steps"] == 13


def test_no_step_waits_for_the_device() -> None:
    net = network().cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    trimtab.BNP(net).attach(optimizer)
    x = torch.randn(6, 3, 7, 7).cuda()

    def train() -> None:
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

    for _ in range(4):
        train()
    with no_synchronization():
        for _ in range(20):
            train()


def test_moments_that_wait_hold_no_memory_after_the_backward() -> None:
    peaks = []
    for with_bnp in (False, True):
        torch.manual_seed(0)
        net = nn.Sequential(*[nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()) for _ in range(12)]).cuda()
        x = torch.randn(64, 8, 64, 64).cuda()
        bnp = trimtab.BNP(net) if with_bnp else None
        for _ in range(3):
            torch.cuda.reset_peak_memory_stats()
            net.zero_grad()
            net(x).square().mean().backward()
            if bnp is not None:
                bnp.step()
        peaks.append(torch.cuda.max_memory_allocated())
        del net, x, bnp
        torch.cuda.empty_cache()
    assert peaks[1] <= 1.02 * peaks[0]


def test_an_input_that_is_kept_elsewhere_does_not_wait() -> None:
    layer = nn.Linear(4, 3).cuda()
    x = torch.randn(5, 4).cuda()
    with trimtab.BNP(layer) as bnp:
        assert bnp is not None
        with torch.autograd.graph.save_on_cpu():
            assert not layers.is_kept(layer, x)
        with torch.autocast("cuda", torch.bfloat16):
            assert not layers.is_kept(layer, x)
        assert layers.is_kept(layer, x)


def test_what_waits_does_not_grow_without_end() -> None:
    """Inputs whose backward never comes, of a part of the model."""
    room = Backends(trimtab.bnp.Options())
    moments = [room.moments(torch.randn(2, 3, device="cuda"), -1, saved=True) for _ in range(200)]
    assert sum(each.x is not None for each in moments) <= 64


def test_under_autocast_the_step_is_that_of_the_plain_way() -> None:
    fast, plain = network().cuda(), network().cuda()
    with trimtab.BNP(fast) as ours, trimtab.BNP(plain, fast=False) as theirs:
        for _ in range(4):
            x = torch.randn(6, 3, 7, 7).cuda()
            for net, bnp in ((fast, ours), (plain, theirs)):
                net.zero_grad()
                with torch.autocast("cuda", torch.bfloat16):
                    out = net(x)
                out.float().square().mean().backward()
                bnp.step()
            torch.testing.assert_close(gradients(fast), gradients(plain), rtol=1e-4, atol=1e-5)
