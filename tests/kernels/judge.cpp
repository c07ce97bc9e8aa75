// SPDX-License-Identifier: Apache-2.0
// See judge.h. Compiled once, for the tests of every backend.
#include "kernels/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <new>
#include <utility>

#include "verify/judge.h"

namespace quire::test {

Status attend_planned(const Plan& plan, const Case& c, int num_threads, std::int64_t& rows) {
  std::vector<float> memory(workspace_bytes(plan) / sizeof(float) + 32, std::nanf(""));
  void* start = memory.data();
  std::size_t room = memory.size() * sizeof(float);
  std::align(64, workspace_bytes(plan), start, room);
  const std::span<std::byte> workspace(static_cast<std::byte*>(start), workspace_bytes(plan));
  const std::unique_ptr<Executor> executor = make_thread_pool(std::min(num_threads, 2));
  std::vector<RowCount> counts;
  AttendOptions options;
  options.executor = executor.get();
  options.rows = &counts;
  const Status status = attend(plan, c.batch, c.cache, c.options, workspace, options);
  rows = 0;
  for (const RowCount& count : counts) rows += count.rows;
  return status;
}

Attend kernel_under_test(const std::string& kernel, bool batch_invariant) {
  return [kernel, batch_invariant](const Case& c, int num_threads, std::int64_t& rows) -> Status {
    const Result<Plan> plan = quire::plan(c.batch, c.cache, c.options,
                                          {.kernel = kernel, .batch_invariant = batch_invariant, .num_threads = num_threads});
    if (!plan.ok()) return plan.status();
    if (plan->kernel != kernel) return {Code::internal_error, "plan chose " + std::string(plan->kernel)};
    return attend_planned(plan.value(), c, num_threads, rows);
  };
}

Case made(const ProblemLine& line, Special special) {
  Case c = make_case(line).value();
  if (!verify_detail::apply(special, c)) throw std::bad_alloc();  // address space for a sparse cache ran out
  return c;
}

namespace {

using verify_detail::Prepared;

/// One way to call the kernel. A wrong count of rows fails the call.
AttendCase call(const Attend& attend, int num_threads) {
  return [attend, num_threads](const Case& c, std::string&) -> Status {
    std::int64_t rows = -1;
    if (Status s = attend(c, num_threads, rows); !s.ok()) return s;
    const std::int64_t expected = num_request_rows(c.batch) * c.batch.query.shape[1];
    if (rows == expected) return {};
    return {Code::internal_error, fmt::format("counted {} rows, the batch has {}", rows, expected)};
  };
}

Target target_of(const Attend& attend) {
  Target target;
  target.attend = call(attend, 1);
  target.variants = {{"8 threads", call(attend, 8)}};
  return target;
}

std::vector<std::string> findings_of(const CaseResult& result) {
  std::vector<std::string> findings;
  if (result.status == CaseStatus::refused) findings.push_back("refused: " + result.reason);
  for (const CheckResult& check : result.checks)
    if (check.state == CheckState::fail) findings.push_back(check.check + ": " + check.text);
  return findings;
}

std::vector<std::string> judge(Prepared p, const Attend& attend) {
  const Target target = target_of(attend);
  return findings_of(verify_detail::judge(target, p, verify_detail::asked_checks(target, {})));
}

Prepared prepared(Case c, ProblemLine line, Special special) {
  return verify_detail::prepare_case({"tests", "", std::move(line), special}, std::move(c)).value();
}

}  // namespace

Prepared prepared(Case c) {
  ProblemLine line;
  line.problem = problem_of(c.batch, c.cache, c.options);
  return prepared(std::move(c), std::move(line), Special::none);
}

std::vector<std::string> judge(const Case& c, const Attend& attend) { return judge(prepared(c), attend); }

std::vector<std::string> judge(const ProblemLine& line, const Attend& attend, Special special) {
  return judge(prepared(made(line, special), line, special), attend);
}

std::vector<std::string> judge_one_call(const Prepared& p, const Attend& attend) {
  const Target target = target_of(attend);
  verify_detail::Judge judge(target, p, verify_detail::asked_checks(target, {}));
  judge.on_zeros();
  return findings_of(judge.result());
}

std::string report(const ProblemLine& line, const std::vector<std::string>& findings, const std::string& kernel) {
  std::string text = "rerun: quire run " + (kernel.empty() ? "" : "--kernel " + kernel + " ") + "'" + to_string(line) + "'";
  for (const std::string& finding : findings) text += "\n  " + finding;
  return text;
}

}  // namespace quire::test
