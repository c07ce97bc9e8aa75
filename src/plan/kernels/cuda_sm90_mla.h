// SPDX-License-Identifier: Apache-2.0
// cuda_sm90_mla: the numbers that planning and src/backend/cuda/sm90/mla/ agree on. Kernels include this file, so it stays small.
#pragma once

#include <cstdint>

namespace quire::plan_detail {

/// The sizes of DeepSeek's latent rows (DeepSeek-V2, 2024, arXiv:2405.04434), and of tiles that fit an SM: 64 rows of
/// 512 f32 sums take half of its registers.
struct MlaTuning {
  std::int64_t key_dim = 576;    ///< 512 latent dims and 64 of RoPE
  std::int64_t value_dim = 512;  ///< the latent dims
  std::int64_t tile_rows = 64;
  std::int64_t tile_keys = 64;
  std::int64_t copied_tokens = 8;  ///< tokens of a page that a tensor copy takes, where pages hold whole eights; else one
};
inline constexpr MlaTuning kMla;

}  // namespace quire::plan_detail
