// SPDX-License-Identifier: Apache-2.0
// Keys that the mask should hide and does not: with their score, with a score in place of -infinity, or in the denominator alone.
// (Ranges that are cut are in key_range.cpp, other chunks, prefixes and spans in shapes.cpp.)
#include <algorithm>

#include "diagnose/mechanisms/hidden_keys.h"
#include "faults/visible.h"
#include "semantics/ceil_div.h"
#include "text/formatted.h"

namespace quire::diagnose_detail {
namespace {

constexpr double kFarBelow = -1e30;  // a score that weighs nothing beside any other

/// Hidden keys count in the denominator, and their V does not: the mask comes after the sum of the weights.
void plant_in_denominator(Model& m, const HiddenKeys& end) {
  plant_hidden_keys(m, end);
  m.softmax = [f = m.facts, own = m.softmax](const Model& model, const Row& row, std::span<const Key> keys,
                                             std::span<const double> scores, std::vector<double>& p) {
    const double lse = own(model, row, keys, scores, p);
    for (std::size_t i = 0; i < p.size(); ++i)
      if (!f->sees(row, keys[i].position)) p[i] = 0;
    return lse;
  };
}

/// A tile of query rows is masked by one of its rows.
void propose_row_tiles(Proposals& list) {
  for (std::int64_t tile = 2; tile <= 128; tile *= 2) {
    list.push_back({"mask", "lets a row see no more than the first row of its tile sees", formatted("tiles of {} rows", tile),
                    "the mask of a tile differs by row: key k <= q_pos of the row, not of the tile", 1,
                    keys_changed([tile](const Row& row, std::vector<Key>& keys) {
                      const std::int64_t index = row.token - row.first_token, last = row.q_pos - index % tile;
                      std::erase_if(keys, [last](const Key& key) { return key.position > last; });
                    })});
  }
}

Plant shaped(const std::function<void(const Facts&, faults_detail::Shapes&)>& change) {
  return [change](Model& m) {
    faults_detail::Shapes shapes = faults_detail::shapes_of(*m.facts);
    change(*m.facts, shapes);
    faults_detail::sees_by(*m.facts, shapes)(m);
  };
}

/// Only the last tile of keys that a tile of rows reads is masked; all rows see the whole tiles before it.
void propose_last_tile_masked(const Facts& facts, Proposals& list) {
  if (facts.max_query_len() < 2) return;
  for (std::int64_t rows = 16; rows <= 256; rows *= 2)
    for (std::int64_t keys = 8; keys <= 128; keys *= 2)
      list.push_back({"mask", "masks the last tile of keys only, and lets rows see all keys of the tiles before",
                      formatted("tiles of {} rows and {} keys", rows, keys),
                      "mask every tile of keys that reaches beyond the first row of the tile of rows", 1,
                      shaped([rows, keys](const Facts&, faults_detail::Shapes& s) {
                        s.last = [rows, keys, last = s.last](const Row& r) {
                          const std::int64_t index = r.token - r.first_token;
                          const std::int64_t last_row = std::min((index / rows + 1) * rows, r.query_len) - 1;
                          const std::int64_t whole = (r.q_pos - index + last_row) / keys * keys;
                          return r.causal ? std::max(last(r), whole - 1) : last(r);
                        };
                      })});
}

/// Other bits of tree_mask than a row's own.
void propose_trees(const Facts& facts, Proposals& list) {
  if (std::all_of(facts.tree_lens.begin(), facts.tree_lens.end(), [](std::int64_t length) { return length == 0; })) return;
  const auto add = [&](const char* text, std::string detail,
                       std::function<bool(const Facts&, const Row&, std::int64_t bit)> bit) {
    list.push_back({"mask", text, std::move(detail),
                    "bit b of a row, by the row stride of tree_mask, is key seq_len - tree_len + b", 0,
                    shaped([bit = std::move(bit)](const Facts& f, faults_detail::Shapes& s) {
                      s.bit = [f = &f, bit](const Row& r, std::int64_t b) { return bit(*f, r, b); };
                    })});
  };
  // A row sees what descends from it, not what it descends from.
  add("reads tree_mask transposed", "", [](const Facts& f, const Row& r, std::int64_t b) {
    const std::int64_t before = f.tree_lens[Facts::at(r.req)] - r.query_len;  // keys of the tree that have no row
    return b >= before && f.tree_bit(r.first_token + b - before, r.query_token - r.first_token + before);
  });
  add("reads the bit of the key before", "",
      [](const Facts& f, const Row& r, std::int64_t b) { return b > 0 && f.tree_bit(r.query_token, b - 1); });
  // Rows of bits that are taken for one word long, while they have more: a row reads the words of rows before it.
  constexpr std::int64_t kWord = 32;
  const std::int64_t words = semantics::ceil_div(8 * facts.batch.tree_mask.shape[1], kWord);
  if (words > 1)
    add("takes the rows of tree_mask for one word long", formatted("{} bits", kWord),
        [words](const Facts& f, const Row& r, std::int64_t b) {
          const std::int64_t flat = kWord * (r.query_token - r.first_token) + b;
          return f.tree_bit(r.first_token + flat / (kWord * words), flat % (kWord * words));
        });
}

/// Hidden keys with a score, or in the denominator alone.
void propose_hidden_keys(const Facts& facts, Proposals& list) {
  const std::optional<float> cap = facts.options.logits_soft_cap;
  for (const HiddenKeys& hidden : hidden_keys(facts)) {
    const auto add = [&](const char* text, std::function<void(Model&)> plant) {
      list.push_back({"mask", text, hidden.text, kNextHiddenKeys, 0, std::move(plant)});
    };
    add("gives hidden keys the score 0 in place of -infinity", [hidden](Model& m) { plant_scores(m, hidden, 0.0); });
    add("counts hidden keys in the denominator", [hidden](Model& m) { plant_in_denominator(m, hidden); });
    if (cap)
      add("applies the soft cap after the mask, so that hidden keys get the score -cap in place of -infinity",
          [hidden, cap](Model& m) { plant_scores(m, hidden, -static_cast<double>(*cap)); });
  }
}

/// A row that sees a key does not notice; one that sees none averages V.
void propose_far_below(const Facts& facts, Proposals& list) {
  std::vector<HiddenKeys> sets = hidden_keys(facts);
  sets.resize(2);  // up to seq_len, and to the end of the last page
  for (HiddenKeys& hidden : sets) {
    hidden.before = true;
    list.push_back({"mask", "gives hidden keys a finite score far below all others in place of -infinity", hidden.text,
                    "a row that sees no key writes 0 and lse -infinity: test for it before the division", 0,
                    [hidden](Model& m) { plant_scores(m, hidden, kFarBelow); }});
  }
}

}  // namespace

void propose_mask(const Scene& scene, Proposals& list) {
  const Facts* f = &scene.facts;
  propose_far_below(*f, list);
  propose_hidden_keys(*f, list);
  propose_row_tiles(list);
  propose_last_tile_masked(*f, list);
  propose_trees(*f, list);
  if (f->windowed())
    list.push_back({"mask", "applies the window to keys behind the row, too", "",
                    "sliding_window bounds the keys before a row; window_right bounds those behind it", 0,
                    keys_dropped([window = f->window()](const Row& r, std::int64_t k) { return k - r.q_pos >= window; })});
}

}  // namespace quire::diagnose_detail
