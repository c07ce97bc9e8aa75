// SPDX-License-Identifier: Apache-2.0
// The producer warps of decode: they fill the rings of key and value tiles by tensor copies, a box a lane (issuing a copy takes
// a warp some 100 cycles, and a tile may be 32 of them), and tell the warpgroups what they work on.
#pragma once

#include "backend/cuda/sm90/decode/memory.h"
#include "backend/gpu/pages.h"

namespace quire::cuda::sm90::decode {

template <typename Memory>
struct Producer {
  using Shared = typename Memory::Shared;
  using Ring = typename Memory::Ring;
  using Tiles = typename Memory::Tiles;
  using Tile = typename Tiles::Tile;
  using Walk = Pieces<Memory::kSlices>;

  const HopperArgs& args;
  const CacheMaps& maps;
  Shared& shared;
  const int warp;  ///< index below Memory::kProducerWarps
  const gpu::AttendArgs& a = args.common;

  /// Boxes [begin, end) of a request hold a cached key that some row of the slice sees.
  struct Boxes {
    int begin, end;
  };
  /// Facts of a piece that the copies need.
  struct Source {
    int req = 0, kv_head = 0;
    Piece piece;  ///< an empty piece until one is assigned
    Boxes seen{};
  };

  /// Page of a box that holds a key which some row sees. An entry that is no page gives one outside the tensor, which reads as
  /// zeros.
  __device__ int page_of(int req, int box) const {
    const int column = maps.page_boxes == 1 ? box : quotient(box, maps.page_boxes);
    const gpu::BlockTable& table = a.block_table;
    std::int64_t page = gpu::kNoPage;
    if (column < table.columns)
      page = args.plain_table ? static_cast<const std::int32_t*>(table.data)[req * table.row_stride + column]
                              : table.page(req, column);
    if (page >= 0 && page < a.num_pages) return static_cast<int>(page);
    gpu::note_missing_page(a);
    return static_cast<int>(gpu::kNoPage);
  }

  __device__ Source source_of(const Walk& walk, const Piece& piece) const {
    const int shift = maps.box_shift, tokens = maps.box_tokens;
    const tile::RowSpan span = span_of<Memory::kSlices>(a, walk.lengths(), walk.slice());
    const int end = min(span.any_end, walk.lengths().cached_len);  // Rows that see new keys alone have no box.
    const Boxes seen = {span.any_begin >> shift, span.any_begin < end ? (end + tokens - 1) >> shift : 0};
    return {walk.req(), walk.kv_head(), piece, seen};
  }

  /// Pages of the 32 boxes from `first` on, a lane each.
  __device__ int look_up(const Source& from, int first) const {
    const int box = first + static_cast<int>(threadIdx.x) % 32;
    return box >= from.seen.begin && box < from.seen.end ? page_of(from.req, box) : -1;
  }
  __device__ int first_pages(const Source& from) const { return look_up(from, from.piece.first * tile_boxes()); }
  __device__ int tile_boxes() const { return kTileKeys >> maps.box_shift; }

  /// Number of this lane's box in a tile, if the tile has as many.
  __device__ int copy_of_lane() const {
    const int lane = threadIdx.x % 32;
    return Memory::kCopyBoth ? lane * Memory::kProducerWarps + warp : lane;
  }

  /// Keys or values of tile `tile` of a piece: its boxes into the next stage; `page` is that of this lane's box.
  template <bool kValues>
  __device__ void copy_tile(const Source& from, int tile, int page, const Ring& ring) const {
    const int lane = threadIdx.x % 32, tokens = maps.box_tokens, boxes = tile_boxes(), first = tile * boxes;
    const int copy = copy_of_lane(), box = copy / Tiles::kBoxes, side = copy % Tiles::kBoxes;
    const bool mine = copy < boxes * Tiles::kBoxes && first + box >= from.seen.begin && first + box < from.seen.end;
    const std::uint32_t bytes = __popc(__ballot_sync(~0u, mine)) * tokens * Tiles::kRowBytes;
    const int token = maps.page_boxes == 1 ? 0 : (first + box) * tokens % a.page_size;
    hopper::Barrier& full = kValues ? shared.v_full[ring.stage()] : shared.k_full[ring.stage()];
    hopper::wait(kValues ? &shared.v_free[ring.stage()] : &shared.k_free[ring.stage()], ring.parity() ^ 1);
    if (lane == 0) hopper::arrive_and_expect(&full, bytes);
    __syncwarp();
    Tile& to = kValues ? shared.v[ring.stage()] : shared.k[ring.stage()];
    if (mine)
      Tiles::template copy_box<kValues>(to, box * tokens, side, kValues ? &maps.v : &maps.k, &full, token, from.kv_head, page);
  }

  /// Page ids of the boxes of a piece, a lane each: of 32 boxes, and of the next 32.
  struct PageIds {
    int ids = -1, next = -1;
  };

  /// Tiles [begin, end) of a piece; `after_keys(tile)` is done while the keys are on their way.
  template <typename AfterKeys>
  __device__ void copy_tiles(const Source& from, int begin, int end, PageIds& pages, Ring& ring, AfterKeys&& after_keys) const {
    const int boxes = tile_boxes(), box = copy_of_lane() / Tiles::kBoxes;
#pragma unroll 1
    for (int tile = begin; tile < end; ++tile, ring.advance()) {
      const int ahead = (tile - from.piece.first) * boxes % 32;
      if (ahead == 0) pages.ids = pages.next;
      const int page = __shfl_sync(~0u, pages.ids, (ahead + box) % 32);
      if (Memory::kCopyBoth || warp == 0) copy_tile<false>(from, tile, page, ring);
      after_keys(tile);
      if (Memory::kCopyBoth || warp != 0) copy_tile<true>(from, tile, page, ring);
      if (ahead == 0) pages.next = look_up(from, tile * boxes + 32);
    }
  }

  /// Announces a piece to the consumer warpgroups.
  __device__ void announce(const Walk& walk, const Piece& piece, const typename Memory::JobRing& ring) const {
    hopper::wait(&shared.job_free[ring.stage()], ring.parity() ^ 1);
    if (threadIdx.x % 32 == 0) fill_job(shared.jobs[ring.stage()], a, walk, piece, Memory::kRows, Tiles::kElementBytes == 2);
    Memory::arrive_warp(shared.job_full[ring.stage()]);
  }
  /// Announces that there is no piece left.
  __device__ void announce_end(const typename Memory::JobRing& ring) const {
    hopper::wait(&shared.job_free[ring.stage()], ring.parity() ^ 1);
    if (threadIdx.x % 32 == 0) shared.jobs[ring.stage()].first = shared.jobs[ring.stage()].end = 0;
    Memory::arrive_warp(shared.job_full[ring.stage()]);
  }

  /// Copies all pieces. A piece's first pages are looked up before the end of the piece ahead is copied: no copy waits for them.
  /// A piece's first keys are copied before its announcement, so that warpgroups ask for the query meanwhile. With several
  /// warpgroups its first values are, too, because the loop over tiles has no registers to announce in between.
  __device__ void run(Walk walk) const {
    constexpr bool kBetween = !Memory::kMoveRegisters;  // announced between the copies of keys and of values
    Ring ring;
    typename Memory::JobRing jobs;
    Source from;
    PageIds pages;
#pragma unroll 1
    for (bool more = true; more; jobs.advance()) {
      Piece piece;
      more = walk.next(piece);
      const Source next = more ? source_of(walk, piece) : Source{};
      const int first_ids = more ? first_pages(next) : -1;
      int begin = from.piece.first + 1, end = from.piece.end;
#pragma unroll 1
      for (int step = 0; step < 2; ++step) {  // the rest of a piece, and the first tile of the next
        copy_tiles(from, begin, end, pages, ring, [&](int tile) {
          if (kBetween && warp == 0 && tile == from.piece.first) announce(walk, from.piece, jobs);
        });
        if (step != 0) break;
        from = next, pages.next = first_ids;
        begin = from.piece.first, end = more ? begin + 1 : begin;
      }
      if (!kBetween && warp == 0 && more) announce(walk, from.piece, jobs);
      if (warp == 0 && !more) announce_end(jobs);
    }
  }
};

}  // namespace quire::cuda::sm90::decode
