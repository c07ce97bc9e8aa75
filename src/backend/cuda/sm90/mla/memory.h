// SPDX-License-Identifier: Apache-2.0
// Shared memory, registers and threads of an MLA block, and the items that it takes.
//
// A tile of keys lies in pieces of 8 keys x 64 dims, 1 KiB each, rows of 128 bytes swizzled by 128 bytes: nine pieces have the
// dims of 8 keys. Values are the first eight of the nine. The ninth (RoPE) is no value: once the scores are there, it holds the
// weights.
#pragma once

#include "backend/cuda/hopper/instructions.h"
#include "backend/cuda/sm90/mla/instance.h"
#include "backend/cuda/tile/finish.h"

namespace quire::cuda::sm90::mla {

constexpr int kRows = kMlaRows;  ///< score rows of a tile
constexpr int kKeys = kTileKeys, kKeyDim = kMlaKeyDim, kValueDim = kMlaValueDim;
constexpr int kRowBytes = 128, kBoxDims = 64, kBoxBytes = kRows * kRowBytes;
constexpr int kBoxes = kKeyDim / kBoxDims, kValueBoxes = kValueDim / kBoxDims;
constexpr int kPieceKeys = kMlaPieceKeys, kPieces = kKeys / kPieceKeys, kPieceBytes = kPieceKeys * kRowBytes;
constexpr int kStrideBytes = kBoxes * kPieceBytes;                                 ///< distance of neighbouring groups of 8 keys
constexpr int kWeightBox = kValueBoxes;                                            ///< the box that weights replace
constexpr int kGroups = 2;                                                         ///< warpgroups that multiply
constexpr int kHalfDim = kValueDim / kGroups, kHalfBoxes = kValueBoxes / kGroups;  ///< half of V: a warpgroup's share
constexpr int kConsumerThreads = 128 * kGroups, kThreads = kConsumerThreads + 128;
/// Producer warps: one for what each warpgroup frees, and one that draws items.
constexpr int kDrawingWarp = kGroups;
// A block deals out the 168 registers that each thread has at first.
constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
static_assert(kProducerRegisters + kGroups * kConsumerRegisters <= 3 * 168);
static_assert(kRows == kKeys && kBoxes == kValueBoxes + 1);

struct Query {
  Byte boxes[kBoxes][kBoxBytes];
};
struct Tile {
  Byte pieces[kPieces][kBoxes][kPieceBytes];
};

/// Units of copying, waiting and freeing: the values of either warpgroup, and the rest.
enum Part { kFirstHalf, kSecondHalf, kRest, kParts };

/// Slot g holds the tiles for which warpgroup g computes scores: every second tile of an item. A warpgroup frees its half of the
/// values in both slots, and the other one's weights.
struct Shared {
  alignas(1024) Query query;
  Tile keys[kGroups];
  float max[kGroups][kRows];  ///< base 2, after a tile of that warpgroup
  float sum[kGroups][kRows];
  hopper::Barrier full[kGroups][kParts], free[kGroups][kParts];  ///< index: warpgroup, then part of its tile
  tile::Item items[2];
  bool more[2];
  std::uint32_t not_finite[kGroups][4];  ///< bit r of a warp's word is row r of the warp's 16
  float zero;
};
static_assert(sizeof(Shared) <= 227 * 1024);

/// `copiers`: threads that arrive where a part was copied.
__device__ inline void init_barriers(Shared& shared, int copiers) {
  for (int slot = 0; slot < kGroups; ++slot)
    for (int part = 0; part < kParts; ++part) {
      hopper::init_barrier(&shared.full[slot][part], copiers);
      hopper::init_barrier(&shared.free[slot][part], 4);  // a warp each
    }
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
/// others work on the one at hand.
struct Items {
  const gpu::AttendArgs& a;
  Shared& shared;
  int slot = 1;

  /// By the drawing warp alone.
  __device__ void draw_all() {
    const int num_items = gpu::is_refused(a) ? 0 : *a.work.num_slices * a.num_kv_heads;
    do {
      const int next = slot ^ 1;
      if (threadIdx.x % 32 == 0) {
        const int index = gpu::draw_item(a, num_items);
        shared.more[next] = index < num_items;
        if (index < num_items) shared.items[next] = tile::item_at(a, index);
      }
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
