"""The figures of the probes of weights, Fisher, gradients at norms, robustness, ablation and variance.

As in `probe_figures`: a function by the probe's name.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from trimtab.report import findings
from trimtab.report.curves import Numbers
from trimtab.report.figure_layout import new_figure
from trimtab.report.probe_drawing import Group, draw_numbers, draw_spread, finish
from trimtab.report.probe_figures import ProbeFigure, layer_figure
from trimtab.report.probe_series import ProbeSeries, RunResults, Table, any_several, number
from trimtab.report.probe_tables import SEEDS, network_table
from trimtab.report.report_data import Panel
from trimtab.report.seed_notes import about_seeds
from trimtab.report.seeds import SeedLine, Spread, format_spread, quantile
from trimtab.report.styles import Dashes

_DASHES: tuple[Dashes, ...] = ("--", ":", "-.")
_CLEAN = "accuracy, %"


def weights(panel: Panel, runs: Sequence[ProbeSeries]) -> Iterator[ProbeFigure]:
    """Norms of weights and gradients, γ and β."""
    layered = [run for run in runs if run.layer_names()]
    if layered:
        columns: list[Group] = [
            ("norm of weights", [("norm", "-"), ("folded_norm", "--")]),
            ("norm of gradient", [("gradient_norm", "-")]),
        ]
        growth = findings.of_seeds(layered, _growth)
        yield layer_figure(
            f"weights-{panel.name}",
            "Norms of weights and gradients, by layer",
            "The norm of a layer's weights as they are (solid) and with the BatchNorm that reads the layer's output "
            "folded into them, ‖γw/σ‖ (dashed; regularization paper, Fig. 6), and the norm of the layer's gradient.",
            panel,
            layered,
            columns,
            findings.compared("Weights grow least", "median of the last norm over the first", growth),
            more=["variance"],
        )
    with_gamma = [one for one in (run.mapped(_norms) for run in runs) if one.layer_names()]
    if with_gamma:
        squares = findings.of_seeds(with_gamma, lambda run: _last_over_layers(run, "gamma_square"))
        yield layer_figure(
            f"gamma-{panel.name}",
            "γ and β, by layer",
            "The mean of γ² (regularization paper, Fig. 5a) and of β² over the units of a layer. Under weight "
            "normalization γ is the length of the weights, and there is no β.",
            panel,
            with_gamma,
            [("mean γ²", [("gamma_square", "-")]), ("mean β²", [("beta_square", "-")])],
            findings.compared("γ² ends lowest", "median over layers of its last mean", squares),
            more=["gamma", "gamma_least", "gamma_largest", "beta"],
        )


def fisher(panel: Panel, runs: Sequence[ProbeSeries]) -> Iterator[ProbeFigure]:
    """Eigenvalues of mean field's Fisher matrix and of the loss's Gauss–Newton matrix, and what they allow."""
    rows: list[Group] = [
        ("λ_max", [("one_output", "-"), ("all_outputs", "--"), ("gauss_newton", ":")]),
        ("learning rate", [("learning_rate", "-"), ("one_output_rate", "--"), ("gauss_newton_rate", ":")]),
    ]
    names = [name for _, group in rows for name, _ in group]
    moved = findings.of_seeds(runs, _largest_factor)
    yield ProbeFigure(
        f"fisher-{panel.name}",
        "Above, the largest eigenvalue of the Fisher matrix of the meanfield paper (eq. 10), of one output (solid) and "
        "of all (dashed), and of the Gauss–Newton matrix of the loss in use (dotted). Below, the learning rate in use "
        "(solid), and the largest stable one by the first (dashed) and by the last of these (dotted). "
        f"{about_seeds(runs)}",
        partial(draw_numbers, "Mean field's Fisher matrix in training", panel.title, runs, rows),
        partial(network_table, runs, [*names, "all_outputs_rate"]),
        findings.compared("λ_max of the Fisher matrix moves least", "largest factor from its start", moved),
    )


def gradients(panel: Panel, runs: Sequence[ProbeSeries]) -> Iterator[ProbeFigure]:
    """The gradient at norms' outputs: the parts that Theorem 4.1 has, and how large it is."""
    columns: list[Group] = [
        ("share of ‖g‖²", [("mean_share", "-"), ("inner_share", "--")]),
        ("units correlated with ŷ", [("correlated", "-")]),
    ]
    mean = findings.of_seeds(runs, lambda run: findings.over_layers(run, "mean_share"))
    units = findings.of_seeds(runs, lambda run: findings.over_layers(run, "correlated"))
    claim = "The mean is the largest part of the gradient at a layer's output"
    parts = (
        findings.compared(claim, "median share", mean, largest=True),
        findings.compared(
            "The gradient goes with the activation in most units", "median share of units", units, largest=True
        ),
    )
    yield layer_figure(
        f"gradients-{panel.name}",
        "The gradient at norms' outputs, by layer",
        "What Theorem 4.1 of the landscape paper takes from the squared gradient g at the output of a normalization: "
        "⟨1, g⟩²/m (solid) and ⟨g, ŷ⟩²/m (dashed) over ‖g‖², medians over units; and the share of units in which the "
        "latter is at least thrice that of independent vectors. Without normalization, at the outputs of other layers.",
        panel,
        runs,
        columns,
        " ".join(filter(None, parts)),
        more=["kept"],
    )
    slopes = findings.of_seeds(runs, lambda run: findings.over_layers(run, "slope"))
    yield layer_figure(
        f"gradient-sums-{panel.name}",
        "Size of the gradient at norms' outputs, by layer",
        "The norm of the gradient at the output of a normalization (solid) and of what reaches its input (dashed), and "
        "the power of the batch size N by which ⟨1, N g⟩² grows, 2 where the gradients of samples agree (landscape "
        "paper, after Theorem 4.1).",
        panel,
        runs,
        [
            ("norm of gradient", [("output_norm", "-"), ("input_norm", "--")]),
            ("growth with the batch", [("slope", "-")]),
        ],
        findings.compared("The summed gradient grows fastest with the batch", "median power", slopes, largest=True),
    )


def robustness(panel: Panel, runs: Sequence[ProbeSeries]) -> Iterator[ProbeFigure]:
    """Accuracy under perturbations."""
    named = [one.mapped(_by_eps) for one in runs]
    names = list(named[0].runs[0].results[0])
    group = [(_CLEAN, "-"), *((name, _DASHES[i % 3]) for i, name in enumerate(names[1:]))]
    medians = findings.of_seeds(named, lambda run: quantile(run.values(names[-1])))
    perturbed = ", ".join(names[1:])
    yield ProbeFigure(
        f"robustness-{panel.name}",
        f"Accuracy on held-out data as they are (solid), and when each pixel moves along the sign of the gradient "
        f"({perturbed}: dashed, dotted; BNP paper, Sec. 2, on Galloway et al.). {about_seeds(runs)}",
        partial(draw_numbers, "Accuracy under sign perturbations", panel.title, named, [(_CLEAN, group)]),
        partial(network_table, named, names),
        findings.compared(f"Accuracy under perturbations is highest, {names[-1]},", "median", medians, largest=True),
    )


def ablation(panel: Panel, runs: Sequence[ProbeSeries]) -> Iterator[ProbeFigure]:
    """Accuracy by the share of units that are switched off, at the end and along the run."""
    halved = findings.of_seeds(runs, lambda run: float(run.values("halved_at")[-1]))
    yield ProbeFigure(
        f"ablation-{panel.name}",
        "Accuracy on held-out data by the share of units that are switched off in random order, at the last "
        "measurement: the mean over the orders (landscape paper, Sec. 5, on Morcos et al.). "
        f"{about_seeds(runs, by_step=False) if any_several(runs) else ''}",
        partial(_draw_ablation, "Accuracy without some units", panel.title, runs),
        partial(_ablation_table, runs),
        findings.compared("Most units can be switched off", "share until accuracy is halved", halved, largest=True),
    )
    rows: list[Group] = [("share", [("halved_at", "-")]), ("area", [("area", "-")])]
    yield ProbeFigure(
        f"halved-{panel.name}",
        "The share of units that are switched off, in random order, until accuracy is halved: the median over the "
        "orders; and the area below the curve of accuracy, over that without a loss. "
        f"{findings.gaps(runs, ['halved_at'])} {about_seeds(runs)}",
        partial(draw_numbers, "Units until accuracy is halved", panel.title, runs, rows),
        partial(network_table, runs, ["accuracy", "halved_at", "area"]),
    )


def variance(panel: Panel, runs: Sequence[ProbeSeries]) -> Iterator[ProbeFigure]:
    """The variance of BatchNorm's inputs in evaluation over the running variance."""
    with_norms = [run for run in runs if run.layer_names()]
    if with_norms:
        medians = findings.of_seeds(with_norms, lambda run: findings.over_layers(run, "distance"))
        yield layer_figure(
            f"variance-{panel.name}",
            "Variance in evaluation over running variance, by layer",
            "The variance of a BatchNorm's input on held-out data in evaluation mode, over its running variance, and "
            "the distance of their logarithms: medians over channels (regularization paper, Sec. 5.1, on Li et al.).",
            panel,
            with_norms,
            [("ratio", [("ratio", "-")]), ("|log ratio|", [("distance", "-")])],
            findings.compared("Running variances fit evaluation best", "median |log ratio|", medians),
        )


def _norms(result: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"layers": result["norms"]}


def _growth(run: RunResults) -> float:
    """The median over layers of the last norm of the weights over the first."""
    norms = [run.layer_values(layer, "norm") for layer in run.layer_names()]
    return quantile(np.array([one[-1] / one[0] if one[0] else np.nan for one in norms]))


def _last_over_layers(run: RunResults, name: str) -> float:
    return quantile(np.array([run.layer_values(layer, name)[-1] for layer in run.layer_names()]))


def _largest_factor(run: RunResults) -> float:
    """How far λ_max of the Fisher matrix of one output comes from where it began, up or down."""
    values = run.values("one_output")
    factors = np.abs(np.log(values[values > 0] / values[0])) if values[0] > 0 else np.empty(0)
    return float(np.exp(factors.max())) if len(factors) else float("nan")


def _by_eps(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """Accuracies in percent, each with a name."""
    named = {_CLEAN: 100 * number(result["accuracy"])}
    for eps, accuracy in zip(result["eps"], result["accuracies"], strict=True):
        of_255 = 255 * number(eps)
        words = f"{of_255:.0f}/255" if abs(of_255 - round(of_255)) < 1e-6 else f"{eps:.3g}"
        named[f"at ε = {words}"] = 100 * number(accuracy)
    return named


def _ablation_curve(one: ProbeSeries) -> Spread:
    """Accuracy in percent by share, at the last measurement of each seed."""

    def line(run: RunResults) -> SeedLine:
        last = run.results[-1]
        rows = [[number(last["accuracy"]), *map(number, row)] for row in last["accuracies"]]
        middle: Numbers = 100 * np.mean(rows, axis=0)
        return SeedLine(run.seed, np.array([0.0, *map(number, last["shares"])]), middle)

    return Spread(tuple(line(run) for run in one.runs))


def _draw_ablation(what: str, where: str, runs: Sequence[ProbeSeries]) -> Figure:
    figure = new_figure(3.2, [one.label for one in runs])
    axes = figure.subplots()
    for one in runs:
        draw_spread(axes, _ablation_curve(one), one.style)
    axes.set_xlabel("share of units switched off")
    axes.set_ylabel(_CLEAN)
    axes.set_ylim(bottom=0)
    axes.grid(axis="y")
    return finish(figure, what, where, runs)


def _ablation_table(runs: Sequence[ProbeSeries]) -> Table:
    """A row for each share."""
    lines: list[list[object]] = []
    for one in runs:
        curve = _ablation_curve(one)
        for i, share in enumerate(curve.x):
            lines.append([one.label, f"{share:.3g}", str(len(one.runs)), format_spread(curve.aligned[:, i])])
    return ["run", "share switched off", SEEDS, _CLEAN], lines
