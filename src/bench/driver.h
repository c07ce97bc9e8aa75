// SPDX-License-Identifier: Apache-2.0
// Driver of a case, from its input to its results: bytes and FLOPs, times,
// whether what was timed is also right, and whether other processes disturbed the run.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "quire/tools/bench.hpp"
#include "quire/tools/capture.hpp"
#include "quire/tools/compare.hpp"

namespace quire::bench_detail {

/// An input whose shape is known and whose data is not made yet.
struct Entry {
  BenchInput input;
  Problem problem;
  std::uint64_t seed = 0;
  std::int64_t copies = 1;
  std::int64_t working_set() const;
};
/// Parses lines, and reads captures for their shapes.
Result<std::vector<Entry>> entries_of(std::span<const BenchInput> inputs, std::int64_t l3_bytes, std::int64_t cold);

/// Result of a case before anything is timed.
BenchCaseResult untimed(const Entry& entry, std::int64_t copies);

/// The data of an entry.
Result<Case> case_of(const Entry& entry);

/// The variants that the options ask for, planned kernel and single thread first.
std::vector<BenchVariant> variants_of(const BenchOptions& options, int cores);

/// Reports progress; false: the run is to stop.
using Say = std::function<bool(const std::string&)>;

/// Times and verifies; floors are left to finish(), which needs the ceilings of the end.
Result<BenchCaseResult> run_case(const Entry& entry, const std::vector<BenchVariant>& variants, const BenchOptions& options,
                                 const Say& say);

/// Measurements of a CPU or of a GPU.
struct Measured {
  const char* whose;  ///< ceilings: "the machine's"
  std::function<Result<std::vector<Ceilings>>()> ceilings;
  std::function<Result<BenchCaseResult>(const Entry& entry, const Say& say)> run_case;
};
/// Ceilings, cases, ceilings again. `report` has the machine.
Result<BenchReport> run_all(BenchReport report, const std::vector<Entry>& entries, const BenchOptions& options,
                            const Measured& measured);

/// options.device names a GPU backend. unsupported, with the reason, where there is none.
Result<BenchReport> run_on_device(std::span<const BenchInput> inputs, const BenchOptions& options);

/// K and V of one request that any of its rows sees, each key counted once.
std::int64_t kv_bytes_of(const Problem& problem, const Request& request);
std::int64_t kv_bytes_of(const Problem& problem);

/// The fastest way on this machine to multiply what the problem multiplies, exactly in its products: bf16 instructions where
/// query and cache fit into bf16, f32 otherwise.
struct ComputeCeiling {
  std::string name;
  double gflops = 0;
};
ComputeCeiling compute_ceiling(const Problem& problem, const Ceilings& ceilings);

/// Disturbance of a run by other processes.
struct Disturbance {
  std::int64_t calls = 0, disturbed = 0;  ///< counts of the result that was disturbed most
  double drift = 0;                       ///< largest Ceilings::drift
  double hop_ns = 0;                      ///< a cache line from core to core, one way; 0 = not measured
  double of_floor = 0;                    ///< largest share of the machine; more than 1 is impossible
};

/// Returns one sentence that says why the run is not to be compared, or "".
std::string busy_text(const Disturbance& d);
/// Returns the sentence for a whole report.
std::string busy_text(const std::vector<Ceilings>& ceilings, const std::vector<BenchCaseResult>& cases);

/// The reference for all rows of a case, or for a stratified sample of them where all would take long; computed once for all
/// variants.
class Expected {
 public:
  static Result<Expected> make(const Case& c, const Problem& problem, std::uint64_t seed);

  /// Compares what lies in `output` (and `lse`, if present) within the derived tolerance; `rounded`: for every query row whether
  /// its softmax weights may have been rounded to the output's type (rounds_weights()), or empty: none.
  Comparison judge(const Tensor& output, const Tensor& lse, const std::vector<bool>& rounded = {}) const;
  std::int64_t rows() const { return reference_.num_tokens; }

 private:
  Expected() = default;

  DType query_ = DType::none;
  std::vector<std::int64_t> tokens_;  ///< empty: all
  Reference reference_;
};

/// Puts Expected::judge() into a result. A result that is wrong stays wrong.
void judge(BenchResult& r, const Expected& expected, const Tensor& output, const Tensor& lse,
           const std::vector<bool>& rounded = {});

}  // namespace quire::bench_detail
