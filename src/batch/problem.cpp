// SPDX-License-Identifier: Apache-2.0
// The facts of a batch that planning depends on, and what follows from them by arithmetic.
#include "quire/problem.hpp"

#include <algorithm>
#include <limits>

#include "semantics/page_walk.h"

namespace quire {
namespace {

ScaleKind scale_kind(const Tensor& scale, std::int64_t num_kv_heads) {
  if (!scale.present()) return ScaleKind::none;
  return scale.rank == 1 && scale.shape[0] == num_kv_heads && num_kv_heads > 1 ? ScaleKind::per_head : ScaleKind::per_tensor;
}

/// first + (first + 1) + ... over `count` terms; saturates.
std::int64_t sum_from(std::int64_t first, std::int64_t count) {
  if ((first | count) < std::int64_t{1} << 30) return count * (first * 2 + count - 1) / 2;
  __extension__ using Wide = __int128;
  const Wide sum = Wide{count} * (Wide{first} * 2 + count - 1) / 2;
  constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();
  return sum > kLargest ? kLargest : static_cast<std::int64_t>(sum);
}

/// Sum of visible keys over the query rows of one request: row i sees min(context + i + 1, window) keys.
std::int64_t visible_pairs(const Request& r, std::int64_t window) {
  const std::int64_t growing = window <= 0 ? r.query_len : std::clamp<std::int64_t>(window - r.context_len, 0, r.query_len);
  return sum_from(r.context_len + 1, growing) + (r.query_len - growing) * std::max<std::int64_t>(window, 0);
}

}  // namespace

std::int64_t Problem::num_tokens() const noexcept {
  std::int64_t total = 0;
  for (const Request& r : reqs) total += r.query_len;
  return total;
}

std::int64_t Problem::max_query_len() const noexcept {
  std::int64_t longest = 0;
  for (const Request& r : reqs) longest = std::max(longest, r.query_len);
  return longest;
}

std::int64_t Problem::max_seq_len() const noexcept {
  std::int64_t longest = 0;
  for (const Request& r : reqs) longest = std::max(longest, r.seq_len());
  return longest;
}

std::int64_t Problem::visible_pairs() const noexcept {
  std::int64_t total = 0;
  for (const Request& r : reqs) total += quire::visible_pairs(r, sliding_window.value_or(0));
  return total;
}

Problem problem_of(const Batch& batch, const KVCache& cache, const Options& options) {
  Problem p;
  p.q_dtype = batch.query.dtype;
  p.kv_dtype = cache.k.dtype;
  p.num_q_heads = batch.query.shape[1];
  p.num_kv_heads = num_kv_heads(cache);
  p.head_dim = batch.query.shape[2];
  p.page_size = page_size(cache);
  p.layout = cache.layout;
  p.softmax_scale = options.softmax_scale;
  p.sliding_window = options.sliding_window;
  p.logits_soft_cap = options.logits_soft_cap;
  p.alibi = options.alibi_slopes.present();
  p.sinks = options.sinks.present();
  p.lse = batch.lse.present();
  p.k_scale = scale_kind(cache.k_scale, p.num_kv_heads);
  p.v_scale = scale_kind(cache.v_scale, p.num_kv_heads);
  p.padding = batch.padding;
  if (batch.output.dtype != batch.query.dtype) p.output_dtype = batch.output.dtype;
  p.q_scale = scale_kind(batch.q_scale, p.num_kv_heads);

  if (batch.query_start_loc.memory != Memory::cpu) return p;
  const semantics::IndexView starts = semantics::index_view(batch.query_start_loc);
  const semantics::IndexView seq_lens = semantics::index_view(batch.seq_lens);
  const std::int64_t num_reqs = batch.seq_lens.shape[0];
  p.reqs.resize(static_cast<std::size_t>(num_reqs));
  for (std::int64_t r = 0; r < num_reqs; ++r) {
    Request& req = p.reqs[static_cast<std::size_t>(r)];
    req.query_len = starts[r + 1] - starts[r];
    req.context_len = seq_lens[r] - req.query_len;
    req.cached_len = batch.cached_lens.present() ? semantics::index_view(batch.cached_lens)[r] : seq_lens[r];
  }
  p.num_padding_rows = batch.query.shape[0] - num_request_rows(batch);
  return p;
}

}  // namespace quire
