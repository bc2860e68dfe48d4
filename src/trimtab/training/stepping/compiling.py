"""A network compiled: block by block where it repeats blocks, else as a whole."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import nn

from trimtab._torch import allow_recompilations, has_combo_kernels
from trimtab.networks.residual import Block, PreactivationBlock

# Blocks of one class differ in widths, strides and shortcuts; each kind is compiled once.
_KINDS_OF_BLOCKS = 64


def compiled(model: nn.Module) -> nn.Module:
    """A model whose forward pass is compiled code; it is compiled when it is first called.

    Equal blocks share their code, so that a network of 54 blocks is compiled in the time of five. They are compiled in
    place; within `uncompiled` they run as they are written.
    """
    options = compile_options(model)
    blocks = residual_blocks(model)
    if not blocks:
        return cast("nn.Module", torch.compile(model, **options))
    allow_recompilations(_KINDS_OF_BLOCKS)
    for block in blocks:
        block.compile(**options)
    return model


def compile_options(model: nn.Module) -> dict[str, Any]:
    """The arguments of torch.compile.

    Sizes are constants in the code: where torch takes them for variables, as it does when the second kind of block
    comes, the code is slower. On a GPU small operations that do not need each other (casts of weights, sums) share a
    kernel: a step of ResNet-110 takes a tenth less. Compiled code for a CPU cannot do that.
    """
    options: dict[str, Any] = {"dynamic": False}
    if any(parameter.is_cuda for parameter in model.parameters()) and has_combo_kernels():
        options["options"] = {"combo_kernels": True}
    return options


def residual_blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks of a residual network; an empty list for other networks."""
    return [module for module in model.modules() if isinstance(module, Block | PreactivationBlock)]


@contextmanager
def uncompiled(needed: bool) -> Iterator[None]:
    """Run the original code of modules that were compiled in place while this is active, if `needed`."""
    if not needed:  # importing the compiler takes a second
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield
