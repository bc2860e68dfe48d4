"""The update of stacked networks: SGD, Adam and AdamW with numbers of each network's own, and BNP before them."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from trimtab.bnp.algorithm import transform
from trimtab.bnp.algorithm.averages import RunningAverage
from trimtab.bnp.algorithm.moments import Moments
from trimtab.training.settings import Settings, resolved
from trimtab.training.sweep.stacked_network import taken

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8  # torch's defaults for Adam


def per_network(values: Tensor, like: Tensor) -> Tensor:
    """One number per network, shaped to act on a stacked tensor."""
    return values.view(-1, *[1] * (like.ndim - 1))


class StackedOptimizer:
    """What torch's optimizers do to one network, done to each of a stack; all of it can be replayed by a CUDA graph.

    Attributes:
        lr: The learning rate of each network, to be set before a step.
        momentum: Of each network, for SGD.
        decay: The weight decay of each network.
        state: What is remembered from step to step, by parameter.
    """

    def __init__(self, settings: Sequence[Settings], parameters: Mapping[str, Tensor], decayed: set[str]) -> None:
        """Start.

        Args:
            settings: Those of each network; kind of optimizer and Nesterov's momentum are the same for all.
            parameters: Stacked, by name.
            decayed: The names of those that the weight decay is for.
        """
        some = next(iter(parameters.values()))
        self.lr, self.momentum, self.decay = (
            torch.tensor(numbers, dtype=some.dtype, device=some.device)
            for numbers in (
                [resolved(s.lr) for s in settings],
                [resolved(s.momentum) for s in settings],
                [resolved(s.weight_decay) for s in settings],
            )
        )
        self._kind, self._nesterov = settings[0].optimizer, settings[0].nesterov
        self._decays = any(s.weight_decay for s in settings)
        self._decayed = decayed
        remembers = 2 if self._kind != "sgd" else int(any(s.momentum for s in settings))
        self.state = {
            name: [torch.zeros_like(value, requires_grad=False) for _ in range(remembers)]
            for name, value in parameters.items()
        }
        self.count = torch.zeros((), dtype=torch.float64, device=some.device)

    @torch.no_grad()
    def step(self, parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> None:
        """Change the parameters in place."""
        self.count += 1
        for name, value in parameters.items():
            gradient = gradients[name]
            decays = self._decays and name in self._decayed
            if decays and self._kind == "adamw":
                value.mul_(per_network(1 - self.lr * self.decay, value))
            elif decays:
                gradient = torch.addcmul(gradient, value, per_network(self.decay, value))
            direction = self._sgd(gradient, self.state[name]) if self._kind == "sgd" else self._adam(gradient, name)
            value.addcmul_(direction, per_network(self.lr, value), value=-1)

    def keep(self, networks: Tensor) -> None:
        """Go on with these networks only."""
        self.lr, self.momentum, self.decay = self.lr[networks], self.momentum[networks], self.decay[networks]
        self.state = {name: [taken(value, networks) for value in values] for name, values in self.state.items()}

    def _sgd(self, gradient: Tensor, state: list[Tensor]) -> Tensor:
        if not state:
            return gradient
        momentum = per_network(self.momentum, gradient)
        # torch starts with the first gradient, which is what zeros times the momentum plus it is.
        torch.addcmul(gradient, state[0], momentum, out=state[0])
        return torch.addcmul(gradient, state[0], momentum) if self._nesterov else state[0]

    def _adam(self, gradient: Tensor, name: str) -> Tensor:
        first, second = self.state[name]
        first.lerp_(gradient, 1 - BETA1)
        second.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
        correction1, correction2 = 1 - BETA1**self.count, 1 - BETA2**self.count
        root = second.sqrt().div_(correction2.sqrt()).add_(EPS)
        return first / root.mul_(correction1)


class StackedBNP:
    """BNP for stacks of dense networks: each network is a group of the transformation.

    Attributes:
        averages: The running averages of each layer's input, (networks, features).
    """

    def __init__(self, settings: Settings, layers: Mapping[str, nn.Module], like: Mapping[str, Tensor]) -> None:
        """Start.

        Args:
            settings: Those of BNP are the same for all networks.
            layers: The dense layers, by name.
            like: The stacked parameters.
        """
        self._settings = settings
        self._names = tuple(layers)
        self._moments: dict[str, Moments] = {}
        inputs = {name: like[f"{name}.weight"].detach()[:, 0] for name in self._names}  # of their shape
        self.averages = {name: RunningAverage(x, debias=settings.parsed_method.debias) for name, x in inputs.items()}

    def observe(self, name: str, x: Tensor) -> None:
        """See the input of a layer in a forward pass."""
        self._moments[name] = Moments.of(x, columns=(0, 2))

    @torch.no_grad()
    def precondition(self, gradients: dict[str, Tensor]) -> None:
        """Replace the gradients of all layers, and fold what was seen into the averages."""
        for name in self._names:
            batch, running = self._moments.pop(name), self.averages[name]
            variance = running.variance_of(batch)
            everywhere = torch.ones((), dtype=torch.bool, device=variance.device)
            averages = running.after(batch.mean, variance, self._settings.rho, everywhere)
            running.move_to(averages, everywhere, everywhere)
            own = self._settings.statistics == "batch" and int(batch.count) > 1
            self._replace(gradients, name, batch, *((batch.mean, variance) if own else running.estimate()))

    def keep(self, networks: Tensor) -> None:
        """Go on with these networks only."""
        for running in self.averages.values():
            running.mean, running.variance = running.mean[networks], running.variance[networks]

    def _replace(self, gradients: dict[str, Tensor], name: str, batch: Moments, mean: Tensor, variance: Tensor) -> None:
        settings, weight, bias = self._settings, gradients[f"{name}.weight"], gradients.get(f"{name}.bias")
        mean, variance = mean[:, None, :, None], variance[:, None, :, None]
        if bias is None and settings.no_bias == "second_moment":
            variance = transform.second_moment(mean, variance)
        scale = transform.regularized(variance, settings.eps1, settings.eps2)
        q2 = transform.squared_norm(weight.shape[2], batch.count, batch.count)
        view = None if bias is None else bias[:, :, None, None]
        new_weight, new_bias = transform.precondition(weight.unsqueeze(-1), view, mean, scale, q2)
        gradients[f"{name}.weight"] = new_weight.squeeze(-1)
        if new_bias is not None:
            gradients[f"{name}.bias"] = new_bias[:, :, 0, 0]
