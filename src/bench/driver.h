// SPDX-License-Identifier: Apache-2.0
// One case from its input to its results; bench() strings them together.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "quire/bench.hpp"
#include "quire/capture.hpp"

namespace quire::benchmark {

/// An input whose shape is known and whose data is not made yet.
struct Entry {
  BenchInput input;
  Problem problem;
  std::uint64_t seed = 0;
  std::int64_t copies = 1;
  std::int64_t working_set() const;
};
/// Parses a line, or reads a capture for its shape.
Result<Entry> entry_of(const BenchInput& input, std::int64_t l3_bytes, std::int64_t cold);

/// The data of an entry.
Result<Case> case_of(const Entry& entry);

/// The variants that the options ask for, planned kernel and single thread first.
std::vector<BenchVariant> variants_of(const BenchOptions& options, int cores);

/// Times and verifies; floors are left to finish(), which needs the ceilings of the end. `say` reports progress and returns false
/// to stop.
Result<BenchCaseResult> run_case(const Entry& entry, const std::vector<BenchVariant>& variants, const BenchOptions& options,
                                 const std::function<bool(const std::string&)>& say);

/// options.device names a GPU backend. unsupported, with the reason, where there is none.
Result<BenchReport> run_on_device(std::span<const BenchInput> inputs, const BenchOptions& options);

/// Sets what follows from results and options: ok, commit, date, seconds of a result, and whether the machine was busy.
void conclude(BenchReport& report, const BenchOptions& options);

/// Fills in what depends on the ceilings.
void finish(BenchCaseResult& result, const Problem& problem, const std::vector<Ceilings>& ceilings);

}  // namespace quire::benchmark
