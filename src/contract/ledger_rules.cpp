// SPDX-License-Identifier: Apache-2.0
// Rules Q-L01 to Q-L07: every visible cached slot was written, for this reader and position, since its page was handed out, and
// holds what was written; and an append says for whom it writes. Slots in a row that break a rule alike are one finding.
//
// The rules judge the cache as it is now: call check() after this step's append.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "contract/context.h"
#include "quire/shards.hpp"
#include "semantics/stored_row.h"
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

/// A read that breaks a rule, with what the ledger says of its slot.
struct Fault {
  RuleId rule;
  Read read;
  SlotLedger::Entry entry{};
  std::int64_t moved_from = -1;       ///< Q-L07
  bool k_same = true, v_same = true;  ///< Q-L07
};

/// Whether `next` goes on where `last` stands: one more position of the same request, in the next slot of a page or the first of
/// another, written one position later by the same writer.
bool continues(const Fault& last, const Fault& next) {
  const Read &a = last.read, &b = next.read;
  const bool beside = a.page == b.page ? b.offset == a.offset + 1 : b.offset == 0;
  const bool same_writer = next.rule == L01 || (next.entry.request == last.entry.request && next.entry.step == last.entry.step &&
                                                next.entry.position == last.entry.position + 1);
  const bool same_move = next.moved_from < 0 ? last.moved_from < 0 : next.moved_from == last.moved_from + 1;
  return next.rule == last.rule && a.request == b.request && b.key == a.key + 1 && b.position == a.position + 1 && beside &&
         same_writer && same_move && next.k_same == last.k_same && next.v_same == last.v_same;
}

/// Collects faults in the order of reads, and makes one finding of each run of faults.
class Faults {
 public:
  explicit Faults(Context& c) : c_(c) {}

  void add(const Fault& fault) {
    if (first_ && continues(last_, fault)) {
      last_ = fault;
      return;
    }
    finish();
    first_ = last_ = fault;
  }

  /// Reports the run that is open; to be called after the last read.
  void finish();

 private:
  static std::string range(std::string_view word, std::int64_t first, std::int64_t last) {
    return first == last ? formatted("{} {}", word, first) : formatted("{}s {} to {}", word, first, last);
  }
  std::string where(const Fault& first) const;
  std::string written(const Fault& first) const;
  std::string changed(const Fault& first) const;

  Context& c_;
  std::optional<Fault> first_;
  Fault last_{};
};

/// "page 3 offsets 0 to 2" or "page 3 offset 0 to page 4 offset 2".
std::string Faults::where(const Fault& first) const {
  const Read &a = first.read, &b = last_.read;
  if (a.page == b.page) return formatted("page {} ", a.page) + range("offset", a.offset, b.offset);
  return formatted("page {} offset {} to page {} offset {}", a.page, a.offset, b.page, b.offset);
}

std::string Faults::written(const Fault& first) const {
  return formatted("written by request {} for {} in step {}", first.entry.request,
                   range("position", first.entry.position, last_.entry.position), first.entry.step);
}

std::string Faults::changed(const Fault& first) const {
  const char* sides = first.k_same ? "V" : first.v_same ? "K" : "K and V";
  if (first.moved_from < 0) return formatted("{}, {} changed since", written(first), sides);
  return formatted("moved from {} in step {}, {} differ{}", range("slot", first.moved_from, last_.moved_from), first.entry.step,
                   sides, first.k_same || first.v_same ? "s" : "");
}

void Faults::finish() {
  if (!first_) return;
  const Fault first = *std::exchange(first_, std::nullopt);
  if (c_.report.counted(first.rule)) return;
  const bool many = last_.read.key != first.read.key;
  const std::string position = range("position", first.read.position, last_.read.position), slot = many ? "slots " : "a slot ";
  const auto add = [&](const std::string& what, const std::string& expected) {
    c_.report.add(
        first.rule, "block_table", {first.read.request, first.read.key / c_.sizes.page_size},
        formatted("request {} reads {} from {}, which {} {}", first.read.id, position, where(first), many ? "were" : "was", what),
        expected, table_holds_slots(c_, first.read.request) ? kTableHoldsSlots : "");
  };
  switch (first.rule) {
    case L01: return add("never written", many ? "written slots" : "a written slot");
    case L02:
      return add(written(first),
                 formatted("{}of request {} or {} shared with it", slot, first.read.id, many ? "pages" : "a page"));
    case L03: return add(written(first), formatted("{}written for {}", slot, position));
    case L04: return add(written(first) + " and recycled since", slot + "written after its page was handed out");
    default: return add(changed(first), "the bytes of that write");
  }
}

/// The rule that a read breaks, the most basic that applies: a slot that was never written has no writer to compare with, and
/// every slot of a recycled page is foreign and misplaced.
std::optional<RuleId> broken_by(const Context& c, const Read& read, const SlotLedger::Entry& entry) {
  if (entry.request < 0) return L01;
  if (entry.recycled) return L04;
  if (entry.request != read.id && !c.ledger->shared_with(read.page, read.id)) return L02;
  if (entry.position != read.position) return L03;
  return std::nullopt;
}

std::int64_t slot_of(const Context& c, const Read& read) { return read.page * c.sizes.page_size + read.offset; }

void check_read(Context& c, Faults& faults, const Read& read) {
  const SlotLedger::Entry entry = c.ledger->entry(slot_of(c, read));
  if (const std::optional<RuleId> rule = broken_by(c, read, entry)) faults.add({.rule = *rule, .read = read, .entry = entry});
}

/// Visits the reads of all requests.
template <typename Visit>
void for_each_read(const Context& c, Visit&& visit) {
  for (std::int64_t r = 0; r < c.sizes.num_reqs; ++r) {
    const std::int64_t id = request_id(c, r), begin = lengths_of(c, r).key_begin;
    for_each_visible_run(c, r, [&](std::int64_t page, std::int64_t offset, std::int64_t count, std::int64_t key) {
      for (std::int64_t i = 0; i < count; ++i) visit(Read{r, id, begin + key + i, key + i, page, offset + i});
    });
  }
}

bool ledger_readable(const Context& c) {
  return c.ledger != nullptr && known(c.sizes.num_pages) && c.pages_sound &&
         (!c.batch.request_ids.present() || is_index_array(c.batch.request_ids, c.sizes.num_reqs));
}

/// Q-L07: the slot of a sound read holds what was written.
void l07_unchanged(const Context& c, Faults& faults, const Read& read, const semantics::StoredRows (&sides)[2],
                   std::vector<std::byte>& row) {
  const SlotLedger::Entry entry = c.ledger->entry(slot_of(c, read));
  const SlotLedger::Digest expected = c.ledger->digest(slot_of(c, read));
  if (expected.k == 0 || broken_by(c, read, entry)) return;
  const bool k_same = sides[0].slot_digest(read.page, read.offset, row) == expected.k,
             v_same = sides[1].slot_digest(read.page, read.offset, row) == expected.v;
  if (k_same && v_same) return;
  faults.add({L07, read, entry, expected.moved_from, k_same, v_same});
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

bool table_holds_slots(const Context& c, std::int64_t request) noexcept {
  if (!ledger_readable(c) || c.sizes.page_size == 1) return false;
  const Lengths lengths = lengths_of(c, request);
  if (!lengths.sound) return false;
  const std::int64_t entries = std::min(lengths.cached_len, c.batch.block_table.shape[1]), id = request_id(c, request);
  const semantics::IndexView row = semantics::index_row(c.batch.block_table, request);
  for (std::int64_t j = 0; j < entries; ++j) {
    const SlotLedger::Entry entry = c.ledger->entry(row[j]);
    if (entry.request != id || entry.position != lengths.key_begin + j) return false;
  }
  return entries > 1;
}

void apply_ledger_rules(Context& c) {
  if (c.ledger == nullptr || !known(c.sizes.num_pages) || !l05_same_cache(c) || !ledger_readable(c)) return;
  Faults faults(c);
  std::int64_t reads = 0;
  for_each_read(c, [&](const Read& read) {
    check_read(c, faults, read);
    ++reads;
  });
  faults.finish();
  c.ledger->note_reads(reads);
}

void apply_ledger_content_rules(Context& c) {
  if (!ledger_readable(c) || !c.ledger->has_digests() || c.report.broken(L05)) return;
  if (!stored_rows_readable(c, c.cache.k) || !stored_rows_readable(c, c.cache.v)) return;
  const semantics::StoredRows sides[] = {{c.cache, true}, {c.cache, false}};
  std::vector<std::byte> row;
  Faults faults(c);
  for_each_read(c, [&](const Read& read) { l07_unchanged(c, faults, read, sides, row); });
  faults.finish();
}

void apply_shard_ledger_rules(Context& c, const ContextShard& shard) {
  if (!l05_same_cache(c)) return;
  const semantics::IndexView starts = semantics::index_view(c.batch.query_start_loc),
                             lengths = semantics::index_view(c.batch.seq_lens);
  const std::int64_t page_size = c.sizes.page_size, window = c.options.sliding_window.value_or(0);
  Faults faults(c);
  std::int64_t reads = 0;
  for (std::int64_t r = 0; r < c.sizes.num_reqs; ++r) {
    const std::int64_t rows = starts[r + 1] - starts[r], id = request_id(c, r);
    if (rows <= 0) continue;
    const std::int64_t first = window > 0 ? std::max<std::int64_t>(lengths[r] - rows + 1 - window, 0) : 0;
    const semantics::IndexView pages = semantics::index_row(c.batch.block_table, r);
    // Keys beyond the table are findings of the table rules, which a sharded call applies.
    const std::int64_t held = std::min(shard.local_length(lengths[r]), c.batch.block_table.shape[1] * page_size);
    for (std::int64_t key = shard.local_length(first); key < held; ++key, ++reads)
      check_read(c, faults, {r, id, shard.global_position(key), key, pages[key / page_size], key % page_size});
  }
  faults.finish();
  c.ledger->note_reads(reads);
}

}  // namespace quire::contract
