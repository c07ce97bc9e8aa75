// SPDX-License-Identifier: Apache-2.0
// Shared prefixes ("cascade"): requests that begin with the same pages read them once.
//
// Requests next to each other share a run of pages if their block tables hold the same pages in the same columns. Runs form a
// tree: all requests may share a system prompt, and some of them a document behind it. Level l holds the runs that lie behind l
// others. Keys fall into disjoint ranges, and each range is an ordinary batch (batch.hpp):
//
//   level l    one request per run, with the rows of all requests of the run and the keys of its pages; every row sees every key
//   own keys   the batch itself, without the pages that runs hold: masks, sinks and this step's keys count here alone
//
// Each gives partial results, natural lse included; merge_many() (attention.hpp) combines them front to back. FlashInfer calls it
// cascade attention (Ye et al. 2024, https://flashinfer.ai/2024/02/02/cascade-inference.html; Hydragen, Juravsky et al. 2024,
// arXiv:2402.05099).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "quire/attention.hpp"
#include "quire/contract.hpp"
#include "quire/plan.hpp"
#include "quire/problem.hpp"
#include "quire/status.hpp"

namespace quire {

/// Pages [page_begin, page_end), as columns of the block table, that the requests [req_begin, req_end) have in common.
struct SharedRun {
  std::int64_t req_begin = 0;
  std::int64_t req_end = 0;
  std::int64_t page_begin = 0;
  std::int64_t page_end = 0;
  bool operator==(const SharedRun&) const = default;
  std::int64_t num_reqs() const noexcept { return req_end - req_begin; }
  std::int64_t num_pages() const noexcept { return page_end - page_begin; }
};

/// Leading keys of request r of the problem that its rows may read with others: cached, seen by every row, and at the same
/// distance or no matter at which. 0 with ALiBi, whose bias depends on where a row stands, and where a window hides the first
/// key. Rows at the end of their keys keep their own keys to themselves.
std::int64_t most_shared_keys(const Problem& problem, std::int64_t request) noexcept;

/// When sharing pays: by the bytes of keys and values that are not read again, less those of partial results.
struct SharingCosts {
  bool always = false;           ///< share whatever can be shared
  std::int64_t tile_rows = 64;   ///< score rows (query_len * group) that read a key together in any case
  std::int64_t level_bytes = 0;  ///< bytes that could be read in the time of one more call: launches of a GPU
  std::int64_t least_rows = 0;   ///< score rows of a run, below which reading together saves nothing
  std::int32_t max_levels = 8;
};
/// Costs on a device. Those of GPUs were measured on one H100.
SharingCosts sharing_costs(const Device& device) noexcept;

/// Runs that a batch shares, or the reason why it shares none.
struct SharedPrefixes {
  std::vector<std::vector<SharedRun>> levels;  ///< runs of each level, by request; runs of a level share no request
  std::vector<std::int64_t> pages;             ///< [num_reqs] leading pages of each request that runs hold
  double plain_bytes = 0;                      ///< bytes of K and V if every tile of rows reads its own
  double saved_bytes = 0;                      ///< bytes of K and V that runs save
  double added_bytes = 0;                      ///< bytes of partial results written and read, and the cost of calls in bytes
  std::string reason;                          ///< reason for the runs, or for their absence, in a sentence
  bool shares() const noexcept { return !levels.empty(); }
};

/// The runs of a batch, from equal columns of its block table [num_reqs, columns], as far as they pay. Requests are not moved: a
/// batch in which those that share stand next to each other shares most. Pure.
SharedPrefixes find_shared_prefixes(const Problem& problem, std::span<const std::int32_t> block_table, std::int64_t columns,
                                    const SharingCosts& costs);

/// Rules Q-P01 to Q-P03 for runs that the caller names. `pages`, if given, becomes SharedPrefixes::pages, and `levels` the runs
/// by level.
Findings check_shared_runs(const Problem& problem, std::span<const std::int32_t> block_table, std::int64_t columns,
                           std::span<const SharedRun> runs, SharedPrefixes* made = nullptr);

/// Several lines for people: each run, and what it saves.
std::string to_string(const SharedPrefixes& shared, const Problem& problem);

struct CascadeSettings {
  PlanSettings plan;             ///< settings of every level
  bool find = true;              ///< look for runs; false: those of `runs` and no others
  std::vector<SharedRun> runs;   ///< runs known to the caller, in any order; not with `find`
  bool always = false;           ///< SharingCosts::always
  DType partials = DType::none;  ///< dtype of partial outputs: f32, or the query's; none = the query's where it has 16 bits and
                                 ///< on a GPU, whose tensor-core kernels write no f32, else f32
};

/// One batch over some of the keys of every row. Index tensors as batch.hpp has them; an empty one is absent.
struct CascadeLevel {
  std::vector<std::int32_t> query_start_loc, seq_lens, cached_lens, q_begin, key_begin, block_table;
  std::vector<std::uint8_t> causal;
  std::int64_t columns = 0;  ///< columns of block_table
  bool own = false;          ///< own keys: the last level
  bool beside = false;       ///< level is computed at the same time as own keys, on SMs of its own
  Plan plan;
};

/// A step that was planned: a value, reused for every layer.
struct Cascade {
  SharedPrefixes shared;
  Problem problem;                   ///< problem of the whole batch
  std::vector<CascadeLevel> levels;  ///< front of the context first, own keys last; empty if nothing is shared
  Plan plain;                        ///< plan of the call if nothing is shared
  DType partials = DType::f32;
  Memory memory = Memory::cpu;
  std::int64_t num_tokens = 0;  ///< rows of query, padding rows included
  std::uint64_t digest = 0;     ///< digest of the lengths and tables that were planned
  std::int64_t num_parts() const noexcept { return static_cast<std::int64_t>(levels.size()); }
};

/// Plans a step: check() once for the whole batch (metadata and tables), the runs, and a plan for each level.
///
/// With settings.plan.batch_invariant only runs that the caller names are shared: what is found depends on other requests. A
/// request whose runs begin and end at the same pages gets the same bits then, whoever shares them.
///
/// Lengths and tables on a GPU are copied to the host, after waiting for it: once per step. Fails as check() and plan() do, with
/// Q-P01 to Q-P03 for named runs, and with invalid_argument for settings that contradict each other.
Result<Cascade> plan_cascade(const Batch& batch, const KVCache& cache, const Options& options,
                             const CascadeSettings& settings = {});

/// Bytes that attend_cascade() needs in `workspace`, in the memory of the batch: workspaces of the levels, partial results and,
/// on a GPU, index tensors of the levels.
std::size_t workspace_bytes(const Cascade& cascade) noexcept;

/// On a GPU: puts the index tensors of the levels into `workspace` and prepares each level (prepare() of attention.hpp), for
/// layers that follow with AttendOptions::prepared. Waits for the copy. On a CPU it checks what attend_cascade() would check.
Status prepare_cascade(const Cascade& cascade, const Batch& batch, const KVCache& cache, const Options& options,
                       std::span<std::byte> workspace, const AttendOptions& attend_options = {});

/// attend() (attention.hpp: formula, shapes, types, errors) that reads shared pages once. Equal to it but for rounding: a row is
/// folded in other parts. Where nothing is shared, it is attend() with the plan of the batch.
///
/// The batch is the planned one but for addresses: other lengths or tables are invalid_argument on a CPU; on a GPU they are not
/// looked at, and pages of the plan are read. `workspace`: workspace_bytes(cascade) bytes, 64-byte aligned, apart (Q-M37). On a
/// GPU the call enqueues and returns; unless it is prepared, it waits for a copy of index tensors first. attend_options.rows
/// counts rows of all levels.
Status attend_cascade(const Cascade& cascade, const Batch& batch, const KVCache& cache, const Options& options,
                      std::span<std::byte> workspace, const AttendOptions& attend_options = {});

/// attend_status() of every level.
Status cascade_status(const Cascade& cascade, const Batch& batch, const KVCache& cache, const Options& options,
                      std::span<std::byte> workspace, const AttendOptions& attend_options = {});

}  // namespace quire
