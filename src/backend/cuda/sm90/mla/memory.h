// SPDX-License-Identifier: Apache-2.0
// Shared memory, registers and threads of an MLA block, and the items that it takes.
//
// A tile of keys is nine boxes of 64 keys x 64 dims, rows of 128 bytes swizzled by 128 bytes. Values are its first eight boxes.
// The ninth box (RoPE) is no value: once the scores are there, it holds the tile's weights.
#pragma once

#include "backend/cuda/sm90/hopper.h"
#include "backend/cuda/sm90/launch_order.h"
#include "backend/cuda/sm90/mla/instance.h"
#include "backend/cuda/tile/finish.h"

namespace quire::cuda::sm90::mla {

constexpr int kRows = kMlaRows;  ///< score rows of a tile
constexpr int kKeys = kTileKeys, kKeyDim = kMlaKeyDim, kValueDim = kMlaValueDim;
constexpr int kRowBytes = 128, kBoxDims = 64, kBoxBytes = kKeys * kRowBytes;
constexpr int kBoxes = kKeyDim / kBoxDims, kValueBoxes = kValueDim / kBoxDims;
constexpr int kWeightBox = kValueBoxes;                                            ///< the box that weights replace
constexpr int kGroups = 2;                                                         ///< warpgroups that multiply
constexpr int kHalfDim = kValueDim / kGroups, kHalfBoxes = kValueBoxes / kGroups;  ///< of values, a warpgroup's
constexpr int kConsumerThreads = 128 * kGroups, kThreads = kConsumerThreads + 128;
/// Producer warps: one for each part of a tile, and one that draws items.
constexpr int kDrawingWarp = kGroups;
// A block deals out the 168 registers that each thread has at first.
constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
static_assert(kProducerRegisters + kGroups * kConsumerRegisters <= 3 * 168);
static_assert(kRows == kKeys && kBoxes == kValueBoxes + 1);

struct Tile {
  Byte boxes[kBoxes][kBoxBytes];
};

/// Slot g holds the tiles for which warpgroup g computes scores: every second tile of an item. Part p of a slot is what warpgroup
/// p reads last: its half of the values, and the other warpgroup's weights.
struct Shared {
  alignas(1024) Tile query;
  Tile keys[kGroups];
  float max[kGroups][kRows];  ///< base 2, after a tile of that warpgroup
  float sum[kGroups][kRows];
  hopper::Barrier full[kGroups][kGroups], free[kGroups][kGroups];  ///< by slot and part
  tile::Item items[2];
  bool more[2];
  hopper::Barrier index_full[2];  ///< of a pair's second block
  hopper::Barrier index_free[2];  ///< of its first: the second has read the index before
  int index[2];
  std::uint32_t not_finite[kGroups][4];  ///< by warp: bit r is row r of its 16
  float zero;
};
static_assert(sizeof(Shared) <= 227 * 1024);

/// Blocks that work on a tile of score rows together: one, or a cluster of two that have 64 rows each and share tiles of keys.
template <bool kPaired>
struct Team {
  static constexpr int kBlocks = kPaired ? kPair : 1;
  __device__ static int rank() {
    if constexpr (kPaired) return hopper::rank_in_cluster();
    return 0;
  }
  __device__ static void sync() {
    if constexpr (kPaired)
      hopper::sync_cluster();
    else
      __syncthreads();
  }
  /// One arrival for each warp, in all blocks.
  __device__ static void arrive(hopper::Barrier& barrier) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    __syncwarp();
    if constexpr (kPaired) {
      if (lane < kBlocks) hopper::arrive_in_cluster(&barrier, lane);
    } else {
      if (lane == 0) hopper::arrive(&barrier);
    }
  }
};

/// Score rows [first, end) of a tile are the block's.
struct BlockRows {
  int first, end;
};
__device__ inline BlockRows rows_of_block(const tile::Item& item, int rank) {
  const int first = item.slice.row_begin + rank * kRows;
  return {first, min(first + kRows, item.slice.row_end)};
}

/// Boxes of a part: four of values, and the weights' box where they are the other warpgroup's.
__device__ inline int boxes_of_part(int slot, int part) { return kHalfBoxes + (slot != part ? 1 : 0); }
__device__ inline int box_of_part(int part, int i) { return i < kHalfBoxes ? part * kHalfBoxes + i : kWeightBox; }

template <bool kPaired>
__device__ inline void init_barriers(Shared& shared) {
  for (int slot = 0; slot < kGroups; ++slot)
    for (int part = 0; part < kGroups; ++part) {
      hopper::init_barrier(&shared.full[slot][part], 1);
      hopper::init_barrier(&shared.free[slot][part], 4 * Team<kPaired>::kBlocks);
    }
  for (int slot = 0; slot < 2; ++slot)
    hopper::init_barrier(&shared.index_full[slot], 1), hopper::init_barrier(&shared.index_free[slot], 1);
}

/// Parity of each slot's barriers.
struct Phases {
  std::uint32_t bits = 0;
  __device__ std::uint32_t of(int slot) const { return bits >> slot & 1u; }
  __device__ void advance(int slot) { bits ^= 1u << slot; }
};

/// Keys of an item: tiles [first, end), of which rows see positions [seen_begin, seen_end) and all rows [full_begin, full_end).
struct KeySpan {
  int first, end;
  int seen_begin, seen_end;
  int full_begin, full_end;
  __device__ bool is_full(int n) const { return n * kKeys >= full_begin && (n + 1) * kKeys <= full_end; }
  __device__ bool is_seen(int n) const { return n * kKeys >= seen_begin && (n + 1) * kKeys <= seen_end; }
};

__device__ inline KeySpan key_span(const gpu::AttendArgs& a, const tile::Item& item) {
  const gpu::WorkSlice& slice = item.slice;
  const tile::RowSpan rows = tile::row_span(a, item.lengths, slice.row_begin, slice.row_end);
  KeySpan span;
  span.first = slice.key_begin / kKeys, span.end = (slice.key_end + kKeys - 1) / kKeys;
  span.seen_begin = max(slice.key_begin, rows.any_begin), span.seen_end = min(slice.key_end, rows.any_end);
  span.full_begin = max(slice.key_begin, rows.full_begin), span.full_end = min(slice.key_end, rows.full_end);
  return span;
}

/// Items of the list, one after the other, as all warps of a block see them. The drawing warp looks up the next one while the
/// others work on the one at hand. The first block of a pair draws, and tells the second.
template <bool kPaired>
struct Items {
  const gpu::AttendArgs& a;
  Shared& shared;
  int slot = 1;

  /// Number of the item for `next`, asked by one thread; `parity`: of the slot's use.
  __device__ int draw(int num_items, int next, std::uint32_t parity) const {
    if constexpr (!kPaired) return gpu::draw_item(a, num_items);
    if (Team<kPaired>::rank() == 0) {
      const int index = draw_of_pair(a, num_items);
      hopper::wait(&shared.index_free[next], parity ^ 1);
      hopper::send(&shared.index[next], index, &shared.index_full[next], 1);
      return index;
    }
    hopper::arrive_and_expect(&shared.index_full[next], sizeof(int));
    hopper::wait(&shared.index_full[next], parity);
    const int index = *static_cast<volatile int*>(&shared.index[next]);
    hopper::arrive_in_cluster(&shared.index_free[next], 0);
    return index;
  }
  /// By the drawing warp alone.
  __device__ void draw_all() {
    const int num_items = gpu::is_refused(a) ? 0 : *a.work.num_slices * a.num_kv_heads;
    std::uint32_t uses = 0;
    do {
      const int next = slot ^ 1;
      if (threadIdx.x % 32 == 0) {
        const int index = draw(num_items, next, uses / 2 % 2);
        shared.more[next] = index < num_items;
        if (index < num_items) shared.items[next] = tile::item_at(a, index);
      }
      ++uses;
      __syncwarp();
    } while (advance());
  }
  /// By all warps together; false if there is no item left.
  __device__ bool advance() {
    slot ^= 1;
    hopper::sync_at(1, kThreads);
    return shared.more[slot];
  }
  __device__ const tile::Item& item() const { return shared.items[slot]; }
};

}  // namespace quire::cuda::sm90::mla
