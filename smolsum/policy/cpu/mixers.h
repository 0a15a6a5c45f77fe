/* What looks back over earlier tokens, forward and backward: attention and the short convolution. A prompt is there once;
   each of its completions continues it.

   Arrays are [row][feature]. A task is one head of one group, or some channels of all rows, so that no two threads add to
   one number. */

#ifndef SMOLSUM_MIXERS_H
#define SMOLSUM_MIXERS_H

#include "by_row.h"

enum { QUERIES = 128 }; /* rows whose attention is computed together, at most */

typedef struct {
  int64_t groups, segments, rows, scored; /* scored: rows of completions */
  const int64_t *group;   /* [groups + 1] the first segment of each: its prompt, then its completions */
  const int64_t *segment; /* [segments + 1] the first row of each */
  const int32_t *tokens, *positions, *targets; /* [row] */
  float *logprobs, *entropies;                 /* [row] */
  const float *weights;                        /* [row] the gradient of the loss by the log-prob */
  float temperature;
  int64_t chunk;    /* scored rows whose logits are in memory together */
  int64_t bfloat16; /* whether products with weights round their factors */
} batch;

/* The rows of a task's scores: first those of the prompt, then those of the completion itself. */
typedef struct {
  const batch *b;
  int64_t prompt, first, shared; /* first row of the prompt and of what continues it; rows of the prompt, 0 for itself */
  int64_t stride;
} view;

static int64_t most_visible(const batch *b) {
  int64_t most = 0;
  for (int64_t g = 0; g < b->groups; g++)
    for (int64_t s = b->group[g]; s < b->group[g + 1]; s++) {
      int64_t own = b->segment[s + 1] - b->segment[s];
      int64_t shared = s > b->group[g] ? b->segment[b->group[g] + 1] - b->segment[b->group[g]] : 0;
      if (own + shared > most) most = own + shared;
    }
  return (most + WIDE - 1) / WIDE * WIDE;
}

/* What a call works on: the rotated queries and keys, the values, and the score buffers of a thread. */
typedef struct {
  const model *m;
  const float *turned, *raw, *mixed, *d_mixed;
  int64_t head;
  float *scores, *d_scores;      /* [QUERIES][stride] */
  float *d_query, *d_key, *d_value; /* [row][heads * head_dim]: each query head has its own */
} attention;

static inline int64_t query_width(const model *m) { return m->heads * m->head_dim; }
static inline int64_t key_width(const model *m) { return m->kv_heads * m->head_dim; }

static const float *keys_of(const attention *a, int64_t row) {
  int64_t Q = query_width(a->m), K = key_width(a->m), kv = a->head / (a->m->heads / a->m->kv_heads);
  return a->turned + row * (Q + K) + Q + kv * a->m->head_dim;
}

static const float *values_of(const attention *a, int64_t row) {
  int64_t Q = query_width(a->m), K = key_width(a->m), kv = a->head / (a->m->heads / a->m->kv_heads);
  return a->raw + row * (Q + 2 * K) + Q + K + kv * a->m->head_dim;
}

static inline int64_t lesser(int64_t a, int64_t b) { return a < b ? a : b; }

/* The part of segment s that is in rows [from, to): returns 0 if there is none. */
static int piece(const batch *b, int64_t s, int64_t from, int64_t to, int64_t *start, int64_t *end) {
  *start = b->segment[s] > from ? b->segment[s] : from;
  *end = lesser(b->segment[s + 1], to);
  return *start < *end;
}

/* out[row][key] = alpha x_row . y_key, where `rows` and `keys` vectors of head_dim features lie ldx and ldy apart */
static void all_dots(int64_t rows, int64_t keys, int64_t D, float alpha, const float *x, int64_t ldx, const float *y, int64_t ldy,
                     float *out, int64_t ldo) {
  smolsum_sgemm(ROW_MAJOR, AS_IS, TRANSPOSED, (int)rows, (int)keys, (int)D, alpha, x, (int)ldx, y, (int)ldy, 0, out, (int)ldo);
}

/* out[row] = sum over keys of p[row][key] y_key + beta out[row] */
static void mix(int64_t rows, int64_t keys, int64_t D, const float *p, int64_t ldp, const float *y, int64_t ldy, float beta,
                float *out, int64_t ldo) {
  smolsum_sgemm(ROW_MAJOR, AS_IS, AS_IS, (int)rows, (int)D, (int)keys, 1, p, (int)ldp, y, (int)ldy, beta, out, (int)ldo);
}

/* out[key] += sum over rows of p[row][key] x_row */
static void mix_back(int64_t rows, int64_t keys, int64_t D, const float *p, int64_t ldp, const float *x, int64_t ldx, float *out,
                     int64_t ldo) {
  smolsum_sgemm(ROW_MAJOR, TRANSPOSED, AS_IS, (int)keys, (int)D, (int)rows, 1, p, (int)ldp, x, (int)ldx, 1, out, (int)ldo);
}

/* s becomes its softmax over `count` scores, and 0 up to `end`. */
static void softmax_row(float *s, int64_t count, int64_t end) {
  float top = -INFINITY;
  wide most = (wide){0} - INFINITY, sum = {0};
  int64_t n = 0;
  for (; n + WIDE <= count; n += WIDE) most = larger(load(s + n), most);
  for (; n < count; n++) top = fmaxf(top, s[n]);
  for (int i = 0; i < WIDE; i++) top = most[i] > top ? most[i] : top;
  for (n = 0; n < count; n += WIDE) {
    wide e = exponential(load_some(s + n, count - n) - top);
    for (int64_t i = count - n; i < WIDE; i++) e[i] = 0;
    sum += e;
    store_some(s + n, e, count - n);
  }
  float scale = 1.0f / sum_of(sum);
  for (n = 0; n < count; n++) s[n] *= scale;
  for (; n < end; n++) s[n] = 0;
}

/* The probabilities of rows [from, to), which are all of the prompt or all of completions. */
static void probabilities(const attention *a, const view *v, int64_t first, int64_t last, int64_t from, int64_t to) {
  const model *m = a->m;
  int64_t D = m->head_dim, Q = query_width(m), ld = Q + key_width(m), start, end;
  const float *q = a->turned + a->head * D;
  if (v->shared)
    all_dots(to - from, v->shared, D, m->scale, q + from * ld, ld, keys_of(a, v->prompt), ld, a->scores, v->stride);
  for (int64_t s = first; s < last; s++)
    if (piece(v->b, s, from, to, &start, &end)) {
      int64_t own = v->b->segment[s];
      float *scores = a->scores + (start - from) * v->stride;
      all_dots(end - start, end - own, D, m->scale, q + start * ld, ld, keys_of(a, own), ld, scores + v->shared, v->stride);
      for (int64_t r = start; r < end; r++, scores += v->stride)
        softmax_row(scores, v->shared + r - own + 1, v->shared + end - own);
    }
}

static void attend_rows(const attention *a, const view *v, int64_t first, int64_t last, int64_t from, int64_t to, float *mixed) {
  int64_t D = a->m->head_dim, Q = query_width(a->m), ld = Q + 2 * key_width(a->m), start, end;
  float *out = mixed + a->head * D;
  probabilities(a, v, first, last, from, to);
  if (v->shared) mix(to - from, v->shared, D, a->scores, v->stride, values_of(a, v->prompt), ld, 0, out + from * Q, Q);
  for (int64_t s = first; s < last; s++)
    if (piece(v->b, s, from, to, &start, &end))
      mix(end - start, end - v->b->segment[s], D, a->scores + (start - from) * v->stride + v->shared, v->stride,
          values_of(a, v->b->segment[s]), ld, v->shared != 0, out + start * Q, Q);
}

static void attend_rows_back(const attention *a, const view *v, int64_t first, int64_t last, int64_t from, int64_t to) {
  const model *m = a->m;
  int64_t D = m->head_dim, Q = query_width(m), ldk = Q + key_width(m), ldv = Q + 2 * key_width(m), at = a->head * D, start, end;
  const float *d_out = a->d_mixed + at, *out = a->mixed + at, *q = a->turned + at;
  float *d_q = a->d_query + at, *d_k = a->d_key + at, *d_v = a->d_value + at;
  probabilities(a, v, first, last, from, to);
  if (v->shared) {
    all_dots(to - from, v->shared, D, 1, d_out + from * Q, Q, values_of(a, v->prompt), ldv, a->d_scores, v->stride);
    mix_back(to - from, v->shared, D, a->scores, v->stride, d_out + from * Q, Q, d_v + v->prompt * Q, Q);
  }
  for (int64_t s = first; s < last; s++)
    if (piece(v->b, s, from, to, &start, &end)) {
      int64_t own = v->b->segment[s], keys = end - own;
      float *p = a->scores + (start - from) * v->stride, *d_p = a->d_scores + (start - from) * v->stride;
      all_dots(end - start, keys, D, 1, d_out + start * Q, Q, values_of(a, own), ldv, d_p + v->shared, v->stride);
      mix_back(end - start, keys, D, p + v->shared, v->stride, d_out + start * Q, Q, d_v + own * Q, Q);
      for (int64_t r = 0; r < end - start; r++) {
        float along = dot(d_out + (start + r) * Q, out + (start + r) * Q, D), *d = d_p + r * v->stride, *e = p + r * v->stride;
        for (int64_t n = 0; n < v->shared + keys; n++) d[n] = e[n] * (d[n] - along) * m->scale;
      }
      mix(end - start, keys, D, d_p + v->shared, v->stride, keys_of(a, own), ldk, 0, d_q + start * Q, Q);
      mix_back(end - start, keys, D, d_p + v->shared, v->stride, q + start * ldk, ldk, d_k + own * Q, Q);
    }
  if (v->shared) {
    mix(to - from, v->shared, D, a->d_scores, v->stride, keys_of(a, v->prompt), ldk, 1, d_q + from * Q, Q);
    mix_back(to - from, v->shared, D, a->d_scores, v->stride, q + from * ldk, ldk, d_k + v->prompt * Q, Q);
  }
}

/* One head of one group; `mixed` is NULL for backward. */
static void attend_group(const attention *a, const batch *b, int64_t stride, int64_t g, float *mixed) {
  int64_t Q = query_width(a->m), D = a->m->head_dim, first = b->group[g], last = b->group[g + 1];
  int64_t prompt = b->segment[first], start = b->segment[first + 1], end = b->segment[last];
  view of_prompt = {b, prompt, prompt, 0, stride}, of_rest = {b, prompt, start, start - prompt, stride};
  if (mixed == NULL)
    for (int64_t r = prompt; r < end; r++) {
      memset(a->d_key + r * Q + a->head * D, 0, D * sizeof(float));
      memset(a->d_value + r * Q + a->head * D, 0, D * sizeof(float));
    }
  for (int64_t from = prompt; from < end;) {
    int64_t to = lesser(from + QUERIES, from < start ? start : end);
    const view *v = from < start ? &of_prompt : &of_rest;
    int64_t one = from < start ? first : first + 1, after = from < start ? first + 1 : last;
    if (mixed) attend_rows(a, v, one, after, from, to, mixed);
    else attend_rows_back(a, v, one, after, from, to);
    from = to;
  }
}

/* ---- the short convolution (LFM2): mixed = C * conv(B * x), where raw is [row][B, C, x] ---- */

/* The row `back` rows before r, through the prompt; -1 before the first token. */
static int64_t earlier(const batch *b, int64_t g, int64_t s, int64_t r, int64_t back) {
  int64_t prompt = b->group[g], row = r - back;
  if (row >= b->segment[s]) return row;
  if (s == prompt) return -1;
  row = b->segment[prompt + 1] - (b->segment[s] - row);
  return row >= b->segment[prompt] ? row : -1;
}

/* Channels [from, to) of all rows. */
static void convolve_rows(const model *m, const linear *conv, const batch *b, const float *raw, int64_t from, int64_t to,
                          float *mixed) {
  int64_t H = m->hidden, width = to - from;
  float taps[m->taps * width];
  for (int64_t tap = 0; tap < m->taps; tap++)
    for (int64_t h = 0; h < width; h++) taps[tap * width + h] = conv->weight[(from + h) * m->taps + tap];
  for (int64_t g = 0; g < b->groups; g++)
    for (int64_t s = b->group[g]; s < b->group[g + 1]; s++)
      for (int64_t r = b->segment[s]; r < b->segment[s + 1]; r++) {
        float *out = mixed + r * H + from;
        const float *gate = raw + r * 3 * H + H + from;
        for (int64_t h = 0; h < width; h++) out[h] = conv->bias ? conv->bias[from + h] : 0;
        for (int64_t tap = 0; tap < m->taps; tap++) {
          int64_t row = earlier(b, g, s, r, m->taps - 1 - tap);
          if (row < 0) continue;
          const float *B = raw + row * 3 * H + from, *x = B + 2 * H;
          for (int64_t h = 0; h < width; h++) out[h] += taps[tap * width + h] * B[h] * x[h];
        }
        for (int64_t h = 0; h < width; h++) out[h] *= gate[h];
      }
}

/* d_raw of channels [from, to), and what the taps and the bias gain; d_product is [row][hidden]. */
static void convolve_rows_back(const model *m, const linear *conv, const linear *d_conv, const batch *b, const float *raw,
                               const float *d_mixed, int64_t from, int64_t to, float *d_product, float *d_raw) {
  int64_t H = m->hidden, width = to - from;
  float taps[m->taps * width], d_taps[m->taps * width], d_bias[width], sum[width], d_sum[width];
  memset(d_taps, 0, sizeof d_taps);
  memset(d_bias, 0, sizeof d_bias);
  for (int64_t tap = 0; tap < m->taps; tap++)
    for (int64_t h = 0; h < width; h++) taps[tap * width + h] = conv->weight[(from + h) * m->taps + tap];
  for (int64_t r = 0; r < b->rows; r++) memset(d_product + r * H + from, 0, width * sizeof(float));
  for (int64_t g = 0; g < b->groups; g++)
    for (int64_t s = b->group[g]; s < b->group[g + 1]; s++)
      for (int64_t r = b->segment[s]; r < b->segment[s + 1]; r++) {
        const float *gate = raw + r * 3 * H + H + from, *d_out = d_mixed + r * H + from;
        float *d_gate = d_raw + r * 3 * H + H + from;
        for (int64_t h = 0; h < width; h++) sum[h] = conv->bias ? conv->bias[from + h] : 0, d_sum[h] = d_out[h] * gate[h];
        for (int64_t tap = 0; tap < m->taps; tap++) {
          int64_t row = earlier(b, g, s, r, m->taps - 1 - tap);
          if (row < 0) continue;
          const float *B = raw + row * 3 * H + from, *x = B + 2 * H;
          float *d = d_product + row * H + from;
          for (int64_t h = 0; h < width; h++) {
            sum[h] += taps[tap * width + h] * B[h] * x[h];
            d_taps[tap * width + h] += d_sum[h] * B[h] * x[h];
            d[h] += d_sum[h] * taps[tap * width + h];
          }
        }
        for (int64_t h = 0; h < width; h++) d_gate[h] = d_out[h] * sum[h], d_bias[h] += d_sum[h];
      }
  for (int64_t r = 0; r < b->rows; r++) {
    const float *B = raw + r * 3 * H + from, *x = B + 2 * H, *d = d_product + r * H + from;
    float *d_B = d_raw + r * 3 * H + from, *d_x = d_B + 2 * H;
    for (int64_t h = 0; h < width; h++) d_B[h] = d[h] * x[h], d_x[h] = d[h] * B[h];
  }
  for (int64_t tap = 0; d_conv->weight && tap < m->taps; tap++)
    for (int64_t h = 0; h < width; h++) ((float *)d_conv->weight)[(from + h) * m->taps + tap] += d_taps[tap * width + h];
  if (d_conv->bias) add_to((float *)d_conv->bias + from, d_bias, width);
}

#endif
