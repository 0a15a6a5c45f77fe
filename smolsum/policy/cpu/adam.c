/* A step of Adam over all tensors of a model, in one pass that reads weights, gradients and moments once.

   All cores take blocks of the tensors in turn. The sums of a block are made in a fixed order, and no product is fused
   with a sum: neither the number of threads nor the width of the processor's vectors makes a difference, to the bit. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif

#if defined(__AVX512F__)
enum { WIDE = 16 };
#define LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23 /* two vectors' lanes in turn: the first half */
#define HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif defined(__AVX__)
enum { WIDE = 8 };
#define LOW 0, 8, 1, 9, 2, 10, 3, 11
#define HIGH 4, 12, 5, 13, 6, 14, 7, 15
#else
enum { WIDE = 4 };
#define LOW 0, 4, 1, 5
#define HIGH 2, 6, 3, 7
#endif
#if defined(__clang__)
#define MIXED(a, b, lanes) __builtin_shufflevector(a, b, lanes)
#else
#define MIXED(a, b, lanes) __builtin_shuffle(a, b, (wide_int){lanes})
#endif

enum { LANES = 16, VECTORS = LANES / WIDE }; /* of a sum; how many vectors they are */
enum { BLOCK = 4096, ROWS = 16, COLUMNS = 1024 }; /* values of a block; of one with turned columns, rows and columns */
enum { STRIDE = COLUMNS + LANES };                /* of turned rows: a power of two would put all into the same lines */
enum { TAKEN = 8, SUMS = 3 };                     /* blocks that a thread takes at a time; sums of a block */

typedef float wide __attribute__((vector_size(4 * WIDE), aligned(4), may_alias));
typedef int32_t wide_int __attribute__((vector_size(4 * WIDE), aligned(4), may_alias));
typedef uint32_t wide_bits __attribute__((vector_size(4 * WIDE), aligned(4), may_alias));
typedef uint16_t wide_half __attribute__((vector_size(2 * WIDE), aligned(2), may_alias));

typedef struct {
  int64_t size, first_block;  /* values; blocks of the tensors before it */
  int64_t rows;               /* of a matrix whose gradient is stored column by column; 0: all in the same order */
  int64_t half;               /* 1: old, gradient and new are bfloat16; 0: float32 */
  const void *old, *gradient; /* the model's weights; their gradient, or NULL where it is zero */
  void *new;                  /* the model's new weights */
  float *masters, *m, *v;     /* the masters of float32 weights are only read */
} tensor;

typedef struct {
  float clip, decay, kept;               /* of the gradient; rate times weight decay, and 1 minus that */
  float first, second;                   /* step size, and factor of the second moment's root, both corrected */
  float beta1, rest1, beta2, rest2, eps; /* rest: 1 minus beta */
} scalars;

typedef struct {
  wide shown[VECTORS], intended[VECTORS];
  wide_int changed[VECTORS];
} sums;

#define INLINE static inline __attribute__((always_inline))

/* ---- vectors of float32, in memory perhaps as bfloat16, the upper half ---- */

INLINE wide load(const void *from, int64_t i, int half) {
  if (!half) return *(const wide *)((const float *)from + i);
  return (wide)(__builtin_convertvector(*(const wide_half *)((const uint16_t *)from + i), wide_bits) << 16);
}

INLINE float one(const void *from, int64_t i, int half) {
  if (!half) return ((const float *)from)[i];
  uint32_t bits = (uint32_t)((const uint16_t *)from)[i] << 16;
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

INLINE void store(void *to, int64_t i, int half, wide x) {
  if (half)
    *(wide_half *)((uint16_t *)to + i) = __builtin_convertvector((wide_bits)x >> 16, wide_half);
  else
    *(wide *)((float *)to + i) = x;
}

/* to the nearest bfloat16, between two to the even one */
INLINE wide rounded(wide x) {
  wide_bits bits = (wide_bits)x, number = (wide_bits)(x == x), nan = (wide_bits){0} + 0x7fc00000;
  bits += 0x7fff + ((bits >> 16) & 1);
  return (wide)(((bits & number) | (nan & ~number)) & 0xffff0000);
}

INLINE wide root(wide x) {
#if defined(__clang__) && defined(__has_builtin)
#if __has_builtin(__builtin_elementwise_sqrt)
  return __builtin_elementwise_sqrt(x);
#endif
#endif
  wide r = x;
  for (int i = 0; i < WIDE; i++) r[i] = sqrtf(x[i]);
  return r;
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static double added(const wide *vectors) {
  double sum = 0;
  for (int n = 0; n < VECTORS; n++)
    for (int i = 0; i < WIDE; i++) sum += vectors[n][i];
  return sum;
}

/* ---- a block ---- */

/* Adam (arXiv:1412.6980, algorithm 1) or AdamW (arXiv:1711.05101, algorithm 2): _step in smolsum/grpo/optimizer.py */
INLINE void step_vector(const tensor *t, const scalars *s, int64_t i, int half, int half_gradient, int n, sums *to) {
  wide old = load(t->old, i, half), own = load(t->masters, i, 0), g = {0};
  if (t->gradient) g = load(t->gradient, i, half_gradient) * s->clip;
  wide m = s->beta1 * load(t->m, i, 0) + s->rest1 * g;
  wide v = s->beta2 * load(t->v, i, 0) + s->rest2 * (g * g);
  wide move = s->first * m / (root(v) * s->second + s->eps);
  wide meant = -(move + s->decay * own);
  own = own * s->kept - move;
  wide new = half ? rounded(own) : own, seen = new - old;
  store(t->m, i, 0, m);
  store(t->v, i, 0, v);
  store(t->new, i, half, new);
  if (half) store(t->masters, i, 0, own);
  to->changed[n] -= (wide_int)(new != old);
  to->shown[n] += meant * seen;
  to->intended[n] += meant * meant;
}

INLINE void step_values(const tensor *t, const scalars *s, int64_t i, int64_t end, int half, int half_gradient,
                        sums *to) {
  for (; i + LANES <= end; i += LANES)
    for (int n = 0; n < VECTORS; n++) step_vector(t, s, i + n * WIDE, half, half_gradient, n, to);
  int64_t count = end - i, item = half ? 2 : 4, of_gradient = half_gradient ? 2 : 4;
  if (count == 0) return;
  float old[LANES] = {0}, gradient[LANES] = {0}, new[LANES], masters[LANES] = {0}, m[LANES] = {0}, v[LANES] = {0};
  tensor few = {count, 0, 0, half, old, t->gradient ? gradient : NULL, new, masters, m, v};
  memcpy(old, (const char *)t->old + i * item, count * item);
  if (t->gradient) memcpy(gradient, (const char *)t->gradient + i * of_gradient, count * of_gradient);
  memcpy(masters, t->masters + i, count * 4);
  memcpy(m, t->m + i, count * 4);
  memcpy(v, t->v + i, count * 4);
  for (int n = 0; n < VECTORS; n++) step_vector(&few, s, n * WIDE, half, half_gradient, n, to);
  memcpy(t->m + i, m, count * 4);
  memcpy(t->v + i, v, count * 4);
  memcpy((char *)t->new + i * item, new, count * item);
  if (half) memcpy(t->masters + i, masters, count * 4);
}

INLINE void square_values(const void *gradient, int64_t i, int64_t end, int half, wide *sum) {
  for (; i + LANES <= end; i += LANES)
    for (int n = 0; n < VECTORS; n++) {
      wide g = load(gradient, i + n * WIDE, half);
      sum[n] += g * g;
    }
  float rest[LANES] = {0};
  memcpy(rest, (const char *)gradient + i * (half ? 2 : 4), (end - i) * (half ? 2 : 4));
  for (int n = 0; n < VECTORS; n++) {
    wide g = load(rest, n * WIDE, half);
    sum[n] += g * g;
  }
}

/* to[row][column] = a matrix whose columns are stored `stride` values apart */
INLINE void turn(const void *from, int64_t stride, int64_t rows, int64_t columns, int half, float *to) {
  int64_t row = 0, column = 0;
  for (column = 0; column + WIDE <= columns; column += WIDE)
    for (row = 0; row + WIDE <= rows; row += WIDE) {
      wide a[WIDE], b[WIDE];
      for (int i = 0; i < WIDE; i++) a[i] = load(from, (column + i) * stride + row, half);
#pragma GCC unroll 4
      for (int size = 1; size < WIDE; size *= 2) {
        for (int i = 0; i < WIDE / 2; i++) {
          b[2 * i] = MIXED(a[i], a[i + WIDE / 2], LOW);
          b[2 * i + 1] = MIXED(a[i], a[i + WIDE / 2], HIGH);
        }
        memcpy(a, b, sizeof a);
      }
      for (int i = 0; i < WIDE; i++) store(to, (row + i) * STRIDE + column, 0, a[i]);
    }
  for (int64_t c = 0; c < columns; c++)
    for (int64_t r = c < column ? row : 0; r < rows; r++) to[r * STRIDE + c] = one(from, c * stride + r, half);
}

INLINE void step_turned(const tensor *t, const scalars *s, int64_t block, int half, sums *to) {
  int64_t width = t->size / t->rows, across = (width + COLUMNS - 1) / COLUMNS, item = half ? 2 : 4;
  int64_t row = block / across * ROWS, column = block % across * COLUMNS;
  int64_t rows = least(ROWS, t->rows - row), columns = least(COLUMNS, width - column);
  float gradient[ROWS * STRIDE];
  turn((const char *)t->gradient + (column * t->rows + row) * item, t->rows, rows, columns, half, gradient);
  for (int64_t r = 0; r < rows; r++) {
    int64_t at = (row + r) * width + column;
    tensor part = {columns, 0, 0, half, (const char *)t->old + at * item, gradient + r * STRIDE,
                   (char *)t->new + at * item, t->masters + at, t->m + at, t->v + at};
    step_values(&part, s, 0, columns, half, 0, to);
  }
}

INLINE void step_in(const tensor *t, const scalars *s, int64_t block, int half, sums *to) {
  if (t->rows)
    step_turned(t, s, block, half, to);
  else
    step_values(t, s, block * BLOCK, least(block * BLOCK + BLOCK, t->size), half, half, to);
}

/* Not inlined, as GCC makes functions of the parallel loops that do not have the options of this file. */
#define APART static __attribute__((noinline)) void

APART square_block(const tensor *t, int64_t block, double *sum) {
  int64_t start = block * BLOCK, end = least(start + BLOCK, t->size);
  wide all[VECTORS] = {{0}};
  if (t->half)
    square_values(t->gradient, start, end, 1, all);
  else
    square_values(t->gradient, start, end, 0, all);
  *sum = added(all);
}

APART step_block(const tensor *t, const scalars *s, int64_t block, double *sum) {
  sums all = {{{0}}, {{0}}, {{0}}};
  if (t->half)
    step_in(t, s, block, 1, &all);
  else
    step_in(t, s, block, 0, &all);
  sum[0] = 0;
  for (int n = 0; n < VECTORS; n++)
    for (int i = 0; i < WIDE; i++) sum[0] += all.changed[n][i];
  sum[1] = added(all.shown);
  sum[2] = added(all.intended);
}

/* ---- all blocks ---- */

static const tensor *of_block(const tensor *tensors, int64_t count, int64_t block) {
  int64_t low = 0, high = count;
  while (high - low > 1) {
    int64_t middle = (low + high) / 2;
    if (tensors[middle].first_block <= block)
      low = middle;
    else
      high = middle;
  }
  return tensors + low;
}

/* sum[block]: the squares of the gradient. Returns the sum of all. */
double adam_squares(const tensor *tensors, int64_t count, int64_t blocks, double *sum, int threads) {
#pragma omp parallel for num_threads(threads) schedule(dynamic, TAKEN) if (threads > 1)
  for (int64_t block = 0; block < blocks; block++) {
    const tensor *t = of_block(tensors, count, block);
    square_block(t, block - t->first_block, sum + block);
  }
  double all = 0;
  for (int64_t block = 0; block < blocks; block++) all += sum[block];
  return all;
}

/* sum[block][SUMS]: how many of the model's weights changed, <u, d> and <u, u>, as in _step; all: their sums. */
void adam_step(const tensor *tensors, int64_t count, int64_t blocks, double *sum, int threads, const scalars *s,
               double *all) {
#pragma omp parallel for num_threads(threads) schedule(dynamic, TAKEN) if (threads > 1)
  for (int64_t block = 0; block < blocks; block++) {
    const tensor *t = of_block(tensors, count, block);
    step_block(t, s, block - t->first_block, sum + block * SUMS);
  }
  for (int i = 0; i < SUMS; i++) all[i] = 0;
  for (int64_t block = 0; block < blocks; block++)
    for (int i = 0; i < SUMS; i++) all[i] += sum[block * SUMS + i];
}
