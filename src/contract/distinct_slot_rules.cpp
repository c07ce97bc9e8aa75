// SPDX-License-Identifier: Apache-2.0
// Rule Q-T22: no request sees one slot of the cache at two positions. attend() serves such a table, because its reads are in
// bounds and its answer is defined; check() names it at depth contents. O(pages in use), one hash map for each request.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "contract/context.h"
#include "contract/flat_map.h"
#include "text/formatted.h"

namespace quire::contract {
namespace {

using enum RuleId;

/// Consecutive visible cached positions in one page. `key` counts from the request's first key.
struct Run {
  std::int64_t page = 0, offset = 0, count = 0, key = 0;
};

/// The runs of one request so far.
class SeenRuns {
 public:
  SeenRuns(std::int64_t most_pages, std::int64_t page_size) : page_size_(page_size), whole_(most_pages) {}

  /// Keeps the run. Returns an earlier one that has a slot of it, or null.
  const Run* add(const Run& run) {
    const auto shares = [&](const Run& other) {
      return other.page == run.page && other.offset < run.offset + run.count && run.offset < other.offset + other.count;
    };
    const Run* earlier = whole_.find(run.page);
    if (earlier == nullptr) {
      const auto found = std::find_if(parts_.begin(), parts_.end(), shares);
      earlier = found == parts_.end() ? nullptr : &*found;
    }
    if (earlier != nullptr) return earlier;
    if (run.count == page_size_)
      whole_.insert(run.page, run);
    else
      parts_.push_back(run);
    return nullptr;
  }

 private:
  std::int64_t page_size_;
  FlatMap<Run> whole_;
  std::vector<Run> parts_;  // runs of less than a page: only ends of ranges of keys, so there are few
};

void t22_distinct_slots(Context& c, std::int64_t r, const Run& run, const Run& earlier) {
  if (c.report.counted(T22)) return;
  const std::int64_t first = lengths_of(c, r).key_begin;
  const auto positions = [&](const Run& of) {
    const std::int64_t begin = first + of.key;
    return of.count == 1 ? formatted("position {}", begin) : formatted("positions {} to {}", begin, begin + of.count - 1);
  };
  c.report.add(T22, "block_table", {r, run.key / c.sizes.page_size}, formatted("page {} at {}", run.page, positions(run)),
               formatted("slots that the request sees once: block_table[{}][{}] has that page at {}", r,
                         earlier.key / c.sizes.page_size, positions(earlier)),
               run.page == 0 ? "are the entries behind those in use zeros?" : "");
}

}  // namespace

void apply_distinct_slot_rules(Context& c) {
  if (!c.pages_sound) return;
  for (std::int64_t r = 0; r < c.sizes.num_reqs; ++r) {
    const Lengths lengths = lengths_of(c, r);
    if (!lengths.sound) continue;
    const semantics::VisiblePages pages = visible_pages(c, lengths);
    const auto [first, end] = pages.columns(pages.keys.hull());
    const std::int64_t columns = std::min(end, c.batch.block_table.shape[1]) - first;
    if (columns < 2) continue;
    // A broadcast table claims columns that nobody stores.
    const bool broadcast = semantics::index_row(c.batch.block_table, r).stride == 0;
    SeenRuns seen(broadcast ? 1 : columns, c.sizes.page_size);
    for_each_visible_run(c, r, [&](std::int64_t page, std::int64_t offset, std::int64_t count, std::int64_t key) {
      const Run run{page, offset, count, key};
      if (const Run* earlier = seen.add(run)) t22_distinct_slots(c, r, run, *earlier);
    });
  }
}

}  // namespace quire::contract
