// SPDX-License-Identifier: Apache-2.0
// Standing workloads by name.
#include "bench/workloads.h"

#include <algorithm>

#include "quire/tools/bench.hpp"
#include "text/formatted.h"

namespace quire {
namespace {

/// Returns, for every problem line, the comment right above it, which names the model; empty if there is no comment.
std::vector<std::string> comments_above_lines(std::string_view text) {
  std::vector<std::string> comments;
  std::string comment;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.starts_with("# ")) {
      comment = line.substr(2);
    } else {
      if (!line.empty()) comments.push_back(comment);
      comment.clear();
    }
  }
  return comments;
}

}  // namespace

std::vector<std::string> workload_names() {
  std::vector<std::string> names;
  for (const bench_detail::WorkloadFile& file : bench_detail::workload_files()) names.emplace_back(file.name);
  return names;
}

Result<std::vector<BenchInput>> workload(std::string_view name) {
  for (const bench_detail::WorkloadFile& file : bench_detail::workload_files()) {
    if (file.name != name) continue;
    const Result<std::vector<ProblemLine>> lines = parse_problem_lines(file.text);
    if (!lines.ok()) return lines.status();
    std::vector<BenchInput> inputs;
    const std::vector<std::string> models = comments_above_lines(file.text);
    for (std::size_t i = 0; i < lines->size(); ++i) {
      const std::string model = i < models.size() && !models[i].empty() ? ", " + models[i] : "";
      inputs.push_back({.name = std::string(name) + model, .line = to_string(lines.value()[i]), .capture = {}});
    }
    return inputs;
  }
  return Status(Code::invalid_argument,
                formatted("bench: no workload '{:.64}'; there are {}", name, fmt::join(workload_names(), ", ")));
}

}  // namespace quire
