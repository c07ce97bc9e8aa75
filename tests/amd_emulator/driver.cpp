// SPDX-License-Identifier: Apache-2.0
// Functions that Python calls: the list of cases, and one case after the other judged on the emulated device.
#include <nlohmann/json.hpp>

#include <set>
#include <string>
#include <vector>

#include "amd_emulator/attend.h"
#include "amd_emulator/move.h"
#include "quire/tools/capture.hpp"
#include "quire/tools/diagnose.hpp"
#include "verify/judge.h"
#include "verify/matrix.h"

namespace quire::amd {
namespace {

using verify_detail::Entry;

const AttendKernel* g_kernel = nullptr;
std::vector<Entry> g_entries;

nlohmann::json as_json(const CaseResult& r) {
  nlohmann::json checks = nlohmann::json::array();
  for (const CheckResult& c : r.checks)
    checks.push_back({{"check", c.check},
                      {"state", c.state == CheckState::pass   ? "pass"
                                : c.state == CheckState::fail ? "fail"
                                                              : "skipped"},
                      {"worst_ratio", c.worst_ratio},
                      {"text", c.text}});
  return {{"name", r.name},
          {"line", r.line},
          {"status", std::string(name(r.status))},
          {"special", r.special},
          {"kernel", r.kernel},
          {"reason", r.reason},
          {"elements", r.num_compared},
          {"checks", checks}};
}

/// The text of the last answer; Python copies it before it asks again.
const char* answer(const nlohmann::json& json) {
  static std::string text;
  text = json.dump();
  return text.c_str();
}

}  // namespace

/// Chooses a kernel and the hazards that it takes, in few combinations of types or in all; says how many kernels there are, and
/// the hazards' names.
extern "C" const char* amd_matrix(std::uint32_t kernel, int quick) {
  g_kernel = &attend_kernels()[kernel];
  g_entries = verify_detail::hazard_matrix(g_kernel->takes, quick != 0);
  std::erase_if(g_entries, [](const Entry& e) { return verify_detail::reaches_far(e); });  // hours here
  nlohmann::json names = nlohmann::json::array();
  for (const Entry& entry : g_entries) names.push_back(entry.name);
  return answer({{"kernels", attend_kernels().size()}, {"kernel", g_kernel->row}, {"names", names}});
}

/// Values, lse, rows and canaries with zeros where nothing may be read; the same bits with NaN there and with finite garbage,
/// each under another seed. With `deep` also with gaps in the outputs, and its requests alone and in chunks.
static const char* judge_entry(const Entry& entry, const Target& target, bool deep) {
  Result<verify_detail::Prepared> prepared = verify_detail::prepare(entry);
  if (!prepared.ok())
    return answer({{"name", entry.name},
                   {"line", to_string(entry.line)},
                   {"status", "fail"},
                   {"reason", prepared.status().message()},
                   {"checks", nlohmann::json::array()}});
  std::set<std::string> asked = {"values", "lse", "rows", "canaries", "nan_poison", "garbage_poison"};
  if (deep) asked.insert({"strides", "alone", "chunks"});
  CaseResult result = verify_detail::judge(target, prepared.value(), asked);
  result.special = verify_detail::text_of(entry.special);
  return answer(as_json(result));
}

/// Judges a case on kernels that are launched one by one, with their arrays between guard pages.
extern "C" const char* amd_judge(std::uint32_t index, const char* device, LaunchKernel launch, std::uint64_t seed, int deep) {
  return judge_entry(g_entries[index], emulated_target(device, *g_kernel, launch, seed), deep != 0);
}

/// Runs one call of a problem line by the kernel of a row, and compares nothing: count.py counts instructions.
extern "C" const char* amd_attend_line(const char* row, const char* line, const char* device, LaunchKernel launch) {
  const auto said = [](const Status& s) { return answer({{"ok", s.ok()}, {"reason", s.message()}}); };
  const Result<ProblemLine> parsed = parse_problem_line(line);
  if (!parsed.ok()) return said(parsed.status());
  const Result<Case> made = make_case(parsed.value());
  if (!made.ok()) return said(made.status());
  for (const AttendKernel& kernel : attend_kernels()) {
    if (kernel.row != row) continue;
    const Result<Plan> planned = plan_for(device, kernel, made.value(), /*batch_invariant=*/false);
    return said(planned.ok() ? attend_once(planned.value(), kernel, launch, /*seed=*/1, made.value()).status : planned.status());
  }
  return said(Status(Code::invalid_argument, "no such row"));
}

/// Runs the batch of a capture by each kernel that takes it, and compares with the fp64 reference.
extern "C" const char* amd_attend_capture(const char* path, const char* device, LaunchKernel launch, std::uint64_t seed) {
  nlohmann::json by_kernel = nlohmann::json::object();
  const auto failed = [&](const Status& s) { return answer({{"ok", false}, {"reason", s.message()}, {"kernels", by_kernel}}); };
  const Result<Case> read = read_capture(path);
  if (!read.ok()) return failed(read.status());
  const Case& c = read.value();
  const Result<Reference> expected = reference(c.batch, c.cache, c.options);
  if (!expected.ok()) return failed(expected.status());
  for (const AttendKernel& kernel : attend_kernels()) {
    const Result<Plan> planned = plan_for(device, kernel, c, /*batch_invariant=*/seed % 2 == 1);
    if (!planned.ok() && planned.status().code() == Code::unsupported) continue;
    const Attended done =
        planned.ok() ? attend_once(planned.value(), kernel, launch, seed, c) : Attended{.status = planned.status()};
    const Comparison compared = done.status.ok() ? compare(c.batch.output, c.batch.lse, expected.value()) : Comparison{};
    by_kernel[kernel.row] = done.status.ok() ? compared.ok ? "" : compared.text : done.status.message();
  }
  return answer({{"ok", true}, {"kernels", by_kernel}});
}

/// Judges a case on the HIP backend as a user calls it, with the runtime that this process finds. Huge tensors are left out,
/// because every byte of device memory takes a byte of this machine.
extern "C" const char* amd_judge_backend(std::uint32_t index) {
  const Entry& entry = g_entries[index];
  const bool huge = entry.special == verify_detail::Special::huge_offsets;
  const Result<Target> target =
      huge ? Result<Target>(Status(Code::out_of_memory, "left out")) : backend_target(std::string(g_kernel->row));
  if (target.ok()) return judge_entry(entry, target.value(), /*deep=*/false);
  return answer({{"name", entry.name},
                 {"line", to_string(entry.line)},
                 {"status", huge ? "left out" : "fail"},
                 {"reason", target.status().message()},
                 {"checks", nlohmann::json::array()}});
}

/// "append", "merge", "merge_many", "contents" or "broken batches".
extern "C" const char* amd_judge_other(const char* what, const char* device, LaunchKernel launch, std::uint64_t seed) {
  const std::string_view asked(what);
  const Judged judged = asked == "append"       ? judge_append(launch, seed)
                        : asked == "merge"      ? judge_merge(launch, seed)
                        : asked == "merge_many" ? judge_merge_many(launch, seed)
                        : asked == "contents"   ? judge_contents(launch, seed)
                                                : judge_broken(device, attend_kernels()[0], launch, seed);
  return answer({{"cases", judged.cases}, {"findings", judged.findings}});
}

}  // namespace quire::amd
