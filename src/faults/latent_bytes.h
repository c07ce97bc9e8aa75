// SPDX-License-Identifier: Apache-2.0
// A cache of fp8_ds_mla for the model: its rows as bytes, and the whole cache as f32, in which every belief of the model that is
// not about the format works as for any other cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "faults/decoded_pages.h"
#include "quire/cache.hpp"

namespace quire::faults_detail {

/// Sizes of a row, and where its parts begin, in bytes (quire/cache.hpp, latent_cache()).
struct LatentBytes {
  static constexpr std::int64_t kLatentDims = 512, kBlockDims = 128, kNumBlocks = 4, kRopeDims = 64;
  static constexpr std::int64_t kScalesAt = 512, kRopeAt = 528, kRow = 656;

  const std::uint8_t* row = nullptr;

  double code(std::int64_t d) const;  ///< value of the code, not multiplied by the scale
  double scale(std::int64_t block) const;
  double rope(std::int64_t d) const;
  /// An element of bf16 that begins at any byte of the row.
  double bf16_at(std::int64_t byte) const;
  /// Dim of K: a code times its scale, or a RoPE dim.
  double value(std::int64_t d) const { return d < kLatentDims ? code(d) * scale(d / kBlockDims) : rope(d - kLatentDims); }
};

/// A row of one side of a cache of fp8_ds_mla.
LatentBytes latent_bytes(const KVCache& cache, Side side, std::int64_t page, std::int64_t offset);

/// The cache itself, or, of fp8_ds_mla, a cache of f32 with the same numbers, rounded; V lies in K's rows if it did. 3.5 times
/// the memory of the rows, or 6.6 times.
class RealCache {
 public:
  explicit RealCache(const KVCache& stored);
  const KVCache& cache() const { return real_; }

 private:
  Tensor decoded(const KVCache& stored, Side side, std::vector<float>& memory) const;

  KVCache real_;
  std::vector<float> k_, v_;
};

}  // namespace quire::faults_detail
