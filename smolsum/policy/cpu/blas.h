/* Products: the BLAS, and what the products of an update go to (products.c). */

#ifndef SMOLSUM_BLAS_H
#define SMOLSUM_BLAS_H

enum { ROW_MAJOR = 101, AS_IS = 111, TRANSPOSED = 112 }; /* CBLAS */

typedef void sgemm(int, int, int, int, int, int, float, const float *, int, const float *, int, float, float *, int);
/* another copy of the library has its own */
extern sgemm *smolsum_sgemm __attribute__((visibility("hidden")));
extern sgemm *smolsum_by_weights __attribute__((visibility("hidden"))); /* rows times a matrix of weights */
extern sgemm *smolsum_by_rows __attribute__((visibility("hidden")));    /* rows times rows: the gradient of one */
__attribute__((visibility("hidden"))) void products_in_bfloat16(int wanted);
__attribute__((visibility("hidden"))) void products_end(void); /* releases the memory of this thread's products */

#endif
