// SPDX-License-Identifier: Apache-2.0
// Turns the results of the search into the data of a diagnosis; src/report prints that data.
#include "diagnose/describe.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "diagnose/cell_bytes.h"
#include "diagnose/census_changes.h"
#include "diagnose/find_profile.h"
#include "diagnose/pairs.h"
#include "faults/fault.h"
#include "quire/problem.hpp"
#include "report/pictures.h"
#include "text/formatted.h"

namespace quire::diagnose_detail {
namespace {

constexpr double kFits = 0.011;  // other suspects this close to the best one are named beside it

std::string percent(double share) { return formatted("{:.3g} %", 100 * std::max(0.0, share)); }

Standing standing_of(const Hypothesis& h) {
  if (!h.why_not.empty()) return Standing::cannot_show;
  return h.fit.unwritten ? Standing::unproven : Standing::refuted;
}

/// Returns why a hypothesis is not the cause, with numbers.
std::string refutation(const Hypothesis& h, const Part& part) {
  if (!h.why_not.empty()) return "cannot show here: " + h.why_not;
  std::string text;
  if (h.fit.unwritten) {
    text = "nothing proves that these rows were never written, which would explain anything";
  } else if (h.fit.largest_move <= part.largest_tolerance || h.fit.largest_move < 0.5 * part.largest_error) {
    text = h.fit.largest_move == 0
               ? "cannot change these rows"
               : formatted("moves these rows by at most {:.2g}; observed {}", h.fit.largest_move, part.observed_text);
  } else {
    text = formatted("explains {}", percent(h.share));
    if (h.fit.largest_left > 0) text += formatted(", leaves {:.3g} of {}", h.fit.largest_left, part.observed_text);
  }
  if (h.broken() > 0) text += formatted("; would break {} of the right rows looked at", h.broken());
  return text;
}

Suspicion suspicion(const Hypothesis& h, const Part& part, bool refuted) {
  Suspicion s;
  s.mechanism = h.mechanism;
  s.fault = h.fault;
  if (const Fault* known = faults_detail::find(h.fault); known != nullptr) s.family = known->info.family;
  s.text = h.text;
  s.detail = h.detail;
  s.scope = h.scoped ? part.pattern.scope_text : "";
  s.next = h.next;
  s.explained = std::max(0.0, h.scoped ? h.share + kScopePenalty : h.share);
  s.largest_move = h.fit.largest_move;
  s.largest_left = h.fit.largest_left;
  s.certain = h.certain && !h.tied;
  s.likely = h.likely;
  s.tied = h.tied;
  s.combined = h.combined;
  if (!refuted) return s;
  s.standing = standing_of(h);
  s.refutation = refutation(h, part);
  return s;
}

/// Suspect "rounding", which is not in the catalogue because every kernel rounds. Rounding explains no error above the tolerance.
Suspicion rounding(const Part& part) {
  Suspicion s;
  s.mechanism = s.fault = "rounding";
  s.text = "rounds differently: the kernel's numerics";
  s.largest_move = part.largest_tolerance;
  s.largest_left = part.largest_error;
  s.standing = Standing::refuted;
  s.refutation = formatted("rounding moves these rows by at most {:.2g} (docs/reference/numerics.md); observed {}",
                           part.largest_tolerance, part.observed_text);
  return s;
}

/// The largest error / tolerance of the rows that are right.
double worst_right(const Localisation& where) {
  double worst = 0;
  for (const Compared& row : where.rows)
    if (!row.wrong) worst = std::max(worst, row.worst_ratio);
  return worst;
}

WrongRequest wrong_request(const Facts& f, std::int64_t req) {
  WrongRequest w;
  w.req = req;
  w.query_len = f.query_len(req);
  w.context_len = f.context_len(req);
  w.seq_len = f.seq_lens[Facts::at(req)];
  w.heads.resize(Facts::at(f.num_q_heads));
  return w;
}

void add(WrongRequest& w, const Compared& row) {
  if (w.tokens.empty() || w.tokens.back() != row.token) w.tokens.push_back(row.token);
  w.heads[Facts::at(row.head)] = true;
  ++w.cells;
  w.elements += row.wrong_dims;
  w.nonfinite += row.nonfinite;
  w.lse = w.lse || row.wrong_lse;
  if (row.wrong_dims > 0) {
    w.first_dim = w.last_dim < 0 ? row.first_dim : std::min(w.first_dim, row.first_dim);
    w.last_dim = std::max(w.last_dim, row.last_dim);
  }
  w.largest_error = std::max(w.largest_error, row.largest_error);
}

std::vector<WrongRequest> wrong_requests(const Facts& f, const Localisation& where) {
  std::vector<WrongRequest> list;
  for (const Compared& row : where.rows) {
    if (!row.wrong) continue;
    const std::int64_t req = f.req_of(row.token);
    if (list.empty() || list.back().req != req) list.push_back(wrong_request(f, req));
    add(list.back(), row);
  }
  return list;
}

/// Whether no wrong element is finite.
bool nothing_finite(const Localisation& where) {
  return std::ranges::all_of(
      where.rows, [](const Compared& row) { return !row.wrong || (row.wrong_dims > 0 && row.nonfinite == row.wrong_dims); });
}

/// The suspects of a part: those that fit as well as the best one, the refuted ones, rounding.
void add_suspects(const Part& part, Diagnosis& d) {
  const std::size_t first = d.suspicions.size();
  const double best = part.ranking.empty() ? 0 : part.ranking.front().share;
  std::vector<Suspicion> refuted;
  for (const Hypothesis& h : part.ranking) {
    const bool whole = h.fit.wrong > 0 && h.fit.whole == h.fit.wrong;
    const bool fits = h.tied || (whole && (h.likely || h.alike) && h.why_not.empty() && h.share > best - kFits);
    const bool is_first = &h == &part.ranking.front();
    (fits || is_first ? d.suspicions : refuted).push_back(suspicion(h, part, !fits));
  }
  std::move(refuted.begin(), refuted.end(), std::back_inserter(d.suspicions));
  d.suspicions.push_back(rounding(part));
  d.parts.push_back({part.pattern, part.everything, first, d.suspicions.size() - first});
}

report::SharedPictures pictures_of(const Found& found) {
  nlohmann::ordered_json parts;
  parts["error"] =
      report::error_picture(found.c.observed, found.c.observed_lse, found.where.reference, found.c.batch, found.where.tokens);
  parts["pages"] = report::page_picture(found.c.batch, found.c.cache, found.c.options);
  parts["rows"] = report::rows_picture(problem_of(found.c.batch, found.c.cache, found.c.options), "");
  return std::make_shared<const report::Pictures>(report::Pictures{std::move(parts)});
}

}  // namespace

void describe(const Found& found, Diagnosis& d) {
  const Localisation& where = found.where;
  d.patterns = found.patterns;
  d.laws = where.laws.findings;
  d.wrong = wrong_requests(found.names, where);
  d.wrong_tokens = where.wrong_tokens();
  d.nothing_finite = nothing_finite(where);
  d.wrong_padding = found.padding;
  d.num_tokens = found.facts.num_tokens;
  d.compared_rows = static_cast<std::int64_t>(where.tokens.size());
  d.complete = where.complete;
  d.profile_found = where.profile_found;
  d.worst_right = worst_right(where);
  d.least_factor = least_factor(where.reference);
  d.least_factor_in_f32 = where.least_factor_in_f32;
  if (d.verdict != DiagnosisVerdict::right) d.observations = observations(found.names, found.observed, where);
  if (d.verdict != DiagnosisVerdict::right)
    if (std::string text = cell_bytes(found.facts, found.observed, where); !text.empty())
      d.observations.push_back(std::move(text));
  constexpr std::size_t kRowsInWords = 2;  // of the census
  for (std::string& text : words(found.facts, found.census, kRowsInWords)) d.observations.push_back(std::move(text));
  for (std::string& text : pair_words(found.facts, found.pairs)) d.observations.push_back(std::move(text));
  if (!found.padding.empty()) d.observations.insert(d.observations.begin(), found.padding);
  std::set<std::string> not_tried;
  for (const Part& part : found.parts) {
    add_suspects(part, d);
    not_tried.insert(part.not_tried.begin(), part.not_tried.end());
  }
  if (!where.profiles_tried) not_tried.insert("numerics profiles");
  d.not_tried.assign(not_tried.begin(), not_tried.end());
  d.stopped_after = not_tried.empty() ? 0 : found.limit.named();
  d.pictures = pictures_of(found);
}

}  // namespace quire::diagnose_detail
