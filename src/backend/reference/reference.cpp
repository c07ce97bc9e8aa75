// SPDX-License-Identifier: Apache-2.0
// The oracle: fp64, two passes over the scores, plain loops, written from the equations of docs/design.md section 2.
//
// The oracle shares nothing with the kernels but the decoding of one element (semantics/dtype.h). It has its own masking, paging,
// layouts, softmax and scaling, so that no bug in the shared headers can hide. It reads only keys and values that some row sees.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/reference/lanes.h"
#include "batch/caught.h"
#include "numerics/tolerance.h"
#include "quire/contract.hpp"
#include "quire/tools/compare.hpp"
#include "semantics/dtype.h"
#include "semantics/fp4.h"
#include "semantics/index_tensor.h"
#include "threads/on_threads.h"

namespace quire {
namespace {

constexpr std::int64_t kRowsAtOnce = 16;     // rows that share a block of K or V while it is in a near cache
constexpr std::size_t kRowsPerTask = 512;    // rows of one request and KV head that share one decoded copy of K and V
constexpr double kFlushedWeight = 0x1p-102;  // u = 2^-24 of it is 2^-126, below which f32 may flush (numerics.md)
constexpr double kLostOfParts = 0x1p-39;     // loss of a weight held as two f16 parts, if queries have 16 bits
constexpr double kF16Roundoff = 0x1p-11;
constexpr double kThreadedWork = 4e6;  // multiplications; below this, starting threads costs more than it saves
constexpr double kNegInf = -std::numeric_limits<double>::infinity();
constexpr std::int64_t kWidestWindow = std::int64_t{1} << 40;  // positions are below 2^31: a wider window hides nothing more

using reference_detail::kLanes;
using reference_detail::Lanes;

std::int64_t blocks(std::int64_t n) { return (n + kLanes - 1) / kLanes; }

double scalar_or_per_head(const Tensor& t, std::int64_t head, double absent) {
  if (!t.present()) return absent;
  const bool per_head = t.rank == 1 && t.shape[0] > 1;
  return semantics::load(t.data, t.dtype, per_head ? head * t.stride[0] : 0);
}

/// The scale of a cached token: of the tensor, of the head, or of the token and head.
double cache_scale(const Tensor& t, std::int64_t page, std::int64_t slot, std::int64_t head) {
  if (t.rank != 3) return scalar_or_per_head(t, head, 1.0);
  return semantics::load(t.data, t.dtype, page * t.stride[0] + slot * t.stride[1] + head * t.stride[2]);
}

/// The scale of the block that holds dim d of a cached token; 1 where codes have more than 4 bits.
double block_scale(const Tensor& scales, DType cached, std::int64_t page, std::int64_t slot, std::int64_t head, std::int64_t d) {
  if (!is_four_bit(cached)) return 1.0;
  const std::int64_t block = d / (cached == DType::nvfp4 ? 16 : 32);
  const std::int64_t at = page * scales.stride[0] + slot * scales.stride[1] + head * scales.stride[2] + block * scales.stride[3];
  const std::uint8_t code = static_cast<const std::uint8_t*>(scales.data)[at];
  return cached == DType::nvfp4 ? semantics::fp8_decode<semantics::E4m3fn>(code) : semantics::e8m0_decode(code);
}

/// The value of every f16 code: looking one up is half the work of computing it.
const std::vector<float>& f16_values() {
  static const std::vector<float> table = [] {
    std::vector<float> all(std::size_t{1} << 16);
    for (std::size_t code = 0; code < all.size(); ++code) all[code] = semantics::f16_decode(static_cast<std::uint16_t>(code));
    return all;
  }();
  return table;
}

using semantics::index_at;

/// Row `at` of the result is row `token` of the batch.
struct Chosen {
  std::int64_t token, at;
};

/// Rows of one request, in the order of their tokens, for all query heads of one KV head.
struct Task {
  std::int64_t req, kv_head;
  std::span<const Chosen> rows;
};

/// Keys [first, first + count) of one request and KV head as real values, in lanes, or the keys of `listed`. Lanes after the last
/// key or dim hold anything: nobody uses what is computed from them.
struct DecodedKeys {
  std::int64_t first = 0, count = 0;
  std::vector<std::int64_t> listed;  // ascending; empty: the keys are one range
  std::vector<double> k;             // [blocks(count)][head_dim][kLanes keys]
  std::vector<double> v;             // [blocks(v_head_dim)][count][kLanes dims]

  std::int64_t position(std::int64_t i) const { return listed.empty() ? first + i : listed[static_cast<std::size_t>(i)]; }
};

/// A query row of one head, which sees the keys [first, first + count), counted from DecodedKeys::first. Vectors per key: logit;
/// magnitude (M_k, the bound of its rounding error); weight p; floored = max(p, least); scored = p times magnitude; lost (loss to
/// f16's subnormals). `stored` (error of the logit by 16-bit stores, per unit of roundoff) is empty unless the profile stores
/// scores.
struct Row {
  std::int64_t q_pos = 0, head = 0;
  std::int64_t index = 0;  // index in the result: row * num_q_heads + head
  std::int64_t first = 0, count = 0;
  std::vector<double> q;
  std::vector<double> logit, magnitude, weight, floored, scored, lost, stored;
  bool loses = false;  // lost is not all zero
};

/// Memory of one thread, used for task after task.
struct Scratch {
  DecodedKeys keys;
  std::vector<Row> rows;
};

class Oracle {
 public:
  Oracle(const Batch& batch, const KVCache& cache, const Options& options, const NumericsProfile& profile, Reference& result)
      : batch_(batch), cache_(cache), options_(options), result_(result) {
    rounds_kv_ = profile.dequantised_to_query;
    errors_ = numerics::score_errors(profile, batch.query.shape[2]);
    // Scores of a scaled query have one more rounding (numerics.md, "8-bit rows").
    has_shape_ = options.attention_chunk || options.prefix_len || batch.prefix_lens.present() || batch.spans.present() ||
                 batch.tree_mask.present();
    if (batch.q_scale.present()) errors_.per_magnitude *= 1 + numerics::kAccumulatorRoundoff / errors_.plain;
    head_dim_ = batch.query.shape[2];
    v_head_dim_ = batch.output.shape[2];
    num_kv_heads_ = cache.layout == CacheLayout::nhd ? cache.k.shape[2] : cache.k.shape[1];
    page_size_ = cache.layout == CacheLayout::nhd ? cache.k.shape[1] : cache.k.shape[cache.layout == CacheLayout::hnd ? 2 : 3];
    group_ = batch.query.shape[1] / num_kv_heads_;
    scale_ = options.softmax_scale ? *options.softmax_scale : 1.0 / std::sqrt(static_cast<double>(head_dim_));
    for (std::int64_t d = 0; d < head_dim_; ++d) k_dim_offset_.push_back(dim_offset(/*is_key=*/true, d));
    for (std::int64_t d = 0; d < v_head_dim_; ++d) v_dim_offset_.push_back(dim_offset(/*is_key=*/false, d));
  }

  /// Cuts `rows`, which are in the order of their tokens, and counts multiplications.
  std::vector<Task> tasks(std::span<const Chosen> rows, double& work) const {
    std::vector<Task> list;
    work = 0;
    for (std::int64_t r = 0; r < batch_.seq_lens.shape[0]; ++r) {
      const std::int64_t end = index_at(batch_.query_start_loc, r + 1);
      while (!rows.empty() && rows.front().token < end) {
        const std::size_t count = rows_of_task(r, rows);
        for (std::int64_t h = 0; h < num_kv_heads_; ++h) list.push_back({r, h, rows.first(count)});
        const std::int64_t keys = seen(r, rows[count - 1].token).end - seen(r, rows[0].token).first;
        work += static_cast<double>(count) * static_cast<double>(keys) * static_cast<double>(batch_.query.shape[1] * head_dim_);
        rows = rows.subspan(count);
      }
    }
    return list;
  }

  void run(const Task& task, Scratch& scratch) const {
    auto& [keys, rows] = scratch;
    decode(task, keys);
    const std::int64_t count = static_cast<std::int64_t>(task.rows.size()) * group_;
    for (std::int64_t first = 0; first < count; first += kRowsAtOnce) {
      rows.resize(static_cast<std::size_t>(std::min(kRowsAtOnce, count - first)));
      for (std::size_t i = 0; i < rows.size(); ++i) start_row(task, keys, first + static_cast<std::int64_t>(i), rows[i]);
      for (std::int64_t b = 0; b < blocks(keys.count); ++b) {
        end_if_interrupted();
        for (Row& row : rows) score_block(keys, b, row);
      }
      for (Row& row : rows) weigh_row(row);
      for (std::int64_t b = 0; b < blocks(v_head_dim_); ++b)
        for (const Row& row : rows) {
          end_if_interrupted();
          sum_values(keys, b, row);
        }
    }
  }

 private:
  std::int64_t query_len(std::int64_t r) const {
    return index_at(batch_.query_start_loc, r + 1) - index_at(batch_.query_start_loc, r);
  }
  std::int64_t context_len(std::int64_t r) const { return index_at(batch_.seq_lens, r) - query_len(r); }

  /// Place of a query row of request `r`, counted from the request's first key.
  std::int64_t position(std::int64_t r, std::int64_t token) const {
    const std::int64_t begin = batch_.key_begin.present() ? index_at(batch_.key_begin, r) : 0;
    const std::int64_t first = batch_.q_begin.present() ? index_at(batch_.q_begin, r) - begin : context_len(r);
    return first + token - index_at(batch_.query_start_loc, r);
  }

  bool causal(std::int64_t r) const {
    if (!batch_.causal.present()) return options_.causal;
    return static_cast<const std::uint8_t*>(batch_.causal.data)[r * batch_.causal.stride[0]] != 0;
  }

  /// Whether positions q and k of a sequence lie in one span of request `r`.
  bool in_one_span(std::int64_t r, std::int64_t q, std::int64_t k) const {
    const Tensor& t = batch_.spans;
    for (std::int64_t i = 0; t.present() && i < t.shape[1]; ++i) {
      const std::int64_t begin = index_at(t, r, i, 0), end = index_at(t, r, i, 1);
      if (begin <= q && q < end && begin <= k && k < end) return true;
    }
    return false;
  }

  /// The condition of batch.hpp for one key, where neither the row nor the key is of a tree.
  bool is_visible(std::int64_t r, std::int64_t q, std::int64_t k) const {
    const bool together = in_one_span(r, q, k);
    const std::int64_t later = causal(r) ? 0 : std::min(options_.window_right.value_or(kWidestWindow), kWidestWindow);
    if (k > q + later && !together) return false;
    if (together && options_.spans_beyond_window) return true;
    if (k < (batch_.prefix_lens.present() ? index_at(batch_.prefix_lens, r) : options_.prefix_len.value_or(0))) return true;
    const std::int64_t window = std::min(options_.sliding_window.value_or(kWidestWindow), kWidestWindow);
    if (q - k >= window) return false;
    return chunk_of(q) == chunk_of(k);
  }

  /// The chunk of a position, rounded down: rows may stand before position 0.
  std::int64_t chunk_of(std::int64_t position) const {
    const std::int64_t chunk = options_.attention_chunk.value_or(0);
    return chunk == 0 ? 0 : (position >= 0 ? position : position - chunk + 1) / chunk;
  }

  /// Positions [first, end) outside of which the row at q sees no key but a tree's, in rising order of `first`: the prefix, the
  /// window within the chunk, the span. The length of the request does not count: it may be far more than any row sees.
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges_of(std::int64_t r, std::int64_t q) const {
    const std::int64_t later = causal(r) ? 0 : std::min(options_.window_right.value_or(kWidestWindow), kWidestWindow);
    const std::int64_t window = std::min(options_.sliding_window.value_or(kWidestWindow), kWidestWindow);
    std::pair<std::int64_t, std::int64_t> around{q - window + 1, q + later + 1};
    if (const std::int64_t chunk = options_.attention_chunk.value_or(0); chunk > 0 && chunk < kWidestWindow) {
      around.first = std::max(around.first, chunk_of(q) * chunk);
      around.second = std::min(around.second, (chunk_of(q) + 1) * chunk);
    }
    const std::int64_t prefix = batch_.prefix_lens.present() ? index_at(batch_.prefix_lens, r) : options_.prefix_len.value_or(0);
    std::vector<std::pair<std::int64_t, std::int64_t>> ranges{{std::numeric_limits<std::int32_t>::min(), prefix}, around};
    const Tensor& t = batch_.spans;
    for (std::int64_t i = 0; t.present() && i < t.shape[1]; ++i) {
      const std::int64_t begin = index_at(t, r, i, 0), end = index_at(t, r, i, 1);
      if (begin <= q && q < end) ranges.emplace_back(begin, end);
    }
    std::sort(ranges.begin(), ranges.end());
    return ranges;
  }

  /// Keys of request `r` that a row sees, counted from the request's first; asked of masks that have a shape.
  std::vector<std::int64_t> keys_of(std::int64_t r, std::int64_t token) const {
    const std::int64_t begin = batch_.key_begin.present() ? index_at(batch_.key_begin, r) : 0;
    const std::int64_t num_keys = index_at(batch_.seq_lens, r), q = position(r, token) + begin;
    const std::int64_t tree = batch_.tree_lens.present() ? index_at(batch_.tree_lens, r) : 0;
    std::vector<std::int64_t> keys;
    for (const auto& [first, end] : ranges_of(r, q))
      for (std::int64_t k = std::max<std::int64_t>(first - begin, keys.empty() ? 0 : keys.back() + 1);
           k < std::min(end - begin, num_keys - tree); ++k)
        if (is_visible(r, q, k + begin)) keys.push_back(k);
    const auto* bits = static_cast<const std::uint8_t*>(batch_.tree_mask.data);
    for (std::int64_t b = 0; b < tree; ++b)
      if (bits[token * batch_.tree_mask.stride[0] + b / 8 * batch_.tree_mask.stride[1]] >> (b % 8) & 1)
        keys.push_back(num_keys - tree + b);
    return keys;
  }

  /// Keys [first, end) of request `r` that a row sees: k <= q_pos if the request is causal, else k <= q_pos + window_right;
  /// q_pos - k < sliding_window. first = end, both within the keys, if it sees none. has_holes: the row does not see them all.
  struct Seen {
    std::int64_t first, end;
    bool has_holes = false;
  };
  Seen seen_of_shape(std::int64_t r, std::int64_t token) const {
    const std::vector<std::int64_t> keys = keys_of(r, token);
    if (keys.empty()) return {0, 0};
    const Seen seen{keys.front(), keys.back() + 1};
    return {seen.first, seen.end, seen.end - seen.first != static_cast<std::int64_t>(keys.size())};
  }
  Seen seen(std::int64_t r, std::int64_t token) const {
    if (has_shape_) return seen_of_shape(r, token);
    const std::int64_t q_pos = position(r, token), num_keys = index_at(batch_.seq_lens, r);
    Seen keys{0, num_keys};
    if (options_.sliding_window) keys.first = q_pos - std::min(*options_.sliding_window, kWidestWindow) + 1;
    if (causal(r)) {
      keys.end = q_pos + 1;
    } else if (options_.window_right) {
      keys.end = q_pos + std::min(*options_.window_right, kWidestWindow) + 1;
    }
    keys.first = std::clamp<std::int64_t>(keys.first, 0, num_keys);
    keys.end = std::clamp<std::int64_t>(keys.end, keys.first, num_keys);
    return keys;
  }

  /// Number of leading `rows`, beginning with a row of request `r`, that share a decoded copy: no unseen key lies between them,
  /// and both ends of what they see grow. A row with holes has a copy of its own.
  std::size_t rows_of_task(std::int64_t r, std::span<const Chosen> rows) const {
    const std::int64_t end = index_at(batch_.query_start_loc, r + 1);
    Seen last = seen(r, rows[0].token);
    std::size_t n = 1;
    for (; n < std::min(rows.size(), kRowsPerTask) && rows[n].token < end && !last.has_holes; ++n) {
      const Seen next = seen(r, rows[n].token);
      if (next.has_holes || next.first > last.end || next.first < last.first || next.end < last.end) break;
      last = next;
    }
    return n;
  }

  std::int64_t page_of(std::int64_t req, std::int64_t k) const { return index_at(batch_.block_table, req, k / page_size_); }

  /// Offset of dim 0 of a cached token in cache.k (`is_key`) or cache.v, in codes: two of 4 bits lie in a byte.
  std::int64_t token_offset(bool is_key, std::int64_t page, std::int64_t slot, std::int64_t head) const {
    const DType type = is_key ? cache_.k.dtype : cache_.v.dtype;
    return (is_four_bit(type) ? 2 : 1) * token_element(is_key, page, slot, head);
  }
  std::int64_t token_element(bool is_key, std::int64_t page, std::int64_t slot, std::int64_t head) const {
    const auto& s = is_key ? cache_.k.stride : cache_.v.stride;
    if (cache_.layout == CacheLayout::nhd) return page * s[0] + slot * s[1] + head * s[2];
    return page * s[0] + head * s[1] + slot * (cache_.layout == CacheLayout::hnd ? s[2] : s[3]);
  }

  /// Offset from dim 0 to dim d.
  std::int64_t dim_offset(bool is_key, std::int64_t d) const {
    const Tensor& t = is_key ? cache_.k : cache_.v;
    if (is_four_bit(t.dtype)) return d;
    if (cache_.layout != CacheLayout::packed) return d * t.stride[3];
    if (!is_key) return d * t.stride[2];
    const std::int64_t x = t.shape[4];
    return d / x * t.stride[2] + d % x * t.stride[4];
  }

  void decode(const Task& task, DecodedKeys& out) const {
    const Seen of_first = seen(task.req, task.rows.front().token);
    out.listed.clear();
    if (of_first.has_holes) out.listed = keys_of(task.req, task.rows.front().token);
    out.first = of_first.first;
    out.count = of_first.has_holes ? static_cast<std::int64_t>(out.listed.size())
                                   : seen(task.req, task.rows.back().token).end - out.first;
    out.k.resize(static_cast<std::size_t>(blocks(out.count) * head_dim_ * kLanes));
    out.v.resize(static_cast<std::size_t>(blocks(v_head_dim_) * out.count * kLanes));
    const std::int64_t cached =
        batch_.cached_lens.present() ? index_at(batch_.cached_lens, task.req) : index_at(batch_.seq_lens, task.req);
    // Keys whose K and V are in the cache.
    const std::int64_t stored = of_first.has_holes
                                    ? std::lower_bound(out.listed.begin(), out.listed.end(), cached) - out.listed.begin()
                                    : std::clamp<std::int64_t>(cached - out.first, 0, out.count);
    for (std::int64_t first = 0; first < stored; first += kLanes) {
      end_if_interrupted();
      decode_cached(task, first, std::min(kLanes, stored - first), out);
    }
    for (std::int64_t i = stored; i < out.count; ++i) decode_new(task, out.position(i), i, out);
  }

  /// Keys [first, first + count) of the task, a block of lanes. K is written dim by dim, as it lies in the block: key by key,
  /// each element would be in another cache line.
  void decode_cached(const Task& task, std::int64_t first, std::int64_t count, DecodedKeys& out) const {
    double k_scale[kLanes], v_scale[kLanes];
    std::int64_t k_at[kLanes], v_at[kLanes], pages[kLanes], slots[kLanes];
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t k = out.position(first + i), page = page_of(task.req, k), slot = k % page_size_;
      pages[i] = page, slots[i] = slot;
      k_scale[i] = cache_scale(cache_.k_scale, page, slot, task.kv_head);
      v_scale[i] = cache_scale(cache_.v_scale, page, slot, task.kv_head);
      k_at[i] = token_offset(/*is_key=*/true, page, slot, task.kv_head);
      v_at[i] = token_offset(/*is_key=*/false, page, slot, task.kv_head);
    }
    const auto of_block = [&](bool is_key, std::int64_t i, std::int64_t d) {
      return block_scale(is_key ? cache_.k_block_scale : cache_.v_block_scale, is_key ? cache_.k.dtype : cache_.v.dtype, pages[i],
                         slots[i], task.kv_head, d);
    };
    const bool k_has_blocks = is_four_bit(cache_.k.dtype), v_has_blocks = is_four_bit(cache_.v.dtype);
    double* block = out.k.data() + first * head_dim_;
    if (cache_.k.dtype == DType::fp8_ds_mla) {
      for (std::int64_t i = 0; i < count; ++i) decode_latent(first + i, k_at[i], v_at[i], out);
      return;
    }
    with_decoder(cache_.k, [&](auto&& element) {
      for (std::int64_t d = 0; d < head_dim_; ++d)
        for (std::int64_t i = 0; i < count; ++i)
          block[d * kLanes + i] = cached(k_scale[i], element(k_at[i] + k_dim_offset_[static_cast<std::size_t>(d)]) *
                                                         (k_has_blocks ? of_block(/*is_key=*/true, i, d) : 1.0));
    });
    for (std::int64_t i = 0; i < count; ++i)
      put_value(
          out, first + i, cache_.v, [&](std::size_t d) { return v_at[i] + v_dim_offset_[d]; },
          [&](double x, std::int64_t d) { return cached(v_scale[i], v_has_blocks ? x * of_block(/*is_key=*/false, i, d) : x); });
  }

  /// A key of fp8_ds_mla, whose rows begin at bytes k_at of cache.k and v_at of cache.v: 512 codes, of which each 128 have an f32
  /// scale behind the codes, then 64 elements of bf16.
  void decode_latent(std::int64_t i, std::int64_t k_at, std::int64_t v_at, DecodedKeys& out) const {
    constexpr std::int64_t kCodes = 512, kOfScale = 128, kScaleBytes = 16;
    const auto value = [&](const Tensor& t, std::int64_t at, std::int64_t d) {
      const auto* row = static_cast<const std::byte*>(t.data) + at;
      if (d >= kCodes) return static_cast<double>(semantics::load(row + kCodes + kScaleBytes, DType::bf16, d - kCodes));
      const double scale = semantics::load(row + kCodes, DType::f32, d / kOfScale);
      return cached(scale, semantics::load(row, DType::fp8_e4m3fn, d));
    };
    double* k = out.k.data() + i / kLanes * head_dim_ * kLanes + i % kLanes;
    for (std::int64_t d = 0; d < head_dim_; ++d) k[d * kLanes] = value(cache_.k, k_at, d);
    double* v = out.v.data() + i * kLanes;
    for (std::int64_t d = 0; d < v_head_dim_; ++d) v[d / kLanes * out.count * kLanes + d % kLanes] = value(cache_.v, v_at, d);
  }

  /// The real value of a stored one. A kernel that dequantises to the query's type multiplies in f32, and rounds once more.
  double cached(double scale, double stored) const {
    if (!rounds_kv_ || is_fp8(batch_.query.dtype)) return scale * stored;
    float value = 0;
    semantics::store(&value, batch_.query.dtype, 0, static_cast<float>(scale) * static_cast<float>(stored));
    return semantics::load(&value, batch_.query.dtype, 0);
  }

  /// Positions [cached_len, seq_len) come from this step's own rows, unscaled.
  void decode_new(const Task& task, std::int64_t k, std::int64_t i, DecodedKeys& out) const {
    const std::int64_t token = index_at(batch_.query_start_loc, task.req) + k - context_len(task.req);
    const auto at = [&](const Tensor& t) {
      return [&t, first = token * t.stride[0] + task.kv_head * t.stride[1]](std::size_t d) {
        return first + static_cast<std::int64_t>(d) * t.stride[2];
      };
    };
    const auto unscaled = [](double x, std::int64_t) { return x; };
    put_key(out, i, batch_.key, at(batch_.key), unscaled);
    put_value(out, i, batch_.value, at(batch_.value), unscaled);
  }

  /// Stores real(element, d) of every dim of key i; at(d) is the offset of dim d in `t`.
  template <typename At, typename Real>
  void put_key(DecodedKeys& out, std::int64_t i, const Tensor& t, At&& at, Real&& real) const {
    double* to = out.k.data() + i / kLanes * head_dim_ * kLanes + i % kLanes;
    for_each_dim(t, head_dim_, at, [&](std::int64_t d, double x) { to[d * kLanes] = real(x, d); });
  }
  template <typename At, typename Real>
  void put_value(DecodedKeys& out, std::int64_t i, const Tensor& t, At&& at, Real&& real) const {
    double* to = out.v.data() + i * kLanes;
    for_each_dim(t, v_head_dim_, at,
                 [&](std::int64_t d, double x) { to[d / kLanes * out.count * kLanes + d % kLanes] = real(x, d); });
  }

  /// Calls visit(d, element) for dims [0, dims).
  template <typename At, typename Visit>
  void for_each_dim(const Tensor& t, std::int64_t dims, At&& at, Visit&& visit) const {
    with_decoder(t, [&](auto&& element) {
      for (std::int64_t d = 0; d < dims; ++d) visit(d, element(at(static_cast<std::size_t>(d))));
    });
  }

  /// Calls loop(element), where element(offset) is a value of `t`. Decoding is half of the time that a few rows take: one loop
  /// per type has the switch over types outside.
  template <typename Loop>
  static void with_decoder(const Tensor& t, Loop&& loop) {
    switch (t.dtype) {
      case DType::f32: return loop([&](std::int64_t at) { return semantics::load(t.data, DType::f32, at); });
      case DType::f16: {
        const float* value_of = f16_values().data();
        const auto* codes = static_cast<const std::uint16_t*>(t.data);
        return loop([=](std::int64_t at) { return static_cast<double>(value_of[codes[at]]); });
      }
      case DType::bf16: return loop([&](std::int64_t at) { return semantics::load(t.data, DType::bf16, at); });
      case DType::nvfp4:
      case DType::mxfp4:
        return loop(
            [&](std::int64_t at) { return static_cast<double>(semantics::e2m1_decode(semantics::load_code4(t.data, at))); });
      default: return loop([&](std::int64_t at) { return semantics::load(t.data, t.dtype, at); });
    }
  }

  /// Row `i` of a task counts through the query heads of the KV head first, then through the tokens.
  void start_row(const Task& task, const DecodedKeys& keys, std::int64_t i, Row& row) const {
    const auto [token, at] = task.rows[static_cast<std::size_t>(i / group_)];
    row.q_pos = position(task.req, token);
    row.head = task.kv_head * group_ + i % group_;
    row.index = at * batch_.query.shape[1] + row.head;
    const Seen visible = seen(task.req, token);
    row.first = visible.first - keys.first;
    row.count = visible.has_holes ? keys.count : visible.end - visible.first;
    row.loses = false;
    row.q.resize(static_cast<std::size_t>(head_dim_));
    const Tensor& t = batch_.query;
    const double q_scale = scalar_or_per_head(batch_.q_scale, task.kv_head, 1.0);
    for (std::int64_t d = 0; d < head_dim_; ++d)
      row.q[static_cast<std::size_t>(d)] =
          q_scale * semantics::load(t.data, t.dtype, token * t.stride[0] + row.head * t.stride[1] + d * t.stride[2]);
    for (std::vector<double>* list : {&row.logit, &row.magnitude, &row.weight, &row.floored, &row.scored, &row.lost})
      list->resize(static_cast<std::size_t>(row.count));
    row.stored.resize(errors_.stored > 0 ? static_cast<std::size_t>(row.count) : 0);
  }

  /// First pass: the logit of every visible key of block `b`, and |scale| * sum_d |q_d K_kd| + |ALiBi| + cap / 4.
  void score_block(const DecodedKeys& keys, std::int64_t b, Row& row) const {
    const std::int64_t begin = std::max(b * kLanes, row.first), end = std::min((b + 1) * kLanes, row.first + row.count);
    if (begin >= end) return;
    const double slope = options_.alibi_slopes.present() ? per_q_head(options_.alibi_slopes, row.head) : 0.0;
    Lanes dot, magnitude;
    loops_.dot(&keys.k[static_cast<std::size_t>(b * head_dim_ * kLanes)], row.q.data(), head_dim_, dot, magnitude);
    for (std::int64_t k = begin; k < end; ++k) {
      const auto i = static_cast<std::size_t>(k - row.first);
      const double bias = slope * static_cast<double>(keys.position(k) - row.q_pos);
      row.logit[i] = capped(scale_ * dot.sum[k % kLanes]) + bias;
      if (!row.stored.empty()) row.stored[i] = stored_roundings(scale_ * dot.sum[k % kLanes], bias);
      row.magnitude[i] =
          std::fabs(scale_) * magnitude.sum[k % kLanes] + std::fabs(bias) + options_.logits_soft_cap.value_or(0) / 4;
    }
  }

  double capped(double s) const {
    if (!options_.logits_soft_cap) return s;
    const double cap = *options_.logits_soft_cap;
    return cap * std::tanh(s / cap);
  }

  /// Error of a score whose steps are all stored in 16 bits, per unit of roundoff (numerics.md, "Profiles").
  double stored_roundings(double s, double bias) const {
    double sum = numerics::kStoredScoreRoundings * std::fabs(s);
    if (options_.logits_soft_cap) {
      const double slope = 1 - std::pow(std::tanh(s / *options_.logits_soft_cap), 2);
      sum = slope * (sum + std::fabs(s)) + numerics::kStoredCapRoundings * std::fabs(capped(s));
    }
    return bias == 0 ? sum : sum + std::fabs(bias) + std::fabs(capped(s) + bias);
  }

  static double per_q_head(const Tensor& t, std::int64_t head) { return semantics::load(t.data, t.dtype, head * t.stride[0]); }

  /// The floor of weights in abs_pv. The tolerance takes at least u (8 + 8 sqrt(7 (n + 1))) of abs_pv, which makes the loss of
  /// this.
  double least_weight(std::int64_t num_keys) const {
    if (batch_.query.dtype == DType::f32) return kFlushedWeight;
    return kLostOfParts / (0x1p-24 * (8 + 8 * std::sqrt(7.0 * (static_cast<double>(num_keys) + 1))));
  }

  /// Second pass over the logits: normalised weights, lse and the mean rounding magnitude.
  void weigh_row(Row& row) const {
    const auto at = static_cast<std::size_t>(row.index);
    const double sink = options_.sinks.present() ? per_q_head(options_.sinks, row.head) : kNegInf;
    double max = sink;
    for (const double s : row.logit) max = std::max(max, s);  // steps over NaN, which reaches the result through the sum
    result_.num_keys[at] = row.count;
    result_.lse[at] = max;
    // No visible key, or only -inf scores: exp(-inf - -inf) would be NaN. The row gets out = 0 and lse = -inf or the sink.
    if (std::all_of(row.logit.begin(), row.logit.end(), [](double s) { return s == kNegInf; })) {
      row.count = 0;
      return;
    }
    double denominator = std::exp(sink - max);
    for (std::size_t i = 0; i < row.logit.size(); ++i) {
      row.weight[i] = std::exp(row.logit[i] - max);
      denominator += row.weight[i];
    }
    result_.lse[at] = max + std::log(denominator);
    const double p_sink = std::exp(sink - max) / denominator;
    const double least = least_weight(row.count);
    double mean = p_sink > 0 ? p_sink * (std::fabs(sink) + std::fabs(sink - max)) : 0.0;
    for (std::size_t i = 0; i < row.weight.size(); ++i) {
      row.weight[i] /= denominator;
      row.floored[i] = std::max(row.weight[i], least);
      row.scored[i] =
          row.weight[i] == 0 ? 0.0 : row.weight[i] * (row.magnitude[i] + std::fabs(row.logit[i] - max)) * errors_.per_magnitude;
      mean += row.scored[i];
      row.lost[i] = std::max(0.0, std::min(row.weight[i], numerics::kHalfSubnormal) - kF16Roundoff * row.weight[i]);
      row.loses = row.loses || row.lost[i] > 0;
    }
    if (!row.stored.empty()) mean += add_stored(row, p_sink * std::expm1(errors_.stored * (p_sink > 0 ? std::fabs(sink) : 0)));
    result_.score_mag[at] = mean;
  }

  /// Adds the error of stored scores to row.scored, in units of score_error(); returns the part that belongs to score_mag. Errors
  /// of stored scores are too large for the first order: a weight is off by expm1, a denominator divides by 1 - the mean error.
  double add_stored(Row& row, double mean) const {
    std::vector<double>& cost = row.stored;
    for (std::size_t i = 0; i < cost.size(); ++i) {
      cost[i] = row.weight[i] == 0 ? 0 : row.weight[i] * std::expm1(errors_.stored * cost[i]);
      mean += cost[i];
    }
    const double unit = 1 / (errors_.plain * (1 - std::min(mean, numerics::kMostScoreError)));
    for (std::size_t i = 0; i < cost.size(); ++i) row.scored[i] += cost[i] * unit;
    return mean * unit;
  }

  /// Dims of block `b` of one output row.
  void sum_values(const DecodedKeys& keys, std::int64_t b, const Row& row) const {
    if (row.count == 0) return;  // the result begins as that of rows without keys
    const double* v = &keys.v[static_cast<std::size_t>((b * keys.count + row.first) * kLanes)];
    Lanes out, absolute, scored, lost{};
    loops_.sum(v, row.weight.data(), row.floored.data(), row.scored.data(), row.count, out, absolute, scored);
    if (row.loses) loops_.sum_absolute(v, row.lost.data(), row.count, lost);
    const std::int64_t dims = std::min(kLanes, v_head_dim_ - b * kLanes);
    for (std::int64_t lane = 0; lane < dims; ++lane) {
      const auto at = static_cast<std::size_t>(row.index * v_head_dim_ + b * kLanes + lane);
      result_.out[at] = out.sum[lane];
      result_.abs_pv[at] = absolute.sum[lane];
      result_.abs_spv[at] = scored.sum[lane];
      result_.abs_lost[at] = lost.sum[lane];
    }
  }

  const Batch& batch_;
  const KVCache& cache_;
  const Options& options_;
  Reference& result_;
  const reference_detail::Loops loops_ = reference_detail::widest_loops();
  std::int64_t head_dim_ = 0, v_head_dim_ = 0, num_kv_heads_ = 0, page_size_ = 0, group_ = 0;
  double scale_ = 0;
  bool rounds_kv_ = false;
  bool has_shape_ = false;  // the mask has a chunk, a prefix, spans or a tree
  numerics::ScoreErrors errors_{};
  std::vector<std::int64_t> k_dim_offset_, v_dim_offset_;
};

/// Runs all tasks. Every task writes rows of its own, so the result does not depend on the thread of a task. A task asks by
/// itself whether the call shall end.
void run_all(const Oracle& oracle, const std::vector<Task>& tasks, std::size_t num_threads) {
  std::atomic<std::size_t> next{0};
  threads::on_threads(std::min(num_threads, tasks.size()), [&] {
    Scratch scratch;
    for (std::size_t i = next++; i < tasks.size(); i = next++) oracle.run(tasks[i], scratch);
  });
}

/// A result of `num_rows` rows, as if no row saw any key.
Reference empty_result(const Batch& batch, const KVCache& cache, std::size_t num_rows) {
  Reference result;
  result.output = batch.output.dtype;
  result.cache = cache.k.dtype;
  result.num_tokens = static_cast<std::int64_t>(num_rows);
  result.num_q_heads = batch.query.shape[1];
  result.head_dim = batch.query.shape[2];
  result.v_head_dim = batch.output.shape[2];
  const auto rows = num_rows * static_cast<std::size_t>(result.num_q_heads);
  const auto elements = rows * static_cast<std::size_t>(result.v_head_dim);
  result.out.assign(elements, 0.0);
  result.abs_pv.assign(elements, 0.0);
  result.abs_spv.assign(elements, 0.0);
  result.abs_lost.assign(elements, 0.0);
  result.lse.assign(rows, kNegInf);
  result.score_mag.assign(rows, 0.0);
  result.num_keys.assign(rows, 0);
  return result;
}

/// Converts the result to units of an 8-bit output's codes. Values beyond the largest code become that code. If no rounding could
/// keep a value below the largest code, only the largest code is right.
void in_codes(Reference& result, const Batch& batch) {
  if (batch.output.dtype != DType::fp8_e4m3fn) return;
  const double scale = scalar_or_per_head(batch.output_scale, 0, 1.0);
  for (std::vector<double>* list : {&result.out, &result.abs_pv, &result.abs_spv, &result.abs_lost})
    for (double& x : *list) x /= scale;
  const numerics::OutputType type = numerics::output_type(batch.output.dtype);
  for (std::size_t i = 0; i < result.out.size(); ++i) {
    if (!(std::fabs(result.out[i]) > numerics::kLargestE4m3fn)) continue;
    const auto row = static_cast<std::int64_t>(i) / result.v_head_dim;
    const double tolerance = numerics::output_tolerance(result, row, static_cast<std::int64_t>(i), type);
    const bool beyond = std::fabs(result.out[i]) - tolerance > numerics::kLargestE4m3fn;
    result.out[i] = std::copysign(numerics::kLargestE4m3fn, result.out[i]);
    if (beyond || !std::isfinite(tolerance)) result.abs_pv[i] = result.abs_spv[i] = result.abs_lost[i] = 0.0;
  }
}

Status check_profile(const NumericsProfile& profile) {
  const auto known = [](DType t) { return t == DType::f32 || t == DType::f16 || t == DType::bf16; };
  for (const auto& [field, type] : {std::pair{"weights", profile.weights},
                                    {"scores", profile.scores},
                                    {"accumulator", profile.accumulator},
                                    {"parts", profile.parts}})
    if (!known(type))
      return {Code::invalid_argument,
              std::string("profile: ") + field + " is " + std::string(name(type)) + ", expected f32, f16 or bf16"};
  return {};
}

/// The contract is known to hold, and every token to be in the batch.
Reference reference_of(const Batch& batch, const KVCache& cache, const Options& options, std::vector<Chosen> rows,
                       const NumericsProfile& profile) {
  std::sort(rows.begin(), rows.end(), [](const Chosen& a, const Chosen& b) { return a.token < b.token; });
  Reference result = empty_result(batch, cache, rows.size());
  const Oracle oracle(batch, cache, options, profile, result);
  double work = 0;
  const std::vector<Task> tasks = oracle.tasks(rows, work);
  run_all(oracle, tasks, work < kThreadedWork ? 1 : threads::available());
  numerics::pay_for(result, profile);
  in_codes(result, batch);
  return result;
}

/// Tokens [0, num_rows) of the batch that a reference has: padding rows that are left as they are have no right answer.
std::int64_t num_judged_rows(const Batch& batch) {
  if (batch.padding != Padding::left) return batch.query.shape[0];
  return index_at(batch.query_start_loc, batch.seq_lens.shape[0]);
}

}  // namespace

Result<Reference> reference(const Batch& batch, const KVCache& cache, const Options& options,
                            const NumericsProfile& profile) try {
  if (Status s = check_profile(profile); !s.ok()) return s;
  if (const Findings findings = check(batch, cache, options, Depth::tables); !findings.ok()) return findings.status();
  std::vector<Chosen> rows(static_cast<std::size_t>(num_judged_rows(batch)));
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i].token = rows[i].at = static_cast<std::int64_t>(i);
  Reference result = reference_of(batch, cache, options, std::move(rows), profile);
  result.num_left_rows = batch.query.shape[0] - result.num_tokens;
  return result;
} catch (...) {
  return batch::caught("reference");
}

Result<Reference> reference(const Batch& batch, const KVCache& cache, const Options& options,
                            std::span<const std::int64_t> tokens, const NumericsProfile& profile) try {
  if (Status s = check_profile(profile); !s.ok()) return s;
  if (const Findings findings = check(batch, cache, options, Depth::tables); !findings.ok()) return findings.status();
  std::vector<Chosen> rows(tokens.size());
  const std::int64_t judged = num_judged_rows(batch);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i] = {tokens[i], static_cast<std::int64_t>(i)};
    if (tokens[i] < 0 || tokens[i] >= judged)
      return Status(Code::invalid_argument, "reference: tokens[" + std::to_string(i) + "] is " + std::to_string(tokens[i]) +
                                                (judged < batch.query.shape[0] ? ", expected a row of a request, 0 to "
                                                                               : ", expected 0 to num_tokens - 1 = ") +
                                                std::to_string(judged - 1));
  }
  return reference_of(batch, cache, options, std::move(rows), profile);
} catch (...) {
  return batch::caught("reference");
}

}  // namespace quire
