// SPDX-License-Identifier: Apache-2.0
// Split KV: the sequence is cut into runs of keys whose partial results are merged by their lse.
#include <algorithm>
#include <cmath>

#include "faults/families.h"
#include "text/formatted.h"

namespace quire::faults_detail {
namespace {

constexpr std::int64_t kSizes[] = {64, 128, 256, 512, 1024, 2048};

/// Does some row see keys of two splits?
bool spans(const Facts& f, std::int64_t size) {
  return any_row(f, [&](std::int64_t r, std::int64_t q_pos) {
    const Span seen = f.hull(r, q_pos);
    return seen.begin < seen.end && seen.begin / size != (seen.end - 1) / size;
  });
}

/// `make(size)` for every size that cuts a row's keys.
Find for_sizes(std::function<Plant(std::int64_t size)> make) {
  return [make](const Clues& e) {
    Suspects s;
    for (const std::int64_t size : kSizes)
      if (spans(e.facts, size)) s.list.push_back({formatted("splits of {} keys", size), make(size)});
    return std::move(s).or_why_not(formatted("no row sees keys of two splits of {} or more", kSizes[0]));
  };
}

std::int64_t last_split(const Row& r, std::int64_t size) { return (r.seq_len - 1) / size; }

Plant drop_split(std::function<bool(const Row&, std::int64_t split)> drop, std::int64_t size) {
  return keys_dropped([drop, size](const Row& r, std::int64_t k) { return r.seq_len > size && drop(r, k / size); });
}

/// Suspects that drop any other split: size x index.
Suspects other_dropped(const Clues& e) {
  const Facts& f = e.facts;
  Suspects s;
  for (const std::int64_t size : kSizes)
    for (std::int64_t index = 0; index < 10; ++index) {
      const auto shows = [&](std::int64_t r) {
        const std::int64_t last = (f.seq_lens[Facts::at(r)] - 1) / size;
        return index < last && first_seen(f, r) < (index + 1) * size;
      };
      if (s.list.size() >= kMaxCandidates || !any_request(f, shows)) continue;
      s.list.push_back(
          {formatted("split {} of {} keys", index, size),
           drop_split([size, index](const Row& r, std::int64_t split) { return split == index && split != last_split(r, size); },
                      size)});
    }
  return std::move(s).or_why_not(formatted("no row sees keys of two splits of {} or more", kSizes[0]));
}

/// The share of each split in the result, from their lse; may leave them unnormalised.
using Merge = std::function<std::vector<double>(const std::vector<double>& lse)>;

double log_sum_exp(const std::vector<double>& values, double factor = 1) {
  const double max = *std::max_element(values.begin(), values.end());
  double sum = 0;
  for (const double value : values) sum += std::exp(factor * (value - max));
  return max + std::log(sum) / factor;
}

std::vector<double> shares(const std::vector<double>& lse, double factor = 1) {
  const double total = log_sum_exp(lse, factor);
  std::vector<double> share;
  for (const double value : lse) share.push_back(std::exp(factor * (value - total)));
  return share;
}

/// Softmax within each split (the sink in the first), then `merge`.
Plant merged(std::int64_t size, Merge merge) {
  return function_set(&Model::softmax,
                      [size, merge = std::move(merge)](const Model& model, const Row& r, std::span<const Key> keys,
                                                       std::span<const double> scores, std::vector<double>& p) {
                        p.assign(keys.size(), 0.0);
                        std::vector<double> lse;
                        for (std::size_t i = 0; i < keys.size();) {
                          std::size_t end = i;
                          while (end < keys.size() && keys[end].position / size == keys[i].position / size) ++end;
                          const double sink = i == 0 ? model.sink(r) : kNegInf;
                          const double max = largest(scores.subspan(i, end - i), sink);
                          double sum = sink == kNegInf ? 0 : model.weight(sink, max);
                          for (std::size_t j = i; j < end; ++j)
                            sum += keys[j].weight == 0 ? 0 : keys[j].weight * model.weight(scores[j], max);
                          lse.push_back(max == kNegInf ? kNegInf : max + std::log(sum));
                          for (std::size_t j = i; j < end; ++j)
                            if (keys[j].weight != 0 && max != kNegInf) p[j] = keys[j].weight * model.weight(scores[j], max) / sum;
                          i = end;
                        }
                        if (lse.empty()) return model.sink(r);
                        const std::vector<double> share = merge(lse);
                        std::size_t split = 0;
                        for (std::size_t i = 0; i < keys.size(); ++i) {
                          if (i > 0 && keys[i].position / size != keys[i - 1].position / size) ++split;
                          p[i] *= share[split];
                        }
                        return log_sum_exp(lse);
                      });
}

Suspects wrong_base(const Clues& e) {
  Suspects all;
  for (const double factor : {1 / std::log(2.0), std::log(2.0)}) {
    const char* which = factor > 1 ? "base-2 lse merged by exp" : "natural lse merged by exp2";
    Suspects s = for_sizes([&](std::int64_t size) {
      return merged(size, [factor](const std::vector<double>& lse) { return shares(lse, factor); });
    })(e);
    for (Suspect& suspect : s.list) suspect.detail = formatted("{}, {}", which, suspect.detail);
    std::move(s.list.begin(), s.list.end(), std::back_inserter(all.list));
    all.why_not = s.why_not;
  }
  return all;
}

Suspects sink_in_each(const Clues& e) {
  if (!e.facts.options.sinks.present()) return cannot_show("there are no sinks");
  const Facts* f = &e.facts;
  return for_sizes([f](std::int64_t size) {
    return function_changed(&Model::sink, [f, size](const auto& before, const Row& r) {
      const Span seen = f->hull(r.req, r.q_pos);
      const std::int64_t splits = (seen.end - 1) / size - seen.begin / size + 1;
      return before(r) + std::log(static_cast<double>(std::max<std::int64_t>(splits, 1)));
    });
  })(e);
}

/// An empty split divides 0 by 0, and its weight of 0 does not help.
Suspects empty_is_nan(const Clues& e) {
  const Facts* f = &e.facts;
  Suspects s;
  for (const std::int64_t size : kSizes) {
    const auto has_empty = [f, size](std::int64_t req, std::int64_t seq_len, std::int64_t q_pos) {
      const Span seen = f->hull(req, q_pos);
      return seen.begin / size > 0 || (seen.end - 1) / size < (seq_len - 1) / size;
    };
    if (!any_row(*f, [&](std::int64_t r, std::int64_t q_pos) { return has_empty(r, f->seq_lens[Facts::at(r)], q_pos); }))
      continue;
    s.list.push_back({formatted("splits of {} keys", size), result_changed([has_empty](const Row& r, RowResult& result) {
                        if (has_empty(r.req, r.seq_len, r.q_pos)) std::fill(result.out.begin(), result.out.end(), kNaN);
                      })});
  }
  return std::move(s).or_why_not(formatted("every row sees a key of every split of {} or more", kSizes[0]));
}

bool merges_context(const Facts& f, const Row& r) { return f.hull(r.req, r.q_pos).begin < r.context_len(); }

/// Cached context and new tokens attended apart; the merge reads the second result with the row stride of the first, which was
/// padded. Past the end of it stands nothing.
Plant suffix_stride(const Facts* f, std::int64_t stride) {
  return [f, stride](Model& m) {
    Model suffix = m;
    keys_dropped([](const Row& r, std::int64_t k) { return k < r.context_len(); })(suffix);
    suffix.sink = [](const Row&) { return kNegInf; };
    m.finish = [f, stride, suffix, before = m.finish](const Row& r, RowResult& result) {
      before(r, result);
      if (!r.written || !merges_context(*f, r)) return;
      const std::int64_t dims = f->v_head_dim, first = (r.token * f->num_q_heads + r.head) * stride;
      std::vector<RowHead> rows = {{r.token, r.head}};
      for (std::int64_t at = first / dims; at <= (first + dims - 1) / dims; ++at)
        if (at < f->num_tokens * f->num_q_heads) rows.push_back({at / f->num_q_heads, at % f->num_q_heads});
      const std::vector<RowResult> parts = evaluate(suffix, rows);
      const double share = std::exp(parts[0].lse - result.lse);
      for (std::int64_t d = 0; d < dims; ++d) {
        const std::size_t part = Facts::at(1 + (first + d) / dims - first / dims);
        const double read = part < parts.size() ? parts[part].out[Facts::at((first + d) % dims)] : kNaN;
        result.out[Facts::at(d)] += share * (read - parts[0].out[Facts::at(d)]);
      }
    };
  };
}

Suspects merge_stride(const Clues& e) {
  const Facts* f = &e.facts;
  if (f->num_tokens * f->num_q_heads < 2) return cannot_show("one row of one head: a stride does not matter");
  if (!any_row(*f, [f](std::int64_t r, std::int64_t q_pos) {
        return f->hull(r, q_pos).begin < f->context_len(r) && f->query_start_loc[Facts::at(r + 1)] * f->num_q_heads > 1;
      }))
    return cannot_show("no row sees a context: there is nothing to merge");
  Suspects s;
  for (const std::int64_t stride : {f->v_head_dim + (f->v_head_dim + 1) / 2, 2 * f->v_head_dim})
    if (s.list.empty() || stride != f->v_head_dim + (f->v_head_dim + 1) / 2)
      s.list.push_back({formatted("row stride {} instead of {}", stride, f->v_head_dim), suffix_stride(f, stride)});
  return s;
}

}  // namespace

void add_split(std::vector<Fault>& list) {
  const Family add{list, "split"};
  const char* const kMerge = "out = sum_i exp(lse_i - lse) out_i with lse = log sum_i exp(lse_i), natural logarithms throughout";
  add("last_split_dropped", "leaves the last split out of the merge", "", "round the number of splits up",
      for_sizes([](std::int64_t size) {
        return drop_split([size](const Row& r, std::int64_t split) { return split == last_split(r, size); }, size);
      }));
  add("split_dropped", "leaves one split out of the merge", "", "compare the splits launched with those that the merge reads",
      other_dropped);
  add("split_counted_twice", "merges the last split twice", "", "compare the splits launched with those that the merge reads",
      for_sizes([](std::int64_t size) {
        return keys_changed([size](const Row& r, std::vector<Key>& keys) {
          for (Key& key : keys)
            if (r.seq_len > size && key.position / size == last_split(r, size)) key.weight *= 2;
        });
      }));
  add("splits_averaged", "averages the splits without their weights", "", kMerge, for_sizes([](std::int64_t size) {
        return merged(size, [](const std::vector<double>& lse) {
          return std::vector<double>(lse.size(), 1.0 / static_cast<double>(lse.size()));
        });
      }));
  add("split_weights_swapped", "gives the splits each other's weights", "vllm#15492", kMerge, for_sizes([](std::int64_t size) {
        return merged(size, [](const std::vector<double>& lse) {
          std::vector<double> share = shares(lse);
          std::reverse(share.begin(), share.end());
          return share;
        });
      }));
  add("splits_overwrite_each_other", "keeps the last split's result alone", "",
      "partial results need a buffer each, and a merge after the last", for_sizes([](std::int64_t size) {
        return merged(size, [](const std::vector<double>& lse) {
          std::vector<double> share(lse.size(), 0.0);
          share.back() = 1;
          return share;
        });
      }));
  add("merge_with_wrong_base", "merges lse of one base as if it had the other", "sglang#40903", kMerge, wrong_base);
  add("empty_split_is_nan", "divides an empty split by its denominator 0, and merges the NaN with weight 0",
      "vllm#39148, vllm#28181", "an empty split has out = 0 and lse = -inf; skip it in the merge", empty_is_nan);
  add("merge_with_wrong_stride", "merges context and new tokens, and reads the second result with the row stride of the first",
      "local-inference-lab/vllm#15", "take each tensor's own strides; a padded head_dim makes them differ", merge_stride);
  add("sink_in_every_split", "counts the sink once per split", "", "put the sink into one split, or into the merge",
      sink_in_each);
}

}  // namespace quire::faults_detail
