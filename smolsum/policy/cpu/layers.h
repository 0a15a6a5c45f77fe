/* The layers of a decoder-only transformer on packed rows (rows.h): a row is one token at one position of one sequence.

   Every number of a row is computed from its own sequence alone, in a fixed order: neither the other rows, nor the number
   of threads, nor the pass in which an earlier token was fed make a difference. Threads take columns of each matrix in
   turn and meet between two steps of a layer. */

#ifndef SMOLSUM_LAYERS_H
#define SMOLSUM_LAYERS_H

#include <limits.h>
#include <linux/futex.h>
#include <math.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "model.h"

enum {
  BLOCK = 64,             /* positions whose keys are stored together, [feature][position] */
  COLUMNS = 4 * WEIGHTS,  /* of a matrix, that a thread takes at a time, at most */
  TOGETHER = 3,           /* query heads that read keys and values together, as registers allow */
  STEPS = 8,              /* of a layer that share out work, at most */
  SPINS = 2000            /* before a waiting thread leaves its core to others, some 20 to 50 microseconds */
};

typedef struct {
  const float *shared;         /* the cache of the first tokens, which other sequences have too; or NULL */
  float *own;                  /* the cache of the tokens that follow */
  int64_t shared_tokens, shared_room, own_room; /* the rooms are multiples of BLOCK */
  const float *uniforms;       /* one for each token that may be sampled */
  int32_t *tokens;             /* the token that is fed first, then those that are sampled */
  float *logprobs;
  float *logits;               /* where not NULL the host draws: those of the next token, divided by the temperature */
  int64_t sampled, limit;
  float temperature;           /* 0: the likeliest token */
  int32_t done;                /* 1: the end of the text was sampled */
} sequence;

typedef struct {
  sequence *of;
  int64_t position;
  int32_t token;
} row;

typedef struct {
  const model *model;
  int64_t count, rows; /* without and with padding */
  row row[MOST_ROWS];
  float *x, *wide, *mixed, *inner, *logits, *peaks, *sums; /* peaks and sums: [part of the vocabulary][row] */
  float temperature[MOST_ROWS];
  int threads;
  atomic_long *taken; /* shares of work, for each step */
  atomic_int arrived, turn, asleep;
} team;

/* ---- threads ---- */

/* Waits for all threads: a short while at work, then asleep, so that a core which other programs need as well is left to
   the thread that is waited for. */
static void meet(team *t) {
  int turn = atomic_load(&t->turn);
  if (atomic_fetch_add(&t->arrived, 1) == t->threads - 1) {
    atomic_store(&t->arrived, 0);
    atomic_fetch_add(&t->turn, 1);
    if (atomic_load(&t->asleep)) syscall(SYS_futex, &t->turn, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    return;
  }
  for (long spins = 0; spins < SPINS; spins++) {
    if (atomic_load(&t->turn) != turn) return;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  atomic_fetch_add(&t->asleep, 1);
  while (atomic_load(&t->turn) == turn) syscall(SYS_futex, &t->turn, FUTEX_WAIT_PRIVATE, turn, NULL, NULL, 0);
  atomic_fetch_sub(&t->asleep, 1);
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* The next share of `of` pieces: 0 when none is left. */
static int next_share(team *t, int64_t step, int64_t size, int64_t of, int64_t *from, int64_t *to) {
  *from = atomic_fetch_add(&t->taken[step], 1) * size;
  *to = least(*from + size, of);
  return *from < of;
}

static int64_t column_share(const team *t, int64_t columns) {
  int64_t even = columns / (8 * t->threads) / WEIGHTS * WEIGHTS;
  return even < WEIGHTS ? WEIGHTS : least(even, COLUMNS);
}

/* h = x / rms(x) * w for each row (arXiv:1910.07467, equation 4) */
static void normalise(const float *x, const float *w, int64_t K, int64_t rows, float eps, float *h) {
  for (int64_t m = 0; m < rows; m += NARROW) {
    narrow sum[4] = {{0}}, scale;
    for (int64_t k = 0; k < K; k++) {
      narrow value = *(const narrow *)(x + k * rows + m);
      sum[k & 3] += value * value;
    }
    sum[0] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    for (int i = 0; i < NARROW; i++) scale[i] = 1.0f / sqrtf(sum[0][i] / (float)K + eps);
    for (int64_t k = 0; k < K; k++)
      *(narrow *)(h + k * rows + m) = *(const narrow *)(x + k * rows + m) * scale * w[k];
  }
}

/* ---- caches: for each layer [kv head][block][feature][BLOCK] keys, then [kv head][position][feature] values;
        for a convolution [position][feature] ---- */

static int64_t layer_size(const model *m, int64_t l, int64_t room) {
  return m->layer[l].q.weight ? 2 * m->kv_heads * m->head_dim * room : m->hidden * room;
}

int64_t decode_cache_size(const model *m, int64_t room) {
  int64_t size = 0;
  for (int64_t l = 0; l < m->layers; l++) size += layer_size(m, l, room);
  return size;
}

static int64_t layer_start(const model *m, int64_t l, int64_t room) {
  int64_t start = 0;
  for (int64_t i = 0; i < l; i++) start += layer_size(m, i, room);
  return start;
}

/* ---- attention ---- */

/* Rotate the halves of v by the position's angles (arXiv:2104.09864, equation 34), after the norm if there is one. */
static void rotate(const model *m, const float *norm, int64_t position, float *v) {
  int64_t D = m->head_dim, half = D / 2;
  if (norm) {
    float sum = 0;
    for (int64_t d = 0; d < D; d++) sum += v[d] * v[d];
    float scale = 1.0f / sqrtf(sum / (float)D + m->eps);
    for (int64_t d = 0; d < D; d++) v[d] = v[d] * scale * norm[d];
  }
  const float *cosine = m->rotations + position * D, *sine = cosine + half;
  for (int64_t d = 0; d < half; d++) {
    float a = v[d], b = v[d + half];
    v[d] = a * cosine[d] - b * sine[d];
    v[d + half] = a * sine[d] + b * cosine[d];
  }
}

/* Store the key and the value of one row and kv head. */
static void store_key_value(const team *t, int64_t l, int64_t at, int64_t head) {
  const model *m = t->model;
  const row *r = &t->row[at];
  int64_t D = m->head_dim, room = r->of->own_room, i = r->position - r->of->shared_tokens;
  float *cache = r->of->own + layer_start(m, l, room), key[D];
  const float *k = t->wide + (m->heads + head) * D * t->rows + at, *v = k + m->kv_heads * D * t->rows;
  float *keys = cache + (head * room + i / BLOCK * BLOCK) * D + i % BLOCK;
  float *values = cache + (m->kv_heads * room + head * room + i) * D;
  for (int64_t d = 0; d < D; d++) key[d] = k[d * t->rows];
  rotate(m, m->layer[l].k_norm, r->position, key);
  for (int64_t d = 0; d < D; d++) keys[d * BLOCK] = key[d];
  for (int64_t d = 0; d < D; d++) values[d] = v[d * t->rows];
}

/* s[head][position] = <q[head], key>, in whole blocks */
#define SCORES(name, heads)                                                                                             \
  static void name(const float *q, const float *keys, int64_t D, int64_t count, float *s, int64_t stride) {             \
    for (int64_t from = 0; from < count; from += BLOCK, keys += D * BLOCK)                                              \
      for (int64_t at = 0; at < BLOCK; at += 4 * WIDE) {                                                                \
        wide sum[heads][4] = {{{0}}};                                                                                   \
        for (int64_t d = 0; d < D; d++)                                                                                 \
          for (int i = 0; i < 4; i++)                                                                                   \
            for (int h = 0; h < heads; h++)                                                                             \
              sum[h][i] = ADD_WIDE(sum[h][i], load(keys + d * BLOCK + at + i * WIDE), q[h * D + d]);                    \
        for (int h = 0; h < heads; h++)                                                                                 \
          for (int i = 0; i < 4; i++) store(s + h * stride + from + at + i * WIDE, sum[h][i]);                          \
      }                                                                                                                 \
  }

/* out[head][feature] += sum over positions of p[head][position] * value, for some of the features */
#define VALUES(name, heads, vectors)                                                                                    \
  static void name(const float *p, int64_t stride, const float *values, int64_t D, int64_t count, float *out) {         \
    wide sum[heads][vectors];                                                                                           \
    for (int h = 0; h < heads; h++)                                                                                     \
      for (int i = 0; i < vectors; i++) sum[h][i] = load(out + h * D + i * WIDE);                                       \
    for (int64_t n = 0; n < count; n++)                                                                                 \
      for (int i = 0; i < vectors; i++)                                                                                 \
        for (int h = 0; h < heads; h++)                                                                                 \
          sum[h][i] = ADD_WIDE(sum[h][i], load(values + n * D + i * WIDE), p[h * stride + n]);                          \
    for (int h = 0; h < heads; h++)                                                                                     \
      for (int i = 0; i < vectors; i++) store(out + h * D + i * WIDE, sum[h][i]);                                       \
  }
SCORES(scores_1, 1)
SCORES(scores_2, 2)
SCORES(scores_3, 3)
VALUES(values_1_4, 1, 4)
VALUES(values_2_4, 2, 4)
VALUES(values_3_4, 3, 4)
VALUES(values_1_1, 1, 1)
VALUES(values_2_1, 2, 1)
VALUES(values_3_1, 3, 1)

static void scores(int64_t heads, const float *q, const float *keys, int64_t D, int64_t count, float *s, int64_t stride) {
  (heads == 3 ? scores_3 : heads == 2 ? scores_2 : scores_1)(q, keys, D, count, s, stride);
}

static void add_values(int64_t heads, const float *p, int64_t stride, const float *values, int64_t D, int64_t count,
                       float *out) {
  int64_t d = 0;
  for (; d + 4 * WIDE <= D; d += 4 * WIDE)
    (heads == 3 ? values_3_4 : heads == 2 ? values_2_4 : values_1_4)(p, stride, values + d, D, count, out + d);
  for (; d + WIDE <= D; d += WIDE)
    (heads == 3 ? values_3_1 : heads == 2 ? values_2_1 : values_1_1)(p, stride, values + d, D, count, out + d);
}

/* p = e^(s - max), padded with zeros; returns 1 / sum */
static float softmax(float *s, int64_t count) {
  int64_t end = (count + WIDE - 1) / WIDE * WIDE;
  for (int64_t n = count; n < end; n++) s[n] = -INFINITY;
  wide most = load(s), sum = {0};
  for (int64_t n = WIDE; n < end; n += WIDE) most = larger(load(s + n), most);
  float top = most[0];
  for (int i = 1; i < WIDE; i++) top = most[i] > top ? most[i] : top;
  for (int64_t n = 0; n < end; n += WIDE) {
    wide e = exponential(load(s + n) - top);
    store(s + n, e);
    sum += e;
  }
  return 1.0f / sum_of(sum);
}

/* The attention of one row and the query heads from `head` on that read one kv head together; s has room for the scores
   of each, which are `stride` apart. */
static void attend(const team *t, int64_t l, int64_t at, int64_t kv, int64_t head, int64_t heads, float *s, int64_t stride) {
  const model *m = t->model;
  const row *r = &t->row[at];
  const sequence *of = r->of;
  int64_t D = m->head_dim, from = of->shared_tokens, own = r->position - from + 1;
  float q[TOGETHER * D], out[TOGETHER * D];
  for (int64_t h = 0; h < heads; h++) {
    for (int64_t d = 0; d < D; d++) q[h * D + d] = t->wide[((head + h) * D + d) * t->rows + at];
    rotate(m, m->layer[l].q_norm, r->position, q + h * D);
  }
  for (int64_t i = 0; i < heads * D; i++) q[i] *= m->scale, out[i] = 0;
  const float *shared = from ? of->shared + layer_start(m, l, of->shared_room) : NULL;
  const float *mine = of->own + layer_start(m, l, of->own_room);
  if (from) scores(heads, q, shared + kv * of->shared_room * D, D, from, s, stride);
  scores(heads, q, mine + kv * of->own_room * D, D, own, s + from, stride);
  float scale[TOGETHER];
  for (int64_t h = 0; h < heads; h++) scale[h] = softmax(s + h * stride, from + own);
  if (from) add_values(heads, s, stride, shared + (m->kv_heads + kv) * of->shared_room * D, D, from, out);
  add_values(heads, s + from, stride, mine + (m->kv_heads + kv) * of->own_room * D, D, own, out);
  for (int64_t h = 0; h < heads; h++)
    for (int64_t d = 0; d < D; d++) t->mixed[((head + h) * D + d) * t->rows + at] = out[h * D + d] * scale[h];
}

/* The attention of one row and kv head. */
static void attend_all(const team *t, int64_t l, int64_t at, int64_t kv, float *s, int64_t stride) {
  int64_t group = t->model->heads / t->model->kv_heads;
  for (int64_t i = 0; i < group; i += TOGETHER)
    attend(t, l, at, kv, kv * group + i, least(TOGETHER, group - i), s, stride);
}

/* ---- the short convolution (LFM2): out = C * conv(B * x) ---- */

static void store_gated(const team *t, int64_t l, int64_t at) {
  const model *m = t->model;
  const row *r = &t->row[at];
  int64_t H = m->hidden, i = r->position - r->of->shared_tokens;
  float *to = r->of->own + layer_start(m, l, r->of->own_room) + i * H;
  const float *b = t->wide + at, *x = t->wide + 2 * H * t->rows + at;
  for (int64_t h = 0; h < H; h++) to[h] = b[h * t->rows] * x[h * t->rows];
}

static void convolve(const team *t, int64_t l, int64_t at) {
  const model *m = t->model;
  const row *r = &t->row[at];
  const sequence *of = r->of;
  const linear *conv = &m->layer[l].conv;
  int64_t H = m->hidden;
  float sum[H];
  for (int64_t h = 0; h < H; h++) sum[h] = conv->bias ? conv->bias[h] : 0;
  for (int64_t tap = 0; tap < m->taps; tap++) {
    int64_t position = r->position - (m->taps - 1) + tap;
    if (position < 0) continue;
    int mine = position >= of->shared_tokens;
    const float *cache = mine ? of->own + layer_start(m, l, of->own_room) - of->shared_tokens * H
                              : of->shared + layer_start(m, l, of->shared_room);
    for (int64_t h = 0; h < H; h++) sum[h] += conv->weight[h * m->taps + tap] * cache[position * H + h];
  }
  for (int64_t h = 0; h < H; h++) t->mixed[h * t->rows + at] = t->wide[(H + h) * t->rows + at] * sum[h];
}

/* ---- a layer ---- */

/* Columns `from` to `to` of y = x W^T + b, in `y` or added to it. */
static void project(const team *t, const linear *f, int64_t K, const float *x, int64_t from, int64_t to, float *y, int add) {
  float part[COLUMNS * MOST_ROWS], *into = add ? part : y + from * t->rows;
  multiply(K, t->rows, x, K, f->weight + from * K, to - from, into);
  for (int64_t n = from; n < to; n++)
    for (int64_t m = 0; m < t->rows; m += NARROW) {
      narrow value = *(narrow *)(into + (n - from) * t->rows + m);
      if (f->bias) value += f->bias[n];
      if (add) value += *(narrow *)(y + n * t->rows + m);
      if (add || f->bias) *(narrow *)(y + n * t->rows + m) = value;
    }
}

static void project_all(team *t, int64_t step, const linear *f, int64_t K, int64_t N, const float *x, float *y, int add) {
  int64_t from, to;
  while (next_share(t, step, column_share(t, N), N, &from, &to)) project(t, f, K, x, from, to, y, add);
}

/* inner = silu(gate) * up (arXiv:2002.05202, equation 6) */
static void gated(const team *t, const layer *f, const float *x, int64_t from, int64_t to) {
  float gate[COLUMNS * MOST_ROWS], up[COLUMNS * MOST_ROWS];
  int64_t K = t->model->hidden, size = (to - from) * t->rows;
  multiply(K, t->rows, x, K, f->gate.weight + from * K, to - from, gate);
  multiply(K, t->rows, x, K, f->up.weight + from * K, to - from, up);
  for (int64_t i = 0; i < size; i += WIDE) {
    wide g = load(gate + i);
    store(gate + i, g / (1.0f + exponential(-g)) * load(up + i));
  }
  memcpy(t->inner + from * t->rows, gate, size * sizeof *gate);
}

static void apply_layer(team *t, int64_t l, float *h, float *s, int64_t stride) {
  const model *m = t->model;
  const layer *f = &m->layer[l];
  int64_t step = l * STEPS, H = m->hidden, Q = m->heads * m->head_dim, KV = m->kv_heads * m->head_dim, from, to;
  normalise(t->x, f->mixer_norm, H, t->rows, m->eps, h);
  if (f->q.weight) {
    project_all(t, step, &f->q, H, Q, h, t->wide, 0);
    project_all(t, step + 1, &f->k, H, KV, h, t->wide + Q * t->rows, 0);
    project_all(t, step + 2, &f->v, H, KV, h, t->wide + (Q + KV) * t->rows, 0);
    meet(t);
    while (next_share(t, step + 3, 1, t->count * m->kv_heads, &from, &to))
      store_key_value(t, l, from / m->kv_heads, from % m->kv_heads);
    meet(t);
    while (next_share(t, step + 4, 1, t->count * m->kv_heads, &from, &to))
      attend_all(t, l, from % t->count, from / t->count, s, stride);
  } else {
    project_all(t, step, &f->enter, H, 3 * H, h, t->wide, 0);
    meet(t);
    while (next_share(t, step + 3, 1, t->count, &from, &to)) store_gated(t, l, from);
    meet(t);
    while (next_share(t, step + 4, 1, t->count, &from, &to)) convolve(t, l, from);
    Q = H;
  }
  meet(t);
  project_all(t, step + 5, f->q.weight ? &f->o : &f->leave, Q, H, t->mixed, t->x, 1);
  meet(t);
  normalise(t->x, f->mlp_norm, H, t->rows, m->eps, h);
  while (next_share(t, step + 6, column_share(t, m->inner), m->inner, &from, &to)) gated(t, f, h, from, to);
  meet(t);
  project_all(t, step + 7, &f->down, m->inner, H, t->inner, t->x, 1);
  meet(t);
}

#endif
