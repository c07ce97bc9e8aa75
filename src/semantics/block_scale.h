// SPDX-License-Identifier: Apache-2.0
// Scales of blocks of 4-bit codes (decision 37): where one lies, and which ones a row gets.
#pragma once

#include <cstdint>

#include "quire/cache.hpp"
#include "semantics/fp4.h"
#include "semantics/fp8.h"
#include "semantics/qualifiers.h"

namespace quire::semantics {

/// [num_pages, page_size, num_kv_heads, head_dim / block] with strides.
struct BlockScales {
  std::uint8_t* data = nullptr;  ///< null = absent
  std::int64_t page = 0, token = 0, head = 0, block = 0;
  DType cached = DType::none;  ///< nvfp4 or mxfp4

  QUIRE_HD bool present() const { return data != nullptr; }
  QUIRE_HD std::uint8_t& code_at(std::int64_t page_id, std::int64_t token_id, std::int64_t head_id, std::int64_t block_id) const {
    return data[page_id * page + token_id * token + head_id * head + block_id * block];
  }
  QUIRE_HD float at(std::int64_t page_id, std::int64_t token_id, std::int64_t head_id, std::int64_t block_id) const {
    return block_scale_decode(cached, code_at(page_id, token_id, head_id, block_id));
  }
};

/// Absent unless `codes` has 4 bits.
inline BlockScales block_scales(const Tensor& scales, const Tensor& codes) {
  if (!has_blocks(codes.dtype) || scales.rank != 4) return {};
  return {static_cast<std::uint8_t*>(scales.data),
          scales.stride[0],
          scales.stride[1],
          scales.stride[2],
          scales.stride[3],
          codes.dtype};
}
inline BlockScales k_block_scales(const KVCache& cache) { return block_scales(cache.k_block_scale, cache.k); }
inline BlockScales v_block_scales(const KVCache& cache) { return block_scales(cache.v_block_scale, cache.v); }

/// Finds the scale of a block from its elements, in any order.
class BlockScale {
 public:
  QUIRE_HD void add(float element) {
    const std::uint32_t bits = float_to_bits(element) & 0x7FFFFFFFu;
    if (bits > most_) most_ = bits;
  }
  /// nvfp4: e4m3fn(max |x| / 6), an f32 division, rounded to nearest even, at most 448. mxfp4: 2^(floor(log2(max |x|)) - 2), at
  /// least 2^-127: the exponent of the largest e2m1, 6, is 2 (OCP Microscaling Formats v1.0, 6.3). NaN if an element is not
  /// finite.
  QUIRE_HD std::uint8_t code(DType cached) const {
    if (most_ >= 0x7F800000u) return cached == DType::nvfp4 ? std::uint8_t{0x7F} : std::uint8_t{0xFF};
    if (cached == DType::nvfp4) return fp8_encode<E4m3fn>(bits_to_float(most_) / 6.0f);
    const std::uint32_t exponent = most_ >> 23;  // 0 of subnormals, whose scale is the least
    return static_cast<std::uint8_t>(exponent < 2u ? 0u : exponent - 2u);
  }

 private:
  std::uint32_t most_ = 0;
};

/// The code of an element whose block has the scale `scale`; +0 if the scale is 0 or NaN.
QUIRE_HD std::uint32_t encode_in_block(float element, float scale) { return scale > 0.0f ? e2m1_encode(element / scale) : 0u; }

}  // namespace quire::semantics
