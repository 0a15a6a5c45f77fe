/* Log-probs of completions and their gradient by all weights, or by those that have a place for it (gradient.py).

   The rows of a batch are the tokens of its prompts, each once, and of their completions (mixers.h). Threads share out rows
   where a token is computed by itself, heads where it looks back, and the columns of a weight's gradient. */

#include <stdlib.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "mixers.h"

typedef struct {
  float *x, *scale;            /* what enters the layer, and 1 / rms of its rows */
  float *raw, *turned, *mixed; /* projected; rotated queries and keys; the mixer's output */
  float *middle, *scale_after; /* what enters the second half */
  float *gate, *up;
} kept;

typedef struct {
  kept *layer;
  float *last, *scale, *final; /* what leaves the layers; 1 / rms; the normed rows of completions, [scored][hidden] */
  float *logits, *log_totals;  /* [chunk][vocab], [scored] */
  float *h, *dx, *dh, *inner, *d_mixed, *d_raw, *d_key, *d_value; /* of one layer */
  float *scores;                                                  /* [thread][2][QUERIES][stride] */
  float *norms;                                                   /* [thread][2][head_dim] */
  int64_t stride;
} space;

typedef struct {
  const model *m, *d; /* the weights and their gradient, NULL where it is not wanted */
  const batch *b;
  space *s;
  int me, threads;
  int64_t *next; /* the next task of heads */
} worker;

static int is_attention(const model *m, int64_t l) { return m->layer[l].q.weight != NULL; }
static int64_t raw_width(const model *m, int64_t l) {
  return is_attention(m, l) ? query_width(m) + 2 * key_width(m) : 3 * m->hidden;
}
static int64_t turned_width(const model *m, int64_t l) { return is_attention(m, l) ? query_width(m) + key_width(m) : 0; }
static int64_t mixed_width(const model *m, int64_t l) { return is_attention(m, l) ? query_width(m) : m->hidden; }
static int64_t widest(const model *m, int64_t (*width)(const model *, int64_t)) {
  int64_t most = 0;
  for (int64_t l = 0; l < m->layers; l++) most = width(m, l) > most ? width(m, l) : most;
  return most;
}

/* Takes `count` values from `*at`, on whole cache lines. */
static float *take(float **at, int64_t count) {
  float *found = *at;
  *at = found + (count + 15) / 16 * 16;
  return found;
}

/* Lays out the space of a batch from `start` on, and returns its end; without `backward` all layers share one. */
static float *lay_out(const model *m, const batch *b, int threads, int backward, float *start, space *s, kept *layers) {
  int64_t N = b->rows, H = m->hidden, own = backward ? m->layers : 1;
  float *at = start;
  s->layer = layers;
  s->stride = most_visible(b);
  s->last = take(&at, N * H);
  for (int64_t l = 0; l < own; l++) {
    int64_t raw = backward ? raw_width(m, l) : widest(m, raw_width);
    int64_t turned = backward ? turned_width(m, l) : widest(m, turned_width);
    int64_t mixed = backward ? mixed_width(m, l) : widest(m, mixed_width);
    layers[l] = (kept){.x = take(&at, N * H), .scale = take(&at, N), .raw = take(&at, N * raw), .turned = take(&at, N * turned),
                       .mixed = take(&at, N * mixed), .middle = take(&at, N * H), .scale_after = take(&at, N),
                       .gate = take(&at, N * m->inner), .up = take(&at, N * m->inner)};
  }
  for (int64_t l = own; l < m->layers; l++) layers[l] = layers[0];
  s->scale = take(&at, N);
  s->final = take(&at, b->scored * H);
  s->logits = take(&at, b->chunk * m->vocab);
  s->log_totals = take(&at, b->scored);
  s->h = take(&at, N * H);
  s->inner = take(&at, N * (m->inner > query_width(m) ? m->inner : query_width(m))); /* later the gradient by queries */
  s->scores = take(&at, threads * 2 * QUERIES * s->stride);
  if (backward) {
    int64_t mixed = widest(m, mixed_width);
    s->dx = take(&at, N * H);
    s->dh = take(&at, N * H);
    s->d_mixed = take(&at, N * mixed);
    s->d_raw = take(&at, N * widest(m, raw_width));
    s->d_key = take(&at, N * mixed);
    s->d_value = take(&at, N * mixed);
    s->norms = take(&at, threads * 2 * m->head_dim);
  }
  return at;
}

/* Returns the number of float32 values that a batch needs. */
int64_t gradient_space(const model *m, const batch *b, int threads, int backward) {
  kept layers[m->layers];
  space s;
  return lay_out(m, b, threads, backward, NULL, &s, layers) - (float *)NULL;
}

/* This thread's part of `count`, in multiples of `unit`. */
static int64_t part(const worker *w, int64_t count, int64_t unit, int64_t *to) {
  int64_t units = (count + unit - 1) / unit;
  *to = lesser(units * (w->me + 1) / w->threads * unit, count);
  return lesser(units * w->me / w->threads * unit, count);
}

/* Waits for all threads. */
static void meet_all(void) {
#pragma omp barrier
}

/* The next head of a group; thread 0 begins anew for each layer, while the others are before a barrier. */
static int64_t next_task(const worker *w) {
  int64_t found;
#pragma omp atomic capture
  found = (*w->next)++;
  return found;
}

static attention of_layer(const worker *w, int64_t l) {
  const kept *k = &w->s->layer[l];
  float *scores = w->s->scores + w->me * 2 * QUERIES * w->s->stride;
  return (attention){.m = w->m, .turned = k->turned, .raw = k->raw, .mixed = k->mixed, .d_mixed = w->s->d_mixed,
                     .scores = scores, .d_scores = scores + QUERIES * w->s->stride,
                     .d_query = w->s->inner, /* free while heads go back */
                     .d_key = w->s->d_key, .d_value = w->s->d_value};
}

/* ---- forward ---- */

static void project(const linear *f, int64_t from, int64_t to, int64_t out, int64_t in, const float *x, float *y, int64_t ldy) {
  product(to - from, out, in, x + from * in, in, f->weight, 0, y + from * ldy, ldy);
  for (int64_t r = from; f->bias && r < to; r++) add_to(y + r * ldy, f->bias, out);
}

/* y = before + x W^T + b */
static void project_and_add(const linear *f, int64_t from, int64_t to, int64_t out, int64_t in, const float *x,
                            const float *before, float *y) {
  memmove(y + from * out, before + from * out, (to - from) * out * sizeof *y);
  for (int64_t r = from; f->bias && r < to; r++) add_to(y + r * out, f->bias, out);
  product(to - from, out, in, x + from * in, in, f->weight, 1, y + from * out, out);
}

static void turn_rows(const model *m, const layer *f, const batch *b, int64_t from, int64_t to, const kept *k) {
  int64_t D = m->head_dim, Q = query_width(m), K = key_width(m);
  for (int64_t r = from; r < to; r++)
    for (int64_t head = 0; head < m->heads + m->kv_heads; head++) {
      const float *x = k->raw + r * (Q + 2 * K) + head * D, *norm = head < m->heads ? f->q_norm : f->k_norm;
      float *y = k->turned + r * (Q + K) + head * D;
      if (norm) normalise_row(x, norm, D, m->eps, y);
      else memcpy(y, x, D * sizeof *y);
      rotate_row(m->rotations + b->positions[r] * D, D, 0, y);
    }
}

static void layer_forward(const worker *w, int64_t l, float *out) {
  const model *m = w->m;
  const layer *f = &m->layer[l];
  const kept *k = &w->s->layer[l];
  float *h = w->s->h, *inner = w->s->inner;
  int64_t H = m->hidden, Q = query_width(m), K = key_width(m), I = m->inner, W = raw_width(m, l), to;
  int64_t from = part(w, w->b->rows, 1, &to);
  if (w->me == 0) *w->next = 0;
  for (int64_t r = from; r < to; r++) k->scale[r] = normalise_row(k->x + r * H, f->mixer_norm, H, m->eps, h + r * H);
  if (is_attention(m, l)) {
    project(&f->q, from, to, Q, H, h, k->raw, W);
    project(&f->k, from, to, K, H, h, k->raw + Q, W);
    project(&f->v, from, to, K, H, h, k->raw + Q + K, W);
    turn_rows(m, f, w->b, from, to, k);
    meet_all();
    attention a = of_layer(w, l);
    for (int64_t task; (task = next_task(w)) < w->b->groups * m->heads;) {
      a.head = task % m->heads;
      attend_group(&a, w->b, w->s->stride, task / m->heads, k->mixed);
    }
  } else {
    int64_t end, start = part(w, H, WIDE, &end);
    project(&f->enter, from, to, W, H, h, k->raw, W);
    meet_all();
    if (start < end) convolve_rows(m, &f->conv, w->b, k->raw, start, end, k->mixed);
  }
  meet_all();
  project_and_add(is_attention(m, l) ? &f->o : &f->leave, from, to, H, mixed_width(m, l), k->mixed, k->x, k->middle);
  for (int64_t r = from; r < to; r++) k->scale_after[r] = normalise_row(k->middle + r * H, f->mlp_norm, H, m->eps, h + r * H);
  project(&f->gate, from, to, I, H, h, k->gate, I);
  project(&f->up, from, to, I, H, h, k->up, I);
  for (int64_t r = from; r < to; r++) gate_row(k->gate + r * I, k->up + r * I, I, inner + r * I);
  project_and_add(&f->down, from, to, H, I, inner, k->middle, out);
}

/* The row of the n-th scored token: `*group` is where to look first. */
static int64_t scored_row(const batch *b, int64_t n, int64_t *group, int64_t *before) {
  for (;; ++*group) {
    int64_t start = b->segment[b->group[*group] + 1], count = b->segment[b->group[*group + 1]] - start;
    if (n < *before + count) return start + n - *before;
    *before += count;
  }
}

static void logits_forward(const worker *w, int64_t first, int64_t count) {
  const model *m = w->m;
  int64_t to, from = part(w, m->vocab, WEIGHTS, &to), H = m->hidden;
  product(count, to - from, H, w->s->final + first * H, H, m->head + from * H, 0, w->s->logits + from, m->vocab);
  meet_all();
}

static void score_forward(const worker *w) {
  const batch *b = w->b;
  int64_t H = w->m->hidden, V = w->m->vocab, to, from = part(w, b->scored, 1, &to), group = 0, before = 0;
  for (int64_t n = from; n < to; n++) {
    int64_t r = scored_row(b, n, &group, &before);
    w->s->scale[r] = normalise_row(w->s->last + r * H, w->m->norm, H, w->m->eps, w->s->final + n * H);
  }
  meet_all();
  for (int64_t first = 0; first < b->scored; first += b->chunk) {
    int64_t count = lesser(b->chunk, b->scored - first);
    logits_forward(w, first, count);
    from = part(w, count, 1, &to);
    group = before = 0;
    for (int64_t n = from; n < to; n++) {
      int64_t r = scored_row(b, first + n, &group, &before);
      w->s->log_totals[first + n] =
          score_row(w->s->logits + n * V, V, b->temperature, b->targets[r], b->logprobs + r, b->entropies + r);
    }
    meet_all();
  }
}

static void forward(const worker *w) {
  const model *m = w->m;
  int64_t H = m->hidden, to, from = part(w, w->b->rows, 1, &to);
  for (int64_t r = from; r < to; r++)
    memcpy(w->s->layer[0].x + r * H, m->embedding + w->b->tokens[r] * H, H * sizeof(float));
  for (int64_t l = 0; l < m->layers; l++) layer_forward(w, l, l + 1 < m->layers ? w->s->layer[l + 1].x : w->s->last);
  meet_all();
  score_forward(w);
}

/* ---- backward: dx is the gradient by the rows that leave a layer, and becomes that by those that enter it ---- */

static void linear_back(const worker *w, const linear *d, int64_t out, int64_t in, const float *dy, int64_t ldy, const float *x) {
  int64_t to, from = part(w, out, WEIGHTS, &to);
  if (d->weight == NULL) return;
  weight_back(w->b->rows, to - from, in, dy + from, ldy, x, in, (float *)d->weight + from * in);
  for (int64_t r = 0; d->bias && r < w->b->rows; r++) add_to((float *)d->bias + from, dy + r * ldy + from, to - from);
}

/* The gradient of a norm's weights; dh is that by its output, x its input. */
static void norm_back(const worker *w, const float *d, const float *dh, const float *x, const float *scale) {
  int64_t H = w->m->hidden, to, from = part(w, H, WIDE, &to);
  for (int64_t r = 0; d && r < w->b->rows; r++)
    for (int64_t h = from; h < to; h++) ((float *)d)[h] += dh[r * H + h] * x[r * H + h] * scale[r];
}

static void mlp_backward(const worker *w, int64_t l, int64_t from, int64_t to) {
  const model *m = w->m;
  const layer *f = &m->layer[l], *d = &w->d->layer[l];
  const kept *k = &w->s->layer[l];
  float *h = w->s->h, *dx = w->s->dx, *dh = w->s->dh, *inner = w->s->inner;
  int64_t H = m->hidden, I = m->inner;
  product_back(to - from, H, I, dx + from * H, H, f->down.weight, 0, inner + from * I, I);
  for (int64_t r = from; r < to; r++) {
    gate_row_back(k->gate + r * I, k->up + r * I, I, inner + r * I);
    normalise_again(k->middle + r * H, f->mlp_norm, H, k->scale_after[r], h + r * H);
  }
  product_back(to - from, I, H, k->gate + from * I, I, f->gate.weight, 0, dh + from * H, H);
  product_back(to - from, I, H, k->up + from * I, I, f->up.weight, 1, dh + from * H, H);
  meet_all();
  linear_back(w, &d->down, H, I, dx, H, inner);
  linear_back(w, &d->gate, I, H, k->gate, I, h);
  linear_back(w, &d->up, I, H, k->up, I, h);
  norm_back(w, d->mlp_norm, dh, k->middle, k->scale_after);
  meet_all();
  for (int64_t r = from; r < to; r++)
    normalise_row_back(k->middle + r * H, f->mlp_norm, H, k->scale_after[r], dh + r * H, 1, dx + r * H);
}

/* From the gradient by rotated queries and keys to that by what the projections returned. */
static void turn_rows_back(const worker *w, int64_t l, int64_t from, int64_t to) {
  const model *m = w->m;
  const layer *f = &m->layer[l];
  int64_t D = m->head_dim, Q = query_width(m), K = key_width(m), W = Q + 2 * K, each = m->heads / m->kv_heads;
  float dk[2][K > D ? K : D], scaled[D];
  float *norms = w->s->norms + w->me * 2 * D;
  memset(norms, 0, 2 * D * sizeof *norms);
  for (int64_t r = from; r < to; r++) {
    float *d_raw = w->s->d_raw + r * W;
    const float *raw = w->s->layer[l].raw + r * W, *query = w->s->inner + r * Q;
    memset(dk, 0, sizeof dk);
    for (int64_t head = 0; head < m->heads; head++) {
      add_to(dk[0] + head / each * D, w->s->d_key + r * Q + head * D, D);
      add_to(dk[1] + head / each * D, w->s->d_value + r * Q + head * D, D);
    }
    memcpy(d_raw, query, Q * sizeof *d_raw);
    memcpy(d_raw + Q, dk[0], K * sizeof *d_raw);
    memcpy(d_raw + Q + K, dk[1], K * sizeof *d_raw);
    for (int64_t head = 0; head < m->heads + m->kv_heads; head++) {
      const float *norm = head < m->heads ? f->q_norm : f->k_norm, *x = raw + head * D;
      float *dy = d_raw + head * D, *sum = norms + (head < m->heads ? 0 : D);
      rotate_row(m->rotations + w->b->positions[r] * D, D, 1, dy);
      if (norm == NULL) continue;
      float scale = 1.0f / sqrtf(dot(x, x, D) / (float)D + m->eps);
      for (int64_t i = 0; i < D; i++) sum[i] += dy[i] * x[i] * scale, scaled[i] = dy[i];
      normalise_row_back(x, norm, D, scale, scaled, 0, dy);
    }
  }
}

static void attention_backward(const worker *w, int64_t l, int64_t from, int64_t to) {
  const model *m = w->m;
  const layer *f = &m->layer[l], *d = &w->d->layer[l];
  float *h = w->s->h, *dh = w->s->dh, *d_raw = w->s->d_raw;
  int64_t H = m->hidden, Q = query_width(m), K = key_width(m), W = Q + 2 * K, D = m->head_dim;
  attention a = of_layer(w, l);
  for (int64_t task; (task = next_task(w)) < w->b->groups * m->heads;) {
    a.head = task % m->heads;
    attend_group(&a, w->b, w->s->stride, task / m->heads, NULL);
  }
  meet_all();
  turn_rows_back(w, l, from, to);
  product_back(to - from, Q, H, d_raw + from * W, W, f->q.weight, 0, dh + from * H, H);
  product_back(to - from, K, H, d_raw + from * W + Q, W, f->k.weight, 1, dh + from * H, H);
  product_back(to - from, K, H, d_raw + from * W + Q + K, W, f->v.weight, 1, dh + from * H, H);
  meet_all();
  linear_back(w, &d->q, Q, H, d_raw, W, h);
  linear_back(w, &d->k, K, H, d_raw + Q, W, h);
  linear_back(w, &d->v, K, H, d_raw + Q + K, W, h);
  for (int t = 0; w->me == 0 && t < w->threads; t++) {
    if (d->q_norm) add_to((float *)d->q_norm, w->s->norms + t * 2 * D, D);
    if (d->k_norm) add_to((float *)d->k_norm, w->s->norms + t * 2 * D + D, D);
  }
}

static void convolution_backward(const worker *w, int64_t l, int64_t from, int64_t to) {
  const layer *f = &w->m->layer[l], *d = &w->d->layer[l];
  int64_t H = w->m->hidden, end, start = part(w, H, WIDE, &end);
  if (start < end)
    convolve_rows_back(w->m, &f->conv, &d->conv, w->b, w->s->layer[l].raw, w->s->d_mixed, start, end, w->s->d_key, w->s->d_raw);
  meet_all();
  product_back(to - from, 3 * H, H, w->s->d_raw + from * 3 * H, 3 * H, f->enter.weight, 0, w->s->dh + from * H, H);
  meet_all();
  linear_back(w, &d->enter, 3 * H, H, w->s->d_raw, 3 * H, w->s->h);
}

static void layer_backward(const worker *w, int64_t l) {
  const model *m = w->m;
  const layer *f = &m->layer[l], *d = &w->d->layer[l];
  const kept *k = &w->s->layer[l];
  int64_t H = m->hidden, M = mixed_width(m, l), to, from = part(w, w->b->rows, 1, &to);
  const linear *leave = is_attention(m, l) ? &f->o : &f->leave, *d_leave = is_attention(m, l) ? &d->o : &d->leave;
  if (w->me == 0) *w->next = 0;
  mlp_backward(w, l, from, to);
  product_back(to - from, H, M, w->s->dx + from * H, H, leave->weight, 0, w->s->d_mixed + from * M, M);
  for (int64_t r = from; r < to; r++) normalise_again(k->x + r * H, f->mixer_norm, H, k->scale[r], w->s->h + r * H);
  meet_all();
  linear_back(w, d_leave, H, M, w->s->dx, H, k->mixed);
  if (is_attention(m, l)) attention_backward(w, l, from, to);
  else convolution_backward(w, l, from, to);
  norm_back(w, d->mixer_norm, w->s->dh, k->x, k->scale);
  meet_all();
  for (int64_t r = from; r < to; r++)
    normalise_row_back(k->x + r * H, f->mixer_norm, H, k->scale[r], w->s->dh + r * H, 1, w->s->dx + r * H);
}

/* dh of all rows: the gradient by the final norm's output, 0 for prompts. */
static void score_backward(const worker *w) {
  const batch *b = w->b;
  int64_t H = w->m->hidden, V = w->m->vocab, to, from = part(w, b->rows, 1, &to), group, before;
  memset(w->s->dh + from * H, 0, (to - from) * H * sizeof(float));
  meet_all();
  for (int64_t first = 0; first < b->scored; first += b->chunk) {
    int64_t count = lesser(b->chunk, b->scored - first), start, end;
    if (b->chunk < b->scored) logits_forward(w, first, count); /* the others are still there, divided by the temperature */
    from = part(w, count, 1, &to);
    group = before = 0;
    for (int64_t n = from; n < to; n++) {
      int64_t r = scored_row(b, first + n, &group, &before);
      float *logits = w->s->logits + n * V;
      for (int64_t i = 0; b->chunk < b->scored && i < V; i++) logits[i] /= b->temperature;
      score_row_back(logits, V, b->temperature, b->targets[r], w->s->log_totals[first + n], b->weights[r]);
    }
    product_back(to - from, V, H, w->s->logits + from * V, V, w->m->head, 0, w->s->h + from * H, H);
    group = before = 0;
    for (int64_t n = from; n < to; n++)
      memcpy(w->s->dh + scored_row(b, first + n, &group, &before) * H, w->s->h + n * H, H * sizeof(float));
    meet_all();
    start = part(w, V, WEIGHTS, &end);
    if (w->d->head)
      weight_back(count, end - start, H, w->s->logits + start, V, w->s->final + first * H, H, (float *)w->d->head + start * H);
    meet_all();
  }
}

static void backward(const worker *w) {
  const model *m = w->m;
  const batch *b = w->b;
  int64_t H = m->hidden, to, from = part(w, b->rows, 1, &to), group = 0, before = 0, end, start = part(w, H, WIDE, &end);
  score_backward(w);
  for (int64_t n = 0; w->d->norm && n < b->scored; n++) { /* columns of the final norm's weights */
    int64_t r = scored_row(b, n, &group, &before);
    for (int64_t h = start; h < end; h++) ((float *)w->d->norm)[h] += w->s->dh[r * H + h] * w->s->last[r * H + h] * w->s->scale[r];
  }
  meet_all();
  memset(w->s->dx + from * H, 0, (to - from) * H * sizeof(float));
  for (int64_t g = 0; g < b->groups; g++)
    for (int64_t r = b->segment[b->group[g] + 1]; r < b->segment[b->group[g + 1]]; r++)
      if (r >= from && r < to)
        normalise_row_back(w->s->last + r * H, m->norm, H, w->s->scale[r], w->s->dh + r * H, 0, w->s->dx + r * H);
  for (int64_t l = m->layers - 1; l >= 0; l--) layer_backward(w, l);
  meet_all();
  for (int64_t r = 0; w->d->embedding && r < b->rows; r++)
    add_to((float *)w->d->embedding + b->tokens[r] * H + start, w->s->dx + r * H + start, end - start);
}

/* Without `d`: log-probs and entropies of the batch; with it, after a call without it in the same space: adds the gradient
   of sum(weights * log-probs). `backward_follows` says that such a call follows, or is this one. */
void gradient_run(const model *m, const model *d, const batch *b, float *at, int threads, int backward_follows) {
  kept layers[m->layers];
  space s;
  int64_t next = 0;
  lay_out(m, b, threads, backward_follows, at, &s, layers);
  products_in_bfloat16(b->bfloat16 != 0);
#pragma omp parallel num_threads(threads)
  {
    worker w = {.m = m, .d = d, .b = b, .s = &s, .me = 0, .threads = 1, .next = &next};
#ifdef _OPENMP
    w.me = omp_get_thread_num();
    w.threads = omp_get_num_threads();
#endif
    if (d) backward(&w);
    else forward(&w);
    products_end();
  }
}
