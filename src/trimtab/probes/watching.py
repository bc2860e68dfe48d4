"""What goes into some layers and comes out of them, seen while the model runs; no hook stays behind."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from trimtab import _torch

See = Callable[[str, nn.Module, Tensor, Tensor], Tensor | None]
"""Called with a layer's name, the layer, its input and its output; what it returns, if anything, is the output then."""


@contextmanager
def watched(layers: Mapping[str, nn.Module], see: See) -> Iterator[None]:
    """Within, show each call of these layers to a function.

    What a backward computes again (checkpointing) is not shown a second time. Nor are calls with something other than
    one dense tensor.

    Args:
        layers: By name.
        see: Looks at a call. It must copy what it keeps: the model may change a tensor in place.
    """

    def hook(name: str) -> Callable[..., Tensor | None]:
        def look(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Tensor | None:
            x = args[0] if args else kwargs.get("input", next(iter(kwargs.values()), None))
            if isinstance(x, Tensor) and _dense(x) and isinstance(output, Tensor) and _dense(output):
                return see(name, module, x, output) if not _torch.in_backward() else None
            return None

        return look

    handles = []
    try:
        for name, module in layers.items():
            handles.append(module.register_forward_hook(hook(name), with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _dense(x: Tensor) -> bool:
    return not x.is_nested and x.layout is torch.strided
