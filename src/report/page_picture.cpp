// SPDX-License-Identifier: Apache-2.0
// Page map: for every physical page of the cache, its readers, its number of filled slots, and whether its contents agree.
//
// Contents are judged by a few elements of KV head 0 in each slot: a slot that was never written holds zeros (a fresh allocation)
// or NaN (poison) throughout, so that a few elements are enough.
//
// Behind the page map stands the table of rows per kernel, beside the requests of the rows; a run of equal requests takes one
// line.
#include <algorithm>
#include <cmath>

#include "report/lengths.h"
#include "report/pictures.h"
#include "text/formatted.h"

namespace quire::report {
namespace {

using json = nlohmann::ordered_json;

/// Best first: a cell that stands for several pages shows the worst of them.
enum class State : int { clean = 0, recycled, hidden, owned, shared, unwritten };
constexpr const char* kStates[] = {"clean", "recycled", "hidden", "owned", "shared", "unwritten"};
constexpr std::size_t kNumStates = std::size(kStates);
constexpr std::size_t kListedOwners = 4;
constexpr std::int64_t kElementsPerSlot = 8;
constexpr std::int64_t kEnoughElements = 4;  ///< elements per slot from which zeros cannot be chance
constexpr std::int64_t kSlotsOfUnowned = 4;

struct Page {
  std::vector<std::array<std::int64_t, 2>> owners;  ///< (request, logical page), the first few
  std::int64_t num_owners = 0;
  std::int64_t filled = 0;               ///< slots below cached_len of some owner
  std::int64_t read_from = 0, read = 0;  ///< slots [read_from, read) are read by some owner; read = 0: none
  std::int64_t unwritten = 0;
  State state = State::clean;
};

/// Reads the first dims of KV head 0 of a slot, in any layout.
class Slots {
 public:
  explicit Slots(const KVCache& cache) : cache_(cache), dims_(std::min({head_dim(cache), v_head_dim(cache), kElementsPerSlot})) {}

  /// Whether the slot looks as if no token was ever stored there.
  bool blank(std::int64_t page, std::int64_t slot) const {
    const bool k = blank_side(cache_.k, page, slot, /*is_key=*/true), v = blank_side(cache_.v, page, slot, /*is_key=*/false);
    return dims_ >= kEnoughElements ? k || v : k && v;
  }

 private:
  bool blank_side(const Tensor& t, std::int64_t page, std::int64_t slot, bool is_key) const {
    std::int64_t zeros = 0, nans = 0;
    for (std::int64_t d = 0; d < dims_; ++d) {
      const float value = semantics::load(t.data, t.dtype, page * t.stride[0] + offset(t, slot, d, is_key));
      zeros += value == 0 ? 1 : 0;
      nans += std::isnan(value) ? 1 : 0;
    }
    return zeros == dims_ || nans == dims_;
  }

  std::int64_t offset(const Tensor& t, std::int64_t slot, std::int64_t d, bool is_key) const {
    switch (cache_.layout) {
      case CacheLayout::nhd: return slot * t.stride[1] + d * t.stride[3];
      case CacheLayout::hnd: return slot * t.stride[2] + d * t.stride[3];
      case CacheLayout::packed: break;
    }
    if (!is_key) return d * t.stride[2] + slot * t.stride[3];
    const std::int64_t x = t.shape[4];
    return d / x * t.stride[2] + slot * t.stride[3] + d % x * t.stride[4];
  }

  const KVCache& cache_;
  std::int64_t dims_;
};

/// The first position that some row of request r sees; seq_len if it has no rows.
std::int64_t first_visible(const Lengths& lengths, std::int64_t r, const Options& options) {
  if (lengths.query_len(r) <= 0) return lengths.seq_len(r);
  if (!options.sliding_window) return 0;
  return std::max<std::int64_t>(0, lengths.first_position(r) - std::min(*options.sliding_window, 4 * kLongest) + 1);
}

/// Enters the pages of request r; returns how many of its entries point outside the cache.
std::int64_t enter_request(std::vector<Page>& pages, const Batch& batch, const Lengths& lengths, std::int64_t r,
                           std::int64_t page_size, const Options& options) {
  const Tensor& table = batch.block_table;
  const std::int64_t first = first_visible(lengths, r, options), cached = lengths.cached_len(r);
  std::int64_t outside = 0;
  for (std::int64_t logical = 0; logical * page_size < cached && logical < table.shape[1]; ++logical) {
    const std::int64_t id = semantics::index_at(table, r, logical);
    if (id < 0 || id >= static_cast<std::int64_t>(pages.size())) {
      ++outside;
      continue;
    }
    Page& page = pages[static_cast<std::size_t>(id)];
    if (page.owners.size() < kListedOwners) page.owners.push_back({r, logical});
    ++page.num_owners;
    const std::int64_t end = std::min(page_size, cached - logical * page_size);
    const std::int64_t begin = std::max<std::int64_t>(0, first - logical * page_size);
    page.filled = std::max(page.filled, end);
    if (begin >= end) continue;
    page.read_from = page.read == 0 ? begin : std::min(page.read_from, begin);
    page.read = std::max(page.read, end);
  }
  return outside;
}

/// A few slots spread over a page without readers are enough: an earlier owner filled the page from its start.
bool holds_something(const Slots& slots, std::int64_t id, std::int64_t page_size) {
  const std::int64_t step = bin_size(page_size, kSlotsOfUnowned);
  for (std::int64_t slot = 0; slot < page_size; slot += step)
    if (!slots.blank(id, slot)) return true;
  return false;
}

void judge(Page& page, std::int64_t id, const Slots& slots, std::int64_t page_size) {
  for (std::int64_t slot = page.read_from; slot < page.read; ++slot) page.unwritten += slots.blank(id, slot) ? 1 : 0;
  if (page.num_owners == 0) {
    page.state = holds_something(slots, id, page_size) ? State::recycled : State::clean;
  } else if (page.unwritten > 0) {
    page.state = State::unwritten;
  } else if (page.read == 0) {
    page.state = State::hidden;
  } else {
    page.state = page.num_owners > 1 ? State::shared : State::owned;
  }
}

/// A cell of the picture for pages [first, last): state of the worst page, sums of the counts.
json cell(const std::vector<Page>& pages, std::int64_t first, std::int64_t last) {
  std::int64_t worst = first, filled = 0, unwritten = 0;
  for (std::int64_t id = first; id < last; ++id) {
    const Page& page = pages[static_cast<std::size_t>(id)];
    filled += page.filled;
    unwritten += page.unwritten;
    if (page.state > pages[static_cast<std::size_t>(worst)].state) worst = id;
  }
  const Page& page = pages[static_cast<std::size_t>(worst)];
  json owners = json::array();
  for (const auto& owner : page.owners) owners.push_back({owner[0], owner[1]});
  return json::array({worst, static_cast<int>(page.state), filled, unwritten, page.num_owners, std::move(owners)});
}

/// K and V are in host memory and have the same sizes, none of them 0.
bool readable(const KVCache& cache) {
  const bool packed = cache.layout == CacheLayout::packed;
  const Tensor &k = cache.k, &v = cache.v;
  if (k.rank != (packed ? 5 : 4) || v.rank != 4 || k.memory != Memory::cpu || v.memory != Memory::cpu) return false;
  if (!is_floating(k.dtype) || !is_floating(v.dtype) || k.num_elements() == 0 || k.num_elements() != v.num_elements())
    return false;
  if (packed) return k.shape[0] == v.shape[0] && k.shape[1] == v.shape[1] && k.shape[3] == v.shape[3];
  return k.shape == v.shape;
}

bool drawable(const Batch& batch, const KVCache& cache) {
  return readable(cache) && has_lengths(batch) && is_index(batch.block_table, 2) &&
         batch.block_table.shape[0] == batch.seq_lens.shape[0];
}

}  // namespace

json page_picture(const Batch& batch, const KVCache& cache, const Options& options) {
  if (!drawable(batch, cache)) return nullptr;
  const Lengths lengths(batch);
  const Slots slots(cache);
  const std::int64_t count = num_pages(cache), size = page_size(cache), bin = bin_size(count, kMaxPages);
  std::vector<Page> pages(static_cast<std::size_t>(count));
  std::int64_t outside = 0;
  for (std::int64_t r = 0; r < lengths.num_reqs(); ++r) outside += enter_request(pages, batch, lengths, r, size, options);
  std::array<std::int64_t, kNumStates> counts{};
  for (std::int64_t id = 0; id < count; ++id) {
    Page& page = pages[static_cast<std::size_t>(id)];
    judge(page, id, slots, size);
    ++counts[static_cast<std::size_t>(page.state)];
  }
  json picture = {{"page_size", size},
                  {"num_pages", count},
                  {"bin", bin},
                  {"outside", outside},
                  {"columns", {"page", "state", "filled", "unwritten", "num_owners", "owners"}},
                  {"states", kStates},
                  {"cells", json::array()},
                  {"counts", json::object()},
                  {"text", ""}};
  for (std::int64_t first = 0; first < count; first += bin)
    picture["cells"].push_back(cell(pages, first, std::min(first + bin, count)));
  for (std::size_t s = 0; s < kNumStates; ++s) picture["counts"][kStates[s]] = counts[s];
  if (bin > 1) picture["text"] = formatted("{} pages per cell; the worst of them is shown", bin);
  return picture;
}

namespace {

using json = nlohmann::ordered_json;

json run_of(const Problem& problem, std::size_t first, std::size_t count) {
  const Request& request = problem.reqs[first];
  return {{"req", first},
          {"count", count},
          {"query_len", request.query_len},
          {"context_len", request.context_len},
          {"cached_len", request.cached_len},
          {"rows", static_cast<std::int64_t>(count) * request.query_len * problem.num_q_heads}};
}

}  // namespace

json rows_picture(const Problem& problem, const std::string& kernel, std::span<const RowCount> counts) {
  json picture = {{"kernel", kernel}, {"kernels", json::array()}, {"requests", json::array()}, {"text", ""}};
  picture["expected"] = problem.num_tokens() * problem.num_q_heads;
  for (const RowCount& count : counts) picture["kernels"].push_back({{"kernel", count.kernel}, {"rows", count.rows}});
  std::size_t runs = 0;
  for (std::size_t first = 0, next = 0; first < problem.reqs.size(); first = next, ++runs) {
    while (next < problem.reqs.size() && problem.reqs[next] == problem.reqs[first]) ++next;
    if (static_cast<std::int64_t>(runs) < kMaxServed) picture["requests"].push_back(run_of(problem, first, next - first));
  }
  if (static_cast<std::int64_t>(runs) > kMaxServed)
    picture["text"] = formatted("the first {} of {} runs of equal requests", kMaxServed, runs);
  return picture;
}

}  // namespace quire::report
