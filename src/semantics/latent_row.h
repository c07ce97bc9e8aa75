// SPDX-License-Identifier: Apache-2.0
// A row of fp8_ds_mla: one token of MLA's latent cache, in FlashMLA's fp8 format.
//
//   bytes [0, 512)     512 codes of fp8_e4m3fn: latent dims 0 to 511
//   bytes [512, 528)   four f32 scales; scale b is of latent dims [128 b, 128 b + 128)
//   bytes [528, 656)   64 elements of bf16: dims 512 to 575, of RoPE
//
// Sources: FlashMLA, README.md, "FP8 KV Cache", and tests/quant.py, V32_FP8Sparse (github.com/deepseek-ai/FlashMLA, commit
// 520fec6); vLLM, concat_and_cache_ds_mla_kernel of csrc/libtorch_stable/cache_kernels.cu (github.com/vllm-project/vllm).
#pragma once

#include <cstdint>
#include <cstring>

#include "semantics/dtype.h"
#include "semantics/qualifiers.h"
#include "semantics/token_scale.h"

namespace quire::semantics::latent_row {

constexpr std::int64_t kLatentDims = 512;  ///< dims of the latent part of K, and of V
constexpr std::int64_t kRopeDims = 64;
constexpr std::int64_t kDims = kLatentDims + kRopeDims;  ///< dims of K
constexpr std::int64_t kBlockDims = 128;                 ///< latent dims that share a scale
constexpr std::int64_t kNumBlocks = kLatentDims / kBlockDims;
constexpr std::int64_t kScalesAt = kLatentDims;  ///< bytes from the start of the row
constexpr std::int64_t kRopeAt = kScalesAt + 4 * kNumBlocks;
constexpr std::int64_t kBytes = kRopeAt + 2 * kRopeDims;
static_assert(kBytes == 656);
/// Rows begin at multiples of 16 bytes, as 656 is one: FlashMLA and Quire's GPU kernels read whole words. Q-R02 asks for it.
constexpr std::int64_t kAlignment = 16;

QUIRE_HD float scale(const std::uint8_t* row, std::int64_t block) {
  float value;
  std::memcpy(&value, row + kScalesAt + 4 * block, sizeof value);
  return value;
}
QUIRE_HD float rope(const std::uint8_t* row, std::int64_t d) {
  std::uint16_t code;
  std::memcpy(&code, row + kRopeAt + 2 * d, sizeof code);
  return bf16_decode(code);
}

/// Dim `d` of the row as f32: a code times its scale is rounded once.
QUIRE_HD float load(const std::uint8_t* row, std::int64_t d) {
  if (d >= kLatentDims) return rope(row, d - kLatentDims);
  return fp8_decode<E4m3fn>(row[d]) * scale(row, d / kBlockDims);
}

QUIRE_HD void store_scale(std::uint8_t* row, std::int64_t block, float value) {
  std::memcpy(row + kScalesAt + 4 * block, &value, sizeof value);
}
/// Latent dim `d`, whose block has the scale `scale`.
QUIRE_HD void store_latent(std::uint8_t* row, std::int64_t d, float value, float scale) {
  row[d] = fp8_encode<E4m3fn>(value / scale);
}
QUIRE_HD void store_rope(std::uint8_t* row, std::int64_t d, float value) {
  const std::uint16_t code = bf16_encode(value);
  std::memcpy(row + kRopeAt + 2 * d, &code, sizeof code);
}

/// Writes the latent part: latent(d) is the real value of dim d. Scales are those of rows that append() writes.
template <typename Latent>
QUIRE_HD void write_latent(std::uint8_t* row, Latent&& latent) {
  for (std::int64_t block = 0; block < kNumBlocks; ++block) {
    RowScale most;
    for (std::int64_t d = block * kBlockDims; d < (block + 1) * kBlockDims; ++d) most.add(latent(d));
    const float divisor = most.of(DType::fp8_e4m3fn);
    store_scale(row, block, divisor);
    for (std::int64_t d = block * kBlockDims; d < (block + 1) * kBlockDims; ++d) store_latent(row, d, latent(d), divisor);
  }
}

}  // namespace quire::semantics::latent_row
