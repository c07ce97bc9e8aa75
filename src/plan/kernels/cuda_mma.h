// SPDX-License-Identifier: Apache-2.0
// cuda_mma: tiles of src/backend/cuda/mma/, and the problems that it has instances for.
#pragma once

#include "plan/device_lists.h"

namespace quire::plan_detail {

/// Eight warps of up to 255 registers a thread fill an SM. Where shared memory has room for one block of the two, the second
/// block starts when the first one ends, and draws the items that are left.
inline constexpr ShortAndTall kMmaTiles = {.short_rows = 8, .tall_rows = 64, .tile_keys = 64, .blocks_per_unit = 2};

/// Keys of a tall tile of head_dim 256 on devices whose shared memory has no room for as many as others have.
inline constexpr std::int64_t kMmaFewKeys = 32;

/// Tiles of prefill, whose weights are rounded, and the blocks of them that fill an SM with eight warps: a warp has 32 rows, or
/// 16 where it has no registers for more (head_dim 256) or converts keys and values.
inline constexpr std::int64_t kMmaPrefillRows = 128;
constexpr std::int64_t mma_prefill_blocks(std::int64_t head_dim, bool fp8) { return head_dim == 256 || fp8 ? 1 : 2; }

/// Shared memory of a block, bytes: what the body has (define_instance.h compares). A number that is too small lets a
/// plan have a list whose launch fails.
constexpr std::int64_t mma_shared_bytes(Role role, std::int64_t head_dim, bool fp8, std::int64_t tile_keys) {
  constexpr std::int64_t kShort[2][3] = {{120'080, 113'424, 219'920}, {102'672, 100'624}};  // head_dim 64, 128, 256
  constexpr std::int64_t kTall[2][3] = {{34'968, 59'544, 108'696}, {43'152, 75'920}};
  constexpr std::int64_t kPrefill[2][3] = {{45'208, 77'976, 149'656}, {59'536, 100'496}};
  if (tile_keys == kMmaFewKeys) return 74'904;
  const auto& of_role = role == Role::short_rows ? kShort : role == Role::prefill ? kPrefill : kTall;
  return of_role[fp8 ? 1 : 0][head_dim / 128];
}

/// Most shared memory of a block, bytes, by compute capability (CUDA Programming Guide, "Compute Capabilities", technical
/// specifications). An unknown one is taken for a small one.
constexpr std::int64_t most_shared_bytes(int sm) {
  if (sm == 80 || sm == 87) return 163 << 10;
  return sm >= 90 && sm < 120 ? 227 << 10 : 99 << 10;
}

/// Whether cuda_mma takes what cuda_sm90 does not, of that row's types: it has no instance for an 8-bit query.
inline bool has_mma_instance(const Problem& p) {
  return !is_fp8(p.q_dtype) && p.has_equal_dims() && p.head_dim <= (is_fp8(p.kv_dtype) ? 128 : 256);
}

}  // namespace quire::plan_detail
