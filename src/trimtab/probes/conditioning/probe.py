"""How well or badly a layer's inputs and its Hessian are conditioned, without BNP and with it (bnp paper, Sec. 3)."""

import math
from dataclasses import dataclass, field
from statistics import median, median_low
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from trimtab.bnp import BNP
from trimtab.bnp.options import NoBias, Options, Spatial
from trimtab.norms.statistics import Statistics
from trimtab.probes import options
from trimtab.probes.conditioning.curvature import CannotDifferentiate, Curvature, differentiable_attention
from trimtab.probes.conditioning.layer_inputs import ChangeOfVariables, LayerInputs, change_of_variables, trained_bias
from trimtab.probes.conditioning.patches import columns_of, row_count
from trimtab.probes.conditioning.selection import NotMeasurable, draw_rows, kind_of, measurable, spread_units
from trimtab.probes.conditioning.singular import Factors, condition, factors, hessian_condition, hessian_norm
from trimtab.probes.layer_calls import observe_calls
from trimtab.probes.result import LossFunction, Probe, Result
from trimtab.probes.surface import Surface
from trimtab.renamed import renamed_options

Source = Literal["batch", "running"]


@dataclass(frozen=True, kw_only=True)
class LayerConditioning:
    """Condition numbers κ of one layer: the largest over the smallest nonzero singular value.

    With groups of channels every group has matrices of its own; medians over the groups of the chosen units are given.

    Attributes:
        rows: How many rows H has: samples times positions, of all calls of the layer.
        used_rows: How many of them were used, drawn at random if fewer.
        columns: How many columns Ĥ has: weights per unit, and 1 for the bias.
        rank: The rank of Ĥ, which is that of ĤU and of Ĝ too.
        inputs: κ(Ĥ), Ĥ = [e, H]; of H if there is no bias to train.
        centred: κ(ĤU); without a bias there is no U, and it is `inputs`.
        normalized: κ(Ĝ), Ĝ = ĤUD.
        scaling: κ(D), D = diag(1, 1/σ̃) with ε₁ and ε₂.
        hessian: κ of the Hessian of the loss for one unit's weights and bias; the median over `units`.
        preconditioned: κ of PᵀHP for it, P = UD; the median over `units`.
        hessian_rank: The rank of the Hessian block; the median over `units`.
        hessian_norm: ‖H‖ of the Hessian block, its largest eigenvalue in absolute value; the median over `units`.
        preconditioned_norm: ‖PᵀHP‖; the median over `units`.
        q2: q², by which BNP divides it, so that blocks of different layers have comparable norms (Prop. 5).
        units: Of how many units there is a Hessian block that is not 0.
        statistics: Whose mean and variance U and D have: of this batch or the running ones of BNP.
        note: Why there is no Hessian block, if there is none.
    """

    rows: int
    used_rows: int
    columns: int
    rank: int
    inputs: float
    centred: float
    normalized: float
    scaling: float
    hessian: float = math.nan
    preconditioned: float = math.nan
    hessian_rank: int = 0
    hessian_norm: float = math.nan
    preconditioned_norm: float = math.nan
    q2: float = math.nan
    units: int = 0
    statistics: Source = "batch"
    note: str | None = None


@dataclass(frozen=True, kw_only=True)
class ConditioningResult(Result):
    """The result of `Conditioning`.

    Attributes:
        layers: By name.
        left_out: Layers that cannot be measured, and why.
    """

    layers: dict[str, LayerConditioning] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def norm_ratios(self) -> dict[str, float]:
        """The largest over the smallest norm of the layers' Hessian blocks, of those that have one (bnp, Sec. 3.3).

        Returns:
            `hessian` of the blocks as they are, `preconditioned` of PᵀHP, and `divided` of PᵀHP/q², as BNP has them.
            NaN if fewer than two layers have a block.
        """
        known = [layer for layer in self.layers.values() if layer.hessian_norm > 0]
        norms = {
            "hessian": [layer.hessian_norm for layer in known],
            "preconditioned": [layer.preconditioned_norm for layer in known],
            "divided": [layer.preconditioned_norm / layer.q2 for layer in known],
        }
        return {name: max(each) / min(each) if len(each) > 1 else math.nan for name, each in norms.items()}


@renamed_options(most_entries="max_entries", most_products="max_products")
@dataclass(frozen=True, kw_only=True)
class Conditioning(Probe[ConditioningResult]):
    """κ of Ĥ, ĤU, Ĝ and D, and of a unit's Hessian block before and after BNP (bnp paper, Theorem 4 and Fig. 8).

    For dense layers and for convolutions, transposed ones too, whose H is 𝓗: all patches of the batch as rows. Rows
    and statistics are those that BNP would see. H is a matrix in double precision of the inputs as they are, in
    whatever precision the model works; `singular.factors` says which values count as zero.

    The Hessian block of unit i is ĤᵀSĤ, S being the second derivative of the loss by the unit's outputs (Props. 2 and
    9; with BatchNorm further on, samples act on each other and S is a full matrix, which changes nothing here). S is
    measured within the range of Ĥ, by as many second derivatives as Ĥ has rank; the products with Ĥ are then made in
    double precision, so that a model in single precision can have a Hessian with κ far above 1/ε. Eigenvalues of S
    below 8ε of its largest count as 0. Inputs are held as they are: for a layer that is called several times, one call
    feeding another, that is a part of the Hessian.

    Each layer takes a forward and a part of a backward of its own, and each second derivative about as long as two
    backwards through what follows the layer. Peak memory: that of a training step with its graph for second
    derivatives, and up to 6 matrices of `max_entries` double-precision numbers.

    Args:
        units: How many output units have their Hessian block taken, evenly spread, the first one among them; 1 is the
            first alone, as in Fig. 8, and 0 none.
        max_entries: If Ĥ has more entries, some of its rows are drawn, and there is no Hessian block.
        max_products: If a Hessian block takes more second derivatives per unit, it is left out.
        only: Names of layers; all if empty.
        bnp: Whose running statistics, ε₁, ε₂ and other options U and D shall have; without it the statistics are those
            of the batch, as they are for layers that it has not seen yet.
        eps1: ε₁, if there is no `bnp`.
        eps2: ε₂, if there is no `bnp`.
        spatial: Statistics per channel or per kernel site, if there is no `bnp`.
        no_bias: What scales weights without bias, if there is no `bnp`.
        statistics: What layers that normalize by the batch do; see `IsolatedModel`.
        seed: Of the rows that are drawn.

    Raises:
        ValueError: If an option is invalid.
    """

    name: ClassVar[str] = "conditioning"
    result: ClassVar[type[Result]] = ConditioningResult

    units: int = 3
    max_entries: int = 2**22
    max_products: int = 128
    only: tuple[str, ...] = ()
    bnp: BNP | None = None
    eps1: float = 1e-2
    eps2: float = 1e-4
    spatial: Spatial = "channel"
    no_bias: NoBias = "second_moment"
    statistics: Statistics = "batch"
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the options."""
        options.check_whole(self, "units", "max_products", minimum=0)
        options.check_whole(self, "max_entries", minimum=1)
        options.check_strings(self, "only")
        options.check_instance(self, "bnp", BNP, "a trimtab.BNP")
        Options(eps1=self.eps1, eps2=self.eps2, spatial=self.spatial, no_bias=self.no_bias)
        options.check_statistics(self)
        options.check_seed(self)

    def measure(self, model: nn.Module, loss_fn: LossFunction, batch: Any) -> ConditioningResult:
        """Measure layer by layer, or raise CannotMeasure."""
        surface = Surface(model, loss_fn, batch, statistics=self.statistics)
        layers, left_out = measurable(surface.isolated.model, self.only, self._options)
        rows: dict[str, int] = {}

        def count(name: str, layer: nn.Module, x: Tensor, y: Tensor) -> None:
            rows[name] = rows.get(name, 0) + row_count(layer, y)

        with observe_calls(layers, count):
            surface.loss()
        measured: dict[str, LayerConditioning] = {}
        for name, layer in layers.items():
            try:
                measured[name] = self._measure_layer(surface, name, layer, rows.get(name, 0))
            except NotMeasurable as reason:
                left_out[name] = str(reason)
        return ConditioningResult(layers=measured, left_out=left_out)

    @property
    def _options(self) -> Options:
        if self.bnp is not None:
            return self.bnp.options
        return Options(eps1=self.eps1, eps2=self.eps2, spatial=self.spatial, no_bias=self.no_bias)

    def _measure_layer(self, surface: Surface, name: str, layer: nn.Module, rows: int) -> LayerConditioning:
        """All numbers of one layer, from a run of its own."""
        if not rows:
            raise NotMeasurable("the loss does not call it as a module")
        columns = columns_of(layer) + trained_bias(layer)
        chosen = draw_rows(rows, self.max_entries // columns, self.seed)
        note = self._why_no_hessian(rows, columns, len(chosen))
        units = spread_units(layer, max(self.units, 1))
        inputs = LayerInputs(layer, kind_of(layer), self._options, units, chosen, shifted=note is None)

        def work(loss: Tensor, leaves: dict[str, Tensor]) -> tuple[list[_Group], str | None]:
            parts = {group: factors(inputs.matrix(group), inputs.eps) for group in units}
            parts = {group: each for group, each in parts.items() if each.core.numel()}
            if not parts:
                raise NotMeasurable("its inputs are 0")
            if note is not None:
                return [_Group(group, core) for group, (_, core) in parts.items()], note
            return _with_curvature(layer, loss, inputs.shifts, parts, units)

        with observe_calls({name: layer}, inputs.observe), differentiable_attention():
            groups, note = surface.inside(work)
        mean, variance, source = self._statistics(layer, inputs)
        changes = [change_of_variables(layer, each.number, mean, variance, self._options) for each in groups]
        pairs = list(zip(groups, changes, strict=True))
        blocks = [block for group, change in pairs for block in group.blocks(change)]
        if note is None and not blocks:
            note = "the Hessian blocks of its units are 0, or not finite"
        return LayerConditioning(
            rows=rows,
            used_rows=len(chosen),
            columns=columns,
            rank=median_low(len(group.core) for group in groups),
            inputs=median(condition(group.core) for group in groups),
            centred=median(condition(change.centred(group.core)) for group, change in pairs),
            normalized=median(condition(change.applied(group.core)) for group, change in pairs),
            scaling=median(change.kappa() for change in changes),
            hessian=median(block.before for block in blocks) if blocks else math.nan,
            preconditioned=median(block.after for block in blocks) if blocks else math.nan,
            hessian_rank=median_low(block.rank for block in blocks) if blocks else 0,
            hessian_norm=median(block.norm_before for block in blocks) if blocks else math.nan,
            preconditioned_norm=median(block.norm_after for block in blocks) if blocks else math.nan,
            q2=inputs.squared_norm(columns_of(layer)),
            units=len(blocks),
            statistics=source,
            note=note,
        )

    def _why_no_hessian(self, rows: int, columns: int, used: int) -> str | None:
        products = min(rows, columns)
        if not self.units:
            return "no unit was asked for"
        if used < rows:
            return f"its {rows} by {columns} inputs are above max_entries, {self.max_entries}"
        if products > self.max_products:
            return f"it takes up to {products} second derivatives per unit, above max_products, {self.max_products}"
        return None

    def _statistics(self, layer: nn.Module, inputs: LayerInputs) -> tuple[Tensor, Tensor, Source]:
        """Mean and variance for U and D, and whose they are."""
        moments, running = inputs.moments(), None
        if self.bnp is not None and self.bnp.options.statistics == "running":
            running = self.bnp.statistics(layer)
        mean, variance = (moments.mean, moments.variance) if running is None else running
        mean, variance = (t.to(moments.mean.device, torch.float64) for t in (mean, variance))
        return mean, variance, "batch" if running is None else "running"


class _Block(NamedTuple):
    """κ of a unit's Hessian before and after the change of variables, its rank, and its norm before and after."""

    before: float
    after: float
    rank: int
    norm_before: float
    norm_after: float


class _Group(NamedTuple):
    """Of a group of channels: what has the singular values of Ĥ, and S of its chosen units in the basis of Ĥ."""

    number: int
    core: Tensor
    curvatures: tuple[Tensor, ...] = ()
    eps: float = 0.0

    def blocks(self, change: ChangeOfVariables) -> list[_Block]:
        """Of the units whose Hessian is not 0."""
        blocks = []
        for curvature in self.curvatures:
            if bool(torch.isfinite(curvature).all()):
                before, rank = hessian_condition(curvature, self.core, self.eps)
                changed = change.applied(self.core)
                after, _ = hessian_condition(curvature, changed, self.eps)
                norms = hessian_norm(curvature, self.core), hessian_norm(curvature, changed)
                blocks += [_Block(before, after, rank, *norms)] if rank else []
        return blocks


def _with_curvature(
    layer: nn.Module, loss: Tensor, shifts: list[Tensor], parts: dict[int, Factors], units: dict[int, list[int]]
) -> tuple[list[_Group], str | None]:
    """What is measured of each group, and what was in the way of the Hessians."""
    try:
        curvature = Curvature(layer, loss, shifts)
        groups = []
        for group, (basis, core) in parts.items():
            curvatures = tuple(curvature.within(unit, basis) for unit in units[group])
            groups.append(_Group(group, core, curvatures, curvature.eps))
        return groups, None
    except CannotDifferentiate as error:
        return [_Group(group, core) for group, (_, core) in parts.items()], str(error)
