// SPDX-License-Identifier: Apache-2.0
// A tile of keys that a pipeline reads from the buffer of the tile before: a stage that is one late for K or V, a copy that is
// not waited for in every n-th tile. Tiles that a cell's sums refute are not proposed.
#include <algorithm>
#include <cmath>
#include <set>

#include "diagnose/mechanisms/mechanism.h"
#include "text/formatted.h"

namespace quire::diagnose_detail {
namespace {

constexpr std::size_t kCellsTriedLateTile = 3;  // more find nothing that these do not, unless they are insensitive
const char* const kNextLateTile =
    "wait for the copy of a tile before its first use, and advance the buffers of K and V by the same stage";

/// Tiles t of `size` keys with t % every == at, without tile 0, that hold what the tile before holds.
struct Late {
  std::int64_t size = 1, every = 1, at = 0;
  bool holds(std::int64_t k) const { return k >= size && k / size % every == at; }
  std::int64_t source(std::int64_t k) const { return holds(k) ? k - size : k; }
  std::string text(bool pages) const {
    const std::string what = pages ? "page" : formatted("tile of {} keys", size);
    return every == 1 ? formatted("each {} from the one before", what)
                      : formatted("each {} t with t % {} = {} from the one before", what, every, at);
  }
};

/// Squared distance from what the cell shows if these tiles are late.
double distance_if(const Model& truth, const OpenCell& cell, const Late& late, Sides sides) {
  std::vector<double> out(cell.dims());
  double sum = cell.denominator;
  for (std::size_t d = 0; d < out.size(); ++d) out[d] = cell.expected[d] * cell.denominator;
  for (std::int64_t k = std::max(cell.from, late.size); k < cell.to; ++k) {
    if (!late.holds(k) || !cell.sees(k)) continue;
    const std::int64_t source = late.source(k);
    const double before = cell.weights[Facts::at(k)];
    const double weight = sides.key ? std::exp(truth.score(truth, cell.row, k, cell.dots[Facts::at(source)]) - cell.max) : before;
    const double *v = cell.value(k), *read = cell.value(sides.value ? source : k);
    sum += weight - before;
    for (std::size_t d = 0; d < out.size(); ++d) out[d] += weight * read[d] - before * v[d];
  }
  for (double& value : out) value /= sum;
  return cell.distance(out);
}

Plant plant_of(const Late& late, Sides sides) {
  return function_changed(
      &Model::place, [late, sides](const auto& before, const Model& model, const Row& row, Side side, std::int64_t position) {
        return before(model, row, side, sides.has(side) ? late.source(position) : position);
      });
}

std::vector<Late> late_tiles(const Facts& f) {
  std::vector<std::int64_t> sizes{f.page_size};
  for (std::int64_t size = 8; size <= 256; size *= 2)
    if (size != f.page_size) sizes.push_back(size);
  std::vector<Late> list;
  for (const std::int64_t size : sizes)
    for (const std::int64_t every : {1, 2, 3, 4, 8})
      for (std::int64_t at = 0; at < every; ++at) list.push_back({size, every, at});
  return list;
}

}  // namespace

void propose_late_tile(const Scene& scene, Proposals& list) {
  const Facts& f = scene.facts;
  const Model truth(f);
  const std::vector<Late> all = late_tiles(f);
  std::set<std::string> known;
  for (std::size_t i = 0; i < std::min(kCellsTriedLateTile, scene.cells.size()); ++i) {
    const OpenCell& cell = scene.cells[i];
    for (const Late& late : all) {
      if (late.size * std::max<std::int64_t>(late.at, 1) >= cell.to) continue;
      for (const Sides sides : kSideSets) {
        std::string detail = late.text(late.size == f.page_size);
        if (!cell.explained_by(distance_if(truth, cell, late, sides)) || !known.insert(sides.text() + detail).second) continue;
        list.push_back({"page", formatted("reads {} from another page or slot", sides.text()), std::move(detail), kNextLateTile,
                        1, plant_of(late, sides)});
      }
    }
  }
}

}  // namespace quire::diagnose_detail
