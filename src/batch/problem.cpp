// SPDX-License-Identifier: Apache-2.0
// The facts of a batch that planning depends on, and what follows from them by arithmetic.
#include "quire/problem.hpp"

#include <algorithm>
#include <limits>

#include "semantics/index_tensor.h"
#include "semantics/latent_row.h"
#include "semantics/mask.h"
#include "semantics/page_walk.h"

namespace quire {
namespace {

ScaleKind scale_kind(const Tensor& scale, std::int64_t num_kv_heads) {
  if (!scale.present()) return ScaleKind::none;
  if (scale.rank == 3) return ScaleKind::per_token;
  return scale.rank == 1 && scale.shape[0] == num_kv_heads && num_kv_heads > 1 ? ScaleKind::per_head : ScaleKind::per_tensor;
}

__extension__ using Wide = __int128;

/// Sum of clamp(first + i, 0, limit) over i in [0, count).
Wide sum_clamped(std::int64_t first, std::int64_t count, std::int64_t limit) {
  const std::int64_t zeros = std::clamp<std::int64_t>(-first, 0, count);
  const std::int64_t below = std::clamp<std::int64_t>(limit - first, zeros, count);  // terms before the limit
  return Wide{below - zeros} * (Wide{first + zeros} + first + below - 1) / 2 + Wide{count - below} * limit;
}

/// Whether the rows of V are dims of the rows of K, token by token.
bool has_values_in_keys(const KVCache& cache) {
  const Tensor &k = cache.k, &v = cache.v;
  if (k.data == nullptr || k.dtype != v.dtype || cache.layout == CacheLayout::packed || k.stride[3] != v.stride[3] ||
      k.stride[3] <= 0)
    return false;
  for (int axis = 0; axis < 3; ++axis)
    if (k.shape[axis] > 1 && k.stride[axis] != v.stride[axis]) return false;
  const auto address = [](const Tensor& t) { return reinterpret_cast<std::uintptr_t>(t.data); };
  if (address(v) < address(k)) return false;
  const std::uintptr_t step = static_cast<std::uintptr_t>(k.stride[3] * itemsize(k.dtype)), offset = address(v) - address(k);
  return offset % step == 0 && offset / step + static_cast<std::uintptr_t>(v.shape[3]) <= static_cast<std::uintptr_t>(k.shape[3]);
}

semantics::Mask mask_of(const Problem& p, const Request& r) {
  semantics::Mask mask;
  mask.reach = semantics::reach_of(r.causal, p.sliding_window.value_or(0), p.window_right.value_or(-1));
  mask.num_keys = r.seq_len();
  mask.key_begin = r.key_begin;
  mask.set_chunk(p.attention_chunk.value_or(0));
  if (r.num_spans > 0) mask.spans = {p.spans.data() + r.first_span, r.num_spans};
  mask.spans_beyond_window = p.spans_beyond_window;
  mask.set_regions(r.prefix_len, r.tree_len);
  return mask;
}

/// Pairs of any request; saturates. Not inline: decode rows, of which steps have hundreds, need no stack.
[[gnu::noinline]] std::int64_t pairs_of_mask(const Problem& p, const Request& r) {
  const semantics::Mask mask = mask_of(p, r);
  Wide pairs = 0;
  if (p.has_shapes()) {
    for (std::int64_t i = 0; i < r.query_len; ++i) pairs += mask.count(r.first_row() + i);
  } else {
    pairs = sum_clamped(r.first_row() + mask.reach.after + 1, r.query_len, r.seq_len()) -
            sum_clamped(r.first_row() - mask.reach.before, r.query_len, r.seq_len());
  }
  constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();
  return pairs > kLargest ? kLargest : static_cast<std::int64_t>(pairs);
}

/// Bytes of a row of codes, and of its scales of blocks. A value of fp8_ds_mla ends with its scales; the RoPE part is the key's.
std::int64_t bytes_of_row(std::int64_t dims, DType type) noexcept {
  namespace row = semantics::latent_row;
  if (type == DType::fp8_ds_mla) return dims == row::kLatentDims ? row::kRopeAt : row::kBytes;
  return is_four_bit(type) ? dims / 2 + dims / block_size(type) : dims * itemsize(type);
}

std::int64_t bytes_of_token_scale(ScaleKind kind) noexcept { return kind == ScaleKind::per_token ? itemsize(DType::f32) : 0; }

}  // namespace

std::int64_t Problem::kv_bytes() const noexcept {
  const std::int64_t values = latent ? 0 : bytes_of_row(out_dim(), value_dtype());
  return bytes_of_row(head_dim, kv_dtype) + values + bytes_of_token_scale(k_scale) + bytes_of_token_scale(v_scale);
}

std::string Problem::cache_types() const {
  std::string text(name(kv_dtype));
  if (!has_equal_types()) text.append("/").append(name(value_dtype()));
  return text;
}

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
  for (const Request& r : reqs) total += visible_pairs(r);
  return total;
}

std::int64_t Problem::visible_pairs(const Request& r) const noexcept {
  if (r.query_len == 1 && is_causal_at_end()) return sliding_window ? std::min(r.seq_len(), *sliding_window) : r.seq_len();
  return pairs_of_mask(*this, r);
}

KeyPositions Problem::visible_keys(const Request& request, std::int64_t first_row, std::int64_t last_row) const noexcept {
  const std::int64_t at = request.first_row();
  const semantics::KeyRange keys = mask_of(*this, request).of_rows(at + first_row, at + last_row);
  return {keys.begin, keys.end};
}

KeyPositions Problem::visible_keys(const Request& request) const noexcept {
  return request.query_len == 0 ? KeyPositions{} : visible_keys(request, 0, request.query_len - 1);
}

std::array<KeyPositions, 3> Problem::visible_ranges(const Request& request, std::int64_t first_row,
                                                    std::int64_t last_row) const noexcept {
  const std::int64_t at = request.first_row();
  const semantics::SeenKeys keys = mask_of(*this, request).seen_by(at + first_row, at + last_row);
  const auto positions = [](const semantics::KeyRange& range) { return KeyPositions{range.begin, range.end}; };
  return {positions(keys.prefix), positions(keys.middle), positions(keys.tree)};
}

std::array<KeyPositions, 3> Problem::visible_ranges(const Request& request) const noexcept {
  if (request.query_len == 0) return {};
  return visible_ranges(request, 0, request.query_len - 1);
}

Span span_of(const Batch& batch, std::int64_t request, std::int64_t i) {
  return {semantics::index_at(batch.spans, request, i, 0), semantics::index_at(batch.spans, request, i, 1)};
}

Request request_of(const Batch& batch, const Options& options, std::int64_t r) {
  const semantics::IndexView starts = semantics::index_view(batch.query_start_loc);
  const std::int64_t seq_len = semantics::index_view(batch.seq_lens)[r];
  Request req;
  req.query_len = starts[r + 1] - starts[r];
  req.context_len = seq_len - req.query_len;
  req.cached_len = batch.cached_lens.present() ? semantics::index_view(batch.cached_lens)[r] : seq_len;
  req.causal = batch.causal.present() ? semantics::flag_view(batch.causal)[r] : options.causal;
  if (batch.key_begin.present()) req.key_begin = semantics::index_view(batch.key_begin)[r];
  if (batch.q_begin.present()) req.shift = semantics::index_view(batch.q_begin)[r] - req.key_begin - req.context_len;
  req.prefix_len = batch.prefix_lens.present() ? semantics::index_view(batch.prefix_lens)[r] : options.prefix_len.value_or(0);
  if (batch.tree_lens.present()) req.tree_len = semantics::index_view(batch.tree_lens)[r];
  const auto is_span = [](const Span& span) { return span.begin < span.end; };
  const std::int64_t most_spans = batch.spans.present() ? batch.spans.shape[1] : 0;
  while (req.num_spans < most_spans && is_span(span_of(batch, r, req.num_spans))) ++req.num_spans;
  return req;
}

Problem problem_of(const Batch& batch, const KVCache& cache, const Options& options) {
  Problem p;
  p.q_dtype = batch.query.dtype;
  p.kv_dtype = cache.k.dtype;
  if (cache.v.dtype != cache.k.dtype) p.v_dtype = cache.v.dtype;
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
  p.causal = options.causal;
  p.window_right = options.window_right;
  p.has_causal = batch.causal.present();
  p.has_q_begin = batch.q_begin.present();
  p.has_key_begin = batch.key_begin.present();
  p.attention_chunk = options.attention_chunk;
  p.prefix_len = options.prefix_len.value_or(0);
  p.has_prefix = options.prefix_len || batch.prefix_lens.present();
  p.has_prefix_lens = batch.prefix_lens.present();
  p.has_spans = batch.spans.present();
  p.has_tree = batch.tree_mask.present();
  p.spans_beyond_window = options.spans_beyond_window;
  if (batch.output.shape[2] != p.head_dim) p.v_head_dim = batch.output.shape[2];
  p.latent = has_values_in_keys(cache);

  if (batch.query_start_loc.memory != Memory::cpu) return p;
  p.reqs.resize(static_cast<std::size_t>(batch.seq_lens.shape[0]));
  for (std::size_t r = 0; r < p.reqs.size(); ++r) {
    Request& req = p.reqs[r] = request_of(batch, options, static_cast<std::int64_t>(r));
    req.first_span = req.num_spans > 0 ? static_cast<std::int64_t>(p.spans.size()) : 0;
    for (std::int64_t i = 0; i < req.num_spans; ++i) p.spans.push_back(span_of(batch, static_cast<std::int64_t>(r), i));
  }
  p.num_padding_rows = batch.query.shape[0] - num_request_rows(batch);
  return p;
}

}  // namespace quire
