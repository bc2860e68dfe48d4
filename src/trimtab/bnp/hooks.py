"""The hooks that BNP puts on a model, as objects whose copies do nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch

is_jit_tracing = torch._C._get_tracing_state
"""Something while torch.jit.trace runs a model, or what uses it: a graph for TensorBoard, the older ONNX export."""


class CannotScriptError(RuntimeError, AttributeError):
    """What torch.jit.script comes upon; for others who ask for a hook's name, it just has none."""


class ModuleHook:
    """A hook whose copies do nothing, so that copies of a model (deepcopy, pickle) are unobserved.

    What torch.jit.trace traces is not observed either: it is the model as it is without BNP.
    """

    silent: ClassVar[bool] = False
    """While it is true, no hook does anything; see `unobserved`."""

    def __init__(self, function: Any = None, *, even_if_silent: bool = False) -> None:
        """Call `function` with whatever the hook is called with, also while others are silent if that is wanted."""
        self.function = function
        self.even_if_silent = even_if_silent

    @property
    def is_on(self) -> bool:
        """Whether this is not a copy and nobody asked for silence."""
        return self.function is not None and (self.even_if_silent or not ModuleHook.silent)

    def __call__(self, *args: Any) -> Any:
        """Run the function, if the hook is on."""
        if self.is_on and not is_jit_tracing():
            self.function(*args)

    @property
    def __name__(self) -> str:
        """Is asked for by torch.jit.script, which compiles the hooks of a model too."""
        raise CannotScriptError(
            "torch.jit.script cannot compile a model that BNP watches, nor a copy made of it meanwhile: detach() BNP "
            "before you script or copy the model."
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> "ModuleHook":
        """A hook that does nothing."""
        return ModuleHook()

    def __reduce__(self) -> tuple[type["ModuleHook"], tuple[()]]:
        """Pickle as a hook that does nothing."""
        return ModuleHook, ()


@contextmanager
def unobserved() -> Iterator[None]:
    """Within, no BNP sees what its model is used for: for measurements in between two steps."""
    before, ModuleHook.silent = ModuleHook.silent, True
    try:
        yield
    finally:
        ModuleHook.silent = before
