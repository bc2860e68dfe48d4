/* Statistics and preconditioning of dense and convolutional layers on the CPU: cpu.py calls this, and
 * bnp/algorithm/step.py is the same in plain PyTorch, to read and to test against.
 *
 * It links nothing but the C library. Threads are those of the OpenMP runtime that PyTorch has loaded: its
 * GOMP_parallel is handed in as a pointer, and without it one thread does the work. How the work is cut does not
 * depend on the number of threads, so neither do the results.
 */

#include <math.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_EACH_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EACH_CPU
#endif
#define INLINE static inline __attribute__((always_inline))

/* To be changed with the functions below, so that cpu.py does not call a library that was built from another source. */
int64_t trimtab_version(void) { return 4; }

typedef void (*parallel_fn)(void (*)(void *), void *, unsigned, unsigned);

/* Run `work(data, part)` for each part below `parts`, by as many threads as there are to help; by one if there are so
 * few numbers to work on that calling the others takes longer. Each thread begins with a stretch of its own, the same one
 * as PyTorch's loops give it, so that it finds the numbers in its own cache and leaves them there; then it helps. */
#define MANY 131072
#define MOST_THREADS 64
typedef struct {
    void (*work)(void *, int64_t);
    void *data;
    int64_t parts;
    unsigned stretches;
    atomic_uint arrived;
    atomic_llong done[MOST_THREADS]; /* of each stretch */
} Team;

static int64_t stretch_begin(const Team *team, unsigned stretch) { return team->parts * stretch / team->stretches; }

static void team_member(void *told) {
    Team *team = told;
    unsigned me = atomic_fetch_add(&team->arrived, 1);
    for (unsigned i = 0; i < team->stretches; i++) {
        unsigned stretch = (me + i) % team->stretches;
        int64_t begin = stretch_begin(team, stretch), count = stretch_begin(team, stretch + 1) - begin;
        for (int64_t part; (part = atomic_fetch_add(&team->done[stretch], 1)) < count;) team->work(team->data, begin + part);
    }
}

static void share(void (*work)(void *, int64_t), void *data, int64_t parts, int64_t numbers, parallel_fn parallel,
                  unsigned threads) {
    int many = parallel && threads > 1 && parts > 1 && numbers >= MANY;
    if (threads > MOST_THREADS) threads = MOST_THREADS;
    Team team = {work, data, parts, !many ? 1 : threads < parts ? threads : (unsigned)parts, 0, {0}};
    if (many)
        parallel(team_member, &team, team.stretches, 0);
    else
        team_member(&team);
}

/* What a step does to one layer. The gradient of the weight is laid out as (groups, outputs, inputs, sites), without
 * gaps; statistics are (groups, inputs, sites). If `shared` is not 0 they are (groups, inputs), and if it is 2 the
 * gradient is (groups, outputs, sites, inputs). */
typedef struct {
    void *weight, *bias; /* gradients; the bias may be NULL */
    const void *batch_mean, *batch_variance;
    void *mean, *variance, *share; /* running averages, and the sum of their weights */
    int64_t *steps, *skipped;
    int64_t groups, outputs, inputs, sites, shared;
    int64_t batch; /* 1: there is one row, which has no variance of its own; 2: batch_mean is of sums, see below */
    double q2;     /* unless there are sums, from which it is computed */
} Layer;

/* Sums are doubles: the numbers of rows, rows of zeros, samples and outputs, then Σx and Σx² of each column. */
#define SINGLE_ROW 1
#define SUMS 2
#define COUNTS 4

/* The size of Layer and the offsets of its fields, to be compared with those that record.py has. */
#define AT_OFFSET(field) (int64_t)offsetof(Layer, field)
static const int64_t LAYOUT[] = {
    sizeof(Layer),       AT_OFFSET(weight), AT_OFFSET(bias),  AT_OFFSET(batch_mean), AT_OFFSET(batch_variance),
    AT_OFFSET(mean),     AT_OFFSET(variance), AT_OFFSET(share), AT_OFFSET(steps),    AT_OFFSET(skipped),
    AT_OFFSET(groups),   AT_OFFSET(outputs), AT_OFFSET(inputs), AT_OFFSET(sites),    AT_OFFSET(shared),
    AT_OFFSET(batch),    AT_OFFSET(q2),
};
int64_t trimtab_layout(int64_t i) { return i < 0 || i >= (int64_t)(sizeof LAYOUT / sizeof *LAYOUT) ? -1 : LAYOUT[i]; }

typedef struct {
    double rho, eps1, eps2;
    int64_t debias, use_batch, second_moment, fold;
} Options;

/* Inputs whose moments are wanted: (samples, columns, positions), or rows of columns if there is one position. */
typedef struct {
    int64_t samples, columns, positions;
    parallel_fn parallel;
    int64_t threads;
} Inputs;

#define PART 16384    /* numbers that one part of the work is about */
#define BLOCK 512     /* columns whose sums are kept in the nearest cache */
#define RUN 64        /* numbers that are summed in single precision before their sum is added to a double */

#define REAL float
#define NAME(x) x##_f32
#include "native_moments.h"
#include "native_step.h"
#undef REAL
#undef NAME
#define REAL double
#define NAME(x) x##_f64
#include "native_moments.h"
#include "native_step.h"
