// SPDX-License-Identifier: Apache-2.0
// quire explain of requests that share their first pages: whether reading them once pays.
#include "quire/cascade.hpp"

#include "commands.h"
#include "input.h"
#include "quire/tools/capture.hpp"
#include "text/formatted.h"

namespace quire::cli {
namespace {

/// Cached pages of a batch in host memory that is sound.
SharedPrefixes shared_by(const Case& c, const Problem& problem, const SharingCosts& costs) {
  const Tensor& t = c.batch.block_table;
  std::vector<std::int32_t> table(static_cast<std::size_t>(t.shape[0] * t.shape[1]), -1);
  for (std::int64_t r = 0; r < t.shape[0]; ++r) {
    const std::int64_t cached = problem.reqs[static_cast<std::size_t>(r)].cached_len;
    for (std::int64_t j = 0; j * problem.page_size < cached; ++j) {
      const std::int64_t at = r * t.stride[0] + j * t.stride[1];
      table[static_cast<std::size_t>(r * t.shape[1] + j)] =
          t.dtype == DType::i64 ? static_cast<std::int32_t>(static_cast<const std::int64_t*>(t.data)[at])
                                : static_cast<const std::int32_t*>(t.data)[at];
    }
  }
  return find_shared_prefixes(problem, table, t.shape[1], costs);
}

}  // namespace

std::optional<SharedPrefixes> shared_prefixes_of(const Words& input, const Problem& problem, const Device& device) {
  const SharingCosts costs = sharing_costs(device);
  if (!names_a_file(input)) {
    const Result<ProblemLine> line = problem_line_of(input);
    if (!line.ok() || (line->shared_pages == 0 && line->branches.empty())) return std::nullopt;
    return shared_prefixes_of(line.value(), costs);
  }
  const Result<Case> c = map_capture(input[0]);
  if (!c.ok()) return std::nullopt;
  SharedPrefixes shared = shared_by(c.value(), problem, costs);
  if (!shared.shares()) return std::nullopt;
  return shared;
}

std::string shared_text(const SharedPrefixes& shared, const Problem& problem) {
  constexpr std::size_t kMostRuns = 8;
  std::size_t left_out = 0;
  SharedPrefixes shown = shared;
  for (std::vector<SharedRun>& level : shown.levels) {
    left_out += level.size() - std::min(level.size(), kMostRuns);
    level.resize(std::min(level.size(), kMostRuns));
  }
  std::string text = "shared    " + to_string(shown, problem);
  if (left_out > 0) text += formatted("          and {} runs more\n", left_out);
  return text;
}

Json shared_json(const SharedPrefixes& shared) {
  Json levels = Json::array();
  for (const std::vector<SharedRun>& level : shared.levels) {
    Json runs = Json::array();
    for (const SharedRun& run : level) runs.push_back({run.req_begin, run.req_end, run.page_begin, run.page_end});
    levels.push_back(runs);
  }
  return {{"pays", shared.shares()},
          {"reason", shared.reason},
          {"levels", levels},
          {"saved_bytes", shared.saved_bytes},
          {"added_bytes", shared.added_bytes}};
}

}  // namespace quire::cli
