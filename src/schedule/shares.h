// SPDX-License-Identifier: Apache-2.0
// Equal shares of the work, one a block: Stream-K (Osama et al. 2023, arXiv:2301.03598) over key tiles, without a list. An
// iteration is one key tile of one segment. Those of all segments, one segment after the other, are Stream-K's aggregate
// iteration space, which is cut into shares. A block finds its own share from the lengths.
//
// A segment is one request, one KV head and one slice of the request's score rows (most requests are one slice). Where there are
// many segments, each has an iteration more than it has tiles, which stands for its beginning and end.
//
// A share may hold the end of one segment, whole ones, and the beginning of another. So a block has at most two partial results,
// and a segment over several blocks has all its parts in neighbouring blocks. With split_keys (batch_invariant) a segment is
// cut at multiples of it, counted from key 0, and nowhere else: a block has the parts that begin in its share, and every part of
// a segment of several has a partial result of its own in the workspace.
#pragma once

#include <cstdint>
#include <type_traits>

#include "semantics/qualifiers.h"
#include "semantics/visible_range.h"

namespace quire::schedule {

/// x / y where neither is negative: half the instructions on a device.
template <class Int>
QUIRE_HD Int quotient(Int x, Int y) {
  return static_cast<Int>(static_cast<std::make_unsigned_t<Int>>(x) / static_cast<std::make_unsigned_t<Int>>(y));
}
template <class Int>
QUIRE_HD Int smaller(Int a, Int b) {
  return a < b ? a : b;
}
template <class Int>
QUIRE_HD Int larger(Int a, Int b) {
  return a > b ? a : b;
}

/// Key tiles [first, end) that rows of a slice see, counted from key 0.
template <class Int>
struct TileRange {
  Int first = 0, end = 0;
  QUIRE_HD Int count() const { return end - first; }
};

/// Score rows [row_begin, row_end) of a request.
template <class Int>
struct RowSlice {
  Int row_begin = 0, row_end = 0;
  TileRange<Int> tiles;
};

/// Keys of a tile.
inline constexpr int kShareTileKeys = 64;

/// A batch and its list, as far as shares depend on them. Devices have the same names in what a kernel is given.
template <class Integer>
struct ShareArgs {
  Integer num_reqs = 0, num_kv_heads = 1;
  Integer group = 1;   ///< score rows of a query row
  Integer window = 0;  ///< 0 = none
  struct Work {
    Integer tile_rows = 1;
    Integer min_rows = 0, max_rows = 0;  ///< takes the requests with min_rows < query_len * group <= max_rows
    Integer split_keys = 0;              ///< keys of a part; 0 = only shares cut
    Integer max_parts = 1;               ///< most parts of a segment, with split_keys
  } work;
};

/// Iterations of segments: how many, and which. kSlices: requests may have several slices, and parts may have a fixed size.
/// Without kSlices this costs no instructions, for which a short call would wait before its first keys.
template <class Args, bool kSlices>
struct Iterations {
  using Int = decltype(Args::group);

  const Args& a;
  Int part_tiles = 0;  ///< tiles from cut to cut; 0: only shares cut
  Int overhead = 0;    ///< iterations of a piece in addition to one for each of its tiles: 0 or 1

  /// Starting and ending a piece takes about as long as a tile. Where a block has whole segments, the additional iteration gives
  /// blocks with many short segments fewer tiles. Where a segment is spread over blocks, it would only move the cuts away from
  /// where segments begin, so pieces have none.
  QUIRE_HD Iterations(const Args& args, Int blocks)
      : a(args),
        part_tiles(kSlices ? a.work.split_keys / kShareTileKeys : 0),
        overhead(part_tiles > 0 || segments() >= 2 * blocks ? 1 : 0) {}

  /// Segments where each request has one slice.
  QUIRE_HD std::int64_t segments() const { return std::int64_t{a.num_reqs} * a.num_kv_heads; }
  QUIRE_HD bool fixed_parts() const { return kSlices && part_tiles > 0; }
  QUIRE_HD Int slices(Int query_len) const {
    const Int rows = query_len * a.group;
    if (rows <= a.work.min_rows || rows > a.work.max_rows) return 0;
    return !kSlices || rows <= a.work.tile_rows ? 1 : (rows - 1) / a.work.tile_rows + 1;
  }
  QUIRE_HD RowSlice<Int> slice(Int query_len, Int context_len, Int index) const {
    RowSlice<Int> slice{0, query_len * a.group, {}};
    Int first = 0, last = query_len - 1;
    if (kSlices && slice.row_end > a.work.tile_rows) {
      slice.row_begin = index * a.work.tile_rows;
      slice.row_end = smaller(slice.row_begin + a.work.tile_rows, slice.row_end);
      first = slice.row_begin / a.group, last = (slice.row_end - 1) / a.group;
    }
    const auto keys = semantics::visible_range<Int>(context_len + first, context_len + last, a.window);
    slice.tiles = {keys.begin / kShareTileKeys, (keys.end - 1) / kShareTileKeys + 1};
    return slice;
  }

  QUIRE_HD Int parts(const TileRange<Int>& tiles) const {
    return fixed_parts() ? (tiles.end - 1) / part_tiles - tiles.first / part_tiles + 1 : 1;
  }
  QUIRE_HD Int of(const TileRange<Int>& tiles) const { return tiles.count() + overhead * parts(tiles); }
  /// Cost of all slices of a request, under one KV head.
  QUIRE_HD Int of_head(Int query_len, Int context_len) const {
    if (!kSlices) return slices(query_len) == 0 ? 0 : of(slice(query_len, context_len, 0).tiles);
    Int sum = 0;
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
    for (Int i = 0, count = slices(query_len); i < count; ++i) sum += of(slice(query_len, context_len, i).tiles);
    return sum;
  }
  /// Part `part` of a cut segment begins so many iterations after the segment.
  QUIRE_HD Int before(const TileRange<Int>& tiles, Int part) const {
    return part == 0 ? 0 : part * (part_tiles + overhead) - tiles.first % part_tiles;
  }
  /// The first part that begins `iterations` or more after the segment; parts() if none does.
  QUIRE_HD Int first_part(const TileRange<Int>& tiles, Int iterations) const {
    const Int length = part_tiles + overhead;
    return iterations == 0 ? 0 : smaller((iterations + tiles.first % part_tiles + length - 1) / length, parts(tiles));
  }
  /// Whether a request whose last key is seq_len - 1 has no more parts than there is room for, nor has any of its slices.
  QUIRE_HD bool has_room(Int query_len, Int context_len) const {
    if (!fixed_parts()) return true;
    for (Int i = 0, count = slices(query_len); i < count; ++i)
      if (parts(slice(query_len, context_len, i).tiles) > larger<Int>(1, a.work.max_parts)) return false;
    return true;
  }
};

/// How shares are rounded up.
template <class Int>
struct Rounding {
  Int least = 1;  ///< iterations of a share, at least
  Int whole = 0;  ///< a share may grow by 1 / whole of its length to be whole segments; 0: shares do not grow
  Int part = 0;   ///< a share may grow by 1 / part of its length to be a whole part of a segment, part >= whole; 0: by 1 / whole
};

/// Iterations of a share, out of `all`. Where all segments have one length (taken for true if `all` is a multiple of their
/// number; if not, no harm is done), it is rounded up to a whole number of segments, or so that a segment is a whole number of
/// shares, unless the share grows much. Fewer segments are split and merged then, and memory is as busy with a few blocks less.
template <class Int>
QUIRE_HD Int share_of(Int all, std::int64_t segments, Int blocks, const Rounding<Int>& rounding) {
  const Int share = larger(quotient<Int>(larger<Int>(all - 1, 0), blocks) + 1, rounding.least);
  if (rounding.whole == 0 || share < rounding.whole || segments > all) return share;
  const Int length = quotient(all, static_cast<Int>(segments));
  if (length * segments != all) return share;
  const Int parts = share < length ? quotient(length, share) : 1;  // parts of a segment
  const Int whole = share < length ? quotient<Int>(length - 1, parts) + 1 : (quotient<Int>(share - 1, length) + 1) * length;
  return whole - share <= share / (parts > 1 && rounding.part > 0 ? rounding.part : rounding.whole) ? whole : share;
}

/// The last of `count` ascending numbers that is at or below `iteration`; the first of them is.
template <class Int>
QUIRE_HD int last_at_or_below(const Int* begin, int count, Int iteration) {
  int low = 0, high = count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (begin[middle] <= iteration)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

/// A block's piece of one segment: tiles [first, end).
template <class Int>
struct Piece {
  Int first = 0, end = 0;
};

/// Partial results that a block may have where shares alone cut; the second is for what continues in the block behind it.
inline constexpr int kPartialsOfBlock = 2;

/// Split of a segment over blocks (split-KV).
template <class Int>
struct Parts {
  Int part = 0;  ///< index of the current piece's part
  Int count = 1;
  Int counter = 0;                 ///< index of the counter of complete parts
  Int first_partial = 0;           ///< index of part 0's partial result
  Int next_partial = 0, step = 0;  ///< part p > 0 has next_partial + p step
  QUIRE_HD Int partial(Int p) const { return p == 0 ? first_partial : next_partial + p * step; }
};

/// A request and its first iteration.
template <class Int>
struct WorkEntry {
  Int req = 0, begin = 0;
};

/// The pieces of one block's share, in order. req(), kv_head(), slice() and lengths() are of the piece that next() gave last.
/// Requests: lengths(req) has first_token, query_len and context_len.
template <class Args, bool kSlices, class Requests>
class Pieces {
 public:
  using Int = decltype(Args::group);
  using Lengths = typename Requests::Lengths;

  /// The pieces of share `block`, out of `all` iterations. find(iteration): a request that begins at or before this one.
  template <class Find>
  QUIRE_HD Pieces(const Iterations<Args, kSlices>& iterations, const Requests& requests, Int all, Int share, Int block,
                  Find&& find)
      : iterations_(iterations), requests_(requests), share_(share) {
    begin_share(block, all);
    if (at_ >= end_) return;
    for (WorkEntry<Int> entry = find(at_);; ++entry.req, entry.begin += of_request()) {
      enter_request(entry);
      if (entry.begin + of_request() > at_) break;
    }
    head_ = quotient(at_ - begin_, of_head_);
    enter_slice(0, begin_ + head_ * of_head_);
  }

  /// Goes on with a later share, where the one before was not empty and next() has found its last piece.
  QUIRE_HD void begin_share(Int block, Int all) {
    block_ = block;
    at_ = static_cast<Int>(smaller(std::int64_t{block} * share_, std::int64_t{all}));
    end_ = at_ + smaller(share_, all - at_);
  }

  QUIRE_HD bool next(Piece<Int>& piece) {
    while (at_ < end_) {
      while (slice_begin_ + iterations_.of(slice_.tiles) <= at_) advance();
      const bool found = iterations_.fixed_parts() ? next_part(piece) : next_tiles(piece);
      if (found) return true;
    }
    return false;
  }

  QUIRE_HD Int req() const { return req_; }
  QUIRE_HD Int kv_head() const { return head_; }
  QUIRE_HD const RowSlice<Int>& slice() const { return slice_; }
  QUIRE_HD const Lengths& lengths() const { return lengths_; }
  QUIRE_HD Parts<Int> parts_of(const Piece<Int>& piece) const {
    return iterations_.fixed_parts() ? fixed_parts(piece) : shared_parts();
  }

 private:
  QUIRE_HD Int of_request() const { return of_head_ * iterations_.a.num_kv_heads; }
  QUIRE_HD void enter_request(const WorkEntry<Int>& entry) {
    req_ = entry.req, begin_ = entry.begin;
    lengths_ = requests_.lengths(req_);
    of_head_ = iterations_.of_head(lengths_.query_len, lengths_.context_len);
  }
  QUIRE_HD void enter_slice(Int index, Int begin) {
    index_ = index, slice_begin_ = begin;
    slice_ = iterations_.slice(lengths_.query_len, lengths_.context_len, index);
  }
  /// To the next segment. There is one: the share does not end yet.
  QUIRE_HD void advance() {
    const Int end = slice_begin_ + iterations_.of(slice_.tiles);
    if (kSlices && slice_.row_end < lengths_.query_len * iterations_.a.group) return enter_slice(index_ + 1, end);
    if (++head_ == iterations_.a.num_kv_heads) {
      head_ = 0;
      do enter_request({req_ + 1, end});
      while (of_head_ == 0);
    }
    enter_slice(0, end);
  }

  /// The share's part of a segment; false if it is the additional iteration of the segment alone.
  QUIRE_HD bool next_tiles(Piece<Int>& piece) {
    const Int origin = slice_begin_ + iterations_.overhead, stop = smaller(slice_begin_ + iterations_.of(slice_.tiles), end_);
    piece.first = slice_.tiles.first + larger<Int>(at_ - origin, 0);
    piece.end = slice_.tiles.first + stop - origin;
    at_ = stop;
    return piece.first < piece.end;
  }
  /// The next part that begins in the share.
  QUIRE_HD bool next_part(Piece<Int>& piece) {
    const TileRange<Int>& tiles = slice_.tiles;
    const Int part = iterations_.first_part(tiles, at_ - slice_begin_), parts = iterations_.parts(tiles);
    const Int from = part < parts ? slice_begin_ + iterations_.before(tiles, part) : slice_begin_ + iterations_.of(tiles);
    at_ = from;
    if (part == parts || from >= end_) return false;
    const Int cut = (tiles.first / iterations_.part_tiles + part) * iterations_.part_tiles;
    piece.first = larger(tiles.first, cut);
    piece.end = smaller(tiles.end, cut + iterations_.part_tiles);
    at_ = from + piece.end - piece.first + iterations_.overhead;
    return true;
  }

  /// Two partial results a block, the first for what continues a segment from the block before.
  QUIRE_HD Parts<Int> shared_parts() const {
    const TileRange<Int>& tiles = slice_.tiles;
    const Int first = slice_begin_ + iterations_.overhead, block = quotient(first, share_);  // first iteration of tile 0
    Parts<Int> parts;
    parts.count = quotient(first + tiles.count() - 1, share_) - block + 1;
    parts.part = block_ - block;
    parts.counter = block;
    parts.first_partial = kPartialsOfBlock * block + 1;
    parts.next_partial = kPartialsOfBlock * block, parts.step = kPartialsOfBlock;
    return parts;
  }
  /// A counter a segment, and as many partial results as it may have parts: segments of a request are counted from a number that
  /// no other request reaches, ceil(x + y) <= floor(x) + floor(y) + 1.
  QUIRE_HD Parts<Int> fixed_parts(const Piece<Int>& piece) const {
    const Args& a = iterations_.a;
    const Int first_slice = lengths_.first_token * a.group / a.work.tile_rows + req_;
    Parts<Int> parts;
    parts.count = iterations_.parts(slice_.tiles);
    parts.part = piece.first / iterations_.part_tiles - slice_.tiles.first / iterations_.part_tiles;
    parts.counter = (first_slice + index_) * a.num_kv_heads + head_;
    parts.first_partial = parts.next_partial = parts.counter * a.work.max_parts, parts.step = 1;
    return parts;
  }

  const Iterations<Args, kSlices> iterations_;
  const Requests requests_;
  const Int share_;
  Int block_, at_, end_;
  Int req_ = 0, begin_ = 0, of_head_ = 0, head_ = 0;  ///< the request, its first iteration, those of a KV head
  Int index_ = 0, slice_begin_ = 0;                   ///< the slice, and the segment's first iteration
  RowSlice<Int> slice_;
  Lengths lengths_;
};

}  // namespace quire::schedule
