// SPDX-License-Identifier: Apache-2.0
// Table of rows per kernel, beside the requests of the rows; a run of equal requests takes one line.
#include "report/pictures.h"
#include "text/formatted.h"

namespace quire::report {
namespace {

using json = nlohmann::ordered_json;

json run_of(const Problem& problem, std::size_t first, std::size_t count) {
  const Request& request = problem.reqs[first];
  return {{"req", first},
          {"count", count},
          {"query_len", request.query_len},
          {"context_len", request.context_len},
          {"cached_len", request.cached_len},
          {"rows", static_cast<std::int64_t>(count) * request.query_len * problem.num_q_heads}};
}

}  // namespace

json rows_picture(const Problem& problem, const std::string& kernel, std::span<const RowCount> counts) {
  json picture = {{"kernel", kernel}, {"kernels", json::array()}, {"requests", json::array()}, {"text", ""}};
  picture["expected"] = problem.num_tokens() * problem.num_q_heads;
  for (const RowCount& count : counts) picture["kernels"].push_back({{"kernel", count.kernel}, {"rows", count.rows}});
  std::size_t runs = 0;
  for (std::size_t first = 0, next = 0; first < problem.reqs.size(); first = next, ++runs) {
    while (next < problem.reqs.size() && problem.reqs[next] == problem.reqs[first]) ++next;
    if (static_cast<std::int64_t>(runs) < kMaxServed) picture["requests"].push_back(run_of(problem, first, next - first));
  }
  if (static_cast<std::int64_t>(runs) > kMaxServed)
    picture["text"] = formatted("the first {} of {} runs of equal requests", kMaxServed, runs);
  return picture;
}

}  // namespace quire::report
