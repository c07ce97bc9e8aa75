// SPDX-License-Identifier: Apache-2.0
// Mistakes of softmax, masks and tiles, written down as the equation of a row's output; the search has to name each. No mechanism
// takes part in making the outputs.
#include <gmock/gmock.h>

#include <numeric>

#include "diagnose/written_by.h"
#include "semantics/ceil_div.h"

namespace quire::test {
namespace {

using faults_detail::Facts;
using faults_detail::Key;
using faults_detail::Model;
using faults_detail::Row;
using faults_detail::RowHead;
using faults_detail::RowResult;
using faults_detail::Side;
using testing::HasSubstr;
using N = std::int64_t;

constexpr double kNone = -std::numeric_limits<double>::infinity();

/// A row of the batch, key by key, up to the end of its last page.
struct Laid {
  const Facts& f;
  Row row;
  std::vector<double> dots, scores;
  std::vector<std::vector<double>> values;
  double sink = kNone;

  N index() const { return row.token - row.first_token; }
  std::size_t size() const { return scores.size(); }
  bool sees(N k) const { return f.sees(row, k); }
  bool in_tree(N k) const {
    const N length = f.tree_lens[Facts::at(row.req)];
    return length > 0 && k >= row.seq_len - length && k < row.seq_len;
  }
  /// Scores of the keys for which `seen` is true, and `other` for the rest.
  template <typename Seen>
  std::vector<double> masked(Seen&& seen, double other = kNone) const {
    std::vector<double> list = scores;
    for (std::size_t k = 0; k < list.size(); ++k)
      if (!seen(static_cast<N>(k))) list[k] = static_cast<N>(k) < row.seq_len ? other : kNone;
    return list;
  }
  std::vector<double> masked() const {
    return masked([&](N k) { return sees(k); });
  }
};

Laid laid(const Model& truth, const RowHead& at) {
  Laid l{*truth.facts, truth.row(at.token, at.head), {}, {}, {}, kNone};
  std::vector<double> query(Facts::at(l.f.head_dim)), key(query.size()), value(Facts::at(l.f.v_head_dim));
  std::vector<N> scratch;
  for (std::size_t d = 0; d < query.size(); ++d) query[d] = truth.query(l.row, static_cast<N>(d));
  const N end = l.row.cached_len < l.row.seq_len ? l.row.seq_len : semantics::round_up(l.row.seq_len, l.f.page_size);
  for (N k = 0; k < end; ++k) {
    load_vector(truth, l.row, Side::key, k, scratch, key);
    load_vector(truth, l.row, Side::value, k, scratch, value);
    double dot = 0;
    for (std::size_t d = 0; d < query.size(); ++d) dot += query[d] * key[d];
    l.dots.push_back(dot);
    l.scores.push_back(truth.score(truth, l.row, k, dot));
    l.values.push_back(value);
  }
  l.sink = truth.sink(l.row);
  return l;
}

double largest_of(const std::vector<double>& scores, double start = kNone) {
  for (const double score : scores) start = std::max(start, score);
  return start;
}

/// sum_k w_k V_k / sum; V of key source(k).
std::vector<double> average(const Laid& l, const std::vector<double>& weights, double sum, N (*source)(N) = nullptr) {
  std::vector<double> out(l.values.empty() ? Facts::at(l.f.v_head_dim) : l.values[0].size(), 0.0);
  for (std::size_t k = 0; k < weights.size(); ++k)
    for (std::size_t d = 0; d < out.size() && weights[k] > 0; ++d)
      out[d] += weights[k] * l.values[source == nullptr ? k : Facts::at(source(static_cast<N>(k)))][d] / sum;
  return out;
}

std::vector<double> exponentials(const std::vector<double>& scores, double max) {
  std::vector<double> weights;
  for (const double score : scores) weights.push_back(score == kNone ? 0 : std::exp(score - max));
  return weights;
}

double sum_of(const std::vector<double>& weights) { return std::accumulate(weights.begin(), weights.end(), 0.0); }

/// The softmax over these scores, with the row's sink.
std::vector<double> softmax(const Laid& l, const std::vector<double>& scores, N (*source)(N) = nullptr) {
  const double max = largest_of(scores, l.sink);
  if (max == kNone) return std::vector<double>(Facts::at(l.f.v_head_dim), 0.0);
  const std::vector<double> weights = exponentials(scores, max);
  return average(l, weights, sum_of(weights) + (l.sink == kNone ? 0 : std::exp(l.sink - max)), source);
}

using Equation = std::vector<double> (*)(const Model&, const Laid&);

struct Mistake {
  const char* name;
  const char* line;
  Equation out;
  const char *text, *detail;  ///< parts of the words that name it
};

/// Finite numbers in slots that no right kernel reads: a mistake that reads them is seen by its numbers.
void fill_stale_slots(Case& c) {
  for (Tensor* t : {&c.cache.k, &c.cache.v})
    for (N i = 0; t->dtype == DType::f32 && i < t->num_elements(); ++i)
      if (float& x = static_cast<float*>(t->data)[i]; !std::isfinite(x))
        x = static_cast<float>(std::sin(0.7 * static_cast<double>(i)));
}

Case written(const Mistake& mistake) {
  Case c = right(mistake.line);
  fill_stale_slots(c);
  const Facts facts(c.batch, c.cache, c.options);
  const Model truth(facts);
  for (N token = 0; token < facts.num_tokens; ++token)
    for (N head = 0; head < facts.num_q_heads; ++head) {
      RowResult result;
      result.out = mistake.out(truth, laid(truth, {token, head}));
      faults_detail::store_row(c.batch, {token, head}, result);
    }
  observe_output(c);
  return c;
}

/// The equation with another condition of what is seen.
template <typename Seen>
std::vector<double> seeing(const Laid& l, Seen&& seen) {
  return softmax(l, l.masked(seen));
}

std::vector<double> accumulator_not_rescaled(const Laid& l, N tile, N from) {
  const std::vector<double> scores = l.masked();
  const double last = largest_of(scores);
  std::vector<double> weights(scores.size(), 0.0), kept;
  double max = kNone, sum = 0;
  for (N begin = 0; begin < l.row.seq_len; begin += tile) {
    const double before = max;
    for (N k = begin; k < std::min(begin + tile, l.row.seq_len); ++k) max = std::max(max, scores[Facts::at(k)]);
    const double rescaled = before == kNone || begin / tile >= from ? 1 : std::exp(before - max);
    for (double& weight : weights) weight *= rescaled;
    for (N k = begin; k < std::min(begin + tile, l.row.seq_len); ++k)
      if (scores[Facts::at(k)] != kNone) weights[Facts::at(k)] = std::exp(scores[Facts::at(k)] - max);
  }
  for (const double score : scores) sum += score == kNone ? 0 : std::exp(score - last);
  return average(l, weights, sum);
}

/// out * denominator / denominator of another row.
std::vector<double> over_another(const Model& truth, const Laid& l, const RowHead& other) {
  const auto denominator = [](const Laid& row) { return sum_of(exponentials(row.masked(), largest_of(row.masked()))); };
  const std::vector<double> weights = exponentials(l.masked(), largest_of(l.masked()));
  return average(l, weights, denominator(laid(truth, other)));
}

/// Keys of a split: each request is cut into another number of parts, of whole tiles of 32.
N split_of(const Laid& l) { return semantics::round_up(semantics::ceil_div(l.row.seq_len, 2 + l.row.req % 3), 32); }

struct PartialSum {
  double max = kNone, sum = 0;
  std::vector<double> weights;  ///< weights of all keys, relative to `max`
};

std::vector<PartialSum> partial_sums(const Laid& l) {
  std::vector<PartialSum> parts;
  for (N begin = 0; begin < l.row.seq_len; begin += split_of(l)) {
    const std::vector<double> scores = l.masked([&](N k) { return l.sees(k) && k >= begin && k < begin + split_of(l); });
    PartialSum part{largest_of(scores), 0, {}};
    part.weights = exponentials(scores, part.max);
    part.sum = sum_of(part.weights);
    parts.push_back(std::move(part));
  }
  return parts;
}

/// sum_j factor(j) * (sums of part j) / divisor.
template <typename Factor>
std::vector<double> merged(const Laid& l, Factor&& factor, double divisor) {
  std::vector<double> weights(l.size(), 0.0);
  for (const PartialSum& part : partial_sums(l))
    for (std::size_t k = 0; k < weights.size() && part.sum > 0; ++k) weights[k] += factor(part) * part.weights[k];
  return average(l, weights, divisor);
}

/// The merge with one split of another row or head.
std::vector<double> with_split_of(const Model& truth, const Laid& l, N split, const RowHead& other) {
  const auto inside = [&](N k) { return k / split_of(l) == split; };
  const Laid from = laid(truth, other);
  const std::vector<double> own = l.masked([&](N k) { return l.sees(k) && !inside(k); }),
                            taken = from.masked([&](N k) { return from.sees(k) && inside(k); });
  const double max = std::max(largest_of(own), largest_of(taken));
  const std::vector<double> kept = exponentials(own, max), more = exponentials(taken, max);
  std::vector<double> out = average(l, kept, sum_of(kept) + sum_of(more)),
                      added = average(from, more, sum_of(kept) + sum_of(more));
  for (std::size_t d = 0; d < out.size(); ++d) out[d] += added[d];
  return out;
}

const char* const kLong = "q=f32 heads=4:2 d=32 page=8 scale=0.4 reqs=20@241,1@390,33@164,1@177 seed=17";
const char* const kMix = "q=f32 heads=4:2 d=32 page=8 reqs=20@41,1@150,33@64,1@77 seed=3";

const Mistake kMistakes[] = {
    {"TreeTransposed", "q=f32 heads=4:2 d=32 page=8 tree=9,0,7,11 reqs=9@47,6@50,7@51,11@55 seed=5",
     [](const Model&, const Laid& l) {
       const N begin = l.row.seq_len - l.f.tree_lens[Facts::at(l.row.req)];
       return seeing(l, [&](N k) { return l.in_tree(k) ? l.f.tree_bit(l.row.first_token + k - begin, l.index()) : l.sees(k); });
     },
     "reads tree_mask transposed", ""},
    {"TreeBitOfTheKeyBefore", "q=f32 heads=4:2 d=32 page=8 tree=9,0,7,11 reqs=9@47,6@50,7@51,11@55 seed=6",
     [](const Model&, const Laid& l) {
       const N begin = l.row.seq_len - l.f.tree_lens[Facts::at(l.row.req)];
       return seeing(l, [&](N k) { return l.in_tree(k) ? k > begin && l.f.tree_bit(l.row.token, k - begin - 1) : l.sees(k); });
     },
     "reads the bit of the key before", ""},
    {"WindowBothWays", "q=f32 heads=4:2 d=32 page=8 window=10 causal=0 reqs=40@0,30@20,25@0 seed=7",
     [](const Model&, const Laid& l) {
       return seeing(l, [&](N k) { return k > l.row.q_pos - 10 && k < std::min(l.row.q_pos + 10, l.row.seq_len); });
     },
     "applies the window to keys behind the row", ""},
    {"LastTileMasked", "q=f32 heads=4:2 d=32 page=8 reqs=70@13,40@21,1@99 seed=8",
     [](const Model&, const Laid& l) {
       const N end = std::min((l.index() / 32 + 1) * 32, l.row.query_len), last = l.row.context_len() + end - 1;
       return seeing(l, [&](N k) { return k <= l.row.q_pos || k < last / 16 * 16; });
     },
     "masks the last tile of keys only", "tiles of 32 rows and 16 keys"},
    {"SoftCapAfterMask", "q=f32 heads=4:2 d=32 page=8 cap=2 reqs=20@41,1@50,33@64,1@77 seed=10",
     [](const Model&, const Laid& l) { return softmax(l, l.masked([&](N k) { return l.sees(k); }, -2)); },
     "applies the soft cap after the mask", "up to seq_len"},
    {"MaximumFrom98", "q=f32 heads=4:2 d=32 page=8 scale=1 reqs=20@41,1@150,33@64,1@77 seed=21",
     [](const Model&, const Laid& l) {
       std::vector<double> scores = l.masked();
       for (double& score : scores)
         if (score < 98 - 87.336 && largest_of(l.masked()) < 98) score = kNone;
       return softmax(l, scores);
     },
     "starts the running maximum at a finite number", ""},
    {"HiddenKeysFromMinus7", "q=f32 heads=4:2 d=32 page=8 scale=1 reqs=20@0,1@150,33@4,1@77 seed=22",
     [](const Model&, const Laid& l) { return softmax(l, l.masked([&](N k) { return l.sees(k); }, -7)); },
     "gives hidden keys a finite score", "-7, up to seq_len"},
    {"HiddenKeysInDenominator", kMix,
     [](const Model&, const Laid& l) {
       const std::vector<double> all = l.masked([&](N k) { return k < l.row.seq_len; });
       return average(l, exponentials(l.masked(), largest_of(all)), sum_of(exponentials(all, largest_of(all))));
     },
     "counts hidden keys in the denominator", "up to seq_len"},
    {"DistanceByTile", "q=f32 heads=4:2 d=32 page=8 alibi=1 reqs=20@41,1@150,33@64,1@77 seed=11",
     [](const Model&, const Laid& l) {
       std::vector<double> scores = l.masked();
       for (N k = 0; k < l.row.seq_len; ++k)
         scores[Facts::at(k)] -= faults_detail::slope_of(l.f, l.row.head) * static_cast<double>(k % 16);
       return softmax(l, scores);
     },
     "takes the ALiBi distance of a tile's first key", "16 keys"},
    {"AccumulatorNotRescaledFromTile2", "q=f32 heads=4:2 d=32 page=8 scale=0.4 reqs=20@241,1@250,33@164,1@177 seed=12",
     [](const Model&, const Laid& l) { return accumulator_not_rescaled(l, 32, 2); }, "does not rescale the accumulator",
     "32 keys, from tile 2 on"},
    {"SlotsBehindTheEnd", "q=f32 heads=4:2 d=32 page=4 reqs=1@41,1@150,7@64,1@77 seed=13",
     [](const Model&, const Laid& l) {
       const double max = largest_of(l.masked()),
                    slots = l.row.query_len == 1 ? static_cast<double>((64 - l.row.seq_len % 64) % 64) : 0;
       const std::vector<double> weights = exponentials(l.masked(), max);
       return average(l, weights, sum_of(weights) + slots * std::exp(-max));
     },
     "counts slots behind the end", "tile of 64, behind the sequence"},
    {"StaleSlotsBehindTheEnd", "q=f32 heads=4:2 d=32 page=24 reqs=1@41,1@150,37@64,1@77,1@207 seed=16",
     [](const Model&, const Laid& l) {
       return seeing(l, [&](N k) { return l.sees(k) || (l.row.query_len == 1 && k < semantics::round_up(l.row.seq_len, 8)); });
     },
     "ends its range of keys elsewhere", "seq_len rounded up to whole tiles of 8"},
    {"DenominatorOfTheRowBefore", kMix,
     [](const Model& truth, const Laid& l) {
       const N rows = l.row.query_len;
       return over_another(truth, l, {l.row.first_token + (l.index() + rows - 1) % rows, l.row.head});
     },
     "divides by the denominator of another row", "of the row before"},
    {"DenominatorOfTheNextHead", kMix,
     [](const Model& truth, const Laid& l) { return over_another(truth, l, {l.row.token, (l.row.head + 1) % 4}); },
     "divides by the denominator of another row", "of the head behind"},
    {"VOfTheTileBefore", kMix,
     [](const Model&, const Laid& l) { return softmax(l, l.masked(), [](N k) { return k < 32 ? k : k - 32; }); },
     "reads V from another page or slot", "each tile of 32 keys from the one before"},
    {"KOfEveryThirdTile", kMix,
     [](const Model&, const Laid& l) {
       std::vector<double> scores = l.masked();
       for (N k = 0; k < l.row.seq_len; ++k)
         if (k / 16 % 3 == 2 && l.sees(k)) scores[Facts::at(k)] = l.scores[Facts::at(k - 16)];
       return softmax(l, scores);
     },
     "reads K from another page or slot", "t % 3 = 2"},
    {"EverySecondTileLeftOut", kMix,
     [](const Model&, const Laid& l) { return seeing(l, [&](N k) { return l.sees(k) && k / 16 % 2 == 1; }); },
     "leaves out every m-th tile of keys", "tiles t of 16 keys with t % 2 = 0"},
    {"BorderKeysTwice", "q=f32 heads=4:2 d=32 page=8 reqs=20@141,1@150,33@164,1@177 seed=14",
     [](const Model&, const Laid& l) {
       std::vector<double> scores = l.masked();
       for (N k = 32; k < l.row.seq_len; k += 32) scores[Facts::at(k)] += std::log(2.0);
       return softmax(l, scores);
     },
     "counts keys twice where splits meet", "the first 1 of each tile of 32"},
    {"SplitsAveraged", kLong,
     [](const Model&, const Laid& l) {
       return merged(l, [](const PartialSum& part) { return 1 / part.sum; }, static_cast<double>(partial_sums(l).size()));
     },
     "averages partial results", "splits of 160 keys in request 0, 160 in request 1, 64 in request 2, 96 in request 3"},
    {"PartialSumsNotRescaled", kLong,
     [](const Model&, const Laid& l) {
       return merged(l, [](const PartialSum&) { return 1.0; }, sum_of(exponentials(l.masked(), largest_of(l.masked()))));
     },
     "does not rescale partial sums", "splits of 160 keys in request 0, 160 in request 1, 64 in request 2, 96 in request 3"},
    {"SecondSplitLeftOut", kLong,
     [](const Model&, const Laid& l) { return seeing(l, [&](N k) { return l.sees(k) && k / split_of(l) != 1; }); },
     "leaves out the result of a split", "the second one, splits of 160 keys in request 0"},
    {"DenominatorsOfSplitsNotRescaled", kLong,
     [](const Model&, const Laid& l) {
       const std::vector<double> scores = l.masked();
       const double last = largest_of(scores);
       double running = kNone, sum = 0;
       for (const PartialSum& part : partial_sums(l)) {
         running = kNone;
         for (N k = 0; k < l.row.seq_len; k += 32) {
           const std::vector<double> tile = l.masked([&](N j) { return j >= k && j < k + 32 && part.weights[Facts::at(j)] > 0; });
           running = std::max(running, largest_of(tile));
           if (running > kNone) sum += std::exp(part.max - last) * sum_of(exponentials(tile, running));
         }
       }
       return average(l, exponentials(scores, last), sum);
     },
     "does not rescale the denominator", "tiles of 32 keys, splits of 160 keys in request 0"},
    {"SecondSplitOfTheFirstRow", kLong,
     [](const Model& truth, const Laid& l) { return with_split_of(truth, l, 1, {l.row.first_token, l.row.head}); },
     "merges the partial result of another row or head", "the second split of the first row of its request, splits of 160"},
    {"FirstSplitOfTheHeadBehind", kLong,
     [](const Model& truth, const Laid& l) { return with_split_of(truth, l, 0, {l.row.token, (l.row.head + 1) % 4}); },
     "merges the partial result of another row or head", "the first split of the head behind, splits of 160"},
    {"EndsOfSplitsTwice", kLong,
     [](const Model&, const Laid& l) {
       std::vector<double> scores = l.masked();
       for (N end = split_of(l); end < l.row.seq_len; end += split_of(l))
         for (N k = end - 8; k < end; ++k) scores[Facts::at(k)] += std::log(2.0);
       return softmax(l, scores);
     },
     "counts keys twice where splits meet", "the last 8 of each split, splits of 160 keys in request 0"},
};

class Equations : public testing::TestWithParam<Mistake> {};

TEST_P(Equations, IsNamed) {
  const Diagnosis d = diagnosed(written(GetParam()));
  ASSERT_EQ(d.verdict, DiagnosisVerdict::cause_found) << to_string(d);
  EXPECT_THAT(d.suspicions[0].text, HasSubstr(GetParam().text)) << to_string(d);
  EXPECT_THAT(d.suspicions[0].detail, HasSubstr(GetParam().detail)) << to_string(d);
}

std::string name_of(const testing::TestParamInfo<Mistake>& test) { return test.param.name; }
INSTANTIATE_TEST_SUITE_P(, Equations, testing::ValuesIn(kMistakes), name_of);

}  // namespace
}  // namespace quire::test
