"""The inputs and outputs of some layers, observed while the model runs."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from trimtab import _torch

CallObserver = Callable[[str, nn.Module, Tensor, Tensor], Tensor | None]
"""Called with a layer's name, the layer, its input and its output. If it returns a tensor, that replaces the output."""


@contextmanager
def observe_calls(layers: Mapping[str, nn.Module], observer: CallObserver) -> Iterator[None]:
    """Call a function for each call of these layers while this is active; hooks are removed afterwards.

    What a backward computes again (checkpointing) is not observed a second time. Nor are calls whose input or output is
    not one dense tensor.

    Args:
        layers: By name.
        observer: It must copy what it stores, since the model may change a tensor in place.
    """

    def hook_for(name: str) -> Callable[..., Tensor | None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Tensor | None:
            x = args[0] if args else kwargs.get("input", next(iter(kwargs.values()), None))
            if isinstance(x, Tensor) and _dense(x) and isinstance(output, Tensor) and _dense(output):
                return observer(name, module, x, output) if not _torch.in_backward() else None
            return None

        return hook

    handles = []
    try:
        for name, module in layers.items():
            handles.append(module.register_forward_hook(hook_for(name), with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _dense(x: Tensor) -> bool:
    return not x.is_nested and x.layout is torch.strided
