// SPDX-License-Identifier: Apache-2.0
// The rows of the kernel table that this machine can run.
#pragma once

#include <string>
#include <vector>

#include "quire/plan.hpp"
#include "quire/tools/capture.hpp"

namespace quire::test {

inline std::vector<std::string> host_kernels() {
  std::vector<std::string> names;
  for (const Kernel& kernel : kernels())
    if (kernel.backend == Backend::cpu && (kernel.cpu_features & ~host_device().cpu_features) == 0)
      names.emplace_back(kernel.name);
  return names;
}

/// Whether a kernel takes a problem on this machine.
inline bool takes(const std::string& kernel, const Problem& problem) {
  return plan(problem, host_device(), {.kernel = kernel}).ok();
}

/// The kernel that this machine chooses for a problem.
inline std::string preferred_kernel(const Problem& problem) {
  const Result<Plan> chosen = plan(problem, host_device());
  return chosen.ok() ? std::string(chosen->kernel) : "";
}

/// Whether a kernel takes a V of another head_dim than K's.
inline bool takes_own_v(const std::string& kernel) {
  return takes(kernel, parse_problem_line("q=bf16 heads=1 d=32 dv=16 page=16 reqs=1@9").value().problem);
}

/// The line itself, or with bf16 queries, and a bf16 cache, too, if that is what the kernel insists on.
inline ProblemLine as_taken_by(const std::string& kernel, ProblemLine line) {
  if (!takes(kernel, line.problem)) line.problem.q_dtype = DType::bf16;
  if (!takes(kernel, line.problem)) line.problem.kv_dtype = DType::bf16;
  if (!takes_own_v(kernel)) line.problem.v_head_dim = 0;
  return line;
}

}  // namespace quire::test
