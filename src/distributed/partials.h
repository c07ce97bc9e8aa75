// SPDX-License-Identifier: Apache-2.0
// Partial results of a step in one buffer, head by head: outputs [num_tokens, v_head_dim], then lse [num_tokens] in f32, each
// padded to 16 bytes. A rank's share of the heads is contiguous, so the same buffer serves all-gather and all-to-all.
#pragma once

#include <algorithm>
#include <cstddef>

#include "quire/tensor.hpp"

namespace quire::distributed {

struct PartialLayout {
  std::int64_t num_tokens = 0, heads = 0, head_dim = 0;  ///< head_dim is that of values
  DType dtype = DType::f32;                              ///< of outputs
  Memory memory = Memory::cpu;

  static constexpr std::int64_t padded(std::int64_t bytes) { return (bytes + 15) / 16 * 16; }
  std::int64_t out_bytes() const { return padded(num_tokens * head_dim * itemsize(dtype)); }
  /// Bytes of one head.
  std::int64_t block() const { return out_bytes() + padded(num_tokens * 4); }
  std::size_t bytes() const { return static_cast<std::size_t>(heads * block()); }
  PartialLayout with_heads(std::int64_t n) const { return {num_tokens, n, head_dim, dtype, memory}; }

  /// [parts, num_tokens, heads, head_dim]; part k begins at k * bytes().
  Tensor outs(std::byte* buffer, std::int64_t parts) const {
    Tensor t = Tensor::contiguous(buffer, dtype, parts, num_tokens, heads, head_dim);
    const std::int64_t head = block() / itemsize(dtype);
    t.stride = {heads * head, head_dim, head, 1};
    t.memory = memory;
    return t;
  }
  /// [parts, num_tokens, heads]
  Tensor lses(std::byte* buffer, std::int64_t parts) const {
    Tensor t = Tensor::contiguous(buffer + out_bytes(), DType::f32, parts, num_tokens, heads);
    t.stride = {heads * block() / 4, 1, block() / 4};
    t.memory = memory;
    return t;
  }
};

/// The tensor without its first axis, of extent 1.
inline Tensor only(Tensor t) {
  --t.rank;
  std::copy(t.shape.begin() + 1, t.shape.end(), t.shape.begin());
  std::copy(t.stride.begin() + 1, t.stride.end(), t.stride.begin());
  return t;
}

/// Entries [first, first + count) of an axis.
inline Tensor heads_of(Tensor t, int axis, std::int64_t first, std::int64_t count) {
  t.data = static_cast<std::byte*>(t.data) + first * t.stride[static_cast<std::size_t>(axis)] * itemsize(t.dtype);
  t.shape[static_cast<std::size_t>(axis)] = count;
  return t;
}

}  // namespace quire::distributed
