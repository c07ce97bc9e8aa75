// SPDX-License-Identifier: Apache-2.0
// Identity of this machine, as far as speed depends on it: CPU model, features, cores, cache sizes, compiler.
#include <fstream>
#include <sstream>
#include <string>

#include "bench/ceilings/loops.h"
#include "quire/plan.hpp"
#include "quire/tools/bench.hpp"
#include "text/formatted.h"

namespace quire {
namespace {

/// "KEY : value" of /proc/cpuinfo; empty where the system does not say.
std::string cpuinfo(const std::string& key) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos || line.compare(0, key.size(), key) != 0) continue;
    const std::size_t start = line.find_first_not_of(" \t", colon + 1);
    return start == std::string::npos ? std::string() : line.substr(start);
  }
  return {};
}

std::string cache_file(int index, const char* what) {
  std::ifstream file(formatted("/sys/devices/system/cpu/cpu0/cache/index{}/{}", index, what));
  std::string text;
  std::getline(file, text);
  return text;
}

/// Size of the data cache of this level in bytes; 0 = unknown.
std::int64_t cache_bytes(int level) {
  for (int index = 0; index < 8; ++index) {
    if (cache_file(index, "level") != std::to_string(level) || cache_file(index, "type") == "Instruction") continue;
    std::istringstream size(cache_file(index, "size"));
    std::int64_t value = 0;
    char unit = 0;
    if (!(size >> value >> unit)) return 0;
    return unit == 'M' ? value << 20 : unit == 'K' ? value << 10 : 0;
  }
  return 0;
}

std::string compiler() {
#if defined(__clang__)
  return formatted("clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#elif defined(__GNUC__)
  return formatted("gcc {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#else
  return "unknown";
#endif
}

}  // namespace

BenchMachine bench_machine() {
  const Device host = host_device();
  BenchMachine machine;
  machine.cpu = cpuinfo("model name");
  if (machine.cpu.empty()) machine.cpu = "unknown";
  machine.features = host.name;
  if (bench_detail::host_amx() != nullptr && machine.features.find("amx") == std::string::npos) machine.features += "+amx_bf16";
  machine.cores = host.num_threads;
  machine.l1_bytes = cache_bytes(1);
  machine.l2_bytes = host.l2_bytes;
  machine.l3_bytes = cache_bytes(3);
  machine.compiler = compiler();
  return machine;
}

}  // namespace quire
