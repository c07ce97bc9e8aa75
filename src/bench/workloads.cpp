// Standing workloads by name.
#include "bench/workloads.h"

#include "quire/bench.hpp"
#include "text/formatted.h"

namespace quire {

std::vector<std::string> workload_names() {
  std::vector<std::string> names;
  for (const benchmark::WorkloadFile& file : benchmark::workload_files()) names.emplace_back(file.name);
  return names;
}

Result<std::vector<BenchInput>> workload(std::string_view name) {
  for (const benchmark::WorkloadFile& file : benchmark::workload_files()) {
    if (file.name != name) continue;
    const Result<std::vector<ProblemLine>> lines = parse_problem_lines(file.text);
    if (!lines.ok()) return lines.status();
    std::vector<BenchInput> inputs;
    for (const ProblemLine& line : lines.value())
      inputs.push_back({.name = std::string(name), .line = to_string(line), .capture = {}});
    return inputs;
  }
  return Status(Code::invalid_argument,
                formatted("bench: no workload '{:.64}'; there are {}", name, fmt::join(workload_names(), ", ")));
}

}  // namespace quire
