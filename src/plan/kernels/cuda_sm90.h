// SPDX-License-Identifier: Apache-2.0
// cuda_sm90: the numbers that planning and src/backend/cuda/sm90/ agree on. Kernels include this file, so it stays small.
#pragma once

#include <cstdint>

#include "schedule/shares.h"

namespace quire::plan_detail {

/// A tile of prefill: score rows of a block and keys.
struct PrefillTile {
  std::int64_t groups;  ///< consumer warpgroups of a block
  std::int64_t keys;
  static constexpr std::int64_t kGroupRows = 64;  ///< score rows of a warpgroup, as wgmma has
  constexpr std::int64_t rows() const { return kGroupRows * groups; }
};

/// Sizes and limits of the Hopper kernels. Times and rates were measured on an H200 (docs/kernels/sm90_decode.md,
/// sm90_prefill.md) and serve every sm90 device: a wrong one costs time, never a bit of an output.
struct Sm90Tuning {
  // Decode.
  std::int64_t narrow_rows = 8;  ///< score rows of a narrow tile
  std::int64_t wide_groups = 2;  ///< warpgroups of a wide tile, wide_rows() score rows each
  std::int64_t tile_keys = schedule::kShareTileKeys;
  /// Head_dim whose narrow tiles hold two KV heads: rows of one head, 128 bytes, are read at less than the memory's bandwidth.
  static constexpr std::int64_t paired_head_dim = 64;
  /// Score rows of a request that decode takes beside a prefill kernel that rounds weights, which is faster from there on.
  std::int64_t rows_beside_prefill = 32;
  /// Score rows that decode takes, in slices of tiles, where there is no such prefill kernel.
  std::int64_t sliced_rows = 128;
  /// Keys of a part of batch_invariant plans. A part costs some 4 us beside its tiles, and a request of 8k keys with 8 KV heads
  /// is to be worked on by more than a few blocks.
  std::int64_t split_keys = 2048;
  /// Shares of narrow tiles, of narrow ones whose rows are 8-bit codes or those of two heads, and of wide ones. Smaller shares
  /// make more parts, and one warpgroup merges all parts of up to 32 rows of a wide tile, at some 1.5 us a part (measured on an
  /// H200). Shares of whole segments save merges and leave some blocks without work: decode over rows of 256 bytes takes up to
  /// 1 % longer with them, over smaller rows up to 6 % less (an H100, 2026-11-27).
  schedule::Rounding<std::int32_t> narrow_share{.least = 1, .whole = 34};
  schedule::Rounding<std::int32_t> small_row_share{.least = 1, .whole = 24, .part = 34};
  schedule::Rounding<std::int32_t> wide_share{.least = 8, .whole = 0};
  /// Time of a narrow tile over the time that a merge takes for a part and four rows of 128 dims (1500 and 80 cycles).
  double tile_by_part = 19;
  std::int64_t many_parts = 32;  ///< parts of a segment (request and KV head) that there may be in any case

  // Cluster decode (docs/kernels/sm90_cluster.md).
  std::int64_t cluster_unit_keys = 16;  ///< keys of a unit: pages are multiples of it
  std::int64_t most_cluster = 8;        ///< blocks of a cluster: the largest that every device with clusters can hold
  /// Keys of one block of a cluster; half as many where blocks are few. A plan knows only the longest length: if the others are
  /// short, most blocks have nothing to do, and 1024 keys take a block some 6 us. From about as many keys on, Stream-K is as fast
  /// (measured on an H100).
  std::int64_t most_cluster_keys = 1024;
  /// Blocks that read as fast as all SMs do, out of 132: measured on an H100 with 64. Clusters of more than 2 are limited to it,
  /// because GPCs of unequal size hold no more of them at a time (128 blocks in clusters of 4 or 8 took two rounds).
  std::int64_t reading_blocks = 64;

  // Prefill.
  std::int64_t prefill_pair = 2;  ///< blocks that share tiles of keys
  /// Dims of the output that registers of a block hold beside its score rows. Where V has more, both blocks of a pair have the
  /// same rows and half of the dims each.
  std::int64_t most_out_dims = 256;
  /// Tall tiles for each pair of blocks, from which on they are used: fewer leave pairs idle. Measured on an H100: 2.6 tiles took
  /// 0.88 of the time of others, 1.3 took 1.6 times as long.
  std::int64_t least_tall_tiles = 2;

  // Decode beside prefill. A call is divided where reading and computing would take min_divided_seconds at these rates.
  double bytes_per_second = 4.5e12;
  double flops_per_second = 600e12;
  double min_divided_seconds = 100e-6;
  /// Two calls are served at the same time where each of them would take that long at these rates: up to 9 us are the cost.
  double min_beside_seconds = 9e-6;
  /// Time of first keys and merges of such a prefill on all SMs, in tiles of decode (an H100: 30 us of 132 SMs).
  std::int64_t ends_beside_call = 6400;

  /// Score rows of a warpgroup of a wide tile, as registers allow.
  constexpr std::int64_t wide_rows(std::int64_t head_dim) const { return head_dim == 256 ? 16 : 32; }
  /// Decode blocks of an SM, which src/backend/cuda/sm90/ makes room for: as many as keep up with memory.
  constexpr std::int64_t decode_blocks(std::int64_t head_dim, std::int64_t cache_itemsize, std::int64_t tile_rows,
                                       std::int64_t heads = 1) const {
    if (tile_rows > narrow_rows * heads || head_dim > 128) return 1;
    return cache_itemsize == 1 ? 4 : 2;
  }
  /// Whether head_dims of K and V are those of MLA's prefill, or 512. Prefill serves all rows of these, from 16-bit caches of
  /// rows.
  static constexpr bool has_wide_dims(std::int64_t head_dim, std::int64_t v_head_dim) {
    return (head_dim == 192 && v_head_dim == 128) || (head_dim == 512 && v_head_dim == 512);
  }
  /// `tall`: three warpgroups keep the exponentials busy, which bound head_dim 64, and their registers hold 96 keys
  /// (docs/kernels/sm90_prefill.md, "Head_dim 64").
  static constexpr PrefillTile prefill_tile(std::int64_t head_dim, bool tall) {
    if (tall) return {.groups = 3, .keys = 96};
    return {.groups = 2, .keys = head_dim > 192 ? 64 : 128};
  }
  /// Whether there are tall tiles of this head_dim.
  static constexpr bool may_be_tall(std::int64_t head_dim) { return head_dim == 64; }
  /// Tiles of decode that take as long as one of prefill ("Beside decode" in docs/kernels/sm90_prefill.md).
  constexpr std::int16_t prefill_weight(std::int64_t head_dim) const { return head_dim == 256 ? 3 : 5; }
  /// Likewise where two calls are served at the same time. SMs do not wait for memory there, which few blocks of decode keep
  /// busy: a tile of decode takes 0.58 us of an SM and one of prefill 6 (an H100, 2026-11-26).
  constexpr std::int64_t weight_beside_call(std::int64_t head_dim) const { return 2 * std::int64_t{prefill_weight(head_dim)}; }
};
inline constexpr Sm90Tuning kSm90;

}  // namespace quire::plan_detail
