// SPDX-License-Identifier: Apache-2.0
// See over_ranks.h.
#include "verify/over_ranks.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>

#include "quire/attention.hpp"
#include "quire/rank_faults.hpp"
#include "semantics/index_tensor.h"
#include "text/formatted.h"
#include "verify/judge.h"

namespace quire::verify_detail {
namespace {

using semantics::index_tensor;
using semantics::indices_of;
using semantics::new_bytes;

/// Strides of (page, offset, head, dim) in a cache tensor; dims of packed K lie in chunks of x.
struct CacheStrides {
  std::int64_t page, offset, head, dim, chunk = 0, x = 0;
  std::int64_t at(std::int64_t p, std::int64_t o, std::int64_t h, std::int64_t d) const {
    const std::int64_t of_dim = x > 0 ? d / x * chunk + d % x * dim : d * dim;
    return p * page + o * offset + h * head + of_dim;
  }
};
CacheStrides strides_of(const KVCache& cache, const Tensor& t) {
  const auto& s = t.stride;
  if (cache.layout == CacheLayout::nhd) return {s[0], s[1], s[2], s[3]};
  if (cache.layout == CacheLayout::hnd) return {s[0], s[2], s[1], s[3]};
  if (t.rank == 5) return {s[0], s[3], s[1], s[4], s[2], t.shape[4]};
  return {s[0], s[3], s[1], s[2]};
}

/// The cache of one rank: as many pages as the whole one has, in another order, and NaN where the rank holds nothing.
Tensor empty_like(Case& owner, const Tensor& t) {
  Tensor copy = t;
  std::int64_t count = 1;
  for (int i = t.rank - 1; i >= 0; --i) {
    copy.stride[static_cast<std::size_t>(i)] = count;
    count *= t.shape[static_cast<std::size_t>(i)];
  }
  copy.data = new_bytes(owner, static_cast<std::size_t>(count * itemsize(t.dtype)));
  for (std::int64_t i = 0; i < count; ++i) semantics::store(copy.data, copy.dtype, i, std::numeric_limits<float>::quiet_NaN());
  return copy;
}

/// A rank's share of a case, with f32 memory for its partial result.
class RankCase {
 public:
  RankCase(const Case& whole, const ContextShard& shard, const Tensor& out, const Tensor& lse) : whole_(whole), shard_(shard) {
    own_.options = whole.options;
    if (shard.rank != 0) own_.options.sinks = Tensor{};
    own_.cache = whole.cache;
    own_.cache.k = empty_like(own_, whole.cache.k);
    own_.cache.v = empty_like(own_, whole.cache.v);
    own_.batch.query = whole.batch.query;
    own_.batch.q_scale = whole.batch.q_scale;
    own_.batch.output = out;
    own_.batch.lse = lse;
  }

  Result<Case> make() {
    const std::vector<std::int64_t> lengths = indices_of(whole_.batch.seq_lens);
    Result<LocalLengths> local =
        local_lengths(shard_, indices_of(whole_.batch.query_start_loc), lengths, whole_.options.sliding_window);
    if (!local.ok()) return local.status();
    const DType index = whole_.batch.query_start_loc.dtype;
    const std::vector<std::int64_t> table = move_keys(lengths);
    std::vector<std::int64_t> rows;
    for (const std::int64_t r : local->request)
      for (std::int64_t j = 0; j < columns_; ++j) rows.push_back(table[static_cast<std::size_t>(r * columns_ + j)]);
    own_.batch.query_start_loc = index_tensor(own_, index, local->query_start_loc);
    own_.batch.seq_lens = index_tensor(own_, index, local->seq_lens);
    own_.batch.block_table = index_tensor(own_, index, rows, columns_);
    std::byte* const flags = new_bytes(own_, local->causal.size());
    std::memcpy(flags, local->causal.data(), local->causal.size());
    own_.batch.causal = Tensor::contiguous(flags, DType::u8, static_cast<std::int64_t>(local->causal.size()));
    if (!local->q_begin.empty()) own_.batch.q_begin = index_tensor(own_, index, local->q_begin);
    if (!local->key_begin.empty()) own_.batch.key_begin = index_tensor(own_, index, local->key_begin);
    return std::move(own_);
  }

 private:
  /// Deals pages from the last one down, and copies the keys that the rank holds. Returns the table [requests, columns_].
  std::vector<std::int64_t> move_keys(const std::vector<std::int64_t>& lengths) {
    const std::int64_t size = page_size(whole_.cache);
    columns_ = whole_.batch.block_table.shape[1];
    std::vector<std::int64_t> table(lengths.size() * static_cast<std::size_t>(columns_), 2147480000);
    std::int64_t next = num_pages(whole_.cache);
    for (std::size_t r = 0; r < lengths.size(); ++r) {
      for (std::int64_t j = 0; j * size < shard_.local_length(lengths[r]); ++j)
        table[r * static_cast<std::size_t>(columns_) + static_cast<std::size_t>(j)] = --next;
      for (std::int64_t p = 0; p < lengths[r]; ++p)
        if (shard_.holds(p))
          copy_key(static_cast<std::int64_t>(r), p,
                   table[r * static_cast<std::size_t>(columns_) + static_cast<std::size_t>(shard_.local_index(p) / size)]);
    }
    return table;
  }

  void copy_key(std::int64_t request, std::int64_t position, std::int64_t to_page) {
    const std::int64_t size = page_size(whole_.cache), local = shard_.local_index(position);
    const std::int64_t from_page = semantics::index_at(whole_.batch.block_table, request, position / size);
    const std::pair<const Tensor*, const Tensor*> sides[] = {{&whole_.cache.k, &own_.cache.k}, {&whole_.cache.v, &own_.cache.v}};
    for (const auto& [from, to] : sides) {
      const CacheStrides a = strides_of(whole_.cache, *from), b = strides_of(own_.cache, *to);
      const std::int64_t bytes = itemsize(from->dtype);
      for (std::int64_t h = 0; h < num_kv_heads(whole_.cache); ++h)
        for (std::int64_t d = 0; d < whole_.batch.query.shape[2]; ++d)
          std::memcpy(static_cast<std::byte*>(to->data) + b.at(to_page, local % size, h, d) * bytes,
                      static_cast<const std::byte*>(from->data) + a.at(from_page, position % size, h, d) * bytes,
                      static_cast<std::size_t>(bytes));
    }
  }

  const Case& whole_;
  ContextShard shard_;
  Case own_;
  std::int64_t columns_ = 0;
};

/// The tensor's part k, without its first axis.
Tensor part_of(Tensor t, std::int64_t k) {
  t.data = static_cast<std::byte*>(t.data) + k * t.stride[0] * itemsize(t.dtype);
  --t.rank;
  std::copy(t.shape.begin() + 1, t.shape.end(), t.shape.begin());
  std::copy(t.stride.begin() + 1, t.stride.end(), t.stride.begin());
  return t;
}

Status attend_over_ranks(const AttendCase& attend, const Case& c, ContextShard shard, std::string& kernel) {
  const Tensor& q = c.batch.query;
  std::vector<float> outs(static_cast<std::size_t>(shard.world * q.num_elements()), std::numeric_limits<float>::quiet_NaN());
  std::vector<float> lses(static_cast<std::size_t>(shard.world * q.shape[0] * q.shape[1]),
                          std::numeric_limits<float>::quiet_NaN());
  const Tensor out =
      Tensor::contiguous(outs.data(), DType::f32, static_cast<std::int64_t>(shard.world), q.shape[0], q.shape[1], q.shape[2]);
  const Tensor lse = Tensor::contiguous(lses.data(), DType::f32, static_cast<std::int64_t>(shard.world), q.shape[0], q.shape[1]);
  for (shard.rank = 0; shard.rank < shard.world; ++shard.rank) {
    const Result<Case> own = RankCase(c, shard, part_of(out, shard.rank), part_of(lse, shard.rank)).make();
    if (!own.ok()) return own.status();
    if (Status s = attend(own.value(), kernel); !s.ok()) return {s.code(), formatted("rank {}: {}", shard.rank, s.message())};
  }
  return merge_many(out, lse, c.batch.output, c.batch.lse);
}

Target rank_mutant(const FaultInfo& fault, const ContextShard& shard) {
  Target t;
  t.name = fault.id;
  t.deterministic = false;  // another fp64 attention serves where it cannot show: equal values, not equal bits
  t.masks = true;
  t.attend = [id = fault.id, shard](const Case& c, std::string&) {
    const Status s = attend_with_rank_fault(c.batch, c.cache, c.options, shard, id);
    return s.code() == Code::unsupported ? attend_with_rank_fault(c.batch, c.cache, c.options, shard, "") : s;
  };
  return t;
}

/// Runs one mutant on one case, with zeros in memory that no kernel may read.
void plant_rank_mutant(const FaultInfo& fault, const PowerCase& c, Prepared& p, const std::set<std::string>& checks,
                       MutantResult& r) {
  const Target target = rank_mutant(fault, c.entry.shard);
  Judge judge(target, p, checks);
  judge.on_zeros();
  r.can_show = r.can_show || (c.asked && judge.moved_an_element());
  if (!judge.failed() || judge.refused()) return;
  const CaseResult result = judge.result();
  const CheckResult* const failed = failed_check(result.checks);
  if (failed == nullptr) return;
  r.killed = c.asked;
  r.check = failed->check;
  r.name = result.name;
  r.line = result.line;
  r.finding = formatted("{} ({})", failed->text, text_of(c.entry.shard));
}

}  // namespace

std::string text_of(const ContextShard& shard) {
  if (shard.world < 2) return {};
  if (shard.contiguous()) return formatted("over {} ranks, {} tokens each", shard.world, shard.span);
  return formatted("over {} ranks, interleaved by {}", shard.world, shard.interleave);
}

Target over_ranks(const Target& target, const ContextShard& shard) {
  if (shard.world < 2) return target;
  Target ranks = target;
  const auto wrap = [shard](AttendCase attend) -> AttendCase {
    return [attend = std::move(attend), shard](const Case& c, std::string& kernel) {
      return attend_over_ranks(attend, c, shard, kernel);
    };
  };
  ranks.attend = wrap(target.attend);
  for (auto& [name, attend] : ranks.variants) attend = wrap(attend);
  // Rows of a chunk fall into other segments than those of the whole, and parts are normalised before they meet (decision 24).
  ranks.batch_invariant = false;
  ranks.invariant = nullptr;
  return ranks;
}

std::vector<MutantResult> measure_rank_power(const std::vector<PowerCase>& cases, const PowerOptions& options) {
  std::vector<MutantResult> results;
  for (const FaultInfo& fault : rank_faults())
    results.push_back({.id = fault.id, .family = fault.family, .text = fault.text, .can_show = false});
  const std::set<std::string> checks = [&] {
    std::set<std::string> values;
    for (const char* const check : {"values", "lse", "rows"})
      if (options.asked.contains(check)) values.insert(check);
    return values;
  }();
  bool any = false;
  for (const PowerCase& c : cases) {
    if (c.entry.shard.world < 2) continue;
    if (std::all_of(results.begin(), results.end(), [](const MutantResult& r) { return r.killed; })) break;
    Result<Prepared> prepared = with_tolerance(prepare(c.entry), options.rounded_rows);
    if (!prepared.ok() || !poison(prepared.value(), PoisonKind::zero).ok()) continue;
    any = true;
    for (std::size_t i = 0; i < results.size(); ++i)
      if (!results[i].killed) plant_rank_mutant(rank_faults()[i], c, prepared.value(), checks, results[i]);
  }
  if (!any) results.clear();
  return results;
}

}  // namespace quire::verify_detail
