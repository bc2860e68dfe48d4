"""What is remembered of the last call of a layer."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import trimtab
from trimtab.bnp.backends.buffers import BufferMoments, InputLayout
from trimtab.bnp.layers import InputColumns
from trimtab.bnp.rows.last_call import LastCall


class _LikeGpu:
    """Stands for the device of a GPU."""

    type = "cuda"

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


class _Layout(InputLayout):
    """Remembers whether moments may wait."""

    def __init__(self, x: Tensor) -> None:
        super().__init__(x, 1, (2, 3, 4), x.dtype)
        self.device: Any = _LikeGpu()
        self.saved: list[bool] = []

    def moments(self, x: Tensor, saved: bool) -> BufferMoments | None:
        self.saved.append(saved)
        return None


def test_moments_do_not_wait_once_the_input_is_not_what_autograd_keeps() -> None:
    x = torch.randn(2, 3, 4, requires_grad=True)
    layer = nn.Conv1d(3, 1, 3, padding=1)
    y, layout = layer(x), _Layout(x)
    call = LastCall(layer, layout, y.shape, InputColumns(x, 1, 2, 8))
    call.rows(x, y)
    layer.padding_mode = "reflect"  # autograd keeps the padded input, and ours may be changed in place
    call.rows(x, y)
    assert layout.saved == [True, False]


UNLIKE: dict[str, Callable[[Tensor], Tensor]] = {
    "the same": lambda x: x,
    "other strides": lambda x: x.transpose(0, 2).contiguous().transpose(0, 2),
    "gaps": lambda x: torch.cat([x, x], -1)[..., :4],
    "more samples": lambda x: torch.cat([x, 2 * x]),
    "another type": lambda x: x.double(),
    "a subclass": lambda x: x.as_subclass(nn.Parameter),
    "negative when it is read": lambda x: torch.complex(x, -x).conj().imag,
}


@pytest.mark.parametrize("how", UNLIKE)
@pytest.mark.parametrize("kind", [nn.Linear, nn.Conv1d])
def test_a_call_that_is_unlike_the_last_one(kind: type[nn.Module], how: str) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(4, 2) if kind is nn.Linear else nn.Conv1d(4, 2, 1)
    bnp = trimtab.BNP(layer)
    for name in ("the same", how, "the same"):
        x = UNLIKE[name](torch.randn(5, 4, 4))
        layer.to(x.dtype)
        layer(x).sum().backward()
        found = bnp.state_dict()["layers"][""]["pending"]
        rows = (x if kind is nn.Linear else x.transpose(1, 2)).reshape(-1, 4)
        assert found["count"] == len(rows) and found["samples"] == len(x)
        torch.testing.assert_close(found["mean"], rows.mean(0).detach())
        torch.testing.assert_close(found["variance"], rows.var(0, correction=0).detach())
        bnp.step()
        layer.zero_grad()


def test_a_call_with_another_output() -> None:
    """Of the same input: the number of output positions is another one."""
    layer = nn.Conv1d(3, 2, 3)
    bnp = trimtab.BNP(layer)
    for padding, outputs in ((0, 4 * 5), (1, 4 * 7), (0, 4 * 5)):
        layer.padding = (padding,)
        layer(torch.randn(4, 3, 7)).sum().backward()
        assert bnp.state_dict()["layers"][""]["pending"]["outputs"] == outputs
        bnp.step()
        layer.zero_grad()
