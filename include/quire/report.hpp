// SPDX-License-Identifier: Apache-2.0
// Pictures for people: one HTML page from the JSON of verify(), diagnose() or bench().
#pragma once

#include <string>
#include <string_view>

#include "quire/status.hpp"

namespace quire {

/// A self-contained page: no network, no script or style of others; light and dark, usable by keyboard, printable.
///
/// `json` is Verdict::json, Diagnosis::json or BenchReport::json: an object with "quire_verify" 1, "quire_diagnose" 2
/// or "quire_bench" 1 (report.md lists the keys). Parts that are missing are not shown. The text in it may be hostile: it is
/// shown as text, never run. The same JSON gives the same bytes. Errors: parse_error for malformed JSON or another schema.
Result<std::string> render_html(std::string_view json);

}  // namespace quire
