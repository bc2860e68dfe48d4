"""The regularization theory beside what is measured: python benchmarks/regularization.py [--figures docs] (6 minutes).

Prints the tables of docs/regularization.md, and with --figures draws its three pictures into that folder.
"""

import argparse
from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt
from scipy.optimize import minimize_scalar

from trimtab.records import machine
from trimtab.theory.generalization import Generalization, ridge_curve, sgd_curve
from trimtab.theory.implicit_decay import implicit_decay, linear_decay, optimal_scale, own_batch_linear_decay
from trimtab.theory.simulation import measure_decay, simulate, simulate_linear
from trimtab.theory.teacher_student import fixed_point, resting_point, solve, stability

BATCHES = (8, 16, 32, 64, 128, 256, 512)
LOADS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
STEPS = (1000, 4000, 16_000, 64_000)
ETA = 24.0
METHODS = {"bn": 0.1, "wn": 0.0, "sgd": 0.0}
# Okabe and Ito's colours, which the colour-blind can tell apart
BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#555555"


def decay(figures: Path | None) -> None:
    """ζ over the batch size: Theorem 1, and batches drawn."""
    population = np.random.default_rng(0).standard_normal(1_000_000)
    print("ζ for softplus-ReLU, γ = 1, β = 0, Gaussian wᵀx; 100,000 batches each (± one standard error).")
    print(f"{'M':>5}{'ζ':>10}{'from σ':>10}{'from μ':>10}{'independent/ζ':>18}{'own batch/ζ':>18}{'(13)·2M/λ':>11}")
    rows = []
    for m in BATCHES:
        zeta = implicit_decay(population, m, excess_kurtosis=0.0)
        drawn = [measure_decay(m, own_batch=own, batches=100_000, points=16, seed=m) for own in (False, True)]
        ratios = [(d.value / zeta.zeta, d.error / zeta.zeta) for d in drawn]
        rows.append(ratios)
        shown = "".join(f"{f'{value:.3f} ± {error:.3f}':>18}" for value, error in ratios)
        parts = f"{zeta.zeta:>10.6f}{zeta.from_sigma:>10.6f}{zeta.from_mu:>10.6f}"
        print(f"{m:>5}{parts}{shown}{2 * m * linear_decay(m):>11.3f}")
    print("\nγ/γ* that minimizes the expected squared error of a linear unit")
    print(f"{'M':>5}{'Theorem 1':>12}{'independent':>13}{'own batch':>11}")
    for m in (8, 32, 128):
        theorem, independent, own = optimal_scale(m)
        print(f"{m:>5}{theorem:>12.4f}{independent:>13.4f}{own:>11.4f}")
    if figures is None:
        return
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.8), layout="constrained")
    fine = np.geomspace(7, 600, 200)
    # With β = 0 and a symmetric wᵀx, A″(h) + A″(−h) = 1: ReLU has exactly half of a linear unit under ½(y − ŷ)².
    exact = np.array([[linear_decay(m, mean_noise=True) / 4, own_batch_linear_decay(m) / 4] for m in fine])
    zeta = 3 / 8 / fine
    for axis, unit in ((left, 1.0), (right, zeta)):
        axis.plot(fine, zeta / unit, color=GREY, ls=":", label="ζ of Theorem 1")
        axis.plot(fine, exact[:, 0] / unit, color=BLUE, label="independent batch, exact")
        axis.plot(fine, exact[:, 1] / unit, color=RED, ls="--", label="own batch, exact")
        for index, (colour, marker, name) in enumerate(((BLUE, "o", "independent"), (RED, "s", "own batch"))):
            scale = np.array([1.0 if axis is right else 3 / 8 / m for m in BATCHES])
            values, errors = (np.array(v) * scale for v in zip(*(row[index] for row in rows), strict=True))
            axis.errorbar(
                BATCHES, values, 2 * errors, fmt=marker, color=colour, ms=5, capsize=3, label=f"{name}, drawn"
            )
        axis.set(xscale="log", xlabel="batch size M")
        axis.set_xticks(BATCHES, [str(m) for m in BATCHES])
        axis.minorticks_off()
        axis.grid(alpha=0.25)
    left.set(yscale="log", ylabel="(E ℓ(ĥ) − ℓ(h̄))/γ²", title="what batch noise adds to the loss (ReLU)")
    right.set(ylabel="over ζ of Theorem 1", title="the same, over ζ (bars: 2 standard errors)")
    left.legend(fontsize=8)
    figure.savefig(figures / "regularization-decay.png", dpi=110)


def dynamics(figures: Path | None) -> None:
    """R(t), γ and L: the equations, and 8 runs with 2000 inputs."""
    t = np.linspace(0, 10, 21)
    print("\nLargest distance over t ≤ 10 between eqs. 9–11 and the mean of 8 runs at N = 2000 (in brackets: any run)")
    print(f"{'':>12}{'R':>18}{'γ':>18}{'L':>18}{'γ₀':>8}{'η_max':>8}{'paper':>8}{'η_eff, start → end':>22}")
    pictures = plt.subplots(1, 2, figsize=(9.6, 3.8), layout="constrained", sharey=True) if figures else None
    for column, activation in enumerate(("relu", "erf")):
        for (method, zeta), colour, marker, line in zip(
            METHODS.items(), (BLUE, ORANGE, GREEN), "os^", ("-", "--", "-."), strict=True
        ):
            kind = {"method": method, "zeta": zeta, "activation": activation}
            limit, runs = solve(t, 1.0, **kind), simulate(t, 1.0, runs=8, **kind)
            row = ""
            for name in ("overlap", "gamma", "length"):
                off = getattr(runs, name) - getattr(limit, name)[:, None]
                row += f"{f'{np.abs(off.mean(axis=1)).max():.3f} ({np.abs(off).max():.3f})':>18}"
            ends = f"{limit.gamma[0] / limit.length[0] ** 2:.2f} → {limit.gamma[-1] / limit.length[-1] ** 2:.2f}"
            ends = "1.00 → 1.00" if method == "sgd" else ends
            gamma, found = fixed_point(**kind).gamma, stability(1.0, **kind)
            maximum = f"{found.eta_max:>8.2f}{found.paper.eta_max:>8.2f}"
            print(f"{f'{activation} {method}':>12}{row}{gamma:>8.3f}{maximum}{ends:>22}")
            if pictures:
                axis = pictures[1][column]
                label = f"{method.upper()}, ζ = {zeta:g}" if zeta else method.upper()
                axis.plot(t, limit.overlap, color=colour, ls=line, label=label)
                mean, spread = runs.overlap.mean(axis=1), runs.overlap.std(axis=1, ddof=1)
                axis.errorbar(t, mean, spread, fmt=marker, color=colour, ms=4, capsize=2)
                axis.set(title={"relu": "ReLU", "erf": "erf(x/√2)"}[activation], xlabel="t = samples/N")
    if pictures and figures:
        pictures[1][0].set_ylabel("overlap R")
        for axis in pictures[1]:
            axis.grid(alpha=0.25)
        pictures[1][0].legend(loc="lower right", fontsize=8)
        pictures[0].suptitle("Equations 9–11 (lines) and 8 runs at N = 2000 (mean ± standard deviation), η = 1")
        pictures[0].savefig(figures / "regularization-dynamics.png", dpi=110)


def maxima() -> None:
    """The largest effective rate, by the paper and by the Jacobian, and where the overlap rests with L held."""
    rates = (0.1, 1.0, 2.0, 4.0)
    print("\nThe largest η_eff: the paper's, and where an eigenvalue of eqs. 9 and 10 at (γ₀, 1) comes to 0; L = 1.")
    print("Then the R at rest with L held, for four η_eff.")
    print(f"{'':>6}{'ζ':>7}{'γ₀':>9}{'paper':>9}{'Jacobian':>10}" + "".join(f"{f'R({rate:g})':>9}" for rate in rates))
    for activation in ("relu", "erf"):
        for zeta in (0.0, 0.014, 0.05, 0.1, 0.25, 0.5, 1.0):
            found = stability(1.0, zeta=zeta, activation=activation)
            gamma = found.fixed_point.gamma
            rests = [resting_point(rate / gamma, zeta=zeta, activation=activation).overlap for rate in rates]
            row = f"{gamma:>9.3f}{found.paper.eta_max:>9.3f}{found.eta_max:>10.3f}"
            print(f"{activation:>6}{zeta:>7g}{row}" + "".join(f"{rest:>9.4f}" for rest in rests))


def fitted(found: Generalization) -> float:
    """The ζ whose curve (eqs. 15, 16) comes nearest to the excess risks, in the logarithm."""

    def distance(log_zeta: float) -> float:
        return float(np.sum(np.log(ridge_curve(found.alpha, np.exp(log_zeta)).excess_risk / found.excess_risk) ** 2))

    return float(np.exp(minimize_scalar(distance, bounds=(-12, 1), method="bounded").x))


def generalization(figures: Path | None, inputs: int) -> None:
    """Both errors over the load, and students trained for 1000 to 64,000 steps."""
    print(f"\nExcess risk, N = {inputs}, M = 32, δ² = 0.25, η = {ETA:g} falling linearly to 0")
    print(f"{'α':>26}" + "".join(f"{a:>8g}" for a in LOADS) + f"{'nearest ζ':>12}")
    curves = {"SGD, eq. 14": sgd_curve(LOADS)} | {f"ridge, ζ = {z}": ridge_curve(LOADS, z) for z in (0.014, 0.25)}
    trained = {
        (method, steps): simulate_linear(LOADS, method=method, inputs=inputs, steps=steps, eta=ETA)
        for method in ("bn", "sgd")
        for steps in STEPS
    }
    for name, curve in curves.items():
        print(f"{name:>26}" + "".join(f"{v:>8.3f}" for v in curve.excess_risk))
    for (method, steps), found in trained.items():
        row = "".join(f"{v:>8.3f}" for v in found.excess_risk)
        print(f"{f'{method}, {steps} steps':>26}{row}{fitted(found):>12.4f}")
    print("\nValidation minus training loss of the same")
    for name, curve in curves.items():
        print(f"{name:>26}" + "".join(f"{v:>8.3f}" for v in curve.gap))
    for (method, steps), found in trained.items():
        print(f"{f'{method}, {steps} steps':>26}" + "".join(f"{v:>8.3f}" for v in found.gap))
    if figures is None:
        return
    fine = np.linspace(0.1, 2.2, 400)
    figure, axes = plt.subplots(1, 2, figsize=(9.6, 4.0), layout="constrained", sharey=True)
    for axis, name, title in zip(
        axes, ("excess_risk", "gap"), ("excess risk", "validation minus training loss"), strict=True
    ):
        axis.plot(fine, getattr(sgd_curve(fine), name), color=GREY, ls=":", label="SGD, eq. 14")
        axis.plot(fine, getattr(ridge_curve(fine, 0.014), name), color=BLUE, label="eqs. 15, 16: ζ = 0.014")
        axis.plot(fine, getattr(ridge_curve(fine, 0.25), name), color=GREEN, ls="--", label="eqs. 15, 16: ζ = 0.25")
        for (method, steps), found in trained.items():
            marker = dict(zip(STEPS, "v^os", strict=True))[steps]
            style = {"color": RED, "ms": 6} if method == "bn" else {"color": ORANGE, "mfc": "none", "ms": 8}
            axis.plot(LOADS, getattr(found, name), marker, **style, label=f"{method.upper()} trained, {steps} steps")
        axis.set(ylim=(0, 2.5), xlabel="α = P/N", title=title)
        axis.grid(alpha=0.25)
    axes[1].legend(fontsize=8)
    figure.savefig(figures / "regularization-generalization.png", dpi=110)


def converged() -> None:
    """Where training ends: BatchNorm's excess risk over SGD's on the same data, small enough to get there."""
    loads = (0.5, 0.75, 1.25, 1.5)
    common = {"inputs": 128, "steps": 160_000, "eta": 8.0}
    ratios = np.array(
        [
            simulate_linear(loads, seed=s, **common).excess_risk
            / simulate_linear(loads, method="sgd", seed=s, **common).excess_risk
            for s in range(4)
        ]
    )
    mean, error = ratios.mean(axis=0), ratios.std(axis=0, ddof=1) / np.sqrt(len(ratios))
    print("\nExcess risk of BN over that of SGD on the same data, N = 128, M = 32, η = 8, 160,000 steps, 4 seeds")
    print(f"{'α':>26}" + "".join(f"{a:>16g}" for a in loads))
    shown = (f"{m:.3f} ± {e:.3f}" for m, e in zip(mean, error, strict=True))
    print(f"{'measured':>26}" + "".join(f"{v:>16}" for v in shown))
    predicted = ridge_curve(loads, 0.014).excess_risk / sgd_curve(loads).excess_risk
    print(f"{'by ζ = 0.014':>26}" + "".join(f"{v:>16.3f}" for v in predicted))


def main() -> None:
    """Print the tables; draw the pictures if told where."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--figures", type=Path, help="the folder to draw into")
    parser.add_argument("--inputs", type=int, default=4096, help="N of the last table")
    told = parser.parse_args()
    plt.switch_backend("Agg")
    print(f"{machine()}.\n")
    decay(told.figures)
    dynamics(told.figures)
    maxima()
    generalization(told.figures, told.inputs)
    converged()


if __name__ == "__main__":
    main()
