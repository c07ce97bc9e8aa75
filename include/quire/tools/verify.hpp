// SPDX-License-Identifier: Apache-2.0
// Verification: is an implementation, Quire's or any other, a correct paged attention? Would this suite notice a wrong one?
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/problem.hpp"
#include "quire/status.hpp"
#include "quire/tools/capture.hpp"

namespace quire {

namespace report {
struct Pictures;  // drawings of a page (src/report/pictures.h)
}

/// Writes c.batch.output, and c.batch.lse if it is present. May set `kernel` to the name of the kernel that served the call.
/// Code::unsupported means refused (listed with its reason, not failed); every other error is a finding.
using AttendCase = std::function<Status(const Case& c, std::string& kernel)>;

/// Strides that an implementation takes on its inputs (check strided_inputs).
enum class Strides : std::int32_t {
  none = 0,  ///< every input is contiguous
  rows = 1,  ///< strides of engines: K and V in each other's pages or rows, slices of a fused qkv, other orders of
             ///< dimensions; elements of the last dimension are adjacent, and no stride is negative
  any = 2,   ///< strides of `rows`, steps between elements, negative strides, and index tensors and scales with steps
};
std::string_view name(Strides strides) noexcept;                           ///< "none", "rows", "any"
std::optional<Strides> strides_from_name(std::string_view text) noexcept;  ///< inverse of name()

/// An implementation under test and its promises. Checks of a promise run only if the target gives the promise.
struct Target {
  std::string name;  ///< "cpu_avx512", "torch.sdpa", ...
  AttendCase attend;
  bool deterministic = true;  ///< equal bits for equal input (check repeat; the poison checks then compare bits)
  bool in_place = true;  ///< writes into the batch's memory, whatever its strides, and nowhere else (canaries, rows, strides)
  Strides strides = Strides::any;  ///< strides of inputs that the target takes; others are not asked
  bool padding = false;            ///< takes batches with padding rows; otherwise hazards are asked without them
  bool masks = false;              ///< takes requests that are not causal, q_begin and key_begin; otherwise no matrix has them
  bool v_head_dim = false;    ///< takes a V of another head_dim than K's, also as a part of K's rows; otherwise no matrix has one
  bool token_scales = false;  ///< takes caches of i8 and fp8_ds_mla, and scales of tokens; otherwise no matrix has them
  bool unlike_types = false;  ///< takes a V of another type than K's; otherwise no matrix has one
  bool block_scales = false;  ///< takes nvfp4 and mxfp4 caches; otherwise no matrix has them
  bool eight_bit_rows = false;   ///< takes queries and outputs of fp8_e4m3fn with scales; otherwise no matrix has them
  bool batch_invariant = false;  ///< a request has the same bits alone, in a batch and in chunks (alone, chunks)
  /// Rounds softmax weights to the type of the query before their product with V; tolerance: allow_rounded_weights().
  bool rounded_weights = false;
  /// Per-row version of rounded_weights, for targets that round only some requests: one bool per query row. Null: all rows alike.
  std::function<std::vector<bool>(const Case&)> rounded_rows;
  /// Call under which batch_invariant holds, if `attend` is another call.
  AttendCase invariant;
  /// Other ways to run the target that promise the same bits, by name: "8 threads" (check threads).
  std::vector<std::pair<std::string, AttendCase>> variants;
  /// Checks or hazards that do not apply to the target, by name, each with the reason: {"lse", "returns no lse"}.
  std::map<std::string, std::string> skip;
};

/// Our own rows of kernels() by name; "cpu", "cuda" or "hip" = the row that plan() picks there, case by case. unsupported if this
/// machine cannot run it. On a GPU every case is copied to the device and its outputs back. "cpu_cascade", "cuda_cascade" and
/// "hip_cascade": attend_cascade() (cascade.hpp) that shares whatever can be shared, with partial results in f32.
/// "cpu_lists": attend_sparse() (sparse.hpp) over lists that hold what each row sees.
Result<Target> backend_target(const std::string& name, int num_threads = 0);

/// Types of queries and of the cache.
struct TypePair {
  DType query = DType::f32;
  DType cache = DType::f32;
  friend bool operator==(const TypePair&, const TypePair&) = default;
};

/// Returns whether a target takes a problem. Called for many lines before any case is made.
using Supports = std::function<bool(const ProblemLine&)>;

struct VerifyOptions {
  std::vector<std::string> matrices = {"hazards"};  ///< names: notes, hazards, random; or "all"
  bool quick = false;                               ///< a subset of every matrix that still has full power; under a minute
  bool power = true;                                ///< run the fault catalogue through the same checks
  bool peer_power = false;                          ///< judge the catalogue with vLLM's test data and tolerance, too
  std::uint64_t seed = 1;                           ///< seed of the random matrix
  std::int64_t random_cases = 200;
  std::vector<std::string> lines;  ///< problem lines of your own: a matrix called "lines"
  /// Types, head_dims and layouts in which to run hazards and random lines instead of their own, for kernels that take few. The
  /// notes and your own lines stay as they are.
  std::vector<TypePair> types;
  std::vector<std::int64_t> head_dims;
  std::vector<CacheLayout> layouts;
  /// Changes hazards and random lines to a form for which it returns true, and leaves out notes for which it returns false; the
  /// verdict names cases without such a form. Your own lines run unchanged. Null: all cases run, and the target refuses some.
  Supports supports;
  /// Checks to leave out, by name. Unlike Target::skip this is no property of the target: power shows the loss.
  std::vector<std::string> disabled_checks;
  bool shrink = true;          ///< reduce failing cases to the smallest line that still fails
  double shrink_seconds = 15;  ///< time limit for each failing case
  /// Called from one thread after each case: done, total, next case. Return false to stop (the verdict is then `stopped`).
  std::function<bool(std::int64_t done, std::int64_t total, const std::string& label)> progress;
};

enum class CheckState : std::int32_t { pass = 0, fail = 1, skipped = 2 };
enum class CaseStatus : std::int32_t { pass = 0, fail = 1, refused = 2 };
enum class VerifyVerdict : std::int32_t {
  pass = 0,
  fail = 1,        ///< outranks mistrust
  mistrusted = 2,  ///< a planted fault survived or no case was served: a pass would mean nothing
  stopped = 3,     ///< VerifyOptions::progress returned false
};
/// Name of the enumerator: "pass", "fail", ...
std::string_view name(CheckState state) noexcept;
std::string_view name(CaseStatus status) noexcept;
std::string_view name(VerifyVerdict verdict) noexcept;

/// Result of one check of one case. Checks (verify.md): values, lse, rows, nan_poison, garbage_poison, repeat, canaries, strides,
/// strided_inputs, threads, alone, chunks.
struct CheckResult {
  std::string check;
  CheckState state = CheckState::pass;
  double worst_ratio = 0;  ///< largest |error| / tolerance, if the check measures errors
  std::string text;        ///< finding of a failed check, or reason of a skipped one
};

struct CaseResult {
  std::string matrix, name, line;  ///< "hazards", "WindowOne", the problem line that reruns it
  CaseStatus status = CaseStatus::pass;
  std::string special;         ///< change of the data that the line cannot express, or empty
  std::string kernel, reason;  ///< kernel that served the case; reason why the target refused it
  double seconds = 0;
  std::int64_t num_elements = 0;  ///< elements of the output; each must be written and finite
  std::int64_t num_compared = 0;  ///< elements of the output that were compared with the fp64 reference
  std::vector<CheckResult> checks;
  std::string reduced_line;                          ///< failing case: the smallest problem line that still fails, or empty
  std::string reduced_finding;                       ///< check that fails on reduced_line, and its finding
  std::shared_ptr<const report::Pictures> pictures;  ///< error maps and page map of a failing case, or null
};

/// Fate of one planted fault.
struct MutantResult {
  std::string id, family, text;
  bool killed = false;
  bool asked = true;     ///< false: noticed only by a case that the target refused or a check that it skips; not counted
  bool can_show = true;  ///< false: the fault moves no element of any case that ran; not counted
  std::string check, name, line, finding;  ///< check and case that noticed the fault, and where

  /// Whether the fault counts against the suite: it moved an element of a case that ran, and no check noticed.
  bool survived() const { return asked && can_show && !killed; }
};

/// Power of the data and the tolerance of vLLM's test_prefix_prefill.py over the fault catalogue.
struct PeerPower {
  std::string name, line;
  double atol = 0;
  std::int64_t killed = 0, total = 0;
  std::int64_t known_killed = 0, known_total = 0;  ///< killed and total among the faults of a published study of that test
  std::int64_t rows_compared = 0, rows_total = 0;  ///< a sample that holds the rows with the fewest keys
  struct Mutant {
    std::string id;
    bool killed = false;
    double max_error = 0;
  };
  std::vector<Mutant> mutants;
};

/// Attributes of the cases that were served. A verdict says nothing about other batches.
struct Reach {
  std::map<std::string, std::pair<double, double>> ranges;  ///< "rows of a request" -> (least, largest)
  std::vector<std::string> never;                           ///< attributes that no served case had: "layout packed", "sinks", ...
};

/// Result of verify(). Holds data only: report.hpp makes text, JSON and a page of it.
struct Verdict {
  std::string target;
  VerifyVerdict verdict = VerifyVerdict::stopped;
  std::string date, device;  ///< "2026-11-23", UTC; this machine in words
  double seconds = 0;
  std::vector<CaseResult> cases;
  std::vector<MutantResult> power;
  std::vector<PeerPower> peer;
  std::string supported;                         ///< problems that VerifyOptions::supports takes, in words; empty without it
  std::map<std::string, std::int64_t> left_out;  ///< "hazards SoftCap": cases that have no form which is supported
  Reach reach;                                   ///< reach of the cases that were served
  std::string shared;                            ///< what all failing cases and no passing case have, as a sentence, or empty
  std::string smallest_line;                     ///< smallest of all failing lines, with CaseResult::special of its data
  std::string smallest_finding;                  ///< check that fails on smallest_line, and its finding
};

/// Runs the matrices and measures the suite's own power. Errors: invalid_argument for an unknown matrix.
Result<Verdict> verify(const Target& target, const VerifyOptions& options = {});

struct SoakOptions {
  double minutes = 10;     ///< length of this run, finite and >= 0; 0: until `progress` returns false
  std::string directory;   ///< folder of state.json, log.txt and findings.txt; empty: nothing is written and nothing is resumed
  std::uint64_t seed = 1;  ///< seed of fresh batches; a state in `directory` goes on with its own seed
  /// Types, head_dims, layouts and features that the target takes, as in VerifyOptions.
  std::vector<TypePair> types;
  std::vector<std::int64_t> head_dims;
  std::vector<CacheLayout> layouts;
  Supports supports;
  bool shrink = true;
  double shrink_seconds = 15;
  /// Called from one thread before each case, with the state of the run in words. Return false to stop.
  std::function<bool(const std::string& label)> progress;
};

/// Counts of one target in a soak, earlier runs of the same state included.
struct SoakCounts {
  std::string target;
  std::int64_t cases = 0, passed = 0, failed = 0, refused = 0;
  std::int64_t num_elements = 0, num_compared = 0;  ///< elements of served cases, as in CaseResult
  double worst_ratio = 0;                           ///< largest |error| / tolerance
};

struct SoakFinding {
  std::string target, check, text;  ///< target, the first check that failed, and its finding
  std::string line;                 ///< the problem line of the case
  std::string reduced_line;         ///< the smallest line that still fails, or empty
  std::string reduced_finding;
};

struct SoakResult {
  std::uint64_t seed = 0;
  std::int64_t first = 0, next = 0;  ///< random lines [first, next) of the seed were asked in this run
  double seconds = 0, total_seconds = 0;
  std::vector<SoakCounts> counts;
  std::vector<SoakFinding> findings;     ///< findings of this run
  std::vector<std::string> interrupted;  ///< lines that ran when the process of an earlier run ended; they were not asked again
  bool ok() const;                       ///< true if a case was served, and no case of any run failed
};

/// Runs fresh random batches until time is up, each batch on every target. Errors: invalid_argument for no target or for a state
/// of other targets, io_error if the directory cannot be written.
Result<SoakResult> soak(const std::vector<Target>& targets, const SoakOptions& options = {});

}  // namespace quire
