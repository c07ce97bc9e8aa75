// SPDX-License-Identifier: Apache-2.0
// bench(): ceilings, cases, ceilings again.
#include <algorithm>
#include <cstring>

#include "batch/caught.h"
#include "bench/ceilings/measure.h"
#include "bench/driver.h"
#include "quire/executor.hpp"
#include "quire/plan.hpp"
#include "quire/tools/bench.hpp"
#include "text/duration.h"
#include "text/formatted.h"

namespace quire {
namespace {

using bench_detail::Entry;

/// Thread counts of the variants, each once, ascending.
std::vector<int> thread_counts(const std::vector<BenchVariant>& variants) {
  std::vector<int> counts = {1};
  for (const BenchVariant& v : variants) counts.push_back(v.threads);
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

/// Measures at the start and at the end; the memory lives for the whole run.
class CeilingRun {
 public:
  CeilingRun(std::vector<int> counts, const std::vector<Entry>& entries, std::int64_t cold)
      : counts_(std::move(counts)), memory_(room_for(cold)) {
    std::vector<std::int64_t> sets;
    for (const Entry& entry : entries) sets.push_back(entry.working_set());
    rungs_ = bench_detail::rungs_for(sets, memory_.size());
    if (memory_.data() != nullptr)
      std::memset(memory_.data(), 1, static_cast<std::size_t>(memory_.size()));  // pages of their own
  }
  bool ok() const { return memory_.data() != nullptr; }

  std::vector<Ceilings> measure() const {
    std::vector<Ceilings> all;
    for (const int threads : counts_) all.push_back(bench_detail::measure_ceilings(threads, rungs_, memory_));
    return all;
  }

 private:
  static std::int64_t room_for(std::int64_t cold) { return std::min(cold, bench_detail::available_memory() / 4); }

  std::vector<int> counts_;
  bench_detail::Memory memory_;
  std::vector<std::int64_t> rungs_;
};

Result<BenchReport> run(std::span<const BenchInput> inputs, const BenchOptions& options) {
  BenchReport report;
  report.machine = bench_machine();
  const std::int64_t cold = bench_detail::cold_bytes(report.machine);
  const Result<std::vector<Entry>> entries = bench_detail::entries_of(inputs, report.machine.l3_bytes, cold);
  if (!entries.ok()) return entries.status();
  const std::vector<BenchVariant> variants = bench_detail::variants_of(options, report.machine.cores);
  const CeilingRun ceilings(thread_counts(variants), entries.value(), cold);
  if (!ceilings.ok()) return Status(Code::out_of_memory, "bench: not enough memory to measure the machine's ceilings");
  return bench_detail::run_all(
      std::move(report), entries.value(), options,
      {.whose = "the machine's",
       .ceilings = [&]() -> Result<std::vector<Ceilings>> { return ceilings.measure(); },
       .run_case = [&](const Entry& entry,
                       const bench_detail::Say& say) { return bench_detail::run_case(entry, variants, options, say); }});
}

}  // namespace

Result<BenchReport> bench(std::span<const BenchInput> inputs, const BenchOptions& options) {
  constexpr double kLeast = 0.001;  // seconds; a shorter time holds no call to measure
  if (const std::string error = duration_error(options.seconds, kLeast); !error.empty())
    return Status(Code::invalid_argument, "bench: seconds: " + error);
  for (const int threads : options.threads)
    if (threads < 1 || threads > kMaxThreads)
      return Status(Code::invalid_argument, formatted("bench: {} threads: expected 1 to {}", threads, kMaxThreads));
  const bool on_host = options.device.empty() || options.device == name(Backend::cpu);
  try {
    if (!on_host) return bench_detail::run_on_device(inputs, options);
    return run(inputs, options);
  } catch (...) {
    return batch::caught("bench");
  }
}

}  // namespace quire
