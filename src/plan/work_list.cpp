// Work items: (request, KV head, query tile), split over keys where one item would keep a thread busy alone.
#include "plan/work_list.h"

#include <algorithm>

#include "semantics/visible_range.h"

namespace quire::plan_detail {
namespace {

// Score rows (query rows x heads of the group) per tile: enough to amortise converting a K/V tile to f32, small enough that
// Q, the accumulators and the tile stay in 1 MiB of L2 up to head_dim 256.
constexpr std::int64_t kScoreRows = 128;
constexpr std::int64_t kTileKv = 64;
constexpr std::int64_t kSplitKeys = 1024;  // a multiple of kTileKv
// Up to here reading the cache in place wins: its value vectors are converted once per 4 rows instead of once.
constexpr std::int64_t kDirectRows = 8;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Keys that any row of the tile sees.
semantics::KeyRange keys_of(const Problem& problem, std::int64_t req, std::int64_t row_begin, std::int64_t row_end) {
  const std::int64_t context = problem.reqs[static_cast<std::size_t>(req)].context_len;
  return semantics::visible_range(context + row_begin, context + row_end - 1, problem.sliding_window.value_or(0));
}

std::int64_t cost(const WorkItem& item) { return (item.row_end - item.row_begin) * (item.key_end - item.key_begin); }

/// Appends one item for each segment that the tile's keys touch, and the merge that folds them.
void push_split(Plan& plan, const WorkItem& whole) {
  MergeItem merge{whole.req, whole.kv_head, whole.row_begin, whole.row_end, plan.num_partials, 0};
  const std::int64_t rows = (whole.row_end - whole.row_begin) * plan.problem.group();
  for (std::int64_t begin = whole.key_begin; begin < whole.key_end;) {
    const std::int64_t end = std::min(whole.key_end, (begin / plan.split_keys + 1) * plan.split_keys);
    WorkItem part = whole;
    part.key_begin = begin;
    part.key_end = end;
    part.partial = plan.num_partials;
    plan.work.push_back(part);
    plan.num_partials += rows;
    ++merge.num_partials;
    begin = end;
  }
  plan.merges.push_back(merge);
}

std::vector<WorkItem> whole_items(const Plan& plan) {
  std::vector<WorkItem> items;
  for (std::size_t r = 0; r < plan.problem.reqs.size(); ++r) {
    const std::int64_t rows = plan.problem.reqs[r].query_len;
    for (std::int64_t row = 0; row < rows; row += plan.tile_q) {
      const std::int64_t row_end = std::min(rows, row + plan.tile_q);
      const semantics::KeyRange keys = keys_of(plan.problem, static_cast<std::int64_t>(r), row, row_end);
      for (std::int64_t head = 0; head < plan.problem.num_kv_heads; ++head)
        items.push_back({static_cast<std::int32_t>(r), static_cast<std::int32_t>(head), static_cast<std::int32_t>(row),
                         static_cast<std::int32_t>(row_end), keys.begin, keys.end, -1});
    }
  }
  return items;
}

}  // namespace

void cut_work(Plan& plan) {
  const Problem& p = plan.problem;
  plan.tile_kv = kTileKv;
  plan.split_keys = kSplitKeys;
  // Both paths are deterministic; a row's bits may differ between them, and which one it takes depends on its chunk.
  plan.direct_rows = plan.batch_invariant ? 0 : kDirectRows;
  plan.tile_q = std::max<std::int64_t>(1, kScoreRows / p.group());

  const std::vector<WorkItem> items = whole_items(plan);
  std::int64_t total = 0;
  for (const WorkItem& item : items) total += cost(item);
  // An item longer than a quarter of a thread's fair share is split, so that the last items to finish are short.
  const std::int64_t fair_share = ceil_div(total, static_cast<std::int64_t>(plan.num_threads) * 4);
  for (const WorkItem& item : items) {
    const bool one_segment = item.key_begin / plan.split_keys == (item.key_end - 1) / plan.split_keys;
    if (plan.num_threads == 1 || one_segment || cost(item) <= fair_share)
      plan.work.push_back(item);
    else
      push_split(plan, item);
  }
  std::stable_sort(plan.work.begin(), plan.work.end(), [](const WorkItem& a, const WorkItem& b) { return cost(a) > cost(b); });

  for (std::size_t r = 0; r < p.reqs.size(); ++r) {
    if (p.reqs[r].query_len == 0) continue;
    const semantics::KeyRange keys = keys_of(p, static_cast<std::int64_t>(r), 0, p.reqs[r].query_len);
    plan.kv_bytes += 2 * (keys.end - keys.begin) * p.num_kv_heads * p.head_dim * itemsize(p.kv_dtype);
  }
  plan.flops =
      4.0 * static_cast<double>(p.head_dim) * static_cast<double>(p.num_q_heads) * static_cast<double>(p.visible_pairs());
}

}  // namespace quire::plan_detail
