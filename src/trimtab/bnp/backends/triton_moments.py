"""The Triton kernels for moments, each for many inputs in one launch: what differs between them is read from tables."""

import triton
import triton.language as tl

NUMBERS = tl.constexpr(1024)  # of one channel that are read at once
ROWS = tl.constexpr(32)
COLUMNS = tl.constexpr(32)
TILES = tl.constexpr(4)  # of so many rows and columns, whose reading is begun before the first one is added
SUMS = tl.constexpr(64)  # partial sums that are added at once; of a block of columns fewer
BLOCK_SUMS = tl.constexpr(32)
LAYER = tl.constexpr(10)  # numbers in the table for each input

# Sums and sums of squares are taken about the first rows: about 0, those of 1e4 ± 1e-2 could give a variance below 0.
# Each program sums a part of the rows. The last one to arrive at a column adds up the parts, in their order.
#
# Inputs begin at a multiple of 16 bytes. Where each row, or each plane, does so too, a thread reads 16 bytes at once,
# which are WIDE numbers; the compiler is told by `// WIDE * WIDE`.


@triton.jit
def _finish(shift, sums, squares, rows, mean, variance, mask):
    m = sums / rows
    v = squares / rows - m * m
    tl.store(mean, (shift.to(tl.float64) + m).to(tl.float32), mask=mask)
    tl.store(variance, tl.where(v < 0, 0.0, v).to(tl.float32), mask=mask)


@triton.jit
def _plane_sums(x, column, columns, positions, magic, bits, begin, end, WIDE: tl.constexpr):
    """The sums of some numbers of one column about its first one; `begin` and `end` count groups of WIDE.

    A number divided by that of groups in a plane is (umulhi(number, magic) + number) >> bits.
    """
    positions = positions // WIDE * WIDE
    plane = x + column * positions
    first = tl.load(plane)
    shift = first.to(tl.float32)
    others = (columns - 1) * positions  # between two planes of the column
    groups: tl.constexpr = NUMBERS // WIDE
    sums = tl.zeros([groups], tl.float32)
    squares = tl.zeros([groups], tl.float32)
    for at in range(begin, end, groups):
        group = at + tl.arange(0, groups)
        unsigned = group.to(tl.uint32)
        sample = ((tl.umulhi(unsigned, magic) + unsigned) >> bits).to(tl.int32)
        place = (group * WIDE + sample * others)[:, None] + tl.arange(0, WIDE)[None, :]
        v = tl.load(plane + place, mask=(group < end)[:, None], other=first).to(tl.float32) - shift
        sums += tl.sum(v, 1)
        squares += tl.sum(v * v, 1)
    return shift, tl.sum(sums), tl.sum(squares)


@triton.jit
def moments_of_planes(
    inputs, out, layers, work, partial, arrived, TYPE: tl.constexpr, ALONE: tl.constexpr, WIDE: tl.constexpr
):
    """X is (samples, columns, positions). A program is a part of the numbers of one column.

    `inputs` is x, if it is ALONE, or else a table of addresses.
    """
    program = tl.program_id(0)
    layer = tl.load(work + program * 3)
    column = tl.load(work + program * 3 + 1)
    part = tl.load(work + program * 3 + 2)
    layers += layer * LAYER
    samples = tl.load(layers)
    columns = tl.load(layers + 1)
    positions = tl.load(layers + 2)
    per_part = tl.load(layers + 3)
    parts = tl.load(layers + 4)
    first_column = tl.load(layers + 5)
    first_part = tl.load(layers + 6)
    wide = tl.load(layers + 7)
    magic = tl.load(layers + 8).to(tl.uint32, bitcast=True)
    bits = tl.load(layers + 9).to(tl.uint32, bitcast=True)
    x = inputs if ALONE else tl.load(inputs + layer).to(tl.pointer_type(TYPE))

    begin = part * per_part
    if wide == 1:
        end = tl.minimum(samples * positions, begin + per_part)
        shift, sums, squares = _plane_sums(x, column, columns, positions, magic, bits, begin, end, 1)
    else:
        end = tl.minimum(samples * (positions // WIDE), begin + per_part)
        aligned = tl.multiple_of(x, 16)
        shift, sums, squares = _plane_sums(aligned, column, columns, positions, magic, bits, begin, end, WIDE)
    mine = partial + (first_part + column * parts).to(tl.int64) * 2
    tl.store(mine + part * 2, sums)
    tl.store(mine + part * 2 + 1, squares)
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
def _row_sums(x, block, rows, columns, begin, end, WIDE: tl.constexpr):
    """The sums of some rows of a block of columns about the mean of the first rows, or about the first of a few.

    A single row can be far from all others, and then digits are lost in the difference that the variance is.
    """
    columns = columns // WIDE * WIDE
    column = block * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < columns
    first = tl.where(rows < ROWS, 1, ROWS)
    mask = (tl.arange(0, ROWS) < first)[:, None] & inside[None, :]
    place = tl.arange(0, ROWS)[:, None] * columns + column[None, :]
    shift = tl.sum(tl.load(x + place, mask=mask, other=0.0).to(tl.float32) * (1.0 / first), 0)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    squares = tl.zeros([ROWS, COLUMNS], tl.float32)
    for at in range(begin, end, TILES * ROWS):
        for tile in tl.static_range(TILES):
            row = at + tile * ROWS + tl.arange(0, ROWS)
            mask = (row < end)[:, None] & inside[None, :]
            v = tl.load(x + (row * columns)[:, None] + column[None, :], mask=mask, other=0.0).to(tl.float32)
            v = tl.where(mask, v - shift[None, :], 0.0)
            sums += v
            squares += v * v
    return shift, tl.sum(sums, 0), tl.sum(squares, 0)


@triton.jit
def moments_of_rows(
    inputs, out, layers, work, partial, arrived, TYPE: tl.constexpr, ALONE: tl.constexpr, WIDE: tl.constexpr
):
    """X is (rows, columns). A program is a block of columns of some rows. `inputs` as in `moments_of_planes`."""
    program = tl.program_id(0)
    layer = tl.load(work + program * 3)
    block = tl.load(work + program * 3 + 1)
    part = tl.load(work + program * 3 + 2)
    layers += layer * LAYER
    rows = tl.load(layers)
    columns = tl.load(layers + 1)
    per_part = tl.load(layers + 3)
    parts = tl.load(layers + 4)
    first_column = tl.load(layers + 5)
    first_part = tl.load(layers + 6)
    wide = tl.load(layers + 7)
    x = inputs if ALONE else tl.load(inputs + layer).to(tl.pointer_type(TYPE))

    begin = part * per_part
    end = tl.minimum(rows, begin + per_part)
    if wide == 1:
        shift, sums, squares = _row_sums(x, block, rows, columns, begin, end, 1)
    else:
        shift, sums, squares = _row_sums(tl.multiple_of(x, 16), block, rows, columns, begin, end, WIDE)
    column = block * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < columns
    mine = partial + (first_part + block * parts).to(tl.int64) * 2 * COLUMNS + tl.arange(0, COLUMNS)
    tl.store(mine + part * 2 * COLUMNS, sums)
    tl.store(mine + part * 2 * COLUMNS + COLUMNS, squares)
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
