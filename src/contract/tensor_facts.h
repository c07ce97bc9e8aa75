// SPDX-License-Identifier: Apache-2.0
// Facts from a tensor's descriptor alone: whether it can be trusted, where its bytes are, whether views collide.
// No function reads tensor data, and none overflows whatever the descriptor holds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "quire/tensor.hpp"

namespace quire::contract {

inline constexpr std::int64_t kMaxExtent = 2147483647;  ///< rules Q-M08 and Q-T07

/// Rule Q-M02: known dtype, rank 0 .. 5, extents >= 0.
bool descriptor_ok(const Tensor& t) noexcept;
/// Rules Q-M02, Q-M03, Q-M08: shape and strides can be computed with.
bool well_formed(const Tensor& t) noexcept;
/// well_formed, and Q-M04, Q-M05: the elements have addresses, in whatever memory.
bool placed(const Tensor& t) noexcept;
/// placed, in host memory: data may be dereferenced at every index.
bool readable(const Tensor& t) noexcept;

bool has_elements(const Tensor& t) noexcept;

/// Bytes [begin, end) relative to `data` that the elements span; nullopt if a size or stride in bytes overflows.
struct ByteSpan {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};
std::optional<ByteSpan> byte_span(const Tensor& t) noexcept;

/// The strides nest, so every element has its own address (sufficient, and what rule Q-M15 asks). Needs well_formed.
bool strides_nest(const Tensor& t) noexcept;

/// Whether two views can share a byte. False for disjoint ranges and for views interleaved at a common stride
/// (K and V in one allocation). Needs well_formed and one memory.
bool may_overlap(const Tensor& a, const Tensor& b) noexcept;

/// Whether two views have one address for every index: the exact in-place case.
bool same_view(const Tensor& a, const Tensor& b) noexcept;

/// to_string(t) if that is safe, otherwise what is wrong with the descriptor.
std::string describe(const Tensor& t);
/// "[3, 8, 64]"
std::string shape_text(const Tensor& t);

}  // namespace quire::contract
