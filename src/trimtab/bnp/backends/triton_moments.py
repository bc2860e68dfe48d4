"""The Triton kernels for moments, each for many inputs in one launch: what differs between them is read from tables."""

import triton
import triton.language as tl

PLANE = tl.constexpr(1024)  # numbers of one channel that are read at once
ROWS = tl.constexpr(32)  # with 64, registers are short and the kernel takes three times as long
COLUMNS = tl.constexpr(64)
SUMS = tl.constexpr(64)  # partial sums that are added at once; of a block of columns fewer
BLOCK_SUMS = tl.constexpr(16)

# Sums and sums of squares are taken about the first row: about zero, 1e4 ± 1e-2 could come out with a variance below 0.
# Each program sums a part of the rows. The last one to arrive at a column adds up the parts, in their order.


@triton.jit
def _finish(shift, sums, squares, rows, mean, variance, mask):
    m = sums / rows
    v = squares / rows - m * m
    tl.store(mean, (shift.to(tl.float64) + m).to(tl.float32), mask=mask)
    tl.store(variance, tl.where(v < 0, 0.0, v).to(tl.float32), mask=mask)


@triton.jit
def moments_of_planes(inputs, out, layers, work, partial, arrived, TYPE: tl.constexpr, ALONE: tl.constexpr):
    """X is (samples, columns, positions). A program is a part of the numbers of one column.

    `inputs` is x, if it is ALONE, or else a table of addresses.
    """
    program = tl.program_id(0)
    layer = tl.load(work + program * 3)
    column = tl.load(work + program * 3 + 1)
    part = tl.load(work + program * 3 + 2)
    samples = tl.load(layers + layer * 7)
    columns = tl.load(layers + layer * 7 + 1)
    positions = tl.load(layers + layer * 7 + 2)
    per_part = tl.load(layers + layer * 7 + 3)
    parts = tl.load(layers + layer * 7 + 4)
    first_column = tl.load(layers + layer * 7 + 5)
    first_part = tl.load(layers + layer * 7 + 6)
    x = inputs if ALONE else tl.load(inputs + layer).to(tl.pointer_type(TYPE))

    shift = tl.load(x + column * positions).to(tl.float32)
    sums = tl.zeros([PLANE], tl.float32)
    squares = tl.zeros([PLANE], tl.float32)
    end = tl.minimum(samples * positions, part * per_part + per_part)
    for begin in range(part * per_part, end, PLANE):
        at = begin + tl.arange(0, PLANE)
        inside = at < end
        sample = at // positions
        at = (sample.to(tl.int64) * columns + column) * positions + (at - sample * positions)
        v = tl.where(inside, tl.load(x + at, mask=inside, other=0.0).to(tl.float32) - shift, 0.0)
        sums += v
        squares += v * v
    mine = partial + (first_part + column * parts).to(tl.int64) * 2
    tl.store(mine + part * 2, tl.sum(sums))
    tl.store(mine + part * 2 + 1, tl.sum(squares))
    tl.debug_barrier()
    if tl.atomic_add(arrived + first_column + column, 1, sem="acq_rel") == parts - 1:
        total = tl.zeros([SUMS], tl.float64)
        total_squares = tl.zeros([SUMS], tl.float64)
        for begin in range(0, parts, SUMS):
            at = begin + tl.arange(0, SUMS)
            total += tl.load(mine + at * 2, mask=at < parts, other=0.0)
            total_squares += tl.load(mine + at * 2 + 1, mask=at < parts, other=0.0)
        rows = samples.to(tl.float64) * positions
        mean = out + first_column * 2 + column
        _finish(shift, tl.sum(total), tl.sum(total_squares), rows, mean, mean + columns, True)
        tl.store(arrived + first_column + column, 0)


@triton.jit
def moments_of_rows(inputs, out, layers, work, partial, arrived, TYPE: tl.constexpr, ALONE: tl.constexpr):
    """X is (rows, columns). A program is a block of columns of some rows. `inputs` as in `moments_of_planes`."""
    program = tl.program_id(0)
    layer = tl.load(work + program * 3)
    block = tl.load(work + program * 3 + 1)
    part = tl.load(work + program * 3 + 2)
    rows = tl.load(layers + layer * 7)
    columns = tl.load(layers + layer * 7 + 1)
    per_part = tl.load(layers + layer * 7 + 3)
    parts = tl.load(layers + layer * 7 + 4)
    first_column = tl.load(layers + layer * 7 + 5)
    first_part = tl.load(layers + layer * 7 + 6)
    x = inputs if ALONE else tl.load(inputs + layer).to(tl.pointer_type(TYPE))

    column = block * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < columns
    shift = tl.load(x + column, mask=inside, other=0.0).to(tl.float32)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    squares = tl.zeros([ROWS, COLUMNS], tl.float32)
    end = tl.minimum(rows, part * per_part + per_part)
    for begin in range(part * per_part, end, ROWS):
        row = begin + tl.arange(0, ROWS)
        mask = (row < end)[:, None] & inside[None, :]
        v = tl.load(x + row[:, None].to(tl.int64) * columns + column[None, :], mask=mask, other=0.0).to(tl.float32)
        v = tl.where(mask, v - shift[None, :], 0.0)
        sums += v
        squares += v * v
    mine = partial + (first_part + block * parts).to(tl.int64) * 2 * COLUMNS + tl.arange(0, COLUMNS)
    tl.store(mine + part * 2 * COLUMNS, tl.sum(sums, 0))
    tl.store(mine + part * 2 * COLUMNS + COLUMNS, tl.sum(squares, 0))
    tl.debug_barrier()
    if tl.atomic_add(arrived + first_column + block, 1, sem="acq_rel") == parts - 1:
        total = tl.zeros([BLOCK_SUMS, COLUMNS], tl.float64)
        total_squares = tl.zeros([BLOCK_SUMS, COLUMNS], tl.float64)
        for begin in range(0, parts, BLOCK_SUMS):
            i = begin + tl.arange(0, BLOCK_SUMS)
            at = mine[None, :] + i[:, None] * 2 * COLUMNS
            mask = (i < parts)[:, None] & inside[None, :]
            total += tl.load(at, mask=mask, other=0.0)
            total_squares += tl.load(at + COLUMNS, mask=mask, other=0.0)
        mean = out + first_column * 2 + column
        _finish(shift, tl.sum(total, 0), tl.sum(total_squares, 0), rows.to(tl.float64), mean, mean + columns, inside)
        tl.store(arrived + first_column + block, 0)
