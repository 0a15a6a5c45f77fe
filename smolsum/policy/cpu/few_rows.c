/* cblas_sgemm for the products that sampling makes: few rows x times a matrix of weights, y = alpha x W^T + beta y.

   The rows are packed so that a vector holds one column of up to 32 of them; each weight is then read once and multiplied
   by all rows. Every element of y is summed in the order of k, so it depends on its own row and on nothing else: not on
   the number of rows, nor on the number of threads. All other products go to the library given to few_rows_forward. */

#include <stdlib.h>
#include <string.h>

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
enum { NARROW = 8, WEIGHTS = 12 };                           /* lanes of a vector; rows of W in registers at a time */
enum { ROW_MAJOR = 101, AS_IS = 111, TRANSPOSED = 112 };     /* CBLAS */
enum { MOST_ROWS = 64, LEAST_WORK = 1 << 14, SHARED = 1 << 22 }; /* products from which a call is worth it, and threads */

typedef float narrow __attribute__((vector_size(4 * NARROW), aligned(4)));
typedef float wide __attribute__((vector_size(4 * WIDE), aligned(4)));
typedef void sgemm(int, int, int, int, int, int, float, const float *, int, const float *, int, float, float *, int);

static sgemm *forward;
static int threads = 1;

void few_rows_forward(sgemm *library) { forward = library; }
void few_rows_threads(int count) { threads = count; }

typedef struct {
  long M, K, ldx, ldw, ldy;
  float alpha, beta;
} product;

/* x holds one column of up to vectors * lanes rows after the other; y gets `count` columns */
#define KERNEL(name, vector, lanes, vectors, count, add)                                                \
  static void name(const product *p, long M, const float *x, const float *w, float *y) {                \
    vector a[count][vectors];                                                                           \
    for (int n = 0; n < count; n++)                                                                     \
      for (int v = 0; v < vectors; v++) a[n][v] = (vector){0};                                          \
    for (long k = 0; k < p->K; k++)                                                                     \
      for (int n = 0; n < count; n++)                                                                   \
        for (int v = 0; v < vectors; v++)                                                               \
          a[n][v] = add(a[n][v], *(const vector *)(x + k * p->ldx + v * lanes), w[n * p->ldw + k]);     \
    for (long m = 0; m < M; m++)                                                                        \
      for (int n = 0; n < count; n++) {                                                                 \
        float *to = y + m * p->ldy + n, sum = p->alpha * a[n][m / lanes][m % lanes];                    \
        *to = p->beta == 0 ? sum : sum + p->beta * *to;                                                 \
      }                                                                                                 \
  }
KERNEL(narrow_many, narrow, NARROW, 1, WEIGHTS, ADD_NARROW)
KERNEL(narrow_one, narrow, NARROW, 1, 1, ADD_NARROW)
KERNEL(wide_many, wide, WIDE, 1, WEIGHTS, ADD_WIDE)
KERNEL(wide_one, wide, WIDE, 1, 1, ADD_WIDE)
KERNEL(pair_many, wide, WIDE, 2, PAIRED, ADD_WIDE)
KERNEL(pair_one, wide, WIDE, 2, 1, ADD_WIDE)

typedef void kernel(const product *, long, const float *, const float *, float *);

static long packed_rows(long M) {
  if (M <= NARROW) return NARROW;
  return M <= WIDE ? WIDE : (M + 2 * WIDE - 1) / (2 * WIDE) * (2 * WIDE);
}

static void columns(const product *p, long from, long to, const float *x, const float *w, float *y) {
  int pair = p->ldx > WIDE, small = p->ldx == NARROW;
  long rows = pair ? 2 * WIDE : p->ldx, count = pair ? PAIRED : WEIGHTS;
  kernel *many = pair ? pair_many : small ? narrow_many : wide_many;
  kernel *one = pair ? pair_one : small ? narrow_one : wide_one;
  for (long n = from; n < to;) {
    long now = n + count <= to ? count : 1;
    for (long m = 0; m < p->M; m += rows) {
      long left = p->M - m < rows ? p->M - m : rows;
      (now > 1 ? many : one)(p, left, x + m, w + n * p->ldw, y + m * p->ldy + n);
    }
    n += now;
  }
}

void cblas_sgemm(int order, int ta, int tb, int M, int N, int K, float alpha, const float *A, int lda, const float *B,
                 int ldb, float beta, float *C, int ldc) {
  long work = (long)M * N * K, rows = packed_rows(M);
  int ours = order == ROW_MAJOR && ta == AS_IS && tb == TRANSPOSED && M <= MOST_ROWS && work >= LEAST_WORK;
  float *x = ours ? aligned_alloc(64, ((size_t)K * rows * sizeof *x + 63) / 64 * 64) : NULL;
  if (x == NULL) {
    forward(order, ta, tb, M, N, K, alpha, A, lda, B, ldb, beta, C, ldc);
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
