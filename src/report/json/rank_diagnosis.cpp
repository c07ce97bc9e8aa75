// SPDX-License-Identifier: Apache-2.0
// A diagnosis of ranks as JSON.
#include "quire/rank_diagnosis.hpp"
#include "report/json/json.h"

namespace quire {
namespace report {
namespace {

Json rank_suspicions_json(const std::vector<RankSuspicion>& list) {
  Json all = Json::array();
  for (const RankSuspicion& s : list)
    all.push_back({{"fault", s.fault},
                   {"text", s.text},
                   {"detail", s.detail},
                   {"next", s.next},
                   {"explains", s.explains},
                   {"refutation", s.refutation}});
  return all;
}

Json part_json(const RankPart& part) {
  return {{"rank", part.rank},
          {"recorded", part.recorded},
          {"right", part.right},
          {"elements", part.num_elements},
          {"wrong", part.num_wrong},
          {"worst", number(part.worst_ratio)},
          {"suspicions", rank_suspicions_json(part.suspicions)},
          {"own", part.own ? json_of(*part.own) : Json(nullptr)}};
}

Json result_json(const RankResult& result) {
  return {{"ranks", result.ranks},
          {"right", result.right},
          {"elements", result.num_elements},
          {"wrong", result.num_wrong},
          {"worst", number(result.worst_ratio)},
          {"suspicions", rank_suspicions_json(result.suspicions)}};
}

}  // namespace

Json json_of(const RankDiagnosis& d) {
  Json parts = Json::array(), results = Json::array();
  for (const RankPart& part : d.parts) parts.push_back(part_json(part));
  for (const RankResult& result : d.results) results.push_back(result_json(result));
  return {{"version", QUIRE_VERSION},         {"verdict", name(d.verdict)},   {"world", d.shard.world},
          {"interleave", d.shard.interleave}, {"span", d.shard.span},         {"rows", d.num_tokens},
          {"compared_rows", d.compared_rows}, {"heads", d.num_q_heads},       {"disagreements", d.disagreements},
          {"parts", std::move(parts)},        {"results", std::move(results)}};
}

}  // namespace report

std::string to_json(const RankDiagnosis& diagnosis) { return report::printed(report::json_of(diagnosis)); }

}  // namespace quire
