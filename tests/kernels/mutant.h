// SPDX-License-Identifier: Apache-2.0
// Attentions with one mistake, each by its id: of the catalogue of src/faults, of a caller (verify/mutants.h), or of kOwn below,
// which holds what neither can express. Tests of the tests only: a hazard's check must find its fault, and nothing without one.
#pragma once

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>

#include "faults/fault.h"
#include "kernels/judge.h"
#include "verify/mutants.h"

namespace quire::test {

/// A mistake of the model, and of what is done with its rows.
struct OwnFault {
  std::string id, text{};
  std::function<void(faults_detail::Model&)> plant = [](faults_detail::Model&) {};
  std::int64_t uncounted_rows = 0;
  bool leaves_padding = false;
};

/// Other bits within the tolerance for the requests with `rows` rows.
inline OwnFault other_bits_in_chunks_of(std::int64_t rows) {
  const std::string n = std::to_string(rows);
  return {"chunk_of_" + n + "_changes_bits", "gives a request other bits in chunks of " + n, [rows](faults_detail::Model& model) {
            model.finish = [rows](const faults_detail::Row& row, faults_detail::RowResult& result) {
              for (double& x : result.out) x *= row.query_len == rows ? 1 + 4e-7 : 1;
            };
          }};
}

/// Rows without a visible key, or of NaN scores, as `out` has them.
inline std::function<void(faults_detail::Model&)> replace_rows(bool (*replaced)(const faults_detail::RowResult&), double out) {
  return [=](faults_detail::Model& model) {
    model.finish = [=](const faults_detail::Row&, faults_detail::RowResult& result) {
      if (replaced(result)) std::fill(result.out.begin(), result.out.end(), out), result.lse = std::isnan(out) ? result.lse : 0;
    };
  };
}

/// A page belongs to the request that reads it first.
inline void claim_pages(faults_detail::Model& model) {
  const auto owners = std::make_shared<std::map<std::int64_t, std::int64_t>>();
  for (std::int64_t r = 0; r < model.facts->num_reqs; ++r)
    for (std::int64_t p = 0; p < model.facts->cached_lens[static_cast<std::size_t>(r)]; p += model.facts->page_size)
      owners->try_emplace(model.facts->page(r, p / model.facts->page_size), r);
  model.keys = [owners, keys = model.keys, facts = model.facts](const faults_detail::Row& row,
                                                                std::vector<faults_detail::Key>& list) {
    keys(row, list);
    std::erase_if(list, [&](const faults_detail::Key& key) {
      return key.position < row.cached_len && owners->at(facts->page(row.req, key.position / facts->page_size)) != row.req;
    });
  };
}

/// `position` travels in a field that cached keys do not use.
inline void drop_wide_dims(faults_detail::Model& model) {
  model.place = [place = model.place](const faults_detail::Model& m, const faults_detail::Row& row, faults_detail::Side side,
                                      std::int64_t position) {
    faults_detail::Place at = place(m, row, side, position);
    if (at.kind == faults_detail::Place::Kind::cache) at.token = position;
    return at;
  };
  model.vector = [](const faults_detail::Row&, faults_detail::Side side, const faults_detail::Place& at, std::int64_t,
                    std::span<double> x) {
    if (side == faults_detail::Side::key && at.kind == faults_detail::Place::Kind::cache && at.token >= 64)
      for (std::size_t d = 128; d < x.size(); ++d) x[d] = 0;
  };
}

inline const OwnFault kOwn[] = {
    {.id = "none"},
    {"large_negative_stand_in", "starts the maximum at -10000 instead of -inf",
     replace_rows([](const faults_detail::RowResult& r) { return r.lse == -std::numeric_limits<double>::infinity(); }, NAN)},
    {"nan_scores_skipped", "skips a visible key whose score is NaN",
     replace_rows([](const faults_detail::RowResult& r) { return std::isnan(r.lse); }, 0)},
    {"shared_pages_claimed", "lets one request own a page", claim_pages},
    {"wide_dims_of_later_keys_dropped", "multiplies only 128 dims of keys behind the first 64", drop_wide_dims},
    {.id = "padding_rows_left",
     .text = "leaves rows behind the last start as they are where zeros are asked for",
     .leaves_padding = true},
    {.id = "rows_miscounted", .text = "counts a row too few", .uncounted_rows = 1},
    other_bits_in_chunks_of(16),
    other_bits_in_chunks_of(64),
    other_bits_in_chunks_of(512),
};

/// Rows of a model in fp64, each value rounded once.
inline Status attend_by_model(const Case& c, const OwnFault& own, std::int64_t& rows) {
  const Batch& b = c.batch;
  const faults_detail::Facts facts(b, c.cache, c.options);
  faults_detail::Model model(facts);
  own.plant(model);
  std::vector<faults_detail::RowHead> all;
  for (std::int64_t t = 0; t < b.query.shape[0]; ++t)
    for (std::int64_t h = 0; h < facts.num_q_heads; ++h)
      if (t < facts.num_tokens) all.push_back({t, h});
  rows = static_cast<std::int64_t>(all.size()) - own.uncounted_rows;
  std::vector<faults_detail::RowResult> results = evaluate(model, all);
  for (std::int64_t t = facts.num_tokens; t < b.query.shape[0] && b.padding == Padding::zero && !own.leaves_padding; ++t)
    for (std::int64_t h = 0; h < facts.num_q_heads; ++h) {
      all.push_back({t, h});
      results.push_back(
          {true, std::vector<double>(static_cast<std::size_t>(facts.v_head_dim)), -std::numeric_limits<double>::infinity()});
    }
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!results[i].written) continue;
    const std::int64_t at = all[i].token * b.output.stride[0] + all[i].head * b.output.stride[1];
    for (std::int64_t d = 0; d < facts.v_head_dim; ++d)
      semantics::store(b.output.data, b.output.dtype, at + d * b.output.stride[2],
                       static_cast<float>(results[i].out[static_cast<std::size_t>(d)]));
    if (b.lse.present())
      semantics::store(b.lse.data, DType::f32, all[i].token * b.lse.stride[0] + all[i].head * b.lse.stride[1],
                       static_cast<float>(results[i].lse));
  }
  return {};
}

/// A fault of the catalogue; right rows where it cannot show.
inline OwnFault of_catalogue(const faults_detail::Fault& fault) {
  return {fault.info.id, fault.info.text, [&fault](faults_detail::Model& model) {
            const faults_detail::Suspects suspects = fault.suspects({*model.facts, {}});
            if (!suspects.list.empty()) suspects.list.front().plant(model);
          }};
}

struct Mutant {
  std::string text;  ///< a kernel that ...
  Attend attend;
};

/// Throws if no fault has this id.
inline Mutant mutant(const std::string& id) {
  const auto by_model = [](OwnFault own) -> Mutant {
    return {own.text, [own](const Case& c, int, std::int64_t& rows) { return attend_by_model(c, own, rows); }};
  };
  for (const OwnFault& own : kOwn)
    if (own.id == id) return by_model(own);
  if (const faults_detail::Fault* fault = faults_detail::find(id)) return by_model(of_catalogue(*fault));
  for (const verify_detail::Mutant& m : verify_detail::call_mutants())
    if (m.id == id)
      return {m.text, [target = m.target](const Case& c, int num_threads, std::int64_t& rows) {
                rows = num_request_rows(c.batch) * c.batch.query.shape[1];
                std::string served_by;
                const bool varied = num_threads > 1 && !target.variants.empty();
                return (varied ? target.variants.front().second : target.attend)(c, served_by);
              }};
  throw std::invalid_argument("no fault is called " + id);
}

}  // namespace quire::test
