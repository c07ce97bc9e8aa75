// SPDX-License-Identifier: Apache-2.0
// Rules Q-D01 to Q-D07: shards of contexts and heads, what the ranks of a group say about one step, prompts over ranks.
#include <string>

#include "contract/report.h"
#include "contract/tensor_facts.h"
#include "quire/shards.hpp"
#include "text/formatted.h"

namespace quire {
namespace {

using contract::Report;
using enum contract::RuleId;

void d01_rank_in_world(Report& report, std::int64_t rank, std::int64_t world) {
  if (world < 1) return report.add(D01, "world", {}, formatted("{}", world), "at least 1");
  if (rank < 0 || rank >= world) report.add(D01, "rank", {}, formatted("{}", rank), formatted("in [0, {})", world));
}

void d02_runs(Report& report, const ContextShard& shard) {
  // A longer run than any request has would overflow where runs are multiplied by ranks.
  constexpr std::int64_t kMost = contract::kMaxExtent;
  if (shard.interleave < 1) report.add(D02, "interleave", {}, formatted("{}", shard.interleave), "at least 1");
  if (shard.interleave > kMost)
    report.add(D02, "interleave", {}, formatted("{}", shard.interleave), formatted("at most {}", kMost));
  if (shard.span < 0) report.add(D02, "span", {}, formatted("{}", shard.span), "at least 0 (0 = interleaved)");
  if (shard.span > kMost) report.add(D02, "span", {}, formatted("{}", shard.span), formatted("at most {}", kMost));
}

void d03_heads(Report& report, const HeadShard& s) {
  if (s.num_kv_heads < 1 || s.num_q_heads < 1 || s.num_q_heads % s.num_kv_heads != 0)
    return report.add(D03, "num_q_heads", {}, formatted("{}", s.num_q_heads),
                      formatted("a multiple of num_kv_heads = {}", s.num_kv_heads));
  if (s.num_kv_heads % s.world != 0 && s.world % s.num_kv_heads != 0)
    return report.add(D03, "world", {}, formatted("{}", s.world),
                      formatted("a divisor or a multiple of num_kv_heads = {}", s.num_kv_heads));
  if (s.num_q_heads % s.world != 0)
    report.add(D03, "world", {}, formatted("{}", s.world), formatted("a divisor of num_q_heads = {}", s.num_q_heads));
}

void d04_whole_pages(Report& report, const ContextShard& shard, std::int64_t page_size) {
  if (report.broken({D01, D02}) || (page_size > 0 && shard.run() % page_size == 0)) return;
  report.add(D04, shard.contiguous() ? "span" : "interleave", {}, formatted("{}", shard.run()),
             formatted("a multiple of page_size = {}", page_size));
}

void d05_ranks_agree(Report& report, std::span<const std::string> names, std::span<const std::int64_t> facts) {
  if (names.empty() ? !facts.empty() : facts.size() % names.size() != 0)
    return report.add(D05, "facts", {}, formatted("{} entries", facts.size()), formatted("{} of each rank", names.size()));
  for (std::size_t at = names.size(); at + names.size() <= facts.size(); at += names.size())
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (facts[at + i] == facts[i]) continue;
      const auto rank = static_cast<std::int64_t>(at / names.size());
      report.add(D05, names[i], {}, formatted("{} on rank {}", facts[at + i], rank), formatted("{} as on rank 0", facts[i]));
    }
}

void d06_slots(Report& report, const ContextShard& shard, std::span<const std::int64_t> slots,
               std::span<const std::int64_t> positions) {
  for (std::size_t t = 0; t < positions.size(); ++t) {
    const bool held = shard.holds(positions[t]);
    if (held == (slots[t] >= 0) || report.counted(D06)) continue;
    report.add(D06, "slot_mapping", {static_cast<std::int64_t>(t)}, formatted("{} for position {}", slots[t], positions[t]),
               held ? formatted("a slot, because rank {} holds it", shard.rank)
                    : formatted("-1, because rank {} holds it", shard.owner(positions[t])));
  }
}

void d07_prompts(Report& report, const Options& options, bool ring) {
  if (!options.causal) report.add(D07, "causal", {}, "false", "true");
  if (options.window_right)
    report.add(D07, "window_right", {}, formatted("{}", *options.window_right), "absent: rows see no later key");
  if (options.attention_chunk) report.add(D07, "attention_chunk", {}, formatted("{}", *options.attention_chunk), "absent");
  if (options.prefix_len) report.add(D07, "prefix_len", {}, formatted("{}", *options.prefix_len), "absent");
  if (!ring) return;
  if (options.sliding_window)
    report.add(D07, "sliding_window", {}, formatted("{}", *options.sliding_window),
               "absent in a ring: it hides a part of another rank's block");
  if (options.alibi_slopes.present())
    report.add(D07, "alibi_slopes", {}, "given", "absent in a ring: a block's distance to the rows is in no call");
}

}  // namespace

Findings check_shard(const ContextShard& shard, std::int64_t page_size) {
  Report report;
  d01_rank_in_world(report, shard.rank, shard.world);
  d02_runs(report, shard);
  if (page_size != 0) d04_whole_pages(report, shard, page_size);
  return report.take();
}

Findings check_shard(const HeadShard& shard) {
  Report report;
  d01_rank_in_world(report, shard.rank, shard.world);
  if (report.clean()) d03_heads(report, shard);
  return report.take();
}

Findings check_shard_slots(const ContextShard& shard, std::span<const std::int64_t> slot_mapping,
                           std::span<const std::int64_t> positions) {
  Report report;
  d01_rank_in_world(report, shard.rank, shard.world);
  d02_runs(report, shard);
  if (report.clean()) d06_slots(report, shard, slot_mapping, positions.first(std::min(positions.size(), slot_mapping.size())));
  return report.take();
}

Findings check_ranks(std::span<const std::string> names, std::span<const std::int64_t> facts) {
  Report report;
  d05_ranks_agree(report, names, facts);
  return report.take();
}

Findings check_prompts(const Options& options, bool ring) {
  Report report;
  d07_prompts(report, options, ring);
  return report.take();
}

}  // namespace quire
