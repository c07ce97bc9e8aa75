// SPDX-License-Identifier: Apache-2.0
// A diagnosis as JSON (diagnose.md, "JSON").
#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include "quire/tools/report.hpp"
#include "report/json/keys.h"
#include "report/pictures.h"
#include "text/runs.h"

namespace quire::report {
namespace {

constexpr std::size_t kAnswers = 5;

std::span<const Suspicion> suspects_of(const Diagnosis& d, const DiagnosisPart& part) {
  return std::span<const Suspicion>(d.suspicions).subspan(part.first, part.count);
}

Json conditions_json(const CellPattern& pattern, bool with_dims = true) {
  Json list = Json::array();
  for (const CellCondition& c : pattern.conditions)
    if (with_dims || c.attribute != CellAttribute::dim)
      list.push_back({{"attribute", name(c.attribute)}, {"test", name(c.test)}, {"values", c.values}});
  return list;
}

}  // namespace

template <typename Keys>
void keys_of(Keys& keys, const CellPattern& p) {
  keys("text", p.text, "rule", p.rule, "conditions", conditions_json(p), "cells", p.cells, "wrong_cells", p.wrong_cells);
  keys("precision", p.precision(), "recall", p.recall(), "exact", p.exact(), "also", p.also);
}

template <typename Keys>
void keys_of(Keys& keys, const LawFinding& law) {
  keys("law", law.law, "text", law.text, "rows", law.tokens.size(), "tokens", runs(law.tokens));
}

template <typename Keys>
void keys_of(Keys& keys, const Suspicion& s) {
  keys("mechanism", s.mechanism, "fault", s.fault, "family", s.family, "text", s.text, "detail", s.detail, "scope", s.scope);
  keys("explained", s.explained, "certain", s.certain, "largest_move", s.largest_move, "largest_left", s.largest_left);
  keys("refutation", s.refutation, "next", s.next);
}

template <typename Keys>
void keys_of(Keys& keys, const WrongRequest& w) {
  keys("req", w.req, "query_len", w.query_len, "context_len", w.context_len, "rows", runs(w.tokens), "wrong_rows",
       w.tokens.size(), "wrong_cells", w.cells, "heads", heads_text(w.heads));
  keys("elements", w.elements, "lse", w.lse, "largest_error", w.largest_error);
}

namespace {

/// Mechanisms and faults that this batch cannot tell from the first suspect, each once. Rounding is never among them.
Json as_good_json(std::span<const Suspicion> own) {
  std::set<std::string> names;
  for (const Suspicion& s : own.subspan(1)) {
    if (s.standing != Standing::open) continue;
    names.insert(s.mechanism);
    if (!s.fault.empty()) names.insert(s.fault);
  }
  return Json(names);
}

Json answer_json(const Suspicion& s, const DiagnosisPart& part, const Json& as_good) {
  // An exact pattern is where the mechanism shows, whether it holds elsewhere or not. A mechanism that may hold everywhere needs
  // none.
  const bool scoped = part.pattern.rule && (part.pattern.exact() || !s.scope.empty());
  const bool narrows = scoped && !part.everything;
  Writer keys;
  keys("mechanism", s.mechanism, "fault", s.fault, "text", s.text, "detail", s.detail);
  keys("scope", narrows ? conditions_json(part.pattern, s.mechanism != "factor_lse") : Json::array(), "scope_text", s.scope);
  keys("pattern", part.pattern.text, "explained", s.explained, "certain", s.certain, "as_good", as_good);
  return keys.json();
}

/// The best of each part, then the others of all parts by what they explain. The last suspect of a part is rounding, no answer.
Json answers_json(const Diagnosis& d) {
  Json list = Json::array();
  std::vector<std::pair<const Suspicion*, const DiagnosisPart*>> others;
  for (const DiagnosisPart& part : d.parts) {
    const std::span<const Suspicion> own = suspects_of(d, part);
    if (own.size() < 2) continue;
    list.push_back(answer_json(own.front(), part, as_good_json(own)));
    for (std::size_t i = 1; i < std::min(kAnswers, own.size() - 1); ++i)
      if (own[i].explained > 0) others.emplace_back(&own[i], &part);
  }
  std::stable_sort(others.begin(), others.end(),
                   [](const auto& a, const auto& b) { return a.first->explained > b.first->explained; });
  for (const auto& [s, part] : others)
    if (list.size() < kAnswers) list.push_back(answer_json(*s, *part, Json::array()));
  return list;
}

Json wrong_json(const Diagnosis& d) {
  std::int64_t cells = 0, elements = 0;
  for (const WrongRequest& w : d.wrong) cells += w.cells, elements += w.elements;
  return {{"rows", d.wrong_tokens.size()}, {"cells", cells}, {"elements", elements}, {"requests", Writer::written(d.wrong)}};
}

Json profile_json(const Diagnosis& d) {
  const NumericsProfile& p = d.profile;
  Writer keys;
  keys("weights", name(p.weights), "scores", name(p.scores), "accumulator", name(p.accumulator));
  keys("parts", name(p.parts));
  keys("products", p.tf32_products ? "tf32" : "f32", "dequantised", p.dequantised_to_query ? "query type" : "exact");
  keys("found", d.profile_found, "words", in_words(p), "worst", d.worst_right, "least_factor", d.least_factor);
  return keys.json();
}

/// The rule is the answer.
Json broken_batch_json(const Diagnosis& d) {
  Json findings = Json::array();
  for (const Finding& finding : d.findings) findings.push_back(finding.message);
  return {{"quire_diagnose", 2}, {"version", QUIRE_VERSION}, {"verdict", name(d.verdict)}, {"findings", std::move(findings)}};
}

}  // namespace

Json json_of(const Diagnosis& d) {
  if (d.verdict == DiagnosisVerdict::broken_batch) return broken_batch_json(d);
  Writer keys;
  keys("quire_diagnose", 2, "version", QUIRE_VERSION, "problem", d.problem, "verdict", d.verdict, "profile", profile_json(d));
  keys("complete", d.complete, "compared_rows", d.compared_rows, "pattern", d.patterns, "observations", d.observations);
  if (d.stopped_after > 0) keys("stopped_after", d.stopped_after, "not_tried", d.not_tried);
  keys("answers", answers_json(d), "laws", d.laws, "wrong", wrong_json(d), "suspicions", d.suspicions);
  keys("pictures", pictures_json(d.pictures.get()));
  return keys.json();
}

}  // namespace quire::report

namespace quire {

std::string to_json(const Diagnosis& diagnosis) { return report::printed(report::json_of(diagnosis)); }

}  // namespace quire
