"""Compiled code that was made before BNP put its hooks on, and so knows nothing of them.

torch does not compare a module's hooks when it looks for code it has compiled. Code for a model without hooks is also
used for the same model, or for another one of its shape, once that has hooks.
"""

import sys
import weakref
from collections.abc import Iterable

from torch import Tensor, nn

# Layers that were observed before anything was compiled with them.
_OBSERVED_FIRST: "weakref.WeakSet[nn.Module]" = weakref.WeakSet()

# What torch._dynamo.mark_static sets. Calling it would import the compiler, which takes seconds.
_STATIC, _MARKED = "_dynamo_static_indices", "_has_dynamo_dim_marking"


def refuse_what_has_run(layers: Iterable[nn.Module]) -> None:
    """Refuse layers whose compiled code has run already.

    Raises:
        RuntimeError: If there are any.
    """
    code = _some_is_compiled()
    for layer in layers:
        if layer not in _OBSERVED_FIRST:
            if code and any(_was_compiled(parameter) for parameter in layer._parameters.values()):
                raise RuntimeError(
                    "This model was compiled and has run before BNP was made, and its compiled code would pass by "
                    "BNP's hooks: make BNP before the model's first call, or call torch.compiler.reset() before BNP."
                )
            _OBSERVED_FIRST.add(layer)


def set_apart(weight: Tensor) -> bool:
    """Keep code that was compiled without hooks from being used with this weight; false if somebody did so before.

    Parameters are of fixed shape for torch.compile anyway. To say so once more changes nothing but this: torch compares
    what was said of a tensor when it looks for code. Older torch does not; there the step says which layers it missed.
    """
    if hasattr(weight, _STATIC):
        return False
    setattr(weight, _STATIC, set(range(weight.ndim)))
    setattr(weight, _MARKED, True)
    return True


def put_back(weight: Tensor) -> None:
    """Undo `set_apart`."""
    for name in (_STATIC, _MARKED):
        if name in weight.__dict__:
            delattr(weight, name)


def _was_compiled(parameter: Tensor | None) -> bool:
    """Whether it has been a module's parameter in compiled code, by the mark that torch leaves on it."""
    return getattr(parameter, "_dynamo_static_input_type", None) == "unguarded"


def _some_is_compiled() -> bool:
    """Whether any compiled code has been made since the last reset."""
    frames = sys.modules.get("torch._dynamo.convert_frame")  # not there if nothing was compiled
    return frames is not None and bool(frames.input_codes.seen)
