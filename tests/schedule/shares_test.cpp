// SPDX-License-Identifier: Apache-2.0
// The shares of src/schedule (Stream-K), walked as the blocks of a device walk them, in 32 bits: every key tile of every row in
// one piece of one block, partial results of a segment's parts apart, and none beyond the capacities of a plan.
#include "schedule/shares.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "schedule/capacities.h"

namespace quire::schedule {
namespace {

struct Request {
  std::int64_t query_len = 0, context_len = 0;
};

/// Lengths of a batch as a kernel reads them.
template <class Int>
struct Requests {
  struct Lengths {
    Int first_token = 0, query_len = 0, context_len = 0;
  };
  const std::vector<Request>& batch;
  Lengths lengths(Int req) const {
    Lengths n;
    for (Int r = 0; r < req; ++r) n.first_token += static_cast<Int>(batch[static_cast<std::size_t>(r)].query_len);
    const Request& r = batch[static_cast<std::size_t>(req)];
    n.query_len = static_cast<Int>(r.query_len), n.context_len = static_cast<Int>(r.context_len);
    return n;
  }
};

struct Case {
  std::vector<Request> batch;
  std::int64_t heads = 1, group = 1, window = 0, tile_rows = 8, max_rows = 8, split_keys = 0;
  std::int64_t blocks = 1;
  Rounding<std::int64_t> rounding;
  int of_entry = 1;  ///< the first iteration is known of every so many requests

  std::int64_t num_tokens() const {
    std::int64_t sum = 0;
    for (const Request& r : batch) sum += r.query_len;
    return sum;
  }
  std::int64_t max_seq_len() const {
    std::int64_t most = 0;
    for (const Request& r : batch) most = std::max(most, r.query_len + r.context_len);
    return most;
  }
  std::int64_t num_reqs() const { return static_cast<std::int64_t>(batch.size()); }
  std::int64_t most_parts_of_tile() const {
    return window > 0 ? most_parts(max_seq_len(), split_keys, window, 0, tile_rows) : most_parts(max_seq_len(), split_keys);
  }
  /// Room of the plan for this very batch.
  Capacities room() const {
    const std::int64_t tiles = most_tiles(num_tokens() * group, tile_rows, num_reqs());
    return split_keys > 0 ? capacities_of_split(tiles, most_parts_of_tile(), heads) : capacities_of_target(tiles, blocks, heads);
  }
  template <class Int>
  ShareArgs<Int> args() const {
    return {Int(num_reqs()),
            Int(heads),
            Int(group),
            Int(window),
            {Int(tile_rows), 0, Int(max_rows), Int(split_keys), Int(split_keys > 0 ? most_parts_of_tile() : 1)}};
  }
  std::string text() const {
    std::string s = "heads " + std::to_string(heads) + " group " + std::to_string(group) + " window " + std::to_string(window) +
                    " split " + std::to_string(split_keys) + " tile_rows " + std::to_string(tile_rows) + " blocks " +
                    std::to_string(blocks) + " least " + std::to_string(rounding.least) + " whole " +
                    std::to_string(rounding.whole) + " reqs";
    for (const Request& r : batch) s += " " + std::to_string(r.query_len) + "@" + std::to_string(r.context_len);
    return s;
  }
};

/// A piece with all that a block knows of it.
struct Found {
  std::int64_t block, req, kv_head, row_begin, row_end, first, end, part, count, counter, partial;
  bool operator==(const Found&) const = default;
};

/// The pieces of all blocks. kFresh: each block finds the beginning of its share by itself.
template <class Int, bool kSlices, bool kFresh>
std::vector<Found> walk(const Case& c) {
  const ShareArgs<Int> args = c.args<Int>();
  const Iterations<ShareArgs<Int>, kSlices> iterations(args, Int(c.blocks));
  const Requests<Int> requests{c.batch};
  std::vector<Int> begin;
  Int all = 0;
  for (Int r = 0; r < args.num_reqs; ++r) {
    if (r % c.of_entry == 0) begin.push_back(all);
    const auto n = requests.lengths(r);
    all += iterations.of_head(n.query_len, n.context_len) * args.num_kv_heads;
  }
  const Int share = share_of<Int>(all, iterations.segments(), Int(c.blocks),
                                  {Int(c.rounding.least), Int(c.rounding.whole), Int(c.rounding.part)});
  const auto find = [&](Int iteration) -> WorkEntry<Int> {
    const int entry = last_at_or_below(begin.data(), static_cast<int>(begin.size()), iteration);
    return {Int(entry * c.of_entry), begin[static_cast<std::size_t>(entry)]};
  };
  std::vector<Found> found;
  const auto collect = [&](auto& pieces, Int block) {
    for (Piece<Int> piece; pieces.next(piece);) {
      const auto& slice = pieces.slice();
      const Parts<Int> parts = pieces.parts_of(piece);
      found.push_back({block, pieces.req(), pieces.kv_head(), slice.row_begin, slice.row_end, piece.first, piece.end, parts.part,
                       parts.count, parts.counter, parts.partial(parts.part)});
    }
  };
  using Walk = Pieces<ShareArgs<Int>, kSlices, Requests<Int>>;
  Walk going(iterations, requests, all, share, 0, find);
  for (Int block = 0; block < c.blocks; ++block) {
    if (kFresh) {
      Walk pieces(iterations, requests, all, share, block, find);
      collect(pieces, block);
    } else {
      going.begin_share(block, all);
      collect(going, block);
    }
  }
  return found;
}

/// Key tiles of each segment by the definition: request, KV head and first score row -> tiles [first, end).
using Segments = std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t>, TileRange<std::int64_t>>;
Segments segments_of(const Case& c) {
  Segments all;
  for (std::int64_t r = 0; r < c.num_reqs(); ++r) {
    const Request& n = c.batch[static_cast<std::size_t>(r)];
    const std::int64_t rows = n.query_len * c.group;
    if (rows > c.max_rows) continue;
    for (std::int64_t head = 0; head < c.heads; ++head)
      for (std::int64_t begin = 0; begin < rows; begin += c.tile_rows) {
        const std::int64_t last_row = std::min(begin + c.tile_rows, rows) - 1;
        const std::int64_t first_pos = n.context_len + begin / c.group, last_pos = n.context_len + last_row / c.group;
        const std::int64_t first_key = c.window > 0 ? std::max<std::int64_t>(0, first_pos - c.window + 1) : 0;
        all[{r, head, begin}] = {first_key / kShareTileKeys, last_pos / kShareTileKeys + 1};
      }
  }
  return all;
}

/// Empty, or what is wrong with the pieces of one segment.
std::string judge_segment(const Case& c, const TileRange<std::int64_t>& tiles, const std::vector<Found>& pieces) {
  std::int64_t at = tiles.first;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Found& p = pieces[i];
    if (p.first != at) return "tiles from " + std::to_string(at) + " on are in no piece, or in two";
    if (p.end <= p.first) return "a piece without tiles";
    if (p.part != static_cast<std::int64_t>(i)) return "parts are not numbered in key order";
    if (p.count != static_cast<std::int64_t>(pieces.size())) return "a wrong number of parts";
    if (p.counter != pieces[0].counter) return "two counters";
    if (c.split_keys > 0 && i > 0 && p.first * kShareTileKeys % c.split_keys != 0) return "a part begins at no cut";
    if (c.split_keys > 0 && (p.end - 1) * kShareTileKeys / c.split_keys != p.first * kShareTileKeys / c.split_keys)
      return "a part with a cut in it";
    at = p.end;
  }
  return at == tiles.end ? "" : "tiles from " + std::to_string(at) + " on are in no piece";
}

/// Empty, or what is wrong with the pieces of a batch.
std::string judge(const Case& c, const std::vector<Found>& found) {
  const Segments expected = segments_of(c);
  std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t>, std::vector<Found>> by_segment;
  for (const Found& p : found) by_segment[{p.req, p.kv_head, p.row_begin}].push_back(p);
  if (by_segment.size() != expected.size()) return "a segment too many or too few";
  const Capacities room = c.room();
  std::set<std::int64_t> counters, partials;
  std::map<std::int64_t, int> partials_of_block;
  for (const auto& [key, tiles] : expected) {
    const std::vector<Found>& pieces = by_segment[key];
    if (std::string why = judge_segment(c, tiles, pieces); !why.empty()) return why;
    if (pieces.size() == 1) continue;
    if (!counters.insert(pieces[0].counter).second) return "two segments with one counter";
    if (pieces[0].counter < 0 || pieces[0].counter >= room.merges * c.heads) return "a counter beyond the capacity";
    for (const Found& p : pieces) {
      if (!partials.insert(p.partial).second) return "two parts in one partial result";
      if (p.partial < 0 || p.partial >= room.partials) return "a partial result beyond the capacity";
      if (c.split_keys == 0 && ++partials_of_block[p.block] > kPartialsOfBlock) return "more than two partial results in a block";
    }
  }
  return "";
}

template <bool kSlices>
void expect_right(const Case& c) {
  const std::vector<Found> found = walk<std::int32_t, kSlices, true>(c);
  ASSERT_EQ(judge(c, found), "") << c.text();
  ASSERT_TRUE((found == walk<std::int32_t, kSlices, false>(c))) << "another walk from share to share: " << c.text();
  ASSERT_TRUE((found == walk<std::int64_t, true, false>(c))) << "others are predicted: " << c.text();
}

/// Calls visit(case) for all batches of up to two requests from a set of lengths, among them empty ones, and some of three.
template <typename Visit>
void for_small_batches(const std::vector<std::int64_t>& query_lens, Case c, Visit&& visit) {
  std::vector<Request> choices;
  for (const std::int64_t query_len : query_lens)
    for (const std::int64_t context_len : {0, 63, 64, 197, 700}) choices.push_back({query_len, context_len});
  for (const std::int64_t heads : {1, 3})
    for (const std::int64_t window : {0, 1, 130})
      for (const std::int64_t blocks : {1, 2, 3, 7, 13, 264}) {
        c.heads = heads, c.window = window, c.blocks = blocks;
        for (const Request& first : choices) {
          c.batch = {first};
          visit(c);
          for (const Request& second : choices) {
            c.batch = {first, second};
            visit(c);
            for (const Request& third : {Request{0, 5}, Request{1, 64}, Request{query_lens.back(), 197}}) {
              c.batch = {first, second, third};
              visit(c);
            }
          }
        }
      }
}

TEST(Shares, NarrowTilesOfSmallBatches) {
  for (const std::int64_t group : {1, 3})
    for (const Rounding<std::int64_t> rounding : {Rounding<std::int64_t>{1, 34}, {1, 2}, {1, 2, 4}})
      for_small_batches({0, 1, 2}, {.group = group, .rounding = rounding}, [](const Case& c) { expect_right<false>(c); });
}

TEST(Shares, SlicesOfSmallBatches) {
  for (const std::int64_t group : {1, 3})
    for (const std::int64_t least : {1, 8})
      for_small_batches({0, 1, 5}, {.group = group, .tile_rows = 4, .max_rows = 1000, .rounding = {least, 0}},
                        [](const Case& c) { expect_right<true>(c); });
}

TEST(Shares, PartsOfFixedSizeOfSmallBatches) {
  for (const std::int64_t split : {1, 2, 3})
    for (const std::int64_t group : {1, 3})
      for_small_batches(
          {0, 1, 5}, {.group = group, .tile_rows = 4, .max_rows = 1000, .split_keys = split * kShareTileKeys, .rounding = {8, 0}},
          [](const Case& c) { expect_right<true>(c); });
}

/// Ragged batches of primes, among them many requests, of which first iterations are known of every second or third alone.
TEST(Shares, RaggedBatches) {
  constexpr std::int64_t kPrimes[] = {1, 2, 3, 61, 67, 127, 131, 509, 1021, 4099, 8191};
  std::mt19937_64 random(24);
  const auto some = [&](std::int64_t n) { return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n)); };
  for (int i = 0; i < 400; ++i) {
    Case c{.heads = 1 + some(8), .group = 1 + some(8), .of_entry = static_cast<int>(1 + some(3))};
    c.batch.resize(static_cast<std::size_t>(1 + some(i % 10 == 0 ? 150 : 12)));
    c.window = some(3) == 0 ? kPrimes[some(11)] : 0;
    c.blocks = some(2) == 0 ? 264 : 1 + some(140);
    const bool slices = i % 4 != 0;
    for (Request& r : c.batch)
      r = {some(5) == 0 ? 0 : slices ? 1 + some(30) : 1, some(4) == 0 ? 1021 : kPrimes[some(11)] - some(2)};
    c.tile_rows = slices ? 32 : 8, c.max_rows = slices ? 200 : 8;
    c.rounding = slices ? Rounding<std::int64_t>{8, 0} : Rounding<std::int64_t>{1, 34};
    if (i % 4 == 3) c.split_keys = kShareTileKeys * (1 + some(32)), c.max_rows = 1 << 20;
    if (slices)
      expect_right<true>(c);
    else
      expect_right<false>(c);
  }
}

// Shares are rounded up, so that the last of them would begin beyond 2^31.
TEST(Shares, ARowAsLongAs32BitsAllow) {
  expect_right<false>({.batch = {{1, 0x7FFFFFFE}}, .heads = 63, .blocks = 258, .rounding = {1, 34}});
}

TEST(Shares, TheLastEntryAtOrBelowAnIteration) {
  const std::int32_t begin[] = {0, 0, 3, 7, 7, 9};
  for (int count = 1; count <= 6; ++count)
    for (std::int32_t at = 0; at <= 10; ++at) {
      int last = 0;
      for (int i = 0; i < count; ++i) last = begin[i] <= at ? i : last;
      ASSERT_EQ(last_at_or_below(begin, count, at), last) << count << " " << at;
    }
}

TEST(Shares, EqualSegmentsAreNotSplitForAFewIterations) {
  const auto share = [](std::int32_t all, std::int64_t segments, std::int32_t blocks) {
    return share_of<std::int32_t>(all, segments, blocks, {.least = 1, .whole = 34});
  };
  EXPECT_EQ(share(264 * 100, 264, 264), 100);
  EXPECT_EQ(share(260 * 100, 260, 264), 100) << "99 iterations become a segment";
  EXPECT_EQ(share(256 * 100, 256, 264), 97) << "three iterations more are too many";
  EXPECT_EQ(share(240 * 100, 240, 264), 91) << "a tenth more is too much";
  EXPECT_EQ(share(8 * 3500, 8, 264), 110) << "107 iterations become 110, of which 32 shares are a segment";
  EXPECT_EQ(share(260 * 100 + 1, 260, 264), 99) << "segments differ";
  EXPECT_EQ(share(260 * 30, 260, 264), 30) << "29.5 is rounded up in any case";
  EXPECT_EQ(share(33 * 40, 40, 41), 33) << "a short share is not rounded";
  EXPECT_EQ(share(5, 264, 264), 1);
  EXPECT_EQ(share_of<std::int32_t>(5, 264, 264, {.least = 8, .whole = 0}), 8);
  EXPECT_EQ(share_of<std::int32_t>(0, 264, 264, {.least = 1, .whole = 34}), 1) << "an empty row";
}

TEST(Shares, PartsOfSegmentsMayHaveARuleOfTheirOwn) {
  const auto share = [](std::int32_t all, std::int64_t segments, std::int32_t part) {
    return share_of<std::int32_t>(all, segments, 528, {.least = 1, .whole = 24, .part = part});
  };
  EXPECT_EQ(share(512 * 512, 512, 34), 512) << "497 iterations become a segment: a 24th would be 20 more";
  EXPECT_EQ(share(2048 * 17, 2048, 34), 68) << "66 iterations become four segments";
  EXPECT_EQ(share(128 * 129, 128, 34), 32) << "33 iterations would be a quarter of a segment: a 34th is less";
  EXPECT_EQ(share(128 * 129, 128, 24), 33);
  EXPECT_EQ(share(128 * 129, 128, 0), 33) << "the rule of whole segments";
}

TEST(Shares, ARequestWithMorePartsThanRoomIsFound) {
  for (std::int32_t context_len = 0; context_len < 700; context_len += 7)
    for (std::int32_t query_len : {0, 1, 5, 9})
      for (std::int32_t max_parts = 1; max_parts <= 6; ++max_parts) {
        const ShareArgs<std::int32_t> args{1, 1, 1, 130, {4, 0, 1000, kShareTileKeys, max_parts}};
        const Iterations<ShareArgs<std::int32_t>, true> iterations(args, 4);
        std::int32_t most = 0;
        for (std::int32_t row = 0; row < query_len; row += 4) {
          const std::int32_t last = std::min(row + 3, query_len - 1) + context_len;
          most = std::max(most, last / kShareTileKeys - std::max(0, context_len + row - 129) / kShareTileKeys + 1);
        }
        ASSERT_EQ(iterations.has_room(query_len, context_len), most <= max_parts) << query_len << "@" << context_len;
      }
}

}  // namespace
}  // namespace quire::schedule
