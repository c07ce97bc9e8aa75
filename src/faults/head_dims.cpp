// SPDX-License-Identifier: Apache-2.0
// K and V of different head_dims, and V in K's rows (MLA): one taken for the other.
#include <algorithm>
#include <cmath>
#include <memory>

#include "faults/families.h"
#include "text/formatted.h"

namespace quire::faults_detail {
namespace {

constexpr const char* kEqualDims = "K and V have one head_dim";

/// The strides of one side from the head_dim of the other.
Suspects strides_of_other(const Clues& e, Side wrong) {
  const Facts& f = e.facts;
  if (f.has_equal_dims()) return cannot_show(kEqualDims);
  if (!any_cached(f)) return cannot_show(kNotCached);
  if (wrong == Side::key && !scores_matter(f)) return cannot_show(kOneKey);
  const std::int64_t dims = f.dims_of(wrong == Side::key ? Side::value : Side::key);
  const auto strides = contiguous_strides(f.cache.layout, wrong, f.num_kv_heads, f.page_size, dims, f.cache.k.shape[4]);
  const Tensor& t = f.codes(wrong);
  const auto own = f.strides(wrong);
  if (std::equal(own.begin(), own.begin() + t.rank, strides.begin()))
    return cannot_show("V lies in rows of K's length: the strides are the same");
  return one(
      function_changed(&Model::elements,
                       [strides, wrong, layout = f.cache.layout, x = f.cache.k.shape[4]](
                           const auto& before, Side side, const Place& place, std::int64_t head, std::span<std::int64_t> at) {
                         side == wrong ? elements_as(layout, side, strides, x, place, head, at) : before(side, place, head, at);
                       }),
      formatted("rows of {} instead of {}", dims, f.dims_of(wrong)));
}

/// Whether the V of cached tokens is the leading dims of their K, in one tensor or in two; some tokens of each request are asked.
bool v_begins_k(const Facts& f) {
  constexpr std::int64_t kMost = 16;
  if (f.v_is_in_k()) return true;
  const Model truth(f);
  std::vector<std::int64_t> scratch;
  std::vector<double> key(Facts::at(f.v_head_dim)), value(key.size());
  for (std::int64_t r = 0; r < f.num_reqs && f.v_head_dim < f.head_dim; ++r) {
    const Range range = cached_range(f, r);
    for (std::int64_t k = range.first; k <= std::min(range.last, range.first + kMost); ++k) {
      const Row row = truth.row(f.query_start_loc[Facts::at(r)], 0);
      load_vector(truth, row, Side::key, k, scratch, key);
      load_vector(truth, row, Side::value, k, scratch, value);
      if (key != value) return false;
    }
  }
  return f.v_head_dim < f.head_dim;
}

/// A latent row is [values, RoPE part]: V taken from its last dims instead of its first.
Suspects v_behind_rope(const Clues& e) {
  const Facts& f = e.facts;
  if (f.has_equal_dims() || !v_begins_k(f)) return cannot_show("V is not a part of K's rows");
  if (!any_cached(f)) return cannot_show(kNotCached);
  const std::int64_t first = f.head_dim - f.v_head_dim;
  if (!f.v_is_in_k())
    return one(function_changed(&Model::vector,
                                [facts = &f, truth = std::make_shared<Model>(f), first](const auto& before, const Row& row,
                                                                                        Side side, const Place& place,
                                                                                        std::int64_t head, std::span<double> v) {
                                  if (before) before(row, side, place, head, v);
                                  if (side == Side::key || place.kind != Place::Kind::cache) return;
                                  const float* key = facts->decoded.slot(Side::key, place.page, place.offset, head);
                                  const double scale = truth->scale(Side::key, place, head) * facts->value_unit;
                                  for (std::size_t d = 0; key != nullptr && d < v.size(); ++d)
                                    v[d] = scale * static_cast<double>(key[Facts::at(first) + d]);
                                }),
               formatted("from dim {}", first));
  return one(function_changed(&Model::elements,
                              [shift = first * f.cache.v.stride[3]](const auto& before, Side side, const Place& place,
                                                                    std::int64_t head, std::span<std::int64_t> at) {
                                before(side, place, head, at);
                                for (std::int64_t& i : at) i += side == Side::value ? shift : 0;
                              }),
             formatted("from dim {}", first));
}

Suspects scale_of_v(const Clues& e) {
  const Facts& f = e.facts;
  if (f.has_equal_dims()) return cannot_show(kEqualDims);
  if (f.options.softmax_scale) return cannot_show("softmax_scale is given: no default is used");
  if (!scores_matter(f)) return cannot_show(kOneKey);
  const double wrong = 1 / std::sqrt(static_cast<double>(f.v_head_dim));
  return one(function_set(&Model::softmax_scale, [wrong](const Row&) { return wrong; }),
             formatted("1 / sqrt({}) instead of 1 / sqrt({})", f.v_head_dim, f.head_dim));
}

/// MLA's scores without their RoPE part.
Suspects scores_over_v(const Clues& e) {
  const std::int64_t cut = e.facts.v_head_dim;
  if (cut >= e.facts.head_dim) return cannot_show("V has as many dims as K, or more");
  if (!scores_matter(e.facts)) return cannot_show(kOneKey);
  return one([cut](Model& m) { m.dims = std::min(m.dims, cut); }, formatted("the first {} of {} dims", cut, e.facts.head_dim));
}

Suspects dims_beyond_k(const Clues& e) {
  const std::int64_t cut = e.facts.head_dim;
  if (cut >= e.facts.v_head_dim) return cannot_show("V has no more dims than K");
  return one(result_changed([cut](const Row&, RowResult& result) {
               std::fill(result.out.begin() + std::min(cut, std::ssize(result.out)), result.out.end(), 0.0);
             }),
             formatted("dims {} .. {}", cut, e.facts.v_head_dim - 1));
}

/// The value at an element of the output if its rows were stored `stride` elements apart: later rows overwrite earlier ones;
/// elements that no row reaches are NaN.
Plant rows_apart_by(const Facts* f, std::int64_t stride) {
  return [f, stride](Model& m) {
    m.finish = [f, stride, own = m, before = m.finish](const Row& r, RowResult& result) {
      before(r, result);
      if (!r.written) return;
      const std::int64_t dims = f->v_head_dim, last = f->num_tokens * f->num_q_heads - 1;
      const std::int64_t first = (r.token * f->num_q_heads + r.head) * dims;
      const std::int64_t from = std::min(first / stride, last), to = std::min((first + dims - 1) / stride, last);
      std::vector<RowHead> rows;
      for (std::int64_t at = from; at <= to; ++at) rows.push_back({at / f->num_q_heads, at % f->num_q_heads});
      const std::vector<RowResult> stored = evaluate(own, rows);
      for (std::int64_t d = 0; d < dims; ++d) {
        const std::int64_t at = std::min((first + d) / stride, last), dim = first + d - at * stride;
        result.out[Facts::at(d)] = dim < dims ? stored[Facts::at(at - from)].out[Facts::at(dim)] : kNaN;
      }
    };
  };
}

Suspects output_rows_of_k(const Clues& e) {
  const Facts* f = &e.facts;
  if (f->has_equal_dims()) return cannot_show(kEqualDims);
  if (f->num_tokens * f->num_q_heads < 2) return cannot_show("one row of one head: a stride does not matter");
  return one(rows_apart_by(f, f->head_dim), formatted("row stride {} instead of {}", f->head_dim, f->v_head_dim));
}

}  // namespace

void add_head_dims(std::vector<Fault>& list) {
  const Family add{list, "head_dims"};
  const char* const kOwn = "take the strides of K, V and output from each tensor: their rows have lengths of their own";
  add("v_strides_from_k_head_dim", "takes the strides of V from the head_dim of K", "", kOwn,
      [](const Clues& e) { return strides_of_other(e, Side::value); });
  add("k_strides_from_v_head_dim", "takes the strides of K from the head_dim of V", "", kOwn,
      [](const Clues& e) { return strides_of_other(e, Side::key); });
  add("output_rows_of_k_head_dim", "takes the row stride of the output from the head_dim of K", "", kOwn, output_rows_of_k);
  add("v_read_from_last_dims", "reads V from the last dims of a latent row instead of its first", "",
      "a latent row is [values, RoPE part]: values begin at dim 0", v_behind_rope);
  add("scale_from_v_head_dim", "takes the default softmax_scale from the head_dim of V", "",
      "softmax_scale is 1 / sqrt of the dims that a score sums over", scale_of_v);
  add("rope_dims_dropped", "leaves the dims that K has beyond V out of the dot product", "",
      "scores take all dims of K: of a latent row its values and its RoPE part", scores_over_v);
  add("v_dims_beyond_k_zero", "writes zeros into the dims that V has beyond K", "",
      "look at the loop over dims of the output: it ends at v_head_dim", dims_beyond_k);
}

}  // namespace quire::faults_detail
