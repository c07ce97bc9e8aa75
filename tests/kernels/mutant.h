// SPDX-License-Identifier: Apache-2.0
// A plain attention with switchable faults, each a mistake that real kernels have shipped. Tests of the tests only: a hazard's
// check must find its fault, and must find nothing without one.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>

#include "kernels/judge.h"
#include "semantics/page_walk.h"
#include "semantics/visible_range.h"

namespace quire::test {

enum class Fault {
  none,
  reads_page_tail,
  leaks_finite_tail,
  multiplies_masked_tail,
  rounds_context_to_page,
  ignores_window,
  window_from_page_start,
  window_one_short,
  multiplies_out_of_window,
  reads_table_left_of_window,
  large_negative_stand_in,
  writes_row_for_query_len_0,
  writes_padding_rows,
  leaves_padding_rows,
  claims_pages,
  reads_table_past_end,
  caps_rows,
  drops_tail_dims,
  drops_wide_dims_of_later_keys,
  shifts_group,
  kv_head_modulo,
  shifts_page,
  offset_32_bit,
  caps_chunks,
  ignores_negative_slopes,
  alibi_from_context,
  drops_sink,
  sink_in_numerator,
  wrong_fp8_format,
  flushes_fp8_subnormals,
  no_max_subtraction,
  speculative_rows_see_all,
  all_keys_from_cache,
  new_rows_from_context,
  scales_new_rows,
  drops_last_split,
  base_2_lse,
  ignores_soft_cap,
  cap_after_alibi,
  swaps_scales,
  scale_from_heads,
  swallows_nan,
  noise,
  threads_change_bits,
  writes_past_end,
  counts_wrong,
  skips_last_row,
  takes_all_for_causal,
  flag_of_first_request,
  divides_by_no_key,
  window_right_one_long,
  ignores_q_begin,
  window_from_key_zero,
  scores_over_dims_of_v,
  stops_at_dims_of_k,
  v_from_last_dims,
  batch_changes_bits,
  chunk_changes_bits,
  chunk_of_16_changes_bits,
  chunk_of_64_changes_bits,
  chunk_of_512_changes_bits,
};

class Mutant {
 public:
  Mutant(const Case& c, Fault fault, int num_threads) : c_(c), fault_(fault), num_threads_(num_threads) {
    const Batch& b = c.batch;
    heads_ = b.query.shape[1];
    dim_ = b.query.shape[2];
    v_dim_ = b.output.shape[2];
    kv_heads_ = num_kv_heads(c.cache);
    page_size_ = page_size(c.cache);
  }

  Status run(std::int64_t& rows) {
    rows = 0;
    const Batch& b = c_.batch;
    for (std::int64_t r = 0; r < b.seq_lens.shape[0]; ++r) {
      start(r);
      if (is(Fault::reads_table_past_end) && !table_entry_past_end_is_a_page())
        return {Code::internal_error, "simulated fault: bad page"};
      if (is(Fault::reads_table_left_of_window) && !first_tile_has_pages())
        return {Code::internal_error, "simulated fault: bad page left of the window"};
      for (std::int64_t i = 0; i < query_len_; ++i)
        for (std::int64_t h = 0; h < heads_; ++h) {
          ++rows;
          if (is(Fault::caps_rows) && i >= 64) continue;
          if (is(Fault::skips_last_row) && first_token_ + i + 1 == b.query.shape[0]) continue;
          attend_row(i, h);
        }
    }
    for (std::int64_t r = 0; is(Fault::writes_row_for_query_len_0) && r < b.seq_lens.shape[0]; ++r) {
      start(r);
      if (query_len_ == 0) write_row(first_token_, 0, std::vector<double>(static_cast<std::size_t>(v_dim_), 0.5), 0.0);
    }
    end_padding();
    if (is(Fault::writes_past_end)) {
      const Tensor& o = b.output;
      semantics::store(o.data, o.dtype, o.shape[0] * o.stride[0], 1.0f);
    }
    if (is(Fault::counts_wrong)) --rows;
    return {};
  }

 private:
  struct Key {
    std::int64_t position;
    bool masked;  // weight 0, but multiplied all the same
  };

  bool is(Fault fault) const { return fault_ == fault; }
  static std::int64_t floor_to_power_of_two(std::int64_t n) {
    return static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(n)));
  }

  void start(std::int64_t r) {
    const semantics::IndexView starts = semantics::index_view(c_.batch.query_start_loc);
    req_ = r;
    first_token_ = starts[r];
    query_len_ = starts[r + 1] - starts[r];
    seq_len_ = semantics::index_view(c_.batch.seq_lens)[r];
    context_len_ = seq_len_ - query_len_;
    cached_len_ = c_.batch.cached_lens.present() ? semantics::index_view(c_.batch.cached_lens)[r] : seq_len_;
    new_from_ = is(Fault::new_rows_from_context) ? context_len_ : is(Fault::all_keys_from_cache) ? seq_len_ : cached_len_;
    if (!c_.batch.key.present()) new_from_ = seq_len_;
    const Request request = request_of(c_.batch, c_.options, is(Fault::flag_of_first_request) ? 0 : r);
    causal_ = request.causal || is(Fault::takes_all_for_causal);
    const Request own = request_of(c_.batch, c_.options, r);
    first_position_ = is(Fault::ignores_q_begin) ? context_len_ : own.first_row();
    key_begin_ = own.key_begin;
  }

  /// Out-of-range ids wrap instead of crashing, as on a GPU whose memory happens to be mapped.
  std::int64_t table(std::int64_t column) const {
    const std::int64_t width = c_.batch.block_table.shape[1];
    const std::int64_t page = semantics::index_row(c_.batch.block_table, req_)[std::min(column, width - 1)];
    return page % num_pages(c_.cache);
  }
  bool table_entry_past_end_is_a_page() const {
    const std::int64_t used = (cached_len_ + page_size_ - 1) / page_size_;
    if (used >= c_.batch.block_table.shape[1]) return true;
    const std::int64_t page = semantics::index_row(c_.batch.block_table, req_)[used];
    return page >= 0 && page < num_pages(c_.cache);
  }

  bool first_tile_has_pages() const {
    const std::int64_t first = semantics::visible_range(context_len_, c_.options.sliding_window.value_or(0)).begin;
    for (std::int64_t k = first / 64 * 64; k < first; ++k)
      if (semantics::index_row(c_.batch.block_table, req_)[k / page_size_] >= num_pages(c_.cache)) return false;
    return true;
  }

  std::int64_t kv_head(std::int64_t h) const {
    const std::int64_t group = heads_ / kv_heads_;
    if (is(Fault::kv_head_modulo)) return h % kv_heads_;
    if (is(Fault::shifts_group)) return std::min(kv_heads_ - 1, h / floor_to_power_of_two(group));
    return h / group;
  }

  DType cache_dtype() const {
    const DType real = c_.cache.k.dtype;
    if (!is(Fault::wrong_fp8_format)) return real;
    switch (real) {
      case DType::fp8_e4m3fn: return DType::fp8_e4m3fnuz;
      case DType::fp8_e4m3fnuz: return DType::fp8_e4m3fn;
      case DType::fp8_e5m2: return DType::fp8_e5m2fnuz;
      case DType::fp8_e5m2fnuz: return DType::fp8_e5m2;
      default: return real;
    }
  }

  double scale(bool key, std::int64_t head) const {
    const Tensor& t = key != is(Fault::swaps_scales) ? c_.cache.k_scale : c_.cache.v_scale;
    if (!t.present()) return 1.0;
    return semantics::load(t.data, t.dtype, t.rank == 1 && t.shape[0] > 1 ? head * t.stride[0] : 0);
  }

  double element(bool key, std::int64_t position, std::int64_t head, std::int64_t d) const {
    if (position >= new_from_ && position < seq_len_) {
      const Tensor& t = key ? c_.batch.key : c_.batch.value;
      const std::int64_t token = first_token_ + position - context_len_;
      const double value = semantics::load(t.data, t.dtype, token * t.stride[0] + head * t.stride[1] + d * t.stride[2]);
      return is(Fault::scales_new_rows) ? value * scale(key, head) : value;
    }
    const Tensor& t = key ? c_.cache.k : c_.cache.v;
    const std::int64_t size = is(Fault::shifts_page) ? floor_to_power_of_two(page_size_) : page_size_;
    const std::int64_t first = !key && is(Fault::v_from_last_dims) ? std::max<std::int64_t>(0, dim_ - v_dim_) : 0;
    std::int64_t at = cache_offset(t, key, table(position / size), position % size, head, first + d);
    if (is(Fault::offset_32_bit)) at = static_cast<std::int64_t>(static_cast<std::uint32_t>(at));
    double value = semantics::load(t.data, cache_dtype(), at);
    const std::int64_t x = packed_x(t.dtype);
    if (is(Fault::caps_chunks) && head * ((dim_ + x - 1) / x) + d / x >= 512) value = 0;
    if (is(Fault::flushes_fp8_subnormals) && is_fp8(t.dtype) &&
        std::fabs(value) < (t.dtype == DType::fp8_e4m3fn     ? 0x1p-6
                            : t.dtype == DType::fp8_e4m3fnuz ? 0x1p-7
                            : t.dtype == DType::fp8_e5m2     ? 0x1p-14
                                                             : 0x1p-15))
      value = 0;
    return value * scale(key, head);
  }

  std::int64_t cache_offset(const Tensor& t, bool key, std::int64_t page, std::int64_t slot, std::int64_t head,
                            std::int64_t d) const {
    const auto& s = t.stride;
    if (c_.cache.layout == CacheLayout::nhd) return page * s[0] + slot * s[1] + head * s[2] + d * s[3];
    if (c_.cache.layout == CacheLayout::hnd) return page * s[0] + head * s[1] + slot * s[2] + d * s[3];
    if (!key) return page * s[0] + head * s[1] + d * s[2] + slot * s[3];
    return page * s[0] + head * s[1] + d / t.shape[4] * s[2] + slot * s[3] + d % t.shape[4] * s[4];
  }

  /// Which keys a row folds, in order; `masked` ones with weight 0.
  std::vector<Key> keys_of(std::int64_t q_pos) {
    std::int64_t window = c_.options.sliding_window.value_or(0);
    if (is(Fault::ignores_window)) window = 0;
    if (is(Fault::window_one_short) && window > 0) --window;  // and 0 means none
    std::int64_t end = q_pos + 1;
    const std::int64_t right = c_.options.window_right.value_or(seq_len_ - q_pos) + (is(Fault::window_right_one_long) ? 1 : 0);
    if (!causal_) end += right;
    if (is(Fault::rounds_context_to_page)) end -= context_len_ % page_size_;
    if (is(Fault::speculative_rows_see_all) && query_len_ <= 17) end = seq_len_;
    const std::int64_t window_end = (causal_ ? end : q_pos + 1) + (is(Fault::window_from_key_zero) ? key_begin_ : 0);
    end = std::clamp<std::int64_t>(end, 0, seq_len_);
    std::int64_t begin = window > 0 && window_end > window ? std::min(end, window_end - window) : 0;
    if (is(Fault::window_from_page_start)) begin = begin / page_size_ * page_size_;
    if (is(Fault::drops_last_split) && end - begin > 1024) end = (end - 1) / 1024 * 1024;

    std::vector<Key> keys;
    if (is(Fault::multiplies_out_of_window))
      for (std::int64_t k = 0; k < begin; ++k) keys.push_back({k, true});
    for (std::int64_t k = begin; k < end; ++k)
      if (!is(Fault::claims_pages) || claim(k)) keys.push_back({k, false});
    const bool at_end = q_pos == seq_len_ - 1 && cached_len_ == seq_len_ && causal_;
    const std::int64_t page_end = (seq_len_ + page_size_ - 1) / page_size_ * page_size_;
    const bool tail = is(Fault::reads_page_tail) || is(Fault::leaks_finite_tail) || is(Fault::multiplies_masked_tail);
    for (std::int64_t k = seq_len_; tail && at_end && k < page_end; ++k) keys.push_back({k, is(Fault::multiplies_masked_tail)});
    return keys;
  }

  /// A page belongs to the request that reads it first.
  bool claim(std::int64_t position) {
    if (position >= new_from_) return true;
    return owner_.try_emplace(table(position / page_size_), req_).first->second == req_;
  }

  double logit(std::int64_t token, std::int64_t h, std::int64_t k, std::int64_t q_pos) const {
    const Tensor& q = c_.batch.query;
    std::int64_t dims = is(Fault::drops_tail_dims) ? dim_ / 32 * 32 : dim_;
    if (is(Fault::scores_over_dims_of_v)) dims = std::min(dims, v_dim_);
    if (is(Fault::drops_wide_dims_of_later_keys) && k >= 64) dims = std::min<std::int64_t>(dims, 128);
    double dot = 0;
    for (std::int64_t d = 0; d < dims; ++d)
      dot += static_cast<double>(semantics::load(q.data, q.dtype, token * q.stride[0] + h * q.stride[1] + d * q.stride[2])) *
             element(/*key=*/true, k, kv_head(h), d);
    const double base = is(Fault::scale_from_heads) ? static_cast<double>(heads_) : static_cast<double>(dim_);
    double s = dot * c_.options.softmax_scale.value_or(static_cast<float>(1 / std::sqrt(base)));
    const double cap = is(Fault::ignores_soft_cap) ? 0.0 : c_.options.logits_soft_cap.value_or(0.0f);
    const auto capped = [&](double x) { return cap > 0 ? cap * std::tanh(x / cap) : x; };
    if (!is(Fault::cap_after_alibi)) s = capped(s);
    if (c_.options.alibi_slopes.present()) {
      double slope = semantics::load(c_.options.alibi_slopes.data, DType::f32, h * c_.options.alibi_slopes.stride[0]);
      if (is(Fault::ignores_negative_slopes)) slope = std::max(slope, 0.0);
      s += slope * static_cast<double>(k - (is(Fault::alibi_from_context) ? context_len_ : q_pos));
    }
    return is(Fault::cap_after_alibi) ? capped(s) : s;
  }

  void attend_row(std::int64_t i, std::int64_t h) {
    const std::int64_t q_pos = first_position_ + i, token = first_token_ + i;
    const double minus_inf = -std::numeric_limits<double>::infinity();
    std::vector<Key> keys = keys_of(q_pos);
    std::vector<double> scores;
    double max = is(Fault::large_negative_stand_in) ? -10000.0 : minus_inf;
    for (Key& key : keys) {
      scores.push_back(key.masked ? minus_inf : logit(token, h, key.position, q_pos));
      if (std::isnan(scores.back()) && (is(Fault::swallows_nan) || (is(Fault::leaks_finite_tail) && key.position >= seq_len_))) {
        key.masked = true;
        scores.back() = minus_inf;
      }
      if (scores.back() > max || std::isnan(scores.back())) max = scores.back();
    }
    double sink = minus_inf;
    if (c_.options.sinks.present() && !is(Fault::drops_sink))
      sink = semantics::load(c_.options.sinks.data, DType::f32, h * c_.options.sinks.stride[0]);
    const bool nothing = max == minus_inf;
    if (!nothing || sink != minus_inf) max = std::max(max, sink);
    if (is(Fault::no_max_subtraction)) max = 0;
    double sum = sink == minus_inf ? 0.0 : weight(sink - max);
    std::vector<double> out(static_cast<std::size_t>(v_dim_), is(Fault::sink_in_numerator) ? sum : 0.0);
    for (std::size_t j = 0; !nothing && j < keys.size(); ++j) {
      const double p = weight(scores[j] - max);
      sum += p;
      for (std::int64_t d = 0; d < (is(Fault::stops_at_dims_of_k) ? std::min(dim_, v_dim_) : v_dim_); ++d) {
        const double v = element(/*key=*/false, keys[j].position, kv_head(h), d);
        // Only the faults under test multiply what they masked.
        if (keys[j].masked && !is(Fault::multiplies_masked_tail) && !is(Fault::multiplies_out_of_window)) continue;
        out[static_cast<std::size_t>(d)] += p * v;
      }
    }
    const bool empty = nothing && sink == minus_inf;
    for (double& value : out) value = empty && !is(Fault::divides_by_no_key) ? 0.0 : value / sum;
    write_row(token, h, out, empty ? minus_inf : nothing ? sink : max + std::log(sum));
  }

  double weight(double x) const {
    return is(Fault::no_max_subtraction) ? static_cast<double>(std::exp(static_cast<float>(x))) : std::exp(x);
  }

  /// Rows behind the last start.
  void end_padding() const {
    const Batch& b = c_.batch;
    const bool zero = b.padding == Padding::zero && !is(Fault::leaves_padding_rows);
    if (!zero && !(b.padding == Padding::left && is(Fault::writes_padding_rows))) return;
    const std::vector<double> row(static_cast<std::size_t>(v_dim_), zero ? 0.0 : 0.5);
    for (std::int64_t token = num_request_rows(b); token < b.query.shape[0]; ++token)
      for (std::int64_t h = 0; h < heads_; ++h) write_row(token, h, row, zero ? -std::numeric_limits<double>::infinity() : 0.0);
  }

  void write_row(std::int64_t token, std::int64_t h, const std::vector<double>& row, double lse) const {
    const Tensor& o = c_.batch.output;
    double factor = 1;
    static int calls = 0;
    if (is(Fault::noise)) factor += 4e-7 * (++calls % 7);
    if (is(Fault::threads_change_bits) && num_threads_ > 1) factor += 4e-7;
    if (is(Fault::batch_changes_bits) && c_.batch.seq_lens.shape[0] > 1) factor += 4e-7;
    if (is(Fault::chunk_changes_bits) && query_len_ < 10) factor += 4e-7;
    if (is(Fault::chunk_of_16_changes_bits) && query_len_ == 16) factor += 4e-7;
    if (is(Fault::chunk_of_64_changes_bits) && query_len_ == 64) factor += 4e-7;
    if (is(Fault::chunk_of_512_changes_bits) && query_len_ == 512) factor += 4e-7;
    for (std::int64_t d = 0; d < v_dim_; ++d)
      semantics::store(o.data, o.dtype, token * o.stride[0] + h * o.stride[1] + d * o.stride[2],
                       static_cast<float>(factor * row[static_cast<std::size_t>(d)]));
    if (!c_.batch.lse.present()) return;
    if (is(Fault::base_2_lse)) lse /= std::log(2.0);
    static_cast<float*>(c_.batch.lse.data)[token * c_.batch.lse.stride[0] + h * c_.batch.lse.stride[1]] = static_cast<float>(lse);
  }

  const Case& c_;
  Fault fault_;
  int num_threads_;
  std::int64_t heads_ = 0, dim_ = 0, v_dim_ = 0, kv_heads_ = 0, page_size_ = 0;
  std::int64_t req_ = 0, first_token_ = 0, query_len_ = 0, seq_len_ = 0, context_len_ = 0, cached_len_ = 0, new_from_ = 0;
  std::int64_t first_position_ = 0, key_begin_ = 0;
  bool causal_ = true;
  std::map<std::int64_t, std::int64_t> owner_;
};

inline Attend mutant(Fault fault) {
  return [fault](const Case& c, int num_threads, std::int64_t& rows) { return Mutant(c, fault, num_threads).run(rows); };
}

}  // namespace quire::test
