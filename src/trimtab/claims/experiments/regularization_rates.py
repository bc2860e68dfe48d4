"""regularization, Sec. 3.3: the Jacobian at the fixed point, the largest learning rate, and speed."""

import math
from functools import partial

import numpy as np
from scipy.optimize import brentq

from trimtab.claims.cases import check_cases
from trimtab.claims.experiments.registry import Context, experiment
from trimtab.claims.findings import Findings
from trimtab.theory.bounds import Sides
from trimtab.theory.simulation import simulate
from trimtab.theory.teacher_student import fixed_point, jacobian, rate, resting_point, solve, stability

SEED = 101
METHODS = ("bn", "wn", "sgd")
ZETA_OF_32 = 0.012
"""ζ at M = 32, 3/(8M) for ReLU by Theorem 1, as the ledger has it."""


def eigenvalues(rng: np.random.Generator, zeta: float) -> Sides:
    """λ_γ, λ_R of eq. 12 and 0, against the eigenvalues of the Jacobian by (γ, R, L); BN."""
    activation = ("relu", "erf")[rng.integers(2)]
    eta, length = float(np.exp(rng.uniform(-3, 2))), rng.uniform(0.5, 2)
    found = stability(eta, zeta=zeta, activation=activation, length=length)
    matrix = jacobian(found.fixed_point, eta, zeta=zeta, activation=activation)
    right = np.sort_complex(np.linalg.eigvals(matrix))
    told = np.sort([found.paper.lambda_gamma, found.paper.lambda_overlap, 0.0])
    return Sides(np.abs(told - right), np.zeros(3), "==", scale=float(np.abs(matrix).max()))


def first_is_negative(rng: np.random.Generator, activation: str) -> bool:
    """λ_Q < 0: by the paper's formula, and by the derivative of γ's rate by γ, which can fail."""
    eta, zeta = drawn(rng)
    found = stability(eta, zeta=zeta, activation=activation)
    matrix = jacobian(found.fixed_point, eta, zeta=zeta, activation=activation)
    return bool(found.paper.lambda_gamma < 0 and matrix[0, 0] < 0)


def signs_agree(rng: np.random.Generator, activation: str) -> bool:
    """Whether η_eff < η_max, by the paper's formula, exactly if no eigenvalue by (γ, R) has a positive real part."""
    eta, zeta = drawn(rng)
    found = stability(eta, zeta=zeta, activation=activation)
    point = found.fixed_point
    matrix = jacobian(point, eta, zeta=zeta, activation=activation)[:2, :2]
    stable = bool(np.linalg.eigvals(matrix).real.max() < 0)
    return stable == (found.eta_eff < found.paper.eta_max)


def drawn(rng: np.random.Generator) -> tuple[float, float]:
    """A learning rate from 0.05 to 20 and ζ from 0.001 to 1."""
    return float(np.exp(rng.uniform(np.log(0.05), np.log(20)))), float(np.exp(rng.uniform(np.log(1e-3), 0)))


def printed_sigmoid(rng: np.random.Generator) -> Sides:
    """γ₀ of the error function, and 1/(2ζ+1)."""
    zeta = drawn(rng)[1]
    return Sides(fixed_point(zeta=zeta, activation="erf").gamma, 1 / (2 * zeta + 1), "==")


def maxima(findings: Findings) -> None:
    """Prop. 3: η_max of BN less that of WN and SGD, over ζ."""
    zetas = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
    formula, by_jacobian = {}, {}
    lines: dict[str, list[tuple[float, float]]] = {"formula": [], "Jacobian": [], "2 + 2ζ": []}
    for zeta in zetas:
        found = stability(1.0, zeta=zeta)
        others = [stability(1.0, method=method) for method in ("wn", "sgd")]
        formula[f"ζ = {zeta}"] = Sides(max(one.paper.eta_max for one in others) + 2 * zeta, found.paper.eta_max)
        by_jacobian[f"ζ = {zeta}"] = Sides(max(one.eta_max for one in others) + 2 * zeta, found.eta_max)
        lines["formula"].append((zeta, found.paper.eta_max))
        lines["Jacobian"].append((zeta, found.eta_max))
        lines["2 + 2ζ"].append((zeta, 2 + 2 * zeta))
    check_cases(findings, "maximum-by-formula", formula, tolerance=1e-9)
    check_cases(findings, "maximum-by-jacobian", by_jacobian, tolerance=1e-9)
    for name, points in lines.items():
        findings.curve("largest effective rate of BN over ζ", name, points)


def largest_held(method: str, zeta: float) -> float:
    """The largest η_eff at which R rests at 0.99 or more with L = 1 held; of SGD γ is L."""

    def above(effective: float) -> float:
        if method == "sgd":
            return float(rate([1.0, 0.99, 1.0], effective, method="sgd")[1])
        gamma = fixed_point(zeta=zeta).gamma
        return resting_point(effective / gamma, zeta=zeta).overlap - 0.99

    return float(brentq(above, 0.05, 20.0, xtol=1e-10))


def reaches(method: str, eta: float, zeta: float, inputs: int, runs: int) -> bool:
    """Whether R, the mean of runs, is 0.99 at t = 100, from L = 1 and R = 0."""
    try:
        found = simulate([100.0], eta, method=method, zeta=zeta, inputs=inputs, runs=runs, seed=SEED)
    except ValueError:
        return False
    return bool(found.overlap[-1].mean() >= 0.99)


def largest_simulated(method: str, zeta: float, inputs: int, runs: int) -> float:
    """The largest η, within 2 %, at which a simulated student gets there; 0 if none of the rates tried does."""
    tried = np.geomspace(0.25, 64, 9)[::-1]
    best = next((eta for eta in tried if reaches(method, eta, zeta, inputs, runs)), None)
    if best is None:
        return 0.0
    low, high = best, 2 * best
    while high > 1.02 * low:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if reaches(method, middle, zeta, inputs, runs) else (low, middle)
    return float(low)


def real_maxima(findings: Findings, inputs: int, runs: int) -> None:
    """Sec. 3.3: the largest rate at which R comes to 0.99, for ζ of batches of 8 and 32."""
    held, simulated = {}, {}
    kinds = {"wn": ("wn", 0.0), "sgd": ("sgd", 0.0)} | {f"bn/M={m}": ("bn", 3 / (8 * m)) for m in (8, 32)}
    at_rest = {case: largest_held(*kind) for case, kind in kinds.items()}
    at_100 = {case: largest_simulated(*kind, inputs, runs) for case, kind in kinds.items()}
    for case in kinds:
        findings.number("largest effective rate with L held", case, at_rest[case])
        findings.number("largest rate simulated", case, at_100[case])
    for m in (8, 32):
        for other in ("wn", "sgd"):
            case = f"M = {m}, bn > {other}"
            held[case] = at_rest[f"bn/M={m}"] > at_rest[other]
            simulated[case] = at_100[f"bn/M={m}"] > at_100[other]
    check_cases(findings, "largest-rate-held", held)
    check_cases(findings, "largest-rate-simulated", simulated)
    told = (f"{case} {at_rest[case]:.3f} and {at_100[case]:.3g}" for case in kinds)
    findings.notes.append(f"Largest rates with L held, and simulated: {'; '.join(told)}.")
    findings.notes.append(
        f"Simulated: {runs} runs with {inputs} inputs, from γ = L = 1 and R = 0, so that the rate is the effective one "
        "at the start; known to 2 %. With BN and WN the length grows and takes the effective rate down with it."
    )


def converges(method: str, eta: float, length: float) -> bool:
    """R > 0.99 at t = 50, from R = 0.1; what diverges does not."""
    zeta = ZETA_OF_32 if method == "bn" else 0.0
    try:
        return bool(solve([50.0], eta, method=method, zeta=zeta, overlap=0.1, length=length).overlap[-1] > 0.99)
    except ValueError:
        return False


def time_to_learn(method: str, eta: float) -> float:
    """When R is 0.95, from R = 0.1 and L = 1; infinite if it is not by t = 200, or the length diverges."""
    t = np.linspace(0, 200, 2001)
    zeta = ZETA_OF_32 if method == "bn" else 0.0
    try:
        overlap = solve(t, eta, method=method, zeta=zeta, overlap=0.1).overlap
    except ValueError:
        return math.inf
    there = int(np.argmax(overlap >= 0.95))
    if overlap[there] < 0.95:
        return math.inf
    return float(np.interp(0.95, overlap[there - 1 : there + 1], t[there - 1 : there + 1]))


def starts_and_speed(findings: Findings) -> None:
    """Secs. 3.2 and 1.2: how many starts and rates converge, and how fast the best rate is."""
    lengths, rates = np.geomspace(0.1, 10, 9), np.geomspace(0.01, 100, 20)
    more = np.geomspace(0.01, 100, 30)
    for method in METHODS:
        there = [converges(method, eta, length) for eta in rates for length in lengths]
        findings.number("share of starts and rates that converge", method, float(np.mean(there)))
        times = [time_to_learn(method, eta) for eta in more]
        findings.number("time to R = 0.95 at the best rate", method, min(times))
        findings.number("the best rate", method, float(more[int(np.argmin(times))]))
        finite = [(eta, time) for eta, time in zip(more, times, strict=True) if math.isfinite(time)]
        findings.curve("time to R = 0.95 over the rate", method, finite)
    best = {method: findings.numbers["the best rate"][method]["all"] for method in METHODS}
    findings.notes.append(
        "Time to R = 0.95: of 30 rates from 0.01 to 100 the best is "
        + ", ".join(f"{rate:.3g} for {method}" for method, rate in best.items())
        + "; 100 is the largest that was tried, and the time still falls there."
    )


@experiment("reg-jacobian", "The Jacobian at the fixed point, the largest learning rate, and speed", small=0.1)
def linearized(findings: Findings, context: Context) -> None:
    """Eq. 12, Table 2, Props. 1 to 3 and 7, Sec. 1.2."""
    findings.check("eigenvalues-without-decay", lambda rng: eigenvalues(rng, 0.0))
    findings.check("eigenvalues-with-decay", lambda rng: eigenvalues(rng, 0.1))
    for activation in ("relu", "erf"):
        findings.check(f"first-eigenvalue-{activation}", partial(first_is_negative, activation=activation))
        findings.check(f"signs-{activation}", partial(signs_agree, activation=activation))
    findings.check("fixed-point-of-sigmoid", printed_sigmoid)
    maxima(findings)
    starts_and_speed(findings)
    findings.settings = {"zeta": ZETA_OF_32}


@experiment("reg-largest-rate", "The largest rate at which a student comes to its teacher", small=1.1)
def largest_rate(findings: Findings, context: Context) -> None:
    """Secs. 1 and 3.3."""
    real_maxima(findings, 500, 4)
    findings.settings = {"inputs": 500, "runs": 4, "seed": SEED}
