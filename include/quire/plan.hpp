// SPDX-License-Identifier: Apache-2.0
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
  /// VDPBF16PS at the rate of an FMA, and so at twice its products: AMD. Intel runs it at half that. No instruction, a
  /// preference.
  kFastBf16Dot = 1u << 5,
};

/// A device as planning sees it: real (host_device, gpu_device) or pretended (find_device).
struct Device {
  std::string name;  ///< "scalar", "avx2", "avx512", "avx512bf16", "sm90", "gfx942", ...
  Backend backend = Backend::cpu;
  std::uint32_t cpu_features = 0;
  int num_threads = 1;              ///< threads (CPU) or multiprocessors / compute units (GPU)
  std::int64_t l2_bytes = 1 << 20;  ///< per core on CPUs, per device on GPUs
  int sm = 0;                       ///< CUDA compute capability, 10 * major + minor; 0 for all others
  int ordinal = -1;                 ///< which of this machine's GPUs; -1 for CPUs and pretended devices
  std::string product;              ///< as the driver calls it; empty for CPUs and architectures such as sm90
  bool operator==(const Device&) const = default;
};
/// This machine's CPU, features read with CPUID once; QUIRE_CPU=scalar|avx2|avx512|avx512bf16|amx narrows it (never widens).
Device host_device();
/// Whether this build has kernels for a backend. A build without them still plans for its pretended devices.
bool has_backend(Backend backend) noexcept;
/// This machine's GPUs that this build has kernels for, in the driver's order; empty if there are none.
std::vector<Device> gpu_devices();
/// One of them. Fails with `unsupported` if the build has no GPU kernels or there is no such GPU; the message says which.
Result<Device> gpu_device(int ordinal = 0);
/// A named pretend device; the error lists the names.
Result<Device> find_device(std::string_view name);
std::vector<Device> known_devices();

/// One row of the kernel table, src/plan/kernels.inc, as users see it.
struct Kernel {
  std::string_view name;  ///< "cpu_avx512"
  Backend backend;
  std::uint32_t cpu_features;  ///< all of these are needed
  std::string_view takes;      ///< what it takes, in words
  std::string_view description;
};
/// All rows in order of preference.
std::span<const Kernel> kernels() noexcept;

namespace plan_detail {
struct KernelRow;
}

/// A kernel as plans hold it: a handle to its row of the table. It reads, prints and compares as the kernel's name.
class KernelHandle {
 public:
  constexpr KernelHandle() = default;
  constexpr KernelHandle(const plan_detail::KernelRow& row) noexcept : row_(&row) {}
  std::string_view name() const noexcept;                               ///< empty if the handle holds no row
  const plan_detail::KernelRow& row() const noexcept { return *row_; }  ///< of a handle that holds one
  operator std::string_view() const noexcept { return name(); }
  operator std::string() const { return std::string(name()); }
  bool operator==(const KernelHandle&) const = default;
  friend bool operator==(const KernelHandle& kernel, std::string_view name) noexcept { return kernel.name() == name; }

 private:
  const plan_detail::KernelRow* row_ = nullptr;
};

struct PlanSettings {
  std::string kernel;            ///< force this row by name; plan fails with its refusals if it cannot take the problem
  bool batch_invariant = false;  ///< a request's bits do not depend on the rest of the batch nor on its chunking
  bool exact_weights = false;    ///< softmax weights keep f32's precision in every row (see rounds_weights()); slower
  int num_threads = 0;           ///< 0 = device.num_threads, at most kMaxThreads; only balances work, never changes bits
  /// For lengths that live on a device and are not read: no request of the batch is longer. 0 = what the tensors' shapes allow.
  /// They size the workspace; attend_status() finds a batch that breaks them.
  std::int64_t max_query_len = 0;
  std::int64_t max_seq_len = 0;
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

/// What a GPU plan is sized for. Kernels read the lengths on the device: every batch within these bounds runs with the plan.
struct Bounds {
  std::int64_t num_reqs = 0;
  std::int64_t num_tokens = 0;
  std::int64_t max_query_len = 0;
  std::int64_t max_seq_len = 0;
  /// max_seq_len is what the table's width holds. A longer request is no fault of its own: its window may see none of the table.
  bool seq_len_from_shapes = false;
  bool operator==(const Bounds&) const = default;
};

/// Part that a kernel plays for a list of a GPU plan. The kernel and the role select the code that runs.
enum class Role : std::int32_t {
  rows,         ///< rows of any number, in tiles of one height
  short_rows,   ///< few score rows of a request, in low tiles
  tall_rows,    ///< many score rows of a request, in high tiles
  decode,       ///< few score rows, in low tiles of a kernel made for decode
  decode_wide,  ///< the same in higher tiles
  prefill,      ///< many score rows, in tiles of a kernel made for prefill
};

/// One work list of a GPU plan, which the device writes: slices of the requests with min_rows < query_len * group <= max_rows.
/// Score row s of a request is query row s / group, head s % group of a KV head's group. Capacities hold for every batch within
/// the bounds (src/plan/device_lists.cpp has the proof).
struct DeviceList {
  KernelHandle kernel;  ///< serves the list: the plan's, or one that takes what the plan's kernel leaves
  Role role = Role::rows;
  std::int64_t tile_rows = 0;  ///< score rows per tile
  std::int64_t tile_keys = 0;  ///< parts of a tile's keys begin at multiples of this
  std::int64_t min_rows = 0;
  std::int64_t max_rows = 0;
  std::int64_t split_keys = 0;  ///< keys per part; 0 = the device chooses, so that about target_items items exist
  std::int64_t target_items = 0;
  std::int64_t num_blocks = 0;    ///< thread blocks that draw items
  std::int64_t max_slices = 0;    ///< (tile, part) pairs; each is num_kv_heads items
  std::int64_t max_merges = 0;    ///< tiles of several parts
  std::int64_t max_partials = 0;  ///< partial tiles, [tile_rows][v_head_dim] f32 each
  bool beside = false;            ///< is served at the same time as the list before it, on multiprocessors of its own
  bool operator==(const DeviceList&) const = default;
};

/// What attend() will do, decided in full. Equal inputs give equal plans; reusable for every layer of a step. CPU plans hold the
/// work itself (tiles); GPU plans hold lists that the device fills, because the lengths are only known there.
struct Plan {
  Problem problem;
  Device device;
  KernelHandle kernel;
  bool batch_invariant = false;
  bool exact_weights = false;
  std::int64_t tile_q = 0;        ///< query rows (of one KV head's group) per tile
  std::int64_t tile_kv = 0;       ///< keys per tile
  std::int64_t split_keys = 0;    ///< keys per split-KV segment; every row is folded over the same segments
  std::int64_t direct_rows = 0;   ///< items of up to this many score rows read K and V in place (decode); 0 if batch_invariant
  std::vector<WorkTile> tiles;    ///< heaviest items first; empty for a GPU
  std::vector<DeviceList> lists;  ///< one kernel launch each; empty for a CPU
  Bounds bounds;                  ///< of a GPU plan
  std::vector<std::string> assumptions;  ///< what planning took for granted about lengths that it did not read
  std::int64_t num_partials = 0;
  std::int64_t scratch_bytes_per_thread = 0;
  int num_threads = 1;
  std::int64_t kv_bytes = 0;      ///< bytes of K and V in the visible ranges, each counted once; 0 if lengths were not read
  double flops = 0;               ///< 2 * (head_dim + v_head_dim) * num_q_heads * visible pairs; 0 if lengths were not read
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
/// Checks metadata and tables first (a broken rule is the returned status), then plans for this batch where its tensors are: on
/// this machine's CPU, or on the GPU that holds `query`. On a GPU no tensor is read and nothing waits for the device: the plan is
/// made from upper bounds, query_len <= num_tokens and seq_len <= table columns * page_size (and the new rows), or those of
/// `settings`, and says so in `assumptions`.
Result<Plan> plan(const Batch& batch, const KVCache& cache, const Options& options, const PlanSettings& settings = {});

/// Whether attend() may round the softmax weights of a request with query_len rows to the type of the query before they meet V
/// (numerics.md, "Rounded weights"). Its outputs are then judged with allow_rounded_weights().
bool rounds_weights(const Plan& plan, std::int64_t query_len) noexcept;

/// One line: `cpu_avx512 tile=64x64 split=1024 items=40 merges=8 ...`.
std::string to_string(const Plan& plan);
/// The busiest thread's share of the work over the mean, if threads take items in order and the cost model holds; 1 is perfect,
/// and so is a plan without items.
double load_imbalance(const Plan& plan);
/// Bytes that attend() needs in `workspace` for this plan, in the memory of the batch.
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

/// What one list of a GPU plan takes: the time to read K and V or that of the unit (a block, or a pair) with most work, whichever
/// is longer, and what comes before and after.
struct ListPrediction {
  std::string served_by;           ///< "sm90_decode", "sm90_wide", "sm90_prefill", "mma_short", "mma_tall" or "generic"
  std::int64_t units = 0;          ///< that share the items
  std::int64_t items = 0;          ///< parts of tiles of score rows, times KV heads
  std::int64_t busiest_items = 0;  ///< of the unit with most work
  std::int64_t busiest_tiles = 0;  ///< of keys
  std::int64_t merges = 0;         ///< tiles of score rows in several parts, times KV heads
  double read_bytes = 0;           ///< of K and V that its rows see, each counted once
  double read_seconds = 0;
  double tile_seconds = 0;
  double item_seconds = 0;
  double seconds = 0;  ///< of the list: the longer of reading and tiles, items, launch, first keys and merge
};

/// Seconds of one attend() on the device, or why they are not predicted.
struct Prediction {
  std::string device;  ///< whose measured costs were taken: "H200"
  double call_seconds = 0;
  std::vector<ListPrediction> lists;
  double saved_seconds = 0;  ///< of the lists', as they run at the same time
  double seconds = 0;        ///< call and lists, less what is saved; 0 if not predicted
  std::string why_not;
};
/// From the costs in src/plan/device_costs.h and src/plan/kernels/. Of plans that know the lengths.
Prediction predict(const Plan& plan);

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
