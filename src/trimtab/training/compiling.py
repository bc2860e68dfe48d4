"""A network compiled: block by block where it repeats them, else as a whole."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.networks.residual import Block, PreactivationBlock

# Blocks of one class differ in widths, strides and shortcuts; each kind is compiled once.
_KINDS_OF_BLOCKS = 64


def compiled(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """The forward of a model in compiled code, made when it is first called.

    Equal blocks share their code, so that a network of 54 blocks is compiled in the time of five. They are compiled in
    place: `not_compiled` is for what is to run as it is written.
    """
    how = _how(model)
    blocks = repeated(model)
    if not blocks:
        return torch.compile(model, **how)
    from torch._dynamo import config  # takes a second, which only those wait who compile

    config.recompile_limit = max(config.recompile_limit, _KINDS_OF_BLOCKS)
    for block in blocks:
        block.compile(**how)
    return model


def _how(model: nn.Module) -> dict[str, Any]:
    """What torch.compile is told.

    Sizes are constants in the code: where torch takes them for variables, as it does when the second kind of block
    comes, the code is slower. On a GPU small operations that do not need each other (casts of weights, sums) share a
    kernel: a step of ResNet-110 takes a tenth less. Compiled code for a CPU cannot do that, and older versions of torch
    had errors in it.
    """
    how: dict[str, Any] = {"dynamic": False}
    # torch.__version__ compares as a version, not as a string.
    if torch.__version__ >= "2.11" and any(parameter.is_cuda for parameter in model.parameters()):
        how["options"] = {"combo_kernels": True}
    return how


def repeated(model: nn.Module) -> list[nn.Module]:
    """The blocks of a residual network; none in others."""
    return [module for module in model.modules() if isinstance(module, Block | PreactivationBlock)]


@contextmanager
def not_compiled(needed: bool) -> Iterator[None]:
    """Within, compiled modules run as they were written, if that is needed."""
    if not needed:  # asking for it takes a second
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield
