// SPDX-License-Identifier: Apache-2.0
// Rules Q-S01 to Q-S09: where this step's tokens are written. O(rows + pages in use), two hash tables at most.
#include <algorithm>
#include <vector>

#include "contract/context.h"
#include "contract/flat_map.h"
#include "contract/index_scan.h"
#include "semantics/ceil_div.h"
#include "text/formatted.h"

namespace quire::contract {
namespace {

using enum RuleId;
using semantics::IndexView;

std::int64_t num_slots(const Context& c) { return c.sizes.num_pages * c.sizes.page_size; }

void s01_in_range(Context& c, const IndexView& slots, std::int64_t count) {
  for (std::int64_t t = 0; t < count; ++t) {
    if (slots[t] < num_slots(c) || c.report.counted(S01)) continue;
    c.report.add(S01, "slot_mapping", {t}, formatted("slot {}", slots[t]),
                 formatted("in [0, {}) = num_pages {} * page_size {}", num_slots(c), c.sizes.num_pages, c.sizes.page_size),
                 "negative skips the row");
  }
}

std::int64_t count_writes(const IndexView& slots, std::int64_t count) {
  std::int64_t writes = 0;
  for (std::int64_t t = 0; t < count; ++t) writes += slots[t] >= 0;
  return writes;
}

/// Whether stride 0 repeats one slot. This test needs no table, whose size would follow the claimed count instead of real memory.
bool is_repeated(const IndexView& slots, std::int64_t count) { return slots.stride == 0 && count > 1 && slots[0] >= 0; }

void s02_no_duplicates(Context& c, const IndexView& slots, std::int64_t count) {
  const auto add = [&](std::int64_t row, std::int64_t first) {
    c.report.add(S02, "slot_mapping", {row}, formatted("slot {}", slots[row]),
                 formatted("a slot of its own, not that of row {}", first));
  };
  if (is_repeated(slots, count)) return add(1, 0);
  FlatMap<std::int64_t> writer(count_writes(slots, count));
  for (std::int64_t t = 0; t < count; ++t) {
    if (slots[t] < 0) continue;
    const std::int64_t* first = writer.insert(slots[t], t);
    if (first != nullptr && !c.report.counted(S02)) add(t, *first);
  }
}

// --- against the block table --------------------------------------------------------------------------------------------

struct Write {
  std::int64_t row = 0;
  std::int64_t request = 0;
  std::int64_t position = 0;  ///< position of the token in its sequence
  std::int64_t key = 0;       ///< position, counted from the request's first key
};

/// Calls visit(slot, write) for every row with a slot in range, of requests with sound lengths.
template <typename Visit>
void for_each_write(const Context& c, const IndexView& slots, Visit&& visit) {
  for (std::int64_t r = 0; r < c.sizes.num_reqs; ++r) {
    const Lengths lengths = lengths_of(c, r);
    if (!lengths.sound) continue;
    for (std::int64_t i = 0; i < lengths.query_len; ++i) {
      const std::int64_t slot = slots[lengths.first_row + i];
      if (slot >= 0 && slot < num_slots(c))
        visit(slot, Write{lengths.first_row + i, r, lengths.q_begin + i, lengths.first_position() + i}, lengths);
    }
  }
}

/// The slot that attention will read this position from; nullopt if the position is not cached or its page is broken.
std::optional<std::int64_t> read_slot(const Context& c, const Write& write, const Lengths& lengths) {
  if (write.key < 0 || write.key >= lengths.cached_len) return std::nullopt;
  const auto page = page_of(c, semantics::index_row(c.batch.block_table, write.request), write.key);
  if (!page) return std::nullopt;
  return *page * c.sizes.page_size + write.key % c.sizes.page_size;
}

void s03_matches_table(Context& c, const IndexView& slots) {
  for_each_write(c, slots, [&](std::int64_t slot, const Write& write, const Lengths& lengths) {
    const auto expected = read_slot(c, write, lengths);
    if (!expected || *expected == slot || c.report.counted(S03)) return;
    const std::int64_t size = c.sizes.page_size;
    c.report.add(S03, "slot_mapping", {write.row}, formatted("slot {} (page {}, offset {})", slot, slot / size, slot % size),
                 formatted("slot {} (page {}, offset {}), where block_table[{}][{}] has position {} of request {}", *expected,
                           *expected / size, *expected % size, write.request, write.key / size, write.position, write.request));
  });
}

/// The writes of this step by slot, and by page, without those that Q-S03 already refuses.
struct Written {
  FlatMap<Write> slots;
  ValueFilter pages;
};

Written collect_writes(const Context& c, const IndexView& slots) {
  const std::int64_t count = count_writes(slots, c.sizes.num_tokens);
  Written written{FlatMap<Write>(count), {}};
  for_each_write(c, slots, [&](std::int64_t slot, const Write& write, const Lengths& lengths) {
    const auto expected = read_slot(c, write, lengths);
    if (expected && *expected != slot) return;
    written.slots.insert(slot, write);
    written.pages.add(slot / c.sizes.page_size);
  });
  return written;
}

/// Key `key` of request `reader` lies in the slot; its position in the sequence is `position`.
void s04_one_slot(Context& c, std::int64_t slot, const Write& write, std::int64_t reader, std::int64_t key,
                  std::int64_t position) {
  if (write.position == position || c.report.counted(S04)) return;
  const std::int64_t size = c.sizes.page_size;
  c.report.add(S04, "slot_mapping", {write.row},
               formatted("slot {} (page {}, offset {}) is written for position {} of request {}", slot, slot / size, slot % size,
                         write.position, write.request),
               formatted("the position at which it is read, but block_table[{}][{}] reads it as position {} of request {}",
                         reader, key / size, position, reader));
}

void s04_one_position_per_slot(Context& c, const IndexView& slots) {
  const Written written = collect_writes(c, slots);
  const std::int64_t size = c.sizes.page_size;
  for (std::int64_t r = 0; r < c.sizes.num_reqs; ++r) {
    const Lengths lengths = lengths_of(c, r);
    if (!lengths.sound) continue;
    for_each_visible_range(c, lengths, [&](std::int64_t first, std::int64_t last) {
      const auto visit = [&](std::int64_t column, std::int64_t page) {
        if (page < 0 || page >= c.sizes.num_pages) return;
        const std::int64_t begin = std::max(first, column * size), end = std::min(last, (column + 1) * size);
        for (std::int64_t key = begin; key < end; ++key) {
          const std::int64_t slot = page * size + key % size;
          if (const Write* write = written.slots.find(slot)) s04_one_slot(c, slot, *write, r, key, lengths.key_begin + key);
        }
      };
      for_each_held(semantics::index_row(c.batch.block_table, r), first / size, semantics::ceil_div(last, size), written.pages,
                    visit);
    });
  }
}

/// append() writes every slot that is given, whosever the row is.
void s09_padding_skipped(Context& c, const IndexView& slots) {
  const std::int64_t first = semantics::index_view(c.batch.query_start_loc)[c.sizes.num_reqs];
  for (std::int64_t row = first; row < c.sizes.num_tokens; ++row) {
    if (slots[row] < 0 || c.report.counted(S09)) continue;
    c.report.add(S09, "slot_mapping", {row}, formatted("slot {}", slots[row]), "negative",
                 "the row is padding: what it holds belongs to no request");
  }
}

// --- append -------------------------------------------------------------------------------------------------------------

void s05_slot_count(Context& c) {
  const Tensor& slots = c.batch.slot_mapping;
  if (!well_formed(slots) || !known(c.sizes.num_tokens) || (slots.rank == 1 && slots.shape[0] <= c.sizes.num_tokens)) return;
  c.report.add(S05, "slot_mapping", {}, "shape " + shape_text(slots),
               formatted("[n] with n at most {}, the rows of key", c.sizes.num_tokens));
}

void s06_row_dtype(Context& c, const NamedTensor& t) {
  const DType dtype = t.tensor->dtype;
  if (!descriptor_ok(*t.tensor) || dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16) return;
  c.report.add(S06, t.name, {}, formatted("dtype {}", name(dtype)), "f32, f16 or bf16");
}

void s06_one_dtype(Context& c) {
  if (!c.batch.key.present() || c.report.broken(S06) || new_row_dtype(c.batch) != DType::none) return;
  if (!descriptor_ok(c.batch.key) || !descriptor_ok(c.batch.value)) return;
  c.report.add(S06, "value", {}, formatted("dtype {}", name(c.batch.value.dtype)),
               formatted("{} as key", name(c.batch.key.dtype)));
}

/// Tensors that append() writes: the cache, and scales of tokens and blocks.
std::vector<NamedTensor> written(const Context& c) {
  std::vector<NamedTensor> list{{"cache.k", &c.cache.k}};
  if (!has_latent_rows(c)) list.push_back({"cache.v", &c.cache.v});  // rows of fp8_ds_mla are one tensor (Q-R04)
  if (c.cache.k_scale.rank == 3) list.push_back({"k_scale", &c.cache.k_scale});
  if (c.cache.v_scale.rank == 3) list.push_back({"v_scale", &c.cache.v_scale});
  if (c.cache.k_block_scale.present()) list.push_back({"k_block_scale", &c.cache.k_block_scale});
  if (c.cache.v_block_scale.present()) list.push_back({"v_block_scale", &c.cache.v_block_scale});
  return list;
}

/// Reports under `rule` that a written tensor shares memory with another one.
void no_overlap(Context& c, RuleId rule, const NamedTensor& target, const NamedTensor& other) {
  if (!placed(*target.tensor) || !placed(*other.tensor) || !may_overlap(*target.tensor, *other.tensor)) return;
  c.report.add(rule, target.name, {}, formatted("shares memory with {}", other.name), "memory of its own");
}

void s07_own_addresses(Context& c) {
  const std::vector<NamedTensor> targets = written(c);
  for (const NamedTensor& t : targets) {
    if (!well_formed(*t.tensor) || strides_nest(*t.tensor)) continue;
    c.report.add(S07, t.name, {}, to_string(*t.tensor), "an address of its own for every element");
  }
  for (std::size_t i = 0; i < targets.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) no_overlap(c, S07, targets[i], targets[j]);
}

void s08_no_overlap(Context& c) {
  std::vector<NamedTensor> inputs{{"key", &c.batch.key}, {"value", &c.batch.value}, {"slot_mapping", &c.batch.slot_mapping}};
  if (c.cache.k_scale.rank != 3) inputs.push_back({"k_scale", &c.cache.k_scale});
  if (c.cache.v_scale.rank != 3) inputs.push_back({"v_scale", &c.cache.v_scale});
  for (const NamedTensor& input : inputs)
    for (const NamedTensor& target : written(c)) no_overlap(c, S08, target, input);
}

}  // namespace

void apply_slot_value_rules(Context& c) {
  const Tensor& slots = c.batch.slot_mapping;
  if (!is_index_array(slots, kUnknown) || !known(c.sizes.num_pages)) return;
  const IndexView view = semantics::index_view(slots);
  s01_in_range(c, view, slots.shape[0]);
  s02_no_duplicates(c, view, slots.shape[0]);
}

void apply_batch_slot_rules(Context& c) {
  apply_slot_value_rules(c);
  const bool readable_slots = is_index_array(c.batch.slot_mapping, c.sizes.num_tokens);
  if (c.starts_sound && readable_slots) s09_padding_skipped(c, semantics::index_view(c.batch.slot_mapping));
  if (!c.pages_sound || !readable_slots) return;
  const IndexView slots = semantics::index_view(c.batch.slot_mapping);
  s03_matches_table(c, slots);
  if (!is_repeated(slots, c.sizes.num_tokens)) s04_one_position_per_slot(c, slots);
}

DType new_row_dtype(const Batch& batch) noexcept {
  const bool agree = !batch.value.present() || batch.value.dtype == batch.key.dtype;
  return descriptor_ok(batch.key) && agree ? batch.key.dtype : DType::none;
}

void apply_append_rules(Context& c) {
  s05_slot_count(c);
  s06_row_dtype(c, {"key", &c.batch.key});
  s06_row_dtype(c, {"value", &c.batch.value});
  s06_one_dtype(c);
  s07_own_addresses(c);
  s08_no_overlap(c);
}

}  // namespace quire::contract
