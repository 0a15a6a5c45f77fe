/* What a transformer does to one token at a time, forward and backward, and the products around it: [row][feature]. */

#ifndef SMOLSUM_BY_ROW_H
#define SMOLSUM_BY_ROW_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "blas.h"
#include "model.h"

/* ---- products; `rows` tokens, W is [out][in] ---- */

/* y = x W^T + beta y */
static void product(int64_t rows, int64_t out, int64_t in, const float *x, int64_t ldx, const float *w, float beta,
                    float *y, int64_t ldy) {
  if (rows && out)
    smolsum_by_weights(ROW_MAJOR, AS_IS, TRANSPOSED, (int)rows, (int)out, (int)in, 1, x, (int)ldx, w, (int)in, beta, y, (int)ldy);
}

/* dx = dy W + beta dx */
static void product_back(int64_t rows, int64_t out, int64_t in, const float *dy, int64_t ldy, const float *w, float beta,
                         float *dx, int64_t ldx) {
  if (rows) smolsum_by_weights(ROW_MAJOR, AS_IS, AS_IS, (int)rows, (int)in, (int)out, 1, dy, (int)ldy, w, (int)in, beta, dx, (int)ldx);
}

/* dW += dy^T x */
static void weight_back(int64_t rows, int64_t out, int64_t in, const float *dy, int64_t ldy, const float *x, int64_t ldx,
                        float *dw) {
  if (rows && out)
    smolsum_by_rows(ROW_MAJOR, TRANSPOSED, AS_IS, (int)out, (int)in, (int)rows, 1, dy, (int)ldy, x, (int)ldx, 1, dw, (int)in);
}

/* ---- sums ---- */

static inline wide load_some(const float *from, int64_t count) {
  wide value = {0};
  if (count >= WIDE) return load(from);
  memcpy(&value, from, count * sizeof *from);
  return value;
}

static inline void store_some(float *to, wide value, int64_t count) {
  memcpy(to, &value, (count < WIDE ? count : WIDE) * sizeof *to);
}

static float dot(const float *a, const float *b, int64_t n) {
  wide sum[2] = {{0}};
  int64_t i = 0;
  for (; i + 2 * WIDE <= n; i += 2 * WIDE)
    for (int j = 0; j < 2; j++) sum[j] += load(a + i + j * WIDE) * load(b + i + j * WIDE);
  for (; i < n; i += WIDE) sum[0] += load_some(a + i, n - i) * load_some(b + i, n - i);
  return sum_of(sum[0] + sum[1]);
}

static void add_to(float *sum, const float *x, int64_t n) {
  for (int64_t i = 0; i < n; i++) sum[i] += x[i];
}

/* ---- the norm: y = x / rms(x) * w (arXiv:1910.07467, equation 4) ---- */

/* Returns 1 / rms(x). */
static float normalise_row(const float *x, const float *w, int64_t n, float eps, float *y) {
  float scale = 1.0f / sqrtf(dot(x, x, n) / (float)n + eps);
  for (int64_t i = 0; i < n; i++) y[i] = x[i] * scale * w[i];
  return scale;
}

static void normalise_again(const float *x, const float *w, int64_t n, float scale, float *y) {
  for (int64_t i = 0; i < n; i++) y[i] = x[i] * scale * w[i];
}

/* dx = add * dx + the gradient by x, where dy is that by y; dy becomes dy * w. */
static void normalise_row_back(const float *x, const float *w, int64_t n, float scale, float *dy, int add, float *dx) {
  for (int64_t i = 0; i < n; i++) dy[i] *= w[i];
  float along = dot(dy, x, n) * scale * scale * scale / (float)n;
  for (int64_t i = 0; i < n; i++) dx[i] = (add ? dx[i] : 0) + scale * dy[i] - along * x[i];
}

/* ---- positions: the halves of v are rotated (arXiv:2104.09864, equation 34) ---- */

static void rotate_row(const float *rotations, int64_t D, int back, float *v) {
  int64_t half = D / 2;
  float sign = back ? -1.0f : 1.0f;
  for (int64_t d = 0; d < half; d++) {
    float a = v[d], b = v[d + half], cosine = rotations[d], sine = sign * rotations[d + half];
    v[d] = a * cosine - b * sine;
    v[d + half] = a * sine + b * cosine;
  }
}

/* ---- inner = silu(gate) * up (arXiv:2002.05202, equation 6) ---- */

static void gate_row(const float *gate, const float *up, int64_t n, float *inner) {
  for (int64_t i = 0; i < n; i += WIDE) {
    wide g = load_some(gate + i, n - i);
    store_some(inner + i, g / (1.0f + exponential(-g)) * load_some(up + i, n - i), n - i);
  }
}

/* gate and up become their gradients, d_inner becomes inner. */
static void gate_row_back(float *gate, float *up, int64_t n, float *d_inner) {
  for (int64_t i = 0; i < n; i += WIDE) {
    wide g = load_some(gate + i, n - i), u = load_some(up + i, n - i), d = load_some(d_inner + i, n - i);
    wide s = 1.0f / (1.0f + exponential(-g)), silu = g * s;
    store_some(gate + i, d * u * s * (1.0f + g * (1.0f - s)), n - i);
    store_some(up + i, d * silu, n - i);
    store_some(d_inner + i, silu * u, n - i);
  }
}

/* ---- the distribution of the next token ---- */

/* Divides logits by the temperature; returns log(sum(e^logit)), with the target's log-prob and the entropy in nats. */
static float score_row(float *logits, int64_t V, float temperature, int32_t target, float *logprob, float *entropy) {
  wide most = (wide){0} - INFINITY;
  float top = -INFINITY;
  double total = 0, weighted = 0;
  for (int64_t n = 0; n < V; n += WIDE) {
    wide z = load_some(logits + n, V - n) / temperature;
    store_some(logits + n, z, V - n);
    if (n + WIDE <= V) most = larger(z, most);
    for (int64_t i = 0; n + WIDE > V && i < V - n; i++) top = fmaxf(top, z[i]);
  }
  for (int i = 0; i < WIDE; i++) top = most[i] > top ? most[i] : top;
  for (int64_t from = 0; from < V; from += 256 * WIDE) { /* sums in float32 of a part, in float64 of all parts */
    wide sum = {0}, product = {0};
    int64_t to = from + 256 * WIDE < V ? from + 256 * WIDE : V;
    for (int64_t n = from; n < to; n += WIDE) {
      wide below = load_some(logits + n, V - n) - top, e = exponential(below);
      for (int64_t i = V - n; i < WIDE; i++) e[i] = 0;
      sum += e;
      product += select_by((wide_int)(e > 0.0f), e * below, (wide){0});
    }
    total += sum_of(sum);
    weighted += sum_of(product);
  }
  *logprob = (float)((double)logits[target] - top - log(total));
  *entropy = (float)(log(total) - weighted / total);
  return top + (float)log(total);
}

/* The scaled logits become the gradient of weight * log-prob by the logits before they were divided. */
static void score_row_back(float *scaled, int64_t V, float temperature, int32_t target, float log_total, float weight) {
  float factor = -weight / temperature;
  if (weight == 0) {
    memset(scaled, 0, V * sizeof *scaled);
    return;
  }
  for (int64_t n = 0; n < V; n += WIDE)
    store_some(scaled + n, exponential(load_some(scaled + n, V - n) - log_total) * factor, V - n);
  scaled[target] -= factor;
}

#endif
