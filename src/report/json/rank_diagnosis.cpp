// SPDX-License-Identifier: Apache-2.0
// A diagnosis of ranks as JSON.
#include "quire/rank_diagnosis.hpp"
#include "report/json/keys.h"

namespace quire {
namespace report {

template <typename Keys>
void keys_of(Keys& keys, const RankSuspicion& s) {
  keys("fault", s.fault, "text", s.text, "detail", s.detail, "next", s.next, "explains", s.explains, "refutation", s.refutation);
}

template <typename Keys>
void keys_of(Keys& keys, const RankPart& part) {
  keys("rank", part.rank, "recorded", part.recorded, "right", part.right, "elements", part.num_elements, "wrong", part.num_wrong);
  keys("worst", part.worst_ratio, "suspicions", part.suspicions, "own", part.own ? json_of(*part.own) : Json(nullptr));
}

template <typename Keys>
void keys_of(Keys& keys, const RankResult& result) {
  keys("ranks", result.ranks, "right", result.right, "elements", result.num_elements, "wrong", result.num_wrong);
  keys("worst", result.worst_ratio, "suspicions", result.suspicions);
}

template <typename Keys>
void keys_of(Keys& keys, const RankDiagnosis& d) {
  keys.says("version", QUIRE_VERSION);
  keys("verdict", d.verdict, "world", d.shard.world, "interleave", d.shard.interleave, "span", d.shard.span);
  keys("rows", d.num_tokens, "compared_rows", d.compared_rows, "heads", d.num_q_heads, "disagreements", d.disagreements);
  keys("parts", d.parts, "results", d.results);
}

Json json_of(const RankDiagnosis& d) { return Writer::written(d); }

}  // namespace report

std::string to_json(const RankDiagnosis& diagnosis) { return report::printed(report::json_of(diagnosis)); }

}  // namespace quire
