// SPDX-License-Identifier: Apache-2.0
// Any bytes become a batch: a small valid one, broken in up to a few places, whose tensors tell the truth about their memory.
//
// Every tensor gets exactly the bytes that its shape and strides span (so that a sanitizer sees one byte too many), or null data
// if its descriptor is nonsense or claims too much. Shared by fuzz_check.cpp and by a unit test that feeds seeded random bytes.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "contract/tensor_facts.h"
#include "quire/attention.hpp"
#include "quire/contract.hpp"
#include "quire/problem.hpp"
#include "quire/sparse.hpp"
#include "semantics/dtype.h"
#include "semantics/layout.h"
#include "semantics/page_walk.h"

namespace quire::fuzz {

/// Reads the input front to back; zeros after its end.
class Bytes {
 public:
  explicit Bytes(std::span<const std::uint8_t> data) : data_(data) {}
  std::uint8_t byte() { return at_ < data_.size() ? data_[at_++] : std::uint8_t{0}; }
  std::int64_t below(std::int64_t n) { return byte() % n; }
  bool chance(int one_in) { return byte() % one_in == 1; }
  std::int64_t raw() {
    std::uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value = value << 8 | byte();
    return static_cast<std::int64_t>(value);
  }
  /// A number that tends to break things.
  std::int64_t nasty() {
    constexpr std::int64_t kNasty[] = {
        -1, 0, 1, 2, 3, 4, 5, 8, 16, 1000, INT64_MIN, INT64_MAX, INT32_MAX, std::int64_t{1} << 31, std::int64_t{1} << 62};
    const std::int64_t which = below(std::size(kNasty) + 1);
    return which < static_cast<std::int64_t>(std::size(kNasty)) ? kNasty[which] : raw();
  }
  template <typename T, std::size_t N>
  T pick(const T (&values)[N]) {
    return values[static_cast<std::size_t>(below(N))];
  }

 private:
  std::span<const std::uint8_t> data_;
  std::size_t at_ = 0;
};

/// One tensor on its way from a valid description to a (perhaps broken) view with memory.
struct Draft {
  Tensor* tensor = nullptr;
  std::vector<std::int64_t> values;  ///< what an index tensor holds, row-major; empty for floats
  std::optional<std::size_t> alias;  ///< data of another draft instead of its own
  bool misaligned = false;
  bool null_data = false;
  std::unique_ptr<std::byte[]> memory;
  std::int64_t bytes = 0;
};

inline constexpr std::int64_t kMaxBytes = 1 << 16;     ///< bytes of a tensor
inline constexpr std::int64_t kMaxElements = 1 << 14;  ///< broadcast claims beyond this get null data: they only cost time

/// Bytes before and after `data` that the view spans; nullopt if it is nonsense or too much.
struct Span {
  std::int64_t before = 0;
  std::int64_t total = 0;
};
inline std::optional<Span> honest_span(const Tensor& t) {
  const std::int64_t item = itemsize(t.dtype);
  if (item == 0 || t.rank < 0 || t.rank > Tensor::kMaxRank) return std::nullopt;
  double elements = 1, low = 0, high = static_cast<double>(item);  // exact below the limits, and cannot overflow
  for (int i = 0; i < t.rank; ++i) {
    if (t.shape[i] < 0 || t.shape[i] > kMaxElements) return std::nullopt;
    elements *= static_cast<double>(t.shape[i]);
    const auto steps = static_cast<double>(std::max<std::int64_t>(t.shape[i] - 1, 0) * item);
    const double reach = static_cast<double>(t.stride[i]) * steps;
    (reach < 0 ? low : high) += reach;
    if (elements > kMaxElements || high > kMaxBytes || low < -kMaxBytes) return std::nullopt;
  }
  if (elements == 0) return Span{0, 0};
  return Span{static_cast<std::int64_t>(-low), static_cast<std::int64_t>(high - low)};
}

/// Calls visit(element offset, row-major number) for every element.
template <typename Visit>
void for_each_element(const Tensor& t, Visit&& visit) {
  std::array<std::int64_t, Tensor::kMaxRank> index{};
  const std::int64_t count = t.num_elements();
  for (std::int64_t n = 0; n < count; ++n) {
    std::int64_t offset = 0;
    for (int i = 0; i < t.rank; ++i) offset += index[i] * t.stride[i];
    visit(offset, n);
    for (int i = t.rank - 1; i >= 0 && ++index[i] == t.shape[i]; --i) index[i] = 0;
  }
}

/// Roughly N(0,1): the sum of twelve uniforms, from a hash of `n`.
inline float roughly_normal(std::uint64_t n) {
  float sum = -6.0f;
  std::uint64_t state = (n + 1) * 0x9E3779B97F4A7C15u;
  for (int i = 0; i < 12; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    sum += static_cast<float>(state >> 40) * 0x1p-24f;
  }
  return sum;
}

class Workshop {
 public:
  void add(Tensor& t, DType dtype, std::vector<std::int64_t> shape, std::vector<std::int64_t> values = {}) {
    std::array<std::int64_t, Tensor::kMaxRank> extents{};
    std::copy(shape.begin(), shape.end(), extents.begin());
    t = Tensor::from_shape(nullptr, dtype, extents, static_cast<int>(shape.size()));
    drafts_.push_back({&t, std::move(values), {}, false, false, nullptr, 0});
  }

  /// Changes one thing about one tensor. True if values (not only their description) may be abnormal now.
  bool mutate(Bytes& in) {
    Draft& draft = drafts_[static_cast<std::size_t>(in.below(static_cast<std::int64_t>(drafts_.size())))];
    Tensor& t = *draft.tensor;
    const auto dim = static_cast<std::size_t>(in.below(Tensor::kMaxRank));
    switch (in.below(13)) {
      case 0: t.rank = static_cast<int>(in.nasty()); break;
      case 1: t.shape[dim] = in.nasty(); break;
      case 2: t.stride[dim] = in.nasty(); break;
      case 3: t.dtype = static_cast<DType>(in.below(16)); break;
      case 4: t.memory = static_cast<Memory>(in.below(4)); break;
      case 5: draft.null_data = true; break;
      case 6: draft.misaligned = true; break;
      case 7: draft.alias = static_cast<std::size_t>(in.below(static_cast<std::int64_t>(drafts_.size()))); break;
      case 8:
      case 9:
        if (!draft.values.empty()) draft.values[static_cast<std::size_t>(in.byte()) % draft.values.size()] = in.nasty();
        break;
      case 10: t = Tensor{}; break;
      case 11: {  // padding, still valid
        const std::int64_t padding = in.below(8);
        if (t.rank > 0 && t.rank <= Tensor::kMaxRank && t.stride[0] > -kMaxElements && t.stride[0] < kMaxElements)
          t.stride[0] += padding;
        break;
      }
      default: draft.values.clear(); return true;
    }
    return false;
  }

  /// Gives every tensor its memory, poison in the holes, and its values.
  void build() {
    for (Draft& draft : drafts_) allocate(draft);
    for (Draft& draft : drafts_)
      if (draft.alias) borrow(draft, drafts_[*draft.alias]);
    for (std::size_t i = 0; i < drafts_.size(); ++i)
      if (drafts_[i].memory && !drafts_[i].alias) fill(drafts_[i], i);
  }

 private:
  static void allocate(Draft& draft) {
    Tensor& t = *draft.tensor;
    t.data = nullptr;
    const auto span = t.present() ? honest_span(t) : std::nullopt;
    if (!span || draft.null_data || span->total == 0) return;
    draft.bytes = span->total + (draft.misaligned ? 1 : 0);
    draft.memory.reset(new std::byte[static_cast<std::size_t>(draft.bytes)]);
    std::memset(draft.memory.get(), 0xFF, static_cast<std::size_t>(draft.bytes));
    t.data = draft.memory.get() + span->before + (draft.misaligned ? 1 : 0);
  }

  static void borrow(Draft& draft, const Draft& owner) {
    const auto span = draft.tensor->present() ? honest_span(*draft.tensor) : std::nullopt;
    if (!span || !owner.memory || span->total > owner.bytes) {
      draft.alias.reset();
      return;
    }
    draft.tensor->data = owner.memory.get() + span->before;
  }

  /// Byte `at` of a row of fp8_ds_mla whose numbers are finite: codes of up to 15, scales of 0.5, RoPE dims of 0.5 to 2.
  static std::uint8_t latent_byte(std::int64_t at, std::int64_t n) {
    const auto hash = static_cast<std::uint8_t>((static_cast<std::uint64_t>(n) + 1) * 0x9E3779B97F4A7C15u >> 56);
    if (at < 512) return static_cast<std::uint8_t>((hash & 0x80) | (hash & 0x57));
    if (at < 528) return at % 4 == 3 ? std::uint8_t{0x3F} : std::uint8_t{0};
    return at % 2 == 0 ? hash : static_cast<std::uint8_t>(0x3F | (hash & 0x80));
  }

  static void fill(const Draft& draft, std::size_t seed) {
    const Tensor& t = *draft.tensor;
    const bool misaligned = reinterpret_cast<std::uintptr_t>(t.data) % static_cast<std::uintptr_t>(itemsize(t.dtype)) != 0;
    if (misaligned) return;
    for_each_element(t, [&](std::int64_t offset, std::int64_t n) {
      const std::int64_t value = draft.values.empty() ? 0 : draft.values[static_cast<std::size_t>(n) % draft.values.size()];
      if (t.dtype == DType::i64) {
        static_cast<std::int64_t*>(t.data)[offset] = value;
      } else if (t.dtype == DType::i32) {
        static_cast<std::int32_t*>(t.data)[offset] = static_cast<std::int32_t>(value);
      } else if (is_four_bit(t.dtype)) {
        static_cast<std::uint8_t*>(t.data)[offset] = static_cast<std::uint8_t>(37 * n + static_cast<std::int64_t>(seed));
      } else if (t.dtype == DType::u8 || (itemsize(t.dtype) == 1 && !draft.values.empty())) {
        static_cast<std::uint8_t*>(t.data)[offset] = static_cast<std::uint8_t>(value);
      } else if (t.dtype == DType::fp8_ds_mla) {
        static_cast<std::uint8_t*>(t.data)[offset] = latent_byte(n % 656, n);
      } else {
        semantics::store(t.data, t.dtype, offset, roughly_normal(static_cast<std::uint64_t>(n) << 8 | seed));
      }
    });
  }

  std::vector<Draft> drafts_;
};

/// The batch, its memory, and whether only its description (not its values or options) was tampered with.
class FuzzBatch {
 public:
  Batch batch;
  KVCache cache;
  Options options;
  SlotLedger ledger{16, 4};
  bool use_ledger = false;
  bool tame_values = true;
  KeyLists lists;  ///< ids absent: there are none

  /// The batch beside the lists: mostly without what goes with no list (Q-K03).
  Batch batch_of_lists() const {
    Batch b = batch;
    if (!strips_) return b;
    for (Tensor* t : {&b.cached_lens, &b.key, &b.value, &b.slot_mapping, &b.causal, &b.q_begin, &b.key_begin, &b.spans,
                      &b.prefix_lens, &b.tree_mask, &b.tree_lens})
      *t = Tensor{};
    return b;
  }
  Options options_of_lists() const {
    Options o = options;
    if (!strips_) return o;
    o.sliding_window.reset(), o.window_right.reset(), o.attention_chunk.reset(), o.prefix_len.reset();
    o.alibi_slopes = Tensor{};
    o.causal = true;
    return o;
  }

  explicit FuzzBatch(std::span<const std::uint8_t> data) {
    Bytes in(data);
    const std::int64_t mutations = std::max<std::int64_t>(in.below(8) - 3, 0);
    sizes(in);
    tensors(in);
    option_values(in);
    for (std::int64_t i = 0; i < mutations; ++i) tame_values = !workshop_.mutate(in) && tame_values;
    if (mutations > 2) cache.layout = static_cast<CacheLayout>(in.below(5));
    workshop_.build();
    // The number of bytes decides this, and none of their values: all other choices of older seeds stay as they were.
    if (data.size() % 3 == 1) share_pages();
    scales(in);
    if (!in.chance(4)) poison_what_nobody_reads();
  }
  FuzzBatch(const FuzzBatch&) = delete;

  Findings check(Depth depth) const { return quire::check(batch, cache, options, depth, use_ledger ? &ledger : nullptr); }
  Findings check_append() const { return quire::check_append(cache, batch.key, batch.value, batch.slot_mapping); }

 private:
  void sizes(Bytes& in) {
    num_reqs_ = in.below(5);
    kv_heads_ = 1 + in.below(3);
    group_ = 1 + in.below(3);
    constexpr std::int64_t kDims[] = {1, 7, 8, 16, 24, 32};
    dim_ = in.pick(kDims);
    page_size_ = 1 + in.below(6);
    num_pages_ = 1 + in.below(12);
    cache.layout = static_cast<CacheLayout>(in.below(3));
    constexpr DType kRows[] = {DType::f32, DType::f16, DType::bf16};
    q_ = in.pick(kRows);
    constexpr DType kCaches[] = {DType::f16,      DType::bf16,         DType::fp8_e4m3fn,
                                 DType::fp8_e5m2, DType::fp8_e4m3fnuz, DType::fp8_e5m2fnuz};
    kv_ = in.chance(3) ? in.pick(kCaches) : q_;
    if (cache.layout == CacheLayout::packed) dim_ = (dim_ + packed_x(kv_) - 1) / packed_x(kv_) * packed_x(kv_);
    v_dim_ = in.chance(3) ? in.pick(kDims) : dim_;
    latent_ = cache.layout != CacheLayout::packed && v_dim_ <= dim_ && in.chance(4);
    v_ = !latent_ && in.chance(5) ? in.pick(kCaches) : kv_;
    if (latent_ || cache.layout == CacheLayout::packed) return;
    if (in.chance(10)) {
      kv_ = v_ = DType::fp8_ds_mla;
      kv_heads_ = group_ = 1;
      dim_ = 576, v_dim_ = 512;
      page_size_ = 1 + in.below(2), num_pages_ = 1 + in.below(3);
      return;
    }
    if (!in.chance(6)) return;
    v_ = in.chance(2) ? DType::nvfp4 : DType::mxfp4;
    v_dim_ = 32;  // whole blocks of both
    if (in.chance(2)) kv_ = in.chance(2) ? DType::nvfp4 : DType::mxfp4, dim_ = 32;
  }

  void tensors(Bytes& in) {
    const bool all_cached = in.chance(2);
    std::vector<std::int64_t> starts{0}, seq, cached, table, slots, ids;
    const std::int64_t width = 1 + in.below(6);
    for (std::int64_t r = 0; r < num_reqs_; ++r) {
      const std::int64_t query_len = in.below(5), context = in.below(width * page_size_ - 3 > 1 ? width * page_size_ - 3 : 1);
      starts.push_back(starts.back() + query_len);
      seq.push_back(context + query_len);
      cached.push_back(std::min(all_cached ? seq.back() : context + in.below(query_len + 1), width * page_size_));
      seq.back() = std::min(seq.back(), cached.back() + query_len);
      ids.push_back(10 + r);
      for (std::int64_t c = 0; c < width; ++c) table.push_back((r * width + c) % num_pages_);
      for (std::int64_t i = 0; i < query_len; ++i) {
        const std::int64_t position = seq.back() - query_len + i;
        const std::int64_t page = table[static_cast<std::size_t>(r * width + std::min(position / page_size_, width - 1))];
        slots.push_back(in.chance(4) ? -1 : page * page_size_ + position % page_size_);
      }
    }
    if (in.chance(2)) be_sloppy(in, seq, cached, table, slots, width);
    const std::int64_t rows = starts.back();
    const DType index = in.chance(3) ? DType::i64 : DType::i32;
    workshop_.add(batch.query, q_, {rows, kv_heads_ * group_, dim_});
    workshop_.add(batch.output, q_, {rows, kv_heads_ * group_, v_dim_});
    workshop_.add(batch.query_start_loc, index, {num_reqs_ + 1}, starts);
    workshop_.add(batch.seq_lens, index, {num_reqs_}, seq);
    workshop_.add(batch.block_table, index, {num_reqs_, width}, table);
    cache_tensors();
    if (!all_cached || in.chance(2)) {
      workshop_.add(batch.cached_lens, index, {num_reqs_}, cached);
      workshop_.add(batch.key, q_, {rows, kv_heads_, dim_});
      workshop_.add(batch.value, q_, {rows, kv_heads_, v_dim_});
    }
    if (in.chance(3)) workshop_.add(batch.slot_mapping, DType::i64, {rows}, slots);
    if (in.chance(2)) workshop_.add(batch.lse, DType::f32, {rows, kv_heads_ * group_});
    if (in.chance(3)) workshop_.add(batch.request_ids, DType::i64, {num_reqs_}, ids);
    if (in.chance(3)) workshop_.add(options.alibi_slopes, DType::f32, {kv_heads_ * group_});
    if (in.chance(3)) workshop_.add(options.sinks, DType::f32, {kv_heads_ * group_});
    record_writes(in, seq, table, width);
    if (in.chance(3)) masks(in, seq, starts, index);
    if (in.chance(3)) key_lists(in, seq, starts, table, width);
  }

  /// Lists of requests or of rows, of pages or of slots, by KV head or for all; now and then an entry or a count that is none.
  void key_lists(Bytes& in, const std::vector<std::int64_t>& seq, const std::vector<std::int64_t>& starts,
                 const std::vector<std::int64_t>& table, std::int64_t table_width) {
    const bool by_head = in.chance(3), of_pages = in.chance(3), of_rows = in.chance(2), counted = of_pages || in.chance(2);
    const std::int64_t n = of_rows ? starts.back() : num_reqs_, width = 1 + in.below(5), heads = by_head ? kv_heads_ : 1;
    std::vector<std::int64_t> ids, counts;
    strips_ = !in.chance(8);
    for (std::int64_t i = 0, r = 0; i < n; ++i) {
      if (!of_rows) r = i;
      while (of_rows && starts[static_cast<std::size_t>(r + 1)] <= i) ++r;
      const auto at = static_cast<std::size_t>(r);
      const std::int64_t first_row = seq[at] - (starts[at + 1] - starts[at]) + 1;
      const std::int64_t seen = std::clamp<std::int64_t>(of_rows ? first_row + i - starts[at] : first_row, 0, seq[at]);
      for (std::int64_t h = 0; h < heads; ++h)
        one_list(in, table, at * static_cast<std::size_t>(table_width), std::min(seen, table_width * page_size_), width, of_pages,
                 ids, counts);
    }
    lists.unit = of_pages ? ListUnit::page : ListUnit::slot;
    lists.owner = of_rows ? ListOwner::row : ListOwner::request;
    const DType index = in.chance(2) ? DType::i64 : DType::i32;
    workshop_.add(lists.ids, index, by_head ? std::vector<std::int64_t>{n, heads, width} : std::vector<std::int64_t>{n, width},
                  ids);
    if (counted)
      workshop_.add(lists.num_keys, index, by_head ? std::vector<std::int64_t>{n, heads} : std::vector<std::int64_t>{n}, counts);
    if (in.chance(30)) lists.unit = static_cast<ListUnit>(in.below(4));
  }

  /// Neighbours among the first `seen` keys of a request whose table row begins at `row`; -1 behind them.
  void one_list(Bytes& in, const std::vector<std::int64_t>& table, std::size_t row, std::int64_t seen, std::int64_t width,
                bool of_pages, std::vector<std::int64_t>& ids, std::vector<std::int64_t>& counts) const {
    const std::int64_t unit = of_pages ? page_size_ : 1, all = (seen + unit - 1) / unit;
    const std::int64_t count = std::min(in.below(width + 1), all), first = all > count ? in.below(all - count + 1) : 0;
    for (std::int64_t j = 0; j < width; ++j) {
      const std::int64_t key = (first + j) * unit;
      const std::int64_t page = j < count ? table[row + static_cast<std::size_t>(key / page_size_)] : -1;
      ids.push_back(j >= count ? -1 : of_pages ? page : page * page_size_ + key % page_size_);
    }
    counts.push_back(std::min((first + count) * unit, seen) - first * unit);
    if (counts.back() < 0) counts.back() = 0;
    if (in.chance(40)) ids[ids.size() - 1 - static_cast<std::size_t>(in.below(width))] = in.nasty();
    if (in.chance(40)) counts.back() = in.nasty();
  }

  /// Requests that are not causal, and rows and keys that stand anywhere; now and then a value that is none.
  void masks(Bytes& in, const std::vector<std::int64_t>& seq, const std::vector<std::int64_t>& starts, DType index) {
    std::vector<std::int64_t> causal, q_begin, key_begin;
    const std::int64_t odd[] = {-1, 2, 1000, INT32_MAX};
    for (std::int64_t r = 0; r < num_reqs_; ++r) {
      const auto at = static_cast<std::size_t>(r);
      causal.push_back(in.chance(20) ? 2 : in.below(2));
      key_begin.push_back(in.chance(20) ? in.pick(odd) : in.below(20));
      const std::int64_t at_end = key_begin.back() + seq[at] - (starts[at + 1] - starts[at]);
      q_begin.push_back(in.chance(20) ? in.pick(odd) : in.chance(2) ? at_end : in.below(40));
    }
    if (in.chance(2)) workshop_.add(batch.causal, DType::u8, {num_reqs_}, causal);
    if (in.chance(2)) workshop_.add(batch.q_begin, index, {num_reqs_}, q_begin);
    if (in.chance(2)) workshop_.add(batch.key_begin, index, {num_reqs_}, key_begin);
    if (!batch.causal.present()) options.causal = in.chance(2);
    if (in.chance(3)) options.window_right = in.below(8) - 1;
    if (in.chance(2)) shapes(in, starts.back(), index);
  }

  /// Chunks, spans, prefixes and trees; now and then a value that is none.
  void shapes(Bytes& in, std::int64_t rows, DType index) {
    std::vector<std::int64_t> spans, prefixes, trees, bits;
    const std::int64_t odd[] = {-1, 257, 1000, INT32_MAX};
    const std::int64_t most = in.below(4), num_bytes = 1 + in.below(3);
    for (std::int64_t r = 0; r < num_reqs_; ++r) {
      prefixes.push_back(in.chance(20) ? in.pick(odd) : in.below(12));
      trees.push_back(in.chance(20) ? in.pick(odd) : in.below(6));
      for (std::int64_t i = 0, at = in.below(5); i < most; ++i) {
        const std::int64_t length = in.chance(3) ? 0 : in.below(9);
        spans.insert(spans.end(), {in.chance(30) ? in.pick(odd) : at, at + length});
        at += length + in.below(3);
      }
    }
    for (std::int64_t i = 0; i < rows * num_bytes; ++i) bits.push_back(in.chance(2) ? 255 : in.below(256));
    if (in.chance(2)) workshop_.add(batch.spans, index, {num_reqs_, most, 2}, spans);
    if (in.chance(2)) workshop_.add(batch.prefix_lens, index, {num_reqs_}, prefixes);
    if (in.chance(2)) workshop_.add(batch.tree_lens, index, {num_reqs_}, trees);
    if (batch.tree_lens.present() != in.chance(20)) workshop_.add(batch.tree_mask, DType::u8, {rows, num_bytes}, bits);
    if (in.chance(2)) options.attention_chunk = in.below(30);
    if (!batch.prefix_lens.present() && in.chance(3)) options.prefix_len = in.below(9) - 1;
    options.spans_beyond_window = in.chance(2);
  }

  /// Slips that engines make: lengths that run ahead of the table, freed pages left where no row looks, slots of another step.
  void be_sloppy(Bytes& in, std::vector<std::int64_t>& seq, std::vector<std::int64_t>& cached, std::vector<std::int64_t>& table,
                 std::vector<std::int64_t>& slots, std::int64_t width) const {
    if (num_reqs_ == 0) return;
    const auto r = static_cast<std::size_t>(in.below(num_reqs_));
    const std::int64_t ahead[] = {1, page_size_, width * page_size_, 1000, 40'000'000, INT32_MAX - seq[r]};
    switch (in.below(4)) {
      case 0: seq[r] += in.pick(ahead), cached[r] = seq[r]; break;
      case 1: cached[r] += in.pick(ahead); break;
      case 2:
        for (std::int64_t c = in.below(width); c >= 0; --c)
          table[r * static_cast<std::size_t>(width) + static_cast<std::size_t>(c)] = in.nasty();
        break;
      case 3:
        for (std::int64_t& slot : slots) slot += slot >= 0 ? page_size_ : 0;
        break;
      default: break;  // below(4) is 3
    }
  }

  void cache_tensors() {
    const bool rows = kv_ == DType::fp8_ds_mla;  // a row has 656 bytes, whatever its dims
    const std::int64_t k_dims = rows ? 656 : is_four_bit(kv_) ? dim_ / 2 : dim_;
    const std::int64_t v_dims = rows ? 656 : is_four_bit(v_) ? v_dim_ / 2 : v_dim_;
    block_scales(cache.k_block_scale, kv_, dim_);
    block_scales(cache.v_block_scale, v_, v_dim_);
    switch (cache.layout) {
      case CacheLayout::nhd:
        workshop_.add(cache.k, kv_, {num_pages_, page_size_, kv_heads_, k_dims});
        workshop_.add(cache.v, v_, {num_pages_, page_size_, kv_heads_, v_dims});
        break;
      case CacheLayout::hnd:
        workshop_.add(cache.k, kv_, {num_pages_, kv_heads_, page_size_, k_dims});
        workshop_.add(cache.v, v_, {num_pages_, kv_heads_, page_size_, v_dims});
        break;
      case CacheLayout::packed:
        workshop_.add(cache.k, kv_, {num_pages_, kv_heads_, dim_ / packed_x(kv_), page_size_, packed_x(kv_)});
        workshop_.add(cache.v, v_, {num_pages_, kv_heads_, v_dim_, page_size_});
        break;
    }
    if (!latent_) return;
    cache.v = cache.k;
    cache.v.shape[3] = v_dim_;
  }

  void record_writes(Bytes& in, const std::vector<std::int64_t>& seq, const std::vector<std::int64_t>& table,
                     std::int64_t width) {
    use_ledger = in.chance(3);
    if (!use_ledger) return;
    ledger = SlotLedger(num_pages_, page_size_);
    for (std::int64_t r = 0; r < num_reqs_; ++r) {
      for (std::int64_t p = 0; p < std::min(seq[static_cast<std::size_t>(r)], width * page_size_); ++p) {
        const std::int64_t page = table[static_cast<std::size_t>(r * width + p / page_size_)];
        if (page >= 0 && page < num_pages_) ledger.record(page * page_size_ + p % page_size_, {r, p});
      }
    }
    if (in.chance(3)) ledger.recycle(in.below(num_pages_));
    if (in.chance(3)) ledger.share(in.below(num_pages_), in.below(5));
  }

  void option_values(Bytes& in) {
    if (in.chance(2)) options.sliding_window = 1 + in.below(12);
    if (in.chance(3)) options.softmax_scale = 0.01f * static_cast<float>(1 + in.below(100));
    if (in.chance(3)) options.logits_soft_cap = static_cast<float>(1 + in.below(50));
    if (in.chance(8)) {
      options.sliding_window = in.nasty();
      options.softmax_scale = semantics::bits_to_float(static_cast<std::uint32_t>(in.raw()));
      options.logits_soft_cap = semantics::bits_to_float(static_cast<std::uint32_t>(in.raw()));
      tame_values = false;
    }
  }

  /// Scales between 1/8 and 2, as codes.
  void block_scales(Tensor& scales, DType cached, std::int64_t dims) {
    if (!is_four_bit(cached)) return;
    const std::vector<std::int64_t> codes = cached == DType::nvfp4 ? std::vector<std::int64_t>{0x38, 0x20, 0x3C, 0x40}
                                                                   : std::vector<std::int64_t>{127, 124, 128, 126};
    workshop_.add(scales, block_scale_type(cached), {num_pages_, page_size_, kv_heads_, dims / block_size(cached)}, codes);
  }

  void scales(Bytes& in) {
    if (!in.chance(2)) return;
    for (std::size_t i = 0; i < scale_values_.size(); ++i) scale_values_[i] = 0.25f * static_cast<float>(1 + in.below(8));
    if (in.chance(8)) scale_values_[0] = semantics::bits_to_float(static_cast<std::uint32_t>(in.raw())), tame_values = false;
    cache.k_scale = Tensor::contiguous(scale_values_.data(), DType::f32, in.chance(2) ? kv_heads_ : 1);
    cache.v_scale = Tensor::contiguous(scale_values_.data() + 3, DType::f32);
  }

  /// Makes all requests begin with the pages of the first one, as far as mutations have left the table readable.
  void share_pages() {
    const Tensor& t = batch.block_table;
    if (!contract::readable(t) || t.rank != 2 || t.shape[0] == 0 || (t.dtype != DType::i32 && t.dtype != DType::i64)) return;
    for (std::int64_t r = 1; r < t.shape[0]; ++r)
      for (std::int64_t c = 0; 2 * c < t.shape[1]; ++c)
        std::memcpy(static_cast<std::byte*>(t.data) + (r * t.stride[0] + c * t.stride[1]) * itemsize(t.dtype),
                    static_cast<const std::byte*>(t.data) + c * t.stride[1] * itemsize(t.dtype),
                    static_cast<std::size_t>(itemsize(t.dtype)));
  }

  /// Fills the cache with 0xFF (NaN in most types) except for slots that some row sees. Only for sound tables.
  void poison_what_nobody_reads() {
    if (!check(Depth::tables).ok() || !cache_is_its_own()) return;
    std::vector<char> seen(static_cast<std::size_t>(quire::num_pages(cache) * quire::page_size(cache)));
    const Problem problem = problem_of(batch, cache, options);
    for (std::int64_t r = 0; r < batch.seq_lens.shape[0]; ++r) {
      const Request& request = problem.reqs[static_cast<std::size_t>(r)];
      const auto mark = [&](std::int64_t page, std::int64_t offset, std::int64_t count, std::int64_t) {
        if (page < 0 || page >= quire::num_pages(cache)) return;  // a tree page that no row sees may have any entry
        for (std::int64_t i = 0; i < count; ++i) seen[static_cast<std::size_t>(page * quire::page_size(cache) + offset + i)] = 1;
      };
      const std::int64_t room = batch.block_table.shape[1] * quire::page_size(cache);
      for (const KeyPositions& keys : problem.visible_ranges(request))
        semantics::for_each_page_run(semantics::index_row(batch.block_table, r), quire::page_size(cache), keys.begin,
                                     std::min({keys.end, request.cached_len, room}), mark);
    }
    for (std::size_t slot = 0; slot < seen.size(); ++slot)
      if (seen[slot] == 0) poison(static_cast<std::int64_t>(slot));
  }

  /// Writing a cache element changes nothing else.
  bool cache_is_its_own() const {
    for (const Tensor* side : {&cache.k, &cache.v}) {
      if (!contract::strides_nest(*side)) return false;
      for (const Tensor* other :
           {&batch.query,         &batch.query_start_loc, &batch.seq_lens,     &batch.block_table, &batch.cached_lens,
            &batch.key,           &batch.value,           &batch.slot_mapping, &batch.request_ids, &batch.causal,
            &batch.q_begin,       &batch.key_begin,       &batch.spans,        &batch.prefix_lens, &batch.tree_mask,
            &batch.tree_lens,     &options.alibi_slopes,  &options.sinks,      &cache.k_scale,     &cache.v_scale,
            &cache.k_block_scale, &cache.v_block_scale})
        if (other->present() && contract::may_overlap(*side, *other)) return false;
    }
    return !contract::may_overlap(cache.k, cache.v);
  }

  void poison(std::int64_t slot) {
    const std::int64_t page = slot / quire::page_size(cache), offset = slot % quire::page_size(cache);
    if (cache.k.dtype == DType::fp8_ds_mla) {
      for (const auto& [t, strides] : {std::pair{&cache.k, semantics::k_strides(cache)}, {&cache.v, semantics::v_strides(cache)}})
        std::memset(static_cast<std::byte*>(t->data) + strides.row(page, 0, offset), 0xFF, 656);
      return;
    }
    for (const auto& [tensor, strides] :
         {std::pair{&cache.k, semantics::k_strides(cache)}, std::pair{&cache.v, semantics::v_strides(cache)}}) {
      const auto size = static_cast<std::size_t>(itemsize(tensor->dtype));
      if (is_four_bit(tensor->dtype)) continue;  // a row's bytes hold whole codes: blocks and their scales stay as they are
      const std::int64_t dims = tensor == &cache.k ? quire::head_dim(cache) : quire::v_head_dim(cache);
      for (std::int64_t head = 0; head < quire::num_kv_heads(cache); ++head)
        for (std::int64_t d = 0; d < dims; ++d)
          std::memset(static_cast<std::byte*>(tensor->data) +
                          (strides.row(page, head, offset) + strides.element(d)) * static_cast<std::int64_t>(size),
                      0xFF, size);
    }
  }

  std::int64_t num_reqs_ = 0, kv_heads_ = 1, group_ = 1, dim_ = 1, v_dim_ = 1, page_size_ = 1, num_pages_ = 1;
  DType q_ = DType::f32, kv_ = DType::f32, v_ = DType::f32;  ///< v_: of cached values
  std::array<float, 4> scale_values_{1.0f, 1.0f, 1.0f, 1.0f};
  bool latent_ = false;  ///< V lies in K's rows
  bool strips_ = true;   ///< fields that cannot go with lists are left out of the batch
  Workshop workshop_;
};

/// The arguments of one merge call, likewise.
class FuzzMerge {
 public:
  Tensor out_a, lse_a, out_b, lse_b, out, lse;

  explicit FuzzMerge(std::span<const std::uint8_t> data) {
    Bytes in(data);
    const std::int64_t mutations = in.below(4), rows = in.below(4), heads = 1 + in.below(3), dim = 1 + in.below(9);
    constexpr DType kRows[] = {DType::f32, DType::f16, DType::bf16};
    for (Tensor* t : {&out_a, &out_b, &out}) workshop_.add(*t, in.pick(kRows), {rows, heads, dim});
    for (Tensor* t : {&lse_a, &lse_b, &lse}) workshop_.add(*t, DType::f32, {rows, heads});
    for (std::int64_t i = 0; i < mutations; ++i) workshop_.mutate(in);
    workshop_.build();
  }
  FuzzMerge(const FuzzMerge&) = delete;

  Findings check() const { return check_merge(out_a, lse_a, out_b, lse_b, out, lse); }
  Status merge(Executor* executor) const { return quire::merge(out_a, lse_a, out_b, lse_b, out, lse, {.executor = executor}); }

 private:
  Workshop workshop_;
};

}  // namespace quire::fuzz
