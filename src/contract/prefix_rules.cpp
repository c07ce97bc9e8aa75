// SPDX-License-Identifier: Apache-2.0
// Rules Q-P01 to Q-P03: runs of shared pages that a caller names.
#include <algorithm>
#include <numeric>

#include "contract/report.h"
#include "quire/cascade.hpp"
#include "text/formatted.h"

namespace quire {
namespace {

using contract::Report;
using enum contract::RuleId;

bool p01_inside(Report& report, std::int64_t i, const SharedRun& run, std::int64_t num_reqs, std::int64_t columns) {
  const bool reqs = run.req_begin >= 0 && run.req_begin < run.req_end && run.req_end <= num_reqs;
  const bool pages = run.page_begin >= 0 && run.page_begin < run.page_end && run.page_end <= columns;
  if (!reqs)
    report.add(P01, "runs", {i}, formatted("requests [{}, {})", run.req_begin, run.req_end),
               formatted("at least one of the {} requests", num_reqs));
  if (!pages)
    report.add(P01, "runs", {i}, formatted("pages [{}, {})", run.page_begin, run.page_end),
               formatted("at least one of the {} columns of block_table", columns));
  return reqs && pages;
}

void p02_next(Report& report, std::int64_t i, const SharedRun& run, const std::vector<std::int64_t>& pages) {
  for (std::int64_t r = run.req_begin; r < run.req_end; ++r) {
    const std::int64_t held = pages[static_cast<std::size_t>(r)];
    if (held == run.page_begin || report.counted(P02)) continue;
    report.add(P02, "runs", {i}, formatted("begins at page {}", run.page_begin),
               formatted("page {}, where the runs before it end for request {}", held, r));
  }
}

void p03_same_visible_pages(Report& report, std::int64_t i, const SharedRun& run, const Problem& problem,
                            std::span<const std::int32_t> table, std::int64_t columns) {
  const std::int32_t* const first = table.data() + run.req_begin * columns;
  for (std::int64_t r = run.req_begin; r < run.req_end; ++r) {
    const std::int64_t most = most_shared_keys(problem, r) / problem.page_size;
    if (run.page_end > most && !report.counted(P03)) {
      report.add(P03, "runs", {i}, formatted("ends at page {}", run.page_end),
                 formatted("at most {}: full, cached pages of request {} whose every key all of its rows see{}", most, r,
                           problem.alibi ? " without ALiBi" : ""));
      continue;
    }
    const std::int32_t* const row = table.data() + r * columns;
    const std::int32_t* const end = row + run.page_end;
    const std::int32_t* const other = std::mismatch(row + run.page_begin, end, first + run.page_begin).first;
    if (other == end || report.counted(P03)) continue;
    report.add(P03, "block_table", {r, other - row}, formatted("page {}", *other),
               formatted("page {}, as request {} of the run", first[other - row], run.req_begin));
  }
}

}  // namespace

Findings check_shared_runs(const Problem& problem, std::span<const std::int32_t> block_table, std::int64_t columns,
                           std::span<const SharedRun> runs, SharedPrefixes* made) {
  Report report;
  SharedPrefixes shared;
  shared.pages.assign(problem.reqs.size(), 0);
  std::vector<std::size_t> depth(problem.reqs.size(), 0), order(runs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return runs[a].page_begin != runs[b].page_begin ? runs[a].page_begin < runs[b].page_begin
                                                    : runs[a].req_begin < runs[b].req_begin;
  });
  for (const std::size_t at : order) {
    const auto i = static_cast<std::int64_t>(at);
    const SharedRun& run = runs[at];
    if (!p01_inside(report, i, run, static_cast<std::int64_t>(problem.reqs.size()), columns)) continue;
    p02_next(report, i, run, shared.pages);
    p03_same_visible_pages(report, i, run, problem, block_table, columns);
    const std::size_t level = *std::max_element(depth.begin() + run.req_begin, depth.begin() + run.req_end);
    std::fill(depth.begin() + run.req_begin, depth.begin() + run.req_end, level + 1);
    std::fill(shared.pages.begin() + run.req_begin, shared.pages.begin() + run.req_end, run.page_end);
    if (shared.levels.size() <= level) shared.levels.resize(level + 1);
    shared.levels[level].push_back(run);
  }
  for (std::vector<SharedRun>& level : shared.levels)
    std::sort(level.begin(), level.end(), [](const SharedRun& a, const SharedRun& b) { return a.req_begin < b.req_begin; });
  shared.reason = runs.empty() ? "nothing is shared: no runs were named" : "the runs that were named";
  if (made != nullptr) *made = std::move(shared);
  return report.take();
}

}  // namespace quire
