// SPDX-License-Identifier: Apache-2.0
// The scheduler of decode: Stream-K (Osama et al. 2023, arXiv:2301.03598) over key tiles, without a list. All key tiles of all
// requests and KV heads in one row, cut into equal shares, one a block. Every block finds its own share from the lengths, so
// nothing has to run before it.
//
// A segment is one request, one KV head and one slice of the request's score rows (most requests are one slice). Its tiles are
// neighbours in the row. Where there are many segments, one takes a place more than it has tiles, which stands for its beginning
// and end.
//
// A share may hold the end of one segment, whole ones, and the beginning of another. So a block has at most two partial results,
// and a segment over several blocks has all its parts in neighbouring blocks. With work.split_keys (batch_invariant) a segment is
// cut at multiples of it, counted from key 0, and nowhere else: a block has the parts that begin in its share, and every part of
// a segment of several has a place of its own in the workspace.
#pragma once

#include "backend/gpu/runtime.h"

#include <cstdint>

#include "backend/cuda/sm90/instance.h"
#include "backend/cuda/tile/rows.h"
#include "backend/gpu/args.h"
#include "backend/gpu/checked_lengths.h"
#include "semantics/visible_range.h"

namespace quire::cuda::sm90::decode {

/// Key tiles [first, end) that rows of a slice see, in units of kTileKeys from key 0.
struct TileRange {
  std::int32_t first = 0, end = 0;
  __device__ std::int32_t count() const { return end - first; }
};

/// Score rows [row_begin, row_end) of a request.
struct RowSlice {
  std::int32_t row_begin = 0, row_end = 0;
  TileRange tiles;
};

/// Places of segments in the row. kSlices: requests may have several slices, and parts may have a fixed size. Without kSlices
/// this costs no instructions, for which a short call would wait before its first keys.
template <bool kSlices>
struct Places {
  const gpu::AttendArgs& a;
  std::int32_t part_tiles = 0;  ///< tiles from cut to cut; 0: only shares cut
  std::int32_t of_piece = 0;    ///< places in the row that a piece takes in addition to one for each of its tiles: 0 or 1

  /// Starting and ending a piece takes about as long as a tile. Where a block has whole segments, the additional place gives
  /// blocks with many short segments fewer tiles. Where a segment is spread over blocks, the additional place would only move
  /// the cuts away from where segments begin, so pieces take none.
  __device__ Places(const gpu::AttendArgs& args, int blocks)
      : a(args),
        part_tiles(kSlices ? a.work.split_keys / kTileKeys : 0),
        of_piece(part_tiles > 0 || std::int64_t{a.num_reqs} * a.num_kv_heads >= 2 * blocks ? 1 : 0) {}

  __device__ bool fixed_parts() const { return kSlices && part_tiles > 0; }
  __device__ std::int32_t slices(std::int32_t query_len) const {
    const std::int32_t rows = query_len * a.group;
    if (rows <= a.work.min_rows || rows > a.work.max_rows) return 0;
    return !kSlices || rows <= a.work.tile_rows ? 1 : (rows - 1) / a.work.tile_rows + 1;
  }
  __device__ RowSlice slice(std::int32_t query_len, std::int32_t context_len, std::int32_t index) const {
    RowSlice slice{0, query_len * a.group};
    std::int32_t first = 0, last = query_len - 1;
    if (kSlices && slice.row_end > a.work.tile_rows) {
      slice.row_begin = index * a.work.tile_rows;
      slice.row_end = min(slice.row_begin + a.work.tile_rows, slice.row_end);
      first = slice.row_begin / a.group, last = (slice.row_end - 1) / a.group;
    }
    const std::int32_t end = context_len + last + 1;  // semantics::visible_range() in 32 bits
    const std::int32_t begin = a.window > 0 && context_len + first >= a.window ? context_len + first + 1 - a.window : 0;
    slice.tiles = {begin / kTileKeys, (end - 1) / kTileKeys + 1};
    return slice;
  }

  __device__ std::int32_t parts(const TileRange& tiles) const {
    return fixed_parts() ? (tiles.end - 1) / part_tiles - tiles.first / part_tiles + 1 : 1;
  }
  __device__ std::int32_t of(const TileRange& tiles) const { return tiles.count() + of_piece * parts(tiles); }
  /// Places of all slices of a request, under one KV head.
  __device__ std::int32_t of_head(std::int32_t query_len, std::int32_t context_len) const {
    if (!kSlices) return slices(query_len) == 0 ? 0 : of(slice(query_len, context_len, 0).tiles);
    std::int32_t sum = 0;
#pragma unroll 1
    for (std::int32_t i = 0, count = slices(query_len); i < count; ++i) sum += of(slice(query_len, context_len, i).tiles);
    return sum;
  }
  /// Part `part` of a cut segment begins so many places after the segment.
  __device__ std::int32_t before(const TileRange& tiles, std::int32_t part) const {
    return part == 0 ? 0 : part * (part_tiles + of_piece) - tiles.first % part_tiles;
  }
  /// The first part that begins `places` or more after the segment; parts() if none does.
  __device__ std::int32_t first_part(const TileRange& tiles, std::int32_t places) const {
    const std::int32_t length = part_tiles + of_piece;
    return places == 0 ? 0 : min((places + tiles.first % part_tiles + length - 1) / length, parts(tiles));
  }
  /// Whether a request whose last key is seq_len - 1 has no more parts than there is room for, nor has any of its slices.
  __device__ bool has_room(std::int32_t query_len, std::int32_t context_len) const {
    if (!fixed_parts()) return true;
    for (std::int32_t i = 0, count = slices(query_len); i < count; ++i)
      if (parts(slice(query_len, context_len, i).tiles) > max(1, a.work.max_parts)) return false;
    return true;
  }
};

/// Keys that rows of a slice see. Where the slice has all rows of a request, their positions take no divisions.
template <bool kSlices>
__device__ inline tile::RowSpan span_of(const gpu::AttendArgs& a, const gpu::Lengths& n, const RowSlice& slice) {
  if (kSlices) return tile::row_span(a, n, slice.row_begin, slice.row_end);
  const std::int32_t first = n.context_len + 1, last = n.seq_len();  // ends of what the first and the last row see
  const auto begin = [&](std::int32_t end) { return a.window > 0 && end > a.window ? end - a.window : 0; };
  return {slice.row_begin, slice.row_end, begin(last), first, begin(first), last};
}

/// First places of requests in the row, in shared memory. The host has checked that 32 bits are enough.
struct Row {
  alignas(16) std::int32_t begin[kRowEntries + 1];  ///< of every requests_of_entry()-th request; the last is the end of the row
  std::int32_t of_warp[12];
  /// For few requests, each producer warp has a row and all lengths in the same memory.
  __device__ std::int32_t* begin_of_few(int warp) { return begin + warp * kRowEntries / 2; }
  __device__ gpu::Lengths* lengths_of_few(int warp) {
    static_assert(kFewRequests * (1 + sizeof(gpu::Lengths) / 4) <= kRowEntries / 2 && kFewRequests % 4 == 0);
    return reinterpret_cast<gpu::Lengths*>(begin_of_few(warp) + kFewRequests);
  }
};
__device__ inline std::int32_t quotient(std::int32_t x, std::int32_t y) {  // none is negative: half the instructions
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(x) / static_cast<std::uint32_t>(y));
}
__device__ inline std::int32_t requests_of_entry(const gpu::AttendArgs& a) { return (a.num_reqs - 1) / kRowEntries + 1; }

/// gpu::checked_lengths() and gpu::lengths_of() at once.
__device__ inline bool are_sound(const HopperArgs& args, std::int32_t req, gpu::Lengths& lengths) {
  const gpu::AttendArgs& a = args.common;
  if (args.plain_lengths) {
    const auto at = [&](const semantics::IndexView& view, int i) { return static_cast<const std::int32_t*>(view.data)[i]; };
    const std::int32_t first = at(a.query_start_loc, req), last = at(a.query_start_loc, req + 1), seq_len = at(a.seq_lens, req);
    const std::int32_t cached_len = a.cached_lens.data != nullptr ? at(a.cached_lens, req) : seq_len;
    lengths = {first, last - first, seq_len - (last - first), cached_len};
    return first >= 0 && last >= first && last <= a.num_tokens && seq_len >= last - first && cached_len >= lengths.context_len &&
           cached_len <= seq_len && (cached_len == seq_len || a.key.data != nullptr);
  }
  const gpu::CheckedLengths n = gpu::checked_lengths(a, req);
  lengths = {static_cast<std::int32_t>(a.query_start_loc[req]), static_cast<std::int32_t>(n.query_len),
             static_cast<std::int32_t>(n.context_len), static_cast<std::int32_t>(n.cached_len)};
  return n.sound;
}

/// Places of all segments of a request; `unsound` if lengths break a rule, or ask for more parts than there is room for.
template <bool kSlices>
__device__ inline std::int32_t places_of_request(const HopperArgs& args, const Places<kSlices>& places, std::int32_t req,
                                                 gpu::Lengths& lengths, bool& unsound) {
  const gpu::AttendArgs& a = args.common;
  const bool sound = are_sound(args, req, lengths);
  const std::int32_t last = lengths.first_token + lengths.query_len;  // gpu::starts_are_sound()
  if (!sound || (req == 0 && lengths.first_token != 0) || (req == a.num_reqs - 1 && !a.may_end_at(last)) ||
      lengths.cached_len > a.block_table.columns * a.page_size || !places.has_room(lengths.query_len, lengths.context_len)) {
    unsound = true;
    return 0;
  }
  return places.of_head(lengths.query_len, lengths.context_len) * a.num_kv_heads;
}

constexpr std::int32_t kUnsound = -1;  ///< instead of a number of places: lengths break a rule, and nothing may be read

/// First places of the row in shared memory, and its number of places.
struct Counted {
  const std::int32_t* begin;
  std::int32_t all;
  const gpu::Lengths* lengths;  ///< of all requests; null where they are many
};

/// All threads of the block together; or, of up to kFewRequests, the producer warps, which alone have to know, each on its own:
/// no barrier of the block is between the lengths and the first copy then. `warp`: of those.
template <int kThreads, bool kSlices>
__device__ inline Counted count_tiles(const HopperArgs& args, const Places<kSlices>& places, Row& row, bool few, int warp) {
  const gpu::AttendArgs& a = args.common;
  static_assert(kThreads / 32 <= sizeof(row.of_warp) / sizeof(row.of_warp[0]));
  const int of_entry = requests_of_entry(a), entries = of_entry == 1 ? a.num_reqs : (a.num_reqs - 1) / of_entry + 1;
  const int lane = threadIdx.x % 32, t = few ? lane : static_cast<int>(threadIdx.x);
  const int each = few ? (entries + 31) / 32 : (entries + kThreads - 1) / kThreads;
  std::int32_t* const begin = few ? row.begin_of_few(warp) : row.begin;
  gpu::Lengths* const lengths = few ? row.lengths_of_few(warp) : nullptr;
  bool unsound = false;
  std::int32_t mine = 0;
#pragma unroll 1
  for (int entry = t * each; entry < min((t + 1) * each, entries); ++entry) {
    std::int32_t sum = 0;
#pragma unroll 1
    for (int req = entry * of_entry; req < min((entry + 1) * of_entry, a.num_reqs); ++req) {
      gpu::Lengths of_request;
      sum += places_of_request(args, places, req, of_request, unsound);
      if (few) lengths[req] = of_request;
    }
    begin[entry] = sum;
    mine += sum;
  }
  std::int32_t end = mine;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const std::int32_t other = __shfl_up_sync(~0u, end, distance);
    if (lane >= distance) end += other;
  }
  if (!few) {
    if (lane == 31) row.of_warp[t / 32] = end;
    __syncthreads();
#pragma unroll 1
    for (int w = 0; w < t / 32; ++w) end += row.of_warp[w];
  }
  std::int32_t at = end - mine;
#pragma unroll 1
  for (int entry = t * each; entry < min((t + 1) * each, entries); ++entry) {
    const std::int32_t count = begin[entry];
    begin[entry] = at;
    at += count;
  }
  if (few) {
    __syncwarp();
    return {begin, __any_sync(~0u, unsound) ? kUnsound : __shfl_sync(~0u, end, 31), lengths};
  }
  if (t == kThreads - 1) begin[entries] = end;
  return {begin, __syncthreads_or(unsound) != 0 ? kUnsound : begin[entries], nullptr};
}

/// A block's piece of one segment: tiles [first, end).
struct Piece {
  std::int32_t first = 0, end = 0;
};

/// Partial results that a block may have where shares alone cut; the second is for what continues in the block behind it.
constexpr std::int32_t kPlacesOfBlock = 2;

/// Split of a segment over blocks (split-KV).
struct Parts {
  std::int32_t part = 0;  ///< the piece at hand
  std::int32_t count = 1;
  std::int32_t counter = 0;               ///< of parts that are complete
  std::int32_t first_place = 0;           ///< of part 0's partial result
  std::int32_t next_place = 0, step = 0;  ///< part p > 0 is at next_place + p step
  __device__ std::int32_t place(std::int32_t p) const { return p == 0 ? first_place : next_place + p * step; }
};

/// Rounds a share up where all segments have one length (taken for true if `all` is a multiple of their number; if not, no harm
/// is done): to a whole number of segments, or so that a segment is a whole number of shares, unless the share grows much. Fewer
/// segments are split and merged then, and memory is as busy with a few blocks less.
__device__ inline std::int32_t whole_share(std::int32_t share, std::int32_t all, std::int64_t segments) {
  if (segments > all) return share;
  const std::int32_t length = quotient(all, static_cast<std::int32_t>(segments));
  if (length * segments != all) return share;
  const std::int32_t whole =
      share >= length ? (quotient(share - 1, length) + 1) * length : quotient(length - 1, quotient(length, share)) + 1;
  return whole - share <= share / kWholeShare ? whole : share;
}

/// The pieces of one block's share, in order. Every thread that walks sees the same. req(), kv_head(),
/// slice() and lengths() are of the piece that next() gave last: a producer warp has no registers for them twice.
template <bool kSlices>
class Pieces {
 public:
  __device__ Pieces(const gpu::AttendArgs& a, const Places<kSlices>& places, const Counted& row, int block, int blocks)
      : a_(a), places_(places), all_lengths_(row.lengths), block_(block) {
    const int of_entry = requests_of_entry(a), entries = of_entry == 1 ? a.num_reqs : (a.num_reqs - 1) / of_entry + 1;
    const std::int32_t all = max(row.all, 0);
    share_ = max(quotient(max(all - 1, 0), blocks) + 1, kSlices ? kWideShare : 1);
    if (!kSlices && share_ >= kWholeShare) share_ = whole_share(share_, all, std::int64_t{a.num_reqs} * a.num_kv_heads);
    at_ = static_cast<std::int32_t>(min(std::int64_t{block} * share_, std::int64_t{all}));
    end_ = at_ + min(share_, all - at_);
    if (at_ >= end_) return;
    const int entry = row.lengths != nullptr ? request_of(row.begin, a.num_reqs, at_) : entry_of(row.begin, entries, at_);
    for (std::int32_t req = entry * of_entry, from = row.begin[entry];; ++req, from += of_head_ * a.num_kv_heads) {
      enter_request(req, from);
      if (from + of_head_ * a.num_kv_heads > at_) break;
    }
    head_ = quotient(at_ - begin_, of_head_);
    enter_slice(0, begin_ + head_ * of_head_);
  }

  __device__ bool next(Piece& piece) {
    while (at_ < end_) {
      while (slice_begin_ + places_.of(slice_.tiles) <= at_) advance();
      const bool found = places_.fixed_parts() ? next_part(piece) : next_tiles(piece);
      if (found) return true;
    }
    return false;
  }

  __device__ std::int32_t req() const { return req_; }
  __device__ std::int32_t kv_head() const { return head_; }
  __device__ const RowSlice& slice() const { return slice_; }
  __device__ const gpu::Lengths& lengths() const { return lengths_; }
  __device__ Parts parts_of(const Piece& piece) const { return places_.fixed_parts() ? fixed_parts(piece) : shared_parts(); }

 private:
  /// The last request that begins at or before `place`, of kFewRequests: it has tiles.
  __device__ static int request_of(const std::int32_t* begin, int num_reqs, std::int32_t place) {
    int before = 0;
#pragma unroll
    for (int first = 0; first < kFewRequests; first += 32) {
      const int req = first + static_cast<int>(threadIdx.x) % 32;
      before += __popc(__ballot_sync(~0u, req < num_reqs && begin[req] <= place));
    }
    return before - 1;
  }
  /// The last entry that begins at or before `place`: it has tiles.
  __device__ static int entry_of(const std::int32_t* begin, int entries, std::int32_t place) {
    int low = 0, high = entries - 1;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (begin[middle] <= place)
        low = middle;
      else
        high = middle - 1;
    }
    return low;
  }

  __device__ void enter_request(std::int32_t req, std::int32_t begin) {
    req_ = req, begin_ = begin;
    lengths_ = all_lengths_ != nullptr ? all_lengths_[req] : gpu::lengths_of(a_, req);
    of_head_ = places_.of_head(lengths_.query_len, lengths_.context_len);
  }
  __device__ void enter_slice(std::int32_t index, std::int32_t begin) {
    index_ = index, slice_begin_ = begin;
    slice_ = places_.slice(lengths_.query_len, lengths_.context_len, index);
  }
  /// To the next segment. There is one: the share does not end yet.
  __device__ void advance() {
    const std::int32_t end = slice_begin_ + places_.of(slice_.tiles);
    if (kSlices && slice_.row_end < lengths_.query_len * a_.group) return enter_slice(index_ + 1, end);
    if (++head_ == a_.num_kv_heads) {
      head_ = 0;
      do enter_request(req_ + 1, end);
      while (of_head_ == 0);
    }
    enter_slice(0, end);
  }

  /// The share's part of a segment; false if it is the place of the segment's beginning alone.
  __device__ bool next_tiles(Piece& piece) {
    const std::int32_t origin = slice_begin_ + places_.of_piece, stop = min(slice_begin_ + places_.of(slice_.tiles), end_);
    piece.first = slice_.tiles.first + max(at_ - origin, 0);
    piece.end = slice_.tiles.first + stop - origin;
    at_ = stop;
    return piece.first < piece.end;
  }
  /// The next part that begins in the share.
  __device__ bool next_part(Piece& piece) {
    const TileRange& tiles = slice_.tiles;
    const std::int32_t part = places_.first_part(tiles, at_ - slice_begin_), parts = places_.parts(tiles);
    const std::int32_t from = part < parts ? slice_begin_ + places_.before(tiles, part) : slice_begin_ + places_.of(tiles);
    at_ = from;
    if (part == parts || from >= end_) return false;
    const std::int32_t cut = (tiles.first / places_.part_tiles + part) * places_.part_tiles;
    piece.first = max(tiles.first, cut);
    piece.end = min(tiles.end, cut + places_.part_tiles);
    at_ = from + piece.end - piece.first + places_.of_piece;
    return true;
  }

  /// Two places a block, the first for what continues a segment from the block before.
  __device__ Parts shared_parts() const {
    const TileRange& tiles = slice_.tiles;
    const std::int32_t first = slice_begin_ + places_.of_piece, block = quotient(first, share_);  // of tile 0
    Parts parts;
    parts.count = quotient(first + tiles.count() - 1, share_) - block + 1;
    parts.part = block_ - block;
    parts.counter = block;
    parts.first_place = kPlacesOfBlock * block + 1;
    parts.next_place = kPlacesOfBlock * block, parts.step = kPlacesOfBlock;
    return parts;
  }
  /// A counter a segment and as many places as it may have parts: segments of a request are counted from a number that no other
  /// request reaches, ceil(x + y) <= floor(x) + floor(y) + 1.
  __device__ Parts fixed_parts(const Piece& piece) const {
    const std::int32_t first_slice = lengths_.first_token * a_.group / a_.work.tile_rows + req_;
    Parts parts;
    parts.count = places_.parts(slice_.tiles);
    parts.part = piece.first / places_.part_tiles - slice_.tiles.first / places_.part_tiles;
    parts.counter = (first_slice + index_) * a_.num_kv_heads + head_;
    parts.first_place = parts.next_place = parts.counter * a_.work.max_parts, parts.step = 1;
    return parts;
  }

  const gpu::AttendArgs& a_;
  const Places<kSlices> places_;
  const gpu::Lengths* const all_lengths_;
  const std::int32_t block_;
  std::int32_t share_, at_, end_;
  std::int32_t req_ = 0, begin_ = 0, of_head_ = 0, head_ = 0;  ///< the request, its first place, places of a KV head
  std::int32_t index_ = 0, slice_begin_ = 0;                   ///< the slice, and the segment's first place
  RowSlice slice_;
  gpu::Lengths lengths_;
};

}  // namespace quire::cuda::sm90::decode
