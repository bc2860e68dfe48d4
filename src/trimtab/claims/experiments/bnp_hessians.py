"""bnp, Secs. 3.2, 3.3 and 4: the Hessian of a unit, its conditioning, and what centring and scaling do for it."""

from dataclasses import replace

import numpy as np
import torch
from torch.autograd.functional import hessian

from trimtab.claims.experiments.bnp_draws import (
    Rng,
    definite,
    few_samples,
    layer_inputs,
    orthogonal_features,
    tensor,
    two_groups,
    unit,
)
from trimtab.claims.experiments.registry import Context, experiment
from trimtab.claims.findings import DRAWS, Findings
from trimtab.theory import bounds
from trimtab.theory.bounds.inputs import augment, matrices
from trimtab.theory.bounds.sides import Form, Sides

SEARCHED = 4
"""Features where the best scaling is searched for."""


@experiment("bnp-hessians", "bnp: a unit's Hessian and its conditioning", small=1.1)
def hessians(findings: Findings, context: Context) -> None:
    """Props. 2 and 11, Theorems 3 and 4, Sec. 3.3, Lemma A1."""
    findings.check("dense-hessian", dense)
    findings.check("hessian-in-z", in_z)
    findings.check("one-sample", one_sample)
    findings.check("product", product)
    _centring(findings)
    _scaling(findings)
    _section_3_3(findings)


def _centring(findings: Findings) -> None:
    findings.check("centring", lambda rng: bounds.centring(layer_inputs(rng)))
    beside = findings.check("centring-without-full-rank", lambda rng: bounds.centring(few_samples(rng)))
    findings.notes.append(
        f"Theorem 4 with fewer samples than features: centring does not worsen the conditioning in {beside.holds} of "
        f"{beside.draws} draws."
    )
    findings.check("centring-is-strict", strict)
    findings.check("centred-already", centred_already)


def _scaling(findings: Findings) -> None:
    findings.check("equal-norms-random-scaling", equal_norms)
    findings.check("equal-norms-best-scaling", lambda rng: bounds.van_der_sluis(layer_inputs(rng, SEARCHED)))
    ratios: list[float] = []

    def against_best(rng: Rng) -> Sides:
        sides = bounds.column_scaling(layer_inputs(rng, SEARCHED))
        ratios.append(float(sides.left) / float(sides.right) * np.sqrt(SEARCHED + 1))
        return sides

    findings.check("scaling", against_best)
    findings.number("normalized over best", "draws", float(np.median(ratios)))
    findings.number("normalized over best, largest", "draws", max(ratios))
    findings.check("property-a", lambda rng: bounds.property_a(two_groups(rng)), tolerance=1e-3)
    without = findings.check(
        "without-property-a", lambda rng: bounds.property_a(layer_inputs(rng, SEARCHED)), tolerance=1e-3
    )
    findings.notes.append(
        f"Scaling by D without Property A: no better scaling is found in {without.holds} of {without.draws} draws, and "
        f"κ(Ĝ) is at most {max(ratios):.3g} times that of the best found; √(n+1) is {np.sqrt(SEARCHED + 1):.3g}."
    )


def _section_3_3(findings: Findings) -> None:
    findings.check("chain", lambda rng: bounds.unscaled_columns(layer_inputs(rng)))
    findings.check("chain-reached", chain_reached, tolerance=1e-2)
    findings.number("rank correlation", "draws", scales_and_conditioning(findings))
    for form in ("printed", "corrected"):
        findings.check(f"gain-{form}", lambda rng, f=form: gain(rng, f))  # type: ignore[misc]
    findings.check("gain-reached", gain_reached)


def dense(rng: Rng) -> Sides:
    """Prop. 2, against autograd."""
    inputs = layer_inputs(rng)
    one = unit(rng, inputs)
    whole = hessian(lambda v: one.losses(one.rows @ v).mean(), one.weights)
    return bounds.dense_hessian(whole.numpy(), inputs, one.curvature())


def in_z(rng: Rng) -> Sides:
    """Theorem 3: autograd's Hessian with respect to z, ŵ = Pz."""
    inputs = layer_inputs(rng)
    one, change = unit(rng, inputs), matrices(inputs).preconditioner
    z = torch.linalg.solve(tensor(change), one.weights)
    whole = hessian(lambda v: one.losses(one.rows @ v).mean(), one.weights)
    by_z = hessian(lambda v: one.losses(one.rows @ (tensor(change) @ v)).mean(), z)
    sides = bounds.preconditioned_hessian(whole.numpy(), inputs, one.curvature())  # it knows how much cancels
    return replace(sides, left=by_z.numpy())


def one_sample(rng: Rng) -> Sides:
    """At the end of Sec. 4: κ(Ĥ) and κ(Ĝ) of one row, for any running mean and deviation."""
    width = int(rng.integers(1, 30))
    row = rng.normal(size=(1, width)) * np.exp(2 * rng.normal(size=width))
    mean, sigma = rng.normal(size=width), np.exp(rng.normal(size=width))
    found = [bounds.condition_number(augment(rows)) for rows in (row, (row - mean) / sigma)]
    return Sides(np.array(found), np.ones(2), "==")


def product(rng: Rng) -> Sides:
    """Prop. 11: any rank of Ĥ, any positive definite S."""
    rows, columns, rank = (int(n) for n in rng.integers(2, 9, size=3))
    matrix = augment(rng.normal(size=(rows, rank)) @ rng.normal(size=(rank, columns)))
    return bounds.product_conditioning(matrix, definite(rng, rows))


def strict(rng: Rng) -> bool:
    """Theorem 4: centring is a gain wherever the mean meets the first principal component."""
    inputs = layer_inputs(rng)
    mean = inputs.mean(0)
    component = np.linalg.svd(inputs - mean, full_matrices=False)[2][0]
    sides = bounds.centring(inputs)
    return bool(abs(component @ mean) <= 1e-6 or sides.left < sides.right * (1 - 1e-9))


def centred_already(rng: Rng) -> Sides:
    """After Theorem 4."""
    inputs = layer_inputs(rng)
    sides = bounds.centring(inputs - inputs.mean(0))
    return replace(sides, relation="==")


def equal_norms(rng: Rng) -> Sides:
    """Lemma A1, against a random scaling."""
    inputs = layer_inputs(rng)
    return bounds.van_der_sluis(inputs, np.exp(rng.normal(size=inputs.shape[1])))


def chain_reached(rng: Rng) -> Sides:
    """Sec. 3.3: orthogonal centred features, where κ(Ĝ) = 1."""
    return replace(bounds.unscaled_columns(orthogonal_features(rng)), relation="==")


def gain(rng: Rng, form: Form) -> Sides:
    """Sec. 3.3: the gain in the conditioning of the Hessian, for losses of any curvature."""
    inputs = layer_inputs(rng)
    return bounds.gain(inputs, unit(rng, inputs).curvature(), form=form)


def gain_reached(rng: Rng) -> Sides:
    """Sec. 3.3: orthogonal centred features, equal curvature."""
    return replace(bounds.gain(orthogonal_features(rng), form="printed"), relation="==")


def scales_and_conditioning(findings: Findings) -> float:
    """Spearman's correlation of log κ(D) and log κ(ĤU), over draws with κ(D) from 1 to 10⁴."""
    from scipy.stats import spearmanr

    points = []
    for draw in range(DRAWS):
        rng = np.random.default_rng([101, draw])
        width = int(rng.integers(3, 9))
        inputs = rng.normal(size=(2 * width + int(rng.integers(10)), width)) @ rng.normal(size=(width, width))
        range_ = float(rng.uniform(0, np.log(1e4)))
        above = range_ * float(rng.uniform())  # so much of the range is above 1, the rest below
        logs = rng.uniform(above - range_, above, size=width)
        logs[rng.permutation(width)[:2]] = above - range_, above
        parts = matrices(inputs / inputs.std(0) * np.exp(logs) + rng.normal(size=width))
        points.append(
            (
                bounds.condition_number(np.diag(parts.scaling)),
                bounds.condition_number(parts.augmented @ parts.centring),
            )
        )
    findings.curve("conditioning by scales", "draws", sorted(points)[::5])
    return float(spearmanr(np.log(points)).statistic)
