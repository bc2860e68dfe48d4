"""The Triton kernel for the step, for all layers in one launch: each has a record, as `record.py` packs it."""

import triton
import triton.language as tl

from trimtab.bnp.backends import record
from trimtab.bnp.row_sums import COUNTS as _COUNTS

SPAN = tl.constexpr(1024)  # columns that are looked at at once in a step
ROWS = tl.constexpr(4)  # outputs that are changed at once,
WEIGHTS = tl.constexpr(256)  # so many weights of each

# The places of a layer's numbers in its record, and what stands in some of them.
WEIGHT = tl.constexpr(record.PLACES["weight"])
BIAS = tl.constexpr(record.PLACES["bias"])
BATCH_MEAN = tl.constexpr(record.PLACES["batch_mean"])
BATCH_VARIANCE = tl.constexpr(record.PLACES["batch_variance"])
MEAN = tl.constexpr(record.PLACES["mean"])
VARIANCE = tl.constexpr(record.PLACES["variance"])
SHARE = tl.constexpr(record.PLACES["share"])
STEPS = tl.constexpr(record.PLACES["steps"])
SKIPPED = tl.constexpr(record.PLACES["skipped"])
GROUPS = tl.constexpr(record.PLACES["groups"])
OUTPUTS = tl.constexpr(record.PLACES["outputs"])
INPUTS = tl.constexpr(record.PLACES["inputs"])
SITES = tl.constexpr(record.PLACES["sites"])
SHARED = tl.constexpr(record.PLACES["shared"])
BATCH = tl.constexpr(record.PLACES["batch"])
Q2 = tl.constexpr(record.PLACES["q2"])
RECORD = tl.constexpr(len(record.FIELDS))
SHARED_SITES_FIRST = tl.constexpr(record.SHARED_SITES_FIRST)
SINGLE_ROW = tl.constexpr(record.SINGLE_ROW)
IS_SUMS = tl.constexpr(record.SUMS)
COUNTS = tl.constexpr(_COUNTS)

# A program changes the gradients of some outputs of one layer. It computes what they are transformed with itself, from
# the averages as they were and the batch: that is less work than a launch of another kernel. The last program of each
# layer decides whether the new averages are kept.


@triton.jit
def _between(a, b, step):
    return tl.where(step < 0.5, a + step * (b - a), b - (1 - step) * (b - a))


@triton.jit
def _q2(row):
    """q²; with sums in the place of moments it is computed from them."""
    q2 = tl.load(row + Q2).to(tl.float64, bitcast=True)
    if tl.load(row + BATCH) == IS_SUMS:
        sums = tl.load(row + BATCH_MEAN).to(tl.pointer_type(tl.float64))
        samples = tl.load(sums + 2)
        fan_in = (tl.load(row + INPUTS) * tl.load(row + SITES)).to(tl.float64)
        q2 = tl.maximum(fan_in / samples, tl.sqrt(tl.load(sums + 3) / samples))
    return q2.to(tl.float32)


@triton.jit
def _batch(row, at, inside, columns):
    """Mean and variance of some columns in this step's rows."""
    if tl.load(row + BATCH) == IS_SUMS:
        sums = tl.load(row + BATCH_MEAN).to(tl.pointer_type(tl.float64))
        share = 1 / (tl.load(sums) + tl.load(sums + 1))  # divided once: float64 is slow
        m = tl.load(sums + COUNTS + at, mask=inside, other=0.0) * share
        v = tl.load(sums + COUNTS + columns + at, mask=inside, other=0.0) * share - m * m
        mean = m.to(tl.float32)
        variance = tl.where(v < 0, 0.0, v).to(tl.float32)
    else:
        mean = tl.load(tl.load(row + BATCH_MEAN).to(tl.pointer_type(tl.float32)) + at, mask=inside, other=0.0)
        variance = tl.load(tl.load(row + BATCH_VARIANCE).to(tl.pointer_type(tl.float32)) + at, mask=inside, other=0.0)
    return mean, variance


@triton.jit
def _row_count(row):
    """How many rows there are: none, one, or more than one."""
    mode = tl.load(row + BATCH)
    rows = tl.where(mode == SINGLE_ROW, 1.0, 2.0).to(tl.float64)
    if mode == IS_SUMS:
        sums = tl.load(row + BATCH_MEAN).to(tl.pointer_type(tl.float64))
        rows = tl.load(sums) + tl.load(sums + 1)
    return rows


@triton.jit
def _statistics(
    row, at, inside, columns, single, usable, undo, by, started, step,
    DEBIAS: tl.constexpr, USE_BATCH: tl.constexpr, SECOND_MOMENT: tl.constexpr, FOLD: tl.constexpr,
):  # fmt: skip
    """Of some columns: the averages after this batch, and the mean and the variance that are used."""
    new_mean = tl.load(tl.load(row + MEAN).to(tl.pointer_type(tl.float32)) + at, mask=inside, other=0.0)
    new_variance = tl.load(tl.load(row + VARIANCE).to(tl.pointer_type(tl.float32)) + at, mask=inside, other=0.0)
    m_batch, v_batch = _batch(row, at, inside, columns)
    distance = m_batch - new_mean / undo
    v_batch = tl.where(single, distance * distance, v_batch)
    if FOLD:
        new_mean = tl.where(usable, _between(new_mean, m_batch, step), new_mean)
        new_variance = tl.where(usable, _between(new_variance, v_batch, step), new_variance)
    m = new_mean / by
    v = tl.where(started, new_variance / by, 1.0) if DEBIAS else new_variance
    if USE_BATCH:
        taken = usable & (single == 0)
        m = tl.where(taken, m_batch, m)
        v = tl.where(taken, v_batch, v)
    if SECOND_MOMENT:
        v = tl.where(tl.load(row + BIAS) == 0, v + m * m, v)
    return new_mean, new_variance, m, v


@triton.jit
def precondition(
    table,
    work,
    flags,
    flag,
    step,
    eps1,
    eps2,
    DEBIAS: tl.constexpr,
    USE_BATCH: tl.constexpr,
    SECOND_MOMENT: tl.constexpr,
    FOLD: tl.constexpr,
):
    """The step of some outputs of a layer."""
    program = tl.program_id(0)
    layer = tl.load(work + program * 4)
    first_output = tl.load(work + program * 4 + 1)
    end_output = tl.load(work + program * 4 + 2)
    programs = tl.load(work + program * 4 + 3)
    row = table + layer * RECORD
    bias_address = tl.load(row + BIAS)
    mean = tl.load(row + MEAN).to(tl.pointer_type(tl.float32))
    share = tl.load(row + SHARE).to(tl.pointer_type(tl.float32))
    groups = tl.load(row + GROUPS).to(tl.int32)
    outputs = tl.load(row + OUTPUTS).to(tl.int32)
    inputs = tl.load(row + INPUTS).to(tl.int32)
    sites = tl.load(row + SITES).to(tl.int32)
    shared = tl.load(row + SHARED)
    width = inputs * sites
    per_group = tl.where(shared == 0, width, inputs)
    columns = groups * per_group
    rows = _row_count(row)
    single = rows == 1
    seen = rows > 0
    q2 = _q2(row)
    old_share = tl.load(share)
    undo = tl.where(old_share > 0, old_share, 1.0) if DEBIAS else 1.0

    spoilt = tl.zeros([SPAN], tl.float32)
    for begin in range(0, columns, SPAN):
        at = begin + tl.arange(0, SPAN)
        inside = at < columns
        m_batch, v_batch = _batch(row, at, inside, columns)
        distance = m_batch - tl.load(mean + at, mask=inside, other=0.0) / undo
        spoilt += tl.where(inside, tl.where(single, distance * distance, v_batch) * 0, 0.0)
    usable = tl.sum(spoilt) == 0
    new_share = tl.where(usable, _between(old_share, 1.0, step), old_share) if FOLD else old_share
    started = new_share > 0 if DEBIAS else True
    by = tl.where(started, new_share, 1.0) if DEBIAS else 1.0

    first_column = first_output // outputs * per_group
    most = tl.full([SPAN], -float("inf"), tl.float32)
    for begin in range(0, per_group, SPAN):
        inside = begin + tl.arange(0, SPAN) < per_group
        at = first_column + begin + tl.arange(0, SPAN)
        _mean, _variance, _m, v = _statistics(
            row, at, inside, columns, single, usable, undo, by, started, step, DEBIAS, USE_BATCH, SECOND_MOMENT, FOLD
        )
        most = tl.maximum(most, tl.where(inside, v, -float("inf")))
    added = eps1 * tl.max(most) + eps2

    has_bias = bias_address != 0
    weights = tl.load(row + WEIGHT).to(tl.pointer_type(tl.float32))
    biases = bias_address.to(tl.pointer_type(tl.float32))
    for begin_output in range(first_output, tl.where(seen, end_output, first_output), ROWS):
        output = begin_output + tl.arange(0, ROWS)
        b = tl.load(biases + output, mask=has_bias & (output < end_output), other=0.0)
        sums = tl.zeros([ROWS], tl.float32)
        for begin in range(0, width, WEIGHTS):
            at = begin + tl.arange(0, WEIGHTS)
            inside = at < width
            column = first_column + tl.where(shared == 0, at, tl.where(shared == 1, at // sites, at % inputs))
            _mean, _variance, m, v = _statistics(
                row, column, inside, columns, single, usable, undo, by, started, step,
                DEBIAS, USE_BATCH, SECOND_MOMENT, FOLD,
            )  # fmt: skip
            m = tl.where(has_bias & inside, m, 0.0)[None, :]
            weight = weights + output.to(tl.int64)[:, None] * width + at[None, :]
            mask = (output < end_output)[:, None] & inside[None, :]
            scale = 1.0 / (q2 * (v + added))
            w = (tl.load(weight, mask=mask, other=0.0) - m * b[:, None]) * scale[None, :]
            tl.store(weight, w, mask=mask)
            sums += tl.sum(tl.where(mask, m * w, 0.0), 1)  # 0 times infinity is NaN, so nothing infinite gets lost
        b = b / q2 - sums
        tl.store(biases + output, b, mask=has_bias & (output < end_output))
        if tl.sum(tl.where(output < end_output, b * 0, 0.0)) != 0:
            tl.store(flags + layer * 2, 1)
    tl.debug_barrier()
    if tl.atomic_add(flags + layer * 2 + 1, 1, sem="acq_rel") == programs - 1:
        good = usable & (tl.atomic_xchg(flags + layer * 2, 0) == 0)
        tl.store(flags + layer * 2 + 1, 0)
        if seen & (good == 0):
            tl.store(flag, 1)
        if FOLD:
            if seen:
                counter = tl.load(row + tl.where(good, STEPS, SKIPPED)).to(tl.pointer_type(tl.int64))
                tl.store(counter, tl.load(counter) + 1)
                if good:
                    variance = tl.load(row + VARIANCE).to(tl.pointer_type(tl.float32))
                    for begin in range(0, columns, SPAN):
                        at = begin + tl.arange(0, SPAN)
                        inside = at < columns
                        m, v, _m, _v = _statistics(
                            row, at, inside, columns, single, usable, undo, by, started, step,
                            DEBIAS, USE_BATCH, SECOND_MOMENT, FOLD,
                        )  # fmt: skip
                        tl.store(mean + at, m, mask=inside)
                        tl.store(variance + at, v, mask=inside)
                    if DEBIAS:
                        tl.store(share, new_share)
