// SPDX-License-Identifier: Apache-2.0
// The names of verdicts, statuses and kinds: one table each, in the order of the enumerators. JSON, text and Python use these. A
// name is empty beyond its table, so that a loop over the names of an enumeration ends there.
#include "text/names.h"
#include "quire/tools/bench.hpp"
#include "quire/tools/diagnose.hpp"
#include "quire/tools/verify.hpp"

namespace quire {
namespace {

constexpr std::string_view kCheckStates[] = {"pass", "fail", "skipped"};
constexpr std::string_view kCaseStatuses[] = {"pass", "fail", "refused"};
constexpr std::string_view kStrides[] = {"none", "rows", "any"};
constexpr std::string_view kVerifyVerdicts[] = {"pass", "fail", "mistrusted", "stopped"};
constexpr std::string_view kDiagnosisVerdicts[] = {"right", "cause found", "mechanism likely", "unknown cause", "broken batch"};
constexpr std::string_view kBenchStatuses[] = {"ok", "wrong", "refused", "unverified"};
constexpr std::string_view kBenchClocks[] = {"wall", "device", "thread cpu"};
constexpr std::string_view kBenchChangeVerdicts[] = {"SAME", "FAST", "SLOW", "AMBIGUOUS"};
constexpr std::string_view kCellTests[] = {"is", "from", "to", "between", "modulo", "reads", "not reads"};
constexpr std::string_view kCellAttributes[] = {
    "request",  "token",       "row",       "rows_from_end", "query_len", "seq_len", "context_len",   "q_pos",
    "num_keys", "page_offset", "num_pages", "page",          "head",      "kv_head", "head_in_group", "dim"};
constexpr std::string_view kOutputLaws[] = {"not finite", "one value in every dim (never written, or 0 where no key is seen)",
                                            "outside the convex hull of its V rows"};

}  // namespace

std::string_view name(CheckState state) noexcept { return name_in(kCheckStates, state); }
std::string_view name(CaseStatus status) noexcept { return name_in(kCaseStatuses, status); }
std::string_view name(Strides strides) noexcept { return name_in(kStrides, strides); }
std::optional<Strides> strides_from_name(std::string_view text) noexcept { return value_in<Strides>(kStrides, text); }
std::string_view name(VerifyVerdict verdict) noexcept { return name_in(kVerifyVerdicts, verdict); }
std::string_view name(DiagnosisVerdict verdict) noexcept { return name_in(kDiagnosisVerdicts, verdict); }
std::string_view name(BenchStatus status) noexcept { return name_in(kBenchStatuses, status); }
std::string_view name(BenchClock clock) noexcept { return name_in(kBenchClocks, clock); }
std::string_view name(BenchChangeVerdict verdict) noexcept { return name_in(kBenchChangeVerdicts, verdict); }
std::string_view name(CellAttribute attribute) noexcept { return name_in(kCellAttributes, attribute); }
std::string_view name(CellTest test) noexcept { return name_in(kCellTests, test); }
std::string_view name(OutputLaw law) noexcept { return name_in(kOutputLaws, law); }

}  // namespace quire
