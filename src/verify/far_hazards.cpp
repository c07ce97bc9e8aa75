// Hazards of size and of types: batches, requests and contexts that reach further than others, and every type in every layout
// with every form of scales. They are no part of hazards(), which tests run on every kernel in every combination.
#include "text/formatted.h"
#include "verify/matrix.h"

namespace quire::conformance {
namespace {

constexpr std::size_t kFarTurns = 3;  ///< combinations of types of one far shape; one if quick

const std::vector<Hazard>& far_hazards() {
  static const std::vector<Hazard> list = {
      {"ManyRequests",
       {"heads=2:1 d=16 page=8 lse=1 reqs=320x1@25", "heads=4:2 d=16 page=16 reqs=130x1@40,70x2@17,0@5,100x1@90,33x1"}},
      {"LongRequest", {"heads=1 d=16 page=16 reqs=4200", "heads=2:1 d=16 page=32 reqs=1100@130,1@40 lse=1"}},
      {"LongContext",
       {"heads=2:1 d=16 page=16 lse=1 reqs=1@101000,3@9000", "heads=4:2 d=16 page=32 window=4000 reqs=2@70000,1@6000"}},
  };
  return list;
}

/// Types of queries that a cache type goes with.
std::vector<DType> queries_of(DType cache) {
  if (cache == DType::f32) return {DType::f32};
  return {DType::f32, DType::f16, DType::bf16};
}

}  // namespace

std::vector<Entry> far_matrix(bool quick) {
  std::vector<Entry> list;
  std::size_t turn = 0;
  for (const Hazard& hazard : far_hazards())
    for (const std::string& shape : hazard.shapes)
      for (std::size_t i = 0; i < (quick ? 1 : kFarTurns); ++i, turn += 5) {  // 5 and the number of combinations share no factor
        const std::string& types = type_combinations()[turn % type_combinations().size()];
        list.push_back({"hazards", hazard.name, hazard_line(types, shape, 9000 + turn), Special::none});
      }
  return list;
}

std::vector<Entry> type_matrix() {
  constexpr DType kCaches[] = {DType::f32,          DType::f16,      DType::bf16,        DType::fp8_e4m3fn,
                               DType::fp8_e4m3fnuz, DType::fp8_e5m2, DType::fp8_e5m2fnuz};
  constexpr const char* kLayouts[] = {"nhd", "hnd", "packed"};
  constexpr const char* kForms[] = {"none", "tensor", "head"};
  std::vector<Entry> list;
  for (std::size_t cache = 0; cache < std::size(kCaches); ++cache)
    for (std::size_t layout = 0; layout < 3; ++layout)
      for (std::size_t form = 0; form < 3; ++form) {
        const std::vector<DType> queries = queries_of(kCaches[cache]);
        const std::string types =
            formatted("q={} kv={} layout={} kscale={} vscale={} index={}", name(queries[(layout + form) % queries.size()]),
                      name(kCaches[cache]), kLayouts[layout], kForms[(form + layout + cache) % 3], kForms[form],
                      (cache + layout + form / 2) % 2 == 0 ? "i32" : "i64");
        list.push_back({"hazards", "EveryTypeLayoutScale",
                        hazard_line(types, "heads=4:2 d=32 page=8 lse=1 reqs=3@20,1@30,5", 8000 + list.size()), Special::none});
      }
  return list;
}

}  // namespace quire::conformance
