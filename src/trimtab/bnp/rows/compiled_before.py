"""Compiled code that was made before BNP put its hooks on, and so knows nothing of them.

torch does not compare a module's hooks when it looks for code it has compiled. Code for a model without hooks is also
used for the same model, or for another one of its shape, once that has hooks.
"""

import weakref
from collections.abc import Iterable

from torch import nn

from trimtab import _torch

# Layers that were observed before anything was compiled with them.
_OBSERVED_FIRST: "weakref.WeakSet[nn.Module]" = weakref.WeakSet()


def refuse_what_has_run(layers: Iterable[nn.Module]) -> None:
    """Refuse layers whose compiled code has run already.

    Raises:
        RuntimeError: If there are any.
    """
    code = _torch.has_compiled_code()
    for layer in layers:
        if layer not in _OBSERVED_FIRST:
            if code and any(_torch.was_compiled(p) for p in _torch.parameters_of(layer).values()):
                raise RuntimeError(
                    "This model was compiled and has run before BNP was made, and its compiled code would pass by "
                    "BNP's hooks: make BNP before the model's first call, or call torch.compiler.reset() before BNP."
                )
            _OBSERVED_FIRST.add(layer)
