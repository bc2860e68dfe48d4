"""What `predict` returns, and how it is printed."""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from trimtab.norms.statistics import Statistics
from trimtab.prediction.drawing import DrawnNetworks
from trimtab.prediction.losses import Outputs
from trimtab.prediction.measuring import Measurement, relative
from trimtab.prediction.seen import NOT_SEEN, SeenInTraining, seen_in_training
from trimtab.theory.mean_field.eigenvalue import max_learning_rate

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
        unseen: A sentence for each reason why `lambda_max` may be wrong; empty if there is none. What is measured, and
            not extrapolated to more samples, is not.
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
        lines = [
            f"For {self.loss}, {outputs}, {MODES[self.statistics]}, momentum {self.momentum:g} (λ_max is the largest "
            "eigenvalue of the loss's Gauss–Newton matrix):"
        ]
        rows = []
        if self.measurement is not None:
            on = f"on {self.measurement.samples} samples"
            rows.append((f"λ_max, measured {on}", f"{self.measurement.lambda_max:.4g}"))
            if self.lambda_max != self.measurement.lambda_max:
                whole = "infinitely many" if self.samples is None else f"{self.samples:,}"
                chance = f"(± {100 * self.measurement.uncertainty:.0f} % by the choice of those measured)"
                rows.append((f"λ_max, for {whole} samples", f"{self.lambda_max:.4g}  {chance}"))
        if self.drawn is not None:
            spread = f"{100 * self.drawn.spread:.0f} % from network to network"
            rows.append((f"λ_max, mean of {self.drawn.draws} drawn networks", f"{self.lambda_max:.4g}  (± {spread})"))
        if self.predicted is not None:
            ratio = relative(self.predicted, self.lambda_max)
            headline = "the measured" if self.kind == "measured" else "that mean" if self.drawn else ""
            beside = f"  ({ratio:.2f} of {headline})" if headline and math.isfinite(ratio) else ""
            rows.append(("λ_max, by mean field's formulas", f"{self.predicted:.4g}{beside}"))
        rows.append((f"largest learning rate, {self.kind}", f"{self.max_learning_rate:.3g}"))
        rows.append(("optimal learning rate", f"{self.optimal_learning_rate:.3g}  (half of it, as on a quadratic)"))
        width = max(len(name) for name, _ in rows)
        lines += [f"  {name:<{width}}  {value}" for name, value in rows]
        if self.terms:
            total = math.fsum(self.terms.values())
            lines.append("What each layer adds to λ_max, by mean field's formulas, for one output and ½‖f − y‖²:")
            width = max(map(len, self.terms))
            for name, value in self.terms.items():
                share = f"{100 * value / total:6.1f} %" if total > 0 else ""
                lines.append(f"  {name:<{width}}  {value:10.4g}  {share}".rstrip())
        if self.formulas_unseen:
            lines += ["What mean field's formulas leave out:", *(f"- {sentence}" for sentence in self.formulas_unseen)]
        lines += [f"Not to be relied on: {one}" for one in self.unseen if one not in self.formulas_unseen]
        lines += [f"Note: {sentence}" for sentence in self.notes]
        if math.isfinite(self.max_learning_rate):
            lines.append(str(self.seen_in_training or NOT_SEEN))
        return "\n".join(lines)
