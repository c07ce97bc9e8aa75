// SPDX-License-Identifier: Apache-2.0
// See judge.h. Compiled once, for the tests of every backend.
#include "kernels/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

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

namespace {

/// Padding rows that are to be left hold the NaN that Guarded began with.
void judge_left_rows(const Batch& batch, const Run& run, std::vector<std::string>& findings) {
  if (batch.padding != Padding::left) return;
  const std::uint32_t unwritten = semantics::float_to_bits(std::nanf(""));
  const auto first = static_cast<std::size_t>(num_request_rows(batch) * batch.query.shape[1]);
  const auto count_written = [&](const std::vector<std::uint32_t>& bits, std::size_t begin) {
    return bits.end() - bits.begin() - static_cast<std::ptrdiff_t>(begin) -
           std::count(bits.begin() + static_cast<std::ptrdiff_t>(begin), bits.end(), unwritten);
  };
  const std::ptrdiff_t written = count_written(run.output, first * static_cast<std::size_t>(batch.query.shape[2])) +
                                 (run.lse.empty() ? 0 : count_written(run.lse, first));
  if (written != 0) findings.push_back(fmt::format("padding: {} elements of padding rows were written", written));
}

}  // namespace

Run run_guarded(const Case& made, const Attend& attend, Spread spread, int num_threads, const Reference* expected,
                std::vector<std::string>& findings) {
  Case c = made;  // views only: the data stays where it is
  Guarded output(made.batch.output, spread);
  c.batch.output = output.view;
  std::optional<Guarded> lse;
  if (made.batch.lse.present()) c.batch.lse = lse.emplace(made.batch.lse, spread).view;

  std::int64_t rows = -1;
  if (const Status status = attend(c, num_threads, rows); !status.ok()) {
    findings.push_back("call failed: " + status.message());
    return {};
  }
  const std::int64_t expected_rows = num_request_rows(made.batch) * made.batch.query.shape[1];
  if (rows != expected_rows) findings.push_back(fmt::format("rows: counted {}, the batch has {}", rows, expected_rows));
  const std::int64_t damaged = output.damaged_canaries() + (lse ? lse->damaged_canaries() : 0);
  if (damaged != 0) findings.push_back(fmt::format("canaries: {} bytes outside the output changed", damaged));
  if (expected != nullptr) {
    const Comparison comparison = compare(c.batch.output, c.batch.lse, *expected);
    if (!comparison.ok) findings.push_back("values: " + comparison.text);
  }
  Run run = {output.bits(), lse ? lse->bits() : std::vector<std::uint32_t>{}};
  judge_left_rows(made.batch, run, findings);
  return run;
}

void poison_with_finite_garbage(const Case& c) {
  for (const Tensor* t : {&c.cache.k, &c.cache.v, &c.batch.key, &c.batch.value, &c.batch.query})
    for (std::int64_t i = 0; t->present() && i < t->num_elements(); ++i)
      if (std::isnan(semantics::load(t->data, t->dtype, i))) semantics::store(t->data, t->dtype, i, i % 2 == 0 ? 97.0f : -120.0f);
  const Tensor& table = c.batch.block_table;
  for (std::int64_t i = 0; i < table.num_elements(); ++i) {
    if (semantics::load_index(table.data, table.dtype, i) < num_pages(c.cache)) continue;
    if (table.dtype == DType::i64) {
      static_cast<std::int64_t*>(table.data)[i] = 0;
    } else {
      static_cast<std::int32_t*>(table.data)[i] = 0;
    }
  }
}

std::vector<std::string> judge(const Case& c, const Attend& attend) {
  std::vector<std::string> findings;
  const Result<Reference> expected = reference(c.batch, c.cache, c.options);
  if (!expected.ok()) return {"reference refused: " + expected.status().message()};
  const Run first = run_guarded(c, attend, Spread::contiguous, 1, &expected.value(), findings);
  const Run again = run_guarded(c, attend, Spread::gaps_between_heads, 1, nullptr, findings);
  if (!(first == again)) findings.push_back("bits: a second run differs");
  const Run threads = run_guarded(c, attend, Spread::every_other_element, 8, nullptr, findings);
  if (!(first == threads)) findings.push_back("bits: cut for 13 threads differs from 1");
  poison_with_finite_garbage(c);
  const Run garbage = run_guarded(c, attend, Spread::contiguous, 1, nullptr, findings);
  if (!(first == garbage)) findings.push_back("bits: finite garbage where nothing may be read changes the output");
  return findings;
}

std::vector<std::string> judge(const ProblemLine& line, const Attend& attend) {
  const Result<Case> c = make_case(line);
  if (!c.ok()) return {"make_case: " + c.status().message()};
  return judge(c.value(), attend);
}

std::string report(const ProblemLine& line, const std::vector<std::string>& findings, const std::string& kernel) {
  std::string text = "rerun: quire run " + (kernel.empty() ? "" : "--kernel " + kernel + " ") + "'" + to_string(line) + "'";
  for (const std::string& finding : findings) text += "\n  " + finding;
  return text;
}

}  // namespace quire::test
