// SPDX-License-Identifier: Apache-2.0
// A soak for a terminal.
#include "quire/tools/report.hpp"
#include "text/formatted.h"

namespace quire {

std::string to_string(const SoakCounts& c) {
  std::string text = formatted("{}: {} cases, {} pass, {} fail, {} refused", c.target, c.cases, c.passed, c.failed, c.refused);
  if (c.num_elements > 0)
    text += formatted(", {:.4g} elements, {:.0f} % of them compared, worst error {:.3g} of tolerance",
                      static_cast<double>(c.num_elements),
                      100 * static_cast<double>(c.num_compared) / static_cast<double>(c.num_elements), c.worst_ratio);
  return text;
}

std::string to_string(const SoakResult& r) {
  std::string text = formatted("soak: lines {} to {} of seed {}, {:.0f} s ({:.0f} s with earlier runs)\n", r.first, r.next - 1,
                               r.seed, r.seconds, r.total_seconds);
  if (r.first == r.next) text = formatted("soak: no line of seed {} was asked\n", r.seed);
  for (const SoakCounts& c : r.counts) text += "  " + to_string(c) + "\n";
  for (const SoakFinding& f : r.findings) {
    text += formatted("\nFAIL {}: {}\n  {}: {}\n", f.target, f.line, f.check, f.text);
    if (!f.reduced_line.empty()) text += formatted("  smallest: {}\n    {}\n", f.reduced_line, f.reduced_finding);
  }
  for (const std::string& line : r.interrupted) text += formatted("\nthe process of an earlier run ended during: {}\n", line);
  std::int64_t failed = 0, served = 0;
  for (const SoakCounts& c : r.counts) failed += c.failed, served += c.passed;
  return text + (failed > 0    ? formatted("FAIL in {} cases\n", failed)
                 : served == 0 ? "MISTRUSTED: no case was served\n"
                               : "PASS\n");
}

}  // namespace quire
