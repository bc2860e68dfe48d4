"""regularization, Sec. 3: update rules, averages, order parameters and fixed points of a student and its teacher."""

import math
from functools import partial

import numpy as np

from trimtab.claims.cases import check_cases, within
from trimtab.claims.experiments.registry import Context, experiment
from trimtab.claims.findings import Findings
from trimtab.theory.bounds import Sides
from trimtab.theory.implicit_decay import optimal_scale
from trimtab.theory.quadrature import averages_by_quadrature
from trimtab.theory.simulation import simulate
from trimtab.theory.teacher_student import averages, fixed_point, rate, solve

SEED = 101
ACTIVATIONS = ("relu", "erf")
SIZES = (8, 16, 32, 64, 128, 256, 512)


def update_rules(rng: np.random.Generator, *, printed: bool) -> Sides:
    """Eqs. 6 and 7 against autograd, and N mean steps of γ against eq. 9; ReLU.

    Printed: the loss [·]² + ζγ², and γ moved by η. Corrected: half of it, and γ moved by η/N.
    """
    import torch

    n, zeta, gamma = int(rng.integers(5, 40)), rng.uniform(0, 1), rng.uniform(0.3, 2)
    teacher, w, x = rng.standard_normal(n), rng.standard_normal(n), rng.standard_normal(n) / math.sqrt(n)
    x *= math.copysign(1, w @ x)  # the other half of inputs moves nothing but γ
    leaf, scale = torch.tensor(w, requires_grad=True), torch.tensor(gamma, dtype=torch.double, requires_grad=True)
    out = torch.relu(math.sqrt(n) * scale * (leaf @ torch.tensor(x)) / leaf.norm())
    loss = (max(0.0, float(teacher @ x)) - out) ** 2 + zeta * scale**2
    by_w, by_gamma = torch.autograd.grad(loss if printed else loss / 2, [leaf, scale])
    length = float(np.linalg.norm(w))
    u = math.sqrt(n) * gamma * float(w @ x) / length
    delta = max(0.0, float(teacher @ x)) - u
    eq6 = delta * (gamma * math.sqrt(n) / length * x - u / length**2 * w)
    eq7 = delta * u / gamma - zeta * gamma
    r = rng.uniform(-1, 1)
    eq9 = rate([gamma, r, 1.0], 1.0, zeta=zeta)[0]
    mean_of_7 = averages_by_quadrature(gamma, r).i1 / gamma - zeta * gamma
    speed = n * mean_of_7 * (1.0 if printed else 1 / n)
    left = np.concatenate([-by_w.numpy(), [-by_gamma.item(), speed]])
    return Sides(left, np.concatenate([eq6, [eq7, eq9]]), "==")


def drawn_averages(rng: np.random.Generator, activation: str, *, printed: bool) -> Sides:
    """App. 2 against quadrature; only I₂ is misprinted."""
    q, r = rng.uniform(0.05, 1.6), rng.uniform(-1, 1)
    told = averages(q, r, activation)
    i2 = printed_i2(q, r, activation) if printed else told.i2
    by = averages_by_quadrature(q, r, activation)
    if activation == "erf":  # the paper has no I₃ of it
        return Sides(np.array([told.i1, i2]), np.array([by.i1, by.i2]), "==", scale=1.0)
    return Sides(np.array([told.i1, i2, told.i3]), np.array(by), "==", scale=1.0)


def printed_i2(q: float, r: float, activation: str) -> float:
    """I₂ as printed in App. 2."""
    if activation == "relu":
        root, turn = math.sqrt(1 - r**2), math.asin(r)
        rest = q**2 / 2 - q * (math.pi * r + 2 * root + 2 * r * turn) / (2 * math.pi)
        return rest + (math.pi * r + 2 * r * root + 2 * turn) / (4 * math.pi)
    s = 1 + 3 * q**2
    second = 1 / (math.sqrt(s) * math.sqrt(2 * (1 + 2 * q**2) - 2 * q**2 * r**2))
    return 4 / (math.pi * math.sqrt(1 + 2 * q**2)) * (math.asin(1 / s) - math.asin(second))


def order_parameters(findings: Findings, inputs: int, runs: int) -> None:
    """Eqs. 9 to 11 beside the mean of runs at finite N."""
    t = np.linspace(0, 10, 21)
    cases = {}
    for activation in ACTIVATIONS:
        for method, zeta in (("bn", 0.1), ("wn", 0.0)):
            limit = solve(t, 1.0, method=method, zeta=zeta, activation=activation)
            found = simulate(
                t, 1.0, method=method, zeta=zeta, activation=activation, inputs=inputs, runs=runs, seed=SEED
            )
            for symbol, name in (("R", "overlap"), ("γ", "gamma"), ("L", "length")):
                away = float(np.abs(getattr(found, name).mean(axis=1) - getattr(limit, name)).max())
                cases[f"{symbol}, {method}, {activation}"] = within(away, 0.02)
                findings.number(f"distance of {symbol}", f"{method}/{activation}", away)
            panel = f"overlap, {activation}"
            findings.curve(panel, method, list(zip(t, limit.overlap, strict=True)))
            low, high = found.overlap.min(axis=1), found.overlap.max(axis=1)
            middle = np.median(found.overlap, axis=1)
            findings.curve(panel, f"{method}, N = {inputs}", list(zip(t, middle, low, high, strict=True))[::2])
    check_cases(findings, "order-parameters", cases)


def still(rng: np.random.Generator, case: str) -> Sides:
    """How fast the state moves at a fixed point of Table 2."""
    activation, length = ACTIVATIONS[rng.integers(2)], rng.uniform(0.5, 2)
    method = "bn" if case != "others" else ("wn", "sgd")[rng.integers(2)]
    zeta = float(np.exp(rng.uniform(np.log(0.01), 0))) if method == "bn" else 0.0
    eta = {"others": float(np.exp(rng.uniform(-4, 3))), "small": 1e-10, "one": 1.0}[case]
    point = fixed_point(method=method, zeta=zeta, activation=activation, length=length)
    speed = rate(point, eta, method=method, zeta=zeta, activation=activation) / eta
    return Sides(float(np.abs(speed).max()), 1e-9)


def scale_of_relu(rng: np.random.Generator) -> Sides:
    """1/(1+2ζ), and the root of I₁(γ, 1) = ζγ²."""
    from scipy.optimize import brentq

    zeta = float(np.exp(rng.uniform(np.log(1e-3), np.log(10))))
    root = brentq(lambda q: averages(q, 1.0).i1 / q**2 - zeta, 0.1 / (1 + zeta), 1.1, xtol=1e-14)
    return Sides(float(root), 1 / (2 * zeta + 1), "==")


def overlaps(findings: Findings) -> None:
    """Table 2: R at t = 500."""
    for eta, suffix in ((0.1, ""), (1.0, ", η = 1")):
        for method, zeta in (("bn", 0.1), ("wn", 0.0), ("sgd", 0.0)):
            found = solve([500.0], eta, method=method, zeta=zeta)
            findings.number(f"R at t = 500{suffix}", method, found.overlap[-1])


def batch_sizes(findings: Findings) -> None:
    """Sec. 3.3: γ₀ over the batch size, with ζ = 3/(8M) of ReLU by Theorem 1; γ/γ* of a linear unit with real BN."""
    scales = {m: fixed_point(zeta=3 / (8 * m)).gamma for m in SIZES}
    real = {m: optimal_scale(m)[2] for m in SIZES}
    rising = {
        f"{which}M = {m} to {2 * m}": several[m] < several[2 * m]
        for which, several in (("", scales), ("real BN, ", real))
        for m in SIZES[:-1]
    }
    check_cases(findings, "scale-rises-with-batch", rising)
    findings.curve("γ₀ over M", "ReLU, by ζ(M)", list(scales.items()))
    findings.curve("γ₀ over M", "linear unit with real BN", list(real.items()))
    for m in (8, 512):
        findings.number("γ₀", f"M={m}", scales[m])
        findings.number("γ/γ* of a linear unit with real BN", f"M={m}", real[m])


@experiment("reg-dynamics", "Update rules, averages and order parameters of a teacher and a student", small=0.4)
def dynamics(findings: Findings, context: Context) -> None:
    """Eqs. 6 to 11, App. 2, Table 2."""
    for printed, suffix in ((True, "-printed"), (False, "")):
        findings.check(f"update-rules{suffix}", partial(update_rules, printed=printed))
        for name in ACTIVATIONS:
            findings.check(
                f"averages-{name}{suffix}",
                partial(drawn_averages, activation=name, printed=printed),
                tolerance=1e-6,
            )
    for case in ("others", "small", "one"):
        findings.check(f"fixed-points-{case}", partial(still, case=case), tolerance=0.0)
    findings.check("scale-of-relu", scale_of_relu)
    overlaps(findings)
    batch_sizes(findings)
    order_parameters(findings, 2000, 8)
    findings.notes += [
        "Order parameters, and R at t = 500: ζ = 0.1 for BN, from γ = L = 1, R = 0; at η = 1 R is "
        + ", ".join(f"{values['all']:.4f} for {m}" for m, values in findings.numbers["R at t = 500, η = 1"].items())
        + ".",
        "Fixed points: rates of change are over η.",
        "γ₀ over the batch size: at ζ = 3/(8M), Theorem 1 for ReLU, γ = 1 and β = 0. For a linear unit with real BN "
        f"γ/γ* rises too, from {optimal_scale(8)[2]:.4f} at M = 8 to {optimal_scale(512)[2]:.4f} at M = 512.",
    ]
    findings.settings = {"inputs": 2000, "runs": 8, "seed": SEED}
