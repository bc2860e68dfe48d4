"""regularization, Theorem 1: what batch noise adds to the loss, beside ζγ²."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.claims.cases import check_cases, within
from trimtab.claims.experiments.registry import Context, experiment
from trimtab.claims.experiments.regularization_statistics import BATCHES, DRAWS, KURTOSIS, SEED, SIZES, batches_of
from trimtab.claims.findings import Findings
from trimtab.theory.bounds import Sides
from trimtab.theory.implicit_decay import LINKS, first_order_term, implicit_decay, optimal_scale
from trimtab.theory.quadrature import NODES, WEIGHTS, expected_decay, gaussian_decay
from trimtab.theory.simulation import measure_decay

Array = NDArray[np.float64]


def slope(sizes: tuple[int, ...], values: list[float]) -> float:
    """Of a straight line through the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def theorem(findings: Findings, batches: int) -> None:
    """Theorem 1 over the batch size, for an independent batch and for the sample's own."""
    for name in LINKS:
        sizes = SIZES if name == "relu" else (128, 256, 512)
        drawn = {m: measure_decay(m, activation=name, batches=batches, seed=SEED) for m in sizes}
        ratios = {m: drawn[m].value / gaussian_decay(m, name) for m in sizes}
        near = {f"M = {m}": within(ratio - 1, 0.05) for m, ratio in ratios.items() if m >= 128}
        check_cases(findings, f"theorem-1-{name}", near)
        away = [abs(expected_decay(m, name) - gaussian_decay(m, name)) for m in SIZES]
        findings.number("slope of the deviation", name, slope(SIZES, away))
        if name != "relu":
            for m, ratio in ratios.items():
                findings.number("measured over ζ", f"{name}/M={m}", ratio)
            continue
        own = {m: measure_decay(m, own_batch=True, batches=batches, seed=SEED) for m in sizes}
        for which, measured in (("independent", drawn), ("own", own)):
            values = {m: measured[m].value / gaussian_decay(m) for m in sizes}
            findings.number("measured over ζ", f"{which}/M=32", values[32])
            findings.curve("measured over ζ, ReLU", f"{which} batch", list(values.items()))
            larger = tuple(m for m in sizes if m >= 32)
            findings.number("slope of ζ", which, slope(larger, [measured[m].value for m in larger]))
        error = max(drawn[m].error / gaussian_decay(m) for m in sizes if m >= 32)
        findings.notes.append(f"Measured values over ζ have a standard error of {error:.3f} at most from M = 32 on.")
    findings.notes.append(
        "ReLU stands for softplus, as in the theorem; γ = 1, β = 0, Gaussian wᵀx. The slope of the deviation is that "
        "of the expected loss by quadrature, over M = 8 … 512: of drawn batches its error would be as large as it is."
    )
    worst = max(
        (abs(expected_decay(128, "relu", gamma, beta) / gaussian_decay(128, "relu", gamma, beta) - 1), gamma, beta)
        for gamma in (0.25, 0.5, 1.0, 2.0)
        for beta in (-2.0, -1.0, 0.0, 1.0, 2.0)
    )
    findings.notes.append(
        "Beside γ = 1, β = 0, by quadrature at M = 128: of γ = 0.25 … 2 and β = −2 … 2 the expected loss is farthest "
        f"from ζ at γ = {worst[1]:g}, β = {worst[2]:g}, by {100 * worst[0]:.1f} %."
    )


def parts_of_zeta(findings: Findings, batches: int) -> None:
    """Each statistic's part of ζ, the kurtosis and the shift β."""
    alone, cases = {}, {}
    for name in LINKS:
        for noise in ("sigma", "mu"):
            right = gaussian_part(name, noise)
            ratio = measure_decay(256, activation=name, noise=noise, batches=batches, seed=SEED).value / right
            findings.number("noise of one statistic over its term", f"{name}/{noise}", ratio)
            if name == "relu":
                alone[noise] = within(ratio - 1, 0.05)
        rising = []
        for beta in (-2.0, -1.0, 0.0, 1.0, 2.0):
            found = measure_decay(256, beta=beta, activation=name, noise="mu", batches=batches, seed=SEED)
            rising.append((beta, 256 * found.value))
        findings.curve("M times the part of μ_B, over β", name, rising)
        if name == "relu":
            values = [value for _, value in rising]
            cases = {f"to β = {beta:g}": values[i] < values[i + 1] for i, (beta, _) in enumerate(rising[1:])}
    check_cases(findings, "each-part-alone", alone)
    check_cases(findings, "part-of-the-mean-rises", cases)
    measured: dict[str, float] = {}
    statements: dict[str, Sides | bool] = {}
    for name in ("uniform", "gaussian", "laplace"):
        sample = DRAWS[name](np.random.default_rng([SEED, 1]), (2_000_000,))
        zeta = implicit_decay(sample, 256, excess_kurtosis=KURTOSIS[name]).zeta
        measured[name] = measure_decay(256, draw=DRAWS[name], batches=batches, seed=SEED).value
        findings.number("measured over ζ by kurtosis", name, measured[name] / zeta)
        findings.number("measured ζ by kurtosis", name, measured[name])
        statements[f"{name} within 5 %"] = within(measured[name] / zeta - 1, 0.05)
    statements["uniform < gaussian"] = measured["uniform"] < measured["gaussian"]
    statements["gaussian < laplace"] = measured["gaussian"] < measured["laplace"]
    check_cases(findings, "kurtosis", statements)


def gaussian_part(name: str, noise: str, m: int = 256) -> float:
    """The term of σ_B or μ_B in eq. 4 for Gaussian wᵀx, γ = 1, β = 0: ζ less the mean of A″ over 2M, or that mean."""
    of_mu = float(np.sum(WEIGHTS * LINKS[name].curvature(NODES))) / (2 * m)
    return of_mu if noise == "mu" else gaussian_decay(m, name) - of_mu


def fisher(rng: np.random.Generator) -> Sides:
    """F_γ of eq. 4 against the mean second derivative of the loss by γ, by autograd."""
    import torch

    name = ("relu", "linear", "sigmoid")[rng.integers(3)]
    z, y = torch.tensor(rng.standard_normal(50)), torch.tensor(rng.standard_normal(50))
    gamma = torch.tensor(rng.uniform(0.3, 2), dtype=torch.double, requires_grad=True)
    beta, m = rng.uniform(-1.5, 1.5), 32
    h = gamma * z + beta
    loss = (potential(name, h) - y * h).mean()
    (first,) = torch.autograd.grad(loss, gamma, create_graph=True)
    (second,) = torch.autograd.grad(first, gamma)
    found = implicit_decay(z.numpy(), m, gamma=gamma.item(), beta=beta, curvature=name, excess_kurtosis=0.5)
    return Sides(found.from_sigma * 8 * m / 2.5, float(second), "==")


def potential(name: str, h: Any) -> Any:
    """A of each link as a tensor; of ReLU ∫ log(1+eʰ) dh from 0, by quadrature."""
    import torch
    from numpy.polynomial.legendre import leggauss
    from torch.nn.functional import softplus

    if name == "linear":
        return h.square() / 2
    if name == "sigmoid":
        return softplus(h)
    nodes, weights = (torch.tensor(part) for part in leggauss(40))
    return (h[:, None] / 2 * weights * softplus(h[:, None] * (nodes + 1) / 2)).sum(1)


def weight_normalization(rng: np.random.Generator, *, printed: bool) -> Sides:
    """Eq. 5: BN with population statistics, and WN with a bias, for inputs of covariance aI."""
    n = int(rng.integers(2, 20))
    a, gamma, beta = float(np.exp(rng.uniform(-2, 2))), rng.uniform(0.3, 2), rng.uniform(-1, 1)
    mean, w = rng.standard_normal(n), rng.standard_normal(n)
    x = mean + math.sqrt(a) * rng.standard_normal((50, n))
    left = gamma * (x @ w - mean @ w) / math.sqrt(w @ (a * np.eye(n)) @ w) + beta
    by, length = (a if printed else math.sqrt(a)), np.linalg.norm(w)
    return Sides(left, gamma / by * (x @ w) / length - gamma * (mean @ w) / (by * length) + beta, "==")


def least_error(findings: Findings, batches: int) -> None:
    """Sec. 2.1: γ/γ* of least expected squared error of a linear unit, E[ĥh̄]/E[ĥ²], against 1/(1+ζ)."""
    for which in ("independent", "own"):
        cases = {}
        for m in (8, 32, 128):
            product = square = 0.0
            others = batches_of("gaussian", m, batches, SEED + 1)
            for batch in batches_of("gaussian", m, batches):
                h = batch if which == "own" else next(others)
                unit = (h - batch.mean(1, keepdims=True)) / batch.std(1, keepdims=True)
                product, square = product + float((unit * h).sum()), square + float((unit**2).sum())
            theorem_1, independent, own = optimal_scale(m)
            cases[f"M = {m}"] = within(product / square - theorem_1, 0.2 / m)
            right = independent if which == "independent" else own
            findings.number("γ/γ*, measured", f"{which}/M={m}", product / square)
            findings.number("γ/γ*, exact", f"{which}/M={m}", right)
            findings.number("γ/γ*, by 1/(1+ζ)", f"M={m}", theorem_1)
        check_cases(findings, f"least-error-{which}", cases)


def first_order(findings: Findings) -> None:
    """App. 1: in how many of 1,000 draws of 31 samples R^f is at most a tenth of R^q."""
    for name, link in (("binary", "sigmoid"), ("exponential", "relu")):
        rng, shares = np.random.default_rng(SEED), []
        for _ in range(1000):
            z = rng.standard_normal(31)
            mean = LINKS[link].activation(z)
            labels = rng.random(31) < mean if name == "binary" else rng.exponential(mean)
            term = first_order_term(z, labels, 32, activation=link, excess_kurtosis=0.0)
            shares.append(abs(term) / implicit_decay(z, 32, curvature=link, excess_kurtosis=0.0).zeta)
        findings.number(
            "share of draws with a negligible first-order term", name, float(np.mean(np.array(shares) <= 0.1))
        )
        findings.number("median of the first-order term over ζγ²", name, float(np.median(shares)))


@experiment("reg-decay", "What batch noise adds to the loss, beside Theorem 1", small=1.3)
def decay(findings: Findings, context: Context) -> None:
    """Theorem 1, eq. 5 and App. 1."""
    theorem(findings, BATCHES)
    parts_of_zeta(findings, BATCHES)
    least_error(findings, BATCHES)
    first_order(findings)
    findings.check("fisher", fisher)
    findings.check("weight-normalization-printed", lambda rng: weight_normalization(rng, printed=True))
    findings.check("weight-normalization", lambda rng: weight_normalization(rng, printed=False))
    findings.settings = {"batches": BATCHES, "points": 32, "seed": SEED}
