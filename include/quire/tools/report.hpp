// SPDX-License-Identifier: Apache-2.0
// Results as text for a terminal, as JSON for programs and as pages for people. The structs of diagnose.hpp, verify.hpp and
// bench.hpp hold data; nothing else in the library prints it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "quire/status.hpp"
#include "quire/tools/bench.hpp"
#include "quire/tools/diagnose.hpp"
#include "quire/tools/verify.hpp"

namespace quire {

/// How much of a diagnosis is said, and how wide.
struct DiagnosisText {
  std::int64_t columns = 80;  ///< lines are broken between words, at most this wide if the words allow; 0: they are not broken
  bool verbose = false;       ///< print everything; else verdict, pattern, cause and next step, in at most ten lines
};

/// The complete report for a terminal, many lines. Text of captures and targets is copied unchanged: escape control characters
/// before printing the report to a terminal.
std::string to_string(const Diagnosis& diagnosis);
std::string to_string(const Diagnosis& diagnosis, const DiagnosisText& as);
std::string to_string(const Verdict& verdict);
std::string to_string(const SoakResult& result);
std::string to_string(const SoakCounts& counts);
std::string to_string(const BenchReport& report);
std::string to_string(const BenchComparison& comparison);

/// One JSON object in one line, as docs/reference/schemas describes it. Bytes that are not UTF-8 are replaced.
std::string to_json(const Diagnosis& diagnosis);
std::string to_json(const Verdict& verdict);
std::string to_json(const SoakResult& result);
std::string to_json(const BenchReport& report);
std::string to_json(const BenchComparison& comparison);

/// Inverse of to_json(), for reports of any version of `quire bench`. Members that the text lacks keep their default values.
/// parse_error if the text is no report.
Result<BenchReport> parse_bench_report(std::string_view json);

/// A self-contained page: no network, no script or style of others; light and dark, usable by keyboard, printable. Hostile text
/// in a result is shown as text, never run. Equal results give equal bytes.
std::string to_html(const Diagnosis& diagnosis);
std::string to_html(const Verdict& verdict);
std::string to_html(const BenchReport& report);

/// Makes the page from the JSON of a report: an object with "quire_verify" 1, "quire_diagnose" 2 or "quire_bench" 1 (report.md
/// lists the keys). Missing parts are not shown. Errors: parse_error for malformed JSON or another schema.
Result<std::string> render_html(std::string_view json);

}  // namespace quire
