"""Several networks of one architecture as one: their parameters stacked, their forward passes one computation."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from trimtab.networks.activations import MODULES

# They do the same to each number, so that a dimension more makes no difference.
_ELEMENTWISE = MODULES

Observe = Callable[[str, Tensor], None]
"""Called with the name of a dense layer and its input, (networks, samples, features)."""


class StackedNetwork:
    """Networks that differ in their parameters and buffers alone.

    All tensors have the networks as their first dimension, and no operation mixes them: what is not finite in one
    stays there.

    Attributes:
        parameters: Those that are trained, by name.
        constants: Those that are not.
        buffers: Such as running averages; they are changed in place.
    """

    def __init__(self, models: Sequence[nn.Module], device: torch.device) -> None:
        """Stack models on a device; the first one becomes the pattern, and its own tensors are not used any more."""
        self._pattern = models[0].to(device)
        named = [dict(model.named_parameters()) for model in models]
        stacked = {name: torch.stack([one[name].detach().to(device) for one in named]) for name in named[0]}
        # Laid out as the gradient will be, which has the inputs before the outputs: the update is twice as fast then.
        dense = [f"{name}.weight" for name, layer in self.layers().items() if type(layer) is nn.Linear]
        stacked |= {name: stacked[name].mT.contiguous().mT for name in dense}
        trained = {name for name, parameter in named[0].items() if parameter.requires_grad}
        self.parameters = {name: value.requires_grad_() for name, value in stacked.items() if name in trained}
        self.constants = {name: value for name, value in stacked.items() if name not in trained}
        buffered = [dict(model.named_buffers()) for model in models]
        self.buffers = {name: torch.stack([one[name].to(device) for one in buffered]) for name in buffered[0]}

    def __len__(self) -> int:
        """The number of networks."""
        return len(next(iter(self.parameters.values())))

    def train(self, mode: bool = True) -> None:
        """Normalize by the batch, or with False by the running averages."""
        self._pattern.train(mode)

    def __call__(self, inputs: Tensor, observe: Observe | None = None) -> Tensor:
        """The outputs, (networks, samples, ...), for inputs of that form."""
        return self._call(self._pattern, "", inputs, observe)

    def keep(self, networks: Tensor) -> None:
        """Go on with these networks only, by their numbers."""
        for tensors in (self.parameters, self.constants, self.buffers):
            for name, value in tensors.items():
                tensors[name] = taken(value.detach(), networks).requires_grad_(value.requires_grad)

    def layers(self) -> dict[str, nn.Module]:
        """The modules that `observe` could be called for, by name; of all others it sees nothing."""
        return dict(_walked(self._pattern, ""))

    def _call(self, module: nn.Module, prefix: str, x: Tensor, observe: Observe | None) -> Tensor:
        if type(module) is nn.Sequential:
            for name, child in module.named_children():
                x = self._call(child, f"{prefix}{name}.", x, observe)
            return x
        if type(module) in _ELEMENTWISE:
            return module(x)  # type: ignore[no-any-return]
        if type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
            return x.flatten(2)
        if type(module) is nn.Linear and x.ndim == 3:
            if observe is not None:
                observe(prefix.removesuffix("."), x)
            return _affine(x, self._tensor(f"{prefix}weight"), self._tensor(f"{prefix}bias"))
        own = {
            name.removeprefix(prefix): value
            for tensors in (self.parameters, self.constants, self.buffers)
            for name, value in tensors.items()
            if name.startswith(prefix)
        }

        def one(tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
            return functional_call(module, dict(tensors), (x,))  # type: ignore[no-any-return]

        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d) and x.dtype == torch.bfloat16:
            # By itself it computes so, in float32, and rounds what comes out; vmap has no rule for two types at once.
            return vmap(one)(own, x.float()).to(x.dtype)
        return vmap(one, randomness="different")(own, x)

    def _tensor(self, name: str) -> Tensor:
        """A parameter of all networks; an empty tensor if they do not have it."""
        return self.parameters.get(name, self.constants.get(name, torch.empty(0)))


def taken(value: Tensor, networks: Tensor) -> Tensor:
    """What a stacked tensor has of these networks, laid out in memory as it is."""
    return value.mT[networks].mT if value.ndim == 3 and not value.is_contiguous() else value[networks]


def _affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Dense layers: (networks, rows, inputs) times the transposed weights, (networks, outputs, inputs)."""
    return torch.baddbmm(bias.unsqueeze(1), x, weight.mT) if bias.numel() else torch.bmm(x, weight.mT)


def _walked(module: nn.Module, prefix: str) -> list[tuple[str, nn.Module]]:
    if type(module) is nn.Sequential:
        return [pair for name, child in module.named_children() for pair in _walked(child, f"{prefix}{name}.")]
    return [(prefix.removesuffix("."), module)]
