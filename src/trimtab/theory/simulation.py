"""Simulations of what the regularization paper predicts: batch noise, online learning, a linear teacher.

All three work on arrays with a leading axis for the runs, so that many cost little more than one.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erf

from trimtab.theory.checks import finite, whole
from trimtab.theory.generalization import Generalization, check_noise
from trimtab.theory.implicit_decay import link
from trimtab.theory.teacher_student.dynamics import ESCAPED, Trajectory, check_setting, check_start

Array = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, ...]], Array]

_CHUNK = 1_000_000
"""Numbers drawn at a time, to keep memory small."""

ACTIVATIONS: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "relu": (lambda u: np.maximum(u, 0.0), lambda u: np.where(u > 0, 1.0, 0.0)),
    "erf": (lambda u: erf(u / np.sqrt(2)), lambda u: np.sqrt(2 / np.pi) * np.exp(-(u**2) / 2)),
}
"""g and g′ of the student and the teacher."""


@dataclass(frozen=True)
class Measured:
    """A mean over draws and its standard error."""

    value: float
    error: float


def gaussian(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Standard normal numbers."""
    return rng.standard_normal(shape)


def measure_decay(
    batch_size: int,
    *,
    gamma: float = 1.0,
    beta: float = 0.0,
    activation: str = "relu",
    own_batch: bool = False,
    noise: Literal["both", "mu", "sigma"] = "both",
    draw: Draw = gaussian,
    batches: int = 20_000,
    points: int = 32,
    seed: int = 0,
) -> Measured:
    """(E ℓ(ĥ) − ℓ(h̄))/γ² with batch statistics drawn: what Theorem 1 (regularization paper, eq. 3) calls ζ.

    The label is its mean, y = A′(h̄): ℓ is linear in y, and the noise of y has nothing to do with the batch.

    Args:
        batch_size: M, larger than 3.
        gamma: BatchNorm's scale, not 0.
        beta: BatchNorm's shift.
        activation: A name in `trimtab.theory.implicit_decay.LINKS`.
        own_batch: Each sample is normalized by the batch it is in, as in real BatchNorm, instead of an independent one.
        noise: Which statistic is the batch's; of one alone the other is the population's, 0 or 1.
        draw: Draws wᵀx, with population mean 0 and variance 1.
        batches: How many batches.
        points: Samples that each independent batch normalizes.
        seed: Of the draws.
    """
    batch_size = whole(batch_size, "batch_size", 4)
    batches, points = whole(batches, "batches", 2), whole(points, "points")
    finite(beta, "beta")
    if finite(gamma, "gamma") == 0:
        raise ValueError("gamma must not be 0.")
    if noise not in ("both", "mu", "sigma"):
        raise ValueError(f"noise must be 'both', 'mu' or 'sigma', not {noise!r}.")
    potential, mean_label, _ = link(activation)
    rng = np.random.default_rng(whole(seed, "seed", 0))
    per_batch = np.empty(batches)
    chunk = max(1, _CHUNK // batch_size)
    for first in range(0, batches, chunk):
        count = min(chunk, batches - first)
        batch = draw(rng, (count, batch_size))
        mu, sigma = batch.mean(axis=1, keepdims=True), batch.std(axis=1, keepdims=True)
        if noise == "mu":
            sigma = np.ones_like(sigma)
        elif noise == "sigma":
            mu = np.zeros_like(mu)
        h = batch if own_batch else draw(rng, (count, points))
        clean, noisy = gamma * h + beta, gamma * (h - mu) / sigma + beta
        more = potential(noisy) - potential(clean) - mean_label(clean) * (noisy - clean)
        per_batch[first : first + count] = more.mean(axis=1) / gamma**2
    return Measured(float(per_batch.mean()), float(per_batch.std(ddof=1) / np.sqrt(batches)))


def simulate(
    times: ArrayLike,
    eta: float,
    *,
    method: str = "bn",
    zeta: float = 0.0,
    activation: str = "relu",
    gamma: float = 1.0,
    overlap: float = 0.0,
    length: float = 1.0,
    inputs: int = 2000,
    runs: int = 4,
    seed: int = 0,
) -> Trajectory:
    """Online learning at finite N, one sample a step (regularization paper, eqs. 6 and 7, γ's rate being η/N).

    Takes what `trimtab.theory.teacher_student.solve` takes, and starts exactly at the given order parameters.

    Args:
        times: Where to report; each is rounded to a whole number of samples.
        eta: The learning rate η.
        method: "bn" (WN with a decay ζ on γ), "wn" or "sgd".
        zeta: ζ; of BN only.
        activation: "relu" or "erf".
        gamma: γ at the start.
        overlap: R at the start.
        length: L at the start.
        inputs: N.
        runs: Independent runs, each with its own teacher and samples.
        seed: Of the draws.

    Returns:
        Order parameters of shape (times, runs).
    """
    check_setting(method, eta, zeta, activation)
    t = check_start(times, method, gamma, overlap, length)
    inputs, runs = whole(inputs, "inputs", 2), whole(runs, "runs")
    rng = np.random.default_rng(whole(seed, "seed", 0))
    g, slope = ACTIVATIONS[activation]
    teacher, w = _start(rng, inputs, runs, overlap, length)
    scale = np.full(runs, length if method == "sgd" else gamma)
    seen = np.empty((3, len(t), runs))
    step = 0
    for index, last in enumerate(np.rint(t * inputs).astype(int)):
        with np.errstate(over="ignore", invalid="ignore"):  # said below
            for _ in range(step, last):
                x = rng.standard_normal((runs, inputs)) / np.sqrt(inputs)
                field = _dot(w, x)
                norm2 = _dot(w, w)
                u = field if method == "sgd" else np.sqrt(inputs / norm2) * scale * field
                delta = slope(u) * (g(_dot(teacher, x)) - g(u))
                if method == "sgd":
                    w += (eta * delta)[:, None] * x
                else:
                    w *= (1 - eta * delta * u / norm2)[:, None]
                    w += (eta * delta * scale * np.sqrt(inputs / norm2))[:, None] * x
                    scale = scale + eta / inputs * (delta * u / scale - zeta * scale)
        step = int(last)
        norm = np.sqrt(_dot(w, w) / inputs)
        if not np.all(norm < ESCAPED):
            raise ValueError(f"the runs diverge before t = {t[index]:g}: lower eta or end earlier.")
        seen[:, index] = (norm if method == "sgd" else scale), _dot(w, teacher) / inputs / norm, norm
    return Trajectory(t, *seen)


def simulate_linear(
    alpha: ArrayLike,
    *,
    method: str = "bn",
    inputs: int = 4096,
    batch_size: int = 32,
    steps: int = 4000,
    eta: float = 8.0,
    noise_variance: float = 0.25,
    length: float = 0.1,
    zeta: float = 0.0,
    seed: int = 0,
) -> Generalization:
    """Train a linear student on a noisy linear teacher with mini-batches, all loads α at once (Sec. 4, Figs. 2 and 3).

    "bn": ŷ = γ(wᵀx − μ_B)/σ_B with the gradient through μ_B and σ_B, w random of length L at the start, γ = 1 and its
    rate η/N. It is judged with the mean and variance of its whole training set, which running averages tend to. "wn":
    ŷ = γ√N wᵀx/‖w‖, w and γ at the start as of "bn", with ½ζγ² added to the loss: its minimum is that of ridge
    regression with a decay ζα. "sgd": ŷ = wᵀx from w = 0. All minimize ½ mean (y − ŷ)² over batches drawn with
    replacement, and the rate falls linearly to 0. The loads share one pool of samples, of which each takes the first
    αN.

    Args:
        alpha: The loads; αN must be at least the batch size.
        method: "bn", "wn" or "sgd".
        inputs: N.
        batch_size: M.
        steps: Steps of every load.
        eta: The learning rate at the start; SGD needs it well below 2M, since ‖x‖² is about 1.
        noise_variance: δ².
        length: L at the start; of "bn" and "wn" only. With α < 1 no sample ever moves a part of w: what it starts with
            stays.
        zeta: ζ; of "wn" only.
        seed: Of the draws.
    """
    *_, (_, last) = _train_linear(
        alpha,
        (),
        method=method,
        inputs=inputs,
        batch_size=batch_size,
        steps=steps,
        eta=eta,
        noise_variance=noise_variance,
        length=length,
        zeta=zeta,
        seed=seed,
    )
    return last


@dataclass(frozen=True)
class Learning:
    """The losses of linear students along their training.

    Attributes:
        steps: After so many steps.
        alpha: The loads.
        excess_risk: By step and load.
        training_loss: Likewise, mean (y − ŷ)² of the whole training set.
        noise_variance: δ².
    """

    steps: NDArray[np.int_]
    alpha: Array
    excess_risk: Array
    training_loss: Array
    noise_variance: float

    @property
    def validation_loss(self) -> Array:
        """Mean (y − ŷ)² of new samples: the excess risk plus δ²."""
        return self.excess_risk + self.noise_variance


def linear_losses(alpha: ArrayLike, at: Sequence[int], **more: Any) -> Learning:
    """The losses of `simulate_linear`'s students along the way (regularization paper, Fig. 3).

    Args:
        alpha: The loads.
        at: After how many steps to look, each above 0 and at most `steps`, which is looked at in any case.
        more: As for `simulate_linear`.
    """
    if not isinstance(at, Iterable) or isinstance(at, str):
        raise ValueError(f"at must be a list of steps, not {at!r}.")
    seen = list(_train_linear(alpha, at, **more))
    results = [result for _, result in seen]
    return Learning(
        np.array([step for step, _ in seen]),
        results[0].alpha,
        np.array([result.excess_risk for result in results]),
        np.array([result.training_loss for result in results]),
        results[0].noise_variance,
    )


def _train_linear(
    alpha: ArrayLike,
    at: Sequence[int],
    *,
    method: str = "bn",
    inputs: int = 4096,
    batch_size: int = 32,
    steps: int = 4000,
    eta: float = 8.0,
    noise_variance: float = 0.25,
    length: float = 0.1,
    zeta: float = 0.0,
    seed: int = 0,
) -> Iterator[tuple[int, Generalization]]:
    """Train, and judge after each of the steps `at` and after the last."""
    if method not in ("bn", "wn", "sgd"):
        raise ValueError(f"method must be bn, wn or sgd, not {method!r}.")
    if finite(zeta, "zeta") < 0 or (zeta and method != "wn"):
        raise ValueError(f"zeta must be 0 or larger, and 0 unless method is wn, not {zeta!r}.")
    inputs, batch_size, steps = whole(inputs, "inputs"), whole(batch_size, "batch_size", 4), whole(steps, "steps")
    check_noise(noise_variance)
    loads = _loads(alpha, inputs, batch_size)
    for name, value in (("eta", eta), ("length", length)):
        if finite(value, name) <= 0:
            raise ValueError(f"{name} must be positive, not {value!r}.")
    rng = np.random.default_rng(whole(seed, "seed", 0))
    samples = np.rint(loads * inputs).astype(int)
    teacher = rng.standard_normal(inputs, dtype=np.float32)
    teacher *= np.sqrt(inputs) / np.linalg.norm(teacher)
    pool = rng.standard_normal((int(samples.max()), inputs), dtype=np.float32)
    pool /= np.float32(np.sqrt(inputs))
    labels = pool @ teacher + np.sqrt(noise_variance) * rng.standard_normal(len(pool))
    looks = {whole(step, "at") for step in at} | {steps}
    if max(looks) > steps:
        raise ValueError(f"at must be at most steps = {steps}, not {max(looks)}.")
    w = np.zeros((len(loads), inputs), dtype=np.float32)
    if method != "sgd":
        w += length * rng.standard_normal(w.shape)
    gamma = np.ones((len(loads), 1))
    for step in range(steps):
        chosen = (rng.random((len(loads), batch_size)) * samples[:, None]).astype(int)
        x, y = pool[chosen], labels[chosen]
        h = np.matmul(x, w[:, :, None])[:, :, 0].astype(np.float64)
        lr = eta * (1 - step / steps)
        if method == "bn":
            pull, along = batch_norm_gradient(h, y, gamma)
            gamma = gamma - lr / inputs * along
        elif method == "wn":
            norm2 = np.einsum("kn,kn->k", w, w, dtype=np.float64)[:, None]
            pull, along, radial = weight_norm_gradient(h, y, gamma, np.sqrt(inputs / norm2))
            gamma = gamma - lr / inputs * (along + zeta * gamma)
            w -= lr * (radial / norm2).astype(np.float32) * w
        else:
            pull = h - y
        w -= (lr / batch_size) * np.matmul(pull[:, None, :].astype(np.float32), x)[:, 0]
        if not np.all(np.abs(pull) < ESCAPED):
            raise ValueError(f"training diverges at step {step}: eta = {eta:g} is too large for this batch size.")
        if step + 1 in looks:
            scale = None if method == "sgd" else gamma
            known = np.sqrt(inputs) / np.linalg.norm(w, axis=1) if method == "wn" else None
            yield step + 1, _judge(loads, samples, pool, labels, teacher, w, scale, noise_variance, known)


def weight_norm_gradient(h: Array, y: Array, gamma: Array, factor: Array) -> tuple[Array, Array, Array]:
    """Of ½ mean (γ·factor·h − y)², factor = √N/‖w‖: M times the gradient by h, the one by γ, and −⟨w, first⟩.

    A batch per row. The gradient by w is that by h, times x, plus the last number times w/‖w‖²: what is along w is
    taken out.
    """
    wrong = gamma * factor * h - y
    pull = gamma * factor * wrong
    return pull, np.mean(wrong * factor * h, axis=1, keepdims=True), -np.mean(pull * h, axis=1, keepdims=True)


def batch_norm_gradient(h: Array, y: Array, gamma: Array) -> tuple[Array, Array]:
    """M times the gradient of ½ mean (γĥ − y)² by h, through μ_B and σ_B, and the gradient by γ; a batch per row."""
    sigma = h.std(axis=1, keepdims=True)
    unit = (h - h.mean(axis=1, keepdims=True)) / sigma
    wrong = gamma * unit - y
    along = np.mean(wrong * unit, axis=1, keepdims=True)
    return gamma / sigma * (wrong - wrong.mean(axis=1, keepdims=True) - unit * along), along


def _loads(alpha: ArrayLike, inputs: int, batch_size: int) -> Array:
    try:
        loads = np.atleast_1d(np.asarray(alpha, dtype=np.float64))
    except (TypeError, ValueError):
        loads = np.empty(0)
    if loads.ndim != 1 or not loads.size or not np.all(np.isfinite(loads)):
        raise ValueError(f"alpha must be a finite number or a list of them, not {alpha!r}.")
    if np.any(loads * inputs < batch_size):
        raise ValueError(f"alpha must be large enough for batch_size = {batch_size} samples each, not {alpha!r}.")
    return loads


def _judge(
    loads: Array,
    samples: NDArray[np.int_],
    pool: NDArray[np.float32],
    labels: Array,
    teacher: NDArray[np.float32],
    w: NDArray[np.float32],
    gamma: Array | None,
    noise_variance: float,
    factor: Array | None,
) -> Generalization:
    """Excess risk and training loss; a student with a γ divides by its training set's deviation, or by 1/factor."""
    excess, training = np.empty(len(loads)), np.empty(len(loads))
    for k, count in enumerate(samples):
        fitted = (pool[:count] @ w[k]).astype(np.float64)
        scale, shift = 1.0, 0.0
        if factor is not None and gamma is not None:
            scale = float(gamma[k, 0] * factor[k])
        elif gamma is not None:
            scale = float(gamma[k, 0] / fitted.std())
            shift = -scale * float(fitted.mean())
        training[k] = np.mean((scale * fitted + shift - labels[:count]) ** 2)
        excess[k] = np.mean((scale * w[k].astype(np.float64) - teacher) ** 2) + shift**2
    return Generalization(loads, excess, training, noise_variance)


def _start(rng: np.random.Generator, inputs: int, runs: int, overlap: float, length: float) -> tuple[Array, Array]:
    """Teachers of length √N and students of length √N·L at the angle that the overlap says."""
    teacher = rng.standard_normal((runs, inputs))
    teacher *= np.sqrt(inputs / _dot(teacher, teacher))[:, None]
    aside = rng.standard_normal((runs, inputs))
    aside -= (_dot(aside, teacher) / inputs)[:, None] * teacher
    aside *= np.sqrt(inputs / _dot(aside, aside))[:, None]
    return teacher, length * (overlap * teacher + np.sqrt(1 - overlap**2) * aside)


def _dot(a: Array, b: Array) -> Array:
    """The scalar products of the rows."""
    product: Array = np.einsum("rn,rn->r", a, b)
    return product
