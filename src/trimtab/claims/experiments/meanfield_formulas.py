"""meanfield, Sec. 2, 3.1.1, 6.2 and eq. 147: what is exact or counted, by a computation of its own."""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from trimtab.claims.experiments.meanfield_networks import SIGMAS, freeze_statistics
from trimtab.claims.experiments.registry import Context, experiment
from trimtab.claims.findings import Findings
from trimtab.theory.bounds import Sides
from trimtab.theory.bounds.sides import Array
from trimtab.theory.mean_field import Conv, Dense, Layer, draw_network, max_learning_rate

MOMENTA = (0.0, 0.5, 0.9)
STEPS = 3000
LABELS, INPUTS = 400, 1000
MONTE_CARLO = 0.02
"""The error that so many labels may leave."""


@experiment("meanfield-formulas", "What the meanfield paper computes exactly", small=2, paper=3)
def formulas(findings: Findings, context: Context) -> None:
    """Eqs. 4 to 7 and 147, footnote 1, the base case of Sec. 3.1.1, the example of Sec. 6.2."""
    seed = context.seeds(1)[0]
    about = {"labels": LABELS, "inputs": INPUTS}
    for loss in ("squared", "cross-entropy"):
        findings.check(
            f"eq6-{loss}",
            partial(hessian_and_fisher, loss=loss),
            tolerance=0.0,
            seed=seed,
            about=about,
        )
    findings.check("eq7-converges", lambda rng: all(converges(rng, 0.99)), seed=seed, about={"steps": STEPS})
    findings.check("eq7-diverges", lambda rng: not any(converges(rng, 1.01)), seed=seed, about={"steps": STEPS})
    for name, eigenvalues, momentum in (
        ("one-eigenvalue", [3.0], 0.0),
        ("one-with-momentum", [3.0], 0.9),
        ("two-decades", [float(value) for value in np.geomspace(0.03, 3, 9)], 0.0),
    ):
        share, best = speed_at_half(eigenvalues, momentum)
        findings.number("speed at half of the largest rate, over the best", name, share)
        findings.number("best rate over the largest", name, best)
    enter_base_case(findings, seed)
    enter_positions(findings)
    findings.check("eq147-lower", lambda rng: mean_products(rng)[0], seed=seed)
    findings.check("eq147-upper", lambda rng: mean_products(rng)[1], seed=seed)
    findings.notes += [
        f"Eq. 6: the difference of the two matrices over the norm of the Fisher matrix, at most {MONTE_CARLO:.0%}.",
        "Footnote 1: speed is −log of the factor by which the distance falls in a step, over 200 rates up to η*.",
        "Eq. 147: dense and convolutional networks, with and without BatchNorm; λ_max by Lanczos' method, the products "
        "of gradients sample by sample.",
    ]


# ---- Eqs. 4 to 7 and footnote 1 --------------------------------------------------------------------------------------


def hessian_and_fisher(rng: np.random.Generator, loss: str) -> Sides:
    """How far the Hessian at the parameters that made the labels is from the Fisher matrix; 3-4-3 with tanh."""
    from torch.autograd.functional import hessian, jacobian
    from torch.func import functional_call

    generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    shapes = {name: parameter.shape for name, parameter in network.named_parameters()}
    sizes = [shape.numel() for shape in shapes.values()]
    start = 0.6 * torch.randn(sum(sizes), generator=generator, dtype=torch.double)
    x = torch.randn(INPUTS, 3, generator=generator, dtype=torch.double)

    def outputs(theta: Tensor) -> Tensor:
        parts = {name: part.view(shapes[name]) for name, part in zip(shapes, theta.split(sizes), strict=True)}
        found: Tensor = functional_call(network, parts, (x,))
        return found

    # Both losses are linear in the label, up to a constant: the mean of many labels has the Hessian of all of them.
    if loss == "squared":
        noise = torch.randn(INPUTS, 3, generator=generator, dtype=torch.double) / math.sqrt(LABELS)
        labels = outputs(start) + noise
        rows = jacobian(outputs, start, vectorize=True)
        fisher = torch.einsum("nki,nkj->ij", rows, rows) / INPUTS
    else:
        chances = outputs(start).softmax(1)
        drawn = torch.multinomial(chances, LABELS, replacement=True, generator=generator)
        labels = nn.functional.one_hot(drawn, 3).double().mean(1)
        rows = jacobian(lambda theta: outputs(theta).log_softmax(1), start, vectorize=True)
        fisher = torch.einsum("nk,nki,nkj->ij", chances, rows, rows) / INPUTS  # E ∇log p ∇log pᵀ

    def mean_loss(theta: Tensor) -> Tensor:
        if loss == "squared":
            return (outputs(theta) - labels).square().sum(1).mean() / 2
        return -(labels * outputs(theta).log_softmax(1)).sum(1).mean()

    found = hessian(mean_loss, start)
    return Sides(float((found - fisher).norm() / fisher.norm()), MONTE_CARLO)


def converges(rng: np.random.Generator, share: float) -> list[bool]:
    """Whether descent at that share of η* comes near to 0, for each momentum; a quadratic of up to 8 directions."""
    eigenvalues = 10 ** rng.uniform(-1, 1, size=int(rng.integers(1, 9)))
    start = rng.choice([-1, 1], size=eigenvalues.shape) * rng.uniform(0.5, 2, size=eigenvalues.shape)
    momenta = np.array(MOMENTA)[:, None]
    rates = [share * max_learning_rate(float(eigenvalues.max()), momentum) for momentum in MOMENTA]
    pull = np.array(rates)[:, None] * eigenvalues
    x = np.tile(start, (len(MOMENTA), 1))
    v = np.zeros_like(x)
    for _ in range(STEPS):
        v = momenta * v - pull * x
        x = x + v
    return [bool(far < 1e-3 * np.abs(start).max()) for far in np.abs(x).max(1)]


def speed_at_half(eigenvalues: Sequence[float], momentum: float) -> tuple[float, float]:
    """The speed at η*/2 as a share of the best over η, and the best rate as a share of η*."""
    largest = max_learning_rate(max(eigenvalues), momentum)
    speeds = {share: _speed(share * largest, eigenvalues, momentum) for share in [*np.linspace(0.01, 1, 199), 0.5]}
    best = max(speeds, key=lambda share: speeds[share])
    return speeds[0.5] / speeds[best], float(best)


def _speed(rate: float, eigenvalues: Sequence[float], momentum: float) -> float:
    """−log of the factor by which the distance falls in a step, in the end; a factor of 0 counts as 1e-12."""
    steps = [[[1 + momentum - rate * value, -momentum], [1.0, 0.0]] for value in eigenvalues]
    return -math.log(max(float(np.abs(np.linalg.eigvals(np.array(steps))).max()), 1e-12))


# ---- The base case, and counts of positions --------------------------------------------------------------------------


def enter_base_case(findings: Findings, seed: int) -> None:
    """Mean square and mean product of data whose entries have mean 0 and variance 1, of several distributions."""
    rng = np.random.default_rng(seed)
    drawn: dict[str, Array] = {
        "Gaussian": rng.normal(size=(2000, 784)),
        "uniform": rng.uniform(-math.sqrt(3), math.sqrt(3), size=(2000, 784)),
        "signs": rng.choice([-1.0, 1.0], size=(2000, 784)),
    }
    for name, x in drawn.items():
        square = float((x**2).sum())
        both = float((x.sum(0) ** 2).sum()) - square
        findings.number("inputs", "q_hat0", square / x.size, seed=name)
        findings.number("inputs", "q_hat0_xy", both / (x.size * (len(x) - 1)), seed=name)


def enter_positions(findings: Findings) -> None:
    """Positions and kernel sites of the example in Sec. 6.2, counted on a convolution of torch's."""
    layer = Conv(3, 30, 3, 2, size=32)
    module = nn.Conv2d(3, 30, 3, stride=2)
    image = torch.zeros(1, 3, 32, 32)
    findings.number("positions and sites", "K0", image[0, 0].numel())
    findings.number("positions and sites", "F1", module.weight[0, 0].numel())
    findings.number("positions and sites", "K1", module(image)[0, 0].numel())
    findings.number("the same by mean field", "F1", layer.window.sites)
    findings.number("the same by mean field", "K1", math.prod(layer.window.output((32, 32))))


# ---- Eq. 147 ---------------------------------------------------------------------------------------------------------


def mean_products(rng: np.random.Generator) -> tuple[Sides, Sides]:
    """Both inequalities of eq. 147: mean product of two samples' gradients, λ_max, mean square of a gradient."""
    from trimtab.probes import fisher_lambda_max

    dense = bool(rng.integers(2))
    width = int(rng.integers(5, 40))
    layers: list[Layer] = (
        [Dense(12, width), Dense(width, width), Dense(width, 3)]
        if dense
        else [Conv(2, width, 3, 2, size=7), Dense(width * 9, 3)]
    )
    gamma = float(rng.uniform(0.2, 3)) if rng.integers(2) else None
    samples = int(rng.integers(5, 30))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**31)))
        network = draw_network(layers, gamma=gamma, **SIGMAS).double()
        x = torch.randn(samples, *network.input_shape, dtype=torch.double)
    largest = fisher_lambda_max(network, x, outputs=0, method="lanczos", tolerance=1e-12)
    rows = gradients_of_samples(network, x)
    return Sides(float(rows.mean(0).square().sum()), largest), Sides(largest, float(rows.square().sum(1).mean()))


def gradients_of_samples(network: nn.Module, x: Tensor) -> Tensor:
    """∇_θ of the first output, a row for each sample, with BatchNorm's statistics held fixed at those of all."""
    freeze_statistics(network, x)
    rows = []
    for sample in x:
        gradients = torch.autograd.grad(network(sample[None]).flatten()[0], list(network.parameters()))
        rows.append(torch.cat([gradient.flatten() for gradient in gradients]))
    return torch.stack(rows)
