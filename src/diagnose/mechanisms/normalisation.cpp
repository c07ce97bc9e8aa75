// SPDX-License-Identifier: Apache-2.0
// The sum over keys is right, and what it is divided by is not: another row's, or one with slots behind the end; or one of the
// two is not rescaled when the maximum rises, from some tile on.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <tuple>

#include "diagnose/mechanisms/other_cell.h"
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
  for (const OtherCell& other : other_cells())
    for (const bool whole : {false, true})
      list.push_back({"normalisation", "divides by the denominator of another row or head",
                      formatted("{}{}", other.text, whole ? ", with its maximum" : ""), kNextNormalisation, 0,
                      over_denominator_of(other.at, whole)});
}

/// exp(-infinity - -infinity) in rows that see no key of the first tile: tiles that end behind the first keys of right rows, and
/// not behind that of any row of NaN.
void propose_nan_of_masked_tile(const Scene& scene, Proposals& list) {
  const auto begin_of = [f = &scene.facts](const Row& row) { return f->hull(row.req, row.q_pos).begin; };
  const Model truth(scene.facts);
  std::int64_t first_nan = std::numeric_limits<std::int64_t>::max(), last_right = 0;
  for (const Compared* cell : scene.wrong)
    if (cell->nonfinite > 0) first_nan = std::min(first_nan, begin_of(truth.row(cell->token, cell->head)));
  for (const Compared& cell : scene.where.rows)
    if (const std::int64_t begin = begin_of(truth.row(cell.token, cell.head)); !cell.wrong && begin < first_nan)
      last_right = std::max(last_right, begin);
  std::vector<std::int64_t> sizes;
  for (std::int64_t tile = 8; tile <= 256; tile *= 2)
    if (tile > last_right && tile <= first_nan) sizes.push_back(tile);
  if (sizes.empty() || first_nan == std::numeric_limits<std::int64_t>::max()) return;
  list.push_back({"normalisation", "makes NaN of rows whose first tile of keys is masked wholly",
                  formatted("tiles of {} keys", fmt::join(sizes, " or ")),
                  "a maximum of -infinity stays one: take exp(score - 0) there, which is 0", sizes.size() > 1 ? 1 : 0,
                  result_changed([begin_of, tile = sizes.back()](const Row& row, RowResult& result) {
                    if (begin_of(row) < tile) return;
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

/// Changes of the softmax as proposals.
class Adder {
 public:
  Adder(const Scene& scene, Proposals& list) : list_(list) {
    in_lse_ = std::any_of(scene.wrong.begin(), scene.wrong.end(), [](const Compared* c) { return c->wrong_lse; });
  }
  bool in_lse() const { return in_lse_; }
  void add(std::string text, std::string detail, const Change& change) const {
    list_.push_back({"normalisation", std::move(text), std::move(detail), kNextNormalisation, 0,
                     [change, in_lse = in_lse_](Model& m) { plant(m, change, in_lse); }});
  }

 private:
  Proposals& list_;
  bool in_lse_ = false;
};

/// Divisions by another number of the same row.
void propose_divisors(const Facts& facts, const Adder& to) {
  const std::int64_t page = facts.page_size;
  to.add("divides by the number of keys", "", over([](const Sums& s) { return static_cast<double>(s.keys.size()); }));
  to.add("divides by the number of keys in whole pages", "", over([page](const Sums& s) {
           const std::int64_t pages = s.keys.back().position / page - s.keys.front().position / page + 1;
           return static_cast<double>(pages * page);
         }));
  to.add("does not divide by the denominator", "", over([](const Sums&) { return 1.0; }));
  to.add("divides twice by the denominator", "", over([](const Sums& s) { return s.denominator * s.denominator; }));
  to.add("leaves the last key out of the denominator", "",
         over([](const Sums& s) { return s.denominator - std::exp(s.scores.back() - s.max); }));
  to.add("adds the softmax of the maximum, 1, to the denominator", "", over([](const Sums& s) { return s.denominator + 1; }));
  for (const std::int64_t tile : tile_sizes(facts))
    for (const bool of_sequence : {false, true})
      to.add("counts slots behind the end with score 0 in the denominator",
             formatted("up to the end of a tile of {}, behind {}", tile, of_sequence ? "the sequence" : "the row's last key"),
             zeros_behind_the_end(tile, of_sequence));
}

/// Sums that are rescaled in another base, from one tile to the next.
void propose_other_bases(const Tiles& tiles, const std::string& detail, const Adder& to) {
  for (const double factor : {std::log(2.0), 1 / std::log(2.0)})
    for (const auto& [sums, accumulator, denominator] :
         {std::tuple("the denominator", false, true), {"the accumulator", true, false}, {"both sums", true, true}})
      to.add(formatted("rescales {} in another base when a later tile raises the maximum", sums),
             formatted("exp({:.4g} (old max - new max)), {}", factor, detail),
             rescaled_in_another_base(tiles, factor, accumulator, denominator));
}

/// Mistakes from one tile of keys to the next.
void propose_tiles(const Tiles& tiles, const std::string& detail, const Adder& to) {
  to.add("does not rescale the denominator when a later tile raises the maximum", detail, denominator_not_rescaled(tiles));
  for (const std::int64_t from : {1, 2, 3, 4})
    to.add("does not rescale the accumulator when a later tile raises the maximum",
           detail + (from == 1 ? "" : formatted(", from tile {} on", from)), accumulator_not_rescaled(tiles, from));
  to.add("rescales neither sum when a later tile raises the maximum", detail, neither_rescaled(tiles));
  to.add("leaves the last tile out of the denominator", detail, denominator_without_last_tile(tiles));
  propose_other_bases(tiles, detail, to);
  to.add("keeps only the last tile in the denominator", detail, one_tile_in_denominator(tiles, Kept::last));
  to.add("keeps only the last tile of the sequence in the denominator", detail,
         one_tile_in_denominator(tiles, Kept::last_of_sequence));
  to.add("keeps only the first tile in the denominator", detail, one_tile_in_denominator(tiles, Kept::first));
}

}  // namespace

void propose_normalisation(const Scene& scene, Proposals& list) {
  const Adder to(scene, list);
  propose_divisors(scene.facts, to);
  propose_denominator_of(list);
  propose_nan_of_masked_tile(scene, list);
  for (const std::int64_t size : tile_sizes(scene.facts))
    for (const bool from_first : {false, true}) {
      if (from_first && (size == 1 || !scene.facts.windowed())) continue;
      propose_tiles({size, from_first}, formatted("tiles of {} keys{}", size, from_first ? ", from the row's first key on" : ""),
                    to);
    }
  propose_within_splits(scene, to.in_lse(), list);
}

}  // namespace quire::diagnose_detail
