"""regularization, Sec. 4: generalization of a linear student, by formulas, solved regressions and training."""

import math
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trimtab.claims.cases import check_cases, within
from trimtab.claims.experiments.registry import Context, experiment
from trimtab.claims.findings import Findings
from trimtab.claims.kept import kept
from trimtab.theory.bounds import Sides
from trimtab.theory.generalization import ridge_curve, sgd_curve
from trimtab.theory.simulation import linear_losses, simulate_linear

Array = NDArray[np.float64]
SEED = 101
NOISE = 0.25
ZETA = 0.014
"""Of the curve that BN is said to match."""
LOADS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
ETA = 24.0
STEPS_OF_SGD = (10_000, 40_000, 160_000, 640_000)
"""Towards the pseudo-inverse solution."""


# ---- Formulas and solved regressions ---------------------------------------------------------------------------------


def drawn(rng: np.random.Generator, alpha: float, inputs: int) -> tuple[Array, Array, Array]:
    """Inputs, labels with noise, and the teacher."""
    samples = round(alpha * inputs)
    x = rng.standard_normal((samples, inputs)) / math.sqrt(inputs)
    teacher = rng.standard_normal(inputs)
    teacher *= math.sqrt(inputs) / np.linalg.norm(teacher)
    return x, x @ teacher + math.sqrt(NOISE) * rng.standard_normal(samples), teacher


def solved(alpha: float, zetas: tuple[float, ...], inputs: int, draws: int) -> Array:
    """Excess risk of the minimizers of ‖y − Xw‖² + ζ‖w‖² (at ζ = 0 of least norm), mean of draws."""
    found = np.zeros((draws, len(zetas)))
    for draw in range(draws):
        x, y, teacher = drawn(np.random.default_rng([SEED, draw, round(100 * alpha)]), alpha, inputs)
        # In the smaller of both spaces: w = (XᵀX + ζ)⁻¹Xᵀy = Xᵀ(XXᵀ + ζ)⁻¹y
        wide = len(x) <= inputs
        values, vectors = np.linalg.eigh(x @ x.T if wide else x.T @ x)
        right = vectors.T @ (y if wide else x.T @ y)
        for k, zeta in enumerate(zetas):
            w = vectors @ (right / (values + zeta))
            found[draw, k] = np.mean(((x.T @ w if wide else w) - teacher) ** 2)
    return np.asarray(found.mean(axis=0))


def regressions(findings: Findings, inputs: int, draws: int) -> None:
    """Eqs. 14 to 16 against solved regressions."""
    zetas = (ZETA, 0.25, 1.0)
    printed, corrected, ridge = {}, {}, {}
    lines: dict[str, list[tuple[float, float]]] = {name: [] for name in ("ζ = 0", *(f"ζ = {zeta:g}" for zeta in zetas))}
    for alpha in LOADS:
        without = () if alpha == 1 else (0.0,)  # infinite there
        risks = dict(zip(without + zetas, solved(alpha, without + zetas, inputs, draws), strict=True))
        for zeta, risk in risks.items():
            lines[f"ζ = {zeta:g}"].append((alpha, risk))
            if zeta:
                right = float(ridge_curve(alpha, zeta).excess_risk)
                ridge[f"α = {alpha:g}, ζ = {zeta:g}"] = within(risk / right - 1, 0.05)
                continue
            right = float(sgd_curve(alpha).excess_risk)
            corrected[f"α = {alpha:g}"] = within(risk / right - 1, 0.05)
            printed[f"α = {alpha:g}"] = within(risk / (right if alpha < 1 else NOISE / (1 - alpha)) - 1, 0.05)
    check_cases(findings, "excess-risk-of-sgd-printed", printed)
    check_cases(findings, "excess-risk-of-sgd", corrected)
    check_cases(findings, "excess-risk-with-decay", ridge)
    for name, points in lines.items():
        findings.curve(f"excess risk, solved, N = {inputs}", name, points)


def shapes(findings: Findings) -> None:
    """Sec. 4.1: what is said of the curves."""
    below, beyond = np.linspace(0.01, 0.99, 99), np.linspace(1.01, 5, 400)
    slopes = np.diff(sgd_curve(below).excess_risk)
    turns = np.flatnonzero(np.diff(np.sign(slopes)))
    check_cases(
        findings,
        "shape-of-sgd",
        {
            "one minimum inside (0, 1)": bool(len(turns) == 1 and slopes[0] < 0 < slopes[-1]),
            "infinite at 1": bool(np.isinf(sgd_curve(1.0).excess_risk)),
            "falls beyond 1": bool((np.diff(sgd_curve(beyond).excess_risk) < 0).all()),
        },
    )
    near = np.array([1 + sign * step for step in np.linspace(0.005, 0.1, 20) for sign in (-1, 1)])
    peak = float(ridge_curve(np.append(near, 1.0), ZETA).excess_risk.max())
    findings.number("excess risk at ζ = 0.014", "near-1", peak)
    beside = ridge_curve([0.5, 1.5], ZETA).excess_risk
    findings.number("excess risk at ζ = 0.014", "α=0.5-or-1.5", float(beside.max()))
    halves = Sides(ridge_curve(near, ZETA).excess_risk, sgd_curve(near).excess_risk / 2)
    check_cases(findings, "half-of-sgd-near-1", {"abs(α − 1) ≤ 0.1": halves})
    findings.notes.append("The shape is that of eq. 14 as corrected for α > 1.")


def best_decay(rng: np.random.Generator) -> Sides:
    """The excess risk at ζ = 0.25, and at another ζ."""
    alpha, zeta = rng.uniform(0.05, 3), float(np.exp(rng.uniform(np.log(0.001), np.log(2))))
    return Sides(float(ridge_curve(alpha, NOISE).excess_risk), float(ridge_curve(alpha, zeta).excess_risk))


def distance_to_pseudo_inverse(alpha: float, inputs: int, steps: int, batch_size: int = 32) -> float:
    """How far SGD from 0 ends from the pseudo-inverse solution, relative to that; the rate falls linearly to 0.

    Beyond α = 1 there is noise at the solution, so that the distance falls with the root of the steps.
    """
    rng = np.random.default_rng([SEED, round(100 * alpha)])
    x, y, _ = drawn(rng, alpha, inputs)
    w = np.zeros(inputs)
    for step in range(steps):
        chosen = rng.integers(len(x), size=batch_size)
        w -= ETA * (1 - step / steps) / batch_size * (x[chosen] @ w - y[chosen]) @ x[chosen]
    least = np.linalg.lstsq(x, y, rcond=None)[0]
    return float(np.linalg.norm(w - least) / np.linalg.norm(least))


@experiment("reg-excess-risk", "Curves of the excess risk, beside solved regressions", small=0.5)
def excess_risk(findings: Findings, context: Context) -> None:
    """Eqs. 14 to 16, Sec. 4.1."""
    near = {}
    for alpha in (0.5, 1.5):
        found = [(steps, distance_to_pseudo_inverse(alpha, 256, steps)) for steps in STEPS_OF_SGD]
        findings.curve("distance to the pseudo-inverse solution over the steps", f"α = {alpha:g}", found)
        findings.number("distance to the pseudo-inverse solution", f"α={alpha:g}", found[-1][1])
        near[f"α = {alpha:g}"] = within(found[-1][1], 0.01)
    check_cases(findings, "pseudo-inverse", near)
    shapes(findings)
    findings.check("best-decay", best_decay)
    regressions(findings, 1000, 20)
    findings.settings = {"inputs": 1000, "draws": 20, "seed": SEED, "inputs of SGD": 256, "steps of SGD": STEPS_OF_SGD}


# ---- Students that are trained ---------------------------------------------------------------------------------------


def fitted_zeta(alpha: ArrayLike, excess: ArrayLike) -> float:
    """The ζ whose curve (eqs. 15, 16) comes nearest to excess risks, in the logarithm."""
    from scipy.optimize import minimize_scalar

    def distance(log_zeta: float) -> float:
        return float(np.sum(np.log(ridge_curve(alpha, np.exp(log_zeta)).excess_risk / np.asarray(excess)) ** 2))

    # On both sides of the noise variance there may be a minimum: find the lowest first.
    tried = np.linspace(-12, 1, 131)
    at = tried[int(np.argmin([distance(log_zeta) for log_zeta in tried]))]
    bounds = at - 0.1, at + 0.1
    return float(np.exp(minimize_scalar(distance, bounds=bounds, method="bounded", options={"xatol": 1e-8}).x))


def loads(findings: Findings, context: Context, inputs: int, lengths: tuple[int, ...]) -> None:
    """Fig. 2: students over the load, for several lengths of training.

    The length that is judged is the one whose mean excess risks are nearest to ζ = 0.014 for BN, and four times that.
    """
    curve = ridge_curve(LOADS, ZETA).excess_risk
    seeds = context.seeds(3)
    risks: dict[tuple[str, int], Array] = {}

    def train(method: str, steps: int) -> None:
        if (method, steps) in risks:
            return
        runs = [simulate_linear(LOADS, method=method, inputs=inputs, steps=steps, eta=ETA, seed=seed) for seed in seeds]
        risk = risks[method, steps] = np.array([run.excess_risk for run in runs])
        points = zip(LOADS, *(f(risk, axis=0) for f in (np.median, np.min, np.max)), strict=True)
        findings.curve(f"excess risk, {method}", f"{steps} steps", list(points))
        gap = np.mean([run.gap for run in runs], axis=0)
        panel = f"validation minus training loss, {method}"
        findings.curve(panel, f"{steps} steps", list(zip(LOADS, gap, strict=True)))
        context.show(f"{method}, {steps} steps")

    def away(steps: int) -> Array:
        train("bn", steps)
        found: Array = np.abs(risks["bn", steps].mean(axis=0) / curve - 1)
        return found

    best = min(lengths, key=lambda steps: away(steps).max())
    for name, steps in (("curve-at-best-length", best), ("curve-after-four-times-as-many", 4 * best)):
        check_cases(findings, name, {f"α = {a:g}": within(d, 0.1) for a, d in zip(LOADS, away(steps), strict=True)})
    for steps in sorted({*lengths, 4 * best}):
        train("sgd", steps)
        findings.number("largest distance of BN from ζ = 0.014", f"{steps}-steps", away(steps).max())
    for (method, steps), risk in risks.items():
        for seed, one in zip(seeds, risk, strict=True):
            fit = fitted_zeta(LOADS, one)
            findings.number(f"fitted ζ after {steps} steps", method, fit, seed=seed, unit="factor")
            if steps == best:
                findings.number("fitted ζ", method, fit, seed=seed, unit="factor")
    of_sgd = findings.numbers["fitted ζ"]["sgd"]
    outside = {f"seed {seed}": not 0.005 < fit < 0.08 for seed, fit in of_sgd.items()}
    check_cases(findings, "fit-of-sgd-outside", outside)
    for line, values in (("ζ = 0.014", curve), ("SGD, eq. 14", sgd_curve(LOADS).excess_risk)):
        findings.curve("excess risk, bn", line, [p for p in zip(LOADS, values, strict=True) if math.isfinite(p[1])])
    findings.notes.append(f"The length nearest to ζ = 0.014, of {', '.join(map(str, lengths))} steps, is {best}.")


def load_one(findings: Findings, context: Context, inputs: int, steps: int) -> None:
    """Fig. 3: the losses along the way at α = 1."""
    at = [round(steps * share) for share in np.geomspace(0.002, 1, 24)[:-1]]
    rising, bounded = {}, {}
    ways: dict[str, list[Array]] = {"sgd": [], "bn": [], "wn": []}
    for seed in context.seeds(3):
        for method, found in ways.items():
            zeta = ZETA if method == "wn" else 0.0
            way = linear_losses(
                [1.0],
                [*at, round(0.75 * steps)],
                method=method,
                zeta=zeta,
                inputs=inputs,
                steps=steps,
                eta=ETA,
                seed=seed,
            )
            loss = way.validation_loss[:, 0]
            found.append(np.column_stack([way.steps, loss, loss - way.training_loss[:, 0]]))
            end, least, earlier = float(loss[-1]), float(loss.min()), float(loss[way.steps == round(0.75 * steps)][0])
            findings.number("validation loss", method, end, seed=seed, unit="loss")
            findings.number("validation loss over its minimum", method, end / least, seed=seed, unit="factor")
            if method == "sgd":
                rising[f"twice its minimum, seed {seed}"] = Sides(2 * least, end)
                rising[f"above that at ¾ of the steps, seed {seed}"] = Sides(earlier, end)
            else:
                bounded[f"{method}, seed {seed}"] = Sides(end, 1.5 * least)
        context.show(f"α = 1, seed {seed}")
    check_cases(findings, "sgd-diverges", rising)
    check_cases(findings, "bn-and-wn-bounded", bounded)
    for method, found in ways.items():
        values = np.array(found)
        for column, panel in ((1, "validation loss at α = 1"), (2, "validation minus training loss at α = 1")):
            of = values[:, :, column]
            points = zip(values[0, :, 0], np.median(of, axis=0), of.min(axis=0), of.max(axis=0), strict=True)
            findings.curve(panel, method, list(points))


@experiment("reg-linear-student", "A linear student with BN, WN or neither: Figs. 2 and 3", small=0.2, paper=30)
def linear_student(findings: Findings, context: Context) -> None:
    """Figs. 2 and 3."""
    small = context.size == "small"
    if small:
        findings.neighbour = "512 inputs instead of 4096"
    inputs, lengths = (512, (250, 1000, 4000, 16_000)) if small else (4096, (1000, 4000, 16_000, 64_000))
    loads(findings, context, inputs, lengths)
    load_one(findings, context, inputs, 16_000 if small else 64_000)
    findings.settings = {"inputs": inputs, "batch_size": 32, "eta": ETA, "noise variance": NOISE, "lengths": lengths}


OVERTRAINED = (0.5, 0.75, 1.0, 1.25, 1.5)


@experiment("reg-overtraining", "A linear student with BN or without, trained to the end", small=4)
def overtraining(findings: Findings, context: Context) -> None:
    """Sec. 1.2."""
    ratios_of_risks(findings, context, 128, 160_000)


def ratios_of_a_seed(work: Path, seed: int, inputs: int, steps: int, eta: float) -> Array:
    """BN's excess risk over that of SGD for one seed; what was trained before is not trained again."""

    def compute() -> list[float]:
        bn, sgd = (
            simulate_linear(OVERTRAINED, method=method, inputs=inputs, steps=steps, eta=eta, seed=seed).excess_risk
            for method in ("bn", "sgd")
        )
        return (bn / sgd).tolist()  # type: ignore[no-any-return]

    return np.array(kept(work / f"{inputs}-inputs-{steps}-steps-eta-{eta:g}-seed-{seed}.json", compute))


def ratios_of_risks(findings: Findings, context: Context, inputs: int, steps: int, eta: float = 8.0) -> None:
    """The excess risk of BN over that of SGD on the same data, over the load."""
    found: list[Array] = []
    for seed in context.seeds(10):
        found.append(ratios_of_a_seed(context.work, seed, inputs, steps, eta))
        for alpha, ratio in zip(OVERTRAINED, found[-1], strict=True):
            findings.number("excess risk, bn over sgd", f"α={alpha:g}", ratio, seed=seed, unit="factor")
        context.show(f"seed {seed}")
    means = dict(zip(OVERTRAINED, np.mean(found, axis=0), strict=True))
    nearest = min((alpha for alpha in OVERTRAINED if alpha != 1), key=lambda alpha: means[alpha])
    for seed, ratios in zip(context.seeds(10), found, strict=True):
        value = ratios[OVERTRAINED.index(nearest)]
        findings.number("excess risk, bn over sgd", "smallest-of-the-others", value, seed=seed, unit="factor")
    findings.notes.append(f"The smallest of the others is that of α = {nearest:g}, by the mean over seeds.")
    findings.curve("mean excess risk, bn over sgd", "measured", list(means.items()))
    findings.settings = {"inputs": inputs, "steps": steps, "eta": eta, "batch_size": 32, "noise variance": NOISE}
