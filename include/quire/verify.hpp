// SPDX-License-Identifier: Apache-2.0
// Conformance: is an implementation, ours or anybody's, a correct paged attention, and would this suite notice if it were not?
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/capture.hpp"
#include "quire/problem.hpp"
#include "quire/status.hpp"

namespace quire {

namespace report {
struct Pictures;  // what a page draws (src/report/pictures.h)
}

/// Writes c.batch.output, and c.batch.lse if it is present. `kernel` may be set to what served the call. Code::unsupported means
/// refused (listed with its reason, not failed); every other error is a finding.
using AttendCase = std::function<Status(const Case& c, std::string& kernel)>;

/// An implementation under test, and what it promises. Checks that follow from a promise are made only if it is given.
struct Target {
  std::string name;  ///< "cpu_avx512", "torch.sdpa", ...
  AttendCase attend;
  bool deterministic = true;  ///< the same bits for the same input (checks repeat; the poison checks then compare bits)
  bool in_place = true;     ///< writes into the batch's memory, whatever its strides, and nowhere else (canaries, rows, strides)
  bool padding = false;     ///< takes batches with padding rows; otherwise hazards are asked without them
  bool masks = false;       ///< takes requests that are not causal, q_begin and key_begin; otherwise no matrix has them
  bool v_head_dim = false;  ///< takes a V of another head_dim than K's, also as a part of K's rows; otherwise no matrix has one
  bool eight_bit_rows = false;   ///< takes queries and outputs of fp8_e4m3fn with scales; otherwise no matrix has them
  bool batch_invariant = false;  ///< a request has the same bits alone, in a batch and in chunks (alone, chunks)
  /// Rounds softmax weights to the type of the query before they meet V: the tolerance pays for it (allow_rounded_weights).
  bool rounded_weights = false;
  /// The same where it is so for some requests: for every query row of the batch, whether it is. Null: as rounded_weights says.
  std::function<std::vector<bool>(const Case&)> rounded_rows;
  /// How to call it so that batch_invariant holds, if that is not how `attend` calls it.
  AttendCase invariant;
  /// Other ways to run it that promise the same bits, by name: "8 threads" (threads).
  std::vector<std::pair<std::string, AttendCase>> variants;
  /// Checks or hazards, by name, that cannot be asked of it, each with the reason: {"lse", "returns no lse"}.
  std::map<std::string, std::string> skip;
};

/// Our own rows of kernels() by name; "cpu", "cuda" or "hip" = the row that plan() picks there, case by case. unsupported if this
/// machine cannot run it. On a GPU every case is copied to the device and its outputs back. "cpu_cascade", "cuda_cascade" and
/// "hip_cascade": attend_cascade() (cascade.hpp) that shares whatever can be shared, with partial results in f32.
Result<Target> backend_target(const std::string& name, int num_threads = 0);

/// The types of queries and of the cache.
struct TypePair {
  DType query = DType::f32;
  DType cache = DType::f32;
  friend bool operator==(const TypePair&, const TypePair&) = default;
};

/// Whether a target takes problems like this one. It is asked about many lines before any case is made.
using Supports = std::function<bool(const ProblemLine&)>;

struct VerifyOptions {
  std::vector<std::string> matrices = {"hazards"};  ///< any of notes, hazards, random, shards; "all"
  bool quick = false;                               ///< a subset of every matrix that still has full power; under a minute
  bool power = true;                                ///< run the fault catalogue through the same checks
  bool peer_power = false;                          ///< also judge the catalogue with vLLM's test data and tolerance
  std::uint64_t seed = 1;                           ///< of the random matrix
  std::int64_t random_cases = 200;
  std::vector<std::string> lines;  ///< problem lines of your own: a matrix called "lines"
  /// Run hazards and random lines in these types, head_dims and layouts instead of their own, for kernels that take few; the
  /// notes and lines of your own stay as they are.
  std::vector<TypePair> types;
  std::vector<std::int64_t> head_dims;
  std::vector<CacheLayout> layouts;
  /// Hazards and random lines are brought into a form that it says yes to, notes that it says no to are left out; the verdict
  /// names what has no such form. Lines of your own are asked all the same. Null: everything is asked, and the target refuses.
  Supports supports;
  /// Checks to leave out, by name. Unlike Target::skip this is no property of the target: power shows what it costs.
  std::vector<std::string> disabled_checks;
  bool shrink = true;          ///< reduce failing cases to the smallest line that still fails
  double shrink_seconds = 15;  ///< for each of them
  /// Called from one thread after each case: done, total, what comes next. Return false to stop (the verdict says so).
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
/// "pass", "fail", ...: as the enumerators are called.
std::string_view name(CheckState state) noexcept;
std::string_view name(CaseStatus status) noexcept;
std::string_view name(VerifyVerdict verdict) noexcept;

/// One check of one case; verify.md lists them: values, lse, rows, nan_poison, garbage_poison, repeat, canaries, strides,
/// threads, alone, chunks.
struct CheckResult {
  std::string check;
  CheckState state = CheckState::pass;
  double worst_ratio = 0;  ///< largest |error| / tolerance, where the check measures one
  std::string text;        ///< what failed, or why it was skipped
};

struct CaseResult {
  std::string matrix, name, line;  ///< "hazards", "WindowOne", the problem line that reruns it
  CaseStatus status = CaseStatus::pass;
  std::string special;         ///< what was done to the data where the line cannot say it, or empty
  std::string kernel, reason;  ///< what served it; why it was refused
  double seconds = 0;
  std::int64_t num_elements = 0;  ///< of the output
  std::int64_t num_compared = 0;  ///< of these, compared with the fp64 reference; all were demanded to be written and finite
  std::vector<CheckResult> checks;
  std::string reduced_line;                          ///< of a failing case: the smallest problem line that still fails, or empty
  std::string reduced_finding;                       ///< the check that fails there and what it says
  std::shared_ptr<const report::Pictures> pictures;  ///< error maps and page map of a failing case, or null
};

/// What became of one planted fault.
struct MutantResult {
  std::string id, family, text;
  bool killed = false;
  bool asked = true;     ///< false: noticed only by a case that the target refused or a check that it skips; not counted
  bool can_show = true;  ///< false: on no case that was asked would it move an element; not counted
  std::string check, name, line, finding;  ///< who noticed it (the check and the case), and where

  /// Counts against the suite: it moved an element of a case that was asked, and nobody noticed.
  bool survived() const { return asked && can_show && !killed; }
};

/// The same catalogue under the data and tolerance of vLLM's test_prefix_prefill.py.
struct PeerPower {
  std::string name, line;
  double atol = 0;
  std::int64_t killed = 0, total = 0;
  std::int64_t known_killed = 0, known_total = 0;  ///< the same over the faults of a published study of that test
  std::int64_t rows_compared = 0, rows_total = 0;  ///< a sample that holds the rows with the fewest keys
  struct Mutant {
    std::string id;
    bool killed = false;
    double max_error = 0;
  };
  std::vector<Mutant> mutants;
};

/// Attributes of the cases that were served. A verdict says nothing about others.
struct Reach {
  std::map<std::string, std::pair<double, double>> ranges;  ///< "rows of a request" -> (least, largest)
  std::vector<std::string> never;                           ///< "layout packed", "sinks", ...: what no served case had
};

/// Data only: report.hpp makes text, JSON and a page of it.
struct Verdict {
  std::string target;
  VerifyVerdict verdict = VerifyVerdict::stopped;
  std::string date, device;  ///< "2026-11-23", UTC; this machine in words
  double seconds = 0;
  std::vector<CaseResult> cases;
  std::vector<MutantResult> power;
  std::vector<PeerPower> peer;
  std::string supported;                         ///< what VerifyOptions::supports said yes to, in words; empty without it
  std::map<std::string, std::int64_t> left_out;  ///< "hazards SoftCap": cases that have no form which is supported
  Reach reach;                                   ///< nothing if no case was served
  std::string smallest_line;                     ///< of the failing lines the least to look at, with what was done to its data
  std::string smallest_finding;                  ///< the check that fails there and what it says
};

/// Runs the matrices and measures the suite's own power. Errors: invalid_argument for an unknown matrix.
Result<Verdict> verify(const Target& target, const VerifyOptions& options = {});

struct SoakOptions {
  double minutes = 10;     ///< of this run; 0 or less: until `progress` says stop
  std::string directory;   ///< state.json, log.txt and findings.txt are here; empty: nothing is written and nothing is resumed
  std::uint64_t seed = 1;  ///< of fresh batches; a state in `directory` goes on with its own
  /// Types, head_dims, layouts and features that the target takes, as in VerifyOptions.
  std::vector<TypePair> types;
  std::vector<std::int64_t> head_dims;
  std::vector<CacheLayout> layouts;
  Supports supports;
  bool shrink = true;
  double shrink_seconds = 15;
  /// Called from one thread before each case, with what the run has come to. Return false to stop.
  std::function<bool(const std::string& label)> progress;
};

/// Counts of one target in a soak, earlier runs of the same state included.
struct SoakCounts {
  std::string target;
  std::int64_t cases = 0, passed = 0, failed = 0, refused = 0;
  std::int64_t num_elements = 0, num_compared = 0;  ///< of served cases
  double worst_ratio = 0;                           ///< largest |error| / tolerance
};

struct SoakFinding {
  std::string target, check, text;  ///< the first check that failed and what it says
  std::string line;                 ///< the problem line of the case
  std::string reduced_line;         ///< the smallest line that still fails, or empty
  std::string reduced_finding;
};

struct SoakResult {
  std::uint64_t seed = 0;
  std::int64_t first = 0, next = 0;  ///< this run asked the random lines [first, next) of the seed
  double seconds = 0, total_seconds = 0;
  std::vector<SoakCounts> counts;
  std::vector<SoakFinding> findings;     ///< of this run
  std::vector<std::string> interrupted;  ///< lines that ran when the process of an earlier run ended; they were not asked again
  bool ok() const;                       ///< some case was served, and no case of any run failed
};

/// Asks the targets fresh random batches until time is up; each batch is asked of every target. Errors: invalid_argument for no
/// target or for a state of other targets, io_error where the directory cannot be written.
Result<SoakResult> soak(const std::vector<Target>& targets, const SoakOptions& options = {});

}  // namespace quire
