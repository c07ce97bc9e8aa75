// SPDX-License-Identifier: Apache-2.0
// Rules Q-K01 to Q-K10: the lists of keys that rows see. O(entries in use + pages in use).
#include <algorithm>
#include <array>
#include <exception>
#include <optional>

#include "batch/caught.h"
#include "contract/context.h"
#include "contract/flat_map.h"
#include "device/staging.h"
#include "quire/problem.hpp"
#include "quire/sparse.hpp"
#include "semantics/ceil_div.h"
#include "semantics/slot_grid.h"
#include "text/formatted.h"

namespace quire {
namespace {

using contract::NamedTensor;
using contract::Report;
using contract::shape_text;
using semantics::IndexView;
using enum contract::RuleId;

/// A call whose batch is sound. `on_device` is about the memory that kernels read, wherever the host reads.
struct Call {
  const Batch& batch;
  const KVCache& cache;
  const Options& options;
  const KeyLists& lists;
  bool on_device;
  Report& report;

  bool of_rows() const { return lists.owner == ListOwner::row; }
  bool of_slots() const { return lists.unit == ListUnit::slot; }
  std::int64_t count() const { return of_rows() ? batch.query.shape[0] : batch.query_start_loc.shape[0] - 1; }
  const char* counted() const { return of_rows() ? "num_tokens" : "num_reqs"; }
  std::int64_t tokens_of_entry() const { return of_slots() ? 1 : page_size(cache); }
};

// --- metadata -----------------------------------------------------------------------------------------------------------

void m27_index_types(const Call& c, const std::array<NamedTensor, 3>& tensors) {
  for (const NamedTensor& t : tensors)
    if (contract::descriptor_ok(*t.tensor) && t.tensor->dtype != DType::i32 && t.tensor->dtype != DType::i64)
      c.report.add(M27, t.name, {}, formatted("dtype {}", name(t.tensor->dtype)), "i32 or i64");
}

void k01_known(const Call& c) {
  if (name(c.lists.unit) == "invalid")
    c.report.add(K01, "unit", {}, formatted("{}", static_cast<int>(c.lists.unit)), "page (0) or slot (1)");
  if (name(c.lists.owner) == "invalid")
    c.report.add(K01, "owner", {}, formatted("{}", static_cast<int>(c.lists.owner)), "request (0) or row (1)");
}

void k01_ids(const Call& c) {
  const Tensor& ids = c.lists.ids;
  const bool fits = (ids.rank == 2 || (ids.rank == 3 && ids.shape[1] == num_kv_heads(c.cache))) && ids.shape[0] == c.count();
  if (fits) return;
  c.report.add(
      K01, "ids", {}, "shape " + shape_text(ids),
      formatted("[{0}, width] or [{0}, {1}, width] = [{2}, num_kv_heads, width]", c.count(), num_kv_heads(c.cache), c.counted()),
      formatted("lists of {}s", name(c.lists.owner)));
}

void k02_num_keys(const Call& c) {
  const Tensor& n = c.lists.num_keys;
  if (!n.present()) {
    if (c.of_slots() && !c.on_device) return;
    return c.report.add(K02, "num_keys", {}, "absent",
                        c.of_slots() ? "num_keys beside lists in device memory" : "num_keys beside pages");
  }
  const bool by_head = c.lists.ids.rank == 3;
  const bool fits = n.shape[0] == c.count() && (n.rank == 1 || (n.rank == 2 && by_head && n.shape[1] == num_kv_heads(c.cache)));
  if (n.rank >= 1 && fits) return;
  c.report.add(K02, "num_keys", {}, "shape " + shape_text(n),
               by_head ? formatted("[{0}] or [{0}, {1}]", c.count(), num_kv_heads(c.cache)) : formatted("[{}]", c.count()));
}

void k03_nothing_but_keys(const Call& c) {
  const auto absent = [&](bool given, const char* what) {
    if (given) c.report.add(K03, what, {}, "given beside key lists", "absent");
  };
  absent(c.options.sliding_window.has_value(), "sliding_window");
  absent(c.options.window_right.has_value(), "window_right");
  absent(c.options.alibi_slopes.present(), "alibi_slopes");
  absent(c.batch.q_begin.present(), "q_begin");
  absent(c.batch.key_begin.present(), "key_begin");
  absent(c.options.attention_chunk.has_value(), "attention_chunk");
  absent(c.options.prefix_len.has_value() || c.batch.prefix_lens.present(), "prefix_len");
  absent(c.batch.spans.present(), "spans");
  absent(c.batch.tree_mask.present(), "tree_mask");
  absent(c.batch.cached_lens.present(), "cached_lens");
  absent(c.batch.key.present() || c.batch.value.present(), "key");
}

void k04_tokens_apart(const Call& c) {
  if (!c.of_slots()) return;
  const std::optional<semantics::SlotGrid> grid = semantics::slot_grid(c.cache);
  if (!grid)
    return c.report.add(K04, "cache.k", {}, formatted("layout {} under lists of slots", name(c.cache.layout)),
                        "nhd or hnd, with K, V and scales of tokens alike from token to token");
  if (semantics::grid_pages(*grid, c.cache) > contract::kMaxExtent)
    return c.report.add(K04, "cache.k", {}, formatted("{} token places", semantics::grid_pages(*grid, c.cache)),
                        formatted("at most {}", contract::kMaxExtent));
  if (!c.on_device || grid->is_slots(page_size(c.cache))) return;
  c.report.add(K04, "cache.k", {},
               formatted("pages are {} steps of a token apart under lists of slots in device memory", grid->per_page),
               formatted("page_size = {}, tokens 1 step apart", page_size(c.cache)));
}

void k05_row_starts(const Call& c) {
  const Tensor& starts = c.lists.row_starts;
  if (!c.of_rows() || (!starts.present() && !c.on_device)) return;
  const std::int64_t rows = c.batch.query.shape[0];
  if (starts.rank == 1 && starts.shape[0] == rows + 1) return;
  c.report.add(K05, "row_starts", {}, starts.present() ? "shape " + shape_text(starts) : "absent",
               formatted("[{}] = [num_tokens + 1]", rows + 1));
}

void apply_metadata_rules(const Call& c) {
  const std::array<NamedTensor, 3> tensors{
      {{"ids", &c.lists.ids}, {"num_keys", &c.lists.num_keys}, {"row_starts", &c.lists.row_starts}}};
  constexpr std::string_view required[] = {"ids"};
  contract::apply_tensor_rules(c.report, tensors, required, c.cache.k);
  m27_index_types(c, tensors);
  k01_known(c);
  if (!c.report.clean()) return;
  k01_ids(c);
  k02_num_keys(c);
  k03_nothing_but_keys(c);
  k04_tokens_apart(c);
  k05_row_starts(c);
}

// --- tables -------------------------------------------------------------------------------------------------------------

/// Columns of the pages that hold keys of one request.
class KnownPages {
 public:
  KnownPages(const Batch& batch, std::int64_t request, std::int64_t pages) : columns_(pages) {
    const IndexView row = semantics::index_row(batch.block_table, request);
    for (std::int64_t j = 0; j < pages; ++j) columns_.insert(row[j], j);
  }
  const std::int64_t* column_of(std::int64_t page) const { return columns_.find(page); }

 private:
  contract::FlatMap<std::int64_t> columns_;
};

/// One list: its entries, and whose it is.
struct List {
  std::int64_t i, head;  ///< head is -1 in lists for all heads
  IndexView ids;
  std::int64_t width, in_use, keys;
  std::int64_t request;
  std::int64_t visible;  ///< leading keys of the request that every row of the list sees
};

void add(const Call& c, contract::RuleId rule, const List& list, std::int64_t entry, std::string value, std::string expected) {
  if (list.head < 0)
    c.report.add(rule, "ids", {list.i, entry}, std::move(value), std::move(expected));
  else
    c.report.add(rule, "ids", {list.i, list.head, entry}, std::move(value), std::move(expected));
}

std::string entry_text(const Call& c, std::int64_t id) { return formatted("{} {}", name(c.lists.unit), id); }

/// Fills in `in_use` and `keys`; false if a rule is broken.
bool k06_count(const Call& c, List& list) {
  const Tensor& n = c.lists.num_keys;
  const std::int64_t tokens = c.tokens_of_entry();
  if (!n.present()) {
    while (list.keys < list.width && list.ids[list.keys] >= 0) ++list.keys;
    list.in_use = list.keys;
    for (std::int64_t j = list.keys + 1; j < list.width; ++j)
      if (list.ids[j] >= 0)
        return add(c, K06, list, j, entry_text(c, list.ids[j]), formatted("negative, as entry {} in front of it", list.keys)),
               false;
    return true;
  }
  const std::int64_t at = list.i * n.stride[0] + (n.rank == 2 ? std::max<std::int64_t>(list.head, 0) * n.stride[1] : 0);
  list.keys = semantics::load_index(n.data, n.dtype, at);
  list.in_use = list.keys < 0 ? 0 : semantics::ceil_div(list.keys, tokens);
  if (list.keys >= 0 && list.in_use <= list.width) return true;
  if (c.report.counted(K06)) return false;
  const std::string value = formatted("{}", list.keys), expected = formatted("in [0, {}]", list.width * tokens);
  if (n.rank == 2)
    c.report.add(K06, "num_keys", {list.i, list.head}, value, expected);
  else
    c.report.add(K06, "num_keys", {list.i}, value, expected);
  return false;
}

bool k07_inside(const Call& c, const List& list, std::int64_t j) {
  const std::int64_t limit = num_pages(c.cache) * (c.of_slots() ? page_size(c.cache) : 1), id = list.ids[j];
  if (id >= 0 && id < limit) return true;
  if (!c.report.counted(K07)) add(c, K07, list, j, entry_text(c, id), formatted("in [0, {})", limit));
  return false;
}

/// Position of the first key of an entry among the keys of the request; nullopt if no row may see it.
std::optional<std::int64_t> k09_visible(const Call& c, const List& list, const KnownPages& pages, std::int64_t j) {
  const std::int64_t tokens = page_size(c.cache), id = list.ids[j];
  const std::int64_t* const column = pages.column_of(c.of_slots() ? id / tokens : id);
  if (column != nullptr) {
    const std::int64_t position = *column * tokens + (c.of_slots() ? id % tokens : 0);
    if (position < list.visible) return position;
  }
  if (!c.report.counted(K09))
    add(c, K09, list, j, entry_text(c, id),
        formatted("a {} with one of the {} keys of request {} that {} sees{}", name(c.lists.unit), list.visible, list.request,
                  c.of_rows() ? "this row" : "its every row",
                  column == nullptr ? "" : formatted(", not its key {}", *column * tokens + (c.of_slots() ? id % tokens : 0))));
  return std::nullopt;
}

void k10_partly_visible(const Call& c, const List& list, std::int64_t j, std::int64_t position) {
  const std::int64_t tokens = page_size(c.cache), seen = list.visible - position;
  if (c.of_slots() || seen >= tokens) return;
  const bool last = j + 1 == list.in_use;
  if (last && list.keys <= j * tokens + seen) return;
  if (c.report.counted(K10)) return;
  const std::string value = formatted("{}, of which {} keys are visible", entry_text(c, list.ids[j]), seen);
  add(c, K10, list, j, value,
      last ? formatted("num_keys at most {}, not {}", j * tokens + seen, list.keys)
           : formatted("the last entry in use, [{}]", list.in_use - 1));
}

void apply_entry_rules(const Call& c, const List& list, const KnownPages& pages) {
  contract::FlatMap<std::int64_t> seen(std::min(list.in_use, list.visible));  // a visible key can stand once
  for (std::int64_t j = 0; j < list.in_use; ++j) {
    if (!k07_inside(c, list, j)) continue;
    const std::optional<std::int64_t> position = k09_visible(c, list, pages, j);
    if (!position) continue;
    if (const std::int64_t* const first = seen.insert(list.ids[j], j)) {
      if (!c.report.counted(K08)) add(c, K08, list, j, entry_text(c, list.ids[j]), formatted("another than entry {}", *first));
      continue;
    }
    k10_partly_visible(c, list, j, *position);
  }
}

void apply_rules_of_owner(const Call& c, std::int64_t i, std::int64_t request, std::int64_t visible, const KnownPages& pages) {
  const Tensor& ids = c.lists.ids;
  const std::int64_t heads = ids.rank == 3 ? ids.shape[1] : 1;
  for (std::int64_t h = 0; h < heads; ++h) {
    Tensor of_head = ids;
    if (ids.rank == 3) {
      of_head.data = static_cast<std::byte*>(ids.data) + h * ids.stride[1] * itemsize(ids.dtype);
      of_head.rank = 2, of_head.shape[1] = ids.shape[2], of_head.stride[1] = ids.stride[2];
    }
    List list{i, ids.rank == 3 ? h : -1, semantics::index_row(of_head, i), of_head.shape[1], 0, 0, request, visible};
    if (k06_count(c, list)) apply_entry_rules(c, list, pages);
  }
}

/// Lists of requests without rows, and of padding rows, are not read.
void apply_table_rules(const Call& c) {
  const std::int64_t requests = c.batch.seq_lens.shape[0], tokens = page_size(c.cache);
  std::int64_t row = 0;
  for (std::int64_t r = 0; r < requests; ++r) {
    const Request q = request_of(c.batch, c.options, r);
    if (q.query_len == 0) continue;
    const KnownPages pages(c.batch, r, semantics::columns_held(q.seq_len(), tokens, c.batch.block_table.shape[1]));
    const auto seen_by = [&q](std::int64_t i) {
      return q.causal ? std::clamp<std::int64_t>(q.context_len + i + 1, 0, q.seq_len()) : q.seq_len();
    };
    if (!c.of_rows()) apply_rules_of_owner(c, r, r, seen_by(0), pages);
    for (std::int64_t i = 0; c.of_rows() && i < q.query_len; ++i) apply_rules_of_owner(c, row + i, r, seen_by(i), pages);
    row += q.query_len;
  }
}

Status staged(Batch& batch, KeyLists& lists, device::Staging& staging) {
  for (Tensor* t : {&batch.query_start_loc, &batch.seq_lens, &batch.block_table, &batch.causal, &lists.ids, &lists.num_keys})
    if (Status s = staging.stage(*t); !s.ok()) return s;
  return {};
}

Findings checked(const Batch& batch, const KVCache& cache, const Options& options, const KeyLists& lists, Depth depth) {
  Report report;
  const bool on_device = cache.k.memory != Memory::cpu;
  apply_metadata_rules({batch, cache, options, lists, on_device, report});
  if (!report.clean() || depth < Depth::tables) return report.take();
  device::Staging staging;
  Batch host = batch;
  KeyLists host_lists = lists;
  if (Status s = staged(host, host_lists, staging); !s.ok())
    report.fail(std::move(s));
  else
    apply_table_rules({host, cache, options, host_lists, on_device, report});
  return report.take();
}

}  // namespace

Findings check_sparse(const Batch& batch, const KVCache& cache, const Options& options, const KeyLists& lists, Depth depth) {
  Findings of_batch = check(batch, cache, options, std::min(depth, Depth::tables));
  if (!of_batch.ok()) return of_batch;
  try {
    return checked(batch, cache, options, lists, depth);
  } catch (...) {
    Findings failed;
    failed.total = 1;
    failed.failure = batch::caught("check_sparse");
    return failed;
  }
}

}  // namespace quire
