"""The attributes of modules beside parameters and buffers: modes, counters, lists, tensors."""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

_CONTAINERS = frozenset({dict, OrderedDict, list, set})
_PLAIN = frozenset({bool, int, float, str, tuple, type(None)})
_OF_MODULES = frozenset(vars(nn.Module()))


class ModuleAttributes:
    """A snapshot of the attributes of modules, mostly of all that a model has.

    `replace_by_copies` puts copies in the place of containers and tensors, also of the containers in which a module has
    its parameters, buffers and submodules. What is done to them until `restore` is done to the copies. The copies are
    shallow: a list in a list, or an object of a class of the user's, is shared with the original.

    Args:
        modules: The modules.
        contents: Whether `restore` also undoes what was done to containers and tensors in place, those apart in which
            PyTorch keeps what belongs to a module.
    """

    def __init__(self, modules: Iterable[nn.Module], *, contents: bool = False) -> None:
        self._snapshots = [(vars(module), dict(vars(module))) for module in modules]
        self._contents = [
            (attributes, name, copy)
            for attributes, snapshot in (self._snapshots if contents else ())
            for name, value in snapshot.items()
            if name not in _OF_MODULES and (copy := _copied(value)) is not value
        ]

    def replace_by_copies(self) -> None:
        """Put copies of containers and tensors in their place."""
        for attributes, snapshot in self._snapshots:
            attributes.update({name: new for name, old in snapshot.items() if (new := _copied(old)) is not old})

    def restore(self) -> None:
        """Put all attributes back, one by one, so that no module is without some if this is interrupted."""
        for attributes, snapshot in self._snapshots:
            attributes.update(snapshot)
            if len(attributes) > len(snapshot):
                for name in attributes.keys() - snapshot.keys():
                    del attributes[name]
        for attributes, name, content in self._contents:
            attributes[name] = _copied(content)


def _copied(value: Any) -> Any:
    kind = type(value)
    if kind in _CONTAINERS:
        return value.copy()
    if kind in _PLAIN:  # to ask whether something is a Tensor takes longer
        return value
    return value.clone() if isinstance(value, Tensor) and not value.requires_grad else value
