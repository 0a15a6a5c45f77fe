/* A decoder-only transformer in memory, and the functions of a vector that its layers need. */

#ifndef SMOLSUM_MODEL_H
#define SMOLSUM_MODEL_H

#include <stdint.h>

#include "rows.h"

typedef struct {
  const float *weight, *bias; /* [out][in] and [out], or NULL */
} linear;

typedef struct {
  const float *mixer_norm, *mlp_norm;
  linear q, k, v, o; /* attention, where q has a weight */
  const float *q_norm, *k_norm;
  linear enter, conv, leave; /* otherwise a short convolution: conv is [feature][tap] */
  linear gate, up, down;
} layer;

typedef struct {
  int64_t layers, hidden, heads, kv_heads, head_dim, inner, vocab, taps;
  float eps, scale; /* of the norms; of the attention's scores */
  const float *embedding, *norm, *head;
  const float *rotations; /* [position][head_dim]: the cosines of its angles, then the sines */
  const layer *layer;
} model;

/* ---- functions of a vector ---- */

typedef int32_t wide_int __attribute__((vector_size(4 * WIDE)));

static inline wide select_by(wide_int first, wide a, wide b) { return (wide)(((wide_int)a & first) | ((wide_int)b & ~first)); }
static inline wide larger(wide a, wide b) { return select_by((wide_int)(a > b), a, b); }

/* e^x within 2 ulp: 2^n times a Taylor polynomial in the rest, at most ln(2)/2; 0 below -87, no more than e^88 */
static inline wide exponential(wide x) {
  const wide given = x;
  const wide magic = (wide){0} + 12582912.0f, most = (wide){0} + 88.0f; /* 1.5 x 2^23: adding it rounds to a whole number */
  x = select_by((wide_int)(x > most), most, x);
  wide n = x * 1.44269504f + magic;
  wide_int power = (wide_int)n;
  n -= magic;
  wide r = ADD_WIDE(x, n, -0.693359375f);
  r = ADD_WIDE(r, n, 2.12194440e-4f);
  wide p = (wide){0} + 1.0f / 5040;
  const float factor[7] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
  for (int i = 0; i < 7; i++) p = p * r + factor[i];
  p = (wide)(((wide_int)p + (power << 23)) & (wide_int)(x > -87.0f));
  return select_by((wide_int)(given == given), p, given);
}

static inline wide load(const float *from) { return *(const wide *)from; }
static inline void store(float *to, wide value) { *(wide *)to = value; }

static float sum_of(wide a) {
  float sum = 0;
  for (int i = 0; i < WIDE; i++) sum += a[i];
  return sum;
}

#endif
