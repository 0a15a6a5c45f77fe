/* The products of an update: in float32 by the BLAS, or on wish with factors rounded to bfloat16, which the processor
   multiplies in pairs and sums in float32.

   Both factors are packed: panel[k / 2][row or column] holds the values of k and k + 1 as one word. A tile of C then stays
   in registers, as in K. Goto and R. van de Geijn, "Anatomy of high-performance matrix multiplication", ACM TOMS 34 (3),
   2008. Every element is summed in the order of k, so it depends on its own row and column alone. */

#include <stdint.h>
#include <stdlib.h>

#include "blas.h"

sgemm *smolsum_sgemm, *smolsum_product;

#if defined(__AVX512BF16__) && defined(__AVX512BW__)
#include <immintrin.h>

/* rows and columns of a tile; of a part of A, B and both, as caches hold them; work from which packing pays */
enum { LANES = 16, TILE_ROWS = 8, TILE_COLUMNS = 3 * LANES, ROWS = 96, INNER = 768, COLUMNS = 48 * TILE_COLUMNS };
enum { LEAST_ROWS = 16, LEAST_WORK = 1 << 18 };

static __mmask16 first(long lanes) { return lanes >= LANES ? 0xffff : lanes > 0 ? (__mmask16)((1 << lanes) - 1) : 0; }
static long least(long a, long b) { return a < b ? a : b; }

/* One panel of `width` lines, of which `count` exist; the others and an odd last value are 0. Values of a line follow one
   another, or those of one k do, `ld` apart from the next. */
static void pack_panel(int lines_follow, long width, long count, long K, const float *from, long ld, uint32_t *to) {
  static const uint16_t order[32] = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23,
                                     8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  if (lines_follow) {
    for (long k = 0; k < K; k += 2)
      for (long n = 0; n < width; n += LANES) {
        __m512 even = _mm512_maskz_loadu_ps(first(count - n), from + k * ld + n);
        __m512 odd = k + 1 < K ? _mm512_maskz_loadu_ps(first(count - n), from + (k + 1) * ld + n) : _mm512_setzero_ps();
        __m512i both = _mm512_permutexvar_epi16(_mm512_loadu_si512(order), (__m512i)_mm512_cvtne2ps_pbh(odd, even));
        _mm512_mask_storeu_epi32(to + k / 2 * width + n, first(width - n), both);
      }
    return;
  }
  __m512i places = _mm512_mullo_epi32(lanes, _mm512_set1_epi32((int)width));
  for (long n = 0; n < width; n++)
    for (long k = 0; k < K; k += 2 * LANES) {
      __m512 low = _mm512_maskz_loadu_ps(n < count ? first(K - k) : 0, from + n * ld + k);
      __m512 high = _mm512_maskz_loadu_ps(n < count ? first(K - k - LANES) : 0, from + n * ld + k + LANES);
      __m512i pairs = (__m512i)_mm512_cvtne2ps_pbh(high, low);
      _mm512_mask_i32scatter_epi32(to + k / 2 * width + n, first((K - k + 1) / 2), places, pairs, 4);
    }
}

static void pack(int lines_follow, long width, long count, long K, const float *from, long ld, uint32_t *to) {
  for (long n = 0; n < count; n += width, to += (K + 1) / 2 * width)
    pack_panel(lines_follow, width, least(width, count - n), K, from + (lines_follow ? n : n * ld), ld, to);
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

void products_bfloat16(int order, int ta, int tb, int M, int N, int K, float alpha, const float *A, int lda, const float *B,
                        int ldb, float beta, float *C, int ldc) {
  static _Thread_local uint32_t *packed_a, *packed_b; /* for as long as the thread lives */
  int ours = order == ROW_MAJOR && alpha == 1 && M >= LEAST_ROWS && N >= LANES && (long)M * N * K >= LEAST_WORK;
  if (ours && packed_b == NULL) {
    packed_a = aligned_alloc(64, sizeof *packed_a * ROWS * INNER / 2);
    packed_b = packed_a ? aligned_alloc(64, sizeof *packed_b * COLUMNS * INNER / 2) : NULL;
  }
  if (!ours || packed_b == NULL) {
    smolsum_sgemm(order, ta, tb, M, N, K, alpha, A, lda, B, ldb, beta, C, ldc);
    return;
  }
  long parts = (K + INNER - 1) / INNER, part = (K + 2 * parts - 1) / (2 * parts) * 2; /* even ones */
  for (long n = 0; n < N; n += COLUMNS)
    for (long k = 0; k < K; k += part) {
      long columns = least(COLUMNS, N - n), inner = least(part, K - k), pairs = (inner + 1) / 2;
      pack(tb == AS_IS, TILE_COLUMNS, columns, inner, B + (tb == AS_IS ? k * ldb + n : n * ldb + k), ldb, packed_b);
      for (long m = 0; m < M; m += ROWS) {
        long rows = least(ROWS, M - m);
        pack(ta == TRANSPOSED, TILE_ROWS, rows, inner, A + (ta == TRANSPOSED ? k * lda + m : m * lda + k), lda, packed_a);
        for (long j = 0; j < columns; j += TILE_COLUMNS)
          for (long i = 0; i < rows; i += TILE_ROWS)
            tile(pairs, packed_a + i * pairs, packed_b + j * pairs, least(TILE_ROWS, rows - i),
                 least(TILE_COLUMNS, columns - j), k ? 1 : beta, C + (m + i) * ldc + n + j, ldc);
      }
    }
}

static sgemm *const half = products_bfloat16;
#else
static sgemm *const half = NULL;
#endif

void products_forward(sgemm *library) { smolsum_product = smolsum_sgemm = library; }

/* Whether this processor has such products. */
int products_have_bfloat16(void) { return half != NULL; }

/* Chooses what smolsum_product is, until the next choice. */
void products_in_bfloat16(int wanted) { smolsum_product = wanted && half ? half : smolsum_sgemm; }
