// Conformance: is an implementation, ours or anybody's, a correct paged attention, and would this suite notice if it were not?
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "quire/capture.hpp"
#include "quire/problem.hpp"
#include "quire/status.hpp"

namespace quire {

/// An implementation under test.
struct Target {
  std::string name;  ///< "cpu_avx512", "torch.sdpa", ...
  /// Writes c.batch.output, and c.batch.lse if it is present. `kernel` may be set to what served the call. Code::unsupported
  /// means refused (listed with its reason, not failed); every other error is a finding.
  std::function<Status(const Case& c, std::string& kernel)> attend;
  /// Does it promise the same bits for the same input? Then a repeat that differs is a finding.
  bool deterministic = true;
};

/// Our own rows of kernels() by name; "cpu" = the row that plan() picks, case by case. unsupported if this machine cannot run it.
Result<Target> backend_target(const std::string& name, int num_threads = 0);

struct VerifyOptions {
  std::vector<std::string> matrices = {"hazards"};  ///< any of notes, hazards, random; "all"
  bool quick = false;                               ///< a subset of every matrix that still has full power; under a minute
  bool power = true;                                ///< run the fault catalogue through the same checks
  bool peer_power = false;                          ///< also judge the catalogue with vLLM's test data and tolerance
  std::uint64_t seed = 1;                           ///< of the random matrix
  std::int64_t random_cases = 200;
  bool shrink = true;  ///< reduce every failing case to the smallest line that still fails
  /// Called from one thread after each case: done, total, what comes next. Return false to stop (the verdict says so).
  std::function<bool(std::int64_t done, std::int64_t total, const std::string& label)> progress;
};

enum class CheckState : std::int32_t { pass = 0, fail = 1, skipped = 2 };

/// One check of one case: values, lse, nan_poison, garbage_poison, rows, canaries, repeat, ...
struct CheckResult {
  std::string check;
  CheckState state = CheckState::pass;
  double worst_ratio = 0;  ///< largest |error| / tolerance, where the check measures one
  std::string text;        ///< what failed, or why it was skipped
};

struct CaseResult {
  std::string matrix, name, line;  ///< "hazards", "WindowOne", the problem line that reruns it
  std::string status;              ///< pass, fail, refused
  std::string kernel, reason;      ///< what served it; why it was refused
  double seconds = 0;
  std::vector<CheckResult> checks;
  std::string reduced_line;  ///< of a failing case: the smallest problem line that still fails, and how
  std::string pictures;      ///< of a failing case: JSON of error maps and page map for the report
};

/// What became of one planted fault.
struct MutantResult {
  std::string id, text;
  bool killed = false;
  std::string check, line, finding;  ///< who noticed it, and where
};

/// The same catalogue under the data and tolerance of vLLM's test_prefix_prefill.py.
struct PeerPower {
  std::string line;
  double atol = 0;
  std::int64_t killed = 0, total = 0;
  struct Mutant {
    std::string id;
    bool killed = false;
    double max_error = 0;
  };
  std::vector<Mutant> mutants;
};

/// verdict: "pass", "fail", or "mistrusted" when a planted fault survived: then a pass would mean nothing.
struct Verdict {
  std::string target, verdict;
  double seconds = 0;
  std::vector<CaseResult> cases;
  std::vector<MutantResult> power;
  std::vector<PeerPower> peer;
  std::string text;  ///< the complete report for a terminal
  std::string json;  ///< the same as JSON (docs/verify.md)
};

/// Runs the matrices and measures the suite's own power. Errors: invalid_argument for an unknown matrix.
Result<Verdict> verify(const Target& target, const VerifyOptions& options = {});

}  // namespace quire
