// SPDX-License-Identifier: Apache-2.0
// A piece of a segment as producer warps announce it to the consumer warpgroups of decode.
#pragma once

#include <algorithm>

#include "backend/cuda/sm90/decode/scheduler.h"
#include "backend/cuda/tile/finish.h"
#include "backend/cuda/tile/logits.h"

namespace quire::cuda::sm90::decode {

/// A piece in shared memory: the loop over tiles has no registers to spare for it.
struct Job {
  std::int32_t first, end;            ///< tiles; no tiles: there are no more pieces
  std::int32_t full_begin, full_end;  ///< tiles within these positions are full: cached keys that all rows see
  std::int32_t end_in_tiles;          ///< first position whose key is in no tile
  std::int32_t turn;                  ///< the warpgroup that takes the first tile
  bool by_rows;                       ///< every warpgroup takes all tiles, with kRows score rows of its own
  bool uncached_in_tiles;             ///< rows of this step overwrite rows of tiles; otherwise they are folded one by one
  Parts parts;
  tile::Item item;
  tile::RowSpan span;
  tile::Logits logits;
};

/// `rows`: score rows for which a warpgroup has room. `same_type`: the cache has the type of this step's rows, so these rows can
/// overwrite rows of a tile unless the cache has scales. With parts of fixed size, the position of a tile alone says which
/// warpgroup takes it, and so do the bits of a row.
template <bool kSlices>
__device__ inline void fill_job(Job& job, const gpu::AttendArgs& a, const Pieces<kSlices>& walk, const Piece& piece, int rows,
                                bool same_type) {
  const RowSlice& slice = walk.slice();
  const Parts parts = walk.parts_of(piece);
  job.first = piece.first, job.end = piece.end;
  job.turn = a.work.split_keys > 0 ? piece.first % 2 : 0;
  job.by_rows = slice.row_end - slice.row_begin > rows;
  job.uncached_in_tiles = same_type && a.k_scale.data == nullptr && a.v_scale.data == nullptr;
  job.parts = parts;
  job.item.lengths = walk.lengths();
  job.item.kv_head = walk.kv_head();
  job.item.slice.req = walk.req();
  job.item.slice.row_begin = slice.row_begin;
  job.item.slice.row_end = slice.row_end;
  job.item.slice.num_parts = parts.count;
  job.span = span_of<kSlices>(a, walk.lengths(), slice);
  job.full_begin = job.span.full_begin, job.full_end = min(job.span.full_end, walk.lengths().cached_len);
  job.end_in_tiles = job.uncached_in_tiles ? job.span.any_end : walk.lengths().cached_len;
  const float scale = a.score.scale * a.k_scale.at(walk.kv_head(), 1.0f) * a.q_scale.at(walk.kv_head(), 1.0f);
  job.logits = {scale, a.score.soft_cap, scale * tile::kLog2e, a.score.soft_cap == 0.0f && a.alibi_slopes.data == nullptr};
}

}  // namespace quire::cuda::sm90::decode
