// SPDX-License-Identifier: Apache-2.0
// Hazards of size and of types: batches, requests and contexts that reach further than others, and every type in every layout
// with every form of scales. hazards(), which tests run on every kernel in every combination, does not contain these cases.
#include <algorithm>

#include "text/formatted.h"
#include "verify/matrix.h"

namespace quire::verify_detail {
namespace {

constexpr std::size_t kFarTurns = 3;  ///< combinations of types of one far shape; one if quick

const std::vector<Hazard>& far_hazards() {
  static const std::vector<Hazard> list = {
      {"ManyRequests",
       {"heads=2:1 d=16 page=8 lse=1 reqs=320x1@25", "heads=4:2 d=16 page=16 reqs=130x1@40,70x2@17,0@5,100x1@90,33x1"}},
      {"LongRequest", {"heads=2:1 d=16 page=16 reqs=4200", "heads=2:1 d=16 page=32 reqs=1100@130,1@40 lse=1"}},
      {"LongContext",
       {"heads=2:1 d=16 page=16 lse=1 reqs=1@101000,3@9000", "heads=4:2 d=16 page=32 window=4000 reqs=2@70000,1@6000"}},
  };
  return list;
}

/// Types of queries for each cache type, which take turns.
std::vector<std::vector<TypePair>> pairs_of(const AskedTypes& asked) {
  std::vector<std::vector<TypePair>> list;
  if (!asked.types.empty()) {
    for (const TypePair& pair : asked.types) list.push_back({pair});
    return list;
  }
  for (const DType cache :
       {DType::f32, DType::f16, DType::bf16, DType::fp8_e4m3fn, DType::fp8_e4m3fnuz, DType::fp8_e5m2, DType::fp8_e5m2fnuz}) {
    list.push_back({{DType::f32, cache}});
    if (cache == DType::f32) continue;
    for (const DType query : {DType::f16, DType::bf16}) list.back().push_back({query, cache});
  }
  return list;
}

}  // namespace

std::vector<Entry> far_matrix(const AskedTypes& asked, bool quick) {
  std::vector<Entry> list;
  std::size_t turn = 0;
  AskedTypes narrow = asked;  // wide heads would make them cost minutes
  if (!asked.head_dims.empty()) narrow.head_dims = {std::ranges::min(asked.head_dims)};
  for (const Hazard& hazard : far_hazards())
    for (const std::string& shape : hazard.shapes)
      for (std::size_t i = 0; i < (quick ? 1 : kFarTurns); ++i, turn += 5) {  // 5 and the number of combinations share no factor
        const std::string& types = type_combinations()[turn % type_combinations().size()];
        if (const auto line = in_asked(hazard_line(types, shape, 9000 + turn), narrow, turn))
          list.push_back({"hazards", hazard.name, *line, Special::none});
      }
  return list;
}

bool reaches_far(const Entry& entry) {
  return std::ranges::any_of(far_hazards(), [&](const Hazard& h) { return h.name == entry.name; });
}

std::vector<Entry> type_matrix(const AskedTypes& asked, bool) {
  constexpr CacheLayout kLayouts[] = {CacheLayout::nhd, CacheLayout::hnd, CacheLayout::packed};
  constexpr const char* kFormsOfScales[] = {"none", "tensor", "head"};
  std::vector<Entry> list;
  const std::vector<std::vector<TypePair>> all = pairs_of(asked);
  const AskedTypes dims_alone{.head_dims = asked.head_dims};
  for (std::size_t cache = 0; cache < all.size(); ++cache)
    for (std::size_t layout = 0; layout < std::size(kLayouts); ++layout)
      for (std::size_t form = 0; form < std::size(kFormsOfScales); ++form) {
        if (!asked.layouts.empty() && std::ranges::find(asked.layouts, kLayouts[layout]) == asked.layouts.end()) continue;
        const TypePair& types = all[cache][(layout + form) % all[cache].size()];
        const std::string combination =
            formatted("q={} kv={} layout={} kscale={} vscale={} index={}", name(types.query), name(types.cache),
                      name(kLayouts[layout]), kFormsOfScales[(form + layout + cache) % 3], kFormsOfScales[form],
                      (cache + layout + form / 2) % 2 == 0 ? "i32" : "i64");
        const ProblemLine line = hazard_line(combination, "heads=4:2 d=32 page=8 lse=1 reqs=3@20,1@30,5", 8000 + list.size());
        if (const auto legal = in_asked(line, dims_alone, list.size()))
          list.push_back({"hazards", "EveryTypeLayoutScale", *legal, Special::none});
      }
  return list;
}

}  // namespace quire::verify_detail
