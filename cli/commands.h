// SPDX-License-Identifier: Apache-2.0
// The commands. Each takes its parsed arguments and returns a report; none writes to stdout itself.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "input.h"
#include "quire/contract.hpp"
#include "quire/tools/verify.hpp"
#include "report.h"

namespace CLI {
class App;
}

namespace quire::cli {

struct CheckArgs {
  Words input;
  Depth depth = Depth::contents;
};
Report run_check(const CheckArgs& args, const Terminal& terminal);

struct ExplainArgs {
  Words input;
  std::string device;  ///< empty = this machine
  std::string kernel;
  bool all = false;
  bool batch_invariant = false;
  bool exact_weights = false;
  std::string lists;  ///< "slot:2048", "page:64:head"; empty = no lists
};
/// The batch that stands for such lists, in place of `problem`; what lists were asked for goes to `said`.
Result<Problem> problem_of_lists_asked_for(const std::string& lists, const Problem& problem, std::string& said);
/// Pages that requests share, on that device, for people and programs; absent if the input has none.
std::optional<SharedPrefixes> shared_prefixes_of(const Words& input, const Problem& problem, const Device& device);
std::string shared_text(const SharedPrefixes& shared, const Problem& problem);
Json shared_json(const SharedPrefixes& shared);
Report run_explain(const ExplainArgs& args, const Terminal& terminal);

struct RunArgs {
  Words input;
  std::string kernel;
  int threads = 0;  ///< 0 = all this process may use
  bool batch_invariant = false;
  bool verify = false;     ///< --verify: the default, said aloud
  bool no_verify = false;  ///< --no-verify; excludes `verify`
  int repeat = 1;
  std::string save;
};
Report run_run(const RunArgs& args, const Terminal& terminal);

struct CaptureArgs {
  Words input;
  std::string output;
  std::string fault;  ///< empty: no observed output is made
  std::string fill;   ///< empty = "nan", or "garbage"
};
Report run_capture(const CaptureArgs& args, const Terminal& terminal);

struct CompareCachesArgs {
  std::string a, b;                            ///< files, or problem lines
  std::vector<std::int64_t> heads_a, heads_b;  ///< the model's numbers of KV heads; empty = 0, 1, ...
};
Report run_compare_caches(const CompareCachesArgs& args, const Terminal& terminal);

/// Seconds for comparing a wrong output with the reference: a user waits for them. A longer time compares more rows, which
/// changes patterns.
inline constexpr double kReferenceSeconds = 0.5;

struct DiagnoseArgs {
  Words input;
  bool full = false;
  double seconds = 5;
  std::string profile;  ///< empty: found by itself
  std::string reduced;  ///< empty = beside the input
  bool no_reduced = false;
  bool verbose = false;
  std::string html;
};
Report run_diagnose(const DiagnoseArgs& args, const Terminal& terminal);

struct VerifyArgs {
  std::vector<std::string> backends;  ///< empty = cpu
  std::vector<std::string> matrices;  ///< empty = hazards, unless there are lines
  std::vector<std::string> lines;     ///< whole problem lines
  std::vector<std::string> types;     ///< "bf16:fp8_e4m3fn"
  std::vector<std::int64_t> dims;
  std::vector<std::string> layouts;
  bool quick = false;
  bool peer = false;
  bool no_power = false;
  std::uint64_t seed = 1;
  std::int64_t cases = 200;
  std::string html;
  double soak = 0;          ///< minutes; 0: no soak
  std::string soak_folder;  ///< empty: quire-soak
};
Report run_verify(const VerifyArgs& args, const Terminal& terminal);
/// The error for a backend name that verify cannot be asked of.
Report no_backend(const std::string& name, const Status& status);
/// verify --soak: random batches until time is up or Ctrl-C.
Report run_soak(const VerifyArgs& args, const VerifyOptions& asked, const std::vector<std::string>& backends,
                const Terminal& terminal);

struct BenchArgs {
  Words input;                     ///< problem lines or one capture
  std::vector<std::string> cases;  ///< case files
  std::vector<std::string> captures;
  std::vector<std::string> workloads;
  std::string device;                ///< empty = cpu
  std::vector<std::string> kernels;  ///< empty = the planned one
  std::vector<int> threads;          ///< empty = 1 and all this process may use
  bool batch_invariant = false;
  double seconds = 2.0;
  bool no_verify = false;
  std::string save;
  std::string html;
};
Report run_bench(const BenchArgs& args, const Terminal& terminal);

struct BenchCompareArgs {
  std::string before, after;
  bool force = false;
};
Report run_bench_compare(const BenchCompareArgs& args);

/// Reports this build, its devices, and the kernels that would run on each of them.
/// `what`: "devices", "kernels" or empty.
Report run_info(const std::string& what, const Terminal& terminal);
/// Reports all rules in one line each, or one rule in full.
Report run_rules(const std::string& id, const Terminal& terminal);

/// Findings as JSON (schema in cli.md).
Json findings_json(const Findings& findings);

/// The script of bash, zsh or fish, made from the commands and options of `app`.
Report print_completions(const CLI::App& app, const std::string& shell);

}  // namespace quire::cli
