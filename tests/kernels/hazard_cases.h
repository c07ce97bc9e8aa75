// The hazard suite (docs/testing.md): for each hazard the smallest batches that meet it, crossed with types and layouts.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "quire/capture.hpp"
#include "quire/problem.hpp"

namespace quire::test {

/// A hazard by name: shapes as the part of a problem line without types and layout.
struct Hazard {
  std::string name;
  std::vector<std::string> shapes;
};

/// Keeps GoogleTest from printing the bytes of a parameter.
inline void PrintTo(const Hazard& hazard, std::ostream* out) { *out << hazard.name; }

/// Every query type, cache type, layout, scale form and index type; each pair of values meets at least once where it is legal.
inline const std::vector<std::string>& type_combinations() {
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

inline std::vector<std::string> sweep(const std::string& before, const std::vector<int>& values, const std::string& after) {
  std::vector<std::string> shapes;
  for (const int value : values) shapes.push_back(before + std::to_string(value) + after);
  return shapes;
}

/// Odd group sizes over 2 KV heads, 1 for the largest.
inline std::vector<std::string> group_sweep() {
  std::vector<std::string> shapes;
  for (const int group : {1, 2, 3, 5, 7, 8, 16, 17, 64}) {
    const int kv_heads = group < 64 ? 2 : 1;
    shapes.push_back("heads=" + std::to_string(group * kv_heads) + ":" + std::to_string(kv_heads) +
                     " d=16 page=8 reqs=3@13,1@30 lse=1");
  }
  return shapes;
}

inline const std::vector<Hazard>& hazards() {
  static const std::vector<Hazard> list = {
      {"LastPagePartial", {"heads=4:2 d=32 page=16 reqs=1@20,3@29,17@5,1@15 lse=1"}},
      {"ChunkStartsMidPage", {"heads=4:2 d=32 page=16 reqs=9@7,16@23,5@33,1@17"}},
      {"WindowHidesFirstPage",
       {"heads=4:2 d=16 page=4 window=4 reqs=3@5,1@7,2@70 lse=1", "heads=4:4 d=16 page=16 window=20 reqs=5@60,1@200"}},
      {"WindowOne", {"heads=4:2 d=16 page=8 window=1 reqs=5@9,1@40,1 lse=1"}},
      {"NoVisibleKey",
       {"heads=4:2 d=16 page=16 window=5 reqs=100@30 lse=1", "heads=2:2 d=16 page=16 window=8 reqs=40@1010 sinks=1 lse=1"}},
      {"QueryLenZero",
       {"heads=4:2 d=16 page=8 reqs=0@9,1@20,0,3@5,0@33 lse=1", "heads=4:2 d=16 page=8 reqs=0@5,0",
        "heads=4:2 d=16 page=8 reqs=none"}},
      {"SharedPrefixPages", {"heads=4:2 d=16 page=8 share=2 reqs=4@20,1@30,3@17,2@16"}},
      {"PageTailNaN", {"heads=4:2 d=32 page=32 reqs=1@32,2@40,7@0"}},
      {"OutOfWindowNaN", {"heads=4:2 d=16 page=4 window=7 reqs=1@50,6@33", "heads=4:2 d=16 page=64 window=9 reqs=1@50,6@90"}},
      {"TablePastEndHuge", {"heads=4:2 d=16 page=4 reqs=1@3,1@100,2@9"}},
      {"QueryLongerThanTile", {"heads=4:2 d=16 page=16 reqs=150@10,65 lse=1", "heads=16:1 d=16 page=16 reqs=33@70"}},
      {"OddHeadDim", sweep("heads=4:2 page=8 reqs=3@9,1@21 lse=1 d=", {1, 7, 24, 80, 120, 192, 256, 512}, "")},
      {"OddGroup", group_sweep()},
      {"OddPage", sweep("heads=4:2 d=16 reqs=3@60,1@37,20@29 page=", {1, 5, 8, 16, 32, 48, 256, 544}, "")},
      {"NegativeSlopes",
       {"heads=6:3 d=16 page=8 alibi=1 reqs=20@40,1@90",
        "heads=6:3 d=16 page=8 alibi=1 sinks=1 window=30 lse=1 reqs=20@40,1@90"}},
      {"SinkDominates", {"heads=4:2 d=16 page=8 sinks=1 lse=1 reqs=5@30,1@60,1"}},
      {"PeakySoftmax", {"heads=4:2 d=32 page=8 scale=2 lse=1 reqs=5@60,1@90"}},
      {"SpeculativeRows",
       {"heads=4:2 d=16 page=8 reqs=2@50,3@51,4@52,5@53,6@54,7@55,8@56,9@57 lse=1",
        "heads=4:2 d=16 page=8 reqs=10@3,11@4,12@5,13@6,14@7,15@8,16@9,17@70"}},
      {"CachedLenBetween", {"heads=4:2 d=16 page=8 reqs=8@100/104,5@9/9,7@20/21,1@30/30,64@3/40,3@11 lse=1"}},
      {"SplitKv", {"heads=4:2 d=16 page=16 reqs=1@3000,3@2047,1@1023 lse=1"}},
      {"SoftCap", {"heads=4:2 d=32 page=8 cap=2.5 lse=1 reqs=9@30,1@60"}},
      {"EverythingAtOnce", {"heads=6:2 d=48 page=5 cap=8 alibi=1 sinks=1 window=33 lse=1 reqs=40@50/60,1@200,0@7,5@2"}},
  };
  return list;
}

/// The shape's line for one combination. A head_dim that packed chunks do not divide falls back to nhd.
inline ProblemLine hazard_line(const std::string& combination, const std::string& shape, std::uint64_t seed) {
  const std::string text = combination + " " + shape + " seed=" + std::to_string(seed);
  Result<ProblemLine> line = parse_problem_line(text);
  if (!line.ok()) {
    const std::size_t at = combination.find("packed");
    const std::string nhd =
        at == std::string::npos ? combination : combination.substr(0, at) + "nhd" + combination.substr(at + 6);
    line = parse_problem_line(nhd + " " + shape + " seed=" + std::to_string(seed));
  }
  return line.ok() ? line.value() : ProblemLine{};
}

}  // namespace quire::test
