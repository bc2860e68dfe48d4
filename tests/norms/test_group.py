"""GroupNorm: torch's, but for the type and the order in memory of what it hands on."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trimtab.norms import GroupNorm, Norm
from trimtab.norms.group import _gradient_channels_last


def layers() -> tuple[GroupNorm, nn.GroupNorm]:
    torch.manual_seed(0)
    ours, theirs = GroupNorm(3, 6, eps=1e-3), nn.GroupNorm(3, 6, eps=1e-3)
    with torch.no_grad():
        for parameter, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            other.copy_(parameter.normal_())
    return ours, theirs


def images(*shape: int) -> Tensor:
    return 1 + torch.randn(shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 5), (4, 6, 5, 7), (1, 6, 1, 1), (2, 6, 3, 4, 5)], ids=str)
def test_it_computes_what_torch_does(shape: tuple[int, ...]) -> None:
    ours, theirs = layers()
    x, y = images(*shape).requires_grad_(), images(*shape).requires_grad_()
    ours(x).square().mean().backward()
    theirs(y).square().mean().backward()
    torch.testing.assert_close(x.grad, y.grad)
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)


@pytest.mark.parametrize("way", ["eager", "compiled"])
@pytest.mark.parametrize("autocast", [False, True])
def test_channels_last_and_the_type_are_kept(way: str, autocast: bool) -> None:
    torch._dynamo.reset()
    ours, theirs = layers()
    conv = nn.Conv2d(2, 6, 3).to(memory_format=torch.channels_last)

    def run(norm: nn.Module, x: Tensor) -> Tensor:
        return F.relu(norm(conv(x)))

    forward = torch.compile(run, backend="aot_eager", fullgraph=True) if way == "compiled" else run
    x = images(4, 2, 8, 9).to(memory_format=torch.channels_last)
    results = []
    for norm, call in ((ours, forward), (theirs, run)):
        conv.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            y = call(norm, x)
        (y.float() ** 3).mean().backward()
        assert conv.weight.grad is not None
        results.append((y.float(), conv.weight.grad.clone()))
        assert y.is_contiguous(memory_format=torch.channels_last)
        assert y.dtype == (torch.bfloat16 if autocast else torch.float32)
    tolerance = 5e-2 if autocast else 1e-5
    torch.testing.assert_close(results[0], results[1], rtol=tolerance, atol=tolerance)


def test_the_gradient_is_turned_where_that_costs_nothing() -> None:
    """In compiled code on a GPU, where torch's own gives it channels first; on a CPU it does not."""
    x = images(4, 6, 5, 7).to(memory_format=torch.channels_last).requires_grad_()
    seen: list[Tensor] = []
    z = x * 1
    z.register_hook(seen.append)
    gradient = images(4, 6, 5, 7)
    _gradient_channels_last(z).backward(gradient)
    assert not gradient.is_contiguous(memory_format=torch.channels_last)
    assert seen[0].is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(seen[0], gradient)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_vmapped_scripted_and_traced() -> None:
    """As torch's own can be."""
    ours, theirs = layers()
    x = images(5, 2, 6, 3, 4)
    expected = torch.vmap(theirs)(x)
    torch.testing.assert_close(torch.vmap(ours)(x), expected)
    torch.testing.assert_close(torch.jit.script(ours)(x[0]), expected[0])
    traced = torch.fx.symbolic_trace(nn.Sequential(ours, nn.ReLU()))
    torch.testing.assert_close(traced(x[0]), expected[0].relu())
    exported = torch.export.export(ours, (x[0],), dynamic_shapes=({0: torch.export.Dim("n", min=2)},)).module()
    torch.testing.assert_close(exported(x[0]), expected[0])


def test_the_networks_have_it() -> None:
    assert type(Norm.parse("gn").layer(8, space=2)) is GroupNorm
    twin = copy.deepcopy(layers()[0])
    assert isinstance(twin, nn.GroupNorm)
