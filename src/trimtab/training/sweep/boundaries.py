"""Where theory puts the boundary of a sweep, and how far the measured one is from it."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from trimtab.data import Dataset, batches
from trimtab.records import PredictedBoundary, Sweep
from trimtab.theory.from_model.prediction import mean_field_prediction, paper_lambda_max
from trimtab.theory.mean_field.eigenvalue import max_learning_rate
from trimtab.training.building import split_data
from trimtab.training.settings import Settings, resolved
from trimtab.training.sweep.plan import example_network

Theory = Callable[[nn.Module], tuple[float, tuple[str, ...]]]
"""From a network to λ_max and what it leaves out."""
BY_SAMPLE = ("none", "noise-only", "ln", "gn", "in", "wn")
"""Norms whose networks have no statistics of a batch."""
SAMPLES = 1000
"""Of the training data, whose moments the theory starts with."""


def predicted_boundaries(sweep: Sweep, cells: Sequence[Settings], dataset: Dataset) -> tuple[PredictedBoundary, ...]:
    """The largest stable rates that mean field predicts along a sweep.

    They are for SGD. The paper's and the exact one belong to one output and the loss ½‖f − y‖²; the last one to the
    loss and all outputs of the sweep's networks. What a theory leaves out depends little on the numbers of a network,
    so only the notes of the first network that it has any for are told.
    """
    at = sweep.rate_axis
    assert at is not None
    if cells[0].optimizer != "sgd" or cells[0].parsed_method.bnp:
        return ()
    by_values = dict(zip((cell.values for cell in sweep.cells), cells, strict=True))
    firsts = [by_values[slice_cells[0].values] for _, slice_cells in sweep.slices()]
    train, _, _ = split_data(dataset, cells[0])
    how = {"dataset": dataset, "normalize": resolved(cells[0].normalize), "device": torch.device("cpu")}
    some = train.take(torch.linspace(0, len(train) - 1, min(SAMPLES, len(train))).long())
    inputs = torch.cat([x for x, _ in batches(some, len(some), **how)])  # type: ignore[arg-type]
    networks = [_network(settings, dataset) for settings in firsts]
    largest = [_largest_product(settings, dataset, len(train)) for settings in firsts]
    norm = cells[0].parsed_method.norm
    by_batch = norm not in BY_SAMPLE
    loss = cells[0].loss if dataset.classes else "squared"
    by_mean_field = partial(_by_mean_field, dataset.input_shape)
    theories: list[tuple[str, str, Theory]] = []
    if by_batch or norm == "none":  # the paper has no other norms
        words = "as printed: one output, squared loss, white data, frozen statistics"
        theories.append(("the paper", words, lambda model: (paper_lambda_max(model, dataset.input_shape), ())))
    words = "one output, squared loss, white data" + (", frozen statistics" if by_batch else "")
    theories.append(("exact", words, partial(by_mean_field, statistics="frozen")))
    if by_batch:
        words = "one output, squared loss, white data, gradient through the statistics"
        theories.append(("train mode", words, partial(by_mean_field, statistics="batch")))
    words = f"all outputs, {loss.replace('_', '-')} loss, this data" + (", train mode" if by_batch else "")
    own = partial(by_mean_field, statistics="batch", loss=loss, outputs="all", inputs=inputs)
    theories.append(("this loss and data", words, own))
    found = []
    for name, description, theory in theories:
        said = [_rate(theory, model, product) for model, product in zip(networks, largest, strict=True)]
        rates, notes = tuple(rate for rate, _ in said), next((notes for _, notes in said if notes), ())
        if notes or any(rate is not None for rate in rates):
            found.append(PredictedBoundary(name, description, rates, notes))
    return tuple(found)


def _by_mean_field(shape: tuple[int, ...], model: nn.Module, **options: Any) -> tuple[float, tuple[str, ...]]:
    prediction = mean_field_prediction(model, shape, **options)
    return prediction.lambda_max, prediction.unseen


def _network(settings: Settings, dataset: Dataset) -> nn.Module | None:
    """The network that the theories are asked about; None if there is none with these settings."""
    try:
        return example_network(settings, dataset)
    except ValueError:
        return None


def _largest_product(settings: Settings, dataset: Dataset, samples: int) -> float:
    """What rate times eigenvalue must stay below, the eigenvalue being that of the mean of ½‖f − y‖² or cross-entropy.

    That is 2(1 + μ) (meanfield, eq. 7), with Nesterov's momentum 2(1 + μ)/(1 + 2μ). In regression the loss is ‖f − y‖²
    summed over samples, whose eigenvalues are 2 × batch size as large.
    """
    momentum = resolved(settings.momentum)
    product = max_learning_rate(1.0, momentum) / (1 + 2 * momentum if settings.nesterov else 1)
    return product if dataset.classes else product / (2 * (resolved(settings.batch_size) or samples))


def _rate(theory: Theory, model: nn.Module | None, product: float) -> tuple[float | None, tuple[str, ...]]:
    """The largest stable rate by a theory, None if it cannot say; and what it leaves out, or why it cannot say."""
    if model is None:
        return None, ()
    try:
        with np.errstate(all="ignore"):  # where γ is 0, say
            largest, notes = theory(model)
    except ValueError as error:
        return None, (str(error),)
    except ArithmeticError:
        largest = math.nan
    if not (largest > 0 and 0 < product / largest < math.inf):
        return None, (f"Its formulas give no largest rate: λ_max is {largest:.3g}.",)
    return product / largest, notes
