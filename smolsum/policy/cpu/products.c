/* The products of an update with weights and of their gradients: in float32 by the BLAS, or on wish with factors rounded
   to bfloat16, which the processor multiplies in pairs and sums in float32.

   Both factors are packed: panel[k / 2][row or column] holds the values of k and k + 1 as one word. A tile of C then stays
   in registers, as in K. Goto and R. van de Geijn, "Anatomy of high-performance matrix multiplication", ACM TOMS 34 (3),
   2008. Every element is summed in the order of k, so it depends on its own row and column alone. */

#include <stdint.h>
#include <stdlib.h>

#include "blas.h"

sgemm *smolsum_sgemm, *smolsum_by_weights, *smolsum_by_rows;

#if defined(__AVX512BF16__) && defined(__AVX512BW__)
#include <immintrin.h>

/* rows and columns of a tile; of a part of A, B and both, as caches hold them */
enum { LANES = 16, TILE_ROWS = 8, TILE_COLUMNS = 3 * LANES, ROWS = 96, INNER = 768, COLUMNS = 48 * TILE_COLUMNS };

static __mmask16 first(long lanes) { return lanes >= LANES ? 0xffff : lanes > 0 ? (__mmask16)((1 << lanes) - 1) : 0; }
static long least(long a, long b) { return a < b ? a : b; }

/* Values to bfloat16 in the lower half of each lane. What passes through the model goes to the nearest. Weights go up or
   down by a draw that their own bits make, so that the mean over many different ones is their mean: most steps change a
   weight by less than rounding to the nearest takes back, and log-probs would be those of an older policy. (Equal weights
   have equal draws. After the very first step on weights of bfloat16 there are few different ones.) */
static __m512i rounded(__m512 values, int weights) {
  if (!weights) return _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(values));
  __m512i bits = (__m512i)values, infinite = _mm512_set1_epi32(0x7f800000);
  __m512i draw = _mm512_srli_epi32(_mm512_mullo_epi32(bits, _mm512_set1_epi32((int)0x9e3779b1)), 16);
  __mmask16 finite = _mm512_cmpneq_epi32_mask(_mm512_and_si512(bits, infinite), infinite);
  return _mm512_srli_epi32(_mm512_mask_add_epi32(bits, finite, bits, draw), 16);
}

/* The values of k and k + 1 as words. Each branch is compiled for its own kind of rounding. */
static __m512i pairs_of(__m512 even, __m512 odd, int weights) {
  if (!weights) return _mm512_or_si512(rounded(even, 0), _mm512_slli_epi32(rounded(odd, 0), 16));
  return _mm512_or_si512(rounded(even, 1), _mm512_slli_epi32(rounded(odd, 1), 16));
}

/* One panel of `width` lines, of which `count` exist; the others and an odd last value are 0. Values of a line follow one
   another, or those of one k do, `ld` apart from the next. */
static void pack_panel(int weights, int lines_follow, long width, long count, long K, const float *from, long ld,
                       uint32_t *to) {
  static const int32_t evens[16] = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30};
  __m512i even_lanes = _mm512_loadu_si512(evens), odd_lanes = _mm512_add_epi32(even_lanes, _mm512_set1_epi32(1));
  if (lines_follow) {
    for (long k = 0; k < K; k += 2)
      for (long n = 0; n < width; n += LANES) {
        __m512 even = _mm512_maskz_loadu_ps(first(count - n), from + k * ld + n);
        __m512 odd = k + 1 < K ? _mm512_maskz_loadu_ps(first(count - n), from + (k + 1) * ld + n) : _mm512_setzero_ps();
        _mm512_mask_storeu_epi32(to + k / 2 * width + n, first(width - n), pairs_of(even, odd, weights));
      }
    return;
  }
  __m512i places = _mm512_mullo_epi32(_mm512_srli_epi32(even_lanes, 1), _mm512_set1_epi32((int)width));
  for (long n = 0; n < width; n++)
    for (long k = 0; k < K; k += 2 * LANES) {
      __m512 low = _mm512_maskz_loadu_ps(n < count ? first(K - k) : 0, from + n * ld + k);
      __m512 high = _mm512_maskz_loadu_ps(n < count ? first(K - k - LANES) : 0, from + n * ld + k + LANES);
      __m512 even = _mm512_permutex2var_ps(low, even_lanes, high), odd = _mm512_permutex2var_ps(low, odd_lanes, high);
      __mmask16 some = first((K - k + 1) / 2);
      _mm512_mask_i32scatter_epi32(to + k / 2 * width + n, some, places, pairs_of(even, odd, weights), 4);
    }
}

static void pack(int weights, int lines_follow, long width, long count, long K, const float *from, long ld, uint32_t *to) {
  for (long n = 0; n < count; n += width, to += (K + 1) / 2 * width)
    pack_panel(weights, lines_follow, width, least(width, count - n), K, from + (lines_follow ? n : n * ld), ld, to);
}

/* C = A B + beta C for a tile, of which `rows` and `columns` exist. */
static void tile(long pairs, const uint32_t *a, const uint32_t *b, long rows, long columns, float beta, float *C, long ldc) {
  __m512 sum[TILE_ROWS][3];
  for (int m = 0; m < TILE_ROWS; m++)
    for (int v = 0; v < 3; v++) sum[m][v] = _mm512_setzero_ps();
  for (long k = 0; k < pairs; k++, a += TILE_ROWS, b += TILE_COLUMNS) {
    __m512bh column[3];
    for (int v = 0; v < 3; v++) column[v] = (__m512bh)_mm512_loadu_si512(b + v * LANES);
#pragma GCC unroll 8
    for (int m = 0; m < TILE_ROWS; m++) {
      __m512bh row = (__m512bh)_mm512_set1_epi32((int)a[m]);
      for (int v = 0; v < 3; v++) sum[m][v] = _mm512_dpbf16_ps(sum[m][v], row, column[v]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < TILE_ROWS; m++)
    for (int v = 0; v < 3 && m < rows; v++) {
      __mmask16 some = first(columns - v * LANES);
      float *at = C + m * ldc + v * LANES;
      __m512 before = beta == 0 ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(some, at);
      _mm512_mask_storeu_ps(at, some, _mm512_fmadd_ps(_mm512_set1_ps(beta), before, sum[m][v]));
    }
}

static _Thread_local uint32_t *packed_a; /* and B behind it */

/* `weights`: whether B has some. */
static void multiply(int weights, int order, int ta, int tb, int M, int N, int K, float alpha, const float *A, int lda,
                     const float *B, int ldb, float beta, float *C, int ldc) {
  if (packed_a == NULL) packed_a = aligned_alloc(64, sizeof *packed_a * (ROWS + COLUMNS) * INNER / 2);
  if (packed_a == NULL || order != ROW_MAJOR || alpha != 1) {
    smolsum_sgemm(order, ta, tb, M, N, K, alpha, A, lda, B, ldb, beta, C, ldc);
    return;
  }
  uint32_t *packed_b = packed_a + ROWS * INNER / 2;
  long parts = (K + INNER - 1) / INNER, part = (K + 2 * parts - 1) / (2 * parts) * 2; /* even ones */
  for (long n = 0; n < N; n += COLUMNS)
    for (long k = 0; k < K; k += part) {
      long columns = least(COLUMNS, N - n), inner = least(part, K - k), pairs = (inner + 1) / 2;
      pack(weights, tb == AS_IS, TILE_COLUMNS, columns, inner, B + (tb == AS_IS ? k * ldb + n : n * ldb + k), ldb, packed_b);
      for (long m = 0; m < M; m += ROWS) {
        long rows = least(ROWS, M - m);
        pack(0, ta == TRANSPOSED, TILE_ROWS, rows, inner, A + (ta == TRANSPOSED ? k * lda + m : m * lda + k), lda, packed_a);
        for (long j = 0; j < columns; j += TILE_COLUMNS)
          for (long i = 0; i < rows; i += TILE_ROWS)
            tile(pairs, packed_a + i * pairs, packed_b + j * pairs, least(TILE_ROWS, rows - i),
                 least(TILE_COLUMNS, columns - j), k ? 1 : beta, C + (m + i) * ldc + n + j, ldc);
      }
    }
}

void products_bfloat16_weights(int order, int ta, int tb, int M, int N, int K, float alpha, const float *A, int lda,
                               const float *B, int ldb, float beta, float *C, int ldc) {
  multiply(1, order, ta, tb, M, N, K, alpha, A, lda, B, ldb, beta, C, ldc);
}

void products_bfloat16_rows(int order, int ta, int tb, int M, int N, int K, float alpha, const float *A, int lda,
                            const float *B, int ldb, float beta, float *C, int ldc) {
  multiply(0, order, ta, tb, M, N, K, alpha, A, lda, B, ldb, beta, C, ldc);
}

void products_end(void) {
  free(packed_a);
  packed_a = NULL;
}

static sgemm *const half[2] = {products_bfloat16_weights, products_bfloat16_rows};
#else
void products_end(void) {}

static sgemm *const half[2] = {NULL, NULL};
#endif

void products_forward(sgemm *library) {
  smolsum_sgemm = library;
  products_in_bfloat16(0);
}

/* Whether this processor has such products. */
int products_have_bfloat16(void) { return half[0] != NULL; }

/* Chooses how an update multiplies, until the next choice. */
void products_in_bfloat16(int wanted) {
  smolsum_by_weights = wanted && half[0] ? half[0] : smolsum_sgemm;
  smolsum_by_rows = wanted && half[1] ? half[1] : smolsum_sgemm;
}
