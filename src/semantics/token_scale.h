// SPDX-License-Identifier: Apache-2.0
// Scales of cached tokens: where one lies, and which one a row gets. decision 33.
#pragma once

#include <cstdint>

#include "quire/tensor.hpp"
#include "semantics/fp8.h"
#include "semantics/qualifiers.h"

namespace quire::semantics {

/// f32 [num_pages, page_size, num_kv_heads] with strides.
struct TokenScales {
  float* data = nullptr;  ///< null = absent
  std::int64_t page = 0, token = 0, head = 0;

  QUIRE_HD bool present() const { return data != nullptr; }
  QUIRE_HD float& at(std::int64_t page_id, std::int64_t token_id, std::int64_t head_id) const {
    return data[page_id * page + token_id * token + head_id * head];
  }
};

/// Absent unless the tensor has a scale for each token.
inline TokenScales token_scales(const Tensor& scale) {
  if (scale.rank != 3) return {};
  return {static_cast<float*>(scale.data), scale.stride[0], scale.stride[1], scale.stride[2]};
}

/// The largest value of a type of 8-bit codes.
QUIRE_HD float largest_code(DType dtype) {
  switch (dtype) {
    case DType::i8: return 127.0f;
    case DType::fp8_e4m3fn: return 448.0f;
    case DType::fp8_e4m3fnuz: return 240.0f;
    default: return 57344.0f;
  }
}

/// Finds the scale of a row from its elements, in any order.
class RowScale {
 public:
  QUIRE_HD void add(float element) {
    const std::uint32_t bits = float_to_bits(element) & 0x7FFFFFFFu;  // numbers without a sign compare as their bits do
    if (bits > most_) most_ = bits;
  }
  /// max(max |x| / largest code, 2^-126): no row, zeros included, has a scale that is subnormal. NaN if an element is not finite.
  QUIRE_HD float of(DType stored) const {
    if (most_ >= 0x7F800000u) return bits_to_float(0x7FC00000u);
    const float scale = bits_to_float(most_) / largest_code(stored), least = exact_power_of_two(-126);
    return scale > least ? scale : least;
  }

 private:
  std::uint32_t most_ = 0;
};

}  // namespace quire::semantics
