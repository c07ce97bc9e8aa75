// SPDX-License-Identifier: Apache-2.0
// Descriptor arithmetic: spans, nesting and overlap of strided views.
#include "contract/tensor_facts.h"
#include "text/formatted.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>

namespace quire::contract {
namespace {

struct Dim {
  std::int64_t extent;
  std::int64_t stride;
};

/// Dimensions with more than one element, by ascending absolute stride.
struct Dims {
  std::array<Dim, Tensor::kMaxRank> dim{};
  int count = 0;
};

Dims real_dims(const Tensor& t) noexcept {
  Dims dims;
  for (int i = 0; i < t.rank; ++i) {
    if (t.shape[i] <= 1) continue;
    const Dim dim{t.shape[i], std::abs(t.stride[i])};
    int at = dims.count++;
    for (; at > 0 && dims.dim[at - 1].stride > dim.stride; --at) dims.dim[at] = dims.dim[at - 1];
    dims.dim[at] = dim;
  }
  return dims;
}

/// Bytes of the elements modulo `period` lie in [begin, begin + length) modulo `period`; length > period if not provable.
struct Residue {
  std::uint64_t begin;
  std::uint64_t length;
};

Residue residue(const Tensor& t, std::int64_t period) noexcept {
  const std::int64_t item = itemsize(t.dtype);
  std::int64_t low = 0, high = item;
  for (int i = 0; i < t.rank; ++i) {
    const std::int64_t step = t.stride[i] * item;
    if (t.shape[i] <= 1 || step % period == 0) continue;
    (step < 0 ? low : high) += (t.shape[i] - 1) * step;
  }
  return {reinterpret_cast<std::uintptr_t>(t.data) + static_cast<std::uint64_t>(low), static_cast<std::uint64_t>(high - low)};
}

bool apart_modulo(const Tensor& a, const Tensor& b, std::int64_t period) noexcept {
  const auto p = static_cast<std::uint64_t>(period);
  const Residue ra = residue(a, period), rb = residue(b, period);
  if (ra.length > p || rb.length > p) return false;
  const std::uint64_t distance = (rb.begin % p + p - ra.begin % p) % p;
  return distance >= ra.length && distance + rb.length <= p;
}

bool apart_at_some_stride(const Tensor& a, const Tensor& b, const Tensor& source) noexcept {
  const Dims dims = real_dims(source);
  for (int i = 0; i < dims.count; ++i) {
    const std::int64_t period = dims.dim[i].stride * itemsize(source.dtype);
    if (period > 0 && apart_modulo(a, b, period)) return true;
  }
  return false;
}

}  // namespace

bool descriptor_ok(const Tensor& t) noexcept {
  if (itemsize(t.dtype) <= 0 || t.rank < 0 || t.rank > Tensor::kMaxRank) return false;
  return std::all_of(t.shape.begin(), t.shape.begin() + t.rank, [](std::int64_t n) { return n >= 0; });
}

bool well_formed(const Tensor& t) noexcept {
  if (!descriptor_ok(t)) return false;
  if (!std::all_of(t.shape.begin(), t.shape.begin() + t.rank, [](std::int64_t n) { return n <= kMaxExtent; })) return false;
  return byte_span(t).has_value();
}

bool placed(const Tensor& t) noexcept {
  if (!well_formed(t)) return false;
  if (!has_elements(t)) return true;
  return t.data != nullptr && reinterpret_cast<std::uintptr_t>(t.data) % static_cast<std::uintptr_t>(itemsize(t.dtype)) == 0;
}

bool readable(const Tensor& t) noexcept { return t.memory == Memory::cpu && placed(t); }

bool has_elements(const Tensor& t) noexcept {
  return std::all_of(t.shape.begin(), t.shape.begin() + t.rank, [](std::int64_t n) { return n > 0; });
}

std::optional<ByteSpan> byte_span(const Tensor& t) noexcept {
  const std::int64_t item = itemsize(t.dtype);
  std::int64_t bytes = item, low = 0, high = item;
  for (int i = 0; i < t.rank; ++i) {
    std::int64_t step = 0, reach = 0;
    // Extents of 0 count as 1, so that no product of a prefix of the shape overflows either.
    if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(t.shape[i], 1), &bytes)) return std::nullopt;
    if (__builtin_mul_overflow(t.stride[i], item, &step) || step == INT64_MIN) return std::nullopt;
    if (t.shape[i] <= 1) continue;
    if (__builtin_mul_overflow(step, t.shape[i] - 1, &reach)) return std::nullopt;
    std::int64_t& side = reach < 0 ? low : high;
    if (__builtin_add_overflow(side, reach, &side)) return std::nullopt;
  }
  std::int64_t length = 0;
  if (__builtin_sub_overflow(high, low, &length)) return std::nullopt;
  return has_elements(t) ? ByteSpan{low, high} : ByteSpan{};
}

bool strides_nest(const Tensor& t) noexcept {
  if (!has_elements(t)) return true;
  const Dims dims = real_dims(t);
  std::int64_t span = 1;
  for (int i = 0; i < dims.count; ++i) {
    if (dims.dim[i].stride < span) return false;
    span += (dims.dim[i].extent - 1) * dims.dim[i].stride;
  }
  return true;
}

bool may_overlap(const Tensor& a, const Tensor& b) noexcept {
  if (a.memory != b.memory || !has_elements(a) || !has_elements(b)) return false;
  const ByteSpan sa = *byte_span(a), sb = *byte_span(b);
  const auto start_a = reinterpret_cast<std::uintptr_t>(a.data), start_b = reinterpret_cast<std::uintptr_t>(b.data);
  const bool a_first = start_a + sa.end <= start_b + sb.begin, b_first = start_b + sb.end <= start_a + sa.begin;
  if (a_first || b_first) return false;
  return !apart_at_some_stride(a, b, a) && !apart_at_some_stride(a, b, b);
}

bool same_view(const Tensor& a, const Tensor& b) noexcept {
  if (a.data != b.data || a.dtype != b.dtype || a.rank != b.rank) return false;
  for (int i = 0; i < a.rank; ++i)
    if (a.shape[i] != b.shape[i] || (a.shape[i] > 1 && a.stride[i] != b.stride[i])) return false;
  return true;
}

std::string describe(const Tensor& t) {
  if (!t.present() || well_formed(t)) return to_string(t);
  return formatted("a malformed tensor of rank {}", t.rank);
}

std::string shape_text(const Tensor& t) {
  if (t.rank < 0 || t.rank > Tensor::kMaxRank) return formatted("rank {}", t.rank);
  return formatted("[{}]", fmt::join(t.shape.begin(), t.shape.begin() + t.rank, ", "));
}

}  // namespace quire::contract
