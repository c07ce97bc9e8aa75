// SPDX-License-Identifier: Apache-2.0
// Shared prefixes: runs of equal pages, and whether they pay.
//
// Common leading pages of neighbours say all: a run of requests has in common what its poorest pair of neighbours has. The tree
// is cut from the top: the pages that all requests of a stretch share, then the stretches between its poorest pairs.
#include <algorithm>

#include "quire/cascade.hpp"
#include "semantics/ceil_div.h"
#include "text/formatted.h"

namespace quire {
namespace {

constexpr std::int64_t kAll = std::int64_t{1} << 42;  // number of keys above any request's

/// Bytes of a key and its value, of all KV heads.
double key_bytes(const Problem& p) { return static_cast<double>(p.num_kv_heads * p.kv_bytes()); }

/// Bytes of a row's partial result, written and read, in f32.
double partial_bytes(const Problem& p) { return static_cast<double>(2 * p.num_q_heads * (p.out_dim() * 4 + 4)); }

double megabytes(double bytes) { return bytes / 1e6; }

class Finder {
 public:
  Finder(const Problem& problem, std::span<const std::int32_t> table, std::int64_t columns, const SharingCosts& costs)
      : p_(problem), table_(table), columns_(columns), costs_(costs) {}

  SharedPrefixes find() {
    const auto count = static_cast<std::int64_t>(p_.reqs.size());
    made_.pages.assign(p_.reqs.size(), 0);
    for (const Request& r : p_.reqs)
      made_.plain_bytes +=
          static_cast<double>(semantics::ceil_div(r.query_len * p_.group(), costs_.tile_rows) * r.seq_len()) * key_bytes(p_);
    common_.reserve(p_.reqs.size());
    for (std::int64_t r = 0; r + 1 < count; ++r) common_.push_back(common_pages(r));
    std::vector<Stretch> open;
    if (count > 1) open.push_back({0, count, 0, 0});
    while (!open.empty()) {
      const Stretch stretch = open.back();
      open.pop_back();
      cut(stretch, open);
    }
    for (std::vector<SharedRun>& level : made_.levels)
      std::sort(level.begin(), level.end(), [](const SharedRun& a, const SharedRun& b) { return a.req_begin < b.req_begin; });
    conclude();
    return std::move(made_);
  }

 private:
  /// Requests [begin, end), at least two, whose first `page` pages are held by runs of the levels before `level`.
  struct Stretch {
    std::int64_t begin, end, page;
    std::size_t level;
  };

  std::int64_t common_pages(std::int64_t r) const {
    const std::int64_t most =
        std::min({most_shared_keys(p_, r) / p_.page_size, most_shared_keys(p_, r + 1) / p_.page_size, columns_});
    const auto first = table_.begin() + r * columns_;
    return std::mismatch(first, first + most, first + columns_).first - first;
  }

  double saved(const Stretch& s, std::int64_t page_end) const {
    std::int64_t alone = 0, rows = 0;
    for (std::int64_t r = s.begin; r < s.end; ++r) {
      const std::int64_t mine = p_.reqs[static_cast<std::size_t>(r)].query_len * p_.group();
      alone += semantics::ceil_div(mine, costs_.tile_rows);
      rows += mine;
    }
    if (rows < costs_.least_rows) return 0.0;
    return static_cast<double>((alone - semantics::ceil_div(rows, costs_.tile_rows)) * (page_end - s.page) * p_.page_size) *
           key_bytes(p_);
  }

  double added(const Stretch& s) const {
    std::int64_t rows = 0;
    for (std::int64_t r = s.begin; r < s.end; ++r) rows += p_.reqs[static_cast<std::size_t>(r)].query_len;
    return static_cast<double>(rows) * partial_bytes(p_);
  }

  void cut(const Stretch& s, std::vector<Stretch>& open) {
    const auto first = common_.begin() + s.begin, last = common_.begin() + s.end - 1;
    const std::int64_t common = *std::min_element(first, last);
    Stretch below = s;
    if (common > s.page) {
      const double gain = saved(s, common), price = added(s);
      if (costs_.always || gain > price) {
        if (made_.levels.size() <= s.level) made_.levels.resize(s.level + 1);
        made_.levels[s.level].push_back({s.begin, s.end, s.page, common});
        std::fill(made_.pages.begin() + s.begin, made_.pages.begin() + s.end, common);
        made_.saved_bytes += gain;
        made_.added_bytes += price;
        below.page = common;
        ++below.level;
      }
    }
    if (below.level >= static_cast<std::size_t>(costs_.max_levels)) return;
    std::int64_t begin = s.begin;
    for (std::int64_t r = s.begin; r < s.end; ++r) {
      if (r + 1 < s.end && common_[static_cast<std::size_t>(r)] > common) continue;
      if (r > begin) open.push_back({begin, r + 1, below.page, below.level});
      begin = r + 1;
    }
  }

  std::string nothing_to_share() const {
    if (p_.reqs.size() < 2) return "nothing is shared: there is one request or none";
    if (p_.alibi) return "nothing is shared: ALiBi's bias depends on where a row stands";
    std::int64_t most = 0;
    for (const std::int64_t pages : common_) most = std::max(most, pages);
    if (most > 0)
      return formatted("nothing is shared: neighbours have up to {} pages in common, which costs more in merging than it saves",
                       most);
    return "nothing is shared: no two neighbours begin with the same full page whose every key all of their rows see";
  }

  /// Rows of all requests are merged, and every level is a call more.
  void conclude() {
    if (!made_.shares()) {
      made_.reason = nothing_to_share();
      return;
    }
    made_.added_bytes += static_cast<double>(p_.num_tokens()) * partial_bytes(p_) +
                         static_cast<double>((made_.levels.size() + 1) * static_cast<std::size_t>(costs_.level_bytes));
    const bool pays = made_.saved_bytes > made_.added_bytes;
    made_.reason = formatted("sharing {} {:.1f} of {:.1f} MB of keys and values, and adds {:.1f} MB of partial results and calls",
                             pays ? "saves" : "would save", megabytes(made_.saved_bytes), megabytes(made_.plain_bytes),
                             megabytes(made_.added_bytes));
    if (pays || costs_.always) return;
    made_.levels.clear();
    std::fill(made_.pages.begin(), made_.pages.end(), 0);
    made_.saved_bytes = made_.added_bytes = 0;
    made_.reason = "nothing is shared: " + made_.reason;
  }

  const Problem& p_;
  const std::span<const std::int32_t> table_;
  const std::int64_t columns_;
  const SharingCosts& costs_;
  std::vector<std::int64_t> common_;  ///< leading pages that r and r + 1 share
  SharedPrefixes made_;
};

}  // namespace

std::int64_t most_shared_keys(const Problem& problem, std::int64_t request) noexcept {
  const Request& r = problem.reqs[static_cast<std::size_t>(request)];
  if (problem.alibi || problem.has_shapes()) return 0;
  if (r.query_len == 0) return r.cached_len;
  const std::int64_t first = r.first_row(), last = first + r.query_len - 1;
  const std::int64_t before = problem.sliding_window ? *problem.sliding_window - 1 : kAll;
  const std::int64_t after = r.causal ? 0 : problem.window_right.value_or(kAll);
  if (last - before > 0) return 0;
  std::int64_t most = std::min(r.cached_len, first + after + 1);
  const bool at_end = r.causal && !problem.has_q_begin;
  if (at_end || r.cached_len < r.seq_len()) most = std::min(most, r.context_len);
  return std::max<std::int64_t>(most, 0);
}

SharingCosts sharing_costs(const Device& device) noexcept {
  // EPYC with AVX-512, 2026-11-25: 16 score rows over 1k shared keys took 0.94 to 1.02 of the time of plain decode, over 4k 0.81.
  if (device.backend == Backend::cpu) return {.least_rows = 16};
  // Tiles of cuda_sm90's prefill. H100, 2026-11-25 (bench/results/h100-cascade.json, 16 rows): a level and the merge take 36 us
  // that plain attention does not, in which it reads shared keys at 8.9 TB/s, because most of them are in L2.
  return {.tile_rows = 128, .level_bytes = 128 << 20};
}

SharedPrefixes find_shared_prefixes(const Problem& problem, std::span<const std::int32_t> block_table, std::int64_t columns,
                                    const SharingCosts& costs) {
  return Finder(problem, block_table, columns, costs).find();
}

std::string to_string(const SharedPrefixes& shared, const Problem& problem) {
  std::string text = shared.reason + "\n";
  for (std::size_t l = 0; l < shared.levels.size(); ++l)
    for (const SharedRun& run : shared.levels[l])
      text += formatted("level {}   requests {} to {} share pages {} to {}: {} keys\n", l, run.req_begin, run.req_end - 1,
                        run.page_begin, run.page_end - 1, run.num_pages() * problem.page_size);
  return text;
}

}  // namespace quire
