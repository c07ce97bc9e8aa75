// SPDX-License-Identifier: Apache-2.0
// The catalogue of faults of ranks that share a context: of the keys that a rank attends to, and of the merge.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "faults/families.h"
#include "faults/ranks.h"
#include "text/formatted.h"

namespace quire::faults_detail {
namespace {

using RankSuspects = std::vector<RankSuspect>;

/// Does a row see keys of this rank?
bool sees_rank(const Facts& f, const Deal& d, std::int64_t rank) {
  return any_row(f, [&](std::int64_t, std::int64_t q_pos) {
    for (std::int64_t p = std::max<std::int64_t>(f.first_key(q_pos), 0); p <= q_pos; ++p)
      if (d.owner(p) == rank) return true;
    return false;
  });
}

/// Ranks of which some row sees keys, the last one first: it is the one that a loop that ends too early forgets.
std::vector<std::int64_t> ranks_seen(const Facts& f, const Deal& d) {
  std::vector<std::int64_t> list;
  for (std::int64_t rank = d.world - 1; rank >= 0; --rank)
    if (sees_rank(f, d, rank)) list.push_back(rank);
  return list;
}

bool several_ranks_seen(const Facts& f, const Deal& d) { return ranks_seen(f, d).size() > 1; }

double sum_of_exp(std::span<const double> lse, double max) {
  double sum = 0;
  for (const double value : lse) sum += value == kNegInf ? 0 : std::exp(value - max);
  return sum;
}

/// Suspects that replace the merge weight of a rank by `weight`, one for each rank whose keys are seen.
RankSuspects with_weight(const Facts& f, const Deal& d, double weight, const char* detail) {
  RankSuspects list;
  for (const std::int64_t rank : ranks_seen(f, d))
    list.push_back({formatted("rank {}'s part {}", rank, detail),
                    function_set(&RankModel::shares, [rank, weight](std::span<const double> lse) {
                      std::vector<double> weights(lse.size(), 1.0);
                      weights[Facts::at(rank)] = weight;
                      return shares_of(lse, weights);
                    })});
  return list;
}

using FindRanks = std::function<RankSuspects(const Facts&, const Deal&)>;

/// Another merge, where `shows` is true.
FindRanks merge_of(bool (*shows)(const Facts&, const Deal&), Shares (*shares)(std::span<const double> lse)) {
  return [=](const Facts& f, const Deal& d) -> RankSuspects {
    if (!shows(f, d)) return {};
    return {{"", [shares](RankModel& m) { m.shares = shares; }}};
  };
}

RankSuspects part_missing(const Facts& f, const Deal& d) { return with_weight(f, d, 0, "is missing"); }

RankSuspects part_twice(const Facts& f, const Deal& d) {
  if (!several_ranks_seen(f, d)) return {};
  return with_weight(f, d, 2, "counts twice");
}

RankSuspects one_in_base_2(const Facts& f, const Deal& d) {
  RankSuspects list;
  if (!several_ranks_seen(f, d)) return list;
  for (const std::int64_t rank : ranks_seen(f, d))
    list.push_back({formatted("rank {} gives its lse in base 2", rank),
                    function_set(&RankModel::shares, [rank](std::span<const double> lse) {
                      std::vector<double> given(lse.begin(), lse.end());
                      given[Facts::at(rank)] *= std::numbers::log2e;
                      return shares_of(given);
                    })});
  return list;
}

/// Part k meets the lse of rank from[k].
RankSuspect permuted(std::string detail, std::vector<std::size_t> from) {
  return {std::move(detail), function_set(&RankModel::shares, [from = std::move(from)](std::span<const double> lse) {
            std::vector<double> given;
            for (const std::size_t k : from) given.push_back(lse[k]);
            return shares_of(given);
          })};
}

RankSuspects swapped_ranks(const Facts& f, const Deal& d) {
  RankSuspects list;
  if (!several_ranks_seen(f, d)) return list;
  std::vector<std::size_t> same(static_cast<std::size_t>(d.world));
  std::iota(same.begin(), same.end(), std::size_t{0});
  for (std::size_t a = 0; a < same.size(); ++a)
    for (std::size_t b = a + 1; b < same.size() && list.size() < kMaxCandidates; ++b) {
      std::vector<std::size_t> from = same;
      std::swap(from[a], from[b]);
      list.push_back(permuted(formatted("ranks {} and {} have each other's weights", a, b), std::move(from)));
    }
  for (std::size_t shift = 1; same.size() > 2 && shift < same.size(); ++shift) {
    std::vector<std::size_t> from = same;
    std::rotate(from.begin(), from.begin() + static_cast<std::ptrdiff_t>(shift), from.end());
    list.push_back(permuted(formatted("rank k's part has the weight of rank k + {} of {}", shift, same.size()), std::move(from)));
  }
  return list;
}

/// A shard without a visible key, beside one with some.
bool empty_part_somewhere(const Facts& f, const Deal& d) {
  return any_row(f, [&](std::int64_t, std::int64_t q_pos) {
    std::vector<bool> seen(Facts::at(d.world), false);
    for (std::int64_t p = std::max<std::int64_t>(f.first_key(q_pos), 0); p <= q_pos; ++p) seen[Facts::at(d.owner(p))] = true;
    return std::find(seen.begin(), seen.end(), false) != seen.end();
  });
}

RankSuspects one_part_alone(const Facts& f, const Deal& d) {
  RankSuspects list;
  if (!several_ranks_seen(f, d)) return list;
  for (const std::int64_t rank : ranks_seen(f, d))
    list.push_back(
        {formatted("the result is rank {}'s part", rank), function_set(&RankModel::shares, [rank](std::span<const double> lse) {
           Shares s{std::vector<double>(lse.size(), 0.0), lse[Facts::at(rank)]};
           s.of[Facts::at(rank)] = 1;
           return s;
         })});
  return list;
}

RankSuspects lse_in_16_bits(const Facts& f, const Deal& d) {
  if (!several_ranks_seen(f, d)) return {};
  RankSuspects list;
  for (const DType type : {DType::bf16, DType::f16})
    list.push_back({formatted("in {}", name_of(type)), function_set(&RankModel::shares, [type](std::span<const double> lse) {
                      std::vector<double> given;
                      for (const double value : lse) given.push_back(value == kNegInf ? value : rounded(type, value));
                      return shares_of(given);
                    })});
  return list;
}

/// A rank's share of the heads first, then every other distance.
RankSuspects shifted_heads(const Facts& f, const Deal& d) {
  RankSuspects list;
  std::vector<std::int64_t> shifts;
  if (f.num_q_heads % d.world == 0)
    for (std::int64_t k = 1; k < d.world; ++k) shifts.push_back(k * f.num_q_heads / d.world);
  for (std::int64_t by = 1; by < f.num_q_heads; ++by)
    if (std::find(shifts.begin(), shifts.end(), by) == shifts.end()) shifts.push_back(by);
  for (const std::int64_t by : shifts)
    if (by < f.num_q_heads && list.size() < kMaxCandidates)
      list.push_back({formatted("head h holds the result of head h + {} of {}", by, f.num_q_heads),
                      function_set(&RankModel::head, [by, heads = f.num_q_heads](std::int64_t h) { return (h + by) % heads; })});
  return list;
}

/// Keys by a rule of (row, rank, position); the rank's own are those that the truth leaves it.
RankSuspects keys_if(bool shows, std::function<bool(const Row&, std::int64_t rank, std::int64_t position)> folds,
                     std::string detail = {}) {
  if (!shows) return {};
  return {{std::move(detail),
           function_set(&RankModel::keys, [folds = std::move(folds)](const Row& row, std::int64_t rank, std::vector<Key>& keys) {
             std::erase_if(keys, [&](const Key& key) { return !folds(row, rank, key.position); });
           })}};
}

RankSuspects border_twice(const Facts& f, const Deal& d) {
  const bool shows = any_row(f, [&](std::int64_t, std::int64_t q_pos) {
    for (std::int64_t p = std::max<std::int64_t>(f.first_key(q_pos), 1); p <= q_pos; ++p)
      if (d.owner(p) != d.owner(p - 1)) return true;
    return false;
  });
  return keys_if(shows, [d](const Row&, std::int64_t rank, std::int64_t p) {
    return d.owner(p) == rank || (p > 0 && d.owner(p - 1) == rank);
  });
}

/// Keys of the step's own tokens are missing, on all ranks or on one.
RankSuspects stale_lengths(const Facts& f, const Deal& d) {
  RankSuspects list = keys_if(
      f.num_tokens > 0,
      [d](const Row& row, std::int64_t rank, std::int64_t p) { return d.owner(p) == rank && p < row.context_len(); },
      "every rank has the lengths before the step");
  for (std::int64_t late = 0; late < d.world && d.world > 1; ++late) {
    const bool shows = any_request(f, [&](std::int64_t r) {
      for (std::int64_t p = f.context_len(r); p < f.seq_lens[Facts::at(r)]; ++p)
        if (d.owner(p) == late) return true;
      return false;
    });
    for (RankSuspect& s : keys_if(
             shows,
             [d, late](const Row& row, std::int64_t rank, std::int64_t p) {
               return d.owner(p) == rank && (rank != late || p < row.context_len());
             },
             formatted("rank {} has the lengths before the step", late)))
      list.push_back(std::move(s));
  }
  return list;
}

/// length / world keys a rank, and the rest lost.
RankSuspects rest_dropped(const Facts& f, const Deal& d) {
  const bool shows = d.world > 1 && any_request(f, [&](std::int64_t r) {
                       for (std::int64_t rank = 0; rank < d.world; ++rank)
                         if (d.held(rank, f.seq_lens[Facts::at(r)]) > f.seq_lens[Facts::at(r)] / d.world) return true;
                       return false;
                     });
  return keys_if(shows, [d](const Row& row, std::int64_t rank, std::int64_t p) {
    return d.owner(p) == rank && d.index(p) < row.seq_len / d.world;
  });
}

/// Rows stand at the end of the rank's own keys: row i of n sees all of them but n - 1 - i.
RankSuspects local_mask(const Facts& f, const Deal& d) {
  const bool shows = d.world > 1 && any_request(f, [&](std::int64_t r) { return f.query_len(r) > 1; });
  return keys_if(shows, [d](const Row& row, std::int64_t rank, std::int64_t p) {
    const std::int64_t behind = row.seq_len - 1 - row.q_pos;
    return d.owner(p) == rank && d.index(p) < d.held(rank, row.seq_len) - behind;
  });
}

/// The window counts the rank's own keys.
RankSuspects local_window(const Facts& f, const Deal& d) {
  if (!f.windowed() || d.world < 2) return {};
  if (!any_row(f, [&](std::int64_t, std::int64_t q_pos) { return f.first_key(q_pos) > 0; })) return {};
  return {
      {"", function_set(&RankModel::keys, [d, window = f.window()](const Row& row, std::int64_t rank, std::vector<Key>& keys) {
         keys.clear();
         const std::int64_t held = d.held(rank, row.q_pos + 1);
         for (std::int64_t p = 0; p <= row.q_pos; ++p)
           if (d.owner(p) == rank && held - 1 - d.index(p) < window) keys.push_back({p, 1});
       })}};
}

RankSuspects sink_everywhere(const Facts& f, const Deal& d) {
  if (!f.options.sinks.present() || d.world < 2 || f.num_tokens == 0) return {};
  return {{"", function_set(&RankModel::sink, [](std::int64_t) { return true; })}};
}

RankSuspects local_distances(const Facts& f, const Deal& d) {
  if (!f.options.alibi_slopes.present() || !several_ranks_seen(f, d)) return {};
  return {{"", function_set(&RankModel::distance_from,
                            [d](const Row&, std::int64_t, std::int64_t position) { return d.index(position); })}};
}

constexpr const char* kFormula =
    "out = sum_k exp(lse_k - lse) out_k with lse = log sum_k exp(lse_k), natural logarithms throughout";
constexpr const char* kOneRank = "no row sees keys of two ranks";
constexpr const char* kEmpty = "a rank without a visible key has out 0 and lse -inf, which weighs nothing";
constexpr const char* kLengths =
    "a rank's keys are those positions below the whole length that it holds: ContextShard::local_length";

void add_merges(std::vector<RankFault>& list) {
  const auto add = [&](const char* id, const char* text, const char* seen, const char* next, const char* why_not,
                       FindRanks suspects) {
    list.push_back({{id, "ranks", text, seen, next}, true, std::move(suspects), why_not});
  };
  add("rank_part_missing", "leave a rank's part out of the merge", "", "compare the ranks that sent with those that are merged",
      "no row sees a key", part_missing);
  add("rank_part_twice", "merge a rank's part twice", "", "compare the ranks that sent with those that are merged", kOneRank,
      part_twice);
  add("rank_parts_averaged", "average their parts without weights", "", kFormula, kOneRank,
      merge_of(several_ranks_seen, [](std::span<const double> lse) {
        Shares s = shares_of(lse);
        std::fill(s.of.begin(), s.of.end(), 1 / static_cast<double>(lse.size()));
        return s;
      }));
  add("rank_parts_added", "add their parts without weights, as an all-reduce of outputs does", "", kFormula, kOneRank,
      merge_of(several_ranks_seen, [](std::span<const double> lse) {
        Shares s = shares_of(lse);
        std::fill(s.of.begin(), s.of.end(), 1.0);
        return s;
      }));
  // out = sum_k exp(lse_k - max) out_k, and no division.
  add("rank_merge_undivided", "add weighted parts and do not divide by the sum of the weights", "", kFormula, kOneRank,
      merge_of(several_ranks_seen, [](std::span<const double> lse) {
        Shares s = shares_of(lse);
        const double max = *std::max_element(lse.begin(), lse.end());
        for (double& share : s.of) share *= max == kNegInf ? 1 : sum_of_exp(lse, max);
        return s;
      }));
  add("rank_lse_base_2", "merge lse of base 2 as natural ones", "sglang#33926", kFormula, kOneRank,
      merge_of(several_ranks_seen, [](std::span<const double> lse) {
        std::vector<double> given(lse.begin(), lse.end());
        for (double& value : given) value *= std::numbers::log2e;
        return shares_of(given);
      }));
  add("rank_lse_natural_as_base_2", "merge natural lse as those of base 2", "", kFormula, kOneRank,
      merge_of(several_ranks_seen, [](std::span<const double> lse) { return shares_of(lse, {}, std::numbers::ln2); }));
  add("one_rank_lse_base_2", "merge the lse of one rank in another base than the others'", "",
      "every rank runs the same kernel, or converts its lse", kOneRank, one_in_base_2);
  add("rank_weights_swapped", "give parts the weights of other ranks", "",
      "outputs and lse travel in one buffer, or in one order", kOneRank, swapped_ranks);
  add("empty_rank_weighs", "give a rank without a visible key the lse 0", "sglang#33325", kEmpty, "every rank has a visible key",
      merge_of(empty_part_somewhere, [](std::span<const double> lse) {
        std::vector<double> given(lse.begin(), lse.end());
        std::replace(given.begin(), given.end(), kNegInf, 0.0);
        return shares_of(given);
      }));
  add("empty_rank_is_nan", "divide the part of a rank without a visible key by its denominator 0", "", kEmpty,
      "every rank has a visible key", merge_of(empty_part_somewhere, [](std::span<const double> lse) {
        Shares s = shares_of(lse);
        if (std::find(lse.begin(), lse.end(), kNegInf) == lse.end()) return s;
        std::fill(s.of.begin(), s.of.end(), kNaN);
        s.lse = kNaN;
        return s;
      }));
  add("zero_lse_is_empty", "take an lse of 0 for that of a rank without keys", "", kEmpty, kOneRank,
      merge_of(several_ranks_seen, [](std::span<const double> lse) {
        std::vector<double> given(lse.begin(), lse.end());
        std::replace_if(given.begin(), given.end(), [](double value) { return value == 0; }, kNegInf);
        return shares_of(given);
      }));
  add("rank_part_alone", "keep one rank's part as the result", "", "the exchange comes before the result is used", kOneRank,
      one_part_alone);
  add("rank_lse_rounded", "exchange lse in 16 bits", "", "lse travels in f32", kOneRank, lse_in_16_bits);
  add("rank_heads_shifted", "put a head's result into the place of another head", "",
      "rank k's share of the heads begins at k * num_q_heads / world", "there is one head", shifted_heads);
}

void add_key_faults(std::vector<RankFault>& list) {
  const auto add = [&](const char* id, const char* text, const char* next, const char* why_not, FindRanks suspects) {
    list.push_back({{id, "ranks", text, "", next}, false, std::move(suspects), why_not});
  };
  add("border_key_twice", "count the key behind the end of a run, which the next rank counts, too", kLengths,
      "no row sees keys of two neighbouring runs", border_twice);
  add("stale_rank_lengths", "attend to a rank's keys as they were before the step", kLengths, "there are no rows", stale_lengths);
  add("rank_rest_dropped", "take length / world keys of every rank", kLengths, "every rank holds length / world keys",
      rest_dropped);
  add("causal_mask_on_rank", "place rows at the end of a rank's own keys",
      "masks use positions of the whole request: local_lengths() makes a rank's batch", "every request has one row", local_mask);
  add("window_on_rank", "count the sliding window in a rank's own keys",
      "masks use positions of the whole request: local_lengths() makes a rank's batch", "no window hides a key", local_window);
  add("sink_on_every_rank", "count the sink once per rank", "one rank counts the sink", "there are no sinks, or one rank",
      sink_everywhere);
  add("alibi_on_rank", "take a key's place in a rank's cache for its position in ALiBi",
      "ALiBi uses positions of the whole request: key_begin says where a contiguous shard begins",
      "there are no slopes, or one rank", local_distances);
}

}  // namespace

const std::vector<RankFault>& rank_fault_catalogue() {
  static const std::vector<RankFault> list = [] {
    std::vector<RankFault> all;
    add_merges(all);
    add_key_faults(all);
    return all;
  }();
  return list;
}

}  // namespace quire::faults_detail
