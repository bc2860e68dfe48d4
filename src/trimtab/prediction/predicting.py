"""`predict`: the largest stable learning rate, measured where there are data, and predicted where there are none."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from trimtab.norms.statistics import Statistics, canonical_statistics
from trimtab.prediction.batch_statistics import has_batch_statistics, mixes_samples
from trimtab.prediction.drawing import FAR, UNCERTAIN, draw_networks
from trimtab.prediction.losses import Loss, Outputs, check_loss, describe
from trimtab.prediction.measuring import (
    TRIED,
    Measurement,
    check_batch_size,
    check_targets,
    measure_lambda_max,
)
from trimtab.prediction.products import check_outputs, outputs_of
from trimtab.prediction.result import Prediction
from trimtab.probes.isolation import IsolatedModel
from trimtab.probes.result import CannotMeasure
from trimtab.theory.from_model import MeanFieldPrediction, mean_field_prediction
from trimtab.theory.mean_field.eigenvalue import max_learning_rate

DRAWN = 64  # inputs, to measure on where there are none
CLOSE = (0.8, 1.25)  # mean field over measured, between which mean field may move the measured by more than FAR
TOO_LARGE = "The model is too large to draw networks like it."
ALONE = (
    "Mean field's formulas alone are right for wide networks, white inputs, frozen statistics and one output: measure "
    "it."
)


def predict(
    model: nn.Module,
    input_shape: Sequence[int],
    *,
    loss: Loss = "squared",
    outputs: Outputs = "all",
    statistics: Statistics | None = None,
    inputs: Tensor | None = None,
    targets: Tensor | None = None,
    samples: int | None = None,
    batch_size: int | None = None,
    momentum: float = 0.0,
    measure: bool | None = None,
) -> Prediction:
    """The largest stable learning rate of a model at its present weights, without training.

    With `inputs` the largest eigenvalue of the Gauss–Newton matrix is measured with the model's own weights, within
    2 % and in about a minute and 4 GiB at most (else on fewer inputs, which is said); mean field stands beside it.
    Without, it is predicted for a random network like the model, on white noise: networks with the same weights in
    random order are drawn, and the mean of theirs is taken. For a model so large that this would take more than half a
    minute the formulas of mean field answer alone. The model is left as it is.

    Args:
        model: Any module; mean field's formulas need one that torch.fx can trace.
        input_shape: The shape of one input, without the dimension of samples.
        loss: `squared`, the mean over samples of ½‖f − y‖²; `cross_entropy`; or a function of outputs and targets that
            returns a mean over samples, which can only be measured.
        outputs: `all`, or `one`, as in the mean-field paper, for the squared loss.
        statistics: What BatchNorm normalizes by: `batch` with the gradient through it, as in training; `frozen` without
            that, as in the paper; `running`, which can only be measured. None: as in training.
        inputs: Data, (samples, *input_shape).
        targets: As many; needed by a loss of your own only.
        samples: The size of the data set, to which what is measured on `inputs` is extrapolated by mean field; None:
            that of `inputs`, or infinite without any.
        batch_size: How many inputs share BatchNorm's statistics; None: all.
        momentum: Of the optimizer, in [0, 1).
        measure: True: measure, on drawn inputs if none are given; False: predict, for these inputs if there are some;
            None: measure if there are inputs.

    Raises:
        ValueError: If an argument makes no sense, or there is nothing to predict.
        CannotMeasure: If numbers are not finite on the way.
    """
    check_loss(loss, outputs)
    shape = _check_shapes(model, input_shape, inputs, samples)
    check_batch_size(batch_size)
    if measure is not None and not isinstance(measure, bool):
        raise ValueError(f"measure must be True, False or None, not {measure!r}.")
    word = "batch" if statistics is None else canonical_statistics(statistics)
    max_learning_rate(1.0, momentum)  # refuse it before anything is done
    measuring = (inputs is not None) if measure is None else measure
    if not measuring and (callable(loss) or word == "running"):
        what = "a loss of your own" if callable(loss) else "statistics='running'"
        raise ValueError(f"{what} can only be measured: give inputs, and leave measure out.")
    if targets is not None and inputs is None:
        raise ValueError("targets must come with inputs.")
    if inputs is not None:
        check_targets(targets, len(inputs))
    if torch.is_inference_mode_enabled():
        raise ValueError("predict needs derivatives, which torch.inference_mode does not have; call it outside.")
    is_random = _check_forward(model, shape, inputs)
    by_hand = mixes_samples(model, _noise(model, shape, 4) if inputs is None else inputs)
    if by_hand and word == "frozen":
        raise ValueError(
            "statistics='frozen' is for BatchNorm layers: the model mixes samples outside of these, as F.batch_norm "
            "does, or a normalization written by hand; take statistics='batch'."
        )
    batch_norm = by_hand or has_batch_statistics(model)
    if word == "batch" and batch_norm and (batch_size == 1 or (samples == 1 and not measuring)):
        raise ValueError("batch_size and samples must be 2 or larger: one sample alone has no variance for BatchNorm.")
    notes: list[str] = []
    measurement = None
    if measuring:
        data = inputs
        if data is None:
            data = _noise(model, shape, DRAWN)
            notes.append(f"Measured on {DRAWN} drawn inputs of white noise; give inputs for those of your data.")
        measurement = measure_lambda_max(
            model, data, targets, loss=loss, outputs=outputs, statistics=word, batch_size=batch_size
        )
        notes += [measurement.note] if measurement.note else []
        if is_random:
            notes.append("The model draws random numbers, as functional dropout does: measured with one draw of them.")
        if not measurement.converged:
            notes.append("Lanczos' method had not come within 2 % of an eigenvalue when it ended.")
    elif inputs is None:
        notes.append("White inputs (independent normal numbers) are assumed; with your data it is measured instead.")
    count = len(inputs) if samples is None and inputs is not None else samples
    known = not callable(loss) and word != "running"

    def mean_field(samples: int | None) -> MeanFieldPrediction | str:
        kind: Any = (loss, outputs) if known else ("squared", "one")
        mode: Literal["batch", "frozen"] = "batch" if word == "batch" and batch_norm else "frozen"
        return _mean_field(model, shape, inputs, mode, samples, *kind)

    if measurement is not None and not measurement.lambda_max > 0:
        notes.append(
            "The loss does not curve upwards in the outputs, so that no learning rate follows from its curvature."
        )

    field = mean_field(count)
    if isinstance(field, str) and measurement is None and "Nothing can be predicted" in field:
        raise ValueError(field)
    predicted = field.lambda_max if known and not isinstance(field, str) else None
    formulas_unseen = (field,) if isinstance(field, str) else field.unseen
    unseen: tuple[str, ...] = ()
    drawn = None
    if measurement is not None:
        value = measurement.lambda_max
        left_over = (
            inputs is not None and count == len(inputs) and not measurement.note
        )  # by batches that do not divide
        if left_over and count != measurement.samples:
            notes.append(
                f"Measured on {measurement.samples} of {count} inputs: whole batches of {measurement.batch_size}."
            )
        elif count is not None and count != measurement.samples:
            few = mean_field(measurement.samples)
            value, sentence, unseen = _extrapolated(measurement, few, field, count, trusted=known)
            notes.append(sentence)
    else:
        drawn, why = None, TOO_LARGE
        try:
            drawn = draw_networks(
                model,
                shape,
                inputs,
                loss=loss,
                outputs=outputs,
                statistics=word,
                batch_size=batch_size,
                samples=count,
            )
        except CannotMeasure as error:
            why = f"Networks like it cannot be drawn. {error}"
        if drawn is not None:
            value, unseen = drawn.lambda_max, drawn.unseen
        elif predicted is None:
            raise ValueError(f"{formulas_unseen[0]} {why} measure=True measures it on drawn inputs.")
        else:
            value, unseen = predicted, (*formulas_unseen, f"{why} {ALONE}")
    return Prediction(
        kind="predicted" if measurement is None else "measured",
        lambda_max=value,
        measurement=measurement,
        drawn=drawn,
        predicted=predicted,
        loss=describe(loss),
        outputs=outputs,
        statistics=word,
        samples=count,
        momentum=momentum,
        terms={} if isinstance(field, str) else field.terms,
        unseen=unseen,
        formulas_unseen=formulas_unseen,
        notes=tuple(notes),
        batch_norm=batch_norm,
    )


def _check_shapes(model: Any, input_shape: Any, inputs: Any, samples: Any) -> tuple[int, ...]:
    """The shape of one input.

    Raises:
        ValueError: If one of these is something else, or they do not fit together.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"model must be a torch.nn.Module, not {type(model).__name__}.")
    shape = tuple(input_shape) if isinstance(input_shape, Sequence) else ()
    if not shape or not all(isinstance(n, int) and n > 0 for n in shape):
        raise ValueError(f"input_shape must be a sequence of positive whole numbers, not {input_shape!r}.")
    if inputs is not None and (
        not isinstance(inputs, Tensor) or not inputs.ndim or tuple(inputs.shape[1:]) != shape or len(inputs) < 2
    ):
        found = tuple(inputs.shape) if isinstance(inputs, Tensor) else type(inputs).__name__
        raise ValueError(f"inputs must be two samples or more of the shape {shape}, not {found}.")
    like = next((p for p in model.parameters() if p.is_floating_point()), None)
    if inputs is not None and inputs.layout is not torch.strided:
        raise ValueError(f"inputs must be a dense tensor, not one of {inputs.layout}.")
    if inputs is not None and like is not None:
        other_type = inputs.is_floating_point() and inputs.dtype is not like.dtype
        if other_type or inputs.device != like.device:
            raise ValueError(
                f"inputs must be {like.dtype} on {like.device}, as the model's parameters are, not {inputs.dtype} on "
                f"{inputs.device}."
            )
    if samples is not None and (isinstance(samples, bool) or not isinstance(samples, int) or samples < 1):
        raise ValueError(f"samples must be None or a whole number, 1 or larger, not {samples!r}.")
    return shape


def _noise(model: nn.Module, shape: Sequence[int], count: int) -> Tensor:
    """White inputs of the type and on the device of a model."""
    noise = torch.randn(count, *shape, generator=torch.Generator().manual_seed(0))
    like = next(model.parameters(), None)
    return noise if like is None else noise.to(like)


def _check_forward(model: nn.Module, shape: tuple[int, ...], inputs: Tensor | None) -> bool:
    """Refuse inputs that the model does not take, and outputs that have no derivative by sample.

    It returns whether the model draws random numbers.

    Raises:
        ValueError: If its forward fails, or does not return one tensor with a row for each sample.
    """
    isolated = IsolatedModel(model, dropout=False)
    # as many as are tried later: kernels are made anew for each number
    some = _noise(model, shape, TRIED) if inputs is None else inputs[:TRIED]
    if some.is_complex() or any(p.is_complex() for p in model.parameters()):
        raise ValueError("model and inputs must have real numbers, not complex ones.")
    try:
        values, is_random = outputs_of(isolated, some)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # of any kind, since it is the model's own code that raises it
        first = str(error).partition("\n")[0] or type(error).__name__
        about = f"{tuple(some.shape if inputs is None else inputs.shape)}, {some.dtype}"
        name = "input_shape" if inputs is None else "inputs"
        raise ValueError(f"{name}: the model does not take {about}: {first}") from error
    check_outputs(values, len(some))
    return is_random


def _mean_field(
    model: nn.Module,
    shape: Sequence[int],
    inputs: Tensor | None,
    mode: Literal["batch", "frozen"],
    samples: int | None,
    loss: Literal["squared", "cross_entropy"],
    outputs: Outputs,
) -> MeanFieldPrediction | str:
    """Mean field for a loss, or why there is none."""
    if inputs is not None and not inputs.is_floating_point():
        return "Mean field's formulas are for inputs of real numbers."
    try:
        return mean_field_prediction(
            model, shape, inputs=inputs, statistics=mode, samples=samples, loss=loss, outputs=outputs
        )
    except ValueError as error:
        if "cannot be traced" not in str(error) and "Nothing can be predicted" not in str(error):
            raise
        return str(error)


def _extrapolated(
    measurement: Measurement,
    few: MeanFieldPrediction | str,
    many: MeanFieldPrediction | str,
    samples: int,
    *,
    trusted: bool,
) -> tuple[float, str, tuple[str, ...]]:
    """What was measured, for a data set of another size, by what mean field says of both sizes.

    Also a note, and why it may be wrong. `trusted` is whether mean field is for the same loss.
    """
    measured, unseen = measurement.lambda_max, []
    if measurement.uncertainty > UNCERTAIN:
        unseen.append(
            f"What each of the {measurement.samples} measured samples adds differs so much that for others λ_max would "
            f"differ by {100 * measurement.uncertainty:.0f} % or so: measure it on more inputs."
        )
    if isinstance(few, str) or isinstance(many, str) or not few.lambda_max > 0:
        note = f"It is not extrapolated to {samples} samples: mean field cannot read the model."
        return measured, note, tuple(unseen)
    value = measured * many.lambda_max / few.lambda_max
    close = trusted and CLOSE[0] * measured <= few.lambda_max <= CLOSE[1] * measured
    if not close and abs(value - measured) > FAR * measured:
        unseen.append(
            f"It is extrapolated from {measurement.samples} to {samples:,} samples, by {measured:.3g} → {value:.3g}, "
            "with mean field's formulas, which are not close to what is measured: measure it on more inputs."
        )
    shaky = ", which leaves something out" if many.unseen else ""
    note = f"Extrapolated from {measurement.samples} to {samples} samples by mean field{shaky}."
    return value, note, tuple(unseen)
