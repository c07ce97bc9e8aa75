// SPDX-License-Identifier: Apache-2.0
// The search for a cause over ranks: what differs, each rank's part, then the results against merges of the parts.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <numbers>
#include <numeric>

#include "batch/caught.h"
#include "diagnose/describe.h"
#include "diagnose/rank_captures.h"
#include "diagnose/rank_parts.h"
#include "quire/contract.hpp"
#include "text/duration.h"
#include "text/formatted.h"

namespace quire {
namespace diagnose_detail {
namespace {

/// Visible pairs x heads x dims that may be computed for each second of options.reference_seconds.
constexpr double kWorkPerSecond = 100e6;
/// Right cells on which faults of keys are tried, beside as many wrong ones or one of each wrong row: each costs attention over
/// all keys.
constexpr std::size_t kCellsOfKeyFaults = 24;

/// Input of the search.
struct RankScene {
  RankCaptures captures;
  Case whole;
  std::vector<Case> own;
  std::vector<std::int64_t> tokens;  ///< rows that are compared
  std::vector<Numbers> parts;        ///< recorded parts, or expected ones if some are not recorded
  bool parts_recorded = true;        ///< every rank recorded its part
  faults_detail::Deal deal;
};

/// Rows to compare: as many as the time allows, evenly spaced, the last one among them.
std::vector<std::int64_t> rows_to_compare(const Case& whole, const DiagnoseOptions& options) {
  const Problem problem = problem_of(whole.batch, whole.cache, whole.options);
  const std::int64_t rows = problem.num_tokens();
  const double work = static_cast<double>(problem.visible_pairs()) * static_cast<double>(problem.num_q_heads * problem.head_dim);
  const double part =
      options.full ? 1
                   : std::min(1.0, std::min(options.seconds, options.reference_seconds) * kWorkPerSecond / std::max(work, 1.0));
  const auto count =
      std::max<std::int64_t>(std::min<std::int64_t>(rows, 8), static_cast<std::int64_t>(part * static_cast<double>(rows)));
  std::vector<std::int64_t> tokens;
  for (std::int64_t i = 0; i < count; ++i) tokens.push_back(rows - 1 - i * rows / count);
  std::sort(tokens.begin(), tokens.end());
  return tokens;
}

DType type_of_part(const Case& c) { return has_part(c) ? c.batch.output.dtype : DType::f32; }

/// An exchange of 16-bit parts rounds each part once; without a record the rounding is unknown.
DType assumed_type(const Case& c) {
  const DType query = c.batch.query.dtype;
  return has_part(c) ? c.batch.output.dtype : query == DType::f16 || query == DType::bf16 ? query : DType::f32;
}

void judge_lse(double seen, double wanted, double tolerance, std::size_t cell, std::int64_t token, std::int64_t heads,
               Judged& found) {
  const bool same = seen == wanted || (std::isnan(seen) && std::isnan(wanted)) || std::fabs(seen - wanted) <= tolerance;
  ++found.num_elements;
  if (!same && found.num_wrong++ == 0)
    found.first = formatted("row {} head {} lse: {:.6g}, expected {:.6g} +- {:.2g}", token,
                            cell % static_cast<std::size_t>(heads), seen, wanted, tolerance);
}

/// Compares a rank's recorded part with what it should be; lse counts as one element more of each cell.
void judge_part(const Numbers& expected, const Numbers& recorded, const std::vector<std::int64_t>& tokens, DType type,
                RankPart& part, std::vector<bool>& wrong) {
  Judged found;
  const auto dims = static_cast<std::size_t>(expected.dims);
  wrong.assign(expected.lse.size(), false);
  for (std::size_t cell = 0; cell < expected.lse.size(); ++cell) {
    const auto first = static_cast<std::ptrdiff_t>(cell * dims), end = static_cast<std::ptrdiff_t>((cell + 1) * dims);
    const Predicted wanted{{expected.out.begin() + first, expected.out.begin() + end},
                           {expected.out_tolerance.begin() + first, expected.out_tolerance.begin() + end}};
    const std::int64_t before = found.num_wrong;
    const std::int64_t token = tokens[cell / static_cast<std::size_t>(expected.heads)];
    judge_cell(wanted, recorded, cell, token, type, found);
    judge_lse(recorded.lse[cell], expected.lse[cell], expected.lse_tolerance[cell], cell, token, expected.heads, found);
    wrong[cell] = found.num_wrong > before;
  }
  part.right = found.num_wrong == 0;
  part.num_elements = found.num_elements;
  part.num_wrong = found.num_wrong;
  part.worst_ratio = found.worst_ratio;
}

/// Cells of one kind, of each row in turn: one of every row, and more as long as there are few.
std::vector<std::size_t> cells_of_rows(const std::vector<bool>& wrong, bool kind, std::size_t heads) {
  std::vector<std::size_t> chosen;
  for (std::size_t turn = 0; turn < heads; ++turn) {
    if (turn > 0 && chosen.size() >= kCellsOfKeyFaults) break;
    for (std::size_t row = 0; row * heads < wrong.size(); ++row) {
      std::size_t nth = 0;
      for (std::size_t cell = row * heads; cell < (row + 1) * heads; ++cell)
        if (wrong[cell] == kind && nth++ == turn) chosen.push_back(cell);
    }
  }
  return chosen;
}

/// Cells on which a fault of keys is tried: some of every wrong row first, which a cause must explain; then right ones, which it
/// must leave alone.
std::vector<std::size_t> cells_to_try(const std::vector<bool>& wrong, std::int64_t heads) {
  std::vector<std::size_t> chosen = cells_of_rows(wrong, true, static_cast<std::size_t>(heads));
  std::vector<std::size_t> right = cells_of_rows(wrong, false, static_cast<std::size_t>(heads));
  right.resize(std::min(right.size(), kCellsOfKeyFaults));
  chosen.insert(chosen.end(), right.begin(), right.end());
  return chosen;
}

RankSuspicion suspicion_of(const faults_detail::RankFault& fault, const faults_detail::RankSuspect& suspect,
                           const Judged& found) {
  return {fault.info.id, fault.info.text, suspect.detail, fault.info.next, found.num_wrong == 0, found.first};
}

/// Sorts suspects: those that explain come first. Of the others, one suspect of each fault is kept.
void settle(std::vector<RankSuspicion>& list) {
  std::stable_sort(list.begin(), list.end(),
                   [](const RankSuspicion& a, const RankSuspicion& b) { return a.explains > b.explains; });
  std::vector<RankSuspicion> kept;
  for (RankSuspicion& s : list) {
    const bool again = std::any_of(kept.begin(), kept.end(), [&](const RankSuspicion& k) { return k.fault == s.fault; });
    if (s.explains || !again) kept.push_back(std::move(s));
  }
  list = std::move(kept);
}

/// Outputs are right, and every lse is 1 / ln 2 times what it should be.
RankSuspicion lse_in_base_2(const RankScene& scene, std::size_t rank, const Numbers& expected) {
  const auto& catalogue = faults_detail::rank_fault_catalogue();
  const auto named = std::find_if(catalogue.begin(), catalogue.end(),
                                  [](const faults_detail::RankFault& f) { return f.info.id == "one_rank_lse_base_2"; });
  const Numbers& recorded = scene.parts[rank];
  Judged found;
  for (std::size_t cell = 0; cell < expected.lse.size(); ++cell)
    judge_lse(recorded.lse[cell], expected.lse[cell] * std::numbers::log2e, std::numbers::log2e * expected.lse_tolerance[cell],
              cell, scene.tokens[cell / static_cast<std::size_t>(expected.heads)], expected.heads, found);
  return suspicion_of(*named, {formatted("rank {} gives its lse in base 2", rank), {}}, found);
}

/// A rank whose part is wrong: faults of keys, then the search for a cause in the rank's own batch.
void explain_part(const RankScene& scene, const Facts& facts, std::size_t rank, const std::vector<bool>& wrong,
                  const Numbers& expected, const DiagnoseOptions& options, RankPart& part) {
  const Numbers& recorded = scene.parts[rank];
  const auto dims = static_cast<std::size_t>(recorded.dims);
  const DType type = type_of_part(*scene.captures.cases[rank]);
  part.suspicions.push_back(lse_in_base_2(scene, rank, expected));
  for (const faults_detail::RankFault& fault : faults_detail::rank_fault_catalogue()) {
    if (fault.of_merge) continue;
    for (const faults_detail::RankSuspect& suspect : fault.suspects(facts, scene.deal)) {
      faults_detail::RankModel model(facts, scene.deal);
      suspect.plant(model);
      Judged found;
      for (const std::size_t cell : cells_to_try(wrong, recorded.heads)) {
        const std::int64_t row = static_cast<std::int64_t>(cell) / recorded.heads;
        const RowHead at{scene.tokens[static_cast<std::size_t>(row)], static_cast<std::int64_t>(cell) % recorded.heads};
        const RowResult result = part_of_rank(model, static_cast<std::int64_t>(rank), at);
        Predicted wanted{result.out, std::vector<double>(dims)};
        for (std::size_t d = 0; d < dims; ++d)  // the keys differ by a few: the tolerance is that of the right part, twice
          wanted.tolerance[d] =
              2 * expected.out_tolerance[cell * dims + d] + 2 * numerics::output_type(type).roundoff * std::fabs(result.out[d]);
        judge_cell(wanted, recorded, cell, at.token, type, found);
        judge_lse(recorded.lse[cell], result.lse, 2 * expected.lse_tolerance[cell], cell, at.token, recorded.heads, found);
        if (found.num_wrong > 0) break;
      }
      part.suspicions.push_back(suspicion_of(fault, suspect, found));
    }
  }
  settle(part.suspicions);
  if (!part.suspicions.empty() && part.suspicions.front().explains) return;
  if (Result<Diagnosis> own = diagnosed(scene.own[rank], options, &facts); own.ok()) part.own = std::move(own).value();
}

/// The model's prediction of one cell: a merge of the parts, or attention by the model's own ranks.
Predicted predict_cell(const RankScene& scene, const faults_detail::RankModel& model, bool of_merge, std::size_t row,
                       std::int64_t head, DType type) {
  const Numbers& first = scene.parts.front();
  const std::size_t from = first.cell(static_cast<std::int64_t>(row), model.head(head));
  std::vector<double> lse;
  for (const Numbers& part : scene.parts) lse.push_back(part.lse[from]);
  Predicted p = merged_cell(scene.parts, model.shares(lse), from, type);
  if (of_merge) return p;
  // A rank attends to other keys: take twice the tolerance of the right merge, which has as many keys.
  const RowResult result = merged_row(model, {scene.tokens[row], head});
  p.out = result.out;
  for (std::size_t d = 0; d < p.out.size(); ++d)
    p.tolerance[d] = 2 * p.tolerance[d] + 2 * numerics::output_type(type).roundoff * std::fabs(p.out[d]);
  return p;
}

/// Heads that a rank's result holds.
std::pair<std::int64_t, std::int64_t> heads_of_result(const RankScene& scene, std::size_t rank) {
  const std::int64_t heads = scene.parts.front().heads, world = static_cast<std::int64_t>(scene.captures.world());
  if (!scene.captures.notes[rank].own_heads) return {0, heads};
  const std::int64_t share = heads / world, first = static_cast<std::int64_t>(rank) * share;
  return {first, first + share};
}

/// Compares the result of a rank with what a model predicts; `cells` empty: all of them. Stops at the first wrong cell if asked.
Judged compare_result(const RankScene& scene, const faults_detail::RankModel& model, bool of_merge, std::size_t rank,
                      const Numbers& observed, std::vector<bool>* wrong, const std::vector<std::size_t>& cells) {
  Judged found;
  const DType type = scene.captures.cases[rank]->observed.dtype;
  const auto [first, end] = heads_of_result(scene, rank);
  const auto judge = [&](std::size_t cell) {
    const std::int64_t head = static_cast<std::int64_t>(cell) % observed.heads;
    if (head < first || head >= end) return;
    const std::size_t row = cell / static_cast<std::size_t>(observed.heads);
    const std::int64_t before = found.num_wrong;
    judge_cell(predict_cell(scene, model, of_merge, row, head, type), observed, cell, scene.tokens[row], type, found);
    if (wrong != nullptr) (*wrong)[cell] = found.num_wrong > before;
  };
  if (cells.empty()) {
    for (std::size_t cell = 0; cell < scene.parts.front().lse.size(); ++cell)
      if (wrong != nullptr || found.num_wrong == 0) judge(cell);
  } else {
    for (const std::size_t cell : cells)
      if (found.num_wrong == 0) judge(cell);
  }
  return found;
}

void explain_result(const RankScene& scene, const Facts& facts, std::size_t rank, const Numbers& observed,
                    const std::vector<bool>& wrong, RankResult& result) {
  for (const faults_detail::RankFault& fault : faults_detail::rank_fault_catalogue()) {
    if (!fault.of_merge && scene.parts_recorded) continue;  // the parts are what they are
    for (const faults_detail::RankSuspect& suspect : fault.suspects(facts, scene.deal)) {
      faults_detail::RankModel model(facts, scene.deal);
      suspect.plant(model);
      const std::vector<std::size_t> cells = fault.of_merge ? std::vector<std::size_t>{} : cells_to_try(wrong, observed.heads);
      result.suspicions.push_back(
          suspicion_of(fault, suspect, compare_result(scene, model, fault.of_merge, rank, observed, nullptr, cells)));
    }
  }
  settle(result.suspicions);
}

bool same_bits(const Case& a, const Case& b) {
  const Tensor &x = a.observed, &y = b.observed;
  if (x.dtype != y.dtype || !x.is_contiguous() || !y.is_contiguous()) return false;
  return std::memcmp(x.data, y.data, static_cast<std::size_t>(x.num_elements() * itemsize(x.dtype))) == 0;
}

/// Groups ranks with equal results, in order of their first rank. Under own_heads every rank has a result of its own.
std::vector<RankResult> grouped_results(const RankCaptures& captures) {
  std::vector<RankResult> groups;
  for (std::size_t rank = 0; rank < captures.world(); ++rank) {
    const auto same = [&](const RankResult& r) {
      return !captures.notes[rank].own_heads &&
             same_bits(*captures.cases[static_cast<std::size_t>(r.ranks[0])], *captures.cases[rank]);
    };
    auto found = std::find_if(groups.begin(), groups.end(), same);
    if (found == groups.end()) found = groups.insert(groups.end(), RankResult{});
    found->ranks.push_back(static_cast<std::int32_t>(rank));
  }
  return groups;
}

Status judge_parts(RankScene& scene, const Facts& facts, const DiagnoseOptions& options, RankDiagnosis& d) {
  std::vector<Numbers> expected;
  for (std::size_t rank = 0; rank < scene.captures.world(); ++rank) {
    const Case& c = *scene.captures.cases[rank];
    const Result<Reference> reference =
        quire::reference(scene.own[rank].batch, scene.own[rank].cache, scene.own[rank].options, scene.tokens);
    if (!reference.ok()) return {reference.status().code(), formatted("rank {}: {}", rank, reference.status().message())};
    expected.push_back(expected_part(reference.value(), assumed_type(c)));
    scene.parts.push_back(has_part(c) ? numbers_of(c.batch.output, c.batch.lse, scene.tokens) : expected.back());
    scene.parts_recorded = scene.parts_recorded && has_part(c);
  }
  for (std::size_t rank = 0; rank < scene.captures.world(); ++rank) {
    RankPart part;
    part.rank = static_cast<std::int32_t>(rank);
    part.recorded = has_part(*scene.captures.cases[rank]);
    std::vector<bool> wrong;
    if (part.recorded)
      judge_part(expected[rank], scene.parts[rank], scene.tokens, type_of_part(*scene.captures.cases[rank]), part, wrong);
    if (part.recorded && !part.right) explain_part(scene, facts, rank, wrong, expected[rank], options, part);
    d.parts.push_back(std::move(part));
  }
  return {};
}

void judge_results(const RankScene& scene, const Facts& facts, RankDiagnosis& d) {
  for (RankResult& result : d.results) {
    const auto rank = static_cast<std::size_t>(result.ranks.front());
    const Numbers observed = numbers_of(scene.captures.cases[rank]->observed, Tensor{}, scene.tokens);
    std::vector<bool> wrong(scene.parts.front().lse.size(), false);
    const faults_detail::RankModel truth(facts, scene.deal);
    const Judged found = compare_result(scene, truth, /*of_merge=*/true, rank, observed, &wrong, {});
    result.right = found.num_wrong == 0;
    result.num_elements = found.num_elements;
    result.num_wrong = found.num_wrong;
    result.worst_ratio = found.worst_ratio;
    if (!result.right) explain_result(scene, facts, rank, observed, wrong, result);
  }
}

DiagnosisVerdict verdict_of_ranks(const RankDiagnosis& d) {
  const auto explained = [](const std::vector<RankSuspicion>& list) { return !list.empty() && list.front().explains; };
  bool wrong = false, known = true;
  for (const RankPart& part : d.parts) {
    if (!part.recorded || part.right) continue;
    wrong = true;
    known = known && (explained(part.suspicions) || (part.own && part.own->verdict == DiagnosisVerdict::cause_found));
  }
  for (const RankResult& result : d.results) {
    wrong = wrong || !result.right;
    known = known && (result.right || explained(result.suspicions));
  }
  return !wrong ? DiagnosisVerdict::right : known ? DiagnosisVerdict::cause_found : DiagnosisVerdict::unknown_cause;
}

/// Rules that a rank's own batch breaks.
std::vector<std::string> broken_rules(const RankScene& scene) {
  std::vector<std::string> list;
  for (std::size_t rank = 0; rank < scene.own.size(); ++rank)
    if (const Findings f = check(scene.own[rank].batch, scene.own[rank].cache, scene.own[rank].options, Depth::tables); !f.ok())
      list.push_back(
          formatted("{}: {}", named(*scene.captures.cases[rank], static_cast<std::int64_t>(rank)), f.status().message()));
  return list;
}

Result<RankDiagnosis> search_ranks(std::span<const Case> captures, const DiagnoseOptions& options) {
  Result<RankCaptures> sorted = sorted_captures(captures);
  if (!sorted.ok()) return sorted.status();
  RankScene scene{std::move(sorted).value(), {}, {}, {}, {}, true, {}};
  RankDiagnosis d;
  d.shard = scene.captures.notes.front().shard;
  d.disagreements = disagreements_of(scene.captures);
  d.verdict = DiagnosisVerdict::broken_batch;
  if (!d.disagreements.empty()) return d;
  for (std::size_t rank = 0; rank < scene.captures.world(); ++rank) {
    Result<Case> own = own_case(scene.captures, rank);
    if (!own.ok()) return own.status();
    scene.own.push_back(std::move(own).value());
  }
  d.disagreements = broken_rules(scene);
  if (!d.disagreements.empty()) return d;
  Result<Case> whole = whole_case(scene.captures);
  if (!whole.ok()) return whole.status();
  scene.whole = std::move(whole).value();
  scene.deal = {.world = d.shard.world, .interleave = d.shard.interleave, .span = d.shard.span};
  scene.tokens = rows_to_compare(scene.whole, options);
  const Facts facts(scene.whole.batch, scene.whole.cache, scene.whole.options);
  d.num_tokens = facts.num_tokens;
  d.num_q_heads = facts.num_q_heads;
  d.compared_rows = static_cast<std::int64_t>(scene.tokens.size());
  if (Status s = judge_parts(scene, facts, options, d); !s.ok()) return s;
  d.results = grouped_results(scene.captures);
  judge_results(scene, facts, d);
  d.verdict = verdict_of_ranks(d);
  return d;
}

}  // namespace
}  // namespace diagnose_detail

Result<RankDiagnosis> diagnose_ranks(std::span<const Case> captures, const DiagnoseOptions& options) try {
  if (const std::string error = duration_error(options.seconds); !error.empty())
    return Status(Code::invalid_argument, "diagnose_ranks: seconds: " + error);
  return diagnose_detail::search_ranks(captures, options);
} catch (...) {
  return batch::caught("diagnose_ranks");
}

}  // namespace quire
