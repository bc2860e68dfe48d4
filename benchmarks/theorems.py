"""Every theorem of the bnp and landscape papers on random instances: python benchmarks/theorems.py [--figure FILE].

One row per statement: how many of 200 draws it holds for, corrected and as printed, and how near its sides are.
"""

import argparse
from collections.abc import Callable

import matplotlib as mpl
import numpy as np
import torch
import torch.nn.functional as F
from torch.autograd.functional import hessian

from trimtab.records import machine
from trimtab.theory import bounds
from trimtab.theory.bounds import Sides
from trimtab.theory.bounds.inputs import augment, matrices

DRAWS = 200
Array = np.ndarray
Statement = Callable[[np.random.Generator], Sides]
Row = tuple[str, str, Statement, Statement | None, float]


def tensor(values: Array) -> torch.Tensor:
    """Float64, whatever numpy has."""
    return torch.as_tensor(values, dtype=torch.float64)


def batch(rng: np.random.Generator) -> Array:
    """Inputs of a layer: 3 to 8 features of unlike mean and scale, twice as many samples and more."""
    n = int(rng.integers(3, 9))
    return rng.normal(size=(2 * n + int(rng.integers(10)), n)) * np.exp(rng.normal(size=n)) + 2 * rng.normal(size=n)


def deficient(rng: np.random.Generator) -> Array:
    """Fewer samples than features."""
    n = int(rng.integers(3, 10))
    return rng.normal(size=(int(rng.integers(2, n)), n)) * np.exp(rng.normal(size=n)) + rng.normal(size=n)


def unit(rng: np.random.Generator) -> tuple[Array, float, Array, Array]:
    """Activations, γ, gradient and a convex loss's Hessian for 8 samples."""
    half = rng.normal(size=(8, 8)) * rng.uniform(0, 1)
    return rng.uniform(0.3, 3) * rng.normal(size=8), rng.uniform(0.3, 3), rng.normal(size=8), half @ half.T / 8


def curve(a: torch.Tensor) -> torch.Tensor:
    """A loss per activation that is curved everywhere."""
    return F.softplus(a) + torch.tanh(a).square()


def measured(inputs: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Autograd's Hessian of one unit's mean loss, and the second derivatives of the samples' losses."""
    rows, w = tensor(augment(inputs)), tensor(0.3 * rng.normal(size=inputs.shape[1] + 1))
    second = torch.stack([hessian(curve, a) for a in rows @ w])
    return hessian(lambda v: curve(rows @ v).mean(), w).numpy(), second.numpy()


def dense(rng: np.random.Generator) -> Sides:
    """Prop. 2."""
    inputs = batch(rng)
    whole, second = measured(inputs, rng)
    return bounds.dense_hessian(whole, inputs, second)


def preconditioned(rng: np.random.Generator) -> Sides:
    """Theorem 3."""
    inputs = batch(rng)
    whole, second = measured(inputs, rng)
    return bounds.preconditioned_hessian(whole, inputs, second)


def convolution(rng: np.random.Generator) -> Sides:
    """Prop. 9, with a loss that couples the positions of a sample."""
    inputs, w = rng.normal(size=(2, 2, 4, 4)) + 1, tensor(0.3 * rng.normal(size=19))

    def activations(v: torch.Tensor) -> torch.Tensor:
        a = F.conv2d(tensor(inputs), v[1:].view(1, 2, 3, 3).transpose(2, 3), v[:1], padding=1)[:, 0]
        return a.transpose(1, 2).reshape(2, 16)

    def loss(a: torch.Tensor) -> torch.Tensor:
        return torch.logsumexp(a, -1) + curve(a).sum(-1)

    blocks = torch.stack([hessian(loss, a) for a in activations(w)])
    return bounds.convolution_hessian(
        hessian(lambda v: loss(activations(v)).mean(), w).numpy(), inputs, 3, blocks.numpy()
    )


def product(rng: np.random.Generator, form: str = "corrected") -> Sides:
    """Lemma 8."""
    inputs, weight = rng.normal(size=(2, 2, 5, 6)), rng.normal(size=(2, 3, 3))
    outputs = F.conv2d(tensor(inputs), tensor(weight)[None], tensor(np.array([0.5])), padding=1)[:, 0].numpy()
    return bounds.convolution_as_product(outputs, inputs, weight, 0.5, form=form)  # type: ignore[arg-type]


def step(rng: np.random.Generator) -> Sides:
    """Prop. 7."""
    inputs = batch(rng)
    weight, bias = rng.normal(size=(4, inputs.shape[1])), rng.normal(size=4)
    return bounds.one_step(inputs, weight, bias, rng.normal(size=(len(inputs), 4)) / len(inputs), 0.1)


def layer(rng: np.random.Generator) -> Sides:
    """Sec. 3.4."""
    inputs = batch(rng)
    n = inputs.shape[1]
    return bounds.over_parametrized(inputs, rng.normal(size=(4, n)), rng.normal(size=4), *rng.normal(size=(2, n)))


def descent(rng: np.random.Generator, share: float = 1.0, steps: int = 8) -> Sides:
    """Theorem 1: f(x) = v₂·v₁·x for one x, whose minima are the hyperbola v₁v₂ = 1, at α = share/λ_max."""
    at = rng.uniform(0.7, 1.4)
    optimum = np.array([at, 1 / at])
    theta = optimum + 1e-3 * rng.normal(size=2)
    curved = np.outer(optimum[::-1], optimum[::-1])
    distances = []
    for _ in range(steps):
        near = optimum
        for _ in range(30):  # Newton for the nearest point (t, 1/t)
            t = near[0]
            slope = (t - theta[0]) - (1 / t - theta[1]) / t**2
            t -= slope / (1 + 3 / t**4 - 2 * theta[1] / t**3)
            near = np.array([t, 1 / t])
        distances.append(float(np.linalg.norm(theta - near)))
        theta = theta - share / curved.trace() * (theta.prod() - 1) * theta[::-1]
    return bounds.contraction(distances, curved, share / curved.trace())


def flat(rng: np.random.Generator) -> Sides:
    """Theorem 1's null space: a ReLU unit between two layers."""
    x, theta = tensor(rng.uniform(0.2, 2, size=(8, 2))), tensor(rng.uniform(0.5, 1.5, size=3))

    def output(v: torch.Tensor) -> torch.Tensor:
        return v[2] * torch.relu(x @ v[:2])

    target = output(theta)
    matrix = hessian(lambda v: (output(v) - target).square().mean(), theta).numpy()
    return bounds.scaling_null_space(matrix, np.append(theta[:2], -theta[2])[:, None])


def minima(rng: np.random.Generator, form: str = "corrected") -> Sides:
    """Obs. 4.3."""
    return bounds.kept_minima(rng.normal(size=(8, 3)) + 1, rng.normal(size=3), rng.normal(size=8), form=form)  # type: ignore[arg-type]


def identity(rng: np.random.Generator, form: str = "corrected") -> Sides:
    """Theorem 4.2, second part, for a Hessian that fulfils its condition."""
    y, gamma, g, _ = unit(rng)
    return bounds.smoothness_by_gradient(y, gamma, g, np.eye(8), form=form)  # type: ignore[arg-type]


def start(rng: np.random.Generator) -> Sides:
    """Lemma 4.5, W₀ on the right side."""
    first, optimum = rng.normal(size=(2, 3, 4))
    return bounds.initialization(first * np.sign((first * optimum).sum()), optimum)


def sparse(rng: np.random.Generator, form: str) -> Sides:
    """Prop. 5 with rare large entries."""
    shape = (20, 60, 60)
    return bounds.normalized_norm(60 * rng.choice([-1, 1], size=shape) * (rng.random(shape) < 1 / 3600), form=form)  # type: ignore[arg-type]


def both(function: Callable[..., Sides], *names: int, size: float = 1.0) -> tuple[Statement, Statement]:
    """A landscape theorem's two forms on a drawn unit; `names` picks its arguments from (y, γ, g, H, λ = 1)."""

    def drawn(form: str) -> Statement:
        def statement(rng: np.random.Generator) -> Sides:
            y, gamma, g, curved = unit(rng)
            return function(*[(y, gamma, size * g, curved, 1.0)[i] for i in names], form=form)

        return statement

    return drawn("corrected"), drawn("printed")


ROWS: list[Row] = [
    ("bnp Thm 1, null space", "scaling_null_space", flat, None, 1e-9),
    ("bnp Thm 1, rate, α = 0.5/λ_max, ε = 0.01", "contraction", lambda r: descent(r, 0.5), None, 1e-2),
    ("bnp Thm 1, rate, α = 1.8/λ_max, ε = 0.01", "contraction", lambda r: descent(r, 1.8), None, 1e-2),
    ("— α = 2.5/λ_max", "contraction", lambda r: descent(r, 2.5, 25), None, 1e-2),
    ("bnp Prop. 2", "dense_hessian", dense, None, 1e-9),
    ("bnp Thm 3", "preconditioned_hessian", preconditioned, None, 1e-9),
    ("bnp Thm 4, centring", "centring", lambda r: bounds.centring(batch(r)), None, 1e-9),
    ("— rank-deficient", "centring", lambda r: bounds.centring(deficient(r)), None, 1e-9),
    ("bnp Thm 4, scaling", "column_scaling", lambda r: bounds.column_scaling(batch(r)[:, :4]), None, 1e-9),
    ("bnp Lemma A1, a random D₀", "van_der_sluis",
     lambda r: (lambda h: bounds.van_der_sluis(h, np.exp(r.normal(size=h.shape[1]))))(batch(r)), None, 1e-9),
    ("bnp κ(ĤU) ≤ κ(Ĝ)κ(D)", "unscaled_columns", lambda r: bounds.unscaled_columns(batch(r)), None, 1e-9),
    ("bnp gain ≤ κ(P)²; printed κ(D)²", "gain", lambda r: bounds.gain(batch(r)),
     lambda r: bounds.gain(batch(r), form="printed"), 1e-6),
    ("bnp Prop. 5, Gaussian, C = 3", "normalized_norm", lambda r: bounds.normalized_norm(r.normal(size=(5, 30, 50))),
     lambda r: bounds.normalized_norm(r.normal(size=(5, 30, 50)), form="printed"), 1e-9),
    ("— rare large entries", "normalized_norm", lambda r: sparse(r, "corrected"), lambda r: sparse(r, "printed"), 1e-9),
    ("bnp Lemma A2, Gaussian, C = 2", "seginer", lambda r: bounds.seginer(r.normal(size=(5, 30, 50))), None, 1e-9),
    ("bnp Prop. 6", "bnp_operations", lambda r: bounds.bnp_operations(*map(int, r.integers(1, 200, size=3))),
     lambda r: bounds.bnp_operations(*map(int, r.integers(1, 200, size=3)), form="printed"), 1e-9),
    ("bnp Prop. 7", "one_step", step, None, 1e-9),
    ("bnp Sec. 3.4, B_{β,γ}", "over_parametrized", layer, None, 1e-9),
    ("bnp Lemma 8", "convolution_as_product", product, lambda r: product(r, "printed"), 1e-9),
    ("bnp Prop. 9", "convolution_hessian", convolution, None, 1e-9),
    ("bnp Prop. 10", "site_means", lambda r: bounds.site_means(r.normal(size=(2, 2, 6, 8)) + 1, 3), None, 1e-9),
    ("bnp Prop. 11", "product_conditioning",
     lambda r: (lambda h: bounds.product_conditioning(h, np.diag(r.uniform(0.1, 1, len(h)))))(batch(r)), None, 1e-6),
    ("landscape Thm 4.1", "lipschitzness", *both(bounds.lipschitzness, 0, 1, 2), 1e-9),
    ("landscape Thm 4.2", "smoothness", *both(bounds.smoothness, 0, 1, 2, 3), 1e-9),
    ("landscape Thm 4.2, second part, H = I", "smoothness_by_gradient", identity,
     lambda r: identity(r, "printed"), 1e-9),
    ("landscape Obs. 4.3, activations", "same_activations",
     lambda r: bounds.same_activations(r.normal(size=8)), None, 1e-9),
    ("landscape Obs. 4.3, minima", "kept_minima", minima, lambda r: minima(r, "printed"), 1e-9),
    ("landscape Thm 4.4", "weight_lipschitzness", *both(bounds.weight_lipschitzness, 0, 1, 2, 4), 1e-9),
    ("— gradients a tenth as large", "weight_lipschitzness",
     *both(bounds.weight_lipschitzness, 0, 1, 2, 4, size=0.1), 1e-9),
    ("landscape Thm C.1", "weight_smoothness", *both(bounds.weight_smoothness, 0, 1, 2, 3, 4), 1e-9),
    ("landscape eq. 58, max at X = λI", "claimed_curvature",
     lambda r: bounds.claimed_curvature(*unit(r), 1.0), None, 1e-9),
    ("landscape Lemma 4.5", "initialization", start, None, 1e-9),
]  # fmt: skip


def nearness(sides: list[Sides]) -> str:
    """Largest left over right; for equations their largest difference, relative to the larger side or its terms."""
    if sides[0].relation == "==":
        sizes = [max(np.abs(s.left).max(), np.abs(s.right).max(), s.scale) for s in sides]
        return f"{max(-s.slack / size for s, size in zip(sides, sizes, strict=True)):.1e} apart"
    ratios = [float(np.max(np.asarray(s.left) / np.asarray(s.right))) for s in sides if np.min(s.right) > 0]
    return f"{np.median(ratios):.3g} ({min(ratios):.2g} to {max(ratios):.2g})"


def table() -> None:
    """One line of Markdown per statement."""
    print(f"| statement | function | holds of {DRAWS} | as printed | left/right: median (range), or how far apart |")
    print("|---|---|---|---|---|")
    for label, name, statement, printed, tolerance in ROWS:
        rng = np.random.default_rng(0)
        sides = [statement(rng) for _ in range(DRAWS)]
        count = sum(s.holds(tolerance) for s in sides)
        rng = np.random.default_rng(0)
        other = sum(printed(rng).holds(tolerance) for _ in range(DRAWS)) if printed else "same"
        print(f"| {label} | `{name}` | {count} | {other} | {nearness(sides)} |")


def figure(path: str) -> None:
    """Conditioning before and after, and C.1's two bounds, over random draws."""
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    rng = np.random.default_rng(1)
    fig, (left, right) = plt.subplots(1, 2, figsize=(9.5, 4.2), constrained_layout=True)
    points = []
    for _ in range(300):
        inputs = batch(rng)
        parts = matrices(inputs)
        points.append([bounds.condition_number(m) for m in
                       (parts.augmented, parts.augmented @ parts.centring, parts.normalized)])  # fmt: skip
    before, centred, normalized = np.array(points).T
    left.loglog(before, centred, "o", ms=3.5, color="#0072B2", alpha=0.7, label="centred, κ(ĤU)")
    left.loglog(before, normalized, "^", ms=3.5, color="#D55E00", alpha=0.7, label="normalized, κ(Ĝ)")
    ends = [before.min(), before.max()]
    left.loglog(ends, ends, "k--", lw=1, label="bound on κ(ĤU) (Thm 4)")
    left.set(xlabel="κ(Ĥ), the raw inputs", ylabel="κ afterwards", title="bnp Theorem 4: 300 random layers")
    left.legend(frameon=False)

    cases = [unit(rng) for _ in range(300)]
    for form, colour, marker in (("printed", "#E69F00", "s"), ("corrected", "#009E73", "o")):
        sides = [bounds.weight_smoothness(*case, 1.0, form=form) for case in cases]  # type: ignore[arg-type]
        lefts, rights = np.array([s.left for s in sides]), np.array([s.right for s in sides])
        failing = int((lefts > rights).sum())
        label = f"{form}: {failing} of 300 above the line" if failing else f"{form}: none above the line"
        right.plot(rights, lefts, marker, ms=3.5, color=colour, alpha=0.7, label=label)
    end = right.get_xlim()[1]
    right.plot([-end, end], [-end, end], "k--", lw=1, label="left = right")
    right.set_xscale("symlog", linthresh=1e-2)
    right.set_yscale("symlog", linthresh=1e-2)
    right.set_xticks([-1e4, -1e2, -1, 0, 1, 1e2, 1e4])
    right.set_ylim(-2e-3, 1e8)
    right.set(xlabel="right side of Theorem C.1", ylabel="left side: the largest curvature")
    right.set_title("landscape Theorem C.1: 300 random units")
    right.legend(frameon=False)
    fig.savefig(path, dpi=110)


def main() -> None:
    """Print the table; draw the picture if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--figure", help="write the picture to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{machine()}; numpy {np.__version__}\n")
    table()
    if arguments.figure:
        figure(arguments.figure)


if __name__ == "__main__":
    main()
