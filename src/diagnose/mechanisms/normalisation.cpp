// SPDX-License-Identifier: Apache-2.0
// The sum over keys is right, and what it is divided by is not; or one of the two is not rescaled when the maximum rises.
#include <algorithm>
#include <cmath>

#include "diagnose/mechanisms/mechanism.h"
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
  std::int64_t seq_len = 0;
  double max = 0, denominator = 0;  ///< the sink included
  /// exp(sink - largest), for another maximum than `max`.
  double sink_beside(double largest) const {
    double keys_alone = 0;
    for (const double score : scores) keys_alone += score == kNegInf ? 0 : std::exp(score - max);
    const double rest = denominator - keys_alone;
    return rest < kNoSink * denominator ? 0 : rest * std::exp(max - largest);
  }
};

/// Tiles of keys: from position 0, or from the first key of the row.
struct Tiles {
  std::int64_t size = 1;
  bool from_first = false;
  std::int64_t of(const Sums& s, std::size_t i) const { return of_position(s, s.keys[i].position); }
  std::int64_t of_position(const Sums& s, std::int64_t position) const {
    return (position - (from_first ? s.keys.front().position : 0)) / size;
  }
};

/// The maximum up to the end of each key's tile.
std::vector<double> running_max(const Sums& s, const Tiles& tiles) {
  std::vector<double> result(s.scores.size());
  double max = kNegInf;
  for (std::size_t i = 0; i < s.scores.size();) {
    std::size_t end = i;
    while (end < s.scores.size() && tiles.of(s, end) == tiles.of(s, i)) max = std::max(max, s.scores[end++]);
    for (; i < end; ++i) result[i] = max;
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
    const Sums sums{keys, scores, row.seq_len, max, std::exp(lse - max)};
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
    const std::vector<double> max = running_max(s, tiles);
    double sum = s.sink_beside(max.back());
    for (std::size_t i = 0; i < max.size(); ++i) sum += s.scores[i] == kNegInf ? 0 : std::exp(s.scores[i] - max[i]);
    return sum * std::exp(max.back() - s.max);
  });
}

Change accumulator_not_rescaled(const Tiles& tiles) {
  return [tiles](const Sums& s, std::vector<double>& p) {
    const std::vector<double> max = running_max(s, tiles);
    for (std::size_t i = 0; i < p.size(); ++i) p[i] *= std::exp(max.back() - max[i]);
    return s.denominator;
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

/// exp(old max - new max) taken with another base than the weights' own.
Change rescaled_in_another_base(const Tiles& tiles, double factor, bool accumulator, bool denominator) {
  return [=](const Sums& s, std::vector<double>& p) {
    const std::vector<double> max = running_max(s, tiles);
    double sum = s.sink_beside(s.max);
    for (std::size_t i = 0; i < p.size(); ++i) {
      const double wrong = std::exp((factor - 1) * (max[i] - max.back()));
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
    const std::int64_t wanted = kept == Kept::last_of_sequence ? tiles.of_position(s, s.seq_len - 1)
                                                               : tiles.of(s, kept == Kept::last ? s.keys.size() - 1 : 0);
    double sum = s.sink_beside(s.max);
    for (std::size_t i = 0; i < s.scores.size(); ++i)
      if (tiles.of(s, i) == wanted && s.scores[i] != kNegInf) sum += std::exp(s.scores[i] - s.max);
    for (double& weight : p) weight *= sum > 0 ? s.denominator / sum : 0;
    return sum;
  };
}

std::vector<std::int64_t> tile_sizes(const Facts& f) {
  std::vector<std::int64_t> list{1, 4, 8, 16, 32, 64, 128, 256, 512};
  for (const std::int64_t pages : {1, 2, 4, 8})
    if (const std::int64_t tile = pages * f.page_size; std::find(list.begin(), list.end(), tile) == list.end())
      list.push_back(tile);
  return list;
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
  const auto neither = [](const Tiles& tiles) -> Change {
    return [tiles](const Sums& s, std::vector<double>& p) {
      const std::vector<double> max = running_max(s, tiles);
      double sum = 0;
      for (std::size_t i = 0; i < p.size(); ++i) {
        p[i] *= std::exp(max.back() - max[i]) * s.denominator * std::exp(s.max - max.back());
        sum += p[i];
      }
      sum += s.sink_beside(max.back());
      for (double& weight : p) weight /= sum;
      return sum * std::exp(max.back() - s.max);
    };
  };
  for (const std::int64_t size : tile_sizes(scene.facts))
    for (const bool from_first : {false, true}) {
      if (from_first && (size == 1 || !scene.facts.windowed())) continue;
      const Tiles tiles{size, from_first};
      const std::string detail = formatted("tiles of {} keys{}", size, from_first ? ", from the row's first key on" : "");
      add("does not rescale the denominator when a later tile raises the maximum", detail, denominator_not_rescaled(tiles));
      add("does not rescale the accumulator when a later tile raises the maximum", detail, accumulator_not_rescaled(tiles));
      add("rescales neither sum when a later tile raises the maximum", detail, neither(tiles));
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
}

}  // namespace quire::diagnose_detail
