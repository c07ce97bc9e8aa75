// SPDX-License-Identifier: Apache-2.0
// Partial results that are each right and merged with the wrong weights: out = sum_i w_i out_i / sum_i w_i with w_i = exp(lse_i)
// is the truth. Splits are the same for all requests, or those that the cells of each request suggest.
#include <algorithm>
#include <cmath>

#include "diagnose/mechanisms/other_split.h"
#include "text/formatted.h"

namespace quire::diagnose_detail {
namespace {

constexpr double kNegInfSplit = -std::numeric_limits<double>::infinity();
const char* const kNextSplit =
    "out = sum_i exp(lse_i - lse) out_i with lse = log sum_i exp(lse_i), natural logarithms throughout";

/// A part of a row's keys.
struct Part {
  double max = kNegInfSplit, sum = 0;  ///< largest score, sum of exp(score - max)
  double lse() const { return max + std::log(sum); }
};

/// The largest lse and the largest score of all parts.
struct Largest {
  double lse = kNegInfSplit, score = kNegInfSplit;
};

/// The number that weights are relative to: the logarithm of their sum plus it is the lse. `none` leaves the lse right, and
/// `right` the denominator, too.
enum class Unit { none, lse, score, right };

/// The place where a sink enters: after the merge, as one more part, or nowhere.
enum class SinkJoins { after, as_part, never };

/// The weight of a part, up to a factor that all parts share.
struct Merge {
  std::string text;
  std::function<double(const Part&, std::size_t index, const std::vector<Part>&, const Largest&)> weight;
  Unit unit = Unit::none;
  bool divided = true;      ///< the merge divides by the sum of the weights, and the sink's
  bool with_empty = false;  ///< the merge divides by the number of all parts: one without keys is a result of 0
  bool last_alone = false;  ///< a row that sees no key of the last part is 0
};

std::vector<Merge> merges() {
  using P = const Part&;
  using All = const std::vector<Part>&;
  using Top = const Largest&;
  const double ln2 = std::log(2.0);
  return {
      {"averages partial results", [](P, std::size_t, All, Top) { return 1.0; }},
      {"adds partial results without weights", [](P, std::size_t, All, Top) { return 1.0; }, Unit::none, false},
      {"merges natural lse values as if they had base 2",
       [](P p, std::size_t, All, Top top) { return std::exp2(p.lse() - top.lse); }, Unit::lse},
      {"merges lse values of base 2 as if they were natural",
       [ln2](P p, std::size_t, All, Top top) { return std::exp((p.lse() - top.lse) / ln2); }, Unit::lse},
      {"rescales partial sums by their maxima in base 2",
       [](P p, std::size_t, All, Top top) { return p.sum * std::exp2(p.max - top.score); }, Unit::score},
      {"rescales partial sums by maxima of base 2 as if they were natural",
       [ln2](P p, std::size_t, All, Top top) { return p.sum * std::exp((p.max - top.score) / ln2); }, Unit::score},
      {"merges partial results by their maxima alone",
       [](P p, std::size_t, All, Top top) { return std::exp(p.max - top.score); }},
      {"merges partial results by their sums, without their maxima", [](P p, std::size_t, All, Top) { return p.sum; },
       Unit::score},
      {"keeps the last partial result alone", [](P, std::size_t i, All all, Top) { return i + 1 == all.size() ? 1.0 : 0.0; },
       Unit::none, true, false, true},
      {"keeps the first partial result alone", [](P, std::size_t i, All, Top) { return i == 0 ? 1.0 : 0.0; }},
      {"does not rescale partial sums to the largest maximum when it merges them",
       [](P p, std::size_t, All, Top) { return p.sum; }, Unit::right},
      {"gives partial results each other's weights",
       [](P, std::size_t i, All all, Top top) { return std::exp(all[all.size() - 1 - i].lse() - top.lse); }},
      {"gives partial results the inverse of their weights",
       [](P p, std::size_t, All, Top top) { return std::exp(top.lse - p.lse()); }},
  };
}

/// The parts of a row, and the part of each key. A part may be empty of visible keys: it is not counted.
struct Parts {
  std::vector<Part> list;
  std::vector<std::size_t> of_key;
  std::int64_t known = 1;  ///< parts of the whole sequence
  bool sees_last = true;   ///< some visible key lies in the last part that the kernel knows of
};

Parts parts_of(const Cut& cut, const Row& row, std::span<const Key> keys, std::span<const double> scores) {
  Parts parts;
  const Extent extent{keys.front().position, keys.back().position + 1, row.seq_len, row.req};
  std::int64_t current = -1;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const std::int64_t group = cut.group(extent, keys[i].position);
    if (parts.list.empty() || group != current) parts.list.emplace_back();
    current = group;
    parts.of_key.push_back(parts.list.size() - 1);
    parts.list.back().max = std::max(parts.list.back().max, scores[i]);
  }
  for (std::size_t i = 0; i < keys.size(); ++i)
    parts.list[parts.of_key[i]].sum += std::exp(scores[i] - parts.list[parts.of_key[i]].max);
  parts.known = cut.last(extent) + 1;
  parts.sees_last = current + 1 == parts.known;
  return parts;
}

void plant(Model& m, const Cut& cut, const Merge& merge, bool in_lse, SinkJoins joins = SinkJoins::after) {
  m.softmax = [=, before = m.softmax](const Model& model, const Row& row, std::span<const Key> keys,
                                      std::span<const double> scores, std::vector<double>& p) {
    const double lse = before(model, row, keys, scores, p);
    if (lse == kNegInfSplit || keys.empty()) return lse;
    const Parts parts = parts_of(cut, row, keys, scores);
    if (merge.last_alone && !parts.sees_last) {
      std::fill(p.begin(), p.end(), 0.0);
      return kNegInfSplit;
    }
    if (parts.list.size() < 2 && !merge.with_empty) return lse;
    Largest top;
    for (const Part& part : parts.list) top = {std::max(top.lse, part.lse()), std::max(top.score, part.max)};
    std::vector<double> weights;
    double sum = 0, right = 0, keys_share = 0;
    for (std::size_t i = 0; i < parts.list.size(); ++i) {
      weights.push_back(merge.weight(parts.list[i], i, parts.list, top));
      sum += weights.back();
      right += parts.list[i].sum * std::exp(parts.list[i].max - top.score);
    }
    for (const double share : p) keys_share += share;  // share that a sink leaves to the keys: the sink joins after the merge
    const double sink = model.sink(row), with_sink = sum + std::exp(sink - top.score);
    const double factor = !merge.divided                ? 1
                          : merge.with_empty            ? 1 / static_cast<double>(parts.known)
                          : merge.unit == Unit::right   ? 1 / (right + std::exp(sink - top.score))
                          : merge.unit == Unit::score   ? 1 / with_sink
                          : joins == SinkJoins::after   ? keys_share / sum
                          : joins == SinkJoins::as_part ? 1 / (sum + merge.weight({sink, 1}, 0, parts.list, top))
                                                        : 1 / sum;
    for (std::size_t i = 0; i < p.size(); ++i) {
      const Part& part = parts.list[parts.of_key[i]];
      p[i] = std::exp(scores[i] - part.max) / part.sum * weights[parts.of_key[i]] * factor;
    }
    if (!in_lse || merge.unit == Unit::none || merge.unit == Unit::right) return lse;
    return merge.unit == Unit::score ? top.score + std::log(with_sink) : top.lse + std::log(sum);
  };
}

/// Merges of splits that differ by request, and a split that is left out of them or has keys of its neighbour.
void propose_by_request(const Scene& scene, bool in_lse, Proposals& list) {
  const std::vector<CellOfRequest> cells = cell_of_each_request(scene);
  const auto fit = [&](const std::string& text, const std::string& detail,
                       const std::function<Plant(const SplitSizes&)>& mistake) {
    if (const std::optional<SplitSizes> sizes = fitted_sizes(scene.facts, cells, mistake))
      list.push_back({text.starts_with("leaves out") ? "key_range" : "split", text, detail + text_of(*sizes), kNextSplit, 2,
                      mistake(*sizes)});
  };
  std::vector<Merge> all = merges();
  all.push_back({"averages partial results, those of splits without keys included",
                 [](const Part&, std::size_t, const std::vector<Part>&, const Largest&) { return 1.0; }, Unit::none, true, true});
  for (const Merge& merge : all)
    for (const SinkJoins joins : {SinkJoins::after, SinkJoins::as_part, SinkJoins::never}) {
      if (joins != SinkJoins::after && !scene.facts.options.sinks.present()) continue;
      const char* const words[] = {"", "the sink as one more part, ", "without the sink, "};
      fit(merge.text, words[static_cast<int>(joins)], [merge, in_lse, joins](const SplitSizes& sizes) {
        return [=](Model& m) { plant(m, cut_by_request(sizes), merge, in_lse, joins); };
      });
    }
  using Drops = bool (*)(std::int64_t split, std::int64_t last);
  const std::pair<const char*, Drops> dropped[] = {
      {"the last one, ", [](std::int64_t split, std::int64_t last) { return split == last; }},
      {"the first one, ", [](std::int64_t split, std::int64_t) { return split == 0; }},
      {"the second one, ", [](std::int64_t split, std::int64_t last) { return split == std::min<std::int64_t>(1, last); }}};
  for (const auto& [which, drops] : dropped)
    fit("leaves out the result of a split", which, [leaves_out = drops](const SplitSizes& sizes) {
      return keys_dropped([=](const Row& row, std::int64_t k) {
        const std::int64_t size = size_of_splits(sizes, row.req);
        return size < row.seq_len && leaves_out(k / size, (row.seq_len - 1) / size);
      });
    });
  for (const std::int64_t keys : {1, 2, 4, 8, 16, 32})
    for (const bool twice : {false, true})
      fit(twice ? "counts keys twice where splits meet" : "leaves out keys where splits meet",
          formatted("the last {} of each split, ", keys), [keys, twice](const SplitSizes& sizes) {
            return keys_changed([=](const Row& row, std::vector<Key>& list_of_keys) {
              const std::int64_t size = size_of_splits(sizes, row.req);
              for (Key& key : list_of_keys)
                if (key.position % size >= size - keys && key.position / size < (row.seq_len - 1) / size)
                  key.weight *= twice ? 2 : 0;
              std::erase_if(list_of_keys, [](const Key& key) { return key.weight == 0; });
            });
          });
  propose_other_splits(scene, cells, list);
}

}  // namespace

void propose_split(const Scene& scene, Proposals& list) {
  const bool in_lse = std::any_of(scene.wrong.begin(), scene.wrong.end(), [](const Compared* c) { return c->wrong_lse; });
  for (const Cut& cut : cuts(scene.facts)) {
    if (cut.name == "key") continue;
    for (const Merge& merge : merges()) {
      list.push_back({"split", merge.text, "a " + cut.name, kNextSplit, 0,
                      [cut, merge, in_lse](Model& m) { plant(m, cut, merge, in_lse); }});
    }
  }
  propose_by_request(scene, in_lse, list);
}

}  // namespace quire::diagnose_detail
