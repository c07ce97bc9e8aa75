// Choosing is a value: plan() is a pure function from a problem and a device to a printable plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/batch.hpp"
#include "quire/problem.hpp"
#include "quire/status.hpp"

namespace quire {

enum class Backend : std::int32_t { cpu = 0, cuda = 1, hip = 2 };
std::string_view name(Backend backend) noexcept;

/// CPU instruction-set features that kernels may ask for (bit mask).
enum CpuFeature : std::uint32_t {
  kAvx2 = 1u << 0,        ///< AVX2 + FMA + F16C
  kAvx512 = 1u << 1,      ///< AVX-512 F, BW, VL, DQ (implies kAvx2)
  kAvx512Bf16 = 1u << 2,  ///< AVX512-BF16
  kNeon = 1u << 3,
  kAmxBf16 = 1u << 4,  ///< AMX tiles with bf16 products, and AVX512-VBMI (implies kAvx512Bf16)
};

/// A device as planning sees it: real (host_device) or pretended (find_device).
struct Device {
  std::string name;  ///< "scalar", "avx2", "avx512", "avx512bf16", "sm90", "gfx942", ...
  Backend backend = Backend::cpu;
  std::uint32_t cpu_features = 0;
  int num_threads = 1;              ///< threads (CPU) or multiprocessors / compute units (GPU)
  std::int64_t l2_bytes = 1 << 20;  ///< per core on CPUs, per device on GPUs
  bool operator==(const Device&) const = default;
};
/// This machine's CPU, features read with CPUID once; QUIRE_CPU=scalar|avx2|avx512|avx512bf16|amx narrows it (never widens).
Device host_device();
/// A named pretend device; the error lists the names.
Result<Device> find_device(std::string_view name);
std::vector<Device> known_devices();

/// One row of the kernel table, src/plan/kernels.inc.
struct Kernel {
  std::string_view name;  ///< "cpu_avx512"
  Backend backend;
  std::uint32_t cpu_features;  ///< all of these are needed
  std::string_view takes;      ///< what it takes, in words
  std::string_view description;
};
/// All rows in order of preference.
std::span<const Kernel> kernels() noexcept;

struct PlanSettings {
  std::string kernel;            ///< force this row by name; plan fails with its refusals if it cannot take the problem
  bool batch_invariant = false;  ///< a request's bits do not depend on the rest of the batch nor on its chunking
  int num_threads = 0;           ///< 0 = device.num_threads; only balances work, never changes bits
};

/// A kernel that was passed over, and one reason. A kernel with several failed conditions has several refusals.
struct Refusal {
  std::string kernel;
  std::string reason;
};

/// Query rows [row_begin, row_end) of one request and KV head (all its query heads) over keys [key_begin, key_end).
/// Rows are counted within the request. partial < 0: writes output; otherwise writes split-KV partials, starting with
/// partial index `partial`, one per (row, head of the group).
struct WorkItem {
  std::int32_t req = 0;
  std::int32_t kv_head = 0;
  std::int32_t row_begin = 0;
  std::int32_t row_end = 0;
  std::int64_t key_begin = 0;
  std::int64_t key_end = 0;
  std::int64_t partial = -1;
  bool operator==(const WorkItem&) const = default;
};

/// Folds `num_partials` split-KV partials (in key order) into output rows. Partial j of (row, head) has index
/// first_partial + j * (row_end - row_begin) * group + (row - row_begin) * group + head_in_group.
struct MergeItem {
  std::int32_t req = 0;
  std::int32_t kv_head = 0;
  std::int32_t row_begin = 0;
  std::int32_t row_end = 0;
  std::int64_t first_partial = 0;
  std::int32_t num_partials = 0;
  bool operator==(const MergeItem&) const = default;
};

/// Query rows [row_begin, row_end) of one request over keys [key_begin, key_end), for every KV head: a run of work items.
struct WorkTile {
  std::int32_t req = 0;
  std::int32_t row_begin = 0;
  std::int32_t row_end = 0;
  std::int32_t num_parts = 1;  ///< items per KV head: 1, or one for each split_keys segment that the keys touch
  std::int64_t key_begin = 0;
  std::int64_t key_end = 0;
  std::int64_t first_item = 0;      ///< items before this tile's num_parts * num_kv_heads
  std::int64_t first_merge = 0;     ///< merges before this tile's num_kv_heads (none if num_parts is 1)
  std::int64_t first_partial = -1;  ///< of KV head 0; every head has num_parts * rows * group of them; -1 if num_parts is 1
  bool operator==(const WorkTile&) const = default;
};

/// What attend() will do, decided in full. Equal inputs give equal plans; reusable for every layer of a step.
struct Plan {
  Problem problem;
  Device device;
  std::string kernel;
  bool batch_invariant = false;
  std::int64_t tile_q = 0;       ///< query rows (of one KV head's group) per tile
  std::int64_t tile_kv = 0;      ///< keys per tile
  std::int64_t split_keys = 0;   ///< keys per split-KV segment; every row is folded over the same segments
  std::int64_t direct_rows = 0;  ///< items of up to this many score rows read K and V in place (decode); 0 if batch_invariant
  std::vector<WorkTile> tiles;   ///< heaviest items first
  std::int64_t num_partials = 0;
  std::int64_t scratch_bytes_per_thread = 0;
  int num_threads = 1;
  std::int64_t kv_bytes = 0;      ///< bytes of K and V in the visible ranges, each counted once
  double flops = 0;               ///< 4 * head_dim * num_q_heads * visible pairs
  std::vector<Refusal> refusals;  ///< rows preferred over the chosen one, and why they refused
  bool operator==(const Plan& other) const;

  /// Items share nothing but the workspace and may run in any order; taking them in this order balances the threads.
  std::int64_t num_items() const noexcept;
  WorkItem item(std::int64_t index) const noexcept;  ///< index in [0, num_items())
  /// One merge for each KV head of a split tile; it may run once all items of that tile and head are done.
  std::int64_t num_merges() const noexcept;
  MergeItem merge(std::int64_t index) const noexcept;  ///< index in [0, num_merges())
  /// The merge that reads what item(index) writes; -1 if that item writes output itself.
  std::int64_t merge_after(std::int64_t index) const noexcept;
};

/// Plans a problem for a device. Fails with `unsupported` (all refusals in the message) if no row takes it.
Result<Plan> plan(Problem problem, const Device& device, const PlanSettings& settings = {});
/// Checks metadata and tables first (a broken rule is the returned status), then plans for this batch on this machine.
Result<Plan> plan(const Batch& batch, const KVCache& cache, const Options& options, const PlanSettings& settings = {});

/// One line: `cpu_avx512 tile=64x64 split=1024 items=40 merges=8 ...`.
std::string to_string(const Plan& plan);
/// The busiest thread's share of the work over the mean, if threads take items in order and the cost model holds; 1 is perfect,
/// and so is a plan without items.
double load_imbalance(const Plan& plan);
/// Bytes that attend() needs in `workspace` for this plan.
std::size_t workspace_bytes(const Plan& plan) noexcept;

/// The choice and every refusal, for people (`text`) and programs.
struct Explanation {
  Problem problem;
  Device device;
  std::string chosen;             ///< kernel name, or empty if none takes the problem
  std::vector<Refusal> refusals;  ///< every row not chosen, in table order, with each failed condition
  std::string plan_line;          ///< to_string(plan), or empty
  std::string text;               ///< all of it, several lines
};
Explanation explain(const Problem& problem, const Device& device, const PlanSettings& settings = {});

/// Which kernel vLLM would run for this problem on an AMD GPU (vLLM's `use_rocm_custom_paged_attention`, 2026-01), and why.
struct VllmChoice {
  std::string prefill_kernel;       ///< serves rows with query_len > 1; empty if there are none
  std::string decode_kernel;        ///< "paged_attention_rocm" or "kernel_paged_attention_2d"; serves query_len == 1
  std::vector<std::string> failed;  ///< each condition that kept the custom kernel away
  std::vector<std::string> notes;   ///< known hazards of that choice for this problem
  std::string text;
};
/// `arch`: gfx90a, gfx942, gfx950, gfx1100 or gfx1201.
Result<VllmChoice> explain_as_vllm(const Problem& problem, std::string_view arch);

}  // namespace quire
