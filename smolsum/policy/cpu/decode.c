/* Sampling from a decoder-only transformer: many tokens of many sequences in one call, without a visit to the host.

   A pass feeds one token of up to MOST_ROWS sequences, or many tokens of a prompt, through all layers (layers.h). */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "layers.h"

enum { TOKENS = 20 * WEIGHTS }; /* of the vocabulary, whose probabilities have one partial sum; even */

/* The logits of a part of the vocabulary at each row's temperature, the largest, and the sum of e^(logit - largest). A
   vector holds one token of WIDE rows or two of NARROW ones; the sums of even and of odd tokens are added at the end. */
static void score_tokens(const team *t, const float *h, int64_t from, int64_t to) {
  int64_t K = t->model->hidden, rows = t->rows, part = from / TOKENS, both = rows < WIDE, count = to - from;
  float *logits = t->logits + from * rows;
  multiply(K, rows, h, K, t->model->head + from * K, count, logits);
  if (both && count % 2)
    for (int64_t m = 0; m < rows; m++) logits[count * rows + m] = -INFINITY; /* after the last token of all */
  for (int64_t m = 0; m < rows; m += WIDE) {
    wide temperature, most = (wide){0} - INFINITY, sum[2] = {{0}};
    for (int64_t i = 0; i < WIDE; i++) temperature[i] = t->temperature[(m + i) % rows];
    for (int64_t n = 0; n < count; n += 1 + both) {
      wide value = load(logits + n * rows + m) / temperature;
      store(logits + n * rows + m, value);
      most = larger(value, most);
    }
    for (int64_t i = 0; both && i < NARROW; i++) most[i] = most[i + NARROW] = fmaxf(most[i], most[i + NARROW]);
    for (int64_t n = 0; n < count; n += 1 + both)
      sum[both ? 0 : n & 1] += exponential(load(logits + n * rows + m) - most);
    for (int64_t i = 0; i < least(WIDE, rows); i++) {
      t->peaks[part * rows + m + i] = most[i];
      t->sums[part * rows + m + i] = sum[0][i] + (both ? sum[0][i + NARROW] : sum[1][i]);
    }
  }
}

/* Draw a row's token by inversion of the cumulative distribution, or take the likeliest; or give its logits to the host. */
static void draw(team *t, int64_t at, const int32_t *ends, int64_t end_count) {
  sequence *of = t->row[at].of;
  int64_t V = t->model->vocab, rows = t->rows, parts = (V + TOKENS - 1) / TOKENS, token = V - 1, part = 0;
  float most = -INFINITY;
  double total = 0, below = 0;
  if (of->logits) {
    for (int64_t n = 0; n < V; n++) of->logits[n] = t->logits[n * rows + at];
    return;
  }
  for (int64_t p = 0; p < parts; p++) most = fmaxf(most, t->peaks[p * rows + at]);
  for (int64_t p = 0; p < parts; p++) total += t->sums[p * rows + at] * exp((double)t->peaks[p * rows + at] - most);
  if (of->temperature == 0) {
    while (part < parts - 1 && t->peaks[part * rows + at] < most) part++;
    for (token = part * TOKENS; token < V - 1 && t->logits[token * rows + at] < most;) token++;
  } else {
    double wanted = (double)of->uniforms[of->sampled] * total, masses[TOKENS], mass = 0, exact = 0;
    for (;; part++) {
      mass = t->sums[part * rows + at] * exp((double)t->peaks[part * rows + at] - most);
      if (below + mass > wanted || part == parts - 1) break;
      below += mass;
    }
    int64_t from = part * TOKENS, count = least(TOKENS, V - from), n = 0;
    for (int64_t i = 0; i < count; i++) exact += masses[i] = exp((double)t->logits[(from + i) * rows + at] - most);
    wanted = (wanted - below) / mass * exact; /* the part's sum was rounded to float32 */
    for (below = masses[0]; below <= wanted && n < count - 1;) below += masses[++n];
    token = from + n;
  }
  of->tokens[1 + of->sampled] = (int32_t)token;
  of->logprobs[of->sampled++] = (float)((double)t->logits[token * rows + at] - most - log(total));
  for (int64_t e = 0; e < end_count; e++) of->done |= ends[e] == token;
}

/* ---- passes ---- */

/* Copy what the layers remember of the first `count` tokens from one sequence to another that begins with them. */
void decode_copy(const model *m, const sequence *from, sequence *to, int64_t count) {
  int64_t D = m->head_dim, KV = m->kv_heads, used = (count + BLOCK - 1) / BLOCK * BLOCK;
  for (int64_t l = 0; l < m->layers; l++) {
    const float *a = from->own + layer_start(m, l, from->own_room);
    float *b = to->own + layer_start(m, l, to->own_room);
    if (!m->layer[l].q.weight) memcpy(b, a, count * m->hidden * sizeof *b);
    for (int64_t head = 0; m->layer[l].q.weight && head < KV; head++) {
      memcpy(b + head * to->own_room * D, a + head * from->own_room * D, used * D * sizeof *b);
      memcpy(b + (KV + head) * to->own_room * D, a + (KV + head) * from->own_room * D, count * D * sizeof *b);
    }
  }
  to->sampled = count;
}

/* Choose the rows of the next pass: the next token of each sequence that has not ended, or all that are left to feed. */
static void choose(team *t, sequence **of, int64_t n, int64_t *cursor, int sampling) {
  int64_t looked = 0;
  for (t->count = 0; looked < n && t->count < MOST_ROWS; looked++) {
    sequence *one = of[*cursor];
    for (int64_t i = one->sampled; !one->done && i < one->limit && t->count < MOST_ROWS; i++) {
      t->row[t->count++] = (row){one, one->shared_tokens + i, one->tokens[i]};
      if (sampling) break;
      one->sampled++;
    }
    if (!sampling && one->sampled < one->limit) break; /* the pass is full */
    *cursor = (*cursor + 1) % n;
  }
  t->rows = padded(t->count);
  for (int64_t at = 0; at < MOST_ROWS; at++)
    t->temperature[at] = at < t->count && t->row[at].of->temperature != 0 ? t->row[at].of->temperature : 1;
  for (int64_t i = 0; i < (t->model->layers + 1) * STEPS; i++) atomic_store(&t->taken[i], 0);
}

/* Feed the rows through all layers; sample a token for each of them unless `ends` is NULL. */
static void pass(team *t, int me, float *h, float *s, int64_t stride, const int32_t *ends, int64_t end_count) {
  const model *m = t->model;
  int64_t from, to, last = m->layers * STEPS;
  for (int64_t at = me; at < t->rows; at += t->threads)
    for (int64_t k = 0; k < m->hidden; k++)
      t->x[k * t->rows + at] = at < t->count ? m->embedding[t->row[at].token * m->hidden + k] : 0;
  meet(t);
  for (int64_t l = 0; l < m->layers; l++) apply_layer(t, l, h, s, stride);
  if (ends == NULL) return;
  normalise(t->x, m->norm, m->hidden, t->rows, m->eps, h);
  while (next_share(t, last, TOKENS, m->vocab, &from, &to)) score_tokens(t, h, from, to);
  meet(t);
  while (next_share(t, last + 1, 1, t->count, &from, &to)) draw(t, from, ends, end_count);
  meet(t);
}

/* Make at most `passes` passes over n sequences: sample until each has ended, or without `ends` feed `limit` tokens of
   each, whose `sampled` then counts those that were fed. `positions` is the most that a sequence may have. Returns 0,
   or -1 without memory. */
int decode_run(const model *m, sequence **of, int64_t n, const int32_t *ends, int64_t end_count, int64_t passes,
               int64_t positions, int threads) {
  int64_t H = m->hidden, Q = m->heads * m->head_dim, KV = m->kv_heads * m->head_dim, cursor = 0;
  int64_t rows = ends ? padded(least(n, MOST_ROWS)) : MOST_ROWS, most = Q > H ? Q : H;
  int64_t parts = (m->vocab + TOKENS - 1) / TOKENS, stride = (positions + 2 * BLOCK + 15) / 16 * 16;
  int64_t private = (H * rows + TOGETHER * stride + 15) / 16 * 16;
  int64_t sizes[] = {H, 3 * H > Q + 2 * KV ? 3 * H : Q + 2 * KV, most, m->inner, ends ? m->vocab + 1 : 0,
                     ends ? parts : 0, ends ? parts : 0};
  int64_t total = private * threads;
  for (int i = 0; i < 7; i++) total += sizes[i] * rows;
  float *space = aligned_alloc(64, (total * sizeof *space + 63) / 64 * 64), *next = space;
  atomic_long *taken = malloc((m->layers + 1) * STEPS * sizeof *taken);
  if (space == NULL || taken == NULL) {
    free(space);
    free(taken);
    return -1;
  }
  team t = {.model = m, .taken = taken, .threads = 1};
  float **places[] = {&t.x, &t.wide, &t.mixed, &t.inner, &t.logits, &t.peaks, &t.sums};
  for (int i = 0; i < 7; i++) {
    *places[i] = next;
    next += sizes[i] * rows;
  }
#pragma omp parallel num_threads(threads)
  {
    int me = 0;
#ifdef _OPENMP
    me = omp_get_thread_num();
#endif
#pragma omp single
    {
#ifdef _OPENMP
      t.threads = omp_get_num_threads();
#endif
      choose(&t, of, n, &cursor, ends != NULL);
    }
    float *h = next + me * private;
    for (int64_t done = 0; t.count && done < passes; done++) {
      pass(&t, me, h, h + H * rows, stride, ends, end_count);
      if (me == 0 && done + 1 < passes) choose(&t, of, n, &cursor, ends != NULL);
      meet(&t);
    }
  }
  free(space);
  free(taken);
  return 0;
}
