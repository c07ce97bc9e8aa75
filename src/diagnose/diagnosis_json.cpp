// SPDX-License-Identifier: Apache-2.0
// A diagnosis as JSON (diagnose.md, "JSON").
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "diagnose/describe.h"
#include "diagnose/profile_report.h"
#include "quire/problem.hpp"
#include "report/pictures.h"

namespace quire::cause {
namespace {

using fault::Facts;
using Json = nlohmann::ordered_json;

constexpr std::size_t kAnswers = 5;

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json conditions_json(const Pattern& pattern, bool with_dims = true) {
  Json list = Json::array();
  for (const Condition& c : pattern.conditions)
    if (with_dims || c.attribute != Attribute::dim)
      list.push_back({{"attribute", name(c.attribute)}, {"test", name(c.test)}, {"values", c.values}});
  return list;
}

Json patterns_json(const std::vector<Pattern>& patterns) {
  Json list = Json::array();
  for (const Pattern& p : patterns)
    list.push_back({{"text", p.text},
                    {"rule", p.rule},
                    {"conditions", conditions_json(p)},
                    {"cells", p.cells},
                    {"wrong_cells", p.wrong_cells},
                    {"precision", p.precision()},
                    {"recall", p.recall()},
                    {"exact", p.exact()}});
  return list;
}

/// Mechanisms and faults that this batch cannot tell from the first hypothesis, each once.
Json as_good_json(std::span<const Suspicion> own) {
  std::set<std::string> names;
  for (std::size_t i = 1; i < own.size(); ++i) {
    if (!own[i].refutation.empty()) continue;
    names.insert(own[i].mechanism);
    if (!own[i].fault.empty()) names.insert(own[i].fault);
  }
  return Json(names);
}

Json answer_json(const Suspicion& s, const Part& part, const Json& as_good) {
  // An exact pattern is where the mechanism shows, whether it holds elsewhere or not. A mechanism that may hold everywhere needs
  // none.
  const bool scoped = part.pattern.rule && (part.pattern.exact() || !s.scope.empty());
  return {{"mechanism", s.mechanism},
          {"fault", s.fault},
          {"text", s.text},
          {"detail", s.detail},
          {"scope", scoped && !part.everything ? conditions_json(part.pattern, s.mechanism != "factor_lse") : Json::array()},
          {"scope_text", s.scope},
          {"pattern", part.pattern.text},
          {"explained", s.explained},
          {"certain", s.certain},
          {"as_good", as_good}};
}

/// The best of each part, then the others of all parts by what they explain.
Json answers_json(const Found& found, const Diagnosis& d) {
  Json list = Json::array();
  std::vector<std::pair<const Suspicion*, const Part*>> others;
  std::size_t from = 0;
  for (const Part& part : found.parts) {
    const std::span<const Suspicion> own(d.suspicions.data() + from, part.ranking.size());
    for (std::size_t i = 0; i < own.size(); ++i) {
      if (i == 0) {
        list.push_back(answer_json(own[0], part, as_good_json(own)));
      } else if (i < kAnswers && own[i].explained > 0) {
        others.emplace_back(&own[i], &part);
      }
    }
    from += part.ranking.size() + 1;
  }
  std::stable_sort(others.begin(), others.end(),
                   [](const auto& a, const auto& b) { return a.first->explained > b.first->explained; });
  for (const auto& [s, part] : others)
    if (list.size() < kAnswers) list.push_back(answer_json(*s, *part, Json::array()));
  return list;
}

Json laws_json(const Laws& laws) {
  Json list = Json::array();
  for (const LawFinding& law : laws.findings)
    list.push_back({{"law", name(law.law)}, {"text", law.text}, {"rows", law.tokens.size()}, {"tokens", runs(law.tokens)}});
  return list;
}

Json suspicions_json(const Diagnosis& d) {
  Json list = Json::array();
  for (const Suspicion& s : d.suspicions) {
    const fault::Fault* known = fault::find(s.fault);
    list.push_back({{"mechanism", s.mechanism},
                    {"fault", s.fault},
                    {"family", known != nullptr ? known->info.family : ""},
                    {"text", s.text},
                    {"detail", s.detail},
                    {"scope", s.scope},
                    {"explained", s.explained},
                    {"certain", s.certain},
                    {"largest_move", number(s.largest_move)},
                    {"largest_left", number(s.largest_left)},
                    {"refutation", s.refutation},
                    {"next", s.next}});
  }
  return list;
}

Json wrong_json(const Facts& f, const Localisation& where) {
  Json requests = Json::array();
  std::int64_t cells = 0, elements = 0;
  for (const WrongRequest& g : wrong_requests(f, where)) {
    cells += g.rows;
    elements += g.elements;
    requests.push_back({{"req", g.req},
                        {"query_len", f.query_len(g.req)},
                        {"context_len", f.context_len(g.req)},
                        {"rows", runs(g.tokens)},
                        {"wrong_rows", g.tokens.size()},
                        {"wrong_cells", g.rows},
                        {"heads", heads_text(g.heads)},
                        {"elements", g.elements},
                        {"lse", g.lse},
                        {"largest_error", number(g.largest_error)}});
  }
  return {{"rows", where.wrong_tokens().size()}, {"cells", cells}, {"elements", elements}, {"requests", requests}};
}

}  // namespace

std::string json_of(const Found& found, const Diagnosis& d) {
  Json json = {{"quire_diagnose", 2},
               {"version", QUIRE_VERSION},
               {"problem", d.problem},
               {"verdict", d.verdict},
               {"profile", profile_json(found.where)},
               {"complete", d.complete},
               {"compared_rows", found.where.tokens.size()},
               {"pattern", patterns_json(found.patterns)},
               {"observations", d.observations},
               {"answers", answers_json(found, d)},
               {"laws", laws_json(found.where.laws)},
               {"wrong", wrong_json(found.facts, found.where)},
               {"suspicions", suspicions_json(d)}};
  json["pictures"]["error"] =
      report::error_picture(found.c.observed, found.c.observed_lse, found.where.reference, found.c.batch, found.where.tokens);
  json["pictures"]["pages"] = report::page_picture(found.c.batch, found.c.cache, found.c.options);
  json["pictures"]["rows"] = report::rows_picture(problem_of(found.c.batch, found.c.cache, found.c.options), "");
  return json.dump();
}

}  // namespace quire::cause
