"""The hooks that BNP puts on modules, as objects whose copies do nothing."""

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from trimtab import _torch


class CannotScriptError(RuntimeError, AttributeError):
    """What torch.jit.script comes upon; for others who ask for a hook's name, it just has none."""


class Pause:
    """Whether the hooks of one BNP do nothing for now.

    Attributes:
        depth: How many have asked for that; 0 if the hooks work.
    """

    __slots__ = ("__weakref__", "depth")

    def __init__(self) -> None:
        """They work."""
        self.depth = 0


_PAUSES: "weakref.WeakKeyDictionary[nn.Module, weakref.WeakSet[Pause]]" = weakref.WeakKeyDictionary()


def can_be_paused(modules: Iterable[nn.Module], pause: Pause) -> None:
    """Let `paused` find the pause of the BNP that observes these modules."""
    for module in modules:
        _PAUSES.setdefault(module, weakref.WeakSet()).add(pause)


@contextmanager
def paused(model: nn.Module) -> Iterator[None]:
    """Within, no BNP sees what the model is used for: for measurements in between two steps."""
    pauses = {pause for module in model.modules() for pause in _PAUSES.get(module, ())}
    for pause in pauses:
        pause.depth += 1
    try:
        yield
    finally:
        for pause in pauses:
            pause.depth -= 1


class ModuleHook:
    """A hook whose copies do nothing, so that copies of a model (deepcopy, pickle) are unobserved.

    What torch.jit.trace traces is not observed either: it is the model as it is without BNP.
    """

    def __init__(self, function: Any = None, pause: Pause | None = None) -> None:
        """Call `function` with whatever the hook is called with, except during the pause."""
        self.function = function
        self.pause = pause or Pause()

    def __call__(self, *args: Any) -> Any:
        """Run the function, if this is not a copy and there is no pause."""
        if self.function is not None and not self.pause.depth and not _torch.is_jit_tracing():
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
