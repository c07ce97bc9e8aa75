// SPDX-License-Identifier: Apache-2.0
// Results as text for a terminal, as JSON for programs and as pages for people. The structs of diagnose.hpp, verify.hpp and
// bench.hpp hold data; nothing else in the library prints it.
#pragma once

#include <string>
#include <string_view>

#include "quire/bench.hpp"
#include "quire/diagnose.hpp"
#include "quire/status.hpp"
#include "quire/verify.hpp"

namespace quire {

/// The complete report for a terminal, many lines. Text of captures and targets is in it as it is: escape control characters
/// before a terminal sees it.
std::string to_string(const Diagnosis& diagnosis);
std::string to_string(const Verdict& verdict);
std::string to_string(const SoakResult& result);
std::string to_string(const SoakCounts& counts);  ///< one line
std::string to_string(const BenchReport& report);
std::string to_string(const BenchComparison& comparison);

/// One JSON object in one line, as docs/reference/schemas describes it. Bytes that are not UTF-8 are replaced.
std::string to_json(const Diagnosis& diagnosis);
std::string to_json(const Verdict& verdict);
std::string to_json(const SoakResult& result);
std::string to_json(const BenchReport& report);
std::string to_json(const BenchComparison& comparison);

/// The inverse of to_json() for reports of any version that `quire bench` printed: what such a report lacks stays as it is in a
/// BenchReport of its own. parse_error for what is no report.
Result<BenchReport> parse_bench_report(std::string_view json);

/// A self-contained page: no network, no script or style of others; light and dark, usable by keyboard, printable. The text in it
/// may be hostile: it is shown as text, never run. The same result gives the same bytes.
std::string to_html(const Diagnosis& diagnosis);
std::string to_html(const Verdict& verdict);
std::string to_html(const BenchReport& report);

/// Makes the page from a file's JSON: an object with "quire_verify" 1, "quire_diagnose" 2 or "quire_bench" 1 (report.md lists the
/// keys). Parts that are missing are not shown. Errors: parse_error for malformed JSON or another schema.
Result<std::string> render_html(std::string_view json);

}  // namespace quire
