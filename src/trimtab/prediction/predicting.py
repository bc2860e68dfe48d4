"""`predict`: the largest stable learning rate, measured where there are data, and predicted where there are none."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from trimtab.norms.statistics import Statistics, canonical_statistics
from trimtab.prediction.drawing import DrawnNetworks, draw_networks
from trimtab.prediction.losses import Loss, Outputs, check_loss, describe
from trimtab.prediction.measuring import (
    Measurement,
    check_batch_size,
    has_batch_statistics,
    measure_lambda_max,
    relative,
)
from trimtab.prediction.seen import NOT_SEEN, SeenInTraining, seen_in_training
from trimtab.probes.result import CannotMeasure
from trimtab.theory.from_model import MeanFieldPrediction, mean_field_prediction
from trimtab.theory.mean_field.eigenvalue import max_learning_rate

DRAWN = 64  # inputs, to measure on where there are none
TOO_LARGE = "The model is too large to draw networks like it."
ALONE = (
    "Mean field's formulas alone are right for wide networks, white inputs, frozen statistics and one output: measure "
    "it."
)
MODES = {"batch": "train mode", "frozen": "frozen statistics", "running": "evaluation mode"}


@dataclass(frozen=True)
class Prediction:
    """The largest eigenvalue of the Gauss–Newton matrix of a loss, and the learning rates that follow; print it.

    Attributes:
        kind: What `lambda_max` is: `measured` with the model's own weights, or `predicted` for a random network like
            it.
        lambda_max: The eigenvalue, for a data set of `samples`.
        measurement: What was measured; None if nothing was.
        drawn: The random networks whose mean is the prediction; None if `lambda_max` is measured or mean field's.
        predicted: The value of mean field's formulas for the same; None if they have none.
        loss: In a few words.
        outputs: `all` or `one`.
        statistics: What BatchNorm normalizes by: `batch` as in training, `frozen` or `running`.
        samples: The size of the data set; None: infinite.
        momentum: The momentum that the learning rates are for.
        terms: What each layer adds in mean field, for one output and ½‖f − y‖².
        unseen: A sentence for each reason why a predicted `lambda_max` may be wrong; empty if there is none.
        formulas_unseen: Likewise for `predicted`: properties of the model that the formulas leave out.
        notes: What else is to be known of the numbers.
        batch_norm: Whether some layer of the model normalizes by the statistics of the batch.
    """

    kind: Literal["measured", "predicted"]
    lambda_max: float
    measurement: Measurement | None
    drawn: DrawnNetworks | None
    predicted: float | None
    loss: str
    outputs: Outputs
    statistics: Statistics
    samples: int | None
    momentum: float
    terms: dict[str, float]
    unseen: tuple[str, ...]
    formulas_unseen: tuple[str, ...]
    notes: tuple[str, ...]
    batch_norm: bool

    @property
    def max_learning_rate(self) -> float:
        """η* = 2(1 + μ)/λ_max (meanfield, eq. 7): above it, gradient descent on the quadratic model diverges."""
        return max_learning_rate(self.lambda_max, self.momentum)

    @property
    def optimal_learning_rate(self) -> float:
        """Half of the largest one (the footnote to eq. 7)."""
        return self.max_learning_rate / 2

    @property
    def seen_in_training(self) -> SeenInTraining | None:
        """At which multiples of `max_learning_rate` small networks were seen to rise and to fail.

        None if that was not looked at: for a loss of your own, one output, and BatchNorm that is not in train mode.
        """
        if self.outputs == "one" or (self.batch_norm and self.statistics != "batch"):
            return None
        return seen_in_training(self.loss, self.momentum, "batch" if self.batch_norm else "none")

    def to_dict(self) -> dict[str, Any]:
        """All results, for JSON; an infinite learning rate is None."""
        rates = {name: getattr(self, name) for name in ("max_learning_rate", "optimal_learning_rate")}
        finite = {name: rate if math.isfinite(rate) else None for name, rate in rates.items()}
        seen = self.seen_in_training
        return {**asdict(self), **finite, "seen_in_training": None if seen is None else asdict(seen)}

    def __str__(self) -> str:
        """What it is for, the eigenvalue, the rates, what each layer adds, what is left out, and what was seen."""
        outputs = "all outputs" if self.outputs == "all" else "one output"
        lines = [f"For {self.loss}, {outputs}, {MODES[self.statistics]}, momentum {self.momentum:g}:"]
        rows = []
        if self.measurement is not None:
            on = f"on {self.measurement.samples} samples"
            rows.append((f"λ_max, measured {on}", f"{self.measurement.lambda_max:.4g}"))
            if self.kind == "measured" and self.lambda_max != self.measurement.lambda_max:
                whole = "infinitely many" if self.samples is None else f"{self.samples:,}"
                rows.append((f"λ_max, for {whole} samples", f"{self.lambda_max:.4g}"))
        if self.drawn is not None:
            spread = f"{100 * self.drawn.spread:.0f} % from network to network"
            rows.append((f"λ_max, mean of {self.drawn.draws} drawn networks", f"{self.lambda_max:.4g}  (± {spread})"))
        if self.predicted is not None:
            ratio = relative(self.predicted, self.lambda_max)
            headline = "the measured" if self.kind == "measured" else "that" if self.drawn else ""
            beside = f"  ({ratio:.2f} of {headline})" if headline and math.isfinite(ratio) else ""
            rows.append(("λ_max, by mean field's formulas", f"{self.predicted:.4g}{beside}"))
        rows.append((f"largest learning rate, {self.kind}", f"{self.max_learning_rate:.3g}"))
        rows.append(("optimal learning rate", f"{self.optimal_learning_rate:.3g}"))
        width = max(len(name) for name, _ in rows)
        lines += [f"  {name:<{width}}  {value}" for name, value in rows]
        if self.terms:
            total = math.fsum(self.terms.values())
            lines.append("What each layer adds, by mean field, for one output and ½‖f − y‖²:")
            width = max(map(len, self.terms))
            for name, value in self.terms.items():
                share = f"{100 * value / total:6.1f} %" if total > 0 else ""
                lines.append(f"  {name:<{width}}  {value:10.4g}  {share}".rstrip())
        if self.formulas_unseen:
            lines += ["Mean field leaves out:", *(f"- {sentence}" for sentence in self.formulas_unseen)]
        lines += [f"Not to be relied on: {one}" for one in self.unseen if one not in self.formulas_unseen]
        lines += [f"Note: {sentence}" for sentence in self.notes]
        if math.isfinite(self.max_learning_rate):
            lines.append(str(self.seen_in_training or NOT_SEEN))
        return "\n".join(lines)


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
    random order are drawn, and the mean of theirs is taken. For a model so large that this would take more than some
    seconds the formulas of mean field answer alone. The model is left as it is.

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
    if measure not in (None, True, False):
        raise ValueError(f"measure must be True, False or None, not {measure!r}.")
    word = "batch" if statistics is None else canonical_statistics(statistics)
    max_learning_rate(1.0, momentum)  # refuse it before anything is done
    measuring = (inputs is not None) if measure is None else measure
    if not measuring and (callable(loss) or word == "running"):
        what = "a loss of your own" if callable(loss) else "statistics='running'"
        raise ValueError(f"{what} can only be measured: give inputs, and leave measure out.")
    if targets is not None and inputs is None:
        raise ValueError("targets must come with inputs.")
    if not measuring and word == "batch" and 1 in (batch_size, samples) and has_batch_statistics(model):
        raise ValueError("batch_size and samples must be 2 or larger: one sample alone has no variance for BatchNorm.")
    notes: list[str] = []
    measurement = None
    if measuring:
        data = inputs
        if data is None:
            generator = torch.Generator().manual_seed(0)
            data = torch.randn(DRAWN, *shape, generator=generator)
            data = data.to(next(iter(model.parameters())))
            notes.append(f"Measured on {DRAWN} drawn inputs of white noise; give inputs for those of your data.")
        measurement = measure_lambda_max(
            model, data, targets, loss=loss, outputs=outputs, statistics=word, batch_size=batch_size
        )
        notes += [measurement.note] if measurement.note else []
        if not measurement.converged:
            notes.append("Lanczos' method had not come within 2 % of an eigenvalue when it ended.")
    elif inputs is None:
        notes.append("White inputs are assumed; with inputs of yours it is measured.")
    count = len(inputs) if samples is None and inputs is not None else samples
    known = not callable(loss) and word != "running"

    def mean_field(samples: int | None) -> MeanFieldPrediction | str:
        kind: Any = (loss, outputs) if known else ("squared", "one")
        return _mean_field(model, shape, inputs, word, samples, *kind)

    field = mean_field(count)
    if isinstance(field, str) and measurement is None and "Nothing can be predicted" in field:
        raise ValueError(field)
    predicted = field.lambda_max if known and not isinstance(field, str) else None
    formulas_unseen = (field,) if isinstance(field, str) else field.unseen
    unseen: tuple[str, ...] = ()
    drawn = None
    if measurement is not None:
        value = measurement.lambda_max
        if count is not None and count != measurement.samples:
            value, sentence = _extrapolated(measurement, mean_field(measurement.samples), field, count)
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
        batch_norm=has_batch_statistics(model),
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
    if inputs is not None and (not isinstance(inputs, Tensor) or tuple(inputs.shape[1:]) != shape or len(inputs) < 2):
        found = tuple(inputs.shape) if isinstance(inputs, Tensor) else type(inputs).__name__
        raise ValueError(f"inputs must be two samples or more of the shape {shape}, not {found}.")
    if samples is not None and (isinstance(samples, bool) or not isinstance(samples, int) or samples < 1):
        raise ValueError(f"samples must be None or a whole number, 1 or larger, not {samples!r}.")
    return shape


def _mean_field(
    model: nn.Module,
    shape: Sequence[int],
    inputs: Tensor | None,
    word: Statistics,
    samples: int | None,
    loss: Literal["squared", "cross_entropy"],
    outputs: Outputs,
) -> MeanFieldPrediction | str:
    """Mean field for a loss, or why there is none."""
    mode: Literal["batch", "frozen"] = "frozen" if word == "running" or not has_batch_statistics(model) else word
    try:
        return mean_field_prediction(
            model, shape, inputs=inputs, statistics=mode, samples=samples, loss=loss, outputs=outputs
        )
    except ValueError as error:
        if "cannot be traced" not in str(error) and "Nothing can be predicted" not in str(error):
            raise
        return str(error)


def _extrapolated(
    measurement: Measurement, few: MeanFieldPrediction | str, many: MeanFieldPrediction | str, samples: int
) -> tuple[float, str]:
    """What was measured, for a data set of another size, by what mean field says of both sizes."""
    if isinstance(few, str) or isinstance(many, str) or not few.lambda_max > 0:
        return measurement.lambda_max, f"It is not extrapolated to {samples} samples: mean field cannot read the model."
    shaky = ", which leaves something out" if many.unseen else ""
    return (
        measurement.lambda_max * many.lambda_max / few.lambda_max,
        f"Extrapolated from {measurement.samples} to {samples} samples by mean field{shaky}.",
    )
