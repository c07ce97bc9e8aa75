// SPDX-License-Identifier: Apache-2.0
// Partial results that are each right and merged with the wrong weights: out = sum_i w_i out_i / sum_i w_i with w_i = exp(lse_i)
// is the truth.
#include <algorithm>
#include <cmath>

#include "diagnose/mechanisms/cut.h"
#include "diagnose/mechanisms/mechanism.h"

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

/// The number that weights are relative to: the logarithm of their sum plus it is the lse. `none` leaves the lse right.
enum class Unit { none, lse, score };

/// The weight of a part, up to a factor that all parts share.
struct Merge {
  std::string text;
  std::function<double(const Part&, std::size_t index, const std::vector<Part>&, const Largest&)> weight;
  Unit unit = Unit::none;
  bool divided = true;      ///< the merge divides by the sum of the weights
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
       Unit::none, true, true},
      {"keeps the first partial result alone", [](P, std::size_t i, All, Top) { return i == 0 ? 1.0 : 0.0; }},
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
  bool sees_last = true;  ///< some visible key lies in the last part that the kernel knows of
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
  parts.sees_last = current == cut.last(extent);
  return parts;
}

void plant(Model& m, const Cut& cut, const Merge& merge, bool in_lse) {
  m.softmax = [cut, merge, in_lse, before = m.softmax](const Model& model, const Row& row, std::span<const Key> keys,
                                                       std::span<const double> scores, std::vector<double>& p) {
    const double lse = before(model, row, keys, scores, p);
    if (lse == kNegInfSplit || keys.empty()) return lse;
    const Parts parts = parts_of(cut, row, keys, scores);
    if (merge.last_alone && !parts.sees_last) {
      std::fill(p.begin(), p.end(), 0.0);
      return kNegInfSplit;
    }
    if (parts.list.size() < 2) return lse;
    Largest top;
    for (const Part& part : parts.list) top = {std::max(top.lse, part.lse()), std::max(top.score, part.max)};
    std::vector<double> weights;
    double sum = 0, keys_share = 0;
    for (std::size_t i = 0; i < parts.list.size(); ++i) weights.push_back(merge.weight(parts.list[i], i, parts.list, top));
    for (const double weight : weights) sum += weight;
    for (const double share : p) keys_share += share;  // share that a sink leaves to the keys: the sink joins after the merge
    const double with_sink = sum + std::exp(model.sink(row) - top.score);
    const double factor = !merge.divided ? 1 : merge.unit == Unit::score ? 1 / with_sink : keys_share / sum;
    for (std::size_t i = 0; i < p.size(); ++i) {
      const Part& part = parts.list[parts.of_key[i]];
      p[i] = std::exp(scores[i] - part.max) / part.sum * weights[parts.of_key[i]] * factor;
    }
    if (!in_lse || merge.unit == Unit::none) return lse;
    return merge.unit == Unit::score ? top.score + std::log(with_sink) : top.lse + std::log(sum);
  };
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
}

}  // namespace quire::diagnose_detail
