"""The state of all random generators that a model can draw from."""

import random
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_PLAIN = frozenset({bool, int, float, str, type(None), OrderedDict})
"""What most attributes of modules are, which hold no generator."""


class RandomState:
    """A snapshot of the generators of Python, numpy and torch, and of those that a model has itself.

    Args:
        modules: Of a model; they may have generators as attributes, also in lists and dictionaries.
        devices: The CUDA devices whose generators belong to the snapshot.
        sources: Objects, such as loaders, that may have generators as attributes, or samplers that do.
    """

    def __init__(self, modules: Iterable[nn.Module], devices: Iterable[int], sources: Iterable[object] = ()) -> None:
        self._python = random.getstate()
        self._numpy = np.random.get_state()
        self._torch = torch.get_rng_state()
        self._cuda = [(device, torch.cuda.get_rng_state(device)) for device in devices]
        holders = [vars(module) for module in modules]
        holders += [attributes for source in sources for attributes in _attributes(source)]
        self._generators = [(each, _state(each)) for held in holders for each in _generators(held.values())]

    def restore(self) -> None:
        """Give all generators the state that they had when the snapshot was taken."""
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        torch.set_rng_state(self._torch)
        for device, state in self._cuda:
            torch.cuda.set_rng_state(state, device)
        for generator, state in self._generators:
            _set_state(generator, state)


def _generators(values: Iterable[Any]) -> Iterator[Any]:
    """Generators among attributes, and in lists and dictionaries among them."""
    for value in values:
        kind = type(value)
        if kind in _PLAIN:
            continue
        if kind in (list, tuple, dict):
            if value:
                yield from _generators(value.values() if kind is dict else value)
        elif isinstance(value, _GENERATORS):
            yield value


def _attributes(source: object) -> Iterator[dict[str, Any]]:
    """Those of a loader and of its samplers, one within the other."""
    found = getattr(source, "__dict__", {})
    yield found
    for name in ("sampler", "batch_sampler"):
        if name in found:
            yield from _attributes(found[name])


def _state(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)
