"""The outcome of training one network by several methods at several batch sizes."""

import json
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Cell:
    """One network, batch size and method.

    Attributes:
        network: The network's name.
        batch_size: Samples per step.
        epochs: Passes over the training data.
        method: The method's name.
        lr: The learning rate chosen on validation data; None if the method cannot train here.
        lr_at_edge: Whether that is the smallest or the largest candidate, so that a better one may lie outside.
        accuracies: Test accuracy of each seed, between 0 and 1.
    """

    network: str
    batch_size: int
    epochs: int
    method: str
    lr: float | None
    lr_at_edge: bool
    accuracies: tuple[float, ...]

    @property
    def mean(self) -> float | None:
        """The mean test accuracy."""
        return fmean(self.accuracies) if self.accuracies else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """All cells, with what is needed to have them again.

    Attributes:
        command: What to type.
        data: The data set.
        machine: The hardware it was measured on.
        versions: Of trimtab and torch.
        seconds: How long it took.
        learning_rates: The candidates, the same for every method.
        cells: The outcomes.
        conclusion: What they show, in a sentence.
        figure: Where their figure is.
    """

    command: str
    data: str
    machine: str
    versions: dict[str, str]
    seconds: float
    learning_rates: tuple[float, ...]
    cells: tuple[Cell, ...]
    conclusion: str
    figure: str
    schema: int = SCHEMA

    def to_json(self) -> str:
        """As JSON, with the means beside the single accuracies."""
        content: dict[str, Any] = asdict(self)
        for cell, entry in zip(self.cells, content["cells"], strict=True):
            entry["mean"] = cell.mean
        return json.dumps(content, indent=2)
