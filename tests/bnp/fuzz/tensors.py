"""Tensors in unusual memory. Each ends where its storage ends, so that a sanitizer sees the first step beyond it."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tests.bnp.fuzz.draw import Draw


class Marked(Tensor):
    """A subclass of Tensor that does nothing."""


def exact(x: Tensor) -> Tensor:
    """A copy in dense memory of its own."""
    return torch.empty(x.shape, dtype=x.dtype).copy_(x)


def strided(x: Tensor, strides: Sequence[int], offset: int = 0) -> Tensor:
    """A copy with these strides, in a storage that ends with the last entry."""
    size = offset + 1 + sum((n - 1) * stride for n, stride in zip(x.shape, strides, strict=True)) if x.numel() else 0
    memory = torch.zeros(size, dtype=x.dtype)
    return torch.as_strided(memory, x.shape, strides, offset if x.numel() else 0).copy_(x)


def permuted(x: Tensor, order: Sequence[int]) -> Tensor:
    """A copy that is dense, with its dimensions in another order in memory."""
    back = sorted(range(x.ndim), key=lambda dim: order[dim])
    return exact(x.permute(*order)).permute(*back) if x.ndim else exact(x)


def transposed(x: Tensor) -> Tensor:
    return permuted(x, range(x.ndim)[::-1])


def channels_last(x: Tensor) -> Tensor:
    """The second dimension as the innermost, as torch.channels_last has it; for any number of dimensions."""
    return permuted(x, [0, *range(2, x.ndim), 1]) if x.ndim > 2 else exact(x)


def expanded(x: Tensor) -> Tensor:
    """The first entry of a dimension for all of it, with stride 0."""
    return exact(x[:1]).expand(x.shape) if x.numel() else exact(x)


def expanded_last(x: Tensor) -> Tensor:
    return exact(x[..., :1]).expand(x.shape) if x.numel() else exact(x)


def with_offset(x: Tensor) -> Tensor:
    return strided(x, exact(x).stride(), offset=3)


def with_gaps(x: Tensor) -> Tensor:
    return strided(x, [2 * stride for stride in exact(x).stride()])


def with_gaps_between_rows(x: Tensor) -> Tensor:
    """Each row is dense, as in x[:, :n]."""
    first, *others = exact(x).stride()
    return strided(x, [2 * first if others else first, *others])


def overlapping(x: Tensor) -> Tensor:
    """Rows that overlap, as unfold gives them; their numbers are not those of `x`."""
    size = 1 + sum(n - 1 for n in x.shape) if x.numel() else 0
    return exact(x).flatten()[:size].clone().as_strided(x.shape, [1] * x.ndim)


def negative(x: Tensor) -> Tensor:
    return torch._neg_view(exact(-x)) if not x.dtype.is_complex else torch._conj(exact(x.conj()))


def unaligned(x: Tensor) -> Tensor:
    """At an address that is no multiple of the numbers' size."""
    if not x.numel() or x.dtype.is_complex:
        return exact(x)
    content = exact(x).view(torch.uint8) if x.ndim else exact(x)[None].view(torch.uint8)
    memory = torch.cat([torch.zeros(1, dtype=torch.uint8), content.flatten()])
    return torch.frombuffer(memory.numpy(), dtype=x.dtype, offset=1).view(x.shape)


def of_size_one(x: Tensor) -> Tensor:
    """Dense, but the stride of a dimension of size 1 says nothing."""
    strides = [977 if n == 1 else stride for n, stride in zip(x.shape, exact(x).stride(), strict=True)]
    return strided(x, strides)


def marked(x: Tensor) -> Tensor:
    return exact(x).as_subclass(Marked)


def parameter(x: Tensor) -> Tensor:
    return torch.nn.Parameter(exact(x))


def wanting_gradient(x: Tensor) -> Tensor:
    return exact(x).requires_grad_() if x.is_floating_point() or x.is_complex() else exact(x)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    function.__name__: function
    for function in (
        exact,
        transposed,
        channels_last,
        expanded,
        expanded_last,
        with_offset,
        with_gaps,
        with_gaps_between_rows,
        overlapping,
        negative,
        unaligned,
        of_size_one,
        marked,
        parameter,
        wanting_gradient,
    )
}


def tensor(draw: Draw, shape: Sequence[int], dtype: torch.dtype) -> tuple[str, Tensor]:
    """An input, and the name of its layout."""
    x = draw.normal(shape, dtype)
    if draw.chance(0.05) and x.numel() and not dtype.is_complex:
        x.view(-1)[draw.number(0, x.numel() - 1)] = draw.pick([float("nan"), float("inf"), 1e30, -0.0])
    if draw.chance(0.03):
        x = torch.ones_like(x)
    name = "exact" if draw.chance(0.35) else draw.pick(list(LAYOUTS))
    return name, LAYOUTS[name](x)
