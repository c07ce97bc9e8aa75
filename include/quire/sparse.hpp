// SPDX-License-Identifier: Apache-2.0
// Key lists ("sparse attention"): each row sees the cached keys of a list, and no others.
//
// A list names pages (the top-k blocks of Quest, NSA or MSA) or slots (the top-k tokens of DeepSeek sparse attention). Lists
// belong to requests or to rows, and may differ by KV head. The batch stays the ordinary one, with the lengths and the block
// table of the whole context: a list is a choice of the keys that its rows see there.
//
//     out = sum_{k in list} exp(s(k) - m) V_k / (sum_{k in list} exp(s(k) - m) + exp(sink_h - m))     lse = m + log(denominator)
//
// An empty list gives out = 0 and lse = -inf (or the sink). Order does not matter, but for rounding and for the last page
// (Q-K10).
//
// No kernel knows of lists. A list is the block table of an ordinary batch (batch.hpp) over a view of the cache:
//
//   lists of pages      the cache as it is
//   lists of slots      the cache as pages of one token each
//   lists of KV heads   a batch for each KV head, with the cache and the rows of this head
//   lists of rows       each row is a request
//
// Tang et al. 2024, "Quest", arXiv:2406.10774; Yuan et al. 2025, "Native Sparse Attention", arXiv:2502.11089; DeepSeek-AI 2025,
// DeepSeek-V3.2 (sparse decode of FlashMLA: 2048 slots a row).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "quire/attention.hpp"
#include "quire/contract.hpp"
#include "quire/plan.hpp"
#include "quire/status.hpp"

namespace quire {

/// Entries of a list. A slot is page * page_size + offset, as in slot_mapping.
enum class ListUnit : std::int32_t { page = 0, slot = 1 };
/// "page", "slot"; "invalid" for any other value.
std::string_view name(ListUnit unit) noexcept;

/// Owner of a list.
enum class ListOwner : std::int32_t { request = 0, row = 1 };
/// "request", "row"; "invalid" for any other value.
std::string_view name(ListOwner owner) noexcept;

/// Lists of the keys that rows see: ids[i] of request i, or of row i. All tensors are in the memory of the batch.
struct KeyLists {
  ListUnit unit = ListUnit::slot;
  ListOwner owner = ListOwner::row;
  Tensor ids{};  ///< [n, width] for all KV heads, or [n, num_kv_heads, width]; i32 | i64; n = num_reqs or num_tokens. Entries
                 ///< behind the last one in use may hold anything; without num_keys they are negative (-1)
  Tensor num_keys{};  ///< [n], or [n, num_kv_heads] beside lists of KV heads; i32 | i64; keys that a list holds: its first
                      ///< ceil(num_keys / page_size) pages, of which the last may be partly filled, or its first num_keys slots.
                      ///< Absent = all entries in front of the first negative one: for slots in host memory alone (Q-K02)
  Tensor row_starts{};  ///< [num_tokens + 1] i32 | i64 for lists of rows in device memory: 0, 1, 2, ..., but never more than
                        ///< query_start_loc's last. A CPU makes its own
};

/// Rules Q-K01 to Q-K10 and, before them, those of check() for the batch itself. A broken rule of the batch is reported alone.
/// Lists in device memory are copied to the host at depth tables, after waiting for the device.
Findings check_sparse(const Batch& batch, const KVCache& cache, const Options& options, const KeyLists& lists,
                      Depth depth = Depth::tables);

struct SparseSettings {
  PlanSettings plan;  ///< settings of every batch; max_seq_len counts listed keys
  /// GPU only: lists may be empty. Tuned kernels refuse rows that may see no key, so this costs time. Without it, an empty list
  /// is a broken rule (Q-T06), which the device finds. On a CPU lists may always be empty.
  bool empty_lists = false;
};

/// A planned call: a value. On a GPU it serves every list within its bounds: all layers and all steps of the same shapes. On a
/// CPU it serves lists of the lengths that were planned.
struct Sparse {
  std::vector<Plan> plans;  ///< plan of each KV head, or one for all
  Memory memory = Memory::cpu;
  bool causal = false;  ///< rows stand at the end of their lists, which changes nothing but the choice of kernels
  std::string reason;   ///< form of the lists and of the batches that stand for them, in a sentence
};

/// Plans a call: rules first (check_sparse() at depth tables; on a GPU at depth metadata: no tensor is read, nothing waits), then
/// a plan for each batch of lists. Fails as plan() does, and with Q-K01 to Q-K10.
Result<Sparse> plan_sparse(const Batch& batch, const KVCache& cache, const Options& options, const KeyLists& lists,
                           const SparseSettings& settings = {});

/// Lists that are full, without their entries: what planning a problem needs to know.
struct ListShape {
  ListUnit unit = ListUnit::slot;
  std::int64_t width = 1;  ///< entries of a list
  bool by_head = false;    ///< KV heads have lists of their own
};
/// "2048 slots of each row", "64 pages of each row and KV head".
std::string to_string(const ListShape& shape);

/// The batch that stands for lists of rows, as a problem: of all KV heads, or of one. Rows see as many keys as a list holds, or
/// all that they see without one, if that is fewer. explain() takes it; Q-K03 and Q-K04 refuse what goes with no
/// list.
Result<Problem> problem_of_lists(const Problem& problem, const ListShape& shape);

/// Several lines for people: the reason, and for each batch its plan and the kernels that were refused.
std::string to_string(const Sparse& sparse);

/// Bytes that attend_sparse() needs in `workspace`, in the memory of the batch.
std::size_t workspace_bytes(const Sparse& sparse) noexcept;

/// prepare() (attention.hpp) for layers that have the same lists, at the same addresses; AttendOptions::prepared follows. Layers
/// with lists of their own are not prepared.
Status prepare_sparse(const Sparse& sparse, const Batch& batch, const KVCache& cache, const Options& options,
                      const KeyLists& lists, std::span<std::byte> workspace, const AttendOptions& attend_options = {});

/// attend() (attention.hpp: formula, shapes, types, errors) over the keys of lists.
///
/// `workspace`: workspace_bytes(sparse) bytes, 64-byte aligned, apart (Q-M37). On a CPU every rule of check_sparse() is applied
/// before the first write. On a GPU the call enqueues and returns; it copies nothing, waits for nothing, and can be captured in a
/// graph. The device checks what it reads as a block table: entries in use and their number. Keys that are listed twice, or not
/// visible, are found by check_sparse() alone.
Status attend_sparse(const Sparse& sparse, const Batch& batch, const KVCache& cache, const Options& options,
                     const KeyLists& lists, std::span<std::byte> workspace, const AttendOptions& attend_options = {});

/// attend_status() of every batch. A rule that the device found broken is reported as check_sparse() reports it.
Status sparse_status(const Sparse& sparse, const Batch& batch, const KVCache& cache, const Options& options,
                     const KeyLists& lists, std::span<std::byte> workspace, const AttendOptions& attend_options = {});

}  // namespace quire
