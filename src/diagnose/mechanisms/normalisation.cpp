// The sum over keys is right, and what it is divided by is not; or one of the two is not rescaled when the maximum rises.
#include <algorithm>
#include <cmath>

#include "diagnose/mechanisms/mechanism.h"
#include "text/formatted.h"

namespace quire::cause {
namespace {

using fault::Key;
using fault::Model;
using fault::Row;

constexpr double kNegInf = -std::numeric_limits<double>::infinity();
const char* const kNext =
    "multiply the accumulator and the denominator by exp(old max - new max) in every tile; divide by the sum of all weights";

/// What one row's softmax sums, relative to its maximum.
struct Sums {
  std::span<const Key> keys;
  std::span<const double> scores;
  double max = 0, denominator = 0;
};

/// The maximum up to the end of each key's tile.
std::vector<double> running_max(const Sums& s, std::int64_t tile) {
  std::vector<double> result(s.scores.size());
  double max = kNegInf;
  for (std::size_t i = 0; i < s.scores.size();) {
    std::size_t end = i;
    while (end < s.scores.size() && s.keys[end].position / tile == s.keys[i].position / tile)
      max = std::max(max, s.scores[end++]);
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
    if (lse == kNegInf) return lse;
    const double max = fault::largest(scores, model.sink(row));
    const Sums sums{keys, scores, max, std::exp(lse - max)};
    const double denominator = change(sums, p);
    return in_lse ? max + std::log(denominator) : lse;
  };
}

/// The same weights over another denominator.
Change over(std::function<double(const Sums&)> denominator) {
  return [denominator = std::move(denominator)](const Sums& s, std::vector<double>& p) {
    const double sum = denominator(s);
    for (double& weight : p) weight *= s.denominator / sum;
    return sum;
  };
}

Change denominator_not_rescaled(std::int64_t tile) {
  return over([tile](const Sums& s) {
    const std::vector<double> max = running_max(s, tile);
    double sum = 0;
    for (std::size_t i = 0; i < max.size(); ++i) sum += s.scores[i] == kNegInf ? 0 : std::exp(s.scores[i] - max[i]);
    return sum;
  });
}

Change accumulator_not_rescaled(std::int64_t tile) {
  return [tile](const Sums& s, std::vector<double>& p) {
    const std::vector<double> max = running_max(s, tile);
    for (std::size_t i = 0; i < p.size(); ++i) p[i] *= std::exp(s.max - max[i]);
    return s.denominator;
  };
}

Change one_tile_in_denominator(std::int64_t tile, bool last) {
  return over([tile, last](const Sums& s) {
    const std::int64_t wanted = (last ? s.keys.back() : s.keys.front()).position / tile;
    double sum = 0;
    for (std::size_t i = 0; i < s.scores.size(); ++i)
      if (s.keys[i].position / tile == wanted && s.scores[i] != kNegInf) sum += std::exp(s.scores[i] - s.max);
    return sum;
  });
}

std::vector<std::int64_t> tiles(const fault::Facts& f) {
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
    Proposal p{"normalisation", std::move(text), std::move(detail), kNext, 0, {}};
    p.plant = [change, in_lse](Model& m) { plant(m, change, in_lse); };
    list.push_back(std::move(p));
  };
  const std::int64_t page = scene.facts.page_size;
  add("divides by the number of keys", "", over([](const Sums& s) { return static_cast<double>(s.keys.size()); }));
  add("divides by the number of keys in whole pages", "", over([page](const Sums& s) {
        return static_cast<double>((s.keys.back().position / page - s.keys.front().position / page + 1) * page);
      }));
  add("does not divide by the denominator", "", over([](const Sums&) { return 1.0; }));
  add("divides twice by the denominator", "", over([](const Sums& s) { return s.denominator * s.denominator; }));
  add("leaves the last key out of the denominator", "",
      over([](const Sums& s) { return s.denominator - std::exp(s.scores.back() - s.max); }));
  add("adds the softmax of the maximum, 1, to the denominator", "", over([](const Sums& s) { return s.denominator + 1; }));
  for (const std::int64_t tile : tiles(scene.facts)) {
    const std::string detail = formatted("tiles of {} keys", tile);
    add("does not rescale the denominator when a later tile raises the maximum", detail, denominator_not_rescaled(tile));
    add("does not rescale the accumulator when a later tile raises the maximum", detail, accumulator_not_rescaled(tile));
    add("keeps only the last tile in the denominator", detail, one_tile_in_denominator(tile, true));
    add("keeps only the first tile in the denominator", detail, one_tile_in_denominator(tile, false));
  }
}

}  // namespace quire::cause
