"""Which kernel does what."""

from collections.abc import Sequence

import torch
from torch import Tensor

from trimtab.bnp.kernels import native
from trimtab.bnp.options import Options
from trimtab.bnp.statistics import Moments
from trimtab.bnp.update import Update, plain


def describe() -> str:
    """What the steps of BNP are done with on the CPU, in a few words."""
    return native.describe() if native.available() else "plain PyTorch"


def moments(x: Tensor, column: int, options: Options) -> Moments:
    """The moments of one dimension's entries over all others, as `Moments.of`, computed in the fastest way there is."""
    if options.fast and x.numel() and not torch.compiler.is_compiling():
        found = native.moments(x, column)
        if found is not None:
            return Moments(*found)
    return Moments.of(x, columns=column)


def precondition(updates: Sequence[Update], options: Options, fold: bool) -> list[Tensor]:
    """Replace the gradients of some layers.

    Returns:
        Flags on their devices; where one is false, something was not finite.
    """
    taken: list[Update] = []
    flags: list[Tensor] = []
    for update in updates:
        if options.fast and native.takes(update):
            taken.append(update)
        else:
            flags.append(plain(update, options, fold))
    if taken and native.precondition(taken, options, fold):
        flags.append(torch.tensor(False))
    return flags
