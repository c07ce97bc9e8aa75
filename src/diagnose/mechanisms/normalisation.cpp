// SPDX-License-Identifier: Apache-2.0
// The sum over keys is right, and what it is divided by is not: another row's, or one with slots behind the end; or one of the
// two is not rescaled when the maximum rises, from some tile on.
#include <algorithm>
#include <array>
#include <cmath>

#include "diagnose/mechanisms/request_splits.h"
#include "semantics/ceil_div.h"
#include "text/formatted.h"

namespace quire::diagnose_detail {
namespace {

constexpr double kNoSink = 1e-12;  // relative to a denominator: rounding error of a difference whose true value is 0
constexpr double kNegInf = -std::numeric_limits<double>::infinity();
const char* const kNextNormalisation =
    "multiply the accumulator and the denominator by exp(old max - new max) in every tile; divide by the sum of all weights";

/// The sums of one row's softmax, relative to its maximum.
struct Sums {
  std::span<const Key> keys;
  std::span<const double> scores;
  const Row& row;
  double max = 0, denominator = 0;  ///< the sink included
  /// exp(sink - largest), for another maximum than `max`.
  double sink_beside(double largest) const {
    double keys_alone = 0;
    for (const double score : scores) keys_alone += score == kNegInf ? 0 : std::exp(score - max);
    const double rest = denominator - keys_alone;
    return rest < kNoSink * denominator ? 0 : rest * std::exp(max - largest);
  }
};

/// Tiles of keys: from position 0, or from the first key of the row; within splits, if requests have them.
struct Tiles {
  std::int64_t size = 1;
  bool from_first = false;
  SplitSizes splits = {};
  std::int64_t of(const Sums& s, std::size_t i) const { return of_position(s, s.keys[i].position); }
  std::int64_t of_position(const Sums& s, std::int64_t position) const {
    return (position - (from_first ? s.keys.front().position : 0)) / size;
  }
};

/// The maximum up to the end of each key's tile, `running`, and that of its split, `whole`: of all keys without splits.
struct Maxima {
  std::vector<double> running, whole;
};

/// Up to tile `from` of a split, keys follow the maximum all the same.
Maxima maxima_of(const Sums& s, const Tiles& tiles, std::int64_t from = 1) {
  const std::size_t n = s.scores.size();
  const std::int64_t size = size_of_splits(tiles.splits, s.row.req);
  Maxima result{std::vector<double>(n), std::vector<double>(n)};
  for (std::size_t begin = 0; begin < n;) {
    const std::int64_t split = s.keys[begin].position / size;
    std::size_t end = begin, i = begin;
    double max = kNegInf;
    while (i < n && s.keys[i].position / size == split) {
      while (end < n && s.keys[end].position / size == split && tiles.of(s, end) == tiles.of(s, i))
        max = std::max(max, s.scores[end++]);
      const bool follows = tiles.of(s, i) - split * (size / tiles.size) < from;
      for (std::size_t j = follows ? begin : i; j < end; ++j) result.running[j] = max;
      i = end;
    }
    std::fill(result.whole.begin() + static_cast<std::ptrdiff_t>(begin), result.whole.begin() + static_cast<std::ptrdiff_t>(i),
              max);
    begin = i;
  }
  return result;
}

/// Changes the normalised weights; gives the denominator that an lse would be made of.
using Change = std::function<double(const Sums&, std::vector<double>& p)>;

void plant(Model& m, const Change& change, bool in_lse) {
  m.softmax = [change, in_lse, before = m.softmax](const Model& model, const Row& row, std::span<const Key> keys,
                                                   std::span<const double> scores, std::vector<double>& p) {
    const double lse = before(model, row, keys, scores, p);
    if (lse == kNegInf || keys.empty()) return lse;
    const double max = faults_detail::largest(scores, model.sink(row));
    const Sums sums{keys, scores, row, max, std::exp(lse - max)};
    const double denominator = change(sums, p);
    return in_lse ? max + std::log(denominator) : lse;
  };
}

/// Divides the same weights by another denominator.
Change over(std::function<double(const Sums&)> denominator) {
  return [denominator = std::move(denominator)](const Sums& s, std::vector<double>& p) {
    const double sum = denominator(s);
    for (double& weight : p) weight *= s.denominator / sum;
    return sum;
  };
}

/// The sums of an online softmax are kept relative to the largest key so far; a sink joins them at the end.
Change denominator_not_rescaled(const Tiles& tiles) {
  return over([tiles](const Sums& s) {
    const Maxima max = maxima_of(s, tiles);
    double sum = s.sink_beside(s.max);
    for (std::size_t i = 0; i < s.scores.size(); ++i)
      sum += s.scores[i] == kNegInf ? 0 : std::exp(s.scores[i] - max.running[i] + max.whole[i] - s.max);
    return sum;
  });
}

/// Up to tile `from` of a split the accumulator follows the maximum, and from there on no longer.
Change accumulator_not_rescaled(const Tiles& tiles, std::int64_t from) {
  return [tiles, from](const Sums& s, std::vector<double>& p) {
    const Maxima max = maxima_of(s, tiles, from);
    for (std::size_t i = 0; i < p.size(); ++i) p[i] *= std::exp(max.whole[i] - max.running[i]);
    return s.denominator;
  };
}

Change neither_rescaled(const Tiles& tiles) {
  return [tiles](const Sums& s, std::vector<double>& p) {
    const Maxima max = maxima_of(s, tiles);
    double sum = s.sink_beside(s.max);
    for (std::size_t i = 0; i < p.size(); ++i) {
      p[i] *= std::exp(max.whole[i] - max.running[i]);
      sum += s.denominator * p[i];
    }
    for (double& weight : p) weight *= s.denominator / sum;
    return sum;
  };
}

Change denominator_without_last_tile(const Tiles& tiles) {
  return over([tiles](const Sums& s) {
    const std::int64_t last = tiles.of(s, s.keys.size() - 1);
    double sum = s.denominator;
    for (std::size_t i = 0; i < s.scores.size(); ++i)
      if (tiles.of(s, i) == last && tiles.of(s, 0) != last && s.scores[i] != kNegInf) sum -= std::exp(s.scores[i] - s.max);
    return sum;
  });
}

/// Slots behind the last key, up to the end of a tile: kernels that load zeros there and do not mask them add exp(0) for each.
Change zeros_behind_the_end(std::int64_t tile, bool of_sequence) {
  return over([tile, of_sequence](const Sums& s) {
    const bool unbounded = s.row.query_len == 1 || !s.row.causal;  // no causal mask hides what lies behind the end
    const std::int64_t end = of_sequence ? s.row.seq_len : s.keys.back().position + 1;
    const std::int64_t slots = of_sequence && !unbounded ? 0 : semantics::round_up(end, tile) - end;
    return s.denominator + static_cast<double>(slots) * std::exp(-s.max);
  });
}

/// exp(old max - new max) taken with another base than the weights' own.
Change rescaled_in_another_base(const Tiles& tiles, double factor, bool accumulator, bool denominator) {
  return [=](const Sums& s, std::vector<double>& p) {
    const Maxima max = maxima_of(s, tiles);
    double sum = s.sink_beside(s.max);
    for (std::size_t i = 0; i < p.size(); ++i) {
      const double wrong = std::exp((factor - 1) * (max.running[i] - max.whole[i]));
      if (s.scores[i] != kNegInf) sum += std::exp(s.scores[i] - s.max) * (denominator ? wrong : 1);
      if (accumulator) p[i] *= wrong;
    }
    for (double& weight : p) weight *= s.denominator / sum;
    return sum;
  };
}

enum class Kept { first, last, last_of_sequence };

/// Rows that see nothing of the last tile of the sequence divide by 0, which kernels store as 0.
Change one_tile_in_denominator(const Tiles& tiles, Kept kept) {
  return [tiles, kept](const Sums& s, std::vector<double>& p) {
    const std::int64_t wanted = kept == Kept::last_of_sequence ? tiles.of_position(s, s.row.seq_len - 1)
                                                               : tiles.of(s, kept == Kept::last ? s.keys.size() - 1 : 0);
    double sum = s.sink_beside(s.max);
    for (std::size_t i = 0; i < s.scores.size(); ++i)
      if (tiles.of(s, i) == wanted && s.scores[i] != kNegInf) sum += std::exp(s.scores[i] - s.max);
    for (double& weight : p) weight *= sum > 0 ? s.denominator / sum : 0;
    return sum;
  };
}

/// Divides by what belongs to another row or head; `whole`: with its maximum, which is the other's lse.
Plant over_denominator_of(std::function<RowHead(const Facts&, const Row&)> other, bool whole) {
  return [other = std::move(other), whole](Model& m) {
    Model logs = m;  // its lse is the logarithm of the denominator
    if (!whole)
      logs.softmax = [before = m.softmax](const Model& model, const Row& row, std::span<const Key> keys,
                                          std::span<const double> scores, std::vector<double>& p) {
        const double lse = before(model, row, keys, scores, p);
        return lse == kNegInf ? 0 : lse - faults_detail::largest(scores, model.sink(row));
      };
    m.finish = [f = m.facts, other, logs, before = m.finish](const Row& row, RowResult& result) {
      before(row, result);
      const std::array rows{RowHead{row.token, row.head}, other(*f, row)};
      const std::vector<RowResult> both = evaluate(logs, rows);
      for (double& value : result.out) value *= std::exp(both[0].lse - both[1].lse);
    };
  };
}

void propose_denominator_of(Proposals& list) {
  struct Other {
    const char* detail;
    std::function<RowHead(const Facts&, const Row&)> at;
  };
  using N = std::int64_t;
  std::vector<Other> others;
  const auto row = [&](const char* detail, N (*index)(N index, N rows)) {
    others.push_back({detail, [index](const Facts&, const Row& r) {
                        const N i = r.token - r.first_token, n = std::max<N>(r.query_len, 1);
                        return RowHead{r.first_token + (index(i, n) % n + n) % n, r.head};
                      }});
  };
  row("of the row behind, in its request", [](N i, N) { return i + 1; });
  row("of the row before, in its request", [](N i, N) { return i - 1; });
  row("of the first row of its request", [](N, N) { return N{0}; });
  row("of the last row of its request", [](N, N n) { return n - 1; });
  for (const N by : {-1, 1})
    others.push_back({by < 0 ? "of the head before" : "of the head behind", [by](const Facts& f, const Row& r) {
                        return RowHead{r.token, (r.head + by + f.num_q_heads) % f.num_q_heads};
                      }});
  others.push_back({"of the first head of its group",
                    [](const Facts& f, const Row& r) { return RowHead{r.token, r.head / f.group * f.group}; }});
  for (const Other& other : others)
    for (const bool whole : {false, true})
      list.push_back({"normalisation", "divides by the denominator of another row or head",
                      formatted("{}{}", other.detail, whole ? ", with its maximum" : ""), kNextNormalisation, 0,
                      over_denominator_of(other.at, whole)});
}

/// exp(-infinity - -infinity) in rows that see no key of the first tile.
void propose_nan_of_masked_tile(const Facts& facts, Proposals& list) {
  for (std::int64_t tile = 8; tile <= 256; tile *= 2)
    list.push_back({"normalisation", "makes NaN of rows whose first tile of keys is masked wholly",
                    formatted("tiles of {} keys", tile),
                    "a maximum of -infinity stays one: take exp(score - 0) there, which is 0", 0,
                    result_changed([f = &facts, tile](const Row& row, RowResult& result) {
                      const Span seen = f->hull(row.req, row.q_pos);
                      if (seen.begin < tile) return;
                      std::fill(result.out.begin(), result.out.end(), std::numeric_limits<double>::quiet_NaN());
                      result.lse = std::numeric_limits<double>::quiet_NaN();
                    })});
}

std::vector<std::int64_t> tile_sizes(const Facts& f) {
  std::vector<std::int64_t> list{1, 4, 8, 16, 32, 64, 128, 256, 512};
  for (const std::int64_t pages : {1, 2, 4, 8})
    if (const std::int64_t tile = pages * f.page_size; std::find(list.begin(), list.end(), tile) == list.end())
      list.push_back(tile);
  return list;
}

/// Sums that are not rescaled within the splits of a request, which are merged rightly.
void propose_within_splits(const Scene& scene, bool in_lse, Proposals& list) {
  const std::vector<CellOfRequest> cells = cell_of_each_request(scene);
  const auto fit = [&](const std::string& text, const std::string& detail, std::function<Change(const Tiles&)> change,
                       std::int64_t size) {
    const auto mistake = [=](const SplitSizes& splits) -> Plant {
      return [=](Model& m) { plant(m, change({size, false, splits}), in_lse); };
    };
    if (const std::optional<SplitSizes> sizes = fitted_sizes(scene.facts, cells, mistake))
      list.push_back({"normalisation", text, formatted("tiles of {} keys, {}{}", size, detail, text_of(*sizes)),
                      kNextNormalisation, 2, mistake(*sizes)});
  };
  for (const std::int64_t size : {16, 32, 64, 128}) {
    fit("does not rescale the denominator when a later tile raises the maximum", "", denominator_not_rescaled, size);
    fit("rescales neither sum when a later tile raises the maximum", "", neither_rescaled, size);
    for (const std::int64_t from : {1, 2, 3})
      fit(
          "does not rescale the accumulator when a later tile raises the maximum", formatted("from tile {} on, ", from),
          [from](const Tiles& tiles) { return accumulator_not_rescaled(tiles, from); }, size);
  }
}

}  // namespace

void propose_normalisation(const Scene& scene, Proposals& list) {
  const bool in_lse = std::any_of(scene.wrong.begin(), scene.wrong.end(), [](const Compared* c) { return c->wrong_lse; });
  const auto add = [&](std::string text, std::string detail, const Change& change) {
    list.push_back({"normalisation", std::move(text), std::move(detail), kNextNormalisation, 0,
                    [change, in_lse](Model& m) { plant(m, change, in_lse); }});
  };
  const std::int64_t page = scene.facts.page_size;
  add("divides by the number of keys", "", over([](const Sums& s) { return static_cast<double>(s.keys.size()); }));
  add("divides by the number of keys in whole pages", "", over([page](const Sums& s) {
        const std::int64_t pages = s.keys.back().position / page - s.keys.front().position / page + 1;
        return static_cast<double>(pages * page);
      }));
  add("does not divide by the denominator", "", over([](const Sums&) { return 1.0; }));
  add("divides twice by the denominator", "", over([](const Sums& s) { return s.denominator * s.denominator; }));
  add("leaves the last key out of the denominator", "",
      over([](const Sums& s) { return s.denominator - std::exp(s.scores.back() - s.max); }));
  add("adds the softmax of the maximum, 1, to the denominator", "", over([](const Sums& s) { return s.denominator + 1; }));
  for (const std::int64_t tile : tile_sizes(scene.facts))
    for (const bool of_sequence : {false, true})
      add("counts slots behind the end with score 0 in the denominator",
          formatted("up to the end of a tile of {}, behind {}", tile, of_sequence ? "the sequence" : "the row's last key"),
          zeros_behind_the_end(tile, of_sequence));
  propose_denominator_of(list);
  propose_nan_of_masked_tile(scene.facts, list);
  for (const std::int64_t size : tile_sizes(scene.facts))
    for (const bool from_first : {false, true}) {
      if (from_first && (size == 1 || !scene.facts.windowed())) continue;
      const Tiles tiles{size, from_first};
      const std::string detail = formatted("tiles of {} keys{}", size, from_first ? ", from the row's first key on" : "");
      add("does not rescale the denominator when a later tile raises the maximum", detail, denominator_not_rescaled(tiles));
      for (const std::int64_t from : {1, 2, 3, 4})
        add("does not rescale the accumulator when a later tile raises the maximum",
            detail + (from == 1 ? "" : formatted(", from tile {} on", from)), accumulator_not_rescaled(tiles, from));
      add("rescales neither sum when a later tile raises the maximum", detail, neither_rescaled(tiles));
      add("leaves the last tile out of the denominator", detail, denominator_without_last_tile(tiles));
      for (const double factor : {std::log(2.0), 1 / std::log(2.0)})
        for (const bool accumulator : {false, true})
          for (const bool denominator : {false, true})
            if (accumulator || denominator)
              add(formatted("rescales {} in another base when a later tile raises the maximum", !accumulator   ? "the denominator"
                                                                                                : !denominator ? "the accumulator"
                                                                                                               : "both sums"),
                  formatted("exp({:.4g} (old max - new max)), {}", factor, detail),
                  rescaled_in_another_base(tiles, factor, accumulator, denominator));
      add("keeps only the last tile in the denominator", detail, one_tile_in_denominator(tiles, Kept::last));
      add("keeps only the last tile of the sequence in the denominator", detail,
          one_tile_in_denominator(tiles, Kept::last_of_sequence));
      add("keeps only the first tile in the denominator", detail, one_tile_in_denominator(tiles, Kept::first));
    }
  propose_within_splits(scene, in_lse, list);
}

}  // namespace quire::diagnose_detail
