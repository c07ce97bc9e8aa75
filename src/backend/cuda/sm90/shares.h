// Decode's work, dealt without a list: all key tiles of all requests and KV heads in one row, cut into equal shares, one a block.
// Every block finds its own share from the lengths, so nothing has to run before it.
//
// A segment is one request and KV head. Its tiles are neighbours in the row; a share may hold the end of one segment, whole ones,
// and the beginning of another. So a block has at most two partial results, and a segment over several blocks has all its parts
// in neighbouring blocks.
#pragma once

#include "backend/gpu/runtime.h"

#include <cstdint>

#include "backend/cuda/sm90/instance.h"
#include "backend/gpu/args.h"
#include "backend/gpu/checked_lengths.h"
#include "semantics/visible_range.h"

namespace quire::cuda::sm90 {

/// Key tiles [first, end) that rows of a request see, in units of kTileKeys from key 0.
struct TileRange {
  std::int32_t first = 0, end = 0;
  __device__ std::int32_t count() const { return end - first; }
};

__device__ inline TileRange tiles_of(const gpu::AttendArgs& a, std::int32_t query_len, std::int32_t context_len) {
  const std::int32_t rows = query_len * a.group;
  if (rows <= a.work.min_rows || rows > a.work.max_rows) return {};
  const semantics::KeyRange seen = semantics::visible_range(context_len, context_len + query_len - 1, a.window);
  return {static_cast<std::int32_t>(seen.begin) / kTileKeys, (static_cast<std::int32_t>(seen.end) - 1) / kTileKeys + 1};
}

/// Where the segments of each request begin in the row; in shared memory. The host has seen that 32 bits are enough.
struct Row {
  std::int32_t begin[kMostReqs + 1];
  std::int32_t of_warp[12];
};

/// All threads of the block; afterwards row.begin[r] is the first tile of request r, row.begin[num_reqs] the number of tiles.
/// False if lengths break a rule: nothing may be read then.
template <int kThreads>
__device__ inline bool count_tiles(const gpu::AttendArgs& a, Row& row) {
  static_assert(kThreads / 32 <= sizeof(row.of_warp) / sizeof(row.of_warp[0]));
  const int t = threadIdx.x, lane = t % 32, each = (a.num_reqs + kThreads - 1) / kThreads;
  // gpu::starts_are_sound(), by two threads: nobody waits for one load after the other.
  bool unsound =
      (t == kThreads - 1 && a.query_start_loc[0] != 0) || (t == kThreads - 2 && a.query_start_loc[a.num_reqs] != a.num_tokens);
  std::int32_t mine = 0;
  for (int i = 0; i < each; ++i) {
    const int req = t * each + i;
    if (req >= a.num_reqs) break;
    const gpu::CheckedLengths n = gpu::checked_lengths(a, req);
    const bool sound = n.sound && n.cached_len <= a.block_table.columns * a.page_size;
    unsound |= !sound;
    const std::int32_t tiles =
        sound ? tiles_of(a, static_cast<std::int32_t>(n.query_len), static_cast<std::int32_t>(n.context_len)).count() : 0;
    row.begin[req] = tiles * a.num_kv_heads;
    mine += row.begin[req];
  }
  std::int32_t sum = mine;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const std::int32_t other = __shfl_up_sync(~0u, sum, distance);
    if (lane >= distance) sum += other;
  }
  if (lane == 31) row.of_warp[t / 32] = sum;
  __syncthreads();
  std::int32_t at = sum - mine;
#pragma unroll 1
  for (int w = 0; w < t / 32; ++w) at += row.of_warp[w];
  for (int i = 0; i < each; ++i) {
    const int req = t * each + i;
    if (req >= a.num_reqs) break;
    const std::int32_t count = row.begin[req];
    row.begin[req] = at;
    at += count;
  }
  if (t == kThreads - 1) row.begin[a.num_reqs] = at;
  return __syncthreads_or(unsound) == 0;
}

/// What a block does of one segment: tiles [first, end).
struct Piece {
  std::int32_t req = 0, kv_head = 0;
  std::int32_t first = 0, end = 0;
  std::int32_t row_begin = 0, row_end = 0, at = 0;  ///< in the row: the segment, and this piece's first tile
  gpu::Lengths lengths;
};

/// How a segment is split over blocks.
struct Parts {
  std::int32_t part = 0;  ///< the piece at hand
  std::int32_t count = 1;
  std::int32_t first_block = 0;  ///< which has part 0
  std::int32_t first_place = 0;  ///< of part 0's partial result
  /// Two places a block, the first for what begins its share: all parts but part 0 do.
  __device__ std::int32_t place(std::int32_t p) const { return p == 0 ? first_place : 2 * (first_block + p); }
};

/// The pieces of one block's share, in order. Every thread that walks sees the same.
class Pieces {
 public:
  __device__ Pieces(const gpu::AttendArgs& a, const Row& row, int block, int blocks) : a_(a), row_(row) {
    const std::int32_t all = row.begin[a.num_reqs];
    share_ = (all - 1) / blocks + 1;  // 1 if there are none
    at_ = all / share_ < block ? all : block * share_;
    end_ = min(at_ + share_, all);
    if (at_ < end_) req_ = request_of(at_);
  }
  __device__ bool next(Piece& piece) {
    if (at_ >= end_) return false;
    while (row_.begin[req_ + 1] <= at_) ++req_;  // requests without tiles
    piece.req = req_;
    piece.lengths = gpu::lengths_of(a_, req_);
    const TileRange tiles = tiles_of(a_, piece.lengths.query_len, piece.lengths.context_len);
    piece.kv_head = (at_ - row_.begin[req_]) / tiles.count();
    piece.row_begin = row_.begin[req_] + piece.kv_head * tiles.count();
    piece.row_end = piece.row_begin + tiles.count();
    piece.at = at_;
    const std::int32_t stop = min(piece.row_end, end_);
    piece.first = tiles.first + at_ - piece.row_begin;
    piece.end = tiles.first + stop - piece.row_begin;
    at_ = stop;
    return true;
  }
  __device__ Parts parts_of(const Piece& piece) const {
    Parts parts;
    parts.first_block = piece.row_begin / share_;
    parts.first_place = 2 * parts.first_block + (piece.row_begin == parts.first_block * share_ ? 0 : 1);
    parts.count = (piece.row_end - 1) / share_ - parts.first_block + 1;
    parts.part = piece.at / share_ - parts.first_block;
    return parts;
  }

 private:
  /// The last request that begins at or before `tile`: it has tiles.
  __device__ std::int32_t request_of(std::int32_t tile) const {
    std::int32_t low = 0, high = a_.num_reqs - 1;
    while (low < high) {
      const std::int32_t middle = (low + high + 1) / 2;
      if (row_.begin[middle] <= tile)
        low = middle;
      else
        high = middle - 1;
    }
    return low;
  }

  const gpu::AttendArgs& a_;
  const Row& row_;
  std::int32_t share_, at_, end_;
  std::int32_t req_ = 0;
};

}  // namespace quire::cuda::sm90
