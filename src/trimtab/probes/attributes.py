"""What modules keep outside of parameters and buffers: modes, counters, lists, tensors; to be put back."""

import copy
from collections import OrderedDict
from typing import Any

from torch import Tensor, nn

_CONTAINERS = (dict, OrderedDict, list, set)


class Attributes:
    """The attributes of all modules of a model when this is made.

    Containers and tensors among them, also those in which a module keeps its parameters, buffers and submodules, are
    replaced by copies until `put_back`: whatever is done to them in the meantime is done to the copies. What lies
    deeper (a list in a list, an object of one's own) is shared with them.
    """

    def __init__(self, model: nn.Module) -> None:
        self._kept = [(vars(module), dict(vars(module))) for module in model.modules()]

    def replace(self) -> None:
        """Put copies in their place."""
        for attributes, kept in self._kept:
            attributes.update({name: each for name, value in kept.items() if (each := _copied(value)) is not value})

    def put_back(self) -> None:
        """As it was; each attribute by itself, so that an interruption leaves whole modules."""
        for attributes, kept in self._kept:
            attributes.update(kept)
            for name in attributes.keys() - kept.keys():
                del attributes[name]


def _copied(value: Any) -> Any:
    if type(value) in _CONTAINERS:
        return copy.copy(value)
    return value.clone() if isinstance(value, Tensor) and not value.requires_grad else value
