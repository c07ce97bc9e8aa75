// SPDX-License-Identifier: Apache-2.0
// The hazard matrix: for each hazard of testing.md the smallest batches that meet it, crossed with types and layouts.
#include <iterator>

#include "text/formatted.h"
#include "verify/matrix.h"

namespace quire::verify_detail {
namespace {

std::vector<std::string> sweep(const std::string& before, const std::vector<int>& values, const std::string& after) {
  std::vector<std::string> shapes;
  for (const int value : values) shapes.push_back(formatted("{}{}{}", before, value, after));
  return shapes;
}

/// Odd group sizes over 2 KV heads, 1 for the largest.
std::vector<std::string> group_sweep() {
  std::vector<std::string> shapes;
  for (const int group : {1, 2, 3, 5, 7, 8, 16, 17, 64}) {
    const int kv_heads = group < 64 ? 2 : 1;
    shapes.push_back(formatted("heads={}:{} d=16 page=8 reqs=3@13,1@30 lse=1", group * kv_heads, kv_heads));
  }
  return shapes;
}

struct SpecialLine {
  const char* name;
  Special special;
  const char* line;
};
constexpr SpecialLine kSpecialLines[] = {
    {"NoVisibleKey", Special::minus_infinite_scores, "q=f32 heads=4:2 d=16 page=8 lse=1 reqs=3@20,1@9"},
    {"NoVisibleKey", Special::minus_infinite_scores, "q=bf16 layout=packed heads=4:2 d=16 page=8 lse=1 sinks=1 reqs=3@20,1@9"},
    {"NaNInAVisibleKey", Special::nan_in_a_key, "q=f32 heads=4:2 d=16 page=8 lse=1 reqs=70@20,1@20"},
    // Decode tiles of cuda_sm90 hold two KV heads at head_dim 64, where requests of one row are too many for clusters.
    {"NaNInAVisibleKey", Special::nan_in_a_key, "q=bf16 heads=8:4 d=64 page=16 lse=1 reqs=40x1@90"},
    // Two heads' groups are more rows than a low tile of cuda_sm90 has.
    {"GroupsOf8", Special::none, "q=bf16 heads=64:8 d=64 page=16 lse=1 reqs=1@150/150"},
    {"GroupsOf8", Special::none, "q=f16 heads=20:4 d=64 page=16 reqs=1@33/33,1@7/8,1@700/700"},
    {"HugeOffsets", Special::huge_offsets,
     "q=f32 kv=fp8_e4m3fn kscale=tensor vscale=tensor heads=4:2 d=32 page=16 lse=1 reqs=3@40,1@70"},
    {"HugeOffsets", Special::huge_offsets, "q=bf16 layout=hnd index=i64 heads=4:2 d=32 page=16 lse=1 reqs=3@40,1@70"},
    {"HugeOffsets", Special::huge_offsets,
     "q=f32 kv=fp8_e5m2 layout=packed kscale=tensor vscale=tensor heads=4:2 d=32 page=16 reqs=3@40,1@70"},
    // Kernels work on tiles of up to 64 keys: where the window begins inside a tile, pages of that tile are stale.
    {"StalePagesLeftOfWindow", Special::stale_pages, "q=f32 heads=4:2 d=16 page=4 window=7 lse=1 reqs=1@150,6@333"},
    {"StalePagesLeftOfWindow", Special::stale_pages,
     "q=bf16 layout=packed index=i64 heads=4:2 d=128 page=16 window=20 lse=1 reqs=1@190,9@366,70@200"},
    {"StalePagesLeftOfWindow", Special::stale_pages,
     "q=f16 kv=fp8_e4m3fn layout=hnd kscale=head vscale=tensor heads=8:2 d=64 page=16 window=20 reqs=1@190,9@366"},
    {"StalePagesLeftOfWindow", Special::stale_pages,
     "q=bf16 layout=hnd heads=8:2 d=128 page=16 window=20 lse=1 reqs=1@190,9@366,1@1000"},
    {"StalePagesLeftOfWindow", Special::stale_pages, "q=f16 heads=4:4 d=256 page=32 window=33 reqs=1@190,3@366,20@500"},
};

/// The shape with every key in the cache, which is what an 8-bit query may have.
std::string all_cached(std::string shape) {
  for (std::size_t at = shape.find('/'); at != std::string::npos; at = shape.find('/')) {
    const std::size_t end = shape.find_first_not_of("0123456789", at + 1);
    shape.erase(at, end == std::string::npos ? end : end - at);
  }
  return shape;
}

void add(std::vector<Entry>& list, const std::string& name, const std::string& line, Special special) {
  const Result<ProblemLine> parsed = parse_problem_line(line);
  if (parsed.ok()) list.push_back({"hazards", name, parsed.value(), special});
}

void add_fp8_extremes(std::vector<Entry>& list, bool quick) {
  const std::vector<std::string> rests = {"q=f32 kscale=tensor vscale=tensor", "q=bf16 kscale=head vscale=head",
                                          "q=f16 kscale=head vscale=tensor"};
  const std::vector<std::string> layouts = {"nhd", "hnd", "packed"};
  std::size_t turn = 0;
  for (const std::string kv : {"fp8_e4m3fn", "fp8_e4m3fnuz", "fp8_e5m2", "fp8_e5m2fnuz"})
    for (std::size_t i = 0; i < (quick ? 1 : rests.size() * layouts.size()); ++i, ++turn)
      add(list, "Fp8Extremes",
          formatted("{} kv={} layout={} heads=4:2 d=32 page=8 lse=1 reqs=5@100,1@300", rests[quick ? 0 : i % 3], kv,
                    layouts[quick ? turn % 3 : i / 3]),
          Special::every_fp8_code);
}

}  // namespace

std::string text_of(Special special) {
  switch (special) {
    case Special::every_fp8_code: return "every finite code of 8 bits occurs";
    case Special::minus_infinite_scores: return "every key of request 0 has the score -inf";
    case Special::nan_in_a_key: return "one visible key of request 0 holds NaN";
    case Special::huge_offsets: return "its pages lie beyond 2^32 elements";
    case Special::stale_pages: return "table entries of pages left of every window are impossible ids";
    case Special::none: break;
  }
  return {};
}

const std::vector<std::string>& type_combinations() {
  static const std::vector<std::string> list = {
      "q=f32 kv=f32 layout=nhd",
      "q=f16 kv=f16 layout=hnd index=i64",
      "q=bf16 kv=bf16 layout=packed",
      "q=bf16 kv=fp8_e4m3fn layout=packed kscale=head vscale=tensor",
      "q=f16 kv=fp8_e4m3fnuz layout=nhd kscale=tensor vscale=head index=i64",
      "q=f32 kv=fp8_e5m2 layout=hnd kscale=head vscale=head",
      "q=bf16 kv=fp8_e5m2fnuz layout=nhd kscale=tensor vscale=tensor",
      "q=f32 kv=bf16 layout=nhd vscale=tensor",
      "q=f16 kv=bf16 layout=hnd kscale=head",
      "q=bf16 kv=f16 layout=nhd kscale=tensor index=i64",
      "q=f32 kv=f16 layout=packed",
      "q=f32 kv=f32 layout=packed index=i64",
      "q=f32 kv=f32 layout=hnd kscale=head vscale=head",
      "q=f16 kv=fp8_e4m3fn layout=hnd kscale=tensor vscale=tensor",
      "q=f32 kv=fp8_e4m3fnuz layout=packed kscale=tensor vscale=tensor",
      "q=f16 kv=fp8_e5m2 layout=packed vscale=head",
      "q=bf16 kv=fp8_e5m2fnuz layout=hnd",
  };
  return list;
}

namespace {

/// Pages, windows, padding: keys and rows that are there and must not be used.
std::vector<Hazard> pages_and_windows() {
  return {
      {"LastPagePartial", {"heads=4:2 d=32 page=16 reqs=1@20,3@29,17@5,1@15 lse=1"}},
      {"ChunkStartsMidPage", {"heads=4:2 d=32 page=16 reqs=9@7,16@23,5@33,1@17"}},
      {"WindowHidesFirstPage",
       {"heads=4:2 d=16 page=4 window=4 reqs=3@5,1@7,2@70 lse=1", "heads=4:4 d=16 page=16 window=20 reqs=5@60,1@200",
        // Tiles of keys that all rows see whole, and before them the window's edge.
        "heads=4:2 d=16 page=16 window=500 lse=1 reqs=80@900"}},
      {"WindowOne", {"heads=4:2 d=16 page=8 window=1 reqs=5@9,1@40,1 lse=1"}},
      {"NoVisibleKey",
       {"heads=4:2 d=16 page=16 window=5 reqs=100@30 lse=1", "heads=2:2 d=16 page=16 window=8 reqs=40@1010 sinks=1 lse=1"}},
      {"QueryLenZero",
       {"heads=4:2 d=16 page=8 reqs=0@9,1@20,0,3@5,0@33 lse=1", "heads=4:2 d=16 page=8 reqs=0@5,0",
        "heads=4:2 d=16 page=8 reqs=none"}},
      {"PaddedRows",
       {"heads=4:2 d=16 page=8 reqs=9@20,1@33,2x0 pad=5 lse=1", "heads=4:2 d=16 page=8 reqs=1@20/20,40@3/9,0 pad=70:zero lse=1",
        "heads=6:2 d=48 page=16 sinks=1 lse=1 reqs=4x1@90,3x0 pad=3:zero", "heads=4:2 d=16 page=8 reqs=2x0 pad=4:zero lse=1"}},
      {"SharedPrefixPages", {"heads=4:2 d=16 page=8 share=2 reqs=4@20,1@30,3@17,2@16"}},
      {"PageTailNaN", {"heads=4:2 d=32 page=32 reqs=1@32,2@40,7@0"}},
      {"OutOfWindowNaN", {"heads=4:2 d=16 page=4 window=7 reqs=1@50,6@33", "heads=4:2 d=16 page=64 window=9 reqs=1@50,6@90"}},
      {"TablePastEndHuge", {"heads=4:2 d=16 page=4 reqs=1@3,1@100,2@9"}},
  };
}

/// Sizes of heads, groups, pages and rows, and what is done to scores.
std::vector<Hazard> shapes_and_scores() {
  return {
      {"QueryLongerThanTile", {"heads=4:2 d=16 page=16 reqs=150@10,65 lse=1", "heads=16:1 d=16 page=16 reqs=33@70"}},
      {"OddHeadDim", sweep("heads=4:2 page=8 reqs=3@9,1@21 lse=1 d=", {1, 7, 24, 80, 120, 192, 256, 512}, "")},
      {"OddGroup", group_sweep()},
      // gpt-oss: a step's rows beside the cache, or in it.
      {"GroupsOf8", {"heads=64:8 d=64 page=64 sinks=1 window=128 lse=1 reqs=1@150/150,3x1@90"}},
      {"OddPage", sweep("heads=4:2 d=16 reqs=3@60,1@37,20@29 page=", {1, 5, 8, 16, 32, 48, 256, 544}, "")},
      {"WideToken", {"heads=72:72 d=128 page=4 reqs=1@9,2@5"}, 128},
      {"NegativeSlopes",
       {"heads=6:3 d=16 page=8 alibi=1 reqs=20@40,1@90", "heads=6:3 d=16 page=8 alibi=1 sinks=1 window=30 lse=1 reqs=20@40,1@90",
        // Distances beyond 256, which 8 bits of a mantissa no longer hold.
        "heads=6:3 d=16 page=16 alibi=1 lse=1 reqs=3@900,1@500"}},
      {"SinkDominates", {"heads=4:2 d=16 page=8 sinks=1 lse=1 reqs=5@30,1@60,1"}},
      {"PeakySoftmax",
       {"heads=4:2 d=32 page=8 scale=2 lse=1 reqs=5@60,1@90",
        // A product of 1e9 that is rounded before the maximum is subtracted is off by 64: weights become 0 or infinite.
        "heads=4:2 d=64 page=16 scale=1e9 lse=1 reqs=5@60,1@90,70@20"}},
      {"SpeculativeRows",
       {"heads=4:2 d=16 page=8 reqs=2@50,3@51,4@52,5@53,6@54,7@55,8@56,9@57 lse=1",
        "heads=4:2 d=16 page=8 reqs=10@3,11@4,12@5,13@6,14@7,15@8,16@9,17@70"}},
      {"CachedLenBetween", {"heads=4:2 d=16 page=8 reqs=8@100/104,5@9/9,7@20/21,1@30/30,64@3/40,3@11 lse=1"}},
      {"SplitKv",
       {"heads=4:2 d=16 page=16 reqs=1@3000,3@2047,1@1023 lse=1",
        // Decode rows a little behind a power of two: 1025, 1034 and 1100 keys.
        "heads=4:2 d=16 page=16 reqs=1@1024,1@1033,1@1099 lse=1"}},
      {"SoftCap", {"heads=4:2 d=32 page=8 cap=2.5 lse=1 reqs=9@30,1@60"}},
      // More than one tile of keys under more than one block of dims.
      {"WideHeadsManyKeys",
       {"heads=4:2 d=256 page=16 lse=1 reqs=3@90,1@140,66@3", "heads=2:1 d=200 page=8 window=90 sinks=1 reqs=5@130,1@150"},
       129},
  };
}

/// Rows that are not causal, or not at the end of their keys.
std::vector<Hazard> masks_and_shards() {
  return {
      // Encoders: every row sees every key. Cross attention: the number of keys has nothing to do with that of rows.
      {"NonCausal",
       {"heads=6:3 d=16 page=8 causal=0 alibi=1 lse=1 reqs=9@12,3:30,1@20",
        "heads=4:2 d=16 page=8 causal=0 lse=1 reqs=20,1@30,70@9,1", "heads=4:2 d=16 page=8 causal=0 reqs=33@0/0,7@0/3,5@9/9",
        "heads=6:2 d=48 page=16 causal=0 lse=1 sinks=1 reqs=40:7,3:90,1:130,5:5"}},
      {"CausalByRequest",
       {"heads=4:2 d=16 page=8 causal=1x0,1x1,2x0,1x1 lse=1 reqs=9@12,9@12,1@40,70@3,0@5",
        "heads=4:2 d=32 page=16 causal=1x1,1x0,1x1 reqs=66@70,66@70,3@20/21"}},
      {"NoKeys",
       {"heads=4:2 d=16 page=8 causal=0 lse=1 reqs=5:0,1:0,3@20,20:0", "heads=4:2 d=16 page=8 lse=1 reqs=5:0,1@7,2:0 qbegin=40",
        "heads=4:2 d=16 page=8 causal=0 sinks=1 lse=1 reqs=3:0,40:2", "heads=4:2 d=16 page=8 causal=0 reqs=2:0"}},
      {"WindowBothSides",
       {"heads=4:2 d=16 page=4 causal=0 window=5 wright=3 lse=1 reqs=40@30,1@50,3:70,9:2",
        "heads=4:2 d=16 page=8 causal=0 wright=0 lse=1 reqs=20@9,1@30",
        "heads=4:2 d=16 page=16 causal=1x0,1x1 window=20 wright=70 reqs=90@40,90@40"}},
      // Shards of a context: rows behind their keys, before them, and in the middle.
      {"ContextShard",
       {"heads=4:2 d=16 page=8 lse=1 reqs=9:64,1:64,5:40,3:9 kbegin=1x0,1x64,1x100,1x7 qbegin=2x128,1x90,1x9",
        "heads=6:3 d=16 page=8 alibi=1 lse=1 reqs=20:64,1:40,7:33 kbegin=1x96,1x1000,1x5 qbegin=1x150,1x1039,1x12",
        "heads=4:2 d=16 page=4 window=30 lse=1 reqs=20:64,1:64,40:50 kbegin=1x96,1x64,1x0 qbegin=1x150,1x200,1x30",
        "heads=4:2 d=32 page=16 sinks=1 lse=1 reqs=70:50,3:7 kbegin=500 qbegin=1x460,1x498",
        // Rows 0 to 30 see the last keys, the rows behind them none.
        "heads=2:2 d=16 page=8 window=32 lse=1 reqs=64:128,40:128 qbegin=1x128,1x120"}},
      {"HeadOfCacheDropped",
       {"heads=6:3 d=16 page=8 alibi=1 window=33 lse=1 reqs=1@50,9@60/60,30@20 kbegin=1x1000,1x48,1x16",
        "heads=4:2 d=16 page=8 causal=0 kbegin=70000 lse=1 reqs=5@20"}},
  };
}

/// Values that are not as long as keys, or lie in the rows of keys; all options at once.
std::vector<Hazard> rows_of_v() {
  return {
      // MLA's prefill and absorbed decode, and pairs with a vector's tail on either side.
      {"OwnHeadDimOfV",
       {"heads=4:2 d=24 dv=16 page=8 lse=1 reqs=9@20/24,1@33,70@9", "heads=4:2 d=16 dv=40 page=8 lse=1 reqs=9@20/20,1@100",
        "heads=6:3 d=192 dv=128 page=16 lse=1 reqs=20@30,1@70,3@7/8", "heads=4:2 d=8 dv=136 page=4 reqs=5@30,1@40",
        "heads=4:2 d=136 dv=8 page=16 sinks=1 window=20 lse=1 reqs=5@30,1@140", "heads=4:2 d=48 dv=1 page=8 reqs=40@3,1@9",
        "heads=2:1 d=32 dv=320 page=16 lse=1 reqs=3@1300,1@40", "heads=4:2 d=32 dv=16 page=8 causal=0 reqs=5:9,3:0,40@6",
        "heads=4:2 d=32 dv=48 page=8 pad=3:zero lse=1 reqs=5@9"}},
      {"VInRowsOfK",
       {"heads=16:1 d=72 dv=64 latent=1 page=16 lse=1 reqs=1@70,1@300,3@20",
        "heads=4:2 d=24 dv=16 latent=1 page=8 reqs=9@20/24,1@33", "heads=4:2 d=32 latent=1 page=8 lse=1 reqs=9@20,1@33,20@3",
        "heads=20:1 d=576 dv=512 latent=1 page=16 lse=1 reqs=1@70,2@9"}},
      {"EverythingAtOnce", {"heads=6:2 d=48 page=5 cap=8 alibi=1 sinks=1 window=33 lse=1 reqs=40@50/60,1@200,0@7,5@2"}},
  };
}

/// Masks that are more than an order and a window: their edges inside tiles and pages, together and alone.
std::vector<Hazard> chunks_to_trees() {
  return {
      {"Chunks",
       {"heads=4:2 d=16 page=8 chunk=16 lse=1 reqs=40@50,1@63,1@64,3@20/21",
        "heads=4:2 d=16 page=4 chunk=7 alibi=1 reqs=70@9,1@100",
        "heads=6:3 d=32 page=16 chunk=100 lse=1 reqs=120@90,1@299,1@300 kbegin=1x33,1x0,1x7",
        "heads=4:2 d=16 page=8 chunk=9 causal=0 wright=4 window=6 reqs=30@9,20:3,1@17"}},
      // Streaming attention keeps the first keys; between them and the window lie pages that may have been freed.
      {"VisiblePrefix",
       {"heads=4:2 d=16 page=8 window=9 prefix=4 lse=1 reqs=1@300,40@50,9",
        "heads=4:2 d=16 page=4 window=5 prefix=1x70,1x3,1x0 sinks=1 lse=1 reqs=20@200,1@150,6@9",
        "heads=6:3 d=48 page=16 window=33 prefix=17 alibi=1 reqs=1@1500,70@90/100",
        "heads=4:2 d=16 page=8 chunk=32 prefix=5 lse=1 reqs=9@90,1@200 kbegin=1x0,1x2",
        "heads=4:2 d=16 page=8 window=8 prefix=20 causal=0 wright=3 reqs=30@9,9:70 qbegin=1x0,1x40"}},
      // Images in a prompt, and prefix LMs.
      {"Spans",
       {"heads=4:2 d=16 page=8 spans=0:3-20,0:20-33,1:0-40 lse=1 reqs=50,30@20,1@9",
        "heads=4:2 d=16 page=4 window=6 spans=0:3-20,0:40-90,2:10-30 lse=1 reqs=80@30,9@3,25@8/9",
        "heads=6:3 d=32 page=16 window=6 spans=0:3-20,0:40-90,2:10-30 beyond=1 alibi=1 reqs=80@30,9@3,25@8/9",
        "heads=4:2 d=16 page=8 chunk=16 spans=0:10-40,1:100-130 reqs=60,30@5 kbegin=1x0,1x96",
        "heads=4:2 d=16 page=8 window=4 prefix=9 spans=0:5-30 lse=1 reqs=40@3,1@50"}},
      // Draft tokens: random trees, of as many keys as rows, fewer, and more.
      {"Trees",
       {"heads=4:2 d=16 page=8 tree=1x9,1x1,1x7,1x0 lse=1 reqs=9@20,1@50,7@3,5@40",
        "heads=8:2 d=32 page=16 tree=64 alibi=1 lse=1 reqs=64@100,64,70@9",
        "heads=4:2 d=16 page=4 tree=256 lse=1 reqs=256@9,1@300",
        "heads=4:2 d=16 page=8 window=9 prefix=3 sinks=1 tree=1x20,1x4 reqs=20@90/91,9@100",
        "heads=4:2 d=16 page=8 causal=0 tree=1x30,1x12 lse=1 reqs=5@40,20:12"}},
  };
}

}  // namespace

const std::vector<Hazard>& hazards() {
  static const std::vector<Hazard> list = [] {
    std::vector<Hazard> all;
    for (const auto family : {pages_and_windows, shapes_and_scores, masks_and_shards, rows_of_v, chunks_to_trees})
      std::ranges::move(family(), std::back_inserter(all));
    return all;
  }();
  return list;
}

ProblemLine hazard_line(const std::string& combination, const std::string& shape, std::uint64_t seed) {
  const bool fp8_query = combination.find("q=fp8_e4m3fn") != std::string::npos;
  const std::string rest = formatted(" {} seed={}", fp8_query ? all_cached(shape) : shape, seed);
  Result<ProblemLine> line = parse_problem_line(combination + rest);
  if (const std::size_t at = combination.find("packed"); !line.ok() && at != std::string::npos)
    line = parse_problem_line(combination.substr(0, at) + "nhd" + combination.substr(at + 6) + rest);
  return line.ok() ? line.value() : ProblemLine{};
}

void add_type_matrices(std::vector<Entry>& list, const AskedTypes& asked, bool quick) {
  for (const auto matrix : {far_matrix, type_matrix, row_type_matrix, token_scale_matrix, unlike_type_matrix, four_bit_matrix})
    std::ranges::move(matrix(asked, quick), std::back_inserter(list));
}

std::vector<Entry> hazard_matrix(bool quick) {
  std::vector<Entry> list;
  const std::vector<std::string>& types = type_combinations();
  std::size_t turn = 0;
  std::uint64_t seed = 1;
  for (const Hazard& hazard : hazards())
    for (const std::string& shape : hazard.shapes)
      for (std::size_t i = 0; i < (quick ? kQuickTurns : types.size()); ++i) {
        const std::string& combination = types[quick ? turn++ % types.size() : i];
        list.push_back({"hazards", hazard.name, hazard_line(combination, shape, seed++), Special::none});
      }
  for (const SpecialLine& s : kSpecialLines) add(list, s.name, s.line, s.special);
  add_fp8_extremes(list, quick);
  add_type_matrices(list, {}, quick);
  return list;
}

}  // namespace quire::verify_detail
