// SPDX-License-Identifier: Apache-2.0
// soak(): fresh random batches for as long as one likes, each asked of every target, resumable after any end.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <optional>

#include "batch/caught.h"
#include "cases/chosen_rows.h"
#include "quire/tools/report.hpp"
#include "text/duration.h"
#include "text/formatted.h"
#include "verify/failure.h"
#include "verify/judge.h"
#include "verify/soak_files.h"
#include "verify/supported.h"

namespace quire {
namespace verify_detail {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kShrunkPerCheck = 5;          ///< findings of one target and check that are shrunk; more of them are listed whole
constexpr std::size_t kFindingsKept = 200;  ///< findings kept in memory; the files hold all
constexpr double kSecondsBetweenLogs = 60;  ///< time between lines of log.txt

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

class Soak {
 public:
  Soak(const std::vector<Target>& targets, const SoakOptions& options, SoakFiles files)
      : targets_(targets),
        options_(options),
        files_(std::move(files)),
        asked_{options.types, options.head_dims, options.layouts} {}

  Result<SoakResult> run() {
    if (Status s = begin(); !s.ok()) return s;
    Status status;
    while (status.ok() && go_on()) status = ask(state_.next);
    if (Status s = end(); !s.ok()) return s;
    if (!status.ok()) return status;
    return std::move(result_);
  }

 private:
  /// A state of the same targets, or a new one.
  Status begin() {
    if (Status s = check_asked(asked_); !s.ok()) return s;
    if (options_.supports) {
      Result<Supported> learnt = Supported::learn(options_.supports, asked_);
      if (!learnt.ok()) return learnt.status();
      supported_ = std::move(learnt).value();
    }
    state_.seed = options_.seed;
    if (Status s = files_.load(state_); !s.ok()) return s;
    if (state_.counts.empty())
      for (const Target& t : targets_) state_.counts.push_back({.target = t.name});
    const bool same = std::equal(targets_.begin(), targets_.end(), state_.counts.begin(), state_.counts.end(),
                                 [](const Target& t, const SoakCounts& c) { return t.name == c.target; });
    if (!same) return {Code::invalid_argument, "the state in this directory is of other targets; name another directory"};
    if (!state_.running.empty()) {
      state_.interrupted.push_back(state_.running);
      if (Status s = files_.log("the process ended while it ran: " + state_.running); !s.ok()) return s;
      state_.running.clear();
      ++state_.next;
    }
    result_.seed = state_.seed;
    result_.first = state_.next;
    before_ = state_.seconds;
    return files_.log(formatted("begin: seed {}, line {}", state_.seed, state_.next));
  }

  bool go_on() {
    const double seconds = seconds_since(start_);
    if (options_.minutes > 0 && seconds >= options_.minutes * 60) return false;
    std::int64_t cases = 0, failed = 0;
    for (const SoakCounts& c : state_.counts) cases += c.cases, failed += c.failed;
    const std::string label = formatted("line {} of seed {}, {} cases, {} failed, {:.0f} of {:.0f} s", state_.next, state_.seed,
                                        cases, failed, seconds, options_.minutes * 60);
    return !options_.progress || options_.progress(label);
  }

  /// The line of an index in a form that is supported, if there is one.
  std::optional<ProblemLine> line_of(std::int64_t index) {
    std::optional<ProblemLine> line = random_line(state_.seed, static_cast<std::uint64_t>(index), asked_);
    if (line && supported_)
      line = supported_->fit({"random", "Random", std::move(*line), Special::none}, /*may_drop_options=*/true);
    return line;
  }

  Status ask(std::int64_t index) {
    const std::optional<ProblemLine> line = line_of(index);
    if (!line) {
      ++state_.next;
      return {};
    }
    const Entry entry{"random", "Random", *line, Special::none};
    state_.running = to_string(entry.line);
    if (Status s = save(); !s.ok()) return s;
    Result<Prepared> prepared = prepare(entry);
    if (!prepared.ok() && prepared.status().code() != Code::unsupported && prepared.status().code() != Code::out_of_memory)
      return prepared.status();
    for (std::size_t i = 0; i < targets_.size() && prepared.ok(); ++i) {
      const Result<bool> passed = ask_one(i, prepared.value());
      if (!passed.ok()) return passed.status();
      if (!passed.value()) prepared = prepare(entry);  // a wrong call may have changed the inputs that the next would get
    }
    state_.running.clear();
    ++state_.next;
    if (seconds_since(logged_) > kSecondsBetweenLogs)
      if (Status s = log_counts(); !s.ok()) return s;
    return {};
  }

  /// Runs one case; false if it failed.
  Result<bool> ask_one(std::size_t i, const Prepared& shared) {
    const Target& target = targets_[i];
    const ProblemLine& line = shared.entry.line;
    if ((!target.eight_bit_rows && has_eight_bit_rows(line.problem)) || (!target.masks && has_masks(line.problem)) ||
        (!target.v_head_dim && has_own_v(line)) || (!target.token_scales && has_own_scales(line.problem)) ||
        (!target.unlike_types && has_unlike_types(line)) || (!target.block_scales && line.problem.has_block_scales())) {
      ++state_.counts[i].cases;
      ++state_.counts[i].refused;
      return true;
    }
    Prepared p = shared;  // the tolerance is the target's own
    if (const RoundedRows rounded = rounded_rows_of(target))
      cases::allow_rounded_rows(p.expected, p.c.batch.query.dtype, rounded(p.c), p.tokens);
    const CaseResult r = judge(target, p, asked_checks(target, {}));
    SoakCounts& counts = state_.counts[i];
    ++counts.cases;
    ++(r.status == CaseStatus::pass ? counts.passed : r.status == CaseStatus::fail ? counts.failed : counts.refused);
    if (r.status == CaseStatus::refused) return true;
    counts.num_elements += r.num_elements;
    counts.num_compared += r.num_compared;
    for (const CheckResult& c : r.checks)
      if (std::isfinite(c.worst_ratio)) counts.worst_ratio = std::max(counts.worst_ratio, c.worst_ratio);
    if (r.status != CaseStatus::fail) return true;
    if (Status s = note(target, p.entry.line, r); !s.ok()) return s;
    return false;
  }

  Status note(const Target& target, const ProblemLine& line, const CaseResult& r) {
    const CheckResult* const failed = failed_check(r.checks);
    SoakFinding f{.target = target.name, .check = failed->check, .text = failed->text, .line = to_string(line)};
    if (options_.shrink && shrunk_[target.name + " " + failed->check]++ < kShrunkPerCheck) {
      const Smallest smallest =
          smallest_that_fails(target, line, failed->check, {asked_, options_.supports}, options_.shrink_seconds);
      f.reduced_line = smallest.line;
      f.reduced_finding = smallest.finding;
    }
    if (Status s = files_.add(f); !s.ok()) return s;
    if (Status s = files_.log(formatted("FAIL {} {}: {}: {}", f.target, f.check, f.line, f.text)); !s.ok()) return s;
    if (result_.findings.size() < kFindingsKept) result_.findings.push_back(std::move(f));
    return {};
  }

  Status save() {
    state_.seconds = before_ + seconds_since(start_);
    return files_.save(state_);
  }

  Status log_counts() {
    logged_ = Clock::now();
    for (const SoakCounts& c : state_.counts)
      if (Status s = files_.log(to_string(c)); !s.ok()) return s;
    return {};
  }

  Status end() {
    if (Status s = save(); !s.ok()) return s;
    if (Status s = log_counts(); !s.ok()) return s;
    if (Status s = files_.log(formatted("end: next line {}", state_.next)); !s.ok()) return s;
    result_.next = state_.next;
    result_.seconds = seconds_since(start_);
    result_.total_seconds = state_.seconds;
    result_.counts = state_.counts;
    result_.interrupted = state_.interrupted;
    return {};
  }

  const std::vector<Target>& targets_;
  const SoakOptions& options_;
  SoakFiles files_;
  AskedTypes asked_;
  std::optional<Supported> supported_;
  SoakState state_;
  SoakResult result_;
  Clock::time_point start_ = Clock::now(), logged_ = Clock::now();
  double before_ = 0;
  std::map<std::string, int> shrunk_;
};

}  // namespace
}  // namespace verify_detail

bool SoakResult::ok() const {
  return std::none_of(counts.begin(), counts.end(), [](const SoakCounts& c) { return c.failed > 0; }) &&
         std::any_of(counts.begin(), counts.end(), [](const SoakCounts& c) { return c.passed > 0; });
}

Result<SoakResult> soak(const std::vector<Target>& targets, const SoakOptions& options) try {
  if (targets.empty()) return Status(Code::invalid_argument, "soak: no target");
  for (const auto& [what, value] : {std::pair{"minutes", options.minutes}, {"shrink_seconds", options.shrink_seconds}})
    if (const std::string error = duration_error(value); !error.empty())
      return Status(Code::invalid_argument, formatted("soak: {}: {}", what, error));
  for (const Target& t : targets)
    if (!t.attend) return Status(Code::invalid_argument, formatted("soak: target '{}' has no function to call", t.name));
  Result<verify_detail::SoakFiles> files = verify_detail::SoakFiles::open(options.directory);
  if (!files.ok()) return files.status();
  return verify_detail::Soak(targets, options, std::move(files).value()).run();
} catch (...) {
  return batch::caught("soak");
}

}  // namespace quire
