/* Moments, written once for float and double. REAL and NAME are defined in native.c. */

/* Numbers that are worked on together; a compiler splits them up where the processor has no such registers. */
typedef REAL NAME(vector) __attribute__((vector_size(64), aligned(sizeof(REAL)), may_alias));
#define VECTOR NAME(vector)
#define WIDTH ((int64_t)(sizeof(VECTOR) / sizeof(REAL)))
#define AT(x) (*(VECTOR *)(x))
#define CONST_AT(x) (*(const VECTOR *)(x))

INLINE REAL NAME(total)(VECTOR a, VECTOR b) {
    REAL sum = 0;
    a += b;
    for (int i = 0; i < WIDTH; i++) sum += a[i];
    return sum;
}

/* ---- Moments of rows: x is (rows, columns) ------------------------------------------------------------------- */

typedef struct {
    const REAL *x;
    int64_t rows, columns, rows_per_part, blocks;
    double *sums; /* for each part, BLOCK sums and BLOCK sums of squares, about the first row */
} NAME(RowSums);

FOR_EACH_CPU static void NAME(sum_rows)(void *told, int64_t part) {
    const NAME(RowSums) *job = told;
    int64_t columns = job->columns, first = (part % job->blocks) * BLOCK;
    int64_t width = columns - first < BLOCK ? columns - first : BLOCK;
    int64_t row = (part / job->blocks) * job->rows_per_part, end = row + job->rows_per_part;
    const REAL *restrict shift = job->x + first;
    double *restrict sum = job->sums + part * 2 * BLOCK, *restrict square = sum + BLOCK;
    REAL s[BLOCK], q[BLOCK];

    if (end > job->rows) end = job->rows;
    memset(sum, 0, width * sizeof *sum);
    memset(square, 0, width * sizeof *square);
    while (row < end) {
        int64_t stop = row + RUN < end ? row + RUN : end;
        memset(s, 0, width * sizeof *s);
        memset(q, 0, width * sizeof *q);
        for (; row + 4 <= stop; row += 4) {
            const REAL *restrict a = job->x + row * columns + first, *restrict b = a + columns;
            const REAL *restrict c = b + columns, *restrict d = c + columns;
            for (int64_t j = 0; j < width; j++) {
                REAL p = a[j] - shift[j], r = b[j] - shift[j], t = c[j] - shift[j], u = d[j] - shift[j];
                s[j] += (p + r) + (t + u);
                q[j] += (p * p + r * r) + (t * t + u * u);
            }
        }
        for (; row < stop; row++) {
            const REAL *restrict a = job->x + row * columns + first;
            for (int64_t j = 0; j < width; j++) {
                REAL p = a[j] - shift[j];
                s[j] += p;
                q[j] += p * p;
            }
        }
        for (int64_t j = 0; j < width; j++) {
            sum[j] += s[j];
            square[j] += q[j];
        }
    }
}

/* Mean and variance from sums and sums of squares about `shift`. What is not finite has no variance. */
FOR_EACH_CPU static void NAME(finish)(const REAL *restrict shift, int64_t apart, const double *restrict sum,
                                      const double *restrict square, int64_t columns, double share,
                                      REAL *restrict mean, REAL *restrict variance) {
    for (int64_t j = 0; j < columns; j++) {
        double m = sum[j] * share, v = square[j] * share - m * m;
        mean[j] = (REAL)(shift[j * apart] + m);
        variance[j] = (REAL)(v < 0 ? 0 : v);
    }
}

static int NAME(moments_of_rows)(const REAL *x, REAL *mean, REAL *variance, const Inputs *told) {
    int64_t rows = told->samples, columns = told->columns;
    int64_t blocks = (columns + BLOCK - 1) / BLOCK, narrow = columns < BLOCK ? columns : BLOCK;
    int64_t rows_per_part = 4 * PART / narrow / RUN * RUN;
    if (rows_per_part < RUN) rows_per_part = RUN;
    int64_t stripes = (rows + rows_per_part - 1) / rows_per_part, parts = stripes * blocks;
    double *sums = malloc(parts * 2 * BLOCK * sizeof *sums);
    if (!sums) return 1;
    NAME(RowSums) job = {x, rows, columns, rows_per_part, blocks, sums};
    share(NAME(sum_rows), &job, parts, rows * columns, told->parallel, (unsigned)told->threads);
    for (int64_t block = 0; block < blocks; block++) {
        int64_t first = block * BLOCK, width = columns - first < BLOCK ? columns - first : BLOCK;
        double *total = sums + block * 2 * BLOCK;
        for (int64_t i = 1; i < stripes; i++) {
            const double *part = total + i * blocks * 2 * BLOCK;
            for (int64_t j = 0; j < width; j++) {
                total[j] += part[j];
                total[BLOCK + j] += part[BLOCK + j];
            }
        }
        NAME(finish)(x + first, 1, total, total + BLOCK, width, 1.0 / rows, mean + first, variance + first);
    }
    free(sums);
    return 0;
}

/* ---- Moments of planes: x is (samples, columns, positions) --------------------------------------------------- */

typedef struct {
    const REAL *x;
    int64_t samples, columns, positions, samples_per_part;
    double *sums; /* for each part, the sum and the sum of squares of each column about its first entry */
} NAME(PlaneSums);

FOR_EACH_CPU static void NAME(sum_planes)(void *told, int64_t part) {
    const NAME(PlaneSums) *job = told;
    int64_t n = part * job->samples_per_part, end = n + job->samples_per_part, positions = job->positions;
    double *sum = job->sums + part * 2 * job->columns, *square = sum + job->columns;

    if (end > job->samples) end = job->samples;
    memset(sum, 0, 2 * job->columns * sizeof *sum);
    for (; n < end; n++) {
        for (int64_t c = 0; c < job->columns; c++) {
            const REAL *plane = job->x + (n * job->columns + c) * positions, shift = job->x[c * positions];
            for (int64_t begin = 0; begin < positions; begin += RUN * WIDTH) {
                int64_t stop = begin + RUN * WIDTH < positions ? begin + RUN * WIDTH : positions, p = begin;
                VECTOR s0 = {0}, s1 = {0}, q0 = {0}, q1 = {0};
                REAL s = 0, q = 0;
                for (; p + 2 * WIDTH <= stop; p += 2 * WIDTH) {
                    VECTOR v = CONST_AT(plane + p) - shift, w = CONST_AT(plane + p + WIDTH) - shift;
                    s0 += v;
                    q0 += v * v;
                    s1 += w;
                    q1 += w * w;
                }
                for (; p < stop; p++) {
                    REAL v = plane[p] - shift;
                    s += v;
                    q += v * v;
                }
                sum[c] += NAME(total)(s0, s1) + s;
                square[c] += NAME(total)(q0, q1) + q;
            }
        }
    }
}

static int NAME(moments_of_planes)(const REAL *x, REAL *mean, REAL *variance, const Inputs *told) {
    int64_t samples = told->samples, columns = told->columns, positions = told->positions;
    int64_t samples_per_part = 4 * PART / (columns * positions) + 1;
    int64_t parts = (samples + samples_per_part - 1) / samples_per_part;
    double *sums = malloc(parts * 2 * columns * sizeof *sums);
    if (!sums) return 1;
    NAME(PlaneSums) job = {x, samples, columns, positions, samples_per_part, sums};
    share(NAME(sum_planes), &job, parts, samples * columns * positions, told->parallel, (unsigned)told->threads);
    for (int64_t i = 1; i < parts; i++)
        for (int64_t j = 0; j < 2 * columns; j++) sums[j] += sums[i * 2 * columns + j];
    NAME(finish)(x, positions, sums, sums + columns, columns, 1.0 / ((double)samples * positions), mean, variance);
    free(sums);
    return 0;
}

/* The means of all columns and, after them, their variances; 1 if there is no memory for the sums, else 0. */
int NAME(moments)(const REAL *x, REAL *found, const Inputs *told) {
    int (*moments)(const REAL *, REAL *, REAL *, const Inputs *) =
        told->positions > 1 ? NAME(moments_of_planes) : NAME(moments_of_rows);
    return moments(x, found, found + told->columns, told);
}
