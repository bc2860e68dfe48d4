"""The state of all random generators that a model can draw from, to be put back."""

import random

import numpy as np
import torch
from torch import nn


class Dice:
    """The state that Python's, numpy's, torch's and a model's own generators have when this is made.

    Args:
        model: Its modules may keep generators as attributes.
        devices: Of CUDA, whose generators count too.
    """

    def __init__(self, model: nn.Module, devices: list[int]) -> None:
        self._python = random.getstate()
        self._numpy = np.random.get_state()
        self._torch = torch.get_rng_state()
        self._cuda = [(device, torch.cuda.get_rng_state(device)) for device in devices]
        generators = (value for module in model.modules() for value in vars(module).values())
        self._own = [(each, each.get_state()) for each in generators if isinstance(each, torch.Generator)]

    def put_back(self) -> None:
        """As they were."""
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        torch.set_rng_state(self._torch)
        for device, state in self._cuda:
            torch.cuda.set_rng_state(state, device)
        for generator, state in self._own:
            generator.set_state(state)
