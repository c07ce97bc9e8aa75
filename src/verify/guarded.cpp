// SPDX-License-Identifier: Apache-2.0
// See guarded.h.
#include "verify/guarded.h"

#include <algorithm>
#include <cstring>

namespace quire::verify_detail {
namespace {

constexpr std::byte kCanary{0xA5};
constexpr std::int64_t kGuardElements = 64;  // elements before and after

/// Quiet NaNs with a payload. fp8_e4m3fn has two NaNs: the negative one, which kernels do not write. A number would do for no
/// type: a row of one dim may have it as its output.
std::uint32_t fill_bits(DType dtype) {
  switch (dtype) {
    case DType::fp8_e4m3fn: return 0xFF;
    case DType::f16: return 0x7EA5;
    case DType::bf16: return 0x7FE5;
    default: return 0x7FC5A5A5;
  }
}

/// Calls visit(byte offset, bytes) for every run of adjacent elements, in index order.
template <typename Visit>
void for_each_run(const Tensor& t, Visit&& visit) {
  const std::int64_t size = itemsize(t.dtype);
  if (t.is_contiguous()) return visit(std::int64_t{0}, t.num_elements() * size);
  const std::int64_t inner = t.rank == 3 ? t.shape[2] : 1, step = t.rank == 3 ? t.stride[2] : 0;
  for (std::int64_t i = 0; i < t.shape[0]; ++i)
    for (std::int64_t j = 0; j < t.shape[1]; ++j)
      for (std::int64_t k = 0; k < inner; ++k) visit((i * t.stride[0] + j * t.stride[1] + k * step) * size, size);
}

}  // namespace

std::vector<std::byte> fill_pattern(DType dtype, std::int64_t n) {
  const auto size = static_cast<std::size_t>(itemsize(dtype));
  const std::uint32_t bits = fill_bits(dtype);
  std::vector<std::byte> bytes(static_cast<std::size_t>(n) * size);
  for (std::size_t i = 0; i < bytes.size(); i += size) std::memcpy(bytes.data() + i, &bits, size);
  return bytes;
}

Guarded::Guarded(const Tensor& like, Spread spread) : view(like) {
  const bool gaps = spread != Spread::contiguous;
  std::int64_t stride = spread == Spread::apart ? 2 : 1;  // apart: every other element in the innermost dimension
  for (int i = view.rank - 1; i >= 0; --i) {
    view.stride[static_cast<std::size_t>(i)] = stride;
    stride = stride * view.shape[static_cast<std::size_t>(i)] + (gaps ? 3 : 0);
  }
  const std::int64_t size = itemsize(view.dtype);
  bytes_.assign(static_cast<std::size_t>((stride + 2 * kGuardElements) * size) + 64, kCanary);
  first_ = (64 - reinterpret_cast<std::uintptr_t>(bytes_.data()) % 64) % 64 + static_cast<std::size_t>(kGuardElements * size);
  std::byte* data = bytes_.data() + first_;
  view.data = data;
  const std::uint32_t bits = fill_bits(view.dtype);
  for_each_run(view, [&](std::int64_t at, std::int64_t count) {
    for (std::int64_t i = 0; i < count; i += size) std::memcpy(data + at + i, &bits, static_cast<std::size_t>(size));
  });
}

std::vector<std::byte> Guarded::take() {
  std::vector<std::byte> elements(static_cast<std::size_t>(view.num_elements() * itemsize(view.dtype)));
  std::byte* data = bytes_.data() + first_;
  std::byte* next = elements.data();
  for_each_run(view, [&](std::int64_t at, std::int64_t count) {
    if (count == 0) return;
    std::memcpy(next, data + at, static_cast<std::size_t>(count));
    std::memset(data + at, static_cast<int>(kCanary), static_cast<std::size_t>(count));
    next += count;
  });
  damaged_ = static_cast<std::int64_t>(bytes_.size()) - std::count(bytes_.begin(), bytes_.end(), kCanary);
  return elements;
}

}  // namespace quire::verify_detail
