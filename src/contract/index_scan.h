// SPDX-License-Identifier: Apache-2.0
// Walking index tensors at the speed of memory: a call is checked every time, and a table has an entry for each page in use.
// Contiguous int32 and int64 go by blocks of fixed length, which compilers turn into vector code; any other stride goes one by
// one.
#pragma once

#include <array>
#include <cstdint>
#include <type_traits>

#include "semantics/page_walk.h"

namespace quire::contract {

inline constexpr std::int64_t kScanBlock = 16;

namespace scan_detail {

/// Nonzero in its top bit if any of the block is outside [0, last].
template <typename T>
std::make_unsigned_t<T> outside(const T* values, T last) {
  using U = std::make_unsigned_t<T>;
  U bad = 0;
  for (std::int64_t j = 0; j < kScanBlock; ++j) {
    const auto value = static_cast<U>(values[j]);
    bad |= value | (static_cast<U>(last) - value);  // the first is "negative" below 0, the second above `last`
  }
  return bad;
}

template <typename T>
bool all_within(const T* values, std::int64_t count, T last) {
  std::make_unsigned_t<T> bad = 0;
  std::int64_t i = 0;
  for (; i + kScanBlock <= count; i += kScanBlock) bad |= outside(values + i, last);
  for (; i < count; ++i)
    if (values[i] < 0 || values[i] > last) return false;
  return static_cast<T>(bad) >= 0;
}

}  // namespace scan_detail

/// Whether every entry in [first, last) is in [0, limit); limit >= 1.
inline bool all_within(const semantics::IndexView& view, std::int64_t first, std::int64_t last, std::int64_t limit) {
  if (first >= last) return true;
  constexpr std::int64_t kMaxI32 = 0x7fffffff;
  if (view.stride == 1 && view.dtype == DType::i32)
    return scan_detail::all_within(static_cast<const std::int32_t*>(view.data) + first, last - first,
                                   static_cast<std::int32_t>(limit - 1 < kMaxI32 ? limit - 1 : kMaxI32));
  if (view.stride == 1 && view.dtype == DType::i64)
    return scan_detail::all_within(static_cast<const std::int64_t*>(view.data) + first, last - first, limit - 1);
  for (std::int64_t i = first; i < last; ++i)
    if (const std::int64_t value = view[i]; value < 0 || value >= limit) return false;
  return true;
}

/// A set of values that may claim to hold one that was never added, but never denies one that was. Fixed size: input cannot make
/// it large.
class ValueFilter {
 public:
  void add(std::int64_t value) { flags_[slot(value)] = 1; }
  bool may_hold(std::int64_t value) const { return flags_[slot(value)] != 0; }

 private:
  static std::size_t slot(std::int64_t value) { return static_cast<std::size_t>(value) % std::tuple_size_v<decltype(flags_)>; }
  std::array<std::uint8_t, 8192> flags_{};  // a part of L1
};

namespace scan_detail {

template <typename T, typename Visit>
void for_each_held(const T* values, std::int64_t first, std::int64_t last, const ValueFilter& filter, Visit&& visit) {
  std::int64_t i = first;
  for (; i + kScanBlock <= last; i += kScanBlock) {
    int any = 0;
    for (std::int64_t j = 0; j < kScanBlock; ++j) any |= filter.may_hold(values[i + j]) ? 1 : 0;
    for (std::int64_t j = 0; any != 0 && j < kScanBlock; ++j)
      if (filter.may_hold(values[i + j])) visit(i + j, static_cast<std::int64_t>(values[i + j]));
  }
  for (; i < last; ++i)
    if (filter.may_hold(values[i])) visit(i, static_cast<std::int64_t>(values[i]));
}

}  // namespace scan_detail

/// visit(index, value) for the entries in [first, last) that the filter may hold.
template <typename Visit>
void for_each_held(const semantics::IndexView& view, std::int64_t first, std::int64_t last, const ValueFilter& filter,
                   Visit&& visit) {
  if (view.stride == 1 && view.dtype == DType::i32)
    return scan_detail::for_each_held(static_cast<const std::int32_t*>(view.data), first, last, filter, visit);
  if (view.stride == 1 && view.dtype == DType::i64)
    return scan_detail::for_each_held(static_cast<const std::int64_t*>(view.data), first, last, filter, visit);
  for (std::int64_t i = first; i < last; ++i)
    if (const std::int64_t value = view[i]; filter.may_hold(value)) visit(i, value);
}

}  // namespace quire::contract
