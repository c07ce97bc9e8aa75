// SPDX-License-Identifier: Apache-2.0
// Fuzzes the problem line: no input crashes; what parses has a canonical text that parses back to the same value.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "quire/problem.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto line = quire::parse_problem_line(text);
  if (line.ok()) {
    const std::string canonical = quire::to_string(line.value());
    const auto again = quire::parse_problem_line(canonical);
    if (!again.ok() || !(again.value() == line.value()) || quire::to_string(again.value()) != canonical) std::abort();
    if (line.value().problem.visible_pairs() < 0 || line.value().problem.num_tokens() < 0) std::abort();
  } else if (line.status().code() != quire::Code::parse_error || line.status().message().size() > 1000) {
    std::abort();
  }
  (void)quire::parse_problem_lines(text);
  return 0;
}
