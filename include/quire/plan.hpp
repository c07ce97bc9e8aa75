// SPDX-License-Identifier: Apache-2.0
// Planning: plan() is a pure function from a problem and a device to a printable plan, which kernels obey.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/batch.hpp"
#include "quire/devices.hpp"
#include "quire/problem.hpp"
#include "quire/status.hpp"

namespace quire {

/// A row of the kernel table (src/plan/kernels.inc), as users see it.
struct Kernel {
  std::string_view name;  ///< "cpu_avx512"
  Backend backend;
  std::uint32_t cpu_features;  ///< bits of CpuFeature that the kernel needs, all of them
  std::string_view takes;      ///< problems that the kernel takes, in words
  std::string_view description;
};
/// All rows in order of preference.
std::span<const Kernel> kernels() noexcept;

namespace plan_detail {
struct KernelRow;
struct Work;
}  // namespace plan_detail

/// A kernel in a plan: a handle to its row of the table. A handle reads, prints and compares as the kernel's name.
class KernelHandle {
 public:
  constexpr KernelHandle() = default;
  // NOLINTBEGIN(google-explicit-constructor): a handle stands where its row or the kernel's name stands
  constexpr KernelHandle(const plan_detail::KernelRow& row) noexcept : row_(&row) {}
  std::string_view name() const noexcept;                               ///< empty if the handle holds no row
  const plan_detail::KernelRow& row() const noexcept { return *row_; }  ///< undefined if the handle holds no row
  operator std::string_view() const noexcept { return name(); }
  operator std::string() const { return std::string(name()); }
  // NOLINTEND(google-explicit-constructor)
  bool operator==(const KernelHandle&) const = default;
  friend bool operator==(const KernelHandle& kernel, std::string_view name) noexcept { return kernel.name() == name; }

 private:
  const plan_detail::KernelRow* row_ = nullptr;
};

struct PlanSettings {
  std::string kernel;            ///< name of the row to force; plan() fails with its refusals if it cannot take the problem
  bool batch_invariant = false;  ///< a request's bits do not depend on the rest of the batch nor on its chunking
  bool exact_weights = false;    ///< softmax weights keep f32's precision in every row (see rounds_weights()); slower
  int num_threads = 0;           ///< 0 = device.num_threads, at most kMaxThreads; only balances work, never changes bits
  /// Upper bounds of lengths that live on a device, where planning does not read them. 0 = the most that the tensors' shapes
  /// allow. The bounds size the workspace; attend_status() reports a batch that exceeds them.
  std::int64_t max_query_len = 0;
  std::int64_t max_seq_len = 0;
};

/// A kernel that was passed over, and one reason. A kernel with several failed conditions has several refusals.
struct Refusal {
  std::string kernel;
  std::string reason;
};

/// Sizes that a GPU plan covers. Kernels read the lengths on the device: every batch within these bounds runs with the plan.
struct Bounds {
  std::int64_t num_reqs = 0;
  std::int64_t num_tokens = 0;
  std::int64_t max_query_len = 0;
  std::int64_t max_seq_len = 0;
  /// Whether max_seq_len comes from the table's width. A longer request is then no error: its window may see none of the table.
  bool seq_len_from_shapes = false;
  /// Whether max_query_len is num_tokens because nobody said more: if there are several requests, it is then a guess.
  bool query_len_from_shapes = false;
  bool operator==(const Bounds&) const = default;
};

/// All decisions about one attend(). Equal inputs give equal plans. All layers of a step share a plan. A CPU plan holds the work
/// itself. A GPU plan holds lists that the device fills, because only the device knows the lengths.
struct Plan {
  Problem problem;
  Device device;
  KernelHandle kernel;
  bool batch_invariant = false;
  bool exact_weights = false;
  std::int64_t tile_q = 0;       ///< query rows (of one KV head's group) per tile
  std::int64_t tile_kv = 0;      ///< keys per tile
  std::int64_t split_keys = 0;   ///< keys per split-KV segment; every row is folded over the same segments
  std::int64_t direct_rows = 0;  ///< items of up to this many score rows read K and V in place (decode); 0 if batch_invariant
  Bounds bounds;                 ///< sizes that a GPU plan covers
  std::vector<std::string> assumptions;  ///< assumptions about lengths that planning did not read
  std::int64_t num_partials = 0;
  std::int64_t scratch_bytes_per_thread = 0;
  int num_threads = 1;
  std::int64_t kv_bytes = 0;      ///< bytes of K and V in the visible ranges, each counted once; 0 if lengths were not read
  double flops = 0;               ///< 2 * (head_dim + v_head_dim) * num_q_heads * visible pairs; 0 if lengths were not read
  std::vector<Refusal> refusals;  ///< rows preferred over the chosen one, with the reasons of their refusal
  bool operator==(const Plan& other) const;

  std::int64_t num_items() const noexcept;   ///< CPU plan: number of independent pieces of work
  std::int64_t num_merges() const noexcept;  ///< CPU plan: number of merges, each over the partials of several items

  /// Tiles and lists, for kernels (src/plan/work.h). Copies of a plan share the work: a copy is cheap.
  const plan_detail::Work& work() const noexcept;
  void set_work(plan_detail::Work work);

 private:
  std::shared_ptr<const plan_detail::Work> work_;
};

/// Plans a problem for a device. Fails with `unsupported` (all refusals in the message) if no row takes the problem.
Result<Plan> plan(Problem problem, const Device& device, const PlanSettings& settings = {});
/// Checks metadata and tables first (a broken rule is the returned status), then plans for this batch where its tensors are: on
/// this machine's CPU, or on the GPU that holds `query`. On a GPU no tensor is read and nothing waits for the device: the plan is
/// made from upper bounds, query_len <= num_tokens and seq_len <= table columns * page_size (and the new rows), or those of
/// `settings`, and says so in `assumptions`.
Result<Plan> plan(const Batch& batch, const KVCache& cache, const Options& options, const PlanSettings& settings = {});

/// Whether attend() may round the softmax weights of a request with query_len rows to the type of the query before their product
/// with V (numerics.md, "Rounded weights"). Outputs of such requests are judged with allow_rounded_weights().
bool rounds_weights(const Plan& plan, std::int64_t query_len) noexcept;

/// The plan in one line: `cpu_avx512 tile=64x64 split=1024 items=40 merges=8 ...`.
std::string to_string(const Plan& plan);
/// The busiest thread's share of the work over the mean, if threads take items in order and the cost model holds; 1 is perfect,
/// and so is a plan without items.
double load_imbalance(const Plan& plan);
/// Bytes that attend() needs in `workspace` for this plan, in the memory of the batch.
std::size_t workspace_bytes(const Plan& plan) noexcept;

/// Choice of a kernel and every refusal, for people (`text`) and programs.
struct Explanation {
  Problem problem;
  Device device;
  std::string chosen;             ///< kernel name, or empty if none takes the problem
  std::vector<Refusal> refusals;  ///< every row not chosen, in table order, with each failed condition
  std::string plan_line;          ///< to_string(plan), or empty
  std::string decode_reason;      ///< why clusters serve the decode rows of a GPU plan, or Stream-K; empty where there is one way
  std::string text;               ///< text of all members, several lines
};
Explanation explain(const Problem& problem, const Device& device, const PlanSettings& settings = {});  ///< never fails

}  // namespace quire
