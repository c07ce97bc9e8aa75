// SPDX-License-Identifier: Apache-2.0
// State that the rules of one call share: the arguments, the sizes established so far, and the report of findings.
//
// A size is `kUnknown` until the rules that define it hold; rules that need an unknown size are left out. This order keeps
// check() memory-safe on any input: no rule reads through a tensor that an earlier rule has not found sound.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "contract/report.h"
#include "contract/tensor_facts.h"
#include "quire/batch.hpp"
#include "quire/contract.hpp"
#include "quire/problem.hpp"
#include "semantics/mask.h"
#include "semantics/page_walk.h"
#include "semantics/visible_pages.h"

namespace quire {
struct ContextShard;
}

namespace quire::contract {

inline constexpr std::int64_t kUnknown = -1;

struct Sizes {
  std::int64_t num_tokens = kUnknown;
  std::int64_t num_q_heads = kUnknown;
  std::int64_t head_dim = kUnknown;  ///< head_dim of query
  std::int64_t num_reqs = kUnknown;
  std::int64_t num_pages = kUnknown;  ///< known together with the next four, if the whole cache is sound
  std::int64_t page_size = kUnknown;
  std::int64_t num_kv_heads = kUnknown;
  std::int64_t cache_head_dim = kUnknown;
  std::int64_t v_head_dim = kUnknown;
};

struct Context {
  const Batch& batch;
  const KVCache& cache;
  const Options& options;
  const SlotLedger* ledger;
  Report& report;
  Sizes sizes{};
  std::span<const WriteTag> tags{};  ///< tags of an append with a ledger
  // Set by the table rules: the lengths of requests may be read, and mean something.
  bool starts_sound = false;   ///< query_start_loc splits the rows
  bool lengths_sound = false;  ///< seq_lens, cached_lens, causal, q_begin, key_begin and the tensors of the mask are readable, or
                               ///< absent; single requests may still be broken
  bool pages_sound = false;    ///< block_table is readable and the window and cache sizes are known
};

constexpr bool known(std::int64_t size) noexcept { return size >= 0; }

/// A tensor and the name users know it by.
struct NamedTensor {
  std::string_view name;
  const Tensor* tensor;
};

/// The lengths of one request. `sound` if rules Q-T06 to Q-T08, Q-T18 to Q-T21 and Q-V06 to Q-V08 hold for it.
struct Lengths {
  std::int64_t request = 0;
  std::int64_t first_row = 0;
  std::int64_t query_len = 0;
  std::int64_t seq_len = 0;
  std::int64_t cached_len = 0;
  std::int64_t key_begin = 0;
  std::int64_t q_begin = 0;
  std::int64_t prefix_len = 0;
  std::int64_t tree_len = 0;
  bool causal = true;
  bool sound = false;
  std::int64_t context_len() const noexcept { return seq_len - query_len; }
  /// Position of the first row, counted from the first key.
  std::int64_t first_position() const noexcept { return q_begin - key_begin; }
  /// Rows stand at the end of their keys, of which there are as many at least.
  bool at_end() const noexcept { return seq_len >= query_len && first_position() == context_len(); }
  /// Least cached_len that rule Q-T08 allows, given a sound seq_len.
  std::int64_t least_cached() const noexcept { return std::max<std::int64_t>(0, context_len()); }
};
/// Needs starts_sound and lengths_sound.
Lengths lengths_of(const Context& c, std::int64_t request) noexcept;

/// A request may have fewer keys than rows: it is not causal, or says where its rows stand.
inline bool may_lack_keys(const Context& c, const Lengths& lengths) noexcept {
  return !lengths.causal || c.batch.q_begin.present();
}

/// What some row of a request with sound lengths sees of the cache, counted from the request's first key. Needs a known
/// page_size.
semantics::VisiblePages visible_pages(const Context& c, const Lengths& lengths) noexcept;

/// Calls visit(begin, end) for each range of cached keys that some row sees, without keys beyond the table's width (Q-T10). Needs
/// pages_sound.
template <typename Visit>
void for_each_visible_range(const Context& c, const Lengths& lengths, Visit&& visit) {
  // Both factors are below 2^31 (Q-M08).
  visible_pages(c, lengths).for_each_range(c.batch.block_table.shape[1] * c.sizes.page_size, visit);
}

/// A 1-D i32 or i64 tensor of `size` readable entries (any size if kUnknown).
bool is_index_array(const Tensor& t, std::int64_t size) noexcept;
/// A 1-D u8 tensor of `size` readable entries.
bool is_flag_array(const Tensor& t, std::int64_t size) noexcept;
/// An entry of a readable u8 array, 0 to 255.
std::int64_t flag_value(const Tensor& flags, std::int64_t i) noexcept;

/// The page that holds cached position p of a request; nullopt if the table is too narrow or the id is out of range.
std::optional<std::int64_t> page_of(const Context& c, const semantics::IndexView& row, std::int64_t position) noexcept;

/// Calls visit(page, offset, count, position) for each run of visible cached positions of a request, leaving out those whose
/// page rules Q-T03 or Q-T10 refuse. Needs pages_sound.
template <typename Visit>
void for_each_visible_run(const Context& c, std::int64_t request, Visit&& visit) {
  const Lengths lengths = lengths_of(c, request);
  if (!lengths.sound) return;
  for_each_visible_range(c, lengths, [&](std::int64_t begin, std::int64_t end) {
    semantics::for_each_page_run(semantics::index_row(c.batch.block_table, request), c.sizes.page_size, begin, end,
                                 [&](std::int64_t page, std::int64_t offset, std::int64_t count, std::int64_t position) {
                                   if (page >= 0 && page < c.sizes.num_pages) visit(page, offset, count, position);
                                 });
  });
}

/// Whether the codes of K or V, and the scales that are the rows' own, may be read at every page.
bool stored_rows_readable(const Context& c, const Tensor& side) noexcept;

/// The request's stable id: request_ids[r], or r.
std::int64_t request_id(const Context& c, std::int64_t request) noexcept;

// The families, in the order in which they run. Each needs the ones above it.
void apply_tensor_rules(Report& report, std::span<const NamedTensor> tensors, std::span<const std::string_view> required,
                        const Tensor& anchor);
void apply_cache_shape_rules(Context& c, DType row_dtype);
void apply_shape_rules(Context& c, std::span<const NamedTensor> tensors);
/// Q-M37. The workspace lies in `memory`.
void apply_workspace_rule(Report& report, std::span<const NamedTensor> tensors, std::span<const std::byte> workspace,
                          Memory memory);
/// Q-M25 alone, for append.
void apply_new_row_shape_rule(Context& c);
/// Q-M27 alone, for append.
void apply_index_dtype_rule(Context& c);
void apply_option_rules(Context& c);
/// Q-V01 to Q-V05: shapes and options of masks.
void apply_mask_shape_rules(Context& c);
/// Q-V06 to Q-V08 for one request.
void apply_mask_value_rules(Context& c, const Lengths& lengths);
/// Q-V09 and Q-V10: reads tree_mask.
void apply_tree_rules(Context& c);
/// The bits of tree_mask of a request's rows.
semantics::TreeRows tree_rows(const Context& c, const Lengths& lengths) noexcept;
/// Whether the tensors of the mask may be read, or are absent.
bool masks_readable(const Context& c) noexcept;
/// Whether rules Q-V06 to Q-V08 hold for a request whose lengths are sound otherwise.
bool mask_ok(const Context& c, const Lengths& lengths) noexcept;
/// Q-M36 alone, for append.
void apply_scale_shape_rules(Context& c);
/// Whether K or V are rows of fp8_ds_mla.
bool has_latent_rows(const Context& c) noexcept;
/// Q-R01 to Q-R03, which know what is no such cache.
void apply_latent_row_rules(Context& c);
/// Q-R04: rows of an append.
void apply_latent_append_rules(Context& c);
/// Q-R05, and Q-C02 and Q-C03 of such rows.
void apply_latent_content_rules(Context& c);
void apply_table_rules(Context& c);
/// Q-T22. Needs apply_table_rules().
void apply_distinct_slot_rules(Context& c);
void apply_scale_rules(Context& c);
void apply_batch_slot_rules(Context& c);
void apply_ledger_rules(Context& c);
/// Q-L07: reads the cache.
void apply_ledger_content_rules(Context& c);
/// Whether a request's row of block_table holds slots, where pages are expected: by the ledger, entry j is the slot of position
/// j.
bool table_holds_slots(const Context& c, std::int64_t request) noexcept;
inline constexpr std::string_view kTableHoldsSlots =
    "entry j of this row is the slot of position j: the table holds slots, pages are expected";
/// The rules of apply_ledger_rules() for the keys that a rank holds. The batch has the lengths of the whole requests, and the
/// rank's block_table.
void apply_shard_ledger_rules(Context& c, const ContextShard& shard);
void apply_content_rules(Context& c);

/// The part of the slot rules that append shares: Q-S01 and Q-S02.
void apply_slot_value_rules(Context& c);
/// Q-S05 to Q-S08.
void apply_append_rules(Context& c);
/// Q-L05 and Q-L06: where append records what it writes.
void apply_append_ledger_rules(Context& c);
/// Type of key and value of an append; none if their types differ (Q-S06).
DType new_row_dtype(const Batch& batch) noexcept;

/// The tensors of one merge call, by name.
struct Merging {
  NamedTensor out_a, lse_a, out_b, lse_b, out, lse, output_scale;
};
void apply_merge_rules(const Merging& m, Report& report);
/// Q-C06 and Q-T17: reads lse_a, lse_b and output_scale.
void apply_merge_value_rules(const Merging& m, Report& report);

/// The tensors of one merge_many call, by name.
struct MergingMany {
  NamedTensor outs, lses, out, lse, output_scale;
};
void apply_merge_many_rules(const MergingMany& m, Report& report);
/// Q-C06 and Q-T17: reads lses and output_scale.
void apply_merge_many_value_rules(const MergingMany& m, Report& report);

}  // namespace quire::contract
