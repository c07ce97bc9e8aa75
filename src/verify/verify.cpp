// SPDX-License-Identifier: Apache-2.0
// verify(): runs the matrices, shrinks what fails, measures the suite's own power, and writes the verdict.
#include <algorithm>
#include <chrono>
#include <future>
#include <map>
#include <set>
#include <utility>

#include "batch/caught.h"
#include "quire/plan.hpp"
#include "quire/tools/faults.hpp"
#include "text/duration.h"
#include "text/formatted.h"
#include "text/utc.h"
#include "verify/failure.h"
#include "verify/judge.h"
#include "verify/power.h"
#include "verify/reach.h"
#include "verify/shared.h"
#include "verify/supported.h"

namespace quire {
namespace verify_detail {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kShrunkPerCheckVerify = 2;  ///< failing cases that are shrunk, for each check that fails first
constexpr int kPeerThreads = 2;           // threads of measure_peer()
constexpr int kPictures = 8;              ///< failing cases that get pictures

double seconds_since_verify(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::string this_machine() {
  const Device d = host_device();
  return formatted("{}, {} thread{}", d.name, d.num_threads, d.num_threads == 1 ? "" : "s");
}

/// Cases to run, and cases that have no form which the target supports.
struct Suite {
  std::vector<Entry> entries, left_out;
  std::string supported;  ///< VerifyOptions::supports in words, or empty
};

Status add_matrix(std::vector<Entry>& list, const std::string& name, const VerifyOptions& options) {
  const auto add = [&](std::vector<Entry> more) {
    list.insert(list.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  };
  const bool all = name == "all";
  if (!all && name != "hazards" && name != "random" && name != "notes")
    return {Code::invalid_argument, formatted("no matrix is called '{}'; there are notes, hazards, random and all", name)};
  const AskedTypes asked{options.types, options.head_dims, options.layouts};
  const std::int64_t random_cases = options.quick ? std::min<std::int64_t>(options.random_cases, 40) : options.random_cases;
  if (all || name == "hazards") add(hazard_matrix(asked, options.quick));
  if (all || name == "random") add(random_matrix(options.seed, random_cases, asked));
  if (all || name == "notes") add(notes_matrix(options.quick));
  return {};
}

/// Changes each entry to a supported form; entries that become equal run once.
Status bring_into_form(Suite& suite, const VerifyOptions& options) {
  Result<Supported> learnt = Supported::learn(options.supports, {options.types, options.head_dims, options.layouts});
  if (!learnt.ok()) return learnt.status();
  suite.supported = learnt->text();
  std::vector<Entry> all = std::exchange(suite.entries, {});
  std::set<std::string> seen;
  for (Entry& entry : all) {
    const bool notes = entry.matrix == "notes";
    std::optional<ProblemLine> line =
        notes && !options.supports(entry.line) ? std::nullopt : learnt->fit(entry, /*may_drop_options=*/entry.matrix == "random");
    if (!line) {
      suite.left_out.push_back(std::move(entry));
      continue;
    }
    ProblemLine without_seed = *line;
    without_seed.seed = 0;
    if (!seen.insert(entry.matrix + entry.name + to_string(without_seed)).second) continue;
    entry.line = std::move(*line);
    suite.entries.push_back(std::move(entry));
  }
  return {};
}

Status check_names_of(const VerifyOptions& options) {
  if (Status s = check_asked({options.types, options.head_dims, options.layouts}); !s.ok()) return s;
  const bool changes =
      std::any_of(options.matrices.begin(), options.matrices.end(), [](const std::string& name) { return name != "notes"; });
  if (!changes && (!options.types.empty() || !options.head_dims.empty() || !options.layouts.empty()))
    return {Code::invalid_argument,
            "types, head_dims and layouts are for the matrices hazards and random, which are not among those asked for"};
  for (const std::string& check : options.disabled_checks)
    if (std::find(check_names().begin(), check_names().end(), check) == check_names().end())
      return {Code::invalid_argument, formatted("no check is called '{}'; there are {}", check, fmt::join(check_names(), ", "))};
  return {};
}

/// Drops entries for which `has` is true. Random lines stay, and `remove` takes from them what the target does not know.
template <typename Has, typename Remove>
void drop_but_random(std::vector<Entry>& entries, Has&& has, Remove&& remove) {
  std::erase_if(entries, [&](const Entry& entry) { return entry.matrix != "random" && has(entry); });
  for (Entry& entry : entries) remove(entry.line);
}

/// The matrices' lines, as a target takes them that knows no padding rows, no masks, no V of its own kind.
void keep_what_target_knows(std::vector<Entry>& entries, const Target& target, const VerifyOptions& options) {
  const auto drop = [&entries](auto&& of) { std::erase_if(entries, of); };
  const auto is_of_latent_rows = [](const Entry& entry) { return entry.line.problem.kv_dtype == DType::fp8_ds_mla; };
  if (!target.padding)
    for (Entry& entry : entries) {
      entry.line.problem.padding = Padding::refused;
      entry.line.problem.num_padding_rows = 0;
    }
  if (!target.masks)  // hazards of masks mean nothing without masks
    drop_but_random(
        entries, [](const Entry& entry) { return has_masks(entry.line.problem); },
        [](ProblemLine& line) { remove_masks(line.problem); });
  if (!target.v_head_dim) {
    drop(is_of_latent_rows);  // latent rows have no other V
    drop_but_random(entries, [](const Entry& entry) { return has_own_v(entry.line); }, remove_own_v);
  }
  if (!target.eight_bit_rows && options.types.empty())  // a target that takes 8-bit queries is asked for them by types, too
    drop([](const Entry& entry) { return has_eight_bit_rows(entry.line.problem); });
  if (!target.unlike_types)
    drop_but_random(entries, [](const Entry& entry) { return has_unlike_types(entry.line); }, remove_unlike_types);
  if (!target.block_scales) drop([](const Entry& entry) { return entry.line.problem.has_block_scales(); });
  if (!target.token_scales) drop([](const Entry& entry) { return has_own_scales(entry.line.problem); });
}

Result<Suite> suite_of(const Target& target, const VerifyOptions& options) {
  if (Status s = check_names_of(options); !s.ok()) return s;
  Suite suite;
  for (const std::string& name : options.matrices)
    if (Status s = add_matrix(suite.entries, name, options); !s.ok()) return s;
  keep_what_target_knows(suite.entries, target, options);
  if (options.supports && !suite.entries.empty())
    if (Status s = bring_into_form(suite, options); !s.ok()) return s;
  for (const std::string& text : options.lines) {
    Result<ProblemLine> line = parse_problem_line(text);
    if (!line.ok()) return line.status();
    suite.entries.push_back({"lines", "Line", std::move(line).value(), Special::none});
  }
  if (suite.entries.empty()) return Status(Code::invalid_argument, "no matrix and no line to verify");
  return suite;
}

/// Checks that the target's promises and skips leave out.
std::set<std::string> skipped_checks(const Target& target) {
  std::set<std::string> skipped;
  for (const std::string& check : check_names())
    if (target.skip.contains(check)) skipped.insert(check);
  if (!target.deterministic) skipped.insert({"repeat", "strides", "threads", "alone", "chunks"});
  if (!target.in_place) skipped.insert({"rows", "strides"});
  if (target.strides == Strides::none) skipped.insert("strided_inputs");
  if (!target.batch_invariant) skipped.insert({"alone", "chunks"});
  if (target.variants.empty()) skipped.insert("threads");
  return skipped;
}

class Run {
 public:
  Run(const Target& target, const VerifyOptions& options, Suite suite)
      : target_(target),
        options_(options),
        entries_(std::move(suite.entries)),
        left_out_(std::move(suite.left_out)),
        asked_(asked_checks(target, options.disabled_checks)),
        rounded_rows_(rounded_rows_of(target)) {
    verdict_.target = target.name;
    verdict_.date = utc_now("%Y-%m-%d");
    verdict_.device = this_machine();
    verdict_.supported = std::move(suite.supported);
    for (const Entry& e : left_out_) ++verdict_.left_out[e.matrix + " " + e.name];
    total_ = static_cast<std::int64_t>(entries_.size() + (options.power ? faults().size() : 0));
  }

  Result<Verdict> run() {
    const auto start = Clock::now();
    run_cases();
    verdict_.shared = what_failures_share(verdict_.cases);
    shrink_failures();
    if (options_.power && !stopped_ && verdict_.shared.empty()) run_power();
    if (options_.peer_power && !stopped_)
      if (Status s = run_peer(); !s.ok()) return s;
    verdict_.seconds = seconds_since_verify(start);
    conclude();
    return std::move(verdict_);
  }

 private:
  bool go_on(std::int64_t done, const std::string& label) {
    if (!stopped_ && options_.progress && !options_.progress(done, total_, label)) stopped_ = true;
    return !stopped_;
  }

  /// The next case is made while the target works on this one.
  void run_cases() {
    const auto start_preparing = [this](std::size_t i) {
      // Deferred: by the caller, where the system grants no thread.
      return std::async(std::launch::async | std::launch::deferred, [this, i]() -> Result<Prepared> {
        if (skip_reason(entries_[i])) return Status(Code::unsupported, *skip_reason(entries_[i]));
        try {
          return with_tolerance(prepare(entries_[i]), rounded_rows_);
        } catch (...) {
          return batch::caught("prepare");
        }
      });
    };
    std::future<Result<Prepared>> next = start_preparing(0);
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      Result<Prepared> prepared = next.get();
      if (!go_on(static_cast<std::int64_t>(i), entries_[i].matrix + " " + entries_[i].name)) return;
      if (i + 1 < entries_.size()) next = start_preparing(i + 1);
      const auto start = Clock::now();
      CaseResult result = prepared.ok() ? judge(target_, prepared.value(), asked_) : refusal(entries_[i], prepared.status());
      result.seconds = seconds_since_verify(start);
      if (const std::string special = text_of(entries_[i].special); !special.empty()) result.special = special;
      if (result.status == CaseStatus::fail && prepared.ok()) explain_failure(result, prepared.value());
      verdict_.cases.push_back(std::move(result));
    }
    go_on(static_cast<std::int64_t>(entries_.size()), options_.power ? "planting faults" : "done");
  }

  std::optional<std::string> skip_reason(const Entry& entry) const {
    const auto skip = target_.skip.find(entry.name);
    return skip == target_.skip.end() ? std::nullopt : std::optional(skip->second);
  }

  static bool is_room(Code code) { return code == Code::unsupported || code == Code::out_of_memory; }

  static CaseResult refusal(const Entry& entry, const Status& status) {
    // Only room may be missing; anything else is a defect of the suite and must not look like a refusal.
    return {.matrix = entry.matrix,
            .name = entry.name,
            .line = to_string(entry.line),
            .status = is_room(status.code()) ? CaseStatus::refused : CaseStatus::fail,
            .reason = status.message()};
  }

  void explain_failure(CaseResult& result, Prepared& p) {
    if (pictures_++ < kPictures) result.pictures = pictures_of_failure(target_, p);
    blame_inputs(result, p);
  }

  /// The first failing cases of each check; one case if a sentence says what all of them share.
  void shrink_failures() {
    std::map<std::string, int> shrunk;
    for (std::size_t i = 0; options_.shrink && !stopped_ && i < verdict_.cases.size(); ++i) {
      CaseResult& result = verdict_.cases[i];
      const CheckResult* const failed = failed_check(result.checks);
      if (result.status != CaseStatus::fail || failed == nullptr || !has_line(entries_[i])) continue;
      if (!verdict_.shared.empty() && !shrunk.empty()) return;
      if (shrunk[failed->check]++ >= kShrunkPerCheckVerify) continue;
      const Limits limits{{options_.types, options_.head_dims, options_.layouts}, options_.supports};
      const Smallest smallest = smallest_that_fails(target_, entries_[i].line, failed->check, limits, options_.shrink_seconds);
      result.reduced_line = smallest.line;
      result.reduced_finding = smallest.finding;
    }
  }

  /// Whether the line says all of a case.
  static bool has_line(const Entry& entry) { return entry.special == Special::none; }

  /// Names the views that the first failures of strided_inputs need.
  void blame_inputs(CaseResult& result, const Prepared& p) {
    for (CheckResult& check : result.checks) {
      if (check.check != "strided_inputs" || check.state != CheckState::fail || blamed_++ >= kShrunkPerCheckVerify) continue;
      const std::string names = inputs_to_blame(target_, p);
      if (!names.empty()) check.text += formatted("; {} as a view is enough", names);
    }
  }

  void run_power() {
    std::vector<PowerCase> cases;
    // Faults that show on the far ones show on others, which cost less.
    const auto takes_part = [](const Entry& e) { return e.matrix != "notes" && !reaches_far(e); };
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      if (takes_part(entries_[i])) cases.push_back({entries_[i], verdict_.cases[i].status != CaseStatus::refused});
    }
    for (const Entry& e : left_out_)
      if (takes_part(e)) cases.push_back({e, false});
    // The notes' own batches are too large to plant 80 faults in; small ones stand in for them if some of them were served.
    const bool notes = std::any_of(verdict_.cases.begin(), verdict_.cases.end(),
                                   [](const CaseResult& c) { return c.matrix == "notes" && c.status != CaseStatus::refused; });
    if (notes)
      for (Entry& e : small_notes_matrix()) cases.push_back({std::move(e), true});
    PowerOptions power;
    power.asked = asked_;
    power.rounded_rows = rounded_rows_;
    power.strides = target_.strides;
    power.skipped = skipped_checks(target_);
    for (const std::string& check : power.skipped) power.asked.erase(check);
    for (const std::string& check : options_.disabled_checks) power.skipped.erase(check);
    const auto first = static_cast<std::int64_t>(entries_.size());
    power.progress = [&](std::size_t killed, std::size_t of) {
      return go_on(std::min(total_, first + static_cast<std::int64_t>(killed)), formatted("{} of {} faults noticed", killed, of));
    };
    if (!cases.empty()) verdict_.power = measure_power(std::move(cases), power);
  }

  Status run_peer() {
    for (const PeerCase& c : peer_cases()) {
      if (!go_on(total_, "the peer's test, " + c.name)) return {};
      Result<PeerPower> power = measure_peer(c, kPeerThreads);
      if (!power.ok()) return power.status();
      verdict_.peer.push_back(std::move(power).value());
    }
    return {};
  }

  void conclude() {
    const auto any = [&](CaseStatus status) { return std::ranges::count(verdict_.cases, status, &CaseResult::status) > 0; };
    const bool mistrusted = !any(CaseStatus::pass) || std::ranges::any_of(verdict_.power, &MutantResult::survived);
    verdict_.verdict = any(CaseStatus::fail) ? VerifyVerdict::fail
                       : stopped_            ? VerifyVerdict::stopped
                       : mistrusted          ? VerifyVerdict::mistrusted
                                             : VerifyVerdict::pass;
    ReachCount reach;
    for (const CaseResult& c : verdict_.cases)
      if (const Result<ProblemLine> line = parse_problem_line(c.line); c.status != CaseStatus::refused && line.ok())
        reach.add(line.value());
    for (const CaseResult& c : verdict_.cases)
      for (const CheckResult& check : c.checks)
        if (check.check == "strided_inputs" && check.state != CheckState::skipped) reach.add(target_.strides);
    verdict_.reach = reach.reach();
    find_smallest();
  }

  /// The failing line that is the least to look at.
  void find_smallest() {
    std::int64_t least = -1;
    for (const CaseResult& c : verdict_.cases) {
      if (c.status != CaseStatus::fail) continue;
      const CheckResult* const failed = failed_check(c.checks);
      const std::string& text = c.reduced_line.empty() ? c.line : c.reduced_line;
      const Result<ProblemLine> line = parse_problem_line(text);
      const Problem* p = line.ok() ? &line->problem : nullptr;
      const std::int64_t size = p == nullptr ? 0 : (p->visible_pairs() + p->num_tokens()) * p->num_q_heads * p->head_dim;
      if (least >= 0 && size >= least) continue;
      least = size;
      const std::string own = failed == nullptr ? c.reason : formatted("{}: {}", failed->check, failed->text);
      verdict_.smallest_line = text + (c.special.empty() ? "" : formatted(" ({})", c.special));
      verdict_.smallest_finding = c.reduced_line.empty() ? own : c.reduced_finding;
    }
  }

  const Target& target_;
  const VerifyOptions& options_;
  std::vector<Entry> entries_, left_out_;
  std::set<std::string> asked_;
  RoundedRows rounded_rows_;
  Verdict verdict_;
  std::int64_t total_ = 0;
  bool stopped_ = false;
  int pictures_ = 0, blamed_ = 0;
};

}  // namespace
}  // namespace verify_detail

Result<Verdict> verify(const Target& target, const VerifyOptions& options) try {
  if (!target.attend) return Status(Code::invalid_argument, "the target has no function to call");
  if (const std::string error = duration_error(options.shrink_seconds); !error.empty())
    return Status(Code::invalid_argument, "verify: shrink_seconds: " + error);
  Result<verify_detail::Suite> suite = verify_detail::suite_of(target, options);
  if (!suite.ok()) return suite.status();
  return verify_detail::Run(target, options, std::move(suite).value()).run();
} catch (...) {
  return batch::caught("verify");
}

}  // namespace quire
