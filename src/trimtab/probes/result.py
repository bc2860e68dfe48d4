"""What a probe is, and what it returns."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from trimtab import _torch
from trimtab.bnp.layer_shapes import is_sharded
from trimtab.probes.options import check_call

LossFunction = Callable[[nn.Module, Any], Tensor]
"""loss_fn(model, batch) → a tensor of one number."""


class CannotMeasure(Exception):  # noqa: N818
    """Nothing can be measured with this model or batch; the message goes into the result."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a probe.

    Attributes:
        problem: Why there is nothing else in it (out of memory, a loss that is not a number); None if all went well.
    """

    problem: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """All of it, in dictionaries, lists, numbers and words."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}


R = TypeVar("R", bound=Result)


class Probe(ABC, Generic[R]):
    """Measures something of a model, its loss and a batch, and changes nothing.

    Memory that runs out and numbers that are not finite are reported in the result, not raised.

    Attributes:
        name: What it is called in records and on the command line.
        result: What it returns.
        successive: Whether it compares successive steps, so that a monitor calls it at the step after each due one too.
    """

    name: ClassVar[str]
    result: ClassVar[type[Result]]
    successive: ClassVar[bool] = False

    def __call__(self, model: nn.Module, loss_fn: LossFunction, batch: Any) -> R:
        """Measure.

        Args:
            model: Any module.
            loss_fn: Takes the model and the batch and returns a tensor of one number.
            batch: Whatever `loss_fn` takes.

        Raises:
            TypeError: If `loss_fn` cannot be called with a model and a batch.
        """
        check_call(model, loss_fn)
        try:
            refuse_sharded(model)
            return self.measure(model, loss_fn, batch)
        except CannotMeasure as error:
            problem = str(error)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            problem = "Out of memory."
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.empty_cache()
        return self.result(problem=problem)  # type: ignore[return-value]

    @abstractmethod
    def measure(self, model: nn.Module, loss_fn: LossFunction, batch: Any) -> R:
        """Measure, or raise CannotMeasure."""


def refuse_sharded(model: nn.Module) -> None:
    """Refuse weights that are gathered when the model is called: what is measured would be lost on them.

    Raises:
        CannotMeasure: If the model has some.
    """
    if _torch.fully_sharded(model.modules()) or any(map(is_sharded, model.parameters())):
        raise CannotMeasure(
            "The model's weights are sharded over several processes; what is measured needs a model with whole weights."
        )


def out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on whatever device."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    words = ("allocate memory", "out of memory", "not enough memory", "ALLOC_FAILED")
    return isinstance(error, RuntimeError) and any(each in str(error) for each in words)


def by_layer(names: Iterable[str]) -> dict[str, list[str]]:
    """Names of parameters, by the layer that they belong to."""
    layers: dict[str, list[str]] = {}
    for name in names:
        owner = name.rpartition(".")[0]
        if ".parametrizations." in f".{owner}":
            owner = f".{owner}".partition(".parametrizations.")[0].removeprefix(".")
        layers.setdefault(owner, []).append(name)
    return layers


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in value]
    if hasattr(value, "__dataclass_fields__"):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return value
