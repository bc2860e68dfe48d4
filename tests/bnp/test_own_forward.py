"""Layers with a forward of their own are seen where they multiply their weight, or left alone.

The oracle is the same network with what the forward does to its input in a module before a plain layer.
"""

import copy
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import trimtab
from tests.bnp.helpers import gradients, statistics


class Before(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def coordinates(x: Tensor) -> Tensor:
    rows = torch.linspace(-1, 1, x.shape[2], dtype=x.dtype).view(1, 1, -1, 1).expand(len(x), 1, *x.shape[2:])
    return torch.cat([x, rows], 1)


def one_hot(x: Tensor) -> Tensor:
    return F.one_hot((x[..., 0] > 0).long(), 2).to(x.dtype)


class CoordConv(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(coordinates(x))


class SameConv(nn.Conv2d):
    """Pads by itself and calls the operation by keywords, as timm's Conv2dSame does in its way."""

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(F.pad(x, (0, 1, 0, 1)), weight=self.weight, bias=self.bias, stride=2)


class PaddedInside(nn.Conv2d):
    """Not its forward but what that calls is its own."""

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.conv2d(x.square(), weight, bias, self.stride, self.padding)


class GrowingTranspose(nn.ConvTranspose2d):
    def forward(self, x: Tensor) -> Tensor:
        return F.conv_transpose2d(coordinates(x), self.weight, self.bias, self.stride)


class OneHotLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(one_hot(x), self.weight, self.bias)


class FlatLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.flatten(1), self.weight, bias=self.bias)


class PartLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x[:, :3])


class Twice(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).tanh() + super().forward(2 * x)


class TwiceAround(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).tanh() + self.layer(2 * x)


# The layer with its own forward, the plain network that does the same, the shape of a sample.
PAIRS: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module], tuple[int, ...]]] = {
    "CoordConv": (
        lambda: CoordConv(3, 4, 3, padding=1),
        lambda: nn.Sequential(Before(coordinates), nn.Conv2d(3, 4, 3, padding=1)),
        (2, 5, 5),
    ),
    "same padding": (
        lambda: SameConv(2, 4, 3, stride=2),
        lambda: nn.Sequential(Before(lambda x: F.pad(x, (0, 1, 0, 1))), nn.Conv2d(2, 4, 3, stride=2)),
        (2, 6, 6),
    ),
    "_conv_forward": (
        lambda: PaddedInside(2, 4, 3),
        lambda: nn.Sequential(Before(torch.square), nn.Conv2d(2, 4, 3)),
        (2, 5, 5),
    ),
    "transposed": (
        lambda: GrowingTranspose(3, 4, 2, stride=2),
        lambda: nn.Sequential(Before(coordinates), nn.ConvTranspose2d(3, 4, 2, stride=2)),
        (2, 3, 3),
    ),
    "one-hot": (lambda: OneHotLinear(2, 3), lambda: nn.Sequential(Before(one_hot), nn.Linear(2, 3)), (4,)),
    "flattened": (lambda: FlatLinear(12, 3), lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 3)), (3, 4)),
    "a part": (lambda: PartLinear(3, 2), lambda: nn.Sequential(Before(lambda x: x[:, :3]), nn.Linear(3, 2)), (5,)),
    "twice": (lambda: Twice(4, 3), TwiceAround, (4,)),
}


def with_weights_of(plain: nn.Module, layer: nn.Module) -> nn.Module:
    for ours, theirs in zip(plain.parameters(), layer.parameters(), strict=True):
        ours.data.copy_(theirs.data)
    return plain


def trained(
    net: nn.Module,
    shape: tuple[int, ...],
    forward: Any = None,
    *,
    repeat: int = 1,
    change: Callable[[], None] | None = None,
    **options: Any,
) -> list[Tensor]:
    """Weights, gradients and statistics of the layer after three steps, or more; BNP is made before the change."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(1)
    with trimtab.BNP(net, **options) as bnp:
        if change is not None:
            change()
        for size in (6, 1, 4) * repeat:
            x = 0.5 + torch.randn(size, *shape, generator=generator, dtype=torch.float64)
            optimizer.zero_grad()
            (net if forward is None else forward)(x).square().sum().backward()
            bnp.step()
            optimizer.step()
        return [p.detach().clone() for p in net.parameters()] + gradients(net) + list(statistics(bnp).values())


@pytest.mark.parametrize("fast", [True, False], ids=["kernels", "plain"])
@pytest.mark.parametrize("name", PAIRS)
def test_it_trains_as_the_plain_network_does(name: str, fast: bool) -> None:
    torch.manual_seed(0)
    own, plain, shape = PAIRS[name]
    layer = own().double()
    twin = with_weights_of(plain().double(), layer)
    torch.testing.assert_close(
        trained(layer, shape, fast=fast), trained(twin, shape, fast=fast), rtol=1e-10, atol=1e-12
    )


def test_the_settings_of_the_call_count_for_sites() -> None:
    """SameConv's own settings say nothing of the padding that it does."""
    torch.manual_seed(0)
    layer = SameConv(2, 4, 3, stride=1, padding=7).double()  # neither is what its forward does
    _, plain, shape = PAIRS["same padding"]
    twin = with_weights_of(plain().double(), layer)
    torch.testing.assert_close(
        trained(layer, shape, spatial="site"), trained(twin, shape, spatial="site"), rtol=1e-10, atol=1e-12
    )


def replaced(module: nn.Module) -> nn.Module:
    """As accelerate does it: the instance has another forward, which calls the old one."""
    old = module.forward
    module.forward = lambda *args, **kwargs: old(*args, **kwargs)  # type: ignore[method-assign]
    return module


@pytest.mark.parametrize("when", ["before BNP", "after BNP", "after a step", "and taken back"])
def test_a_forward_that_was_replaced(when: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    twin = copy.deepcopy(net)
    x = torch.randn(7, 4, dtype=torch.float64)
    if when == "before BNP":
        replaced(net[0])
    with trimtab.BNP(net) as bnp, trimtab.BNP(twin) as theirs:
        if when != "before BNP":
            for step in range(2):
                if step == (when != "after BNP"):
                    replaced(net[0])
                for model, its in ((net, bnp), (twin, theirs)):
                    model.zero_grad()
                    model(x).square().sum().backward()
                    its.step()
        if when == "and taken back":
            del net[0].forward
        for model, its in ((net, bnp), (twin, theirs)):
            model.zero_grad()
            model(x).square().sum().backward()
            its.step()
        torch.testing.assert_close(gradients(net), gradients(twin), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(statistics(bnp), statistics(theirs), rtol=1e-12, atol=1e-12)


class Transposed(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.t() + self.bias


class Cast(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.float(), self.weight.float(), self.bias.float()).to(x.dtype)


class Sliced(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x[:, :2], self.weight[:, :2], self.bias)


class Standardized(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return F.conv2d(x, weight, self.bias)


class Penalized(nn.Linear):
    """Used in its call and elsewhere."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.weight.square().mean()


class ListedElsewhere(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.stack([self.weight, self.weight]).mean()


class OnItself(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, : len(self.bias)] + nn.functional.linear(self.weight, self.weight, self.bias).mean(0)


class BiasTwice(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.bias.tanh()


LEFT_ALONE = {
    "transposed": (lambda: Transposed(4, 3), (4,), "weight outside torch.nn.functional.linear"),
    "cast": (lambda: Cast(4, 3), (4,), "weight outside torch.nn.functional.linear"),
    "sliced": (lambda: Sliced(4, 3), (4,), "weight outside torch.nn.functional.linear"),
    "standardized": (lambda: Standardized(2, 3, 2), (2, 4, 4), "weight outside torch.nn.functional.conv2d"),
    "elsewhere too": (lambda: Penalized(4, 3), (4,), "weight outside torch.nn.functional.linear"),
    "in a list": (lambda: ListedElsewhere(4, 3), (4,), "weight outside torch.nn.functional.linear"),
    "on itself": (lambda: OnItself(4, 3), (4,), "weight outside torch.nn.functional.linear"),
    "bias elsewhere": (lambda: BiasTwice(4, 3), (4,), "bias outside torch.nn.functional.linear"),
}


@pytest.mark.parametrize("fast", [True, False], ids=["kernels", "plain"])
@pytest.mark.parametrize("name", LEFT_ALONE)
def test_another_use_of_the_weight_leaves_the_layer_alone(name: str, fast: bool) -> None:
    torch.manual_seed(0)
    make, shape, reason = LEFT_ALONE[name]
    net = nn.Sequential(make(), nn.Flatten(), nn.LazyLinear(2)).double()  # type: ignore[no-untyped-call]
    x = torch.randn(6, *shape, dtype=torch.float64)
    net(x)
    twin = copy.deepcopy(net)
    twin(x).square().sum().backward()
    with trimtab.BNP(net, fast=fast) as bnp:
        net(x).square().sum().backward()
        with pytest.warns(trimtab.TrimtabWarning) as said:
            bnp.step()
        assert [str(one.message) for one in said] == [
            f"BNP leaves these layers alone: '0' (its forward uses its {reason})."
        ]
        assert all(torch.equal(a.grad, b.grad) for a, b in zip(net[0].parameters(), twin[0].parameters(), strict=True))
        assert not torch.equal(net[2].weight.grad, twin[2].weight.grad)
        assert f"its forward uses its {reason}" in str(bnp.report())
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # once is enough
            net(x).square().sum().backward()
            bnp.step()


def test_looking_at_a_weight_is_no_use_of_it() -> None:
    class Looks(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            assert self.weight.shape[1] == x.shape[1] and self.weight.dtype == x.dtype and self.weight.dim() == 2
            self.norm = self.weight.detach().norm()
            with torch.no_grad():
                self.weight.clamp_(-9, 9)
            return super().forward(x)

    torch.manual_seed(0)
    layer = Looks(4, 3).double()
    twin = with_weights_of(nn.Linear(4, 3).double(), layer)
    torch.testing.assert_close(trained(layer, (4,)), trained(twin, (4,)), rtol=1e-12, atol=1e-12)


def test_a_bias_that_is_added_elsewhere_is_not_the_counterweight() -> None:
    """The weight is scaled as one without bias; the bias keeps its gradient."""

    class Apart(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, self.weight) + 3 * self.bias

    torch.manual_seed(0)
    layer = Apart(4, 3).double()
    twin = nn.Linear(4, 3, bias=False).double()
    twin.weight.data.copy_(layer.weight.data)
    x = torch.randn(6, 4, dtype=torch.float64)
    with trimtab.BNP(layer) as bnp, trimtab.BNP(twin) as theirs:
        layer(x).sum().backward()
        twin(x).sum().backward()
        bias = layer.bias.grad.clone()
        bnp.step()
        theirs.step()
    torch.testing.assert_close(layer.weight.grad, twin.weight.grad)
    assert torch.equal(layer.bias.grad, bias)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing(reentrant: bool) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(CoordConv(3, 4, 3), nn.Tanh(), CoordConv(5, 2, 3)).double()
    twin = copy.deepcopy(net)

    def again(x: Tensor) -> Tensor:
        return checkpoint(twin, x.requires_grad_(), use_reentrant=reentrant)  # type: ignore[no-any-return]

    torch.testing.assert_close(trained(net, (2, 7, 7)), trained(twin, (2, 7, 7), again), rtol=1e-12, atol=1e-12)


def test_autocast() -> None:
    torch.manual_seed(0)
    net = CoordConv(3, 4, 3)
    with trimtab.BNP(net) as bnp, warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch.autocast("cpu", torch.bfloat16):
            y = net(torch.randn(3, 2, 5, 5))
        y.float().sum().backward()
        bnp.step()
        assert statistics(bnp)[".steps"] == 1


def current_modes() -> int:
    return len(torch.overrides._get_current_function_mode_stack())


class Fails(nn.Linear):
    """Doubles its input, if nothing is wrong."""

    error: type[BaseException] | None = None

    def __init__(self, inner: "Fails | None" = None) -> None:
        super().__init__(4, 4)
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        if self.inner is not None:
            x = self.inner(x)
        if self.error is not None:
            raise self.error("on purpose")
        return super().forward(2 * x)


@pytest.mark.parametrize("nested", [False, True], ids=["alone", "one in another"])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])  # for the latter PyTorch calls no hooks
def test_an_interrupted_forward_leaves_nothing_active(error: type[BaseException], nested: bool) -> None:
    torch.manual_seed(0)
    inner = Fails().double() if nested else None
    layer = Fails(inner).double()
    own = [layer] if inner is None else [inner, layer]
    twin = nn.Sequential(*[part for _ in own for part in (Before(lambda x: 2 * x), nn.Linear(4, 4))]).double()
    for i, mine in enumerate(own):
        twin[2 * i + 1].weight.data.copy_(mine.weight.data)
        twin[2 * i + 1].bias.data.copy_(mine.bias.data)
    with trimtab.BNP(layer) as bnp:
        for failing in own * 2:
            failing.error = error
            with pytest.raises(error):
                layer(torch.ones(2, 4, dtype=torch.float64))
            failing.error = None
        layer(torch.ones(2, 4, dtype=torch.float64))
        assert current_modes() == 0
        own[0].error = error
        with pytest.raises(error):
            layer(torch.ones(2, 4, dtype=torch.float64))
        own[0].error = None
        bnp.detach()
    assert current_modes() == 0
    ours, reference = trained(layer, (4,)), trained(twin, (4,))
    assert sum(x.sum().item() for x in ours) == pytest.approx(sum(x.sum().item() for x in reference), rel=1e-10)


def test_a_layer_that_calls_itself() -> None:
    class Again(nn.Linear):
        def forward(self, x: Tensor, more: bool = True) -> Tensor:
            y = self(x + 1, more=False) if more else x
            return super().forward(y)

    class Twin(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(self.layer(x + 1))  # type: ignore[no-any-return]

    torch.manual_seed(0)
    layer = Again(4, 4).double()
    twin = with_weights_of(Twin().double(), layer)
    torch.testing.assert_close(trained(layer, (4,)), trained(twin, (4,)), rtol=1e-10, atol=1e-12)
    assert current_modes() == 0


def test_another_thread_may_evaluate_meanwhile() -> None:
    torch.manual_seed(0)
    layer = CoordConv(3, 4, 3).double()
    twin = copy.deepcopy(layer)
    failed: list[BaseException] = []
    over = threading.Event()

    def evaluate() -> None:
        try:
            while not over.is_set():
                with torch.no_grad():
                    layer(torch.ones(1, 2, 5, 5, dtype=torch.float64))
            assert current_modes() == 0
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=evaluate)
    thread.start()
    try:
        ours = trained(layer, (2, 5, 5), repeat=10)
    finally:
        over.set()
        thread.join()
    assert not failed
    assert current_modes() == 0
    torch.testing.assert_close(ours, trained(twin, (2, 5, 5), repeat=10), rtol=1e-12, atol=1e-12)


def change_forward(layer: nn.Module) -> None:
    old = layer.forward
    layer.forward = lambda x: old(3 * x)  # type: ignore[method-assign]


def change_inner_method(layer: Any) -> None:
    layer._conv_forward = lambda x, weight, bias: F.conv2d(3 * x, weight, bias)


def change_class(layer: nn.Module) -> None:
    class Tripled(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(3 * x)

    layer.__class__ = Tripled


@pytest.mark.parametrize("change", [change_forward, change_inner_method, change_class])
def test_a_forward_that_changes_after_bnp_was_made(change: Callable[[nn.Module], None]) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 3, 3)).double()
    twin = with_weights_of(nn.Sequential(Before(lambda x: 3 * x), nn.Conv2d(2, 3, 3)).double(), net)
    ours = trained(net, (2, 5, 5), change=lambda: change(net[0]))
    torch.testing.assert_close(ours, trained(twin, (2, 5, 5)), rtol=1e-10, atol=1e-12)


def test_a_method_of_pytorch_that_somebody_has_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    old = nn.Linear.forward
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3)).double()
    twin = with_weights_of(nn.Sequential(Before(lambda x: 3 * x), nn.Linear(4, 3)).double(), net)
    expected = trained(twin, (4,))
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: old(self, 3 * x))
    torch.testing.assert_close(trained(net, (4,)), expected, rtol=1e-10, atol=1e-12)


def test_a_layer_that_has_become_suitable_is_taken_up() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3))
    x = torch.randn(5, 4)
    with trimtab.BNP(net) as bnp:
        net[0].forward = lambda x: x @ net[0].weight.t()
        net(x).sum().backward()
        with pytest.warns(trimtab.TrimtabWarning, match="leaves these layers alone: '0'"):
            bnp.step()
        net[0].forward = lambda x: F.linear(x, net[0].weight)
        net.zero_grad()
        net(x).sum().backward()
        plain = net[0].weight.grad.clone()
        bnp.step()
        assert not torch.equal(net[0].weight.grad, plain)
        assert "scaled, not centred: its bias is added elsewhere" in str(bnp.report())


def test_numbers_of_numpy_as_settings() -> None:
    class Strided(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return F.conv2d(x, self.weight, self.bias, stride=np.int64(2))  # type: ignore[arg-type]

    torch.manual_seed(0)
    layer = Strided(2, 3, 3).double()
    twin = with_weights_of(nn.Conv2d(2, 3, 3, stride=2).double(), layer)
    told = {"shape": (2, 5, 5), "spatial": "site"}
    torch.testing.assert_close(trained(layer, **told), trained(twin, **told), rtol=1e-12, atol=1e-12)  # type: ignore[arg-type]


def test_copies_and_evaluation_are_not_followed() -> None:
    layer = CoordConv(3, 4, 3).double()
    x = torch.randn(3, 2, 5, 5, dtype=torch.float64)
    with trimtab.BNP(layer) as bnp:
        copy.deepcopy(layer)(x).sum().backward()
        with torch.no_grad():
            layer(x)
        assert bnp.state_dict()["layers"][""]["pending"] is None


@pytest.mark.parametrize("alone", [pytest.param(False, marks=pytest.mark.slow), True], ids=["in a model", "alone"])
@pytest.mark.parametrize("name", ["CoordConv", "flattened", "twice", "transposed"])
def test_compiled(name: str, alone: bool) -> None:
    torch.manual_seed(0)
    torch.compiler.reset()
    own, plain, shape = PAIRS[name]
    layer = own().double()
    twin = with_weights_of(plain().double(), layer)
    # A compiled layer that is not in a model is compiled in pieces, and torch looks at tensors that warn of that.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", trimtab.TrimtabWarning)
        model = layer if alone else nn.Sequential(layer)
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=False)
        ours = trained(model, shape, compiled)
    torch.testing.assert_close(ours, trained(twin, shape), rtol=1e-9, atol=1e-11)
    torch.compiler.reset()


def test_compiled_and_left_alone() -> None:
    torch.manual_seed(0)
    torch.compiler.reset()
    layer = Penalized(4, 3).double()
    twin = copy.deepcopy(layer)
    x = torch.randn(5, 4, dtype=torch.float64)
    twin(x).sum().backward()
    model = nn.Sequential(layer)
    with trimtab.BNP(model) as bnp:
        torch.compile(model, fullgraph=True, backend="aot_eager")(x).sum().backward()
        with pytest.warns(trimtab.TrimtabWarning, match="leaves these layers alone: '0'"):
            bnp.step()
    torch.testing.assert_close(gradients(layer), gradients(twin))
    torch.compiler.reset()


def test_a_forward_that_cannot_be_compiled_leaves_nothing_active() -> None:
    """A layer that is not in a model is compiled in pieces: its beginning is, before its forward fails to be."""

    class Breaks(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            torch._dynamo.graph_break()
            return super().forward(x)

    torch.compiler.reset()
    layer = Breaks(4, 3)
    with trimtab.BNP(layer):
        for _ in range(2):
            with pytest.raises(torch._dynamo.exc.Unsupported):
                torch.compile(layer, fullgraph=True, backend="aot_eager")(torch.ones(2, 4))
            assert current_modes() == 0
    torch.compiler.reset()


def test_accelerate() -> None:
    """Its hooks replace the forward of an instance."""
    hooks = pytest.importorskip("accelerate.hooks", reason="accelerate is not installed")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(27, 4)).double()
    twin = copy.deepcopy(net)
    for layer in (net[0], net[2]):
        hooks.add_hook_to_module(layer, hooks.ModelHook())
    torch.testing.assert_close(trained(net, (2, 5, 5)), trained(twin, (2, 5, 5)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("name", "alone"), [("StdConv2d", True), ("ScaledStdConv2d", True), ("Conv2dSame", False)])
def test_timm(name: str, alone: bool) -> None:
    """Convolutions that standardize their weight are left alone, those that pad are seen."""
    layers = pytest.importorskip("timm.layers", reason="timm is not installed")
    torch.manual_seed(0)
    layer = getattr(layers, name)(3, 4, 3)
    net = nn.Sequential(layer, nn.Flatten(), nn.LazyLinear(2))  # type: ignore[no-untyped-call]
    x = torch.randn(2, 3, 6, 6)
    net(x)
    with trimtab.BNP(net) as bnp, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        net(x).sum().backward()
        bnp.step()
    assert [("leaves these layers alone: '0'" in str(one.message)) for one in caught] == [True] * alone


def test_a_method_of_a_class_that_is_replaced_between_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    class Conv(nn.Conv1d):
        pass

    model = nn.Sequential(Conv(2, 3, 1), nn.Flatten())
    bnp = trimtab.BNP(model, rho=0.0)
    x = torch.randn(6, 2, 4)
    model(x).sum().backward()
    bnp.step()
    monkeypatch.setattr(Conv, "_conv_forward", lambda self, x, weight, bias: F.conv1d(3 * x, weight, bias))
    model(x).sum().backward()
    bnp.step()
    torch.testing.assert_close(statistics(bnp)["0.mean"], 3 * x.mean((0, 2)))
