// SPDX-License-Identifier: Apache-2.0
// Threads of a block and how many blocks: what every vendor's host code and the kernels agree on. The attend kernels' own sizes
// are in generic_sizes.h and hip/matrix/sizes.h; their number of blocks is the plan's.
#pragma once

#include <cstdint>

#include "backend/gpu/args.h"

namespace quire::gpu {

constexpr int kValidateThreads = 256;
constexpr int kValidateLanes = 32;                                 ///< threads that look at a request together
constexpr int kValidateUnits = kValidateThreads / kValidateLanes;  ///< requests that a block looks at together
constexpr int kValidateColumns = 16 * kValidateLanes;
constexpr int kScheduleThreads = 256;
constexpr int kResetThreads = 256;
constexpr int kFillThreads = 256;
constexpr int kAppendThreads = 256;
constexpr int kAppendDims = 8;  ///< dims that a thread moves at once
constexpr int kMergeThreads = 256;
constexpr int kMergeLanes = 16;  ///< threads that share a row
constexpr int kContentThreads = 256;
constexpr int kContentColumns = 16;  ///< pages of a row of the table that one block looks at together

/// Blocks stride over what is left: more of them than fill a device gain nothing.
inline std::int64_t blocks_for(std::int64_t pieces, std::int64_t most) { return pieces < 1 ? 1 : pieces < most ? pieces : most; }

/// Chunks of kValidateColumns entries in a row of the block table; one for a row without entries, whose lengths count.
QUIRE_HD std::int64_t validate_chunks(const AttendArgs& a) {
  return a.block_table.columns < 1 ? 1 : (a.block_table.columns - 1) / kValidateColumns + 1;
}
inline std::int64_t validate_blocks(const AttendArgs& a) {
  const std::int64_t units = a.num_reqs * validate_chunks(a);
  return blocks_for((units + kValidateUnits - 1) / kValidateUnits, 1024);
}
inline std::int64_t contents_blocks(const AttendArgs& a) {
  return blocks_for(a.num_tokens + a.num_reqs * (a.block_table.columns / kContentColumns + 1), 4096);
}
/// Pieces that the threads of append() share out: kAppendDims of a row of K or of V. The wider row counts; pieces behind the end
/// of the other row are empty.
struct AppendPieces {
  std::int32_t of_row, of_token;
  std::int32_t tokens_at_once;  ///< tokens that a block moves at once
};
QUIRE_HD AppendPieces append_pieces(const AppendArgs& a) {
  const std::int32_t dims = a.head_dim > a.v_head_dim ? a.head_dim : a.v_head_dim;
  const std::int32_t of_row = (dims + kAppendDims - 1) / kAppendDims, of_token = 2 * a.num_kv_heads * of_row;
  return {of_row, of_token, of_token < kAppendThreads ? kAppendThreads / of_token : 1};
}
inline std::int64_t append_blocks(const AppendArgs& a) {
  const std::int32_t tokens = append_pieces(a).tokens_at_once;
  return blocks_for((std::int64_t{a.num_tokens} + tokens - 1) / tokens, 8192);
}
/// Sides of the cache that append_four_bits() takes; append() takes the others.
inline bool appends_four_bits(const AppendArgs& a) { return a.k_block_scale.present() || a.v_block_scale.present(); }
inline bool appends_others(const AppendArgs& a) { return !a.k_block_scale.present() || !a.v_block_scale.present(); }

/// As many as fill a device: how many rows there are to fill is known there.
inline std::int64_t fill_blocks(const AttendArgs& a) {
  return blocks_for(std::int64_t{a.num_tokens} * a.num_q_heads * a.v_head_dim / kFillThreads, 512);
}
inline std::int64_t merge_blocks(const MergeArgs& a) {
  constexpr std::int64_t kRowsAtOnce = kMergeThreads / kMergeLanes;
  return blocks_for((std::int64_t{a.num_tokens} * a.num_heads + kRowsAtOnce - 1) / kRowsAtOnce, 8192);
}

inline std::int64_t merge_many_blocks(const MergeManyArgs& a) {
  constexpr std::int64_t kRowsAtOnce = kMergeThreads / kMergeLanes;
  return blocks_for((std::int64_t{a.num_tokens} * a.num_heads + kRowsAtOnce - 1) / kRowsAtOnce, 8192);
}

}  // namespace quire::gpu
