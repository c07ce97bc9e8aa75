// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding that is missing, applied twice, shifted, or of another base. The cache and the query hold rotated
// vectors; a kernel that rotates by other angles multiplies by the rotation between the two (Su et al. 2021, "RoFormer",
// section 3.2).
#include <cmath>

#include "diagnose/mechanisms/mechanism.h"
#include "text/formatted.h"

namespace quire::diagnose_detail {
namespace {

constexpr std::int64_t kShiftsRope = 64;
constexpr std::int64_t kMostKeysRope = 1024;  // most keys of the searched cell; the search takes some hundred evaluations
const char* const kNextRope = "compare the positions, the base and the pairing of dims with which queries and keys are rotated";

/// The base, and the pairing of dims: (i, i + d/2), as GPT-NeoX and Llama, or (2i, 2i + 1), as GPT-J.
struct Rotation {
  double base = 10000;
  bool halves = true;
  std::int64_t dims = 0;        ///< rotated dims, the leading ones
  std::int64_t first_pair = 0;  ///< pairs before it stay as they are

  /// Rotates by position * base^(-2i / dims).
  void apply(std::span<double> v, double position) const {
    const std::int64_t pairs = dims / 2;
    for (std::int64_t i = first_pair; i < pairs; ++i) {
      const double angle = position * frequency(i);
      double& a = v[Facts::at(halves ? i : 2 * i)];
      double& b = v[Facts::at(halves ? i + pairs : 2 * i + 1)];
      const double c = std::cos(angle), s = std::sin(angle), x = a * c - b * s, y = a * s + b * c;
      a = x, b = y;
    }
  }
  /// Returns one dim of a rotated vector.
  double element(const std::function<double(std::int64_t)>& v, std::int64_t d, double position) const {
    if (d >= dims) return v(d);
    const std::int64_t pairs = dims / 2, i = halves ? d % pairs : d / 2;
    if (i < first_pair) return v(d);
    const bool first = halves ? d < pairs : d % 2 == 0;
    const double angle = position * frequency(i), c = std::cos(angle), s = std::sin(angle);
    return first ? v(d) * c - v(halves ? d + pairs : d + 1) * s : v(halves ? d - pairs : d - 1) * s + v(d) * c;
  }
  double frequency(std::int64_t pair) const {
    return std::pow(base, -2.0 * static_cast<double>(pair) / static_cast<double>(dims));
  }
  std::string text() const { return formatted("base {:g}, pairs of {}", base, halves ? "halves" : "neighbours"); }
};

using Position = std::function<double(const Row&)>;

/// Rotates the query of each row.
void rotate_query(Model& m, const Rotation& rotation, const Position& position) {
  m.query = [=, before = m.query](const Row& row, std::int64_t d) {
    return rotation.element([&](std::int64_t i) { return before(row, i); }, d, position(row));
  };
}

using Rotate = std::function<void(std::span<double> key, std::int64_t position)>;

void change_keys(Model& m, const Rotate& rotate) {
  m.score = [rotate, before = m.score, f = m.facts](const Model& model, const Row& row, std::int64_t k, double) {
    std::vector<double> query(Facts::at(f->head_dim)), key(query.size());
    std::vector<std::int64_t> scratch;
    for (std::size_t i = 0; i < query.size(); ++i) query[i] = model.query(row, static_cast<std::int64_t>(i));
    load_vector(model, row, Side::key, k, scratch, key);
    rotate(key, k);
    double dot = 0;
    for (std::size_t i = 0; i < query.size(); ++i) dot += query[i] * key[i];
    return before(model, row, k, dot);
  };
}

/// Rotates each key by `factor` times its position.
void rotate_keys(Model& m, const Rotation& r, double factor) {
  change_keys(m, [r, factor](std::span<double> key, std::int64_t k) { r.apply(key, factor * static_cast<double>(k)); });
}

struct Variant {
  std::string text, detail;
  std::function<void(Model&)> plant;
};

std::vector<Variant> variants(const Rotation& r) {
  std::vector<Variant> list;
  const auto of_query = [&](std::string text, const Position& position) {
    list.push_back({std::move(text), r.text(), [r, position](Model& m) { rotate_query(m, r, position); }});
  };
  of_query("leaves the rotary embedding of the query out", [](const Row& row) { return -static_cast<double>(row.q_pos); });
  of_query("applies the rotary embedding to the query twice", [](const Row& row) { return static_cast<double>(row.q_pos); });
  of_query("rotates the query as if its chunk began at position 0",
           [](const Row& row) { return -static_cast<double>(row.context_len()); });
  of_query("rotates the query by seq_len in place of context_len",
           [](const Row& row) { return static_cast<double>(row.query_len); });
  list.push_back({"reads keys without their rotary embedding", r.text(), [r](Model& m) { rotate_keys(m, r, -1); }});
  list.push_back({"applies the rotary embedding to keys twice", r.text(), [r](Model& m) { rotate_keys(m, r, 1); }});
  for (const std::int64_t pairs : {r.dims / 16, r.dims / 8, r.dims / 4, 3 * r.dims / 8}) {
    const Rotation last{r.base, r.halves, r.dims, r.dims / 2 - pairs};
    const std::string what = formatted("without the rotary embedding of their last {} pairs", pairs);
    list.push_back({"takes queries " + what, r.text(),
                    [last](Model& m) { rotate_query(m, last, [](const Row& row) { return -static_cast<double>(row.q_pos); }); }});
    list.push_back({"reads keys " + what, r.text(), [last](Model& m) { rotate_keys(m, last, -1); }});
  }
  const auto lost = [](std::int64_t position) {
    return rounded(DType::bf16, static_cast<double>(position)) - static_cast<double>(position);
  };
  of_query("rotates the query by its position rounded to bf16", [lost](const Row& row) { return lost(row.q_pos); });
  list.push_back({"rotates keys by their positions rounded to bf16", r.text(), [r, lost](Model& m) {
                    change_keys(m, [r, lost](std::span<double> key, std::int64_t k) { r.apply(key, lost(k)); });
                  }});
  for (const double other : {10000.0, 500000.0, 1000000.0, 100000.0}) {
    if (other == r.base) continue;
    const Rotation wrong{other, r.halves, r.dims};
    list.push_back({formatted("rotates keys with base {:g} in place of {:g}", other, r.base), r.text(), [r, wrong](Model& m) {
                      change_keys(m, [r, wrong](std::span<double> key, std::int64_t k) {
                        r.apply(key, -static_cast<double>(k));
                        wrong.apply(key, static_cast<double>(k));
                      });
                    }});
    list.push_back(
        {formatted("rotates the query with base {:g} in place of {:g}", other, r.base), r.text(), [r, wrong](Model& m) {
           rotate_query(m, r, [](const Row& row) { return -static_cast<double>(row.q_pos); });
           rotate_query(m, wrong, [](const Row& row) { return static_cast<double>(row.q_pos); });
         }});
  }
  for (std::int64_t by = 1; by <= kShiftsRope; ++by)
    for (const std::int64_t shift : {-by, by})
      of_query(formatted("rotates query and keys {} position{} apart", shift, by == 1 ? "" : "s"),
               [shift](const Row&) { return static_cast<double>(shift); });
  return list;
}

const OpenCell* cheapest(const Scene& scene) {
  const OpenCell* best = nullptr;
  for (const OpenCell& cell : scene.cells)
    if (cell.to - cell.from > 2 && cell.to - cell.from <= kMostKeysRope && cell.row.q_pos > 0 &&
        (best == nullptr || cell.to - cell.from < best->to - best->from))
      best = &cell;
  return best;
}

}  // namespace

void propose_rope(const Scene& scene, Proposals& list) {
  const OpenCell* cell = cheapest(scene);
  const std::int64_t dims = scene.facts.head_dim;
  if (cell == nullptr || dims % 2 != 0) return;
  for (const double base : {10000.0, 500000.0, 1000000.0})
    for (const bool halves : {true, false})
      for (const Variant& variant : variants({base, halves, dims})) {
        Model m(scene.facts);
        variant.plant(m);
        const RowResult result = evaluate(m, std::span<const RowHead>(&cell->at, 1))[0];
        if (cell->explained_by(cell->distance(result.out)))
          list.push_back({"rope", variant.text, variant.detail, kNextRope, 1, variant.plant, nullptr, false});
      }
}

}  // namespace quire::diagnose_detail
