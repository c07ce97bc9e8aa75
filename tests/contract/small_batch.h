// SPDX-License-Identifier: Apache-2.0
// A small valid batch that uses every optional tensor, owns its memory, and is easy to break in one place.
//
// Four requests over pages of 4 tokens: a prefill chunk, a decode row, a fresh prompt read from key/value, and one without rows.
// Data is N(0,1). Everything that must not be read is poisoned: cache slots with NaN, table entries with a huge page id.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "quire/contract.hpp"
#include "quire/sparse.hpp"

namespace quire::test {

inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInf = std::numeric_limits<float>::infinity();

class SmallBatch {
 public:
  static constexpr std::int64_t kReqs = 4, kTokens = 6, kHeads = 4, kKvHeads = 2, kDim = 8, kPage = 4, kPages = 16, kWidth = 6;
  static constexpr std::int64_t kHugePage = 1 << 30;

  std::vector<std::int32_t> query_start_loc{0, 3, 4, 6, 6};
  std::vector<std::int32_t> seq_lens{8, 17, 2, 3};
  std::vector<std::int32_t> cached_lens{8, 17, 0, 3};
  std::vector<std::int32_t> block_table = poisoned_table();
  std::vector<std::int64_t> slot_mapping{3 * 4 + 1, 3 * 4 + 2, 3 * 4 + 3, 9 * 4, 10 * 4, 10 * 4 + 1};
  std::vector<std::int64_t> request_ids{70, 71, 72, 73};
  std::vector<std::uint8_t> causal{1, 0, 1, 1};  ///< ask_for_masks() puts these into the batch
  std::vector<std::int32_t> q_begin{5, 16, 0, 3}, key_begin{0, 0, 0, 0};
  /// Not in the batch until ask_for_shapes(): request 0 has spans and a prefix, 2 a tree of its two rows.
  std::vector<std::int32_t> spans{2, 6, 6, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, prefix_lens{4, 0, 0, 0}, tree_lens{0, 0, 2, 0};
  std::vector<std::uint8_t> tree_mask{0, 0, 0, 0, 1, 2};
  std::vector<float> query = normal(kTokens * kHeads * kDim, 1), output = std::vector<float>(query.size(), kNaN);
  std::vector<float> key = normal(kTokens * kKvHeads * kDim, 2), value = normal(kTokens * kKvHeads * kDim, 3);
  std::vector<float> k = std::vector<float>(kPages * kPage * kKvHeads * kDim, kNaN), v = k;
  std::vector<float> lse = std::vector<float>(kTokens * kHeads, kNaN);
  std::vector<float> k_scale{0.5f, 0.25f}, v_scale{2.0f, 1.0f};
  std::vector<std::int8_t> k_codes, v_codes;  ///< ask_for_token_scales() puts these into the cache
  std::vector<float> k_token_scale, v_token_scale;
  std::vector<std::uint8_t> codes4, block_scales;  ///< ask_for_blocks() puts these into the cache; K first, then V
  std::vector<float> wide, wide_output;
  std::vector<float> alibi_slopes{0.5f, -0.25f, 0.125f, 0.0f}, sinks{1.0f, -kInf, 0.0f, 3.0f};

  Batch batch;
  KVCache cache;
  Options options;
  SlotLedger ledger{kPages, kPage};
  std::vector<WriteTag> tags{{70, 5}, {70, 6}, {70, 7}, {71, 16}, {72, 0}, {72, 1}};
  bool use_ledger = true;
  Depth depth = Depth::contents;

  SmallBatch() {
    batch.query = Tensor::contiguous(query.data(), DType::f32, kTokens, kHeads, kDim);
    batch.output = Tensor::contiguous(output.data(), DType::f32, kTokens, kHeads, kDim);
    batch.query_start_loc = Tensor::contiguous(query_start_loc.data(), DType::i32, kReqs + 1);
    batch.seq_lens = Tensor::contiguous(seq_lens.data(), DType::i32, kReqs);
    batch.cached_lens = Tensor::contiguous(cached_lens.data(), DType::i32, kReqs);
    batch.block_table = Tensor::contiguous(block_table.data(), DType::i32, kReqs, kWidth);
    batch.key = Tensor::contiguous(key.data(), DType::f32, kTokens, kKvHeads, kDim);
    batch.value = Tensor::contiguous(value.data(), DType::f32, kTokens, kKvHeads, kDim);
    batch.slot_mapping = Tensor::contiguous(slot_mapping.data(), DType::i64, kTokens);
    batch.lse = Tensor::contiguous(lse.data(), DType::f32, kTokens, kHeads);
    batch.request_ids = Tensor::contiguous(request_ids.data(), DType::i64, kReqs);
    cache.k = Tensor::contiguous(k.data(), DType::f32, kPages, kPage, kKvHeads, kDim);
    cache.v = Tensor::contiguous(v.data(), DType::f32, kPages, kPage, kKvHeads, kDim);
    cache.k_scale = Tensor::contiguous(k_scale.data(), DType::f32, kKvHeads);
    cache.v_scale = Tensor::contiguous(v_scale.data(), DType::f32, kKvHeads);
    options.softmax_scale = 0.25f;
    options.sliding_window = 9;
    options.logits_soft_cap = 30.0f;
    options.alibi_slopes = Tensor::contiguous(alibi_slopes.data(), DType::f32, kHeads);
    options.sinks = Tensor::contiguous(sinks.data(), DType::f32, kHeads);
    fill_cache();
  }
  SmallBatch(const SmallBatch&) = delete;

  /// Element 0 of K (or V) at a slot.
  float& k_at(std::int64_t page, std::int64_t offset) {
    return k[static_cast<std::size_t>((page * kPage + offset) * kKvHeads * kDim)];
  }
  float& v_at(std::int64_t page, std::int64_t offset) {
    return v[static_cast<std::size_t>((page * kPage + offset) * kKvHeads * kDim)];
  }

  /// causal, q_begin and key_begin as they are without being given, but that request 1 is not causal.
  void ask_for_masks() {
    batch.causal = Tensor::contiguous(causal.data(), DType::u8, kReqs);
    batch.q_begin = Tensor::contiguous(q_begin.data(), DType::i32, kReqs);
    batch.key_begin = Tensor::contiguous(key_begin.data(), DType::i32, kReqs);
  }
  /// spans, prefix_lens, tree_mask and tree_lens: the second row of request 2 does not see the first.
  void ask_for_shapes() {
    batch.spans = Tensor::contiguous(spans.data(), DType::i32, kReqs, 2, 2);
    batch.prefix_lens = Tensor::contiguous(prefix_lens.data(), DType::i32, kReqs);
    batch.tree_mask = Tensor::contiguous(tree_mask.data(), DType::u8, kTokens, 1);
    batch.tree_lens = Tensor::contiguous(tree_lens.data(), DType::i32, kReqs);
  }
  /// A cache of i8 whose tokens have scales of their own: those of slots that hold a token; the others are NaN.
  void ask_for_token_scales() {
    for (auto& [codes, scales, real] : {std::tie(k_codes, k_token_scale, k), std::tie(v_codes, v_token_scale, v)}) {
      const auto row = static_cast<std::size_t>(kDim);
      codes.assign(real.size(), -128);
      scales.assign(real.size() / row, kNaN);
      for (std::size_t i = 0; i < real.size(); ++i) {
        if (real[i] != real[i]) continue;
        scales[i / row] = 0.01f * static_cast<float>(i / row % 7 + 1);
        codes[i] = static_cast<std::int8_t>(real[i] * 20);
      }
    }
    cache.k = Tensor::contiguous(k_codes.data(), DType::i8, kPages, kPage, kKvHeads, kDim);
    cache.v = Tensor::contiguous(v_codes.data(), DType::i8, kPages, kPage, kKvHeads, kDim);
    cache.k_scale = Tensor::contiguous(k_token_scale.data(), DType::f32, kPages, kPage, kKvHeads);
    cache.v_scale = Tensor::contiguous(v_token_scale.data(), DType::f32, kPages, kPage, kKvHeads);
  }

  /// A cache of nvfp4 or mxfp4 with 64 dims, and rows to match. Scales of slots without a token are NaN.
  void ask_for_blocks(DType type) {
    constexpr std::int64_t kDims = 64, kRows = kPages * kPage * kKvHeads;
    const std::int64_t blocks = kDims / block_size(type);
    wide.assign(static_cast<std::size_t>(kTokens * kHeads * kDims), 0.25f);
    wide_output.assign(wide.size(), kNaN);
    codes4.assign(static_cast<std::size_t>(2 * kRows * kDims / 2), 0x2B);
    block_scales.assign(static_cast<std::size_t>(2 * kRows * blocks), type == DType::nvfp4 ? 0x7F : 0xFF);
    for (std::int64_t row = 0; row < kRows; ++row) {
      const float first = k[static_cast<std::size_t>(row * kDim)];
      if (first != first) continue;
      for (std::int64_t b = 0; b < blocks; ++b)
        for (const std::int64_t side : {std::int64_t{0}, kRows * blocks})
          block_scales[static_cast<std::size_t>(side + row * blocks + b)] = type == DType::nvfp4 ? 0x38 : 127;
    }
    const DType scale = block_scale_type(type);
    cache.k = Tensor::contiguous(codes4.data(), type, kPages, kPage, kKvHeads, kDims / 2);
    cache.v = Tensor::contiguous(codes4.data() + kRows * kDims / 2, type, kPages, kPage, kKvHeads, kDims / 2);
    cache.k_block_scale = Tensor::contiguous(block_scales.data(), scale, kPages, kPage, kKvHeads, blocks);
    cache.v_block_scale = Tensor::contiguous(block_scales.data() + kRows * blocks, scale, kPages, kPage, kKvHeads, blocks);
    batch.query = Tensor::contiguous(wide.data(), DType::f32, kTokens, kHeads, kDims);
    batch.output = Tensor::contiguous(wide_output.data(), DType::f32, kTokens, kHeads, kDims);
    batch.key = Tensor::contiguous(wide.data(), DType::f32, kTokens, kKvHeads, kDims);
    batch.value = Tensor::contiguous(wide.data(), DType::f32, kTokens, kKvHeads, kDims);
  }

  /// Gives the batch a ledger with digests of what the slots hold.
  void keep_digests() {
    ledger = SlotLedger(kPages, kPage, /*digests=*/true);
    fill_cache();
    std::vector<std::int64_t> slots(kPages * kPage);
    for (std::size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<std::int64_t>(i);
    if (!ledger.remember(cache, slots).ok()) use_ledger = false;
  }

  /// The cache of request 1 loses its first eight tokens: pages 7, 8, 9 are its first.
  void drop_head_of_request_1() {
    ask_for_masks();
    for (int i = 0; i < 3; ++i) block_table[static_cast<std::size_t>(6 + i)] = 7 + i;
    for (int i = 3; i < 6; ++i) block_table[static_cast<std::size_t>(6 + i)] = kHugePage;
    seq_lens[1] = cached_lens[1] = 9;
    key_begin[1] = 8;
  }

  /// V, values and output keep the first six of their eight dims.
  void narrow_values() {
    for (Tensor* t : {&batch.output, &batch.value}) t->shape[2] = 6;
    cache.v.shape[3] = 6;
  }
  /// V is the first dims of K, in K's memory.
  void put_values_into_keys(std::int64_t dims) {
    cache.v = cache.k;
    cache.v.shape[3] = batch.output.shape[2] = batch.value.shape[2] = dims;
  }

  Findings check() const { return quire::check(batch, cache, options, depth, use_ledger ? &ledger : nullptr); }
  Findings check_append() const {
    return quire::check_append(cache, batch.key, batch.value, batch.slot_mapping, Depth::tables, use_ledger ? &ledger : nullptr,
                               tags);
  }

  static std::vector<float> normal(std::int64_t count, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> distribution;
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) value = distribution(random);
    return values;
  }

 private:
  /// Request 1's window (9) starts at position 8: its first two pages are never read, like everything past the cached pages.
  static std::vector<std::int32_t> poisoned_table() {
    std::vector<std::int32_t> table(kReqs * kWidth, kHugePage);
    table[0] = 2, table[1] = 3;
    table[6 + 2] = 7, table[6 + 3] = 8, table[6 + 4] = 9;
    return table;
  }

  /// Visible slots: positions 0..7 of request 0 in pages 2, 3; positions 8..16 of request 1 in pages 7, 8, 9.
  void fill_cache() {
    ledger.begin_step(4);
    for (std::int64_t p = 0; p < 8; ++p) fill_slot(2 * kPage + p, {70, p});
    for (std::int64_t p = 8; p < 17; ++p) fill_slot((7 * kPage) + p - 8, {71, p});
  }

  void fill_slot(std::int64_t slot, WriteTag tag) {
    const std::int64_t row = kKvHeads * kDim;
    const std::vector<float> data = normal(2 * row, 100u + static_cast<unsigned>(slot));
    std::copy(data.begin(), data.begin() + row, k.begin() + slot * row);
    std::copy(data.begin() + row, data.end(), v.begin() + slot * row);
    ledger.record(slot, tag);
  }
};

/// The small batch with nothing but cached keys, and lists of slots for its rows, or of pages for its requests.
class SmallLists {
 public:
  static constexpr std::int64_t kEntries = 4;
  SmallBatch small;
  std::vector<std::int32_t> ids{8, 13, -1, -1, 14, 8, 9, -1, 15, -1, -1, -1, 36, 20, -1, -1, 40, -1, -1, -1, 41, 40, -1, -1};
  std::vector<std::int32_t> num_keys{6, 5, 1, 0, 0, 0};
  KeyLists lists;

  SmallLists() {
    small.batch.key = small.batch.value = small.batch.cached_lens = Tensor{};
    small.options.sliding_window.reset();
    small.options.alibi_slopes = Tensor{};
    small.block_table[6] = 5, small.block_table[7] = 6, small.block_table[12] = 10;
    lists.ids = Tensor::contiguous(ids.data(), DType::i32, SmallBatch::kTokens, kEntries);
  }
  SmallLists(const SmallLists&) = delete;
  /// Request 0 sees its two pages, of which every row sees 6 keys; request 1 its first and its last page; request 2 one key.
  void list_pages() {
    const std::int32_t pages[] = {2, 3, -1, -1, 5, 9, -1, -1, 10, -1, -1, -1, -1, -1, -1, -1};
    std::copy(std::begin(pages), std::end(pages), ids.begin());
    lists.unit = ListUnit::page, lists.owner = ListOwner::request;
    lists.ids.shape[0] = SmallBatch::kReqs;
    lists.num_keys = Tensor::contiguous(num_keys.data(), DType::i32, SmallBatch::kReqs);
  }
  Findings check() const { return check_sparse(small.batch, small.cache, small.options, lists); }
  Findings metadata() const { return check_sparse(small.batch, small.cache, small.options, lists, Depth::metadata); }
};

/// Two partial results of 3 rows, and a place for their union.
class SmallMerge {
 public:
  static constexpr std::int64_t kTokens = 3, kHeads = 4, kDim = 8;
  // Room for one row more, so that a view moved by a row stays inside.
  std::vector<float> a = SmallBatch::normal((kTokens + 1) * kHeads * kDim, 4), b = SmallBatch::normal(kTokens * kHeads * kDim, 5);
  std::vector<float> result = std::vector<float>(kTokens * kHeads * kDim, kNaN),
                     result_lse = std::vector<float>(kTokens * kHeads, kNaN);
  std::vector<float> weight_a = SmallBatch::normal(kTokens * kHeads, 6), weight_b = SmallBatch::normal(kTokens * kHeads, 7);
  Tensor out_a = Tensor::contiguous(a.data(), DType::f32, kTokens, kHeads, kDim);
  Tensor out_b = Tensor::contiguous(b.data(), DType::f32, kTokens, kHeads, kDim);
  Tensor out = Tensor::contiguous(result.data(), DType::f32, kTokens, kHeads, kDim);
  Tensor lse_a = Tensor::contiguous(weight_a.data(), DType::f32, kTokens, kHeads);
  Tensor lse_b = Tensor::contiguous(weight_b.data(), DType::f32, kTokens, kHeads);
  Tensor lse = Tensor::contiguous(result_lse.data(), DType::f32, kTokens, kHeads);

  float scale = 0.5f;
  Tensor output_scale;

  SmallMerge() { weight_b[0] = -kInf; }
  SmallMerge(const SmallMerge&) = delete;
  Findings check() const { return check_merge(out_a, lse_a, out_b, lse_b, out, lse, Depth::contents, output_scale); }
};

/// A stack of two partial results of 3 rows, and a place for their union.
class SmallStack {
 public:
  static constexpr std::int64_t kParts = 2, kTokens = 3, kHeads = 4, kDim = 8;
  std::vector<float> rows = SmallBatch::normal(kParts * kTokens * kHeads * kDim, 4),
                     weights = SmallBatch::normal(kParts * kTokens * kHeads, 6),
                     result = std::vector<float>(kTokens * kHeads * kDim, kNaN),
                     result_lse = std::vector<float>(kTokens * kHeads, kNaN);
  Tensor outs = Tensor::contiguous(rows.data(), DType::f32, kParts, kTokens, kHeads, kDim);
  Tensor lses = Tensor::contiguous(weights.data(), DType::f32, kParts, kTokens, kHeads);
  Tensor out = Tensor::contiguous(result.data(), DType::f32, kTokens, kHeads, kDim);
  Tensor lse = Tensor::contiguous(result_lse.data(), DType::f32, kTokens, kHeads);

  SmallStack() { weights[0] = -kInf; }
  SmallStack(const SmallStack&) = delete;
  Findings check() const { return check_merge_many(outs, lses, out, lse); }
};

}  // namespace quire::test
