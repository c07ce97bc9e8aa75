// SPDX-License-Identifier: Apache-2.0
// Memory for an output under test: canaries before, behind and between the elements, and in the elements a NaN that no
// computation produces, so that "never written" and "NaN was written" are two findings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "quire/tensor.hpp"

namespace quire::verify_detail {

/// Placement of elements in memory: back to back, with gaps after every head and row, or also with gaps between all elements.
enum class Spread { contiguous, gaps, apart };

class Guarded {
 public:
  /// `like` gives shape and dtype (f32, f16 or bf16; rank 2 or 3).
  Guarded(const Tensor& like, Spread spread);

  /// Tensor that the target writes; lives as long as this object.
  Tensor view;

  /// The elements in index order. Call once, after the target has run.
  std::vector<std::byte> take();
  /// Bytes outside the elements that changed. Known after take().
  std::int64_t damaged() const { return damaged_; }

 private:
  std::vector<std::byte> bytes_;
  std::size_t first_ = 0;  ///< offset of the first element, in bytes
  std::int64_t damaged_ = 0;
};

/// The bytes of `n` elements of the fill.
std::vector<std::byte> fill_pattern(DType dtype, std::int64_t n);

}  // namespace quire::verify_detail
