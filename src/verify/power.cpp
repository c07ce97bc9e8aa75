// SPDX-License-Identifier: Apache-2.0
// See power.h.
#include "verify/power.h"

#include <algorithm>
#include <map>

#include "threads/on_threads.h"
#include "verify/judge.h"
#include "verify/mutants.h"

namespace quire::verify_detail {
namespace {

/// Checks of what one call computes; those of bits and calls are for the mutants of the call.
const std::set<std::string> kValueChecks = {"values", "lse", "rows", "nan_poison", "garbage_poison", "canaries"};

/// visible pairs x heads x dims beyond which planting every fault would take too long.
constexpr std::int64_t kMaxWork = 40'000'000;

/// Orders cases: the first case of every hazard, then the second of each, ..., because the first cases kill most faults. Refused
/// cases come last.
void interleave(std::vector<PowerCase>& cases) {
  std::map<std::string, int> seen;
  std::vector<std::pair<int, std::size_t>> order;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Entry& e = cases[i].entry;
    const int turn = seen[e.matrix + e.name]++;
    // The case with every option kills the most; small_notes and random lines cost more.
    const int first = e.name == "EverythingAtOnce" && turn == 0 ? -1 : e.matrix == "hazards" ? turn : 1000 + turn;
    order.emplace_back(first + (cases[i].asked ? 0 : 1'000'000), i);
  }
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<PowerCase> sorted;
  for (const auto& [turn, i] : order) sorted.push_back(std::move(cases[i]));
  cases = std::move(sorted);
}

class Power {
 public:
  Power(std::vector<PowerCase> cases, const PowerOptions& options)
      : cases_(std::move(cases)), options_(options), mutants_(catalogue_mutants()) {
    interleave(cases_);
    for (Mutant& m : call_mutants()) mutants_.push_back(std::move(m));
    for (Mutant& m : view_mutants()) {
      m.target.strides = options.strides;
      mutants_.push_back(std::move(m));
    }
    for (const Mutant& m : mutants_)  // can_show becomes true at the first case that shows the mutant
      results_.push_back({.id = m.id, .family = m.family, .text = m.text, .can_show = false});
    for (const std::set<std::string>* checks : {&options.asked, &options.skipped})
      all_checks_.insert(checks->begin(), checks->end());
  }

  std::vector<MutantResult> measure() {
    for (const PowerCase& c : cases_) {
      const Problem& p = c.entry.line.problem;
      if (std::ranges::all_of(results_, &MutantResult::killed)) break;
      if (!go_on()) return {};
      if (p.visible_pairs() > kMaxWork / std::max<std::int64_t>(1, p.num_q_heads * p.head_dim)) continue;
      plant_catalogue(c);
      plant_views(c);
      plant_calls(c);
    }
    for (std::size_t i = 0; i < mutants_.size(); ++i) settle(i);
    return go_on() ? std::move(results_) : std::vector<MutantResult>{};
  }

 private:
  bool go_on() const {
    const auto killed = std::count_if(results_.begin(), results_.end(), [](const MutantResult& r) { return r.killed; });
    return !options_.progress || options_.progress(static_cast<std::size_t>(killed), results_.size());
  }

  enum class Kind { catalogue, views, call };
  static Kind kind_of(const Mutant& m) { return m.of_views ? Kind::views : m.check.empty() ? Kind::catalogue : Kind::call; }

  /// Indices of mutants of a kind that no check has noticed yet.
  std::vector<std::size_t> alive(Kind kind) const {
    std::vector<std::size_t> list;
    for (std::size_t i = 0; i < mutants_.size(); ++i)
      if (!results_[i].killed && kind_of(mutants_[i]) == kind) list.push_back(i);
    return list;
  }

  template <typename Visit>
  void in_parallel(std::size_t count, Visit&& visit) const {
    threads::for_each_index(count, threads::at_least_one(options_.num_threads), visit);
  }

  /// The catalogue on one case, phase by phase: the case is shared, so all judges wait while it is poisoned.
  void plant_catalogue(const PowerCase& c) {
    const std::vector<std::size_t> list = alive(Kind::catalogue);
    if (list.empty()) return;
    Result<Prepared> prepared = with_tolerance(prepare(c.entry), options_.rounded_rows);
    if (!prepared.ok()) return;
    Prepared& p = prepared.value();
    std::set<std::string> checks;
    std::set_intersection(all_checks_.begin(), all_checks_.end(), kValueChecks.begin(), kValueChecks.end(),
                          std::inserter(checks, checks.end()));
    std::vector<Judge> judges;
    for (const std::size_t i : list) judges.emplace_back(mutants_[i].target, p, checks);
    const auto phase = [&](PoisonKind kind, void (Judge::*run)()) {
      if (!poison(p, kind).ok()) return;
      in_parallel(judges.size(), [&](std::size_t j) {
        if (!judges[j].failed() && !judges[j].refused()) (judges[j].*run)();
      });
    };
    phase(PoisonKind::zero, &Judge::on_zeros);
    if (checks.contains("nan_poison")) phase(PoisonKind::nan, &Judge::on_nan);
    if (checks.contains("garbage_poison")) phase(PoisonKind::finite_garbage, &Judge::on_garbage);
    for (std::size_t j = 0; j < judges.size(); ++j) {
      note(list[j], c, judges[j].result());
      if (c.asked && judges[j].moved_an_element()) results_[list[j]].can_show = true;
    }
  }

  /// Mutants of views change no case, so all of them are asked the same prepared case.
  void plant_views(const PowerCase& c) {
    std::vector<std::size_t> list = alive(Kind::views);
    if (list.empty() || options_.skipped.contains("strided_inputs")) return;
    const Result<Prepared> prepared = with_tolerance(prepare(c.entry), options_.rounded_rows);
    if (!prepared.ok()) return;
    const Prepared& p = prepared.value();
    std::erase_if(list, [&](std::size_t i) { return !mutants_[i].can_show(p); });
    std::set<std::string> checks = {"strided_inputs"};
    if (!all_checks_.contains("strided_inputs")) checks.clear();
    std::vector<Judge> judges;
    for (const std::size_t i : list) judges.emplace_back(mutants_[i].target, p, checks);
    if (judges.empty() || !judges.front().no_views().empty()) return;
    in_parallel(list.size(), [&](std::size_t j) {
      judges[j].on_zeros();
      judges[j].on_bits();
      MutantResult& r = results_[list[j]];
      if (c.asked && !r.can_show && !judges[j].failed()) r.can_show = moves_an_element(judges[j], mutants_[list[j]].target, p);
    });
    for (std::size_t j = 0; j < list.size(); ++j) note(list[j], c, judges[j].result());
  }

  static bool moves_an_element(const Judge& judge, const Target& target, const Prepared& p) {
    for (const PoisonKind between : {PoisonKind::nan, PoisonKind::finite_garbage}) {
      const Prepared viewed{p.entry, judge.view(between), p.expected, p.tokens, p.sparse};
      Judge again(target, viewed, {});
      again.on_zeros();
      if (again.moved_an_element()) return true;
    }
    return false;
  }

  /// Mutants of the call change what they must not, so each gets a case of its own.
  void plant_calls(const PowerCase& c) {
    for (const std::size_t i : alive(Kind::call)) {
      Result<Prepared> prepared = with_tolerance(prepare(c.entry), options_.rounded_rows);
      if (!prepared.ok()) return;
      if (c.asked && mutants_[i].can_show(prepared.value())) results_[i].can_show = true;
      note(i, c, judge(mutants_[i].target, prepared.value(), all_checks_));
    }
  }

  /// The first failed check that the target was asked kills; any other is remembered.
  void note(std::size_t i, const PowerCase& c, const CaseResult& result) {
    MutantResult& r = results_[i];
    for (const CheckResult& check : result.checks) {
      if (check.state != CheckState::fail || r.killed) continue;
      const bool asked = c.asked && options_.asked.contains(check.check);
      if (!asked && !r.check.empty()) continue;
      r.killed = asked;
      r.check = check.check;
      r.name = result.name;
      r.line = result.line;
      r.finding = check.text;
      if (const std::string special = text_of(c.entry.special); !special.empty()) r.finding += " (" + special + ")";
    }
  }

  /// Sets `asked` and `can_show`. A mutant that only skipped checks or refused cases notice does not count as missed: no check
  /// that the target was asked, on a case that it served, could have caught the mutant.
  void settle(std::size_t i) {
    MutantResult& r = results_[i];
    const std::string& check = mutants_[i].check;
    const bool check_skipped = !check.empty() && options_.skipped.contains(check);
    r.asked = r.killed || (r.check.empty() && !check_skipped);
    // A fault that was noticed can show, even if only on a case that was not asked. If a check of values is left out, an
    // unnoticed fault counts as one that can show.
    const bool complete = std::includes(all_checks_.begin(), all_checks_.end(), kValueChecks.begin(), kValueChecks.end());
    r.can_show = r.can_show || r.killed || !r.asked || (check.empty() && !complete);
  }

  std::vector<PowerCase> cases_;
  const PowerOptions& options_;
  std::vector<Mutant> mutants_;
  std::vector<MutantResult> results_;
  std::set<std::string> all_checks_;
};

}  // namespace

std::vector<MutantResult> measure_power(std::vector<PowerCase> cases, const PowerOptions& options) {
  return Power(std::move(cases), options).measure();
}

}  // namespace quire::verify_detail
