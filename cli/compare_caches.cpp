// SPDX-License-Identifier: Apache-2.0
// quire compare-caches: what became of each row of one capture's cache in that of another.
#include "quire/tools/compare_caches.hpp"

#include "commands.h"
#include "progress.h"
#include "text/formatted.h"

namespace quire::cli {

Report run_compare_caches(const CompareCachesArgs& args, const Terminal& terminal) {
  const Result<Case> a = case_of({args.a}, terminal), b = case_of({args.b}, terminal);
  if (!a.ok()) return Report::failure(a.status());
  if (!b.ok()) return Report::failure(b.status());
  CacheContents of_a = contents_of(a->batch, a->cache), of_b = contents_of(b->batch, b->cache);
  of_a.heads = args.heads_a;
  of_b.heads = args.heads_b;
  const Result<CacheComparison> compared = [&] {
    const Progress progress(terminal, "comparing the caches");
    return compare_caches(of_a, of_b);
  }();
  if (!compared.ok()) return Report::failure(compared.status());
  Report report;
  report.exit_code = compared->same ? kOk : kFindings;
  report.text = to_string(compared.value());
  report.json = {
      {"schema", "quire.compare_caches/1"}, {"ok", compared->same}, {"exit_code", report.exit_code}, {"files", {args.a, args.b}}};
  report.json.update(Json::parse(to_json(compared.value())));
  return report;
}

}  // namespace quire::cli
