// SPDX-License-Identifier: Apache-2.0
// See ranks.h: the truth, and what ranks write under a model.
#include "faults/ranks.h"

#include <algorithm>
#include <cmath>

#include "batch/caught.h"
#include "quire/contract.hpp"
#include "quire/rank_faults.hpp"
#include "text/formatted.h"

namespace quire::faults_detail {

Shares shares_of(std::span<const double> lse, std::span<const double> weights, double factor) {
  Shares s{std::vector<double>(lse.size(), 0.0), kNegInf};
  const auto weight = [&](std::size_t k) { return weights.empty() ? 1.0 : weights[k]; };
  double max = kNegInf, sum = 0;
  for (std::size_t k = 0; k < lse.size(); ++k)
    if (weight(k) != 0) max = std::max(max, lse[k]);
  if (max == kNegInf) return s;
  for (std::size_t k = 0; k < lse.size(); ++k)
    sum += s.of[k] = weight(k) == 0 || lse[k] == kNegInf ? 0 : weight(k) * std::exp(factor * (lse[k] - max));
  for (double& share : s.of) share /= sum;
  s.lse = max + std::log(sum) / factor;
  return s;
}

std::int64_t Deal::owner(std::int64_t position) const {
  if (span > 0) return std::min(position / span, world - 1);
  return position / interleave % world;
}

std::int64_t Deal::index(std::int64_t position) const {
  if (span > 0) return position - owner(position) * span;
  const std::int64_t rounds = position / interleave / world;
  return rounds * interleave + position % interleave;
}

std::int64_t Deal::held(std::int64_t rank, std::int64_t length) const {
  if (span > 0) {
    const std::int64_t begin = rank * span, end = rank + 1 == world ? length : std::min(begin + span, length);
    return std::max<std::int64_t>(end - begin, 0);
  }
  const std::int64_t runs = length / interleave, whole = runs / world + (runs % world > rank ? 1 : 0);
  return whole * interleave + (runs % world == rank ? length % interleave : 0);
}

RankModel::RankModel(const Facts& truth, const Deal& how) : facts(&truth), deal(how) {
  keys = [how](const Row&, std::int64_t rank, std::vector<Key>& list) {
    std::erase_if(list, [&](const Key& key) { return how.owner(key.position) != rank; });
  };
  sink = [](std::int64_t rank) { return rank == 0; };
  shares = [](std::span<const double> lse) { return shares_of(lse); };
  head = [](std::int64_t h) { return h; };
}

RowResult part_of_rank(const RankModel& model, std::int64_t rank, const RowHead& at) {
  Model own(*model.facts);
  own.keys = [&model, rank, before = own.keys](const Row& row, std::vector<Key>& list) {
    before(row, list);
    model.keys(row, rank, list);
  };
  if (!model.sink(rank)) own.sink = [](const Row&) { return kNegInf; };
  if (model.distance_from)
    own.bias = [&model, rank](const Row& row, std::int64_t position) {
      return slope_of(*model.facts, row.query_head) * static_cast<double>(model.distance_from(row, rank, position) - row.q_pos);
    };
  return evaluate(own, std::span(&at, 1)).front();
}

RowResult merged_row(const RankModel& model, const RowHead& at) {
  const RowHead from{at.token, model.head(at.head)};
  std::vector<RowResult> parts;
  std::vector<double> lse;
  for (std::int64_t rank = 0; rank < model.deal.world; ++rank) {
    parts.push_back(part_of_rank(model, rank, from));
    lse.push_back(parts.back().lse);
  }
  const Shares shares = model.shares(lse);
  RowResult result{.written = true, .out = std::vector<double>(parts.front().out.size(), 0.0), .lse = shares.lse};
  for (std::size_t k = 0; k < parts.size(); ++k)
    for (std::size_t d = 0; shares.of[k] != 0 && d < result.out.size(); ++d) result.out[d] += shares.of[k] * parts[k].out[d];
  return result;
}

}  // namespace quire::faults_detail

namespace quire {
namespace {

using faults_detail::RankFault;

const RankFault* find_rank_fault(std::string_view id) {
  for (const RankFault& fault : faults_detail::rank_fault_catalogue())
    if (fault.info.id == id) return &fault;
  return nullptr;
}

Status plant_rank_fault(faults_detail::RankModel& model, std::string_view id) {
  if (id.empty()) return {};
  const RankFault* found = find_rank_fault(id);
  if (found == nullptr)
    return {Code::invalid_argument, formatted("no fault of ranks is called '{}'; rank_faults() lists them", id)};
  const std::vector<faults_detail::RankSuspect> suspects = found->suspects(*model.facts, model.deal);
  if (suspects.empty()) return {Code::unsupported, formatted("{} cannot show here: {}", id, found->why_not)};
  suspects.front().plant(model);
  return {};
}

}  // namespace

const std::vector<FaultInfo>& rank_faults() {
  static const std::vector<FaultInfo> list = [] {
    std::vector<FaultInfo> all;
    for (const RankFault& fault : faults_detail::rank_fault_catalogue()) all.push_back(fault.info);
    return all;
  }();
  return list;
}

Status attend_with_rank_fault(const Batch& batch, const KVCache& cache, const Options& options, const ContextShard& shard,
                              std::string_view id) try {
  ContextShard any = shard;
  any.rank = 0;
  if (const Findings findings = check_shard(any); !findings.ok()) return findings.status();
  if (const Findings findings = check(batch, cache, options, Depth::tables); !findings.ok()) return findings.status();
  const faults_detail::Facts facts(batch, cache, options);
  if (facts.has_masks || batch.output_scale.present())
    return {Code::unsupported,
            "ranks take causal requests, whose rows stand at the end of their keys, and outputs without a scale"};
  faults_detail::RankModel model(facts, {.world = shard.world, .interleave = shard.interleave, .span = shard.span});
  if (Status s = plant_rank_fault(model, id); !s.ok()) return s;
  for (std::int64_t t = 0; t < facts.num_tokens; ++t)
    for (std::int64_t h = 0; h < facts.num_q_heads; ++h) store_row(batch, {t, h}, merged_row(model, {t, h}));
  return {};
} catch (...) {
  return batch::caught("attend_with_rank_fault");
}

}  // namespace quire
