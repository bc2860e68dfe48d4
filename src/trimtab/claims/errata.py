"""Slips of the papers that the records of experiments show: the printed form fails and the corrected one holds.

Each is a row of docs/errata.md of which both forms are computed. A part `function erratum-NAME @ EXPERIMENT` is met if
every part of the corrected form is met and one of the printed form is not.
"""

from dataclasses import dataclass

from trimtab.claims.judging import Outcome, State, judge_part
from trimtab.claims.part import Part
from trimtab.claims.record import Record


@dataclass(frozen=True, slots=True)
class Erratum:
    """A slip, in parts about one record.

    Attributes:
        printed: The printed form.
        corrected: The corrected one.
    """

    printed: tuple[str, ...]
    corrected: tuple[str, ...]

    def __call__(self, part: Part, record: Record) -> Outcome:
        """Whether the printed form fails and the corrected one holds."""
        printed, corrected = (
            [outcome for text in texts for outcome in judge_part(Part.parse(text), record)]
            for texts in (self.printed, self.corrected)
        )
        state: State = "not met"
        if "not run" in [outcome.state for outcome in (*printed, *corrected)]:
            state = "not run"
        elif all(one.state == "met" for one in corrected) and any(one.state == "not met" for one in printed):
            state = "met"
        told = (
            f"{form}: " + ", ".join(f"{one.state} ({one.sentence})" for one in outcomes)
            for form, outcomes in (("printed", printed), ("corrected", corrected))
        )
        return Outcome(part, state, "; ".join(told))


def _checks(printed: str, corrected: str) -> Erratum:
    return Erratum((f"check {printed}",), (f"check {corrected}",))


def _backward(network: str, *names: str) -> Erratum:
    """Backward order parameters, predicted over measured; eqs. 25, 42, 43 and Claim 6.6 of meanfield."""
    printed, exact = (
        tuple(f"{form} over measured, {network}: {name} in [0.95, 1.05]" for name in names)
        for form in ("printed", "exact")
    )
    return Erratum(printed, exact)


ERRATA: dict[str, Erratum] = {
    # bnp
    "bnp-thm1": _checks("contraction-any-rate", "contraction-small-rate"),
    "bnp-sec33": _checks("gain-printed", "gain-corrected"),
    "bnp-prop5": Erratum(("norm: all ≤ 3",), ("norm over fourth moment: all ≤ 3",)),
    "bnp-prop6": _checks("bnp-count-printed", "bnp-count-corrected"),
    "bnp-bn-count": _checks("bn-count-printed", "bn-count-corrected"),
    "bnp-bn-dearer": _checks("bn-dearer-printed", "bn-dearer-corrected"),
    "bnp-prop7": _checks("printed-bias-has-the-shape-of-a-bias", "merged-network"),
    "bnp-eq16": _checks("product-printed", "product-corrected"),
    "bnp-prop10": _checks("site-means-any-kernel", "site-means"),
    "bnp-eq23": _checks("algorithm-3-printed", "algorithm-3-corrected"),
    # landscape
    "landscape-thm41": _checks("thm41-printed", "thm41"),
    "landscape-thm42-second": _checks("thm42-second-printed", "thm42-second"),
    "landscape-obs43": _checks("obs43-minima-printed", "obs43-minima"),
    "landscape-thm44": _checks("thm44-printed", "thm44"),
    "landscape-thmC1": _checks("thmC1-printed", "thmC1"),
    # meanfield
    "meanfield-sec311": Erratum(
        ("inputs: q_hat0 in [-0.05, 0.05]", "inputs: q_hat0_xy in [0.95, 1.05]"),
        ("inputs: q_hat0 in [0.95, 1.05]", "inputs: q_hat0_xy in [-0.05, 0.05]"),
    ),
    "meanfield-eq25": _backward("dense with BN", "q_tilde", "q_tilde_xy"),
    "meanfield-eq42": _backward("conv with BN", "q_tilde", "q_tilde_xy"),
    "meanfield-claim66": _backward("vanilla conv", "q_tilde", "q_tilde_xy"),
    "meanfield-eq166": Erratum(
        ("decoupled over coupled: conv in [0.9, 1.1]", "decoupled over coupled: conv-common-image in [0.9, 1.1]"),
        ("decoupled over coupled: conv in [0.9, 1.1]",),
    ),
    # regularization
    "reg-eq2": _checks("variance-of-sigma-printed", "variance-of-sigma"),
    "reg-eq5": _checks("weight-normalization-printed", "weight-normalization"),
    "reg-eq6-7": _checks("update-rules-printed", "update-rules"),
    "reg-table2": _checks("fixed-points-one", "fixed-points-small"),
    "reg-i2-relu": _checks("averages-relu-printed", "averages-relu"),
    "reg-i2-erf": _checks("averages-erf-printed", "averages-erf"),
    "reg-inverse": _checks("inverse-moments-printed", "inverse-moments"),
    "reg-half": Erratum(("λ/(2M) over eq. 13: M=33 in [0.9, 1.1]",), ("check linear-unit",)),
    "reg-eq14": _checks("excess-risk-of-sgd-printed", "excess-risk-of-sgd"),
}
