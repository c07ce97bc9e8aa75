/* SPDX-License-Identifier: Apache-2.0 */
/* Quire from plain C11: one step with two requests, computed by hand, then by the library.
 *
 * The cache has 3 pages of 2 tokens, one KV head, head_dim 2. Request 0 is new: 2 tokens (prefill). Request 1 has 2 tokens in
 * the cache and adds 1 (decode). With softmax_scale 1 and every query (1, 0), a key (ln w, 0) gets the weight w:
 *
 *   request 0   weights 1 | 3          values (4, 8) | (8, 0)               row 0: (4, 8)   row 1: (1*4 + 3*8, 1*8) / 4 = (7, 2)
 *   request 1   weights 1 | 2 | 5      values (8, 0) | (0, 8) | (8, 16)     row 2: (8 + 40, 16 + 80) / 8 = (6, 12)
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quire/quire.h"

#define LN2 0.69314718f
#define LN3 1.09861229f
#define LN5 1.60943791f

static int failures = 0;

static void expect(int ok, const char* what) {
  if (ok) return;
  ++failures;
  fprintf(stderr, "FAILED: %s\n  last message: %s\n", what, quire_last_message());
}

static quire_tensor tensor1(void* data, quire_dtype dtype, int64_t n) { return quire_contiguous(data, dtype, 1, &n); }

static quire_tensor tensor2(void* data, quire_dtype dtype, int64_t n, int64_t m) {
  const int64_t shape[2] = {n, m};
  return quire_contiguous(data, dtype, 2, shape);
}

static quire_tensor tensor3(void* data, quire_dtype dtype, int64_t n, int64_t m, int64_t d) {
  const int64_t shape[3] = {n, m, d};
  return quire_contiguous(data, dtype, 3, shape);
}

/* Writes all five tokens into the cache: request 0 in page 2, request 1 in pages 0 and 1. */
static void fill_cache(const quire_cache* cache) {
  float key[5][2] = {{0, 0}, {LN3, 0}, {0, 0}, {LN2, 0}, {LN5, 0}};
  float value[5][2] = {{4, 8}, {8, 0}, {8, 0}, {0, 8}, {8, 16}};
  int64_t slots[5] = {4, 5, 0, 1, 2};
  const quire_tensor k = tensor3(key, QUIRE_F32, 5, 1, 2);
  const quire_tensor v = tensor3(value, QUIRE_F32, 5, 1, 2);
  const quire_tensor s = tensor1(slots, QUIRE_I64, 5);
  expect(quire_append(cache, &k, &v, &s, NULL) == QUIRE_OK, "append");
}

static void attend_by_plan(const quire_batch* batch, const quire_cache* cache, const quire_options* options) {
  quire_plan* plan = NULL;
  expect(quire_plan_create(batch, cache, options, NULL, &plan) == QUIRE_OK, "plan");
  if (plan == NULL) return;
  char text[256];
  expect(quire_plan_text(plan, text, sizeof text, NULL) == QUIRE_OK, "plan text");
  printf("plan: %s\n", text);

  const size_t bytes = ((size_t)quire_plan_workspace_bytes(plan) + 63) / 64 * 64;
  void* workspace = aligned_alloc(64, bytes > 0 ? bytes : 64);
  int64_t rows = 0;
  quire_attend_options attend_options = QUIRE_ATTEND_OPTIONS_INIT;
  attend_options.rows_written = &rows;
  expect(quire_attend(plan, batch, cache, options, workspace, bytes, &attend_options) == QUIRE_OK, "attend");
  expect(rows == 3, "3 rows written");
  free(workspace);
  quire_plan_free(plan);
}

/* The same numbers as rows of a latent cache, [value, value, key]: K is all of a row, V its first two dims. append() writes the
 * parts [value, value] and [key]: K and V of one memory are for reading. */
static void attend_latent(quire_batch batch, const quire_options* options, const float expected[3][2]) {
  float latent[3][2][1][3];
  memset(latent, 0xFF, sizeof latent);
  const int64_t shape[4] = {3, 2, 1, 3};
  quire_cache cache = QUIRE_CACHE_INIT;
  cache.layout = QUIRE_NHD;
  cache.k = cache.v = quire_contiguous(latent, QUIRE_F32, 4, shape);
  quire_cache parts = cache;
  cache.v.shape[3] = parts.k.shape[3] = 2;
  parts.v.data = &latent[0][0][0][2];
  parts.v.shape[3] = 1;

  float value[5][2] = {{4, 8}, {8, 0}, {8, 0}, {0, 8}, {8, 16}}, key[5] = {0, LN3, 0, LN2, LN5};
  int64_t slots[5] = {4, 5, 0, 1, 2};
  const quire_tensor first = tensor3(value, QUIRE_F32, 5, 1, 2), second = tensor3(key, QUIRE_F32, 5, 1, 1);
  const quire_tensor s = tensor1(slots, QUIRE_I64, 5);
  expect(quire_append(&cache, &first, &second, &s, NULL) == QUIRE_CONTRACT_VIOLATION, "append into one memory is refused");
  expect(quire_append(&parts, &first, &second, &s, NULL) == QUIRE_OK, "append of the parts of latent rows");

  float query[3][3] = {{0, 0, 1}, {0, 0, 1}, {0, 0, 1}}, output[3][2];
  batch.query = tensor3(query, QUIRE_F32, 3, 1, 3);
  batch.output = tensor3(output, QUIRE_F32, 3, 1, 2);
  attend_by_plan(&batch, &cache, options);
  for (int row = 0; row < 3; ++row)
    for (int d = 0; d < 2; ++d) expect(fabsf(output[row][d] - expected[row][d]) <= 1e-5f, "latent output computed by hand");
}

int main(void) {
  float pages_k[3][2][1][2], pages_v[3][2][1][2];
  memset(pages_k, 0xFF, sizeof pages_k); /* NaN: the unused slot must not matter */
  memset(pages_v, 0xFF, sizeof pages_v);
  const int64_t cache_shape[4] = {3, 2, 1, 2};
  quire_cache cache = QUIRE_CACHE_INIT;
  cache.k = quire_contiguous(pages_k, QUIRE_F32, 4, cache_shape);
  cache.v = quire_contiguous(pages_v, QUIRE_F32, 4, cache_shape);
  cache.layout = QUIRE_NHD;
  fill_cache(&cache);

  float query[3][2] = {{1, 0}, {1, 0}, {1, 0}};
  float output[3][2], lse[3];
  int32_t query_start_loc[3] = {0, 2, 3};
  int32_t seq_lens[2] = {2, 3};
  int32_t block_table[2][2] = {{2, -1}, {0, 1}}; /* request 0 uses one page: its second entry is never read */
  quire_batch batch = QUIRE_BATCH_INIT;
  batch.query = tensor3(query, QUIRE_F32, 3, 1, 2);
  batch.output = tensor3(output, QUIRE_F32, 3, 1, 2);
  batch.query_start_loc = tensor1(query_start_loc, QUIRE_I32, 3);
  batch.seq_lens = tensor1(seq_lens, QUIRE_I32, 2);
  batch.block_table = tensor2(block_table, QUIRE_I32, 2, 2);
  batch.lse = tensor2(lse, QUIRE_F32, 3, 1);
  quire_options options = QUIRE_OPTIONS_INIT;
  options.has_softmax_scale = 1;
  options.softmax_scale = 1.0f;

  expect(quire_check(&batch, &cache, &options, QUIRE_DEPTH_CONTENTS, NULL, NULL) == QUIRE_OK, "check");
  attend_by_plan(&batch, &cache, &options);

  const float expected[3][2] = {{4, 8}, {7, 2}, {6, 12}};
  const float expected_lse[3] = {0.0f, 2 * LN2, 3 * LN2}; /* logarithms of the sums of weights: 1, 4, 8 */
  for (int row = 0; row < 3; ++row) {
    printf("row %d: (%g, %g)  lse %g\n", row, output[row][0], output[row][1], lse[row]);
    /* The weights are exact but for the rounding of the logarithms, about 1e-7 of a score <= 1.61; values are <= 16. */
    for (int d = 0; d < 2; ++d) expect(fabsf(output[row][d] - expected[row][d]) <= 1e-5f, "output computed by hand");
    expect(fabsf(lse[row] - expected_lse[row]) <= 1e-6f, "lse computed by hand");
  }

  attend_latent(batch, &options, expected);

  /* A broken rule is an answer with a place and a reason, before any work. */
  block_table[1][1] = 913;
  quire_findings* findings = NULL;
  expect(quire_check(&batch, &cache, &options, QUIRE_DEPTH_TABLES, NULL, &findings) == QUIRE_CONTRACT_VIOLATION,
         "a page too far");
  printf("%s: %s\n", quire_code_name(QUIRE_CONTRACT_VIOLATION), quire_last_message());
  expect(strstr(quire_last_message(), "block_table[1][1]") != NULL, "the message names the place");
  expect(quire_findings_total(findings) == 1, "one finding");
  quire_finding finding;
  expect(quire_findings_get(findings, 0, &finding) == QUIRE_OK, "the finding");
  expect(finding.num_indices == 2 && finding.index[0] == 1 && finding.index[1] == 1, "its index");
  quire_findings_free(findings);

  if (failures == 0) printf("quire %s works from C\n", quire_version());
  return failures == 0 ? 0 : 1;
}
