// SPDX-License-Identifier: Apache-2.0
// Kernel calls: append new tokens to the cache, attend, merge partial results. Each call checks its input before it writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "quire/batch.hpp"
#include "quire/contract.hpp"
#include "quire/executor.hpp"
#include "quire/plan.hpp"
#include "quire/status.hpp"

namespace quire {

struct AppendOptions {
  Executor* executor = nullptr;    ///< null = default_executor()
  SlotLedger* ledger = nullptr;    ///< record of every written slot; null = none
  std::span<const WriteTag> tags;  ///< tags, one per token; required with a ledger
  void* stream = nullptr;          ///< cudaStream_t or hipStream_t of a GPU call; null = the default stream
};

/// Writes key/value row t into slot slot_mapping[t] of the cache, for every t with a slot >= 0.
///
///     stored = convert(row / scale)     round to nearest even; fp8 saturates to its largest finite value, NaN stays NaN
///
/// key [num_tokens, num_kv_heads, head_dim], value [num_tokens, num_kv_heads, v_head_dim] f32 | f16 | bf16, any strides;
/// slot_mapping [n] i32 | i64, n <= num_tokens. Every layout, any sizes. cache.k and cache.v share no memory (Q-S07). Fails
/// before the first write if a rule of check_append() is broken.
///
/// On a GPU the call enqueues on `stream` and returns; only metadata is checked by then. Slots are read on the device, where one
/// outside the cache is skipped, never written; check_append() finds it. With a ledger the call does read the slots, all rules
/// are applied and it waits for the device.
Status append(const KVCache& cache, const Tensor& key, const Tensor& value, const Tensor& slot_mapping,
              const AppendOptions& options = {});

/// Fills cached_lens for a step in which requests of one row read all keys from the cache, and longer requests read the keys of
/// this step from `key` and `value`:
///
///     cached_lens[r] = seq_lens[r] if query_len(r) is 1, else seq_lens[r] - query_len(r)
///
/// query_start_loc [num_reqs + 1], seq_lens and cached_lens [num_reqs], i32 or i64, any strides, on one CUDA device. Enqueues one
/// kernel and returns. invalid_argument names a tensor of another type, shape or memory; unsupported without a CUDA device.
Status derive_cached_lens(const Tensor& query_start_loc, const Tensor& seq_lens, const Tensor& cached_lens, void* stream);

/// Output rows (token x query head) that each kernel wrote.
struct RowCount {
  std::string kernel;
  std::int64_t rows = 0;
};

struct AttendOptions {
  Executor* executor = nullptr;           ///< null = default_executor()
  std::vector<RowCount>* rows = nullptr;  ///< rows that each kernel wrote (GPU: set by attend_status); null = not counted
  void* stream = nullptr;                 ///< cudaStream_t or hipStream_t of a GPU call; null = the default stream
  bool nan_if_refused = false;  ///< GPU only: fills output and lse with NaN if the device refuses lengths or tables. A CPU call
                                ///< returns the refusal as its status and writes nothing
  std::uint64_t ticket = 0;     ///< GPU only: number that take_broken_ticket() returns if this call breaks; 0 = none; below 2^63
  bool prepared = false;        ///< prepare() came before: this layer only attends. No effect on a CPU
};

/// Softmax attention for every request of the batch (equations: batch.hpp; Milakov & Gimelshein 2018, arXiv:1805.02867 for the
/// one-pass form; Dao et al. 2022, arXiv:2205.14135).
///
///     out = sum_k exp(s(k) - m) V_k / (sum_k exp(s(k) - m) + exp(sink_h - m))          lse = m + log(that denominator)
///
/// `plan` comes from this batch's lengths and shapes. `workspace`: workspace_bytes(plan) bytes, 64-byte aligned, apart (Q-M37).
/// Reads only visible positions; writes output (and lse) rows once each, and padding rows as batch.padding says. Metadata and
/// tables are checked before any write.
///
/// On a GPU, `workspace` is device memory and the call enqueues on `stream` and returns: it reads no tensor, waits for nothing
/// and allocates nothing, so it can be captured in a graph and replayed with other lengths within plan.bounds. Metadata is
/// checked here; lengths and tables are checked on the device, which writes no row if a rule is broken. attend_status() tells
/// whether a rule was broken; for calls with a ticket, take_broken_ticket() tells, too.
Status attend(const Plan& plan, const Batch& batch, const KVCache& cache, const Options& options, std::span<std::byte> workspace,
              const AttendOptions& attend_options = {});

/// Does once what the layers of one step share: checks lengths and tables, and makes work lists in `workspace`. Layers follow
/// with attend() and AttendOptions::prepared, which enqueues the attention itself and nothing else:
///
///     prepare(plan, batch, cache, options, workspace, {.stream = s});
///     for each layer: attend(plan, batch of the layer, its cache, its options, workspace, {.stream = s, .prepared = true});
///
/// All layers have the step's plan, workspace, sliding_window, lengths and tables. The addresses of query_start_loc, seq_lens,
/// cached_lens and block_table, and the values there, stay the same until the last layer is done. Query, output, lse, cache, key,
/// value, scales, sinks and slopes may have other addresses, with the strides and the alignment (to 16 bytes) of the first layer.
/// Any number of layers may follow. An attend() that is not prepared also prepares the layers after it.
///
/// All promises of attend() hold. prepare() refuses what attend() would refuse on the host. If the device finds a broken rule, no
/// layer writes a row; attend_status() and the ticket of prepare() report the rule. Rows are counted over all layers. The device
/// refuses a layer, which then writes no row, if the workspace holds no preparation or one for another plan, other addresses or
/// another alignment. A layer whose lengths changed since prepare() writes wrong rows. In both cases attend_status() and the
/// layer's ticket report kTicketNotPrepared. One graph may capture prepare() and the layers, or the layers alone: prepare() then
/// comes before each replay.
///
/// On a CPU prepare() checks what attend() would check, and enqueues nothing: layers do all of their work themselves.
Status prepare(const Plan& plan, const Batch& batch, const KVCache& cache, const Options& options, std::span<std::byte> workspace,
               const AttendOptions& attend_options = {});

/// Returns the outcome of the last attend() with these arguments on a GPU, and of all earlier calls with this workspace whose
/// outcome was not asked for: other layers, earlier replays of a graph. After prepare(), it covers all layers so far. Waits for
/// `stream`; then OK if every row was written, or
///
///     contract_violation    a rule about lengths or tables is broken: the status of check(), and no row was written; or an
///                           earlier call was refused for what its lengths and tables held then
///     invalid_argument      the lengths exceed the plan's bounds, and no row was written; or a layer was not prepared
///     internal_error        rows were written more or less than once
///
/// and device_error for the device's own failures. A failure is returned once, except a failure of the last call. Fills
/// attend_options.rows. Always OK for a CPU plan, because attend() has returned the outcome.
Status attend_status(const Plan& plan, const Batch& batch, const KVCache& cache, const Options& options,
                     std::span<std::byte> workspace, const AttendOptions& attend_options = {});

/// Returns the ticket of an attend() that wrote no row because lengths or tables break a rule or exceed the plan's bounds; 0 if
/// no call broke. Waits for nothing, because the device writes tickets to host memory: a call that still runs may break later.
/// A ticket is returned once. If several calls broke, one ticket is kept. Bit kTicketNotPrepared is set if the call was a layer
/// without a preparation, or with other lengths than its preparation.
std::uint64_t take_broken_ticket() noexcept;
inline constexpr std::uint64_t kTicketNotPrepared = std::uint64_t{1} << 63;
/// Whether take_broken_ticket() would return one.
bool has_broken_ticket() noexcept;

/// Returns why a call whose ticket came back wrote no row: the status of check() or of the bounds for the tensors' present
/// values; OK if these break no rule. Waits for the device.
Status why_broken(const Plan& plan, const Batch& batch, const KVCache& cache, const Options& options);

/// Waits for all GPUs that calls with tickets were enqueued on.
Status synchronize();

/// Whether `stream`, on the GPU of `memory`, is being captured in a graph, where no call may wait. False for host memory.
Result<bool> is_capturing(Memory memory, void* stream);

/// A call of attend() in which all but the addresses is fixed: made once per step, run for each layer.
///
/// run() takes tensors that differ from those of make() in their addresses alone (same_call()). make() checks the rules about
/// shapes, strides and types. Each run checks the rules about addresses (Q-M04, Q-M05, Q-M16, Q-M37), lengths and tables; a GPU
/// checks lengths and tables on the device, a CPU before the first write. Immutable: threads may share it.
class BoundAttend {
 public:
  /// Fails with the status of attend() for every rule that needs no tensor of a GPU.
  static Result<BoundAttend> make(Plan plan, const Batch& batch, const KVCache& cache, const Options& options);
  /// Whether types, shapes, strides, memories and options are those of make().
  bool same_call(const Batch& batch, const KVCache& cache, const Options& options) const noexcept;
  /// Calls attend(), with its promises. invalid_argument, naming the tensor, unless same_call().
  Status run(const Batch& batch, const KVCache& cache, const Options& options, std::span<std::byte> workspace,
             const AttendOptions& attend_options = {}) const;
  /// Calls quire::prepare(), with its promises, for runs with AttendOptions::prepared.
  Status prepare(const Batch& batch, const KVCache& cache, const Options& options, std::span<std::byte> workspace,
                 const AttendOptions& attend_options = {}) const;
  const Plan& plan() const noexcept { return plan_; }

 private:
  BoundAttend(Plan plan, const Batch& batch, const KVCache& cache, const Options& options);
  Status given(bool preparation, const Batch& batch, const KVCache& cache, const Options& options, std::span<std::byte> workspace,
               const AttendOptions& attend_options) const;

  Plan plan_;
  Batch batch_;
  KVCache cache_;
  Options options_;
  std::size_t workspace_bytes_ = 0;
};

struct MergeOptions {
  Executor* executor = nullptr;  ///< null = default_executor()
  void* stream = nullptr;        ///< cudaStream_t or hipStream_t of a GPU call; null = the default stream
  Tensor output_scale;           ///< f32 scalar or [1]; scale of an fp8_e4m3fn out (Q-G02, Q-G07), as in Batch
};

/// Combines two partial results over disjoint key sets, exactly on empty sides (lse = -inf):
///
///     lse = log(exp(lse_a) + exp(lse_b))      out = (out_a exp(lse_a - lse) + out_b exp(lse_b - lse))
///
/// out_* [num_tokens, num_q_heads, v_head_dim] f32 | f16 | bf16, lse_* [num_tokens, num_q_heads] f32 natural log, any strides.
/// out may be fp8_e4m3fn with MergeOptions::output_scale. out may alias out_a or out_b; lse may be absent. +inf in an lse is an
/// error (Q-C rule), not a stand-in for empty. On a GPU the call enqueues and returns without a look at values: NaN or +inf in an
/// lse makes its row NaN.
Status merge(const Tensor& out_a, const Tensor& lse_a, const Tensor& out_b, const Tensor& lse_b, const Tensor& out,
             const Tensor& lse, const MergeOptions& merge_options = {});

/// Combines any number of partial results over disjoint key sets in one pass, in the order of the first axis:
///
///     lse = log(sum_i exp(lses[i]))      out = sum_i outs[i] exp(lses[i] - lse)          i = 0, 1, ..., num_parts - 1
///
/// outs [num_parts, num_tokens, num_q_heads, v_head_dim] f32 | f16 | bf16, lses [num_parts, num_tokens, num_q_heads] f32 natural
/// log, any strides. out [num_tokens, num_q_heads, v_head_dim] and lse [num_tokens, num_q_heads] (may be absent) as for merge(),
/// in memory of their own. Equal parts in equal order give equal bits, on every rank; two parts give the bits of merge(). A part
/// with lse = -inf is empty and not read; a row whose parts are all empty is 0 with lse -inf. NaN and +inf in an lse as for
/// merge().
Status merge_many(const Tensor& outs, const Tensor& lses, const Tensor& out, const Tensor& lse,
                  const MergeOptions& merge_options = {});

}  // namespace quire
