/* Products of packed rows: x[k][row] holds one column of all rows after the other, padded to whole vectors, so that each
   weight is read once and multiplied by all rows. Every element is summed in the order of k, so it depends on its own row
   and on nothing else: not on the number of rows, nor on the number of threads. */

#ifndef SMOLSUM_ROWS_H
#define SMOLSUM_ROWS_H

/* a + x * w in one rounding. On x86 by name: what the compiler makes of a sum depends on the loop around it. */
#if defined(__AVX512F__)
#include <immintrin.h>
#define ADD_WIDE(a, x, w) _mm512_fmadd_ps(x, _mm512_set1_ps(w), a)
#define ADD_NARROW(a, x, w) _mm256_fmadd_ps(x, _mm256_set1_ps(w), a)
enum { WIDE = 16, PAIRED = 12 };
#elif defined(__FMA__)
#include <immintrin.h>
#define ADD_WIDE(a, x, w) _mm256_fmadd_ps(x, _mm256_set1_ps(w), a)
#define ADD_NARROW ADD_WIDE
enum { WIDE = 8, PAIRED = 6 };
#else
#define ADD_WIDE(a, x, w) ((a) + (x) * (w))
#define ADD_NARROW ADD_WIDE
enum { WIDE = 8, PAIRED = 6 };
#endif
/* lanes of a vector; rows of W in registers at a time; rows of x; floats in a line of the caches */
enum { NARROW = 8, WEIGHTS = 12, MOST_ROWS = 64, LINE = 16 };

typedef float narrow __attribute__((vector_size(4 * NARROW), aligned(4)));
typedef float wide __attribute__((vector_size(4 * WIDE), aligned(4)));

/* y[n][row] for `count` rows of W, where x and y have `rows` columns. The rows of W that follow are fetched meanwhile: the
   processor alone sees a stream in each row, and too late where rows are short. */
#define KERNEL(name, vector, lanes, vectors, count, add)                                                     \
  static void name(long K, long rows, const float *x, long ldw, const float *w, float *y) {                  \
    vector a[count][vectors];                                                                                \
    for (int n = 0; n < count; n++)                                                                          \
      for (int v = 0; v < vectors; v++) a[n][v] = (vector){0};                                               \
    for (long k = 0; k < K; k++) {                                                                           \
      for (int n = 0; k % LINE == 0 && n < count; n++) __builtin_prefetch(w + (n + WEIGHTS) * ldw + k, 0, 2); \
      for (int n = 0; n < count; n++)                                                                        \
        for (int v = 0; v < vectors; v++)                                                                    \
          a[n][v] = add(a[n][v], *(const vector *)(x + k * rows + v * lanes), w[n * ldw + k]);               \
    }                                                                                                        \
    for (int n = 0; n < count; n++)                                                                          \
      for (int v = 0; v < vectors; v++) *(vector *)(y + n * rows + v * lanes) = a[n][v];                     \
  }
KERNEL(narrow_many, narrow, NARROW, 1, WEIGHTS, ADD_NARROW)
KERNEL(narrow_some, narrow, NARROW, 1, 4, ADD_NARROW)
KERNEL(narrow_one, narrow, NARROW, 1, 1, ADD_NARROW)
KERNEL(wide_many, wide, WIDE, 1, WEIGHTS, ADD_WIDE)
KERNEL(wide_some, wide, WIDE, 1, 4, ADD_WIDE)
KERNEL(wide_one, wide, WIDE, 1, 1, ADD_WIDE)
KERNEL(pair_many, wide, WIDE, 2, PAIRED, ADD_WIDE)
KERNEL(pair_some, wide, WIDE, 2, 2, ADD_WIDE)
KERNEL(pair_one, wide, WIDE, 2, 1, ADD_WIDE)

typedef void kernel(long, long, const float *, long, const float *, float *);

/* the number of rows with padding */
static long padded(long M) { return M <= NARROW ? NARROW : (M + WIDE - 1) / WIDE * WIDE; }

/* y[n][row] for `count` rows of W, at most WEIGHTS, and some rows of x */
static void multiply_some(kernel *const kernels[3], const long counts[3], long K, long rows, const float *x, long ldw,
                          const float *w, long count, float *y) {
  for (long n = 0, kind; n < count; n += counts[kind]) {
    kind = n + counts[0] <= count ? 0 : n + counts[1] <= count ? 1 : 2;
    kernels[kind](K, rows, x, ldw, w + n * ldw, y + n * rows);
  }
}

/* y[n][row] for `count` rows of W; `rows` is a padded number */
static void multiply(long K, long rows, const float *x, long ldw, const float *w, long count, float *y) {
  static kernel *const narrows[3] = {narrow_many, narrow_some, narrow_one};
  static kernel *const wides[3] = {wide_many, wide_some, wide_one};
  static kernel *const pairs[3] = {pair_many, pair_some, pair_one};
  static const long counts[3] = {WEIGHTS, 4, 1}, paired[3] = {PAIRED, 2, 1};
  for (long n = 0; n < count; n += WEIGHTS) {
    long some = count - n < WEIGHTS ? count - n : WEIGHTS, m = 0;
    const float *from = w + n * ldw;
    float *to = y + n * rows;
    for (; m + 2 * WIDE <= rows; m += 2 * WIDE) multiply_some(pairs, paired, K, rows, x + m, ldw, from, some, to + m);
    for (; m + WIDE <= rows; m += WIDE) multiply_some(wides, counts, K, rows, x + m, ldw, from, some, to + m);
    if (m < rows) multiply_some(narrows, counts, K, rows, x + m, ldw, from, some, to + m);
  }
}

#endif
