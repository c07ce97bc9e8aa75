// The facts of a batch that planning depends on, and what follows from them by arithmetic.
#include "quire/problem.hpp"

#include <algorithm>

#include "semantics/page_walk.h"

namespace quire {
namespace {

ScaleKind scale_kind(const Tensor& scale, std::int64_t num_kv_heads) {
  if (!scale.present()) return ScaleKind::none;
  return scale.rank == 1 && scale.shape[0] == num_kv_heads && num_kv_heads > 1 ? ScaleKind::per_head : ScaleKind::per_tensor;
}

/// Sum of visible keys over the query rows of one request: row i sees min(context + i + 1, window) keys.
std::int64_t visible_pairs(const Request& r, std::int64_t window) {
  const std::int64_t first = r.context_len + 1;
  const std::int64_t last = r.context_len + r.query_len;
  const auto triangle = [](std::int64_t n) { return n * (n + 1) / 2; };
  if (window <= 0 || last <= window) return triangle(last) - triangle(first - 1);
  if (first > window) return r.query_len * window;
  return triangle(window) - triangle(first - 1) + (last - window) * window;
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
  return p;
}

}  // namespace quire
