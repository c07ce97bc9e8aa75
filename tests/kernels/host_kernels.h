// The rows of the kernel table that this machine can run.
#pragma once

#include <string>
#include <vector>

#include "quire/plan.hpp"

namespace quire::test {

inline std::vector<std::string> host_kernels() {
  std::vector<std::string> names;
  for (const Kernel& kernel : kernels())
    if (kernel.backend == Backend::cpu && (kernel.cpu_features & ~host_device().cpu_features) == 0)
      names.emplace_back(kernel.name);
  return names;
}

}  // namespace quire::test
