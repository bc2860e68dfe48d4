"""Inputs, class labels and accuracy: what the probes of accuracy have in common."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.norms.statistics import Statistics
from trimtab.probes import options
from trimtab.probes.isolation import IsolatedModel
from trimtab.probes.result import CannotMeasure, Probe, R
from trimtab.probes.surface import copied_batch

Forward = Callable[[nn.Module, Tensor], Tensor]
Pair = Callable[[Any], tuple[Tensor, Tensor]]


@dataclass(frozen=True, kw_only=True)
class AccuracyProbe(Probe[R]):
    """A probe of a classifier's accuracy, in evaluation mode unless told otherwise.

    `loss_fn` is not called: accuracy needs outputs and labels.

    Attributes:
        data: A batch to measure on, such as one of held-out data; None: that of the step.
        pair: From a batch to its inputs, one tensor, and its labels, one class for each
            sample; None: the batch is such a pair.
        forward: From model and inputs to the outputs, of which the largest is the predicted class; None: the model.
        statistics: See `IsolatedModel`.
    """

    data: Any = None
    pair: Pair | None = None
    forward: Forward | None = None
    statistics: Statistics = "running"

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: If an option is invalid.
        """
        options.check_data(self)
        if self.pair is not None and not callable(self.pair):
            raise ValueError(
                f"pair must be a function that is called as pair(batch), not {options.described(self.pair)}."
            )
        options.check_function(self, "forward", "model, inputs")
        options.check_statistics(self)

    def labelled(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Copies of inputs and labels.

        Raises:
            CannotMeasure: If the batch has not both.
        """
        batch = copied_batch(batch if self.data is None else self.data)
        found = batch if self.pair is None else self.pair(batch)
        if not (isinstance(found, tuple | list) and len(found) == 2 and all(isinstance(x, Tensor) for x in found)):
            raise CannotMeasure(
                "The batch is not a pair of inputs and labels; give pair, a function that makes one of it."
            )
        inputs, labels = found
        if labels.is_floating_point() or labels.ndim != 1 or len(labels) != len(inputs) or not len(labels):
            raise CannotMeasure("Accuracy needs a class for each sample, a tensor of whole numbers.")
        return inputs, labels

    def outputs(self, model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
        """A row of outputs for each sample.

        Raises:
            CannotMeasure: If there is not one, or if it is not finite.
        """
        outputs = model(inputs) if self.forward is None else self.forward(model, inputs)
        if not isinstance(outputs, Tensor) or outputs.ndim != 2 or len(outputs) != len(labels):
            raise CannotMeasure("Accuracy needs one tensor of outputs, with a row for each sample.")
        if not bool(outputs.isfinite().all()):
            raise CannotMeasure("The outputs are not finite.")
        return outputs

    def accuracy(self, isolated: IsolatedModel, inputs: Tensor, labels: Tensor) -> float:
        """The share of samples whose largest output is that of their class; to be called within a run."""
        isolated.rewind()
        with torch.no_grad():
            outputs = self.outputs(isolated.model, inputs, labels)
        return float((outputs.argmax(1) == labels).double().mean())
