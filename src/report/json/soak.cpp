// SPDX-License-Identifier: Apache-2.0
// A soak as JSON (verify.md).
#include "quire/tools/report.hpp"
#include "report/json/keys.h"

namespace quire::report {

template <typename Keys, Of<SoakFinding> Finding>
void keys_of(Keys& keys, Finding& f) {
  keys("target", f.target, "check", f.check, "text", f.text, "line", f.line);
  keys("reduced_line", f.reduced_line, "reduced_finding", f.reduced_finding);
}

template <typename Keys, Of<SoakResult> R>
void keys_of(Keys& keys, R& r) {
  keys.says("quire_soak", 1);
  keys("seed", r.seed, "first", r.first, "next", r.next, "seconds", r.seconds, "total_seconds", r.total_seconds);
  keys("counts", r.counts, "findings", r.findings, "interrupted", r.interrupted);
}

Json json_of(const SoakResult& r) { return Writer::written(r); }

}  // namespace quire::report

namespace quire {

std::string to_json(const SoakResult& result) { return report::printed(report::json_of(result)); }

}  // namespace quire
