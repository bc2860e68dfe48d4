"""Subclasses with a forward of their own, and registered functions that return something wrong."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trimtab
from tests.bnp.fuzz.draw import Draw
from tests.bnp.fuzz.layers import Drawn, rows
from tests.bnp.fuzz.tensors import strided
from trimtab.bnp import Moments, Options, Rows
from trimtab.bnp.backends import Backends

# ---- What a subclass may do to its input before it multiplies it ----------------------------------------------------


class Concatenate(nn.Module):
    """One more column, or channel."""

    def forward(self, x: Tensor) -> Tensor:
        dim = -1 if x.ndim < 3 else 1
        return torch.cat([x, torch.ones_like(x.narrow(dim, 0, 1))], dim)


class Cut(nn.Module):
    """One column or channel less."""

    def forward(self, x: Tensor) -> Tensor:
        dim = -1 if x.ndim < 3 else 1
        return x.narrow(dim, 1, x.shape[dim] - 1)


class Flatten(nn.Module):
    """All columns of a sample in a row."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)


class OneHot(nn.Module):
    """Whole numbers below three, as a column for each."""

    def forward(self, x: Tensor) -> Tensor:
        return F.one_hot(x.abs().long() % 3, 3).to(x.dtype).flatten(1)


class Square(nn.Module):
    """Other values, in the same shape."""

    def forward(self, x: Tensor) -> Tensor:
        return x * x


def _subclass(cls: type[nn.Module]) -> type[nn.Module]:
    class Changed(cls):  # type: ignore[misc,valid-type]
        change: nn.Module

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(self.change(x))

    return Changed


_LINEAR, _CONV = _subclass(nn.Linear), _subclass(nn.Conv2d)


def changed_input(draw: Draw, dtype: torch.dtype) -> Drawn:
    """A subclass, or a layer whose forward was replaced, that changes its input first."""
    n, outputs = draw.number(2, 20), draw.size(large=0)
    if draw.chance(0.5):
        change: nn.Module = draw.pick([Concatenate, Cut, Square])()
        columns = n + {Concatenate: 1, Cut: -1}.get(type(change), 0)
        settings: dict[str, Any] = {"padding": draw.number(0, 1), "bias": draw.chance(0.7), "dtype": dtype}
        base: type[nn.Module] = nn.Conv2d
        sub, arguments = _CONV, (columns, outputs, draw.number(1, 3))
        sizes = [(n, 4, 5)]
    else:
        change = draw.pick([Concatenate, Cut, Flatten, OneHot, Square])()
        columns = {Concatenate: n + 1, Cut: n - 1, Flatten: 2 * n, OneHot: 3 * n}.get(type(change), n)
        settings, base = {"bias": draw.chance(0.7), "dtype": dtype}, nn.Linear
        sub, arguments = _LINEAR, (columns, outputs)
        sizes = [(n, 2)] if isinstance(change, Flatten) else [(n,)]
    if draw.chance(0.3):  # as some libraries do it to a layer that is there
        layer = base(*arguments, **settings)
        forward = layer.forward
        layer.forward = lambda x: forward(change(x))  # type: ignore[method-assign,assignment]
    else:
        layer = sub(*arguments, **settings)
        layer.__dict__["change"] = change  # not a module of the model
    kind = f"{base.__name__} that changes its input: {type(change).__name__}"
    return Drawn(kind, layer, lambda: (draw.number(1, 6), *sizes[0]), change=change)


# ---- Layers whose weight is not what is multiplied ------------------------------------------------------------------


class Own(nn.Linear):
    """A Linear that multiplies by something else than its weight, or in another way."""

    way = "matmul"

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.weight, self.bias
        match self.way:
            case "matmul":
                return x @ weight.t()
            case "standardized":
                return F.linear(x, weight - weight.mean(1, keepdim=True), bias)
            case "part":
                return F.linear(x[..., : x.shape[-1] // 2], weight[:, : x.shape[-1] // 2], bias)
            case "twice":
                return F.linear(x, weight, bias) + F.linear(2 * x, weight, bias)
            case "elsewhere too":
                return F.linear(x, weight, bias) + weight.sum()
            case "embedding":
                return F.embedding(x.long() % len(weight), weight).sum(-2)
            case "no call":
                return weight.sum() + 0 * x
            case "conv":
                return F.conv1d(x.unsqueeze(-1), weight.unsqueeze(-1), bias).squeeze(-1)
        raise AssertionError(self.way)


def own_way(draw: Draw, dtype: torch.dtype) -> Drawn:
    n = draw.number(2, 20)
    layer = Own(n, draw.size(large=0), dtype=dtype)
    layer.way = draw.pick(["matmul", "standardized", "part", "twice", "elsewhere too", "embedding", "no call", "conv"])
    # "twice" is two forwards for BNP.
    return Drawn(f"Linear of its own: {layer.way}", layer, lambda: (draw.number(1, 6), n), wrong=layer.way != "twice")


# ---- Registered functions -------------------------------------------------------------------------------------------


class Registered(nn.Module):
    """A dense layer that BNP knows by a function that was registered for it."""

    def __init__(self, inputs: int, outputs: int, bias: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(outputs, dtype=dtype)) if bias else None
        self.way = ""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class RegisteredUnits(Registered):
    """The same, where the function for its weight's layout is the odd one."""


def _resized(moments: Moments, by: int) -> Moments:
    n = max(0, moments.shape[0] + by)
    return Moments(moments.count, moments.mean.new_zeros(n), moments.mean.new_ones(n))


def _with(moments: Moments, **other: Any) -> Moments:
    return Moments(**{"count": moments.count, "mean": moments.mean, "variance": moments.variance, **other})


def _moments(function: Callable[[Moments], Moments]) -> Callable[[Rows, Tensor], Rows]:
    """The same rows with other moments."""
    return lambda rows, x: Rows(function(rows.moments), rows.samples, rows.positions)


def _each(function: Callable[[Tensor], Tensor]) -> Callable[[Rows, Tensor], Rows]:
    """The same rows, with a function of their mean and of their variance."""
    return _moments(lambda m: Moments(m.count, function(m.mean), function(m.variance)))


def _numbers(**other: Any) -> Callable[[Rows, Tensor], Rows]:
    """The same moments with other numbers."""
    return lambda r, x: Rows(**{"moments": r.moments, "samples": r.samples, "positions": r.positions, **other})


_NAN = float("nan")
# By name: whether BNP can go on with it (None: as it likes), and what the function makes of good rows and the input.
_WAYS: dict[str, tuple[bool | None, Callable[[Rows, Tensor], Any]]] = {
    "right": (True, lambda r, x: r),
    "gaps": (True, _each(lambda t: strided(t, [2]))),
    "stride 0": (True, _each(lambda t: t[:1].clone().expand(len(t)))),
    "not finite": (True, _each(lambda t: t / 0)),
    "zeros": (True, _numbers(zeros=3)),
    "fewer zeros": (True, _numbers(zeros=-3)),
    "float64": (None, _each(Tensor.double)),
    "float16": (False, _each(Tensor.half)),
    "int64": (False, _each(Tensor.long)),
    "variance of another type": (False, _moments(lambda m: _with(m, variance=m.variance.half()))),
    "one column more": (False, _moments(lambda m: _resized(m, 1))),
    "one column less": (False, _moments(lambda m: _resized(m, -1))),
    "many columns": (False, _moments(lambda m: _resized(m, 999))),
    "no columns": (False, _moments(lambda m: _resized(m, -(10**6)))),
    "two dimensions": (False, _each(lambda t: t[None].repeat(2, 1))),
    "no dimension": (False, _each(torch.sum)),
    "a kernel's, of rows": (False, lambda r, x: Rows(_of_rows(x), r.samples, r.positions)),
    "variance of another size": (False, _moments(lambda m: _with(m, variance=m.variance[:1]))),
    "variance of no size": (False, _moments(lambda m: _with(m, variance=m.variance[0]))),
    "variance that is a number": (False, _moments(lambda m: _with(m, variance=1.0))),
    "complex": (False, _each(lambda t: t.to(torch.complex64))),
    "meta": (False, _each(lambda t: t.to("meta"))),
    "sparse": (False, _each(Tensor.to_sparse)),
    "count -1": (False, _moments(lambda m: _with(m, count=-1))),
    "count nan": (False, _moments(lambda m: _with(m, count=_NAN))),
    "count None": (False, _moments(lambda m: _with(m, count=None))),
    "samples 0": (False, _numbers(samples=0)),
    "samples -1": (False, _numbers(samples=-1)),
    "samples None": (False, _numbers(samples=None)),
    "samples nan": (False, _numbers(samples=_NAN)),
    "positions 0": (False, _numbers(positions=0)),
    "positions -2": (False, _numbers(positions=-2)),
    "no moments": (False, _numbers(moments=None)),
    "nothing": (False, lambda r, x: None),
    "a tuple": (False, lambda r, x: (r.moments, r.samples)),
}

_UNITS: dict[str, tuple[bool | None, Callable[[Tensor], Any]]] = {
    "right": (True, lambda w: w.view(1, *w.shape, 1)),
    "three dimensions": (False, lambda w: w.view(1, *w.shape)),
    "fewer weights": (False, lambda w: w[:, : w.shape[1] - 1].unsqueeze(0).unsqueeze(-1)),
    "more weights": (False, lambda w: w.unsqueeze(0).unsqueeze(-1).expand(2, *w.shape, 1)),
    "inputs and outputs": (False, lambda w: w.t().view(1, *w.t().shape, 1)),
    "no view": (False, lambda w: w.clone().view(1, *w.shape, 1)),
    "nothing": (False, lambda w: None),
}


def _of_rows(x: Tensor) -> Moments:
    """What a kernel gives, of the rows in the place of the columns: in memory for another number of them."""
    return Backends(Options()).moments(x.detach().t().contiguous(), -1)


def _observe(layer: Any, x: Tensor, y: Tensor, options: Options) -> Any:
    x, count = x.as_subclass(Tensor), x.shape[:-1].numel()
    return _WAYS[layer.way][1](Rows(Moments.of(x, columns=-1), samples=count, positions=count), x)


def _observe_with_kernel(layer: Any, x: Tensor, y: Tensor, options: Options) -> Rows:
    count = x.shape[:-1].numel()
    return Rows(Backends(options).moments(x, -1), samples=count, positions=count)


trimtab.register_layer(Registered)(_observe)
trimtab.register_layer(RegisteredUnits, view=lambda layer, weight: _UNITS[layer.way][1](weight))(_observe_with_kernel)


def registered(draw: Draw, dtype: torch.dtype) -> Drawn:
    """A layer that was registered: half of them rightly, the others in one of many wrong ways."""
    inputs, bias = draw.number(2, 40), draw.chance(0.7)
    outputs = draw.pick([n for n in range(1, 41) if n != inputs])  # or nobody could tell them apart
    if draw.chance(0.2):
        layer: Registered = RegisteredUnits(inputs, outputs, bias, dtype)
        layer.way = draw.pick(list(_UNITS))
        right, kind = _UNITS[layer.way][0], "units"
    else:
        layer = Registered(inputs, outputs, bias, dtype)
        layer.way = draw.pick(list(_WAYS))
        right, kind = _WAYS[layer.way][0], "rows"
    samples = max(2, rows(draw))
    if layer.way == "a kernel's, of rows" and samples == inputs:
        samples += 1
    return Drawn(f"registered, {kind}: {layer.way}", layer, lambda: (samples, inputs), wrong=right is False)
