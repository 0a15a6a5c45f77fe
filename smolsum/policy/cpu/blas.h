/* The BLAS to which few_rows.c passes on what it does not multiply itself. */

#ifndef SMOLSUM_BLAS_H
#define SMOLSUM_BLAS_H

enum { ROW_MAJOR = 101, AS_IS = 111, TRANSPOSED = 112 }; /* CBLAS */

typedef void sgemm(int, int, int, int, int, int, float, const float *, int, const float *, int, float, float *, int);
extern sgemm *smolsum_sgemm __attribute__((visibility("hidden"))); /* another copy of the library has its own */

#endif
