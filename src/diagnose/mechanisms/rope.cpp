// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding that is missing, applied twice, shifted, or of another base, of all rows or of this step's keys, in
// all dims or in some. The cache and the query hold rotated vectors; a kernel that rotates by other angles multiplies by the
// rotation between the two (Su et al. 2021, "RoFormer", section 3.2).
#include <cmath>

#include "diagnose/mechanisms/mechanism.h"
#include "text/formatted.h"

namespace quire::diagnose_detail {
namespace {

constexpr std::int64_t kShiftsRope = 64, kFewShiftsRope = 2;  // positions apart that are tried of all dims, and of some
constexpr std::int64_t kMostKeysRope = 1024;  // most keys of the searched cell; the search takes some hundred evaluations
const char* const kNextRope = "compare the positions, the base and the pairing of dims with which queries and keys are rotated";

/// The base, and the pairing of dims: (i, i + d/2), as GPT-NeoX and Llama, or (2i, 2i + 1), as GPT-J.
struct Rotation {
  double base = 10000;
  bool halves = true;
  std::int64_t first = 0, dims = 0;  ///< rotated dims: from `first` on
  std::int64_t first_pair = 0;       ///< pairs before it stay as they are

  /// Rotates by position * base^(-2i / dims).
  void apply(std::span<double> v, double position) const {
    const std::int64_t pairs = dims / 2;
    for (std::int64_t i = first_pair; i < pairs; ++i) {
      const double angle = position * frequency(i);
      double& a = v[Facts::at(first + (halves ? i : 2 * i))];
      double& b = v[Facts::at(first + (halves ? i + pairs : 2 * i + 1))];
      const double c = std::cos(angle), s = std::sin(angle), x = a * c - b * s, y = a * s + b * c;
      a = x, b = y;
    }
  }
  /// Returns one dim of a rotated vector.
  double element(const std::function<double(std::int64_t)>& v, std::int64_t dim, double position) const {
    const std::int64_t d = dim - first;
    if (d < 0 || d >= dims) return v(dim);
    const std::int64_t pairs = dims / 2, i = halves ? d % pairs : d / 2;
    if (i < first_pair) return v(dim);
    const bool is_first = halves ? d < pairs : d % 2 == 0;
    const double angle = position * frequency(i), c = std::cos(angle), s = std::sin(angle);
    const std::int64_t apart = halves ? pairs : 1;
    return is_first ? v(dim) * c - v(dim + apart) * s : v(dim - apart) * s + v(dim) * c;
  }
  double frequency(std::int64_t pair) const {
    return std::pow(base, -2.0 * static_cast<double>(pair) / static_cast<double>(dims));
  }
  std::string text(const Facts& f) const {
    return formatted("base {:g}, pairs of {}{}", base, halves ? "halves" : "neighbours",
                     dims == f.head_dim ? "" : formatted(" of dims {}-{}", first, first + dims - 1));
  }
};

using Position = std::function<double(const Row&)>;

/// Rotates the query of each row.
void rotate_query(Model& m, const Rotation& rotation, const Position& position) {
  m.query = [=, before = m.query](const Row& row, std::int64_t d) {
    return rotation.element([&](std::int64_t i) { return before(row, i); }, d, position(row));
  };
}

/// Changes a key whose position counts from 0, not from the first key of a shard.
using Rotate = std::function<void(std::span<double> key, const Row& row, std::int64_t position)>;

void change_keys(Model& m, const Rotate& rotate) {
  m.score = [rotate, before = m.score, f = m.facts](const Model& model, const Row& row, std::int64_t k, double) {
    std::vector<double> query(Facts::at(f->head_dim)), key(query.size());
    std::vector<std::int64_t> scratch;
    for (std::size_t i = 0; i < query.size(); ++i) query[i] = model.query(row, static_cast<std::int64_t>(i));
    load_vector(model, row, Side::key, k, scratch, key);
    rotate(key, row, k + f->key_begin[Facts::at(row.req)]);
    double dot = 0;
    for (std::size_t i = 0; i < query.size(); ++i) dot += query[i] * key[i];
    return before(model, row, k, dot);
  };
}

/// Rotates each key by `factor` times its position.
void rotate_keys(Model& m, const Rotation& r, double factor) {
  change_keys(m,
              [r, factor](std::span<double> key, const Row&, std::int64_t k) { r.apply(key, factor * static_cast<double>(k)); });
}

struct Variant {
  std::string text;
  std::function<void(Model&)> plant;
};

/// Ways to rotate by other angles than those of one rotation.
class Variants {
 public:
  Variants(const Facts& f, const Rotation& rotation) : f_(f), r_(rotation) {
    of_all_rows();
    of_new_keys();
    if (r_.dims == f.head_dim) of_some_pairs();
    of_other_bases();
    const std::int64_t most = r_.dims == f.head_dim ? kShiftsRope : kFewShiftsRope;
    for (std::int64_t by = 1; by <= most; ++by)
      for (const std::int64_t shift : {-by, by})
        of_query(formatted("rotates query and keys {} position{} apart", shift, by == 1 ? "" : "s"),
                 [shift](const Row&) { return static_cast<double>(shift); });
  }
  const std::vector<Variant>& list() const { return list_; }

 private:
  void of_query(std::string text, const Position& position) {
    list_.push_back({std::move(text), [r = r_, position](Model& m) { rotate_query(m, r, position); }});
  }
  /// The row's position, counted from 0.
  Position own_position() const {
    return [f = &f_](const Row& row) { return static_cast<double>(row.q_pos + f->key_begin[Facts::at(row.req)]); };
  }

  void of_all_rows() {
    const Position own = own_position();
    of_query("leaves the rotary embedding of the query out", [own](const Row& row) { return -own(row); });
    of_query("applies the rotary embedding to the query twice", own);
    of_query("rotates the query as if its chunk began at position 0",
             [own](const Row& row) { return static_cast<double>(row.token - row.first_token) - own(row); });
    of_query("rotates the query by seq_len in place of context_len",
             [](const Row& row) { return static_cast<double>(row.query_len); });
    list_.push_back({"reads keys without their rotary embedding", [r = r_](Model& m) { rotate_keys(m, r, -1); }});
    list_.push_back({"applies the rotary embedding to keys twice", [r = r_](Model& m) { rotate_keys(m, r, 1); }});
    for (const double factor : {-1.0, 1.0})
      list_.push_back({factor < 0 ? "leaves the rotary embedding of query and keys out"
                                  : "applies the rotary embedding to query and keys twice",
                       [r = r_, own, factor](Model& m) {
                         rotate_query(m, r, [own, factor](const Row& row) { return factor * own(row); });
                         rotate_keys(m, r, factor);
                       }});
    const auto lost = [](double position) { return rounded(DType::bf16, position) - position; };
    of_query("rotates the query by its position rounded to bf16", [lost, own](const Row& row) { return lost(own(row)); });
    list_.push_back({"rotates keys by their positions rounded to bf16", [r = r_, lost](Model& m) {
                       change_keys(m, [r, lost](std::span<double> key, const Row&, std::int64_t k) {
                         r.apply(key, lost(static_cast<double>(k)));
                       });
                     }});
  }

  /// Keys of this step alone, which one call rotates and appends or hands over.
  void of_new_keys() {
    // `first` is the position of this step's first key, `k` that of the key, both counted from 0.
    const auto add = [&](std::string text, std::function<double(std::int64_t first, std::int64_t k)> position) {
      list_.push_back({std::move(text), [r = r_, position = std::move(position), f = &f_](Model& m) {
                         change_keys(m, [=](std::span<double> key, const Row& row, std::int64_t k) {
                           const std::int64_t begin = f->key_begin[Facts::at(row.req)];
                           const std::int64_t first = begin + (f->batch.key.present() ? row.cached_len : row.context_len());
                           if (k >= first && k < begin + row.seq_len) r.apply(key, position(first, k));
                         });
                       }});
    };
    add("leaves the rotary embedding of this step's keys out",
        [](std::int64_t, std::int64_t k) { return -static_cast<double>(k); });
    add("applies the rotary embedding to this step's keys twice",
        [](std::int64_t, std::int64_t k) { return static_cast<double>(k); });
    add("rotates this step's keys as if their chunk began at position 0",
        [](std::int64_t first, std::int64_t) { return -static_cast<double>(first); });
    for (const int by : {-2, -1, 1, 2})
      add(formatted("rotates this step's keys by their position {:+}", by), [by](std::int64_t, std::int64_t) { return by; });
  }

  void of_some_pairs() {
    const Position own = own_position();
    for (const std::int64_t pairs : {r_.dims / 16, r_.dims / 8, r_.dims / 4, 3 * r_.dims / 8}) {
      Rotation last = r_;
      last.first_pair = r_.dims / 2 - pairs;
      const std::string what = formatted("without the rotary embedding of their last {} pairs", pairs);
      list_.push_back({"takes queries " + what,
                       [last, own](Model& m) { rotate_query(m, last, [own](const Row& row) { return -own(row); }); }});
      list_.push_back({"reads keys " + what, [last](Model& m) { rotate_keys(m, last, -1); }});
    }
  }

  void of_other_bases() {
    for (const double other : {10000.0, 500000.0, 1000000.0, 100000.0}) {
      if (other == r_.base) continue;
      Rotation wrong = r_;
      wrong.base = other;
      list_.push_back({formatted("rotates keys with base {:g} in place of {:g}", other, r_.base), [r = r_, wrong](Model& m) {
                         change_keys(m, [r, wrong](std::span<double> key, const Row&, std::int64_t k) {
                           r.apply(key, -static_cast<double>(k));
                           wrong.apply(key, static_cast<double>(k));
                         });
                       }});
      list_.push_back({formatted("rotates the query with base {:g} in place of {:g}", other, r_.base),
                       [r = r_, wrong, own = own_position()](Model& m) {
                         rotate_query(m, r, [own](const Row& row) { return -own(row); });
                         rotate_query(m, wrong, own);
                       }});
    }
  }

  const Facts& f_;
  Rotation r_;
  std::vector<Variant> list_;
};

/// Dims that a model may rotate: all, leading ones, or the RoPE part behind the values of a latent row.
std::vector<std::pair<std::int64_t, std::int64_t>> rotated_dims(const Facts& f) {
  const std::int64_t dims = f.head_dim, rope = dims - f.v_head_dim;
  std::vector<std::pair<std::int64_t, std::int64_t>> list{{0, dims / 2 * 2}, {0, dims / 4 * 2}, {0, dims / 8 * 2}};
  if (rope > 0 && f.num_kv_heads == 1) list.emplace_back(f.v_head_dim, rope / 2 * 2);
  std::erase_if(list, [](const auto& range) { return range.second < 2; });
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
  if (cell == nullptr) return;
  for (const auto& [first, dims] : rotated_dims(scene.facts))
    for (const double base : {10000.0, 500000.0, 1000000.0})
      for (const bool halves : {true, false}) {
        const Rotation rotation{base, halves, first, dims};
        const Variants variants(scene.facts, rotation);
        for (const Variant& variant : variants.list())
          if (explains(scene.facts, *cell, variant.plant))
            list.push_back({"rope", variant.text, rotation.text(scene.facts), kNextRope, 1, variant.plant});
      }
}

}  // namespace quire::diagnose_detail
