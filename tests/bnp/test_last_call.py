"""What is remembered of the last call of a layer."""

from typing import Any

import torch
from torch import Tensor, nn

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
