/* cblas_sgemm for the products that sampling makes: few rows x times a matrix of weights, y = alpha x W^T + beta y.

   The rows are packed (rows.h); each weight is then read once and multiplied by all rows. All other products go to the
   BLAS (products.c). */

#include <stdlib.h>
#include <string.h>

#include "blas.h"
#include "rows.h"

enum { LEAST_WORK = 1 << 14, SHARED = 1 << 22, COLUMNS = 4 * WEIGHTS };      /* from where a call, and threads, pay */

static int threads = 1;

void few_rows_threads(int count) { threads = count; }

typedef struct {
  long M, K, rows, ldw, ldy;
  float alpha, beta;
} product;

static void columns(const product *p, long from, long to, const float *x, const float *w, float *y) {
  float part[COLUMNS * MOST_ROWS];
  for (long n = from; n < to; n += COLUMNS) {
    long count = to - n < COLUMNS ? to - n : COLUMNS;
    multiply(p->K, p->rows, x, p->ldw, w + n * p->ldw, count, part);
    for (long m = 0; m < p->M; m++)
      for (long i = 0; i < count; i++) {
        float *at = y + m * p->ldy + n + i, sum = p->alpha * part[i * p->rows + m];
        *at = p->beta == 0 ? sum : sum + p->beta * *at;
      }
  }
}

void cblas_sgemm(int order, int ta, int tb, int M, int N, int K, float alpha, const float *A, int lda, const float *B,
                 int ldb, float beta, float *C, int ldc) {
  long work = (long)M * N * K, rows = padded(M);
  int ours = order == ROW_MAJOR && ta == AS_IS && tb == TRANSPOSED && M <= MOST_ROWS && work >= LEAST_WORK;
  float *x = ours ? aligned_alloc(64, ((size_t)K * rows * sizeof *x + 63) / 64 * 64) : NULL;
  if (x == NULL) {
    smolsum_sgemm(order, ta, tb, M, N, K, alpha, A, lda, B, ldb, beta, C, ldc);
    return;
  }
  if (rows > M) memset(x, 0, (size_t)K * rows * sizeof *x);
  for (long m = 0; m < M; m++)
    for (long k = 0; k < K; k++) x[k * rows + m] = A[m * (long)lda + k];
  product p = {M, K, rows, ldb, ldc, alpha, beta};
  int parts = work < SHARED || threads < 2 ? 1 : 4 * threads; /* small ones, as a core may have other work */
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (parts > 1)
  for (int part = 0; part < parts; part++) {
    long from = (long)N * part / parts / WEIGHTS * WEIGHTS, to = (long)N * (part + 1) / parts / WEIGHTS * WEIGHTS;
    columns(&p, from, part + 1 == parts ? N : to, x, B, C);
  }
  free(x);
}
