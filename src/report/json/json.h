// SPDX-License-Identifier: Apache-2.0
// Results as JSON values: to_json() prints them, pages hold them, and the command adds what it knows. docs/reference/schemas
// describes them.
#pragma once

#include <cmath>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "quire/tools/bench.hpp"
#include "quire/tools/diagnose.hpp"
#include "quire/tools/verify.hpp"

namespace quire::report {

using Json = nlohmann::ordered_json;

Json json_of(const Diagnosis& diagnosis);
Json json_of(const Verdict& verdict);
Json json_of(const SoakResult& result);
Json json_of(const BenchReport& report);
Json json_of(const BenchComparison& comparison);

/// Null for NaN and infinity, which JSON lacks.
inline Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

/// Prints JSON in one line. Text may come from a foreign target or file: bytes that are not UTF-8 are replaced without a throw.
inline std::string printed(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

/// The text of an error of the JSON library, without its id "[json.exception.parse_error.101] ".
inline std::string_view complaint(const std::exception& error) {
  const std::string_view what = error.what();
  const std::size_t id = what.find("] ");
  return what.substr(id == std::string_view::npos ? 0 : id + 2);
}

}  // namespace quire::report
