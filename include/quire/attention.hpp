// SPDX-License-Identifier: Apache-2.0
// The work itself: append new tokens to the cache, attend, merge partial results.
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
  SlotLedger* ledger = nullptr;    ///< if set, every written slot is recorded
  std::span<const WriteTag> tags;  ///< one per token, needed with a ledger
  void* stream = nullptr;          ///< of GPU calls: a cudaStream_t or hipStream_t; null = the default stream
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

/// The cached_lens of a step in which requests of one row read the cache alone, and longer ones bring theirs in `key` and
/// `value`:
///
///     cached_lens[r] = seq_lens[r] if query_len(r) is 1, else seq_lens[r] - query_len(r)
///
/// query_start_loc [num_reqs + 1], seq_lens and cached_lens [num_reqs], i32 or i64, any strides, on one CUDA device. Enqueues one
/// kernel and returns. invalid_argument names a tensor that is none of that; unsupported elsewhere.
Status derive_cached_lens(const Tensor& query_start_loc, const Tensor& seq_lens, const Tensor& cached_lens, void* stream);

/// Output rows (token x query head) that each kernel wrote.
struct RowCount {
  std::string kernel;
  std::int64_t rows = 0;
};

struct AttendOptions {
  Executor* executor = nullptr;           ///< null = default_executor()
  std::vector<RowCount>* rows = nullptr;  ///< if set, filled with who wrote how many rows (on a GPU: by attend_status)
  void* stream = nullptr;                 ///< of GPU calls: a cudaStream_t or hipStream_t; null = the default stream
  bool nan_if_refused = false;  ///< on a GPU: fills output and lse with NaN if the device refuses lengths or tables. A CPU's
                                ///< call that is refused says so itself, and writes nothing
  std::uint64_t ticket = 0;     ///< of GPU calls: what take_broken_ticket() says if this one breaks; 0 = nothing, below 2^63
  bool prepared = false;        ///< prepare() came before: this layer only attends. No difference on a CPU
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
/// checked here; lengths and tables are checked on the device, which writes no row if a rule is broken. attend_status() asks, and
/// so does take_broken_ticket() of calls that have a ticket.
Status attend(const Plan& plan, const Batch& batch, const KVCache& cache, const Options& options, std::span<std::byte> workspace,
              const AttendOptions& attend_options = {});

/// Does once what the layers of one step share: checks lengths and tables, and makes work lists in `workspace`. Layers follow
/// with attend() and AttendOptions::prepared, which enqueues the attention itself and nothing else:
///
///     prepare(plan, batch, cache, options, workspace, {.stream = s});
///     for each layer: attend(plan, batch of the layer, its cache, its options, workspace, {.stream = s, .prepared = true});
///
/// A layer has the step's plan, workspace, sliding_window, lengths and tables: the addresses of query_start_loc, seq_lens,
/// cached_lens and block_table, and what they hold, which stays the same until the last layer is done. Query, output, lse, cache,
/// key, value, scales, sinks and slopes may lie elsewhere, with the strides and the alignment (to 16 bytes) of the first. Any
/// number of layers. An attend() that is not prepared prepares the layers behind it, too.
///
/// Everything that attend() promises holds: prepare() refuses what attend() would refuse on the host; where the device finds a
/// broken rule, no layer writes a row. attend_status() and the ticket of prepare() tell of it, and rows are counted over all
/// layers. A layer is refused on the device, and writes no row, if the workspace holds no preparation, or that of another plan,
/// other addresses or tensors of another alignment; rows of a layer that finds other lengths than prepare() did are wrong.
/// attend_status() and the layer's ticket tell of both: kTicketNotPrepared. Both calls may be captured in one graph, or
/// the layers alone: then prepare() comes before each replay.
///
/// On a CPU it checks what attend() would check, and enqueues nothing: layers do all of their work themselves.
Status prepare(const Plan& plan, const Batch& batch, const KVCache& cache, const Options& options, std::span<std::byte> workspace,
               const AttendOptions& attend_options = {});

/// The outcome of the last attend() with these arguments on a GPU, and of those before it with this workspace that nobody has
/// asked about: other layers, earlier replays of a graph. After prepare(), of all layers so far together. Waits for `stream`;
/// then OK if every row was written, or
///
///     contract_violation    a rule about lengths or tables is broken: the status of check(), and no row was written; or an
///                           earlier call was refused for what its lengths and tables held then
///     invalid_argument      the lengths exceed the plan's bounds, and no row was written; or a layer was not prepared
///     internal_error        rows were written more or less than once
///
/// and device_error for the device's own failures. A failure is told once, except that of the last call. Fills
/// attend_options.rows. With a CPU plan it is OK: attend() has said it all.
Status attend_status(const Plan& plan, const Batch& batch, const KVCache& cache, const Options& options,
                     std::span<std::byte> workspace, const AttendOptions& attend_options = {});

/// The ticket of an attend() that wrote no row because lengths or tables break a rule or exceed the plan's bounds; 0 if there is
/// none. The device leaves it in a word of the host's memory, so this waits for nothing: a call that still runs may yet break.
/// Taken, it is forgotten. Of several that broke since, one is kept. kTicketNotPrepared is set in it if the call was a layer
/// without its preparation, or found other lengths.
std::uint64_t take_broken_ticket() noexcept;
inline constexpr std::uint64_t kTicketNotPrepared = std::uint64_t{1} << 63;
/// Whether take_broken_ticket() would return one.
bool has_broken_ticket() noexcept;

/// Why a call whose ticket came back wrote no row: the status of check() or of the bounds, by what the tensors hold now; OK if
/// that breaks nothing. Waits for the device.
Status why_broken(const Plan& plan, const Batch& batch, const KVCache& cache, const Options& options);

/// Waits for the GPUs that run, or ran, calls with tickets.
Status synchronize();

/// Whether a stream of that memory's GPU is being captured in a graph, where nothing may wait. False for host memory.
Result<bool> is_capturing(Memory memory, void* stream);

/// attend() with all but addresses settled: made once per step, run for each layer.
///
/// run() takes tensors that differ from those of make() in their addresses alone (same_call()). What follows from shapes, strides
/// and types was checked by make(). What follows from addresses (Q-M04, Q-M05, Q-M16, Q-M37) is checked at each run, and so are
/// lengths and tables, on a GPU there and on a CPU before the first write. Immutable: threads may share it.
class BoundAttend {
 public:
  /// The status of attend(), as far as no tensor on a GPU is read.
  static Result<BoundAttend> make(Plan plan, const Batch& batch, const KVCache& cache, const Options& options);
  /// Types, shapes, strides, memories and options are those of make().
  bool same_call(const Batch& batch, const KVCache& cache, const Options& options) const noexcept;
  /// attend() with the same promises. invalid_argument, naming the tensor, unless same_call().
  Status run(const Batch& batch, const KVCache& cache, const Options& options, std::span<std::byte> workspace,
             const AttendOptions& attend_options = {}) const;
  /// prepare() with the same promises, for runs with AttendOptions::prepared.
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
  void* stream = nullptr;        ///< of GPU calls: a cudaStream_t or hipStream_t; null = the default stream
  Tensor output_scale;           ///< f32 scalar or [1], of an fp8_e4m3fn out (Q-G02, Q-G07), as in Batch
};

/// Combines two partial results over disjoint key sets, exactly on empty sides (lse = -inf):
///
///     lse = log(exp(lse_a) + exp(lse_b))      out = (out_a exp(lse_a - lse) + out_b exp(lse_b - lse))
///
/// out_* [num_tokens, num_q_heads, v_head_dim] f32 | f16 | bf16, lse_* [num_tokens, num_q_heads] f32 natural log, any strides.
/// out may be fp8_e4m3fn with MergeOptions::output_scale. out may alias out_a or out_b; lse may be absent. +inf in an lse is an
/// error (Q-C rule), not a stand-in for empty. On a GPU the call enqueues and returns, and no value is looked at: NaN or +inf in
/// an lse makes its row NaN.
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
