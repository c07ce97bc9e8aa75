// SPDX-License-Identifier: Apache-2.0
// Rules Q-L01 to Q-L06: every visible cached slot was written, for this reader and position, since its page was handed out; and
// an append says for whom it writes.
//
// The rules judge the cache as it is now: call check() after this step's append.
#include <algorithm>
#include <string>

#include "contract/context.h"
#include "quire/distributed.hpp"
#include "text/formatted.h"

namespace quire::contract {
namespace {

using enum RuleId;

/// One read of a cached slot.
struct Read {
  std::int64_t request = 0;   ///< row of block_table
  std::int64_t id = 0;        ///< stable id
  std::int64_t position = 0;  ///< position in the sequence
  std::int64_t key = 0;       ///< counted from the request's first
  std::int64_t page = 0;
  std::int64_t offset = 0;
};

std::string written_by(const SlotLedger::Entry& entry) {
  return formatted("was written by request {} for position {} in step {}", entry.request, entry.position, entry.step);
}

void add(Context& c, RuleId rule, const Read& read, const std::string& what, std::string expected) {
  if (c.report.counted(rule)) return;
  c.report.add(rule, "block_table", {read.request, read.key / c.sizes.page_size},
               formatted("request {} reads position {} from page {} offset {}, which {}", read.id, read.position, read.page,
                         read.offset, what),
               std::move(expected));
}

// A slot gives one finding, the most basic that applies: a slot that was never written has no writer to compare with, and every
// slot of a recycled page is foreign and misplaced.

bool l01_written(Context& c, const Read& read, const SlotLedger::Entry& entry) {
  if (entry.request >= 0) return true;
  add(c, L01, read, "was never written", "a written slot");
  return false;
}

bool l04_not_recycled(Context& c, const Read& read, const SlotLedger::Entry& entry) {
  if (!entry.recycled) return true;
  add(c, L04, read, written_by(entry) + " and recycled since", "a slot written after its page was handed out");
  return false;
}

bool l02_own_or_shared(Context& c, const Read& read, const SlotLedger::Entry& entry) {
  if (entry.request == read.id || c.ledger->shared_with(read.page, read.id)) return true;
  add(c, L02, read, written_by(entry), formatted("a slot of request {} or a page shared with it", read.id));
  return false;
}

bool l03_position(Context& c, const Read& read, const SlotLedger::Entry& entry) {
  if (entry.position == read.position) return true;
  add(c, L03, read, written_by(entry), formatted("a slot written for position {}", read.position));
  return false;
}

bool l05_same_cache(Context& c) {
  const bool same = c.ledger->num_pages() == c.sizes.num_pages && c.ledger->page_size() == c.sizes.page_size;
  if (!same) {
    c.report.add(L05, "ledger", {}, formatted("{} pages of {}", c.ledger->num_pages(), c.ledger->page_size()),
                 formatted("{} pages of {} as the cache", c.sizes.num_pages, c.sizes.page_size));
  }
  return same;
}

void l06_tag(Context& c, std::int64_t row, std::string_view what, std::int64_t value, std::string_view hint) {
  if (value >= 0 || c.report.counted(L06)) return;
  c.report.add(L06, "tags", {row}, formatted("{} {}", what, value), "at least 0", hint);
}

void check_read(Context& c, const Read& read) {
  const SlotLedger::Entry entry = c.ledger->entry(read.page * c.sizes.page_size + read.offset);
  l01_written(c, read, entry) && l04_not_recycled(c, read, entry) && l02_own_or_shared(c, read, entry) &&
      l03_position(c, read, entry);
}

}  // namespace

void apply_append_ledger_rules(Context& c) {
  if (c.ledger == nullptr || !known(c.sizes.num_pages)) return;
  l05_same_cache(c);
  if (!is_index_array(c.batch.slot_mapping, kUnknown)) return;
  const semantics::IndexView slots = semantics::index_view(c.batch.slot_mapping);
  const auto rows = std::min(c.batch.slot_mapping.shape[0], static_cast<std::int64_t>(c.tags.size()));
  for (std::int64_t row = 0; row < rows; ++row) {
    if (slots[row] < 0) continue;
    const WriteTag& tag = c.tags[static_cast<std::size_t>(row)];
    l06_tag(c, row, "request", tag.request, "-1 is the ledger's 'nobody'");
    l06_tag(c, row, "position", tag.position, {});
  }
}

void apply_ledger_rules(Context& c) {
  if (c.ledger == nullptr || !known(c.sizes.num_pages) || !l05_same_cache(c) || !c.pages_sound) return;
  if (c.batch.request_ids.present() && !is_index_array(c.batch.request_ids, c.sizes.num_reqs)) return;
  std::int64_t reads = 0;
  for (std::int64_t r = 0; r < c.sizes.num_reqs; ++r) {
    const std::int64_t id = request_id(c, r), begin = lengths_of(c, r).key_begin;
    for_each_visible_run(c, r, [&](std::int64_t page, std::int64_t offset, std::int64_t count, std::int64_t key) {
      for (std::int64_t i = 0; i < count; ++i) check_read(c, {r, id, begin + key + i, key + i, page, offset + i});
      reads += count;
    });
  }
  c.ledger->note_reads(reads);
}

void apply_shard_ledger_rules(Context& c, const ContextShard& shard) {
  if (!l05_same_cache(c)) return;
  const semantics::IndexView starts = semantics::index_view(c.batch.query_start_loc),
                             lengths = semantics::index_view(c.batch.seq_lens);
  const std::int64_t page_size = c.sizes.page_size, window = c.options.sliding_window.value_or(0);
  std::int64_t reads = 0;
  for (std::int64_t r = 0; r < c.sizes.num_reqs; ++r) {
    const std::int64_t rows = starts[r + 1] - starts[r], id = request_id(c, r);
    if (rows <= 0) continue;
    const std::int64_t first = window > 0 ? std::max<std::int64_t>(lengths[r] - rows + 1 - window, 0) : 0;
    const semantics::IndexView pages = semantics::index_row(c.batch.block_table, r);
    // Keys beyond the table are findings of the table rules, which a sharded call applies.
    const std::int64_t held = std::min(shard.local_length(lengths[r]), c.batch.block_table.shape[1] * page_size);
    for (std::int64_t key = shard.local_length(first); key < held; ++key, ++reads)
      check_read(c, {r, id, shard.global_position(key), key, pages[key / page_size], key % page_size});
  }
  c.ledger->note_reads(reads);
}

}  // namespace quire::contract
