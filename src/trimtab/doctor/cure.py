"""What a finding advises, as a change that code can apply."""

from dataclasses import dataclass
from typing import Literal

from torch import nn
from torch.optim import Optimizer

Setting = Literal[
    "lr", "weight_decay", "batch_size", "norm", "init", "inputs", "precision", "bnp", "statistics", "labels"
]
"""What a cure changes."""


@dataclass(frozen=True, kw_only=True)
class Cure:
    """One change of a training's settings.

    A number is changed by a factor, anything else is set to a value:

    | setting | change |
    |---|---|
    | `lr` | multiply the learning rate by `factor`; of one layer, if there is a `layer` |
    | `weight_decay` | multiply the weight decay by `factor` |
    | `batch_size` | multiply the batch size by `factor`, at least |
    | `norm` | replace BatchNorm by the norm that `value` names, as methods do (`gn`) |
    | `init` | multiply the weights that the layer starts with by `factor`, or start as `value` says (`default`) |
    | `inputs` | transform the inputs as `value` says (`standardize`: mean 0 and variance 1, channel by channel) |
    | `precision` | compute in `value` (`bfloat16`, `float32`), or scale the loss (`scaled`) |
    | `bnp` | attach a `trimtab.BNP` to the optimizer, and multiply its learning rate by `factor`, if there is one |
    | `statistics` | set the momentum of BatchNorm's running statistics to `factor` |
    | `labels` | nothing that code can do: look at the labels |

    Attributes:
        setting: What is to be changed.
        factor: By how much; None if it is not a number that is changed.
        value: To what; None if a number is changed.
        layer: Of which layer; None for all of the training.
        sentence: The same in words.
    """

    setting: Setting
    sentence: str
    factor: float | None = None
    value: str | None = None
    layer: str | None = None

    def apply(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Make the change in place, where it is one of the model or of the optimizer.

        `init` belongs before the first step; what torch starts a layer with is drawn from its generator. A BNP that
        `bnp` attaches is in `trimtab.bnp.bnps_attached_to(optimizer)`.

        Raises:
            ValueError: If the change is not one of model or optimizer: how batches are made, in which precision is
                computed, which layers there are.
        """
        if self.setting in ("lr", "weight_decay"):
            _multiply(optimizer, self.setting, self.factor or 1.0, self._parameters(model))
        elif self.setting == "init" and self.factor is not None and self.layer is not None:
            weight = model.get_submodule(self.layer).weight
            assert isinstance(weight, nn.Parameter)
            weight.data.mul_(self.factor)
        elif self.setting == "init" and callable(begin := getattr(self._module(model), "reset_parameters", None)):
            begin()
        elif self.setting == "statistics":
            for module in model.modules():
                if isinstance(getattr(module, "momentum", None), float) and hasattr(module, "running_mean"):
                    vars(module)["momentum"] = self.factor
        elif self.setting == "bnp":
            from trimtab.bnp import BNP

            if self.factor is not None:
                _multiply(optimizer, "lr", self.factor, None)
            BNP(model).attach(optimizer)
        else:
            raise ValueError(f"This cure is for your own code to apply: {self.sentence}")

    def _module(self, model: nn.Module) -> nn.Module:
        return model if self.layer is None else model.get_submodule(self.layer)

    def _parameters(self, model: nn.Module) -> set[int] | None:
        """The parameters of the layer, by identity; None for all."""
        return None if self.layer is None else {id(p) for p in self._module(model).parameters()}


def _multiply(optimizer: Optimizer, name: str, factor: float, parameters: set[int] | None) -> None:
    """Multiply an option of the groups; of some parameters only, these get groups of their own."""
    for group in list(optimizer.param_groups):
        mine = [p for p in group["params"] if parameters is None or id(p) in parameters]
        if not mine:
            continue
        if len(mine) < len(group["params"]):
            group["params"] = [p for p in group["params"] if id(p) not in {id(each) for each in mine}]
            group = {**group, "params": mine}
            optimizer.add_param_group(group)
        group[name] = group[name] * factor
