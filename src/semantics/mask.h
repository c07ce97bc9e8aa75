// SPDX-License-Identifier: Apache-2.0
// The mask of one request: which keys its rows see, with windows, chunks, spans, an always visible prefix and a tree.
//
// Positions count from the first key of the request, as in visible_range.h. The keys of a request lie in three regions, one
// behind the other:
//
//     prefix [0, prefix_end)              hidden by order alone
//     middle [prefix_end, tree_begin)     hidden by order, window and chunk
//     tree   [tree_begin, num_keys)       hidden by bits alone
//
// Within the first two regions, a row sees one range of keys whose ends never decrease from row to row. A kernel that cuts its
// tiles at the ends of regions needs two numbers a row, and bits in the last region. Several rows see one range in each region,
// too (SeenKeys): kernels read none of what lies between the ranges. Pages are read by visible_pages.h.
#pragma once

#include <cstdint>

#include "quire/tensor.hpp"
#include "semantics/dtype.h"
#include "semantics/qualifiers.h"
#include "semantics/visible_range.h"

namespace quire::semantics {

inline constexpr std::int64_t kMaxTreeKeys = 256;  ///< bits of a row of tree_mask

/// Spans of one request: rows [begin, end) of i32 or i64, ascending and disjoint. An empty one ends the list.
struct SpanList {
  const void* data = nullptr;
  std::int64_t count = 0;
  std::int64_t row_stride = 2, stride = 1;
  DType dtype = DType::i64;

  /// The span that holds a position; [position, position) if none does.
  QUIRE_HD KeyRange at(std::int64_t position) const {
    for (std::int64_t i = 0; i < count; ++i) {
      const KeyRange span = entry(i);
      if (span.begin >= span.end || span.begin > position) break;
      if (position < span.end) return span;
    }
    return {position, position};
  }
  QUIRE_HD KeyRange entry(std::int64_t i) const {
    return {load_index(data, dtype, i * row_stride), load_index(data, dtype, i * row_stride + stride)};
  }
};

/// Bits of one row of tree_mask.
struct TreeBits {
  const std::uint8_t* data = nullptr;
  std::int64_t stride = 1;
  QUIRE_HD bool sees(std::int64_t key_of_tree) const {
    return (data[key_of_tree / 8 * stride] >> static_cast<int>(key_of_tree % 8) & 1) != 0;
  }
};

/// Keys that rows see: one range in each region of a mask, of a tree all keys. The ranges ascend, and one without keys is [0, 0).
template <class Int>
struct SeenKeysIn {
  using Range = KeyRangeIn<Int>;
  static constexpr Int kNone = 0x7FFFFFFF;  ///< position behind every key (Q-T07)
  Range prefix, middle, tree;

  /// The keys below `end`.
  QUIRE_HD SeenKeysIn below(Int end) const { return {cut(prefix, 0, end), cut(middle, 0, end), cut(tree, 0, end)}; }
  /// The keys from `begin` on.
  QUIRE_HD SeenKeysIn from(Int begin) const {
    return {cut(prefix, begin, prefix.end), cut(middle, begin, middle.end), cut(tree, begin, tree.end)};
  }
  /// The least range that holds all.
  QUIRE_HD Range hull() const {
    Range all = middle;
    if (tree.end > 0) all = {all.end > 0 ? all.begin : tree.begin, tree.end};
    if (prefix.end > 0) all = {prefix.begin, all.end > 0 ? all.end : prefix.end};
    return all;
  }
  /// The first of the keys from `at` on; kNone behind the last.
  QUIRE_HD Int next(Int at) const {
    const Range& range = range_behind(at);
    return at >= range.end ? kNone : at < range.begin ? range.begin : at;
  }
  /// The end of the range that holds the key `at`.
  QUIRE_HD Int range_end(Int at) const { return range_behind(at).end; }

 private:
  QUIRE_HD static Range cut(Range range, Int begin, Int end) {
    if (range.begin < begin) range.begin = begin;
    if (range.end > end) range.end = end;
    return range.begin < range.end ? range : Range{0, 0};
  }
  QUIRE_HD const Range& range_behind(Int at) const { return at < prefix.end ? prefix : at < middle.end ? middle : tree; }
};
using SeenKeys = SeenKeysIn<std::int64_t>;

struct Mask {
  Reach reach;
  std::int64_t num_keys = 0;
  std::int64_t key_begin = 0;  ///< position of key 0 in the sequence: chunks and spans count positions of the sequence
  std::int32_t chunk = 0;      ///< 0 = none
  SpanList spans;
  bool spans_beyond_window = false;
  std::int64_t prefix_end = 0;
  std::int64_t tree_begin = 0;

  /// tokens: of a chunk; <= 0 means no chunks. Positions lie within +-2^31: a longer chunk begins and ends at the same keys.
  QUIRE_HD void set_chunk(std::int64_t tokens) {
    constexpr std::int32_t kLongest = 0x7FFFFFFF;
    chunk = tokens <= 0 ? 0 : tokens < kLongest ? static_cast<std::int32_t>(tokens) : kLongest;
  }
  /// prefix_len is a position of the sequence. tree_len: at most num_keys.
  QUIRE_HD void set_regions(std::int64_t prefix_len, std::int64_t tree_len) {
    tree_begin = num_keys - tree_len;
    prefix_end = clamped_to(prefix_len - key_begin, tree_begin);
  }
  QUIRE_HD bool has_tree() const { return tree_begin < num_keys; }

  /// Keys that order, window and chunk leave to the row at q_pos: what it sees in the middle region, but for the region's ends.
  QUIRE_HD KeyRange of_row(std::int64_t q_pos) const {
    KeyRange keys{q_pos - reach.before, q_pos + reach.after + 1};
    std::int64_t span_limit = num_keys;
    if (chunk > 0) {
      const std::int32_t offset = static_cast<std::int32_t>(q_pos + key_begin) % chunk;  // 64 bits would cost a device a call
      const std::int64_t first = q_pos - offset - (offset < 0 ? chunk : 0);
      if (keys.begin < first) keys.begin = first;
      if (keys.end > first + chunk) keys.end = first + chunk;
      span_limit = first + chunk;
    }
    if (spans.count > 0) {
      const KeyRange span = spans.at(q_pos + key_begin);
      const std::int64_t begin = span.begin - key_begin, end = span.end - key_begin;
      const std::int64_t seen_end = spans_beyond_window || end < span_limit ? end : span_limit;
      if (keys.end < seen_end) keys.end = seen_end;
      if (spans_beyond_window && keys.begin > begin) keys.begin = begin;
    }
    return {clamped_to(keys.begin, num_keys), clamped_to(keys.end, num_keys)};
  }

  /// The end of the keys that order leaves to the row at q_pos: all that hides keys of the prefix region.
  QUIRE_HD std::int64_t order_end(std::int64_t q_pos) const {
    std::int64_t end = q_pos + reach.after + 1;
    if (spans.count > 0) {
      const std::int64_t span_end = spans.at(q_pos + key_begin).end - key_begin;
      if (end < span_end) end = span_end;
    }
    return clamped_to(end, num_keys);
  }

  /// Keys of [first, last), which lie in one region, that the row at q_pos sees; of a tree all, which bits thin out.
  /// begin >= end: none.
  QUIRE_HD KeyRange seen(std::int64_t q_pos, std::int64_t first, std::int64_t last) const {
    if (first >= tree_begin) return {first, last};
    KeyRange keys = first < prefix_end ? KeyRange{first, order_end(q_pos)} : of_row(q_pos);
    if (keys.begin < first) keys.begin = first;
    if (keys.end > last) keys.end = last;
    return keys;
  }

  /// Keys that rows at positions [first, last] see.
  QUIRE_HD SeenKeys seen_by(std::int64_t first, std::int64_t last) const {
    SeenKeys keys;
    if (prefix_end > 0) keys.prefix.end = clamped_to(order_end(last), prefix_end);
    keys.middle = {of_row(first).begin, of_row(last).end};
    if (keys.middle.begin < prefix_end) keys.middle.begin = prefix_end;
    if (keys.middle.end > tree_begin) keys.middle.end = tree_begin;
    if (keys.middle.begin >= keys.middle.end) keys.middle = {0, 0};
    if (has_tree()) keys.tree = {tree_begin, num_keys};
    return keys;
  }

  /// The least range that holds all keys that rows at positions [first, last] see; [0, 0) if they see nothing.
  QUIRE_HD KeyRange of_rows(std::int64_t first, std::int64_t last) const { return seen_by(first, last).hull(); }

  /// Keys that the row at q_pos sees, a tree's all counted.
  QUIRE_HD std::int64_t count(std::int64_t q_pos) const {
    const KeyRange before = seen(q_pos, 0, prefix_end), middle = seen(q_pos, prefix_end, tree_begin);
    const std::int64_t in_prefix = prefix_end > 0 && before.begin < before.end ? before.end - before.begin : 0;
    const std::int64_t in_middle = prefix_end < tree_begin && middle.begin < middle.end ? middle.end - middle.begin : 0;
    return in_prefix + in_middle + num_keys - tree_begin;
  }
};

}  // namespace quire::semantics
