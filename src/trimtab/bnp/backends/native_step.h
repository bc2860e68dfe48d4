/* The step, written once for float and double, after native_moments.h. */

/* 0 if all numbers are finite, else NaN. */
INLINE REAL NAME(zero_if_finite)(const REAL *x, int64_t count) {
    VECTOR zeros = {0};
    REAL zero = 0;
    int64_t j = 0;
    for (; j + WIDTH <= count; j += WIDTH) zeros += CONST_AT(x + j) * 0;
    for (; j < count; j++) zero += x[j] * 0;
    return NAME(total)(zeros, zeros) + zero;
}

INLINE REAL NAME(largest)(const REAL *x, int64_t count) {
    REAL most[WIDTH], largest = x[0];
    int64_t j = 0;
    for (int i = 0; i < WIDTH; i++) most[i] = x[0];
    for (; j + WIDTH <= count; j += WIDTH)
        for (int i = 0; i < WIDTH; i++) most[i] = x[j + i] > most[i] ? x[j + i] : most[i];
    for (; j < count; j++) largest = x[j] > largest ? x[j] : largest;
    for (int i = 0; i < WIDTH; i++) largest = most[i] > largest ? most[i] : largest;
    return largest;
}

typedef struct {
    const Layer *layer;
    int64_t columns;              /* statistics: groups · inputs, times the sites unless they share */
    int64_t per_row, rows;        /* weights of one output; outputs of all groups */
    int64_t rows_per_part, parts;
    REAL *new_mean, *new_variance; /* of each column */
    REAL *mean, *scale;           /* of each weight of one output, group by group: μ and 1/(q²σ̃²) */
    REAL *batch_mean, *batch_variance; /* of each column, if they have to be computed from sums; else NULL */
    REAL q2;
    double new_share;
    int seen;                     /* whether there are rows */
    int usable;                   /* whether the batch is finite */
    atomic_int spoilt;            /* whether something that was written is not */
} NAME(Work);

typedef struct {
    NAME(Work) *works;
    const int64_t *ends; /* for each layer, the number of parts up to it and with it */
} NAME(Step);

/* The way from a to b, from the nearer end, so that b is reached exactly; as torch.lerp does it. */
INLINE REAL NAME(between)(REAL a, REAL b, REAL step) {
    return step < (REAL)0.5 ? a + step * (b - a) : b - (1 - step) * (b - a);
}

INLINE void NAME(from_sums)(const double *sums, int64_t columns, double rows, REAL *mean, REAL *variance) {
    for (int64_t j = 0; j < columns; j++) {
        double m = sums[j] / rows, v = sums[columns + j] / rows - m * m;
        mean[j] = (REAL)m;
        variance[j] = (REAL)(v < 0 ? 0 : v);
    }
}

/* The averages after this batch, and from them what the gradient is transformed with. */
FOR_EACH_CPU static void NAME(prepare)(NAME(Work) *work, const Options *options) {
    const Layer *layer = work->layer;
    const REAL *old_mean = layer->mean, *old_variance = layer->variance;
    const REAL *batch_mean = layer->batch_mean, *batch_variance = layer->batch_variance;
    int single = layer->batch == SINGLE_ROW;
    work->seen = 1;
    work->q2 = (REAL)layer->q2;
    if (layer->batch == SUMS) {
        const double *sums = layer->batch_mean;
        double rows = sums[0] + sums[1], samples = sums[2], outputs = sums[3];
        work->seen = rows > 0;
        if (!work->seen) return;
        single = rows == 1;
        work->q2 = (REAL)fmax((double)(layer->inputs * layer->sites) / samples, sqrt(outputs / samples));
        NAME(from_sums)(sums + COUNTS, work->columns, rows, work->batch_mean, work->batch_variance);
        batch_mean = work->batch_mean;
        batch_variance = work->batch_variance;
    }
    REAL *restrict new_mean = work->new_mean, *restrict new_variance = work->new_variance;
    int64_t columns = work->columns;
    double old_share = *(REAL *)layer->share;
    REAL undo = options->debias && old_share > 0 ? (REAL)old_share : 1;

    /* The batch's variance; of a single row its squared distance to the mean so far. */
    if (single)
        for (int64_t j = 0; j < columns; j++) {
            REAL distance = batch_mean[j] - old_mean[j] / undo;
            new_variance[j] = distance * distance;
        }
    else
        memcpy(new_variance, batch_variance, columns * sizeof(REAL));
    work->usable = NAME(zero_if_finite)(new_variance, columns) == 0;
    work->new_share = old_share;

    int batch_is_used = options->use_batch && work->usable && !single;
    REAL *restrict use_mean = work->mean, *restrict use_variance = work->scale; /* for now, in the first `columns` */
    if (batch_is_used) {
        memcpy(use_mean, batch_mean, columns * sizeof(REAL));
        memcpy(use_variance, new_variance, columns * sizeof(REAL));
    }
    if (options->fold && work->usable) {
        REAL step = (REAL)(1 - options->rho);
        for (int64_t j = 0; j < columns; j++) {
            new_mean[j] = NAME(between)(old_mean[j], batch_mean[j], step);
            new_variance[j] = NAME(between)(old_variance[j], new_variance[j], step);
        }
        work->new_share = NAME(between)((REAL)old_share, 1, step);
    } else {
        memcpy(new_mean, old_mean, columns * sizeof(REAL));
        memcpy(new_variance, old_variance, columns * sizeof(REAL));
    }
    if (!batch_is_used) {
        int started = !options->debias || work->new_share > 0;
        REAL by = options->debias && started ? (REAL)work->new_share : 1;
        for (int64_t j = 0; j < columns; j++) {
            use_mean[j] = new_mean[j] / by;
            use_variance[j] = started ? new_variance[j] / by : 1;
        }
    }
    if (!layer->bias && options->second_moment)
        for (int64_t j = 0; j < columns; j++) use_variance[j] += use_mean[j] * use_mean[j];

    int64_t of_group = columns / layer->groups;
    for (int64_t g = 0; g < layer->groups; g++) {
        REAL *variance = use_variance + g * of_group, q2 = work->q2;
        REAL added = (REAL)options->eps1 * NAME(largest)(variance, of_group) + (REAL)options->eps2;
        for (int64_t j = 0; j < of_group; j++) variance[j] = 1 / (q2 * (variance[j] + added));
    }
    /* One statistic for all sites of an input is written out for each of them, from behind. */
    int64_t sites = layer->sites, inputs = layer->inputs;
    if (layer->shared && sites > 1)
        for (int64_t g = layer->groups - 1; g >= 0; g--)
            for (int64_t j = inputs * sites - 1; j >= 0; j--) {
                int64_t to = g * inputs * sites + j, from = g * inputs + (layer->shared == 2 ? j % inputs : j / sites);
                use_mean[to] = use_mean[from];
                use_variance[to] = use_variance[from];
            }
}

/* The gradients of some outputs of one layer. */
FOR_EACH_CPU static void NAME(transform)(void *told, int64_t part) {
    const NAME(Step) *step = told;
    int64_t at = 0;
    while (part >= step->ends[at]) at++;
    NAME(Work) *work = step->works + at;
    if (!work->seen) return;
    part -= step->ends[at] - work->parts;
    const Layer *layer = work->layer;
    int64_t row = part * work->rows_per_part, end = row + work->rows_per_part, width = work->per_row;
    if (end > work->rows) end = work->rows;
    REAL zero = 0, q2 = work->q2;

    for (; row < end; row++) {
        REAL *restrict weight = (REAL *)layer->weight + row * width;
        const REAL *restrict mean = work->mean + row / layer->outputs * width;
        const REAL *restrict scale = work->scale + row / layer->outputs * width;
        VECTOR s0 = {0}, s1 = {0};
        REAL sum = 0;
        int64_t j = 0;
        if (layer->bias) {
            REAL *bias = (REAL *)layer->bias + row, b = *bias;
            for (; j + 2 * WIDTH <= width; j += 2 * WIDTH) {
                VECTOR m = CONST_AT(mean + j), n = CONST_AT(mean + j + WIDTH);
                VECTOR v = (AT(weight + j) - m * b) * CONST_AT(scale + j);
                VECTOR w = (AT(weight + j + WIDTH) - n * b) * CONST_AT(scale + j + WIDTH);
                AT(weight + j) = v;
                AT(weight + j + WIDTH) = w;
                s0 += m * v;
                s1 += n * w;
            }
            for (; j + WIDTH <= width; j += WIDTH) {
                VECTOR m = CONST_AT(mean + j), v = (AT(weight + j) - m * b) * CONST_AT(scale + j);
                AT(weight + j) = v;
                s0 += m * v;
            }
            for (; j < width; j++) {
                weight[j] = (weight[j] - mean[j] * b) * scale[j];
                sum += mean[j] * weight[j];
            }
            *bias = b / q2 - (sum + NAME(total)(s0, s1));
            zero += *bias * 0;
        } else {
            for (; j + WIDTH <= width; j += WIDTH) {
                VECTOR v = AT(weight + j) * CONST_AT(scale + j);
                AT(weight + j) = v;
                s0 += v * 0;
            }
            for (; j < width; j++) {
                weight[j] *= scale[j];
                sum += weight[j] * 0;
            }
            zero += sum + NAME(total)(s0, s1);
        }
    }
    if (zero != 0) atomic_store(&work->spoilt, 1); /* a number times 0 is 0; infinity and NaN give NaN */
}

/* The step of all layers. Returns −1 if memory is short, else how many layers had something that is not finite. */
int64_t NAME(precondition)(const Layer *layers, int64_t count, const Options *options, parallel_fn parallel,
                           unsigned threads) {
    NAME(Work) *works = calloc(count, sizeof *works);
    int64_t *ends = malloc(count * sizeof *ends), parts = 0, numbers = 0, weights = 0, not_finite = 0;
    if (works && ends)
        for (int64_t i = 0; i < count; i++) {
            const Layer *layer = layers + i;
            NAME(Work) *work = works + i;
            work->layer = layer;
            work->columns = layer->groups * layer->inputs * (layer->shared ? 1 : layer->sites);
            work->per_row = layer->inputs * layer->sites;
            work->rows = layer->groups * layer->outputs;
            work->rows_per_part = PART / work->per_row + 1;
            work->parts = (work->rows + work->rows_per_part - 1) / work->rows_per_part;
            ends[i] = parts += work->parts;
            weights += work->rows * work->per_row;
            numbers += (layer->batch == SUMS ? 4 : 2) * work->columns + 2 * layer->groups * work->per_row;
        }
    REAL *memory = works && ends ? malloc(numbers * sizeof *memory) : NULL;
    if (!memory) {
        free(works);
        free(ends);
        return -1;
    }
    REAL *next = memory;
    for (int64_t i = 0; i < count; i++) {
        NAME(Work) *work = works + i;
        work->new_mean = next;
        work->new_variance = work->new_mean + work->columns;
        work->mean = work->new_variance + work->columns;
        work->scale = work->mean + work->layer->groups * work->per_row;
        next = work->scale + work->layer->groups * work->per_row;
        if (work->layer->batch == SUMS) {
            work->batch_mean = next;
            work->batch_variance = work->batch_mean + work->columns;
            next = work->batch_variance + work->columns;
        }
        NAME(prepare)(work, options);
    }
    NAME(Step) step = {works, ends};
    share(NAME(transform), &step, parts, weights, parallel, threads);
    for (int64_t i = 0; i < count; i++) {
        NAME(Work) *work = works + i;
        if (!work->seen) continue;
        int good = work->usable && !atomic_load(&work->spoilt);
        not_finite += !good;
        if (!options->fold) continue;
        if (good) {
            memcpy(work->layer->mean, work->new_mean, work->columns * sizeof(REAL));
            memcpy(work->layer->variance, work->new_variance, work->columns * sizeof(REAL));
            if (options->debias) *(REAL *)work->layer->share = (REAL)work->new_share;
            *work->layer->steps += 1;
        } else {
            *work->layer->skipped += 1;
        }
    }
    free(memory);
    free(works);
    free(ends);
    return not_finite;
}

#undef VECTOR
#undef WIDTH
#undef AT
#undef CONST_AT
