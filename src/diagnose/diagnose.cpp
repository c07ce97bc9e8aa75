// SPDX-License-Identifier: Apache-2.0
// The search for a cause: contract, laws, localisation, pattern, hypotheses, words.
#include <algorithm>
#include <new>
#include <numeric>

#include "batch/caught.h"
#include "diagnose/cell_bytes.h"
#include "diagnose/describe.h"
#include "diagnose/unmoved.h"
#include "quire/contract.hpp"
#include "quire/problem.hpp"
#include "text/duration.h"
#include "text/formatted.h"

namespace quire {
namespace diagnose_detail {
namespace {

Status check_observed(const Case& c) {
  const Tensor &o = c.observed, &q = c.batch.output;
  if (!o.present()) return {Code::invalid_argument, "the case has no observed output: there is nothing to diagnose"};
  if (o.rank != 3 || !is_floating(o.dtype) || o.shape[0] != q.shape[0] || o.shape[1] != q.shape[1] || o.shape[2] != q.shape[2])
    return {Code::invalid_argument,
            formatted("observed: {}, expected a floating type and the shape of output, {}", to_string(o), to_string(q))};
  const Tensor& l = c.observed_lse;
  if (l.present() && (l.rank != 2 || l.dtype != DType::f32 || l.shape[0] != q.shape[0] || l.shape[1] != q.shape[1]))
    return {Code::invalid_argument, formatted("observed_lse: {}, expected f32 [{}, {}]", to_string(l), q.shape[0], q.shape[1])};
  return {};
}

/// A batch that breaks a rule has no right output: the rule is the answer.
Diagnosis broken_batch(const Findings& findings) {
  Diagnosis d;
  d.verdict = DiagnosisVerdict::broken_batch;
  d.findings = findings.items;
  return d;
}

bool is_certain(const Part& part) { return !part.ranking.empty() && part.ranking.front().certain; }

/// Ranks hypotheses about the wrong cells of one pattern, or (`everything`) about all wrong cells.
Part part_of(const Found& found, const Pattern& pattern, bool everything, const std::vector<Pattern>& patterns = {}) {
  const Pattern* scope = everything ? nullptr : &pattern;
  const Evidence evidence(found.facts, found.observed, found.where, scope, patterns, &found.names);
  Part part{pattern, {}, evidence.largest_error(), evidence.largest_tolerance(), evidence.observed_text(), everything, {}};
  Scene scene = make_scene(found.facts, found.observed, found.where, evidence);
  scene.census = found.census;
  scene.pairs = found.pairs;
  Ranking ranking = rank(scene, evidence, everything ? nullptr : &part.pattern, found.limit);
  part.ranking = std::move(ranking.hypotheses);
  const auto unmoved = [&](const Hypothesis& h, Untouched untouched) {
    return unmoved_cells(found.facts, found.observed, found.where, h.model(found.facts), untouched);
  };
  const auto refuted = std::ranges::find_if(part.ranking, [](const Hypothesis& h) { return h.whole && h.broken() > 0; });
  if (is_certain(part)) {
    part.unmoved = unmoved(part.ranking.front(), Untouched::left_out);
  } else if (refuted != part.ranking.end() && !found.limit.is_up()) {
    part.unmoved = unmoved(*refuted, Untouched::listed);
  }
  part.not_tried = std::move(ranking.not_tried);
  return part;
}

bool is_likely(const Part& part) { return !part.ranking.empty() && part.ranking.front().likely; }
/// Certain, and no other remedy would be as right.
bool is_known(const Part& part) { return is_certain(part) && !part.ranking.front().tied; }

/// Is some hypothesis certain in every part?
bool share_a_cause(const std::vector<Part>& parts) {
  const auto certain_in = [](const Part& part, const Hypothesis& h) {
    return std::any_of(part.ranking.begin(), part.ranking.end(), [&](const Hypothesis& other) {
      return other.certain && other.mechanism == h.mechanism && other.text == h.text;
    });
  };
  const std::vector<Hypothesis>& first = parts.front().ranking;
  return std::any_of(first.begin(), first.end(), [&](const Hypothesis& h) {
    return h.certain && std::all_of(parts.begin(), parts.end(), [&](const Part& part) { return certain_in(part, h); });
  });
}

/// Parts with the same cause are one: their common conditions are its scope, if it breaks nothing there.
void unite(Found& found) {
  if (found.parts.size() < 2 || !share_a_cause(found.parts)) return;
  std::vector<Condition> common = found.patterns.front().conditions;
  std::erase_if(common, [&](const Condition& c) {
    return std::any_of(found.patterns.begin(), found.patterns.end(), [&](const Pattern& p) {
      return std::find(p.conditions.begin(), p.conditions.end(), c) == p.conditions.end();
    });
  });
  const Pattern scope = counted_pattern(found.names, found.where, common);
  Part united = part_of(found, scope, /*everything=*/false);
  if (!is_certain(united)) return;
  found.parts.clear();
  found.parts.push_back(std::move(united));
}

/// Describes the wrong cells once more, among the cells that a cause can make wrong: heads that are insensitive to it stay
/// within their tolerance, and would pass for heads in which it does not hold. A cause that explains every wrong cell, and that
/// right cells refute, holds in a part of the batch: the right cells that it would change tell in which. Changes nothing if no
/// cause is certain then.
void describe_again(Found& found) {
  const std::vector<std::size_t> unmoved = found.parts.front().unmoved;
  if (found.parts.size() != 1 || unmoved.empty()) return;
  const auto mark = [&](bool as) {
    for (const std::size_t i : unmoved) found.where.rows[i].unmoved = as;
  };
  mark(true);
  std::vector<Pattern> patterns = find_patterns(found.names, found.where);
  Part again = found.parts.front();
  if (!is_certain(again) || patterns.front().conditions != again.pattern.conditions)
    again = part_of(found, patterns.front(), patterns.size() > 1);
  mark(false);
  if (!is_certain(again)) return;
  again.pattern = patterns.front();
  found.patterns = std::move(patterns);
  found.parts = {std::move(again)};
}

/// Searches one cause for all wrong cells; without a certain one, a cause for each separate set of wrong cells.
void find_causes(Found& found) {
  const bool several = found.patterns.size() > 1;
  found.parts.push_back(part_of(found, found.patterns.front(), /*everything=*/several));
  if (!is_certain(found.parts.front())) describe_again(found);
  if (!several || is_certain(found.parts.front())) return;
  std::vector<Part> parts;
  for (const Pattern& pattern : found.patterns) parts.push_back(part_of(found, pattern, /*everything=*/false, found.patterns));
  found.parts = std::move(parts);
  unite(found);
}

/// Without a cause for every set, sets of wrong cells whose bytes are unlike (kept from before the call, zeros, NaN, numbers) get
/// a cause each, if that makes one of them certain.
void split_by_bytes(Found& found) {
  if (std::ranges::all_of(found.parts, is_certain)) return;
  std::vector<Pattern> patterns = find_patterns_by_bytes(found.names, found.where);
  std::vector<Part> parts;
  for (const Pattern& pattern : patterns) parts.push_back(part_of(found, pattern, /*everything=*/false, patterns));
  if (std::ranges::none_of(parts, is_certain)) return;
  found.patterns = std::move(patterns);
  found.parts = std::move(parts);
}

/// Padding rows that should have become zero and are not. No request explains what is in them, so no mechanism is asked.
std::string wrong_padding(const Case& c) {
  const std::int64_t first = num_request_rows(c.batch), end = c.batch.query.shape[0];
  if (c.batch.padding != Padding::zero || first == end) return {};
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(end - first));
  std::iota(tokens.begin(), tokens.end(), first);
  const Result<Reference> zeros = reference(c.batch, c.cache, c.options, tokens);
  if (!zeros.ok()) return {};
  const auto behind = [first, end](Tensor t) {
    if (!t.present()) return t;
    t.data = static_cast<std::byte*>(t.data) + first * t.stride[0] * itemsize(t.dtype);
    t.shape[0] = end - first;
    return t;
  };
  const Comparison found = compare(behind(c.observed), behind(c.observed_lse), zeros.value());
  if (found.ok) return {};
  return formatted("padding rows {} to {} were to become 0 with lse -inf: {} of {} elements are something else", first, end - 1,
                   found.num_mismatches, found.num_elements);
}

DiagnosisVerdict verdict_of(const std::vector<Part>& parts) {
  if (std::all_of(parts.begin(), parts.end(), is_known)) return DiagnosisVerdict::cause_found;
  return std::any_of(parts.begin(), parts.end(), is_likely) ? DiagnosisVerdict::mechanism_likely
                                                            : DiagnosisVerdict::unknown_cause;
}

Result<Diagnosis> search(const Case& c, const DiagnoseOptions& options, const Facts* names) {
  const TimeLimit limit(options.full ? -1 : options.seconds);
  Facts facts(c.batch, c.cache, c.options);
  const Observed observed{c.observed, c.observed_lse};
  Result<Localisation> where = localise(facts, observed, options, limit);
  if (!where.ok()) return where.status();
  Diagnosis d;
  const auto line = c.notes.find("problem");
  const Facts& caller = names != nullptr ? *names : facts;
  d.problem = line != c.notes.end() ? line->second : to_string(problem_of(caller.batch, caller.stored, caller.options));
  d.profile = where->reference.profile;
  facts.dequantised_to_query = d.profile.dequantised_to_query;
  const TimeLimit rest = limit.rest();
  Found found{c, facts, caller, observed, where.value(), rest, {}, {}, wrong_padding(c), {}};
  if (!found.padding.empty()) d.verdict = DiagnosisVerdict::unknown_cause;
  if (where->any_wrong()) {
    if (options.progress) options.progress("pattern");
    classify(facts, observed, where.value());
    found.patterns = find_patterns(found.names, where.value());
    if (options.progress) options.progress("census");
    found.census = take_census(facts, observed, where.value(), rest);
    if (found.census.empty()) found.pairs = take_pairs(facts, observed, where.value(), rest);
    if (options.progress) options.progress("hypotheses");
    find_causes(found);
    split_by_bytes(found);
    if (is_certain(found.parts.front())) describe_again(found);
    d.verdict = verdict_of(found.parts);
  }
  describe(found, d);
  return d;
}

}  // namespace

Result<Diagnosis> diagnosed(const Case& c, const DiagnoseOptions& options, const Facts* names) {
  const Findings findings = check(c.batch, c.cache, c.options, Depth::tables);
  if (!findings.ok() && findings.items.empty()) return findings.status();
  if (!findings.ok()) return broken_batch(findings);
  if (Status s = check_observed(c); !s.ok()) return s;
  return search(c, options, names);
}

}  // namespace diagnose_detail

Result<Diagnosis> diagnose(const Case& c, const DiagnoseOptions& options) try {
  for (const auto& [name, seconds] : {std::pair("seconds", options.seconds), {"reference_seconds", options.reference_seconds}})
    if (const std::string error = duration_error(seconds); !error.empty())
      return Status(Code::invalid_argument, formatted("diagnose: {}: {}", name, error));
  return diagnose_detail::diagnosed(c, options);
} catch (...) {
  return batch::caught("diagnose");
}

}  // namespace quire
