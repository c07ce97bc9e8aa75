// SPDX-License-Identifier: Apache-2.0
// Benchmark: speed as a fraction of what this machine can do. Ceilings and kernels are timed in one run, outputs are verified,
// and every time comes with an interval.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/problem.hpp"
#include "quire/status.hpp"

namespace quire {

/// A median, and the interval that holds the true median with about 95 % confidence, between-block spread included.
struct Interval {
  double median = 0, low = 0, high = 0;
  std::int64_t blocks = 0;  ///< blocks of calls; each contributes its own median
};

/// The machine that a report is about. Reports of different machines cannot be compared.
struct BenchMachine {
  std::string cpu;                                        ///< model name
  std::string features;                                   ///< "avx512bf16+amx_bf16"
  int cores = 1;                                          ///< cores that this process may use
  std::int64_t l1_bytes = 0, l2_bytes = 0, l3_bytes = 0;  ///< 0 = unknown
  std::string compiler;
  bool operator==(const BenchMachine&) const = default;
};
BenchMachine bench_machine();

/// Rates that `threads` threads of this machine reached: the best of several trials at the start and at the end of the run.
struct Ceilings {
  int threads = 1;
  std::string loops;  ///< instruction set of the loops: generic, avx2 or avx512
  /// Reading GB/s for a working set of `bytes` bytes in all: front to back, and in 4 KiB runs at random places.
  struct Read {
    std::int64_t bytes = 0;
    double stream_gbs = 0, gather_gbs = 0;
  };
  std::vector<Read> reads;     ///< ascending; the last is far larger than the last-level cache, unless memory is short
  double fma_gflops = 0;       ///< f32 multiply-adds
  double bf16_dot_gflops = 0;  ///< VDPBF16PS; 0 = not on this machine
  double mma_gflops = 0;       ///< mma.sync of a GPU: f16 products, f32 sums; 0 = not a GPU
  double amx_gflops = 0;       ///< TDPBF16PS; 0 = not on this machine, or not permitted
  double ping_pong_ns = 0;     ///< a cache line from one core to another, one way; 0 with one thread
  double drift = 0;            ///< largest relative difference of any rate above between start and end of the run
};

/// Least time that a problem can take on a machine with these ceilings: for every request the longer of reading its K and V once
/// and computing 2 * (head_dim + v_head_dim) * num_q_heads * visible pairs; summed over requests.
struct Floor {
  double seconds = 0;
  double memory_seconds = 0;   ///< part of requests that are bound by reading (decode)
  double compute_seconds = 0;  ///< part of requests that are bound by computing (prefill)
  double read_gbs = 0;         ///< ceilings that the floor was computed with: reading, and computing (next member)
  double compute_gflops = 0;
  std::string compute;  ///< name of the computing ceiling: "f32 FMA", "bf16 dot" or "bf16 AMX"
};
Floor floor_of(const Problem& problem, double read_gbs, double compute_gflops);  ///< a ceiling of 0 sets no limit

/// `BenchVariant::threads` of a GPU result: the whole device was used.
inline constexpr int kWholeDevice = 0;

/// One way to run a case. Variants of a case are timed in turns.
struct BenchVariant {
  std::string kernel;  ///< name that was asked for; empty = the planned one
  int threads = 1;
  bool batch_invariant = false;
};

enum class BenchStatus : std::int32_t {
  ok,
  wrong,
  refused,
  unverified,  ///< BenchOptions::verify was false
};
/// The clock that a time was read from.
enum class BenchClock : std::int32_t {
  wall,
  device,      ///< events round a replayed CUDA graph
  thread_cpu,  ///< CPU time of a single thread, if other processes disturbed too many of its calls
};
/// "ok", "wrong", "refused", "unverified"; "wall", "device", "thread cpu".
std::string_view name(BenchStatus status) noexcept;
std::string_view name(BenchClock clock) noexcept;

struct BenchResult {
  BenchVariant variant;
  BenchStatus status = BenchStatus::unverified;
  std::string reason;  ///< reason of a refusal, or the error
  std::string kernel;  ///< kernel that served the case
  std::string plan;    ///< to_string(plan)
  Interval seconds;    ///< time of one attend()
  BenchClock clock = BenchClock::wall;
  std::int64_t calls = 0, disturbed = 0;  ///< calls timed; calls among them not counted because the thread was off its core
  double plan_seconds = 0;                ///< median of plan()
  double gbs = 0, gflops = 0;             ///< kv_bytes and flops over the median
  Floor floor;
  double of_floor = 0;                             ///< floor.seconds / median: 1 is the speed of the machine
  double of_gather = 0;                            ///< gbs over the page-gather ceiling
  std::int64_t rows_compared = 0, rows_total = 0;  ///< tokens
  double worst_ratio = 0;                          ///< largest |error| / tolerance against the fp64 reference
  std::vector<double> block_seconds;               ///< the medians behind `seconds`
};

struct BenchCaseResult {
  std::string name, line;  ///< source of the case, and its canonical problem line
  std::int64_t kv_bytes = 0;
  double flops = 0;
  std::int64_t copies = 1;             ///< copies of K and V, taken in turn from call to call
  std::int64_t working_set_bytes = 0;  ///< visible bytes of all copies
  std::vector<BenchResult> results;
};

/// A problem line, or the path of a capture.
struct BenchInput {
  std::string name;
  std::string line;
  std::string capture;
};

struct BenchOptions {
  std::string device;                ///< "" or "cpu"; "cuda" times attend() on the GPU that is current there
  std::vector<std::string> kernels;  ///< names of kernels to time; empty = the planned one
  std::vector<int> threads;          ///< empty = 1 and all cores that this process may use
  bool batch_invariant = false;      ///< time batch-invariant plans, too, in turns with the others
  double seconds = 2.0;              ///< about how long each result is timed
  bool verify = true;
  std::string commit;  ///< commit that was built, for the report
  /// Called with a description of each step. Return false to stop: the report then holds the cases done so far.
  std::function<bool(const std::string& what)> progress;
};

/// Results of a run. Holds data only: report.hpp makes text, JSON and a page of them.
struct BenchReport {
  bool ok = false;  ///< true if nothing is wrong and a result was timed
  BenchMachine machine;
  std::vector<Ceilings> ceilings;
  std::vector<BenchCaseResult> cases;
  std::string commit, date;       ///< BenchOptions::commit; "2026-11-23T10:00:00Z"
  double seconds_per_result = 0;  ///< BenchOptions::seconds
  std::string busy;               ///< reason why these times are not to be compared, or empty
};

/// Measures the ceilings, times every case in every variant, verifies what was timed, and measures the ceilings again.
///
/// K and V are read from memory of 2 MiB pages where the system grants them. A case of more than min(16 MiB, half the last-level
/// cache) is run on enough copies, in turn, that no call finds the copy of the one before in a cache; a smaller one is measured
/// in cache, against the ceiling of a working set of its size. Errors: the status of an input that cannot be read or made.
///
/// On a GPU, the L2 counts as the last-level cache, and a result is the time of one attend() in a replayed graph of at least
/// four. unsupported if there is no such GPU or this build has no kernels for it.
Result<BenchReport> bench(std::span<const BenchInput> inputs, const BenchOptions& options = {});

/// Standing workloads W1 .. W5 and W1s .. W5s (scaled to two cores), and "targets": names and their inputs (bench/cases).
std::vector<std::string> workload_names();
/// Returns the inputs of one workload. invalid_argument, with all names, for an unknown one.
Result<std::vector<BenchInput>> workload(std::string_view name);

enum class BenchChangeVerdict : std::int32_t { same, fast, slow, ambiguous };
/// "SAME", "FAST", "SLOW", "AMBIGUOUS".
std::string_view name(BenchChangeVerdict verdict) noexcept;

/// Change of one result from the old report to the new one.
struct BenchChange {
  std::string name, line;
  BenchVariant variant;
  double ratio = 1;          ///< new median time / old median time
  double low = 1, high = 1;  ///< least and largest ratio that the intervals allow
  BenchChangeVerdict verdict = BenchChangeVerdict::ambiguous;
  std::string reason;
};
struct BenchComparison {
  std::vector<BenchChange> changes;
  std::int64_t only_old = 0, only_new = 0;  ///< results without a counterpart
};
/// Compares two reports, result by result.
///
/// FAST and SLOW: the intervals do not overlap, the medians differ by at least 2 %, and the machine's ceilings moved less than
/// the medians, during the runs and between them. SAME: the medians differ by less than 2 %, and the intervals allow at most 5 %.
/// Everything else is AMBIGUOUS, and so is a result whose output is wrong on either side. Reports of different machines are
/// refused (invalid_argument, with what differs) unless `force`; parse_error if no result is in both.
Result<BenchComparison> compare_bench(const BenchReport& before, const BenchReport& after, bool force = false);
/// Compares the reports in two JSON texts by the same rules; parse_error if a text is no report.
Result<BenchComparison> compare_bench(std::string_view old_json, std::string_view new_json, bool force = false);

}  // namespace quire
