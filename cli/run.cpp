// SPDX-License-Identifier: Apache-2.0
// quire run: check, plan, attend, compare with the fp64 reference. A pass means: every rule holds, every output row was written
// exactly once, repeats gave the same bits, and every element is within the derived tolerance.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>

#include "commands.h"
#include "outcome.h"
#include "progress.h"
#include "suggest.h"
#include "text/formatted.h"

namespace quire::cli {
namespace {

std::size_t num_bytes(const Tensor& t) { return static_cast<std::size_t>(t.num_elements() * itemsize(t.dtype)); }

Status no_memory(const char* what) { return {Code::out_of_memory, formatted("not enough memory for the {}", what)}; }

/// Contiguous output (and lse) of our own: a capture's may be strided.
Status own_outputs(Case& c) {
  const Tensor& q = c.batch.query;
  const DType dtype = c.batch.output.dtype;
  c.batch.output = Tensor::contiguous(nullptr, dtype, q.shape[0], q.shape[1], v_head_dim(c.cache));
  c.batch.output.data = c.allocate(num_bytes(c.batch.output));
  if (c.batch.output.data == nullptr) return no_memory("output");
  if (!c.batch.lse.present()) return {};
  std::byte* lse = c.allocate(static_cast<std::size_t>(q.shape[0] * q.shape[1]) * sizeof(float));
  if (lse == nullptr) return no_memory("lse");
  c.batch.lse = Tensor::contiguous(lse, DType::f32, q.shape[0], q.shape[1]);
  return {};
}

/// Fills a tensor with NaN: all bits set is NaN in f32, f16, bf16 and fp8_e4m3fn.
void poison(const Tensor& t) {
  if (t.present() && num_bytes(t) > 0) std::memset(t.data, 0xFF, num_bytes(t));
}

Status attend_repeatedly(Case& c, const RunArgs& args, Outcome& outcome, const Terminal& terminal) {
  const Progress progress(terminal, "attend");
  const std::unique_ptr<Executor> own = args.threads > 0 ? make_thread_pool(args.threads) : nullptr;
  const std::size_t workspace_size = workspace_bytes(outcome.plan);
  std::byte* memory = c.allocate(workspace_size);
  if (memory == nullptr) return no_memory("workspace");
  const std::span<std::byte> workspace(memory, workspace_size);
  std::vector<std::byte> first;
  for (int i = 0; i < args.repeat; ++i) {
    poison(c.batch.output);
    poison(c.batch.lse);
    outcome.rows.clear();
    const auto start = std::chrono::steady_clock::now();
    const Status status =
        attend(outcome.plan, c.batch, c.cache, c.options, workspace, {.executor = own.get(), .rows = &outcome.rows});
    const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start;
    if (!status.ok()) return status;
    outcome.times_ms.push_back(elapsed.count());
    const auto* bytes = static_cast<const std::byte*>(c.batch.output.data);
    if (i == 0) first.assign(bytes, bytes + num_bytes(c.batch.output));
    outcome.same_bits = outcome.same_bits && std::equal(first.begin(), first.end(), bytes);
  }
  return {};
}

Status verify(const Case& c, Outcome& outcome, const Terminal& terminal) {
  const Progress progress(terminal, "fp64 reference");
  const Result<Reference> expected = reference(c.batch, c.cache, c.options);
  if (!expected.ok()) return expected.status();
  outcome.ours = compare(c.batch.output, c.batch.lse, expected.value());
  if (c.observed.present()) outcome.observed = compare(c.observed, c.observed_lse, expected.value());
  return {};
}

Status save(Case& c, const RunArgs& args, const Outcome& outcome) {
  c.observed = c.batch.output;
  c.observed_lse = c.batch.lse;
  c.notes["producer"] = formatted("quire {} {}", QUIRE_VERSION, outcome.plan.kernel.name());
  return write_capture(args.save, c);
}

Json comparison_json(const std::optional<Comparison>& c) {
  if (!c) return nullptr;
  const Mismatch& w = c->worst;
  return {{"ok", c->ok},
          {"num_elements", c->num_elements},
          {"num_mismatches", c->num_mismatches},
          {"num_nonfinite_mismatches", c->num_nonfinite_mismatches},
          {"worst_ratio", c->worst_ratio},
          {"worst",
           {{"token", w.token},
            {"head", w.head},
            {"dim", w.dim},
            {"observed", w.observed},
            {"expected", w.expected},
            {"tolerance", w.tolerance}}},
          {"text", c->text}};
}

Json outcome_json(const Outcome& o, const RunArgs& args, int exit_code) {
  Json rows = Json::array();
  for (const RowCount& r : o.rows) rows.push_back({{"kernel", r.kernel}, {"rows", r.rows}});
  return {{"schema", "quire.run/1"},
          {"ok", o.ok()},
          {"exit_code", exit_code},
          {"input", title_of(args.input)},
          {"problem", to_string(o.problem)},
          {"kernel", o.plan.kernel.name()},
          {"plan", to_string(o.plan)},
          {"rows", rows},
          {"rows_expected", o.rows_expected},
          {"times_ms", o.times_ms},
          {"same_bits", o.same_bits},
          {"verified", o.ours.has_value()},
          {"comparison", comparison_json(o.ours)},
          {"observed", comparison_json(o.observed)},
          {"saved", args.save.empty() ? Json(nullptr) : Json(args.save)}};
}

std::string times_text(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  if (times.size() == 1) return formatted("{:.3f} ms, one call (not a benchmark)", times[0]);
  return formatted("{:.3f} ms median, {:.3f} best, {:.3f} worst of {} calls (not a benchmark)", times[times.size() / 2],
                   times.front(), times.back(), times.size());
}

std::string comparison_text(const char* label, const Comparison& c, const Terminal& terminal) {
  std::string text = formatted("{:<9} worst error {:.3g} of tolerance, {} of {} elements over: {}\n", label, c.worst_ratio,
                               c.num_mismatches, c.num_elements, c.ok ? green("ok", terminal) : red("WRONG", terminal));
  if (!c.ok) text += printable(c.text) + "\n";
  return text;
}

std::string outcome_text(const Outcome& o, const RunArgs& args, const Terminal& terminal) {
  std::string text =
      formatted("problem   {}\nkernel    {}\nplan      {}\n", to_string(o.problem), o.plan.kernel.name(), to_string(o.plan));
  for (const RowCount& r : o.rows) text += formatted("rows      {} by {}\n", r.rows, r.kernel);
  if (o.rows_written() != o.rows_expected)
    text += formatted("rows      {}: {} written, {} expected\n", red("WRONG", terminal), o.rows_written(), o.rows_expected);
  text += formatted("time      {}\n", times_text(o.times_ms));
  if (o.times_ms.size() > 1)
    text += formatted("repeats   {}\n", o.same_bits ? "same bits every time" : red("DIFFERENT BITS", terminal));
  if (o.ours) text += comparison_text("reference", *o.ours, terminal);
  if (o.observed) text += comparison_text("observed", *o.observed, terminal);
  if (!args.save.empty()) text += formatted("saved     {}\n", printable_line(args.save));
  const std::string pass = o.ours ? green("PASS", terminal) : std::string("NOT VERIFIED (--no-verify)");
  return text + (o.ok() ? pass : red("FAIL", terminal)) + "\n";
}

Report findings_report(const Findings& findings, const RunArgs& args) {
  Report report = Report::failure(findings.status(), "`quire check` lists every finding");
  report.json["input"] = title_of(args.input);
  report.json["total"] = findings.total;
  report.json["findings"] = findings_json(findings);
  return report;
}

}  // namespace

Report run_run(const RunArgs& args, const Terminal& terminal) {
  if (args.verify && args.no_verify) return Report::usage("--verify and --no-verify contradict each other");
  const std::vector<std::string> names = kernel_names();
  if (!args.kernel.empty() && std::find(names.begin(), names.end(), args.kernel) == names.end())
    return Report::usage(formatted("no kernel named '{}'; known kernels: {}", args.kernel, fmt::join(names, ", ")),
                         did_you_mean(args.kernel, names));
  Result<Case> input = case_of(args.input, terminal);
  if (!input.ok()) return Report::failure(input.status());
  Case& c = input.value();
  const Findings findings = check(c.batch, c.cache, c.options, Depth::contents);
  if (!findings.ok()) return findings_report(findings, args);

  if (const Status s = own_outputs(c); !s.ok()) return Report::failure(s);
  const Result<Plan> planned = plan(
      c.batch, c.cache, c.options, {.kernel = args.kernel, .batch_invariant = args.batch_invariant, .num_threads = args.threads});
  if (!planned.ok()) return Report::failure(planned.status());
  Outcome outcome;
  outcome.problem = problem_of(c.batch, c.cache, c.options);
  outcome.plan = planned.value();
  outcome.rows_expected = outcome.problem.num_tokens() * outcome.problem.num_q_heads;
  if (const Status s = attend_repeatedly(c, args, outcome, terminal); !s.ok()) return Report::failure(s);
  if (!args.no_verify)
    if (const Status s = verify(c, outcome, terminal); !s.ok()) return Report::failure(s);
  if (!args.save.empty())
    if (const Status s = save(c, args, outcome); !s.ok()) return Report::failure(s);

  Report report;
  report.exit_code = outcome.ok() ? kOk : kFindings;
  report.text = outcome_text(outcome, args, terminal);
  report.json = outcome_json(outcome, args, report.exit_code);
  return report;
}

}  // namespace quire::cli
