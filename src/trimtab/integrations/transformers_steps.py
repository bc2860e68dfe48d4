"""What the callbacks for the Trainer of transformers have in common: their base, and the loss that a model computes."""

from typing import Any

from torch import Tensor, nn

from trimtab.integrations.needed import needed

TrainerCallback: Any = needed("transformers", extra="transformers").TrainerCallback


def own_loss(model: nn.Module, inputs: dict[str, Any]) -> Tensor:
    """The loss that a model computes itself, from `labels`."""
    outputs = model(**inputs)
    loss: Tensor = outputs["loss"] if isinstance(outputs, dict) else outputs[0]
    return loss
