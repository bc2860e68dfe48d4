"""The hooks that BNP puts on a model, as objects whose copies do nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar


class ModuleHook:
    """A hook whose copies do nothing, so that copies of a model (deepcopy, pickle) are unobserved."""

    silent: ClassVar[bool] = False
    """While it is true, no hook does anything; see `unobserved`."""

    def __init__(self, function: Any = None) -> None:
        """Call `function` with whatever the hook is called with."""
        self.function = function

    def __call__(self, *args: Any) -> Any:
        """Run the function, if this is not a copy and nobody asked for silence."""
        if self.function is not None and not ModuleHook.silent:
            self.function(*args)

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
