// SPDX-License-Identifier: Apache-2.0
// Levels of a cascade as ordinary batches, and their index arrays.
#include "cascade/levels.h"
#include "semantics/page_walk.h"

#include <algorithm>
#include <cstring>

namespace quire::cascade {
namespace {

std::int32_t narrow(std::int64_t value) { return static_cast<std::int32_t>(value); }

/// Requests of one run each, and requests without keys for the rows between them.
CascadeLevel level_of_runs(const Problem& problem, std::span<const SharedRun> runs, const HostTable& table) {
  CascadeLevel level;
  for (const SharedRun& run : runs) level.columns = std::max(level.columns, run.num_pages());
  level.query_start_loc.push_back(0);
  std::int64_t row = 0, request = 0;
  const auto add = [&](std::int64_t req_end, const SharedRun* run) {
    for (; request < req_end; ++request) row += problem.reqs[static_cast<std::size_t>(request)].query_len;
    if (run == nullptr && row == level.query_start_loc.back()) return;
    level.query_start_loc.push_back(narrow(row));
    level.seq_lens.push_back(run != nullptr ? narrow(run->num_pages() * problem.page_size) : 0);
    const std::size_t first = level.block_table.size();
    level.block_table.resize(first + static_cast<std::size_t>(level.columns), -1);
    if (run != nullptr)
      std::copy_n(table.pages.begin() + run->req_begin * table.columns + run->page_begin, run->num_pages(),
                  level.block_table.begin() + static_cast<std::ptrdiff_t>(first));
  };
  for (const SharedRun& run : runs) {
    add(run.req_begin, nullptr);
    add(run.req_end, &run);
  }
  add(static_cast<std::int64_t>(problem.reqs.size()), nullptr);
  return level;
}

/// The batch without its first shared.pages[r] pages. Positions keep their differences, which is all that masks depend on: where
/// q_begin is absent, rows stay at the end of their keys and key_begin is not needed.
CascadeLevel level_of_own_keys(const Problem& problem, const SharedPrefixes& shared, const HostTable& table) {
  CascadeLevel level;
  level.own = true;
  bool all_cached = true;
  const std::size_t count = problem.reqs.size();
  std::vector<std::int64_t> pages(count);
  level.query_start_loc.push_back(0);
  for (std::size_t r = 0; r < count; ++r) {
    const Request& q = problem.reqs[r];
    const std::int64_t skipped = shared.pages[r] * problem.page_size, cached = q.cached_len - skipped;
    level.query_start_loc.push_back(narrow(level.query_start_loc.back() + q.query_len));
    level.seq_lens.push_back(narrow(q.seq_len() - skipped));
    level.cached_lens.push_back(narrow(cached));
    all_cached = all_cached && q.cached_len == q.seq_len();
    if (problem.has_causal) level.causal.push_back(q.causal ? 1 : 0);
    if (problem.has_q_begin) level.q_begin.push_back(narrow(q.q_begin()));
    if (problem.has_q_begin) level.key_begin.push_back(narrow(q.key_begin + skipped));
    pages[r] = semantics::columns_held(cached, problem.page_size, table.columns - shared.pages[r]);
    level.columns = std::max(level.columns, pages[r]);
  }
  if (all_cached) level.cached_lens.clear();
  level.block_table.assign(count * static_cast<std::size_t>(level.columns), -1);
  for (std::size_t r = 0; r < count; ++r)
    std::copy_n(table.pages.begin() + static_cast<std::ptrdiff_t>(r) * table.columns + shared.pages[r], pages[r],
                level.block_table.begin() + static_cast<std::ptrdiff_t>(r) * level.columns);
  return level;
}

/// A vector of a level as a tensor of a batch.
struct Index {
  const void* data;
  std::size_t bytes;
  DType dtype;
  std::int64_t rows;  ///< 0 = absent
  std::int64_t columns;
  Tensor Batch::* field;
};

std::array<Index, 7> index_of(const CascadeLevel& level) {
  const auto of = [](const auto& vector, DType dtype, Tensor Batch::* field) {
    return Index{vector.data(), vector.size() * sizeof(vector[0]), dtype, static_cast<std::int64_t>(vector.size()), 0, field};
  };
  Index table = of(level.block_table, DType::i32, &Batch::block_table);
  table.rows = static_cast<std::int64_t>(level.seq_lens.size());
  table.columns = level.columns;
  // The lengths lie one after the other, as kernels like them.
  return {of(level.query_start_loc, DType::i32, &Batch::query_start_loc),
          of(level.seq_lens, DType::i32, &Batch::seq_lens),
          of(level.cached_lens, DType::i32, &Batch::cached_lens),
          of(level.q_begin, DType::i32, &Batch::q_begin),
          of(level.key_begin, DType::i32, &Batch::key_begin),
          table,
          of(level.causal, DType::u8, &Batch::causal)};
}

std::size_t aligned(std::size_t bytes) { return semantics::round_up(bytes, kIndexAlignment); }

}  // namespace

std::vector<CascadeLevel> make_levels(const Problem& problem, const SharedPrefixes& shared, const HostTable& table) {
  std::vector<CascadeLevel> levels;
  for (const std::vector<SharedRun>& runs : shared.levels) levels.push_back(level_of_runs(problem, runs, table));
  levels.push_back(level_of_own_keys(problem, shared, table));
  return levels;
}

std::size_t index_bytes(const CascadeLevel& level) noexcept {
  std::size_t bytes = 0;
  for (const Index& index : index_of(level)) bytes += aligned(index.bytes);
  return bytes;
}

void copy_index(const CascadeLevel& level, std::byte* to) noexcept {
  for (const Index& index : index_of(level)) {
    if (index.bytes > 0) std::memcpy(to, index.data, index.bytes);
    to += aligned(index.bytes);
  }
}

Batch batch_of(const CascadeLevel& level, const Batch& batch, const IndexPlace& place, const Tensor& out, const Tensor& lse) {
  Batch own;
  own.padding = batch.padding == Padding::zero ? Padding::zero : Padding::refused;
  const std::int64_t rows = out.shape[0];
  own.query = rows_of(batch.query, rows);
  own.q_scale = batch.q_scale;
  own.output = out;
  own.lse = lse;
  if (level.own) own.key = rows_of(batch.key, rows), own.value = rows_of(batch.value, rows);
  const std::byte* at = place.base;
  for (const Index& index : index_of(level)) {
    if (index.rows > 0 || index.field == &Batch::block_table || index.field == &Batch::seq_lens) {
      void* const data = const_cast<void*>(place.base != nullptr ? static_cast<const void*>(at) : index.data);
      Tensor& t = own.*index.field;
      t = index.field == &Batch::block_table ? Tensor::contiguous(data, index.dtype, index.rows, index.columns)
                                             : Tensor::contiguous(data, index.dtype, index.rows);
      t.memory = place.memory;
    }
    if (place.base != nullptr) at += aligned(index.bytes);
  }
  return own;
}

Options options_of(const CascadeLevel& level, const Options& options) {
  if (level.own) return options;
  return {.softmax_scale = options.softmax_scale, .logits_soft_cap = options.logits_soft_cap, .causal = false};
}

Tensor rows_of(Tensor t, std::int64_t rows) noexcept {
  if (t.present() && t.rank > 0) t.shape[0] = rows;
  return t;
}

}  // namespace quire::cascade
