// SPDX-License-Identifier: Apache-2.0
// Dims of the output (or of V, which is the same) stored elsewhere, repeated, or dropped; and dims of the dot product in another
// order, or left out. The map of output dims and the range left out are read off wrong cells; orders of q and K are a short list.
#include <algorithm>
#include <cmath>

#include "diagnose/mechanisms/mechanism.h"
#include "numerics/tolerance.h"
#include "text/formatted.h"

namespace quire::diagnose_detail {
namespace {

constexpr std::size_t kCellsRead = 48;
constexpr std::int64_t kZero = -1;  // a dim that holds 0
constexpr std::int64_t kNone = -2;  // a dim that holds no dim of the right output
const char* const kNext = "look at the loop over dims of the store and of the load of V: vector width, tile, order";

struct Table {
  std::vector<std::vector<double>> observed, expected, tolerance;  ///< [cell][dim]
};

Table table_of(const Scene& scene) {
  Table t;
  const numerics::OutputType type = numerics::output_type(scene.where.reference, scene.observed.output.dtype);
  const std::size_t step = scene.wrong.size() / kCellsRead + 1;
  for (std::size_t i = 0; i < scene.wrong.size(); i += step) {
    const Compared& cell = *scene.wrong[i];
    if (cell.nonfinite > 0) continue;
    std::vector<double> observed, expected, tolerance;
    for (std::int64_t d = 0; d < scene.facts.v_head_dim; ++d) {
      const std::int64_t element = cell.reference_row * scene.facts.v_head_dim + d;
      observed.push_back(scene.observed.at(cell.token, cell.head, d));
      expected.push_back(scene.where.reference.out[Facts::at(element)]);
      tolerance.push_back(numerics::output_tolerance(scene.where.reference, cell.reference_row, element, type));
    }
    t.observed.push_back(std::move(observed));
    t.expected.push_back(std::move(expected));
    t.tolerance.push_back(std::move(tolerance));
  }
  return t;
}

/// The dim of the right output whose values this dim holds in every cell; its own is tried first.
std::int64_t source_of(const Table& t, std::int64_t dim) {
  const auto d = Facts::at(dim);
  const auto holds = [&](std::int64_t from) {
    for (std::size_t c = 0; c < t.observed.size(); ++c) {
      const double value = from == kZero ? 0 : t.expected[c][Facts::at(from)];
      const double tolerance = from == kZero ? 0 : t.tolerance[c][Facts::at(from)];
      if (!(std::fabs(t.observed[c][d] - value) <= tolerance)) return false;
    }
    return true;
  };
  if (holds(dim)) return dim;
  if (holds(kZero)) return kZero;
  const auto dims = static_cast<std::int64_t>(t.observed[0].size());
  for (std::int64_t from = 0; from < dims; ++from)
    if (holds(from)) return from;
  return kNone;
}

void propose_output_dims(const Scene& scene, Proposals& list) {
  const Table t = table_of(scene);
  if (t.observed.empty()) return;
  std::vector<std::int64_t> map;
  std::int64_t moved = 0, zero = 0, first = -1;
  for (std::int64_t d = 0; d < scene.facts.v_head_dim; ++d) {
    map.push_back(source_of(t, d));
    if (map.back() == kNone) return;
    if (map.back() == d) continue;
    (map.back() == kZero ? zero : moved) += 1;
    if (first < 0) first = d;
  }
  if (first < 0 || zero == scene.facts.v_head_dim) return;
  std::string detail =
      moved > 0 ? formatted("{} dims hold another one's value: dim {} that of dim {}", moved, first, map[Facts::at(first)])
                : formatted("{} dims hold 0, from dim {} on", zero, first);
  if (moved > 0 && map[Facts::at(first)] == kZero) detail = formatted("{} dims hold another one's value, {} hold 0", moved, zero);
  list.push_back({"dims", moved > 0 ? "stores dims of the output in other places" : "leaves dims of the output at 0",
                  std::move(detail), kNext, 1, result_changed([map](const Row&, RowResult& result) {
                    const std::vector<double> right = result.out;
                    for (std::size_t d = 0; d < map.size(); ++d) result.out[d] = map[d] == kZero ? 0 : right[Facts::at(map[d])];
                  })});
}

struct Order {
  std::string text;
  std::function<std::int64_t(std::int64_t d, std::int64_t dims)> source;  ///< -1: the product is left out
};

std::vector<Order> orders(std::int64_t dims, std::int64_t v_dims) {
  using N = std::int64_t;
  const auto even = [](N n) { return (n + 1) / 2; };  // even dims; one more than odd ones if their number is odd
  std::vector<Order> list{
      {"halves exchanged", [](N d, N n) { return (d + n / 2) % n; }},
      {"even dims first, then odd ones", [even](N d, N n) { return d < even(n) ? 2 * d : 2 * (d - even(n)) + 1; }},
      {"halves interleaved", [even](N d, N n) { return d % 2 == 0 ? d / 2 : even(n) + d / 2; }},
      {"reverse order", [](N d, N n) { return n - 1 - d; }},
      {"neighbours exchanged", [](N d, N n) { return std::min(d ^ 1, n - 1); }},
      {"the first half repeated", [](N d, N n) { return d % (n / 2); }},
      {"the second half left out", [](N d, N n) { return d < n / 2 ? d : -1; }},
      {"the first half left out", [](N d, N n) { return d < n / 2 ? -1 : d; }},
      {"odd dims left out", [](N d, N) { return d % 2 == 0 ? d : -1; }},
      {"even dims left out", [](N d, N) { return d % 2 == 1 ? d : -1; }},
  };
  for (const N by : {1, 2, 4, 8, 16, 32})
    if (by < dims)
      for (const N shift : {by, dims - by})
        list.push_back({formatted("rotated by {}", shift), [shift](N d, N n) { return (d + shift) % n; }});
  for (const N first : {v_dims, dims - v_dims})  // of a latent row: its values, and its RoPE part
    if (v_dims < dims)
      list.push_back({formatted("its first {} dims behind the others", first), [first](N d, N n) { return (d + first) % n; }});
  for (const N width : {4, 8, 16, 32})
    if (dims % width == 0) {
      list.push_back({formatted("reverse order in chunks of {}", width),
                      [width](N d, N) { return d / width * width + width - 1 - d % width; }});
      list.push_back({formatted("taken for [{}, {}]", dims / width, width),
                      [width](N d, N n) { return d % (n / width) * width + d / (n / width); }});
      list.push_back({formatted("taken for [{}, {}]", width, dims / width),
                      [width](N d, N n) { return d % width * (n / width) + d / width; }});
    }
  for (const N cut : {1, 2, 4, 8, 16, 24, 32, 48, 64})
    if (cut < dims) list.push_back({formatted("the last {} left out", cut), [cut](N d, N n) { return d < n - cut ? d : -1; }});
  for (const N cut : {1, 2, 4, 8, 16, 32})
    if (cut < dims) list.push_back({formatted("the first {} left out", cut), [cut](N d, N) { return d < cut ? -1 : d; }});
  return list;
}

/// Dot products of a cell's query with its keys, summed up to every border between blocks of dims.
class BlockSums {
 public:
  BlockSums(const Facts& f, const OpenCell& cell, std::int64_t block) : cell_(cell), truth_(f) {
    std::vector<double> query, key(Facts::at(f.head_dim));
    std::vector<std::int64_t> scratch;
    for (std::int64_t d = 0; d < f.head_dim; ++d) query.push_back(truth_.query(cell.row, d));
    for (std::int64_t d = 0; d <= f.head_dim; d = d < f.head_dim ? std::min(d + block, f.head_dim) : d + 1) borders_.push_back(d);
    for (std::int64_t k = cell.from; k < cell.to; ++k) {
      if (!cell.sees(k)) continue;
      keys_.push_back(k);
      load_vector(truth_, cell.row, Side::key, k, scratch, key);
      double sum = 0;
      std::int64_t d = 0;
      for (const std::int64_t border : borders_) {
        for (; d < border; ++d) sum += query[Facts::at(d)] * key[Facts::at(d)];
        sums_.push_back(sum);
      }
    }
  }
  const std::vector<std::int64_t>& borders() const { return borders_; }
  /// Squared distance to the observed numbers if the dims between two borders are left out.
  double without(std::size_t first, std::size_t last) const {
    std::vector<double> weights, out(cell_.dims(), 0.0);
    double max = cell_.max, sum = cell_.sink_weight;
    for (std::size_t i = 0; i < keys_.size(); ++i) {
      const double* sums = sums_.data() + i * borders_.size();
      weights.push_back(truth_.score(truth_, cell_.row, keys_[i], sums[borders_.size() - 1] - (sums[last] - sums[first])));
      max = std::max(max, weights.back());
    }
    sum *= std::exp(cell_.max - max);
    for (std::size_t i = 0; i < keys_.size(); ++i) {
      const double weight = std::exp(weights[i] - max);
      sum += weight;
      for (std::size_t d = 0; d < out.size(); ++d) out[d] += weight * cell_.value(keys_[i])[d];
    }
    for (double& value : out) value /= sum;
    return cell_.distance(out);
  }

 private:
  const OpenCell& cell_;
  Model truth_;
  std::vector<std::int64_t> borders_, keys_;
  std::vector<double> sums_;  ///< [key][border]
};

/// A range of dims that no product takes; its ends are multiples of a block, which is wider where there are more dims.
void propose_left_out(const Scene& scene, Proposals& list) {
  // Blocks of dims, which have 666 ranges, and multiply-adds of one search, about 0.1 s. More take time from other mechanisms.
  constexpr std::int64_t kMostBlocks = 36;
  constexpr double kMostProducts = 1e8;
  const std::int64_t dims = scene.facts.head_dim;
  std::int64_t block = 8;
  while (dims / block > kMostBlocks) block *= 2;
  if (scene.cells.empty() || dims <= block) return;
  const OpenCell& cell = scene.cells.front();
  const auto ranges = static_cast<double>((dims / block + 1) * (dims / block + 1) / 2);
  if (ranges * static_cast<double>((cell.to - cell.from) * scene.facts.v_head_dim) > kMostProducts) return;
  const BlockSums sums(scene.facts, cell, block);
  const std::vector<std::int64_t>& borders = sums.borders();
  for (std::size_t first = 0; first < borders.size(); ++first)
    for (std::size_t last = first + 1; last < borders.size(); ++last) {
      if ((first == 0 && last + 1 == borders.size()) || !cell.explained_by(sums.without(first, last))) continue;
      list.push_back({"dims", "leaves dims out of the dot product", formatted("dims {}-{}", borders[first], borders[last] - 1),
                      "compare the dims that a score sums over with head_dim", 2,
                      function_changed(&Model::query, [from = borders[first], to = borders[last]](
                                                          const auto& before, const Row& row, std::int64_t d) {
                        return d >= from && d < to ? 0.0 : before(row, d);
                      })});
    }
}

}  // namespace

void propose_dims(const Scene& scene, Proposals& list) {
  propose_output_dims(scene, list);
  propose_left_out(scene, list);
  const std::int64_t dims = scene.facts.head_dim;
  if (dims < 4) return;
  for (const Order& order : orders(dims, scene.facts.v_head_dim)) {
    list.push_back({"dims", "multiplies other dims of q and K with each other", order.text,
                    "compare the order of dims in q and in K", 1,
                    function_changed(&Model::query, [order, dims](const auto& before, const Row& row, std::int64_t d) {
                      const std::int64_t from = order.source(d, dims);
                      return from < 0 ? 0.0 : before(row, from);
                    })});
  }
}

}  // namespace quire::diagnose_detail
