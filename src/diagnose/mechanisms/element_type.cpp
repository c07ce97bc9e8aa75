// SPDX-License-Identifier: Apache-2.0
// K or V decoded as another type, or from another layout. The catalogue has both sides at once; kernels convert K and V in
// different places.

#include <algorithm>
#include <cmath>

#include "diagnose/mechanisms/mechanism.h"
#include "semantics/dtype.h"
#include "text/formatted.h"

namespace quire::diagnose_detail {
namespace {

/// A way to read the bytes of one element.
struct Reading {
  std::string name;
  std::function<void(const void* data, std::span<const std::int64_t> at, double* values)> decode;
  int parameters = 0;
};

std::vector<Reading> readings(DType stored) {
  std::vector<Reading> list;
  const auto as = [&](DType type) {
    if (type == stored) return;
    list.push_back({std::string(name(type)), [type](const void* data, std::span<const std::int64_t> at, double* values) {
                      faults_detail::decode_as(type, data, at, values);
                    }});
    if (is_fp8(type))
      list.push_back({formatted("{}, codes of NaN and infinity as 0", name(type)),
                      [type](const void* data, std::span<const std::int64_t> at, double* values) {
                        faults_detail::decode_as(type, data, at, values);
                        std::replace_if(values, values + at.size(), [](double v) { return !std::isfinite(v); }, 0.0);
                      },
                      2});
  };
  if (itemsize(stored) == 2) {
    as(DType::f16);
    as(DType::bf16);
    return list;
  }
  if (itemsize(stored) != 1 || is_four_bit(stored)) return list;
  for (const DType type : {DType::fp8_e4m3fn, DType::fp8_e4m3fnuz, DType::fp8_e5m2, DType::fp8_e5m2fnuz}) as(type);
  for (const double unit : {127.0, 128.0})
    list.push_back({formatted("int8 / {:g}", unit), [unit](const void* data, std::span<const std::int64_t> at, double* values) {
                      for (std::size_t i = 0; i < at.size(); ++i) values[i] = static_cast<const std::int8_t*>(data)[at[i]] / unit;
                    }});
  list.push_back({"int8", [](const void* data, std::span<const std::int64_t> at, double* values) {
                    for (std::size_t i = 0; i < at.size(); ++i) values[i] = static_cast<const std::int8_t*>(data)[at[i]];
                  }});
  list.push_back({"uint8", [](const void* data, std::span<const std::int64_t> at, double* values) {
                    for (std::size_t i = 0; i < at.size(); ++i) values[i] = static_cast<const std::uint8_t*>(data)[at[i]];
                  }});
  return list;
}

void propose_readings(const Facts& f, Proposals& list) {
  const DType k = f.cache.k.dtype, v = f.cache.v.dtype;
  std::vector<std::pair<Reading, Sides>> ways;
  for (const DType stored : k == v ? std::vector{k} : std::vector{k, v})
    for (const Reading& reading : readings(stored))
      for (const Sides sides : kSideSets)
        if (k == v || (stored == k ? sides.key && !sides.value : sides.value && !sides.key)) ways.emplace_back(reading, sides);
  for (const auto& [reading, sides] : ways) {
    Proposal p{"element_type",
               formatted("reads {} as another type", sides.text()),
               formatted("as {}", reading.name),
               "name the format in full, fn or fnuz, e4m3 or e5m2, from the append to the kernel",
               reading.parameters,
               {}};
    p.plant = function_changed(&Model::decode, [sides, reading](const auto& before, Side side, const void* data,
                                                                std::span<const std::int64_t> at, double* values) {
      sides.has(side) ? reading.decode(data, at, values) : before(side, data, at, values);
    });
    list.push_back(std::move(p));
  }
}

/// The query's bytes as the other type of 16 bits.
void propose_query_reading(const Facts& f, Proposals& list) {
  const DType stored = f.batch.query.dtype;
  if (itemsize(stored) != 2) return;
  const DType other = stored == DType::f16 ? DType::bf16 : DType::f16;
  list.push_back({"element_type", "reads the query as another type", formatted("{} as {}", name(stored), name(other)),
                  "pass the type of the query with its pointer", 0, [other](Model& m) {
                    m.query = [f = m.facts, other, before = m.query](const Row& row, std::int64_t d) {
                      const Tensor& q = f->batch.query;
                      const double right = before(row, d);
                      if (right == 0 || std::isnan(right)) return right;
                      const std::int64_t at = row.query_token * q.stride[0] + row.query_head * q.stride[1] + d * q.stride[2];
                      const double q_scale = right / semantics::load(q.data, q.dtype, at);
                      return q_scale * semantics::load(q.data, other, at);
                    };
                  }});
}

/// Element offsets of one (page, slot, head) inside a page whose elements are taken to lie in another order.
struct ElementOrder {
  std::string text;
  std::function<std::int64_t(const Facts&, const Place&, std::int64_t head, std::int64_t dim, std::int64_t dims)>
      inside;  ///< offset in a page of contiguous elements
};

std::vector<ElementOrder> orders() {
  using N = std::int64_t;
  return {
      {"[slots, heads, dims]",
       [](const Facts& f, const Place& p, N h, N d, N n) { return (p.offset * f.num_kv_heads + h) * n + d; }},
      {"[heads, slots, dims]",
       [](const Facts& f, const Place& p, N h, N d, N n) { return (h * f.page_size + p.offset) * n + d; }},
      {"[heads, dims, slots]",
       [](const Facts& f, const Place& p, N h, N d, N n) { return (h * n + d) * f.page_size + p.offset; }},
      {"[dims, heads, slots]",
       [](const Facts& f, const Place& p, N h, N d, N) { return (d * f.num_kv_heads + h) * f.page_size + p.offset; }},
      {"[slots, dims, heads]",
       [](const Facts& f, const Place& p, N h, N d, N n) { return (p.offset * n + d) * f.num_kv_heads + h; }},
      {"[dims, slots, heads]",
       [](const Facts& f, const Place& p, N h, N d, N) { return (d * f.page_size + p.offset) * f.num_kv_heads + h; }},
      // Inside one head's part of a page, whatever lies around it.
      {"[dims, slots] within a head", {}},
  };
}

/// The slot and dim whose element is read where a head's part of a page is taken for [dims, slots].
void transpose_within_head(const Facts& f, Side side, const Place& place, std::int64_t head, std::span<std::int64_t> at) {
  std::vector<std::int64_t> row(Facts::at(f.dims_of(side)));
  for (std::size_t d = 0; d < at.size(); ++d) {
    const std::int64_t dims = f.dims_of(side), flat = static_cast<std::int64_t>(d) * f.page_size + place.offset;
    Place other = place;
    other.offset = flat / dims;
    faults_detail::elements_as(f.cache.layout, side, f.strides(side), f.cache.k.shape[4], other, head, row);
    at[d] = row[Facts::at(flat % dims)];
  }
}

void propose_orders(const Facts& f, Proposals& list) {
  const Facts* facts = &f;
  for (const ElementOrder& order : orders())
    for (const Sides sides : kSideSets) {
      Proposal p{"layout",
                 formatted("reads {} in another layout", sides.text()),
                 formatted("a page taken for {}", order.text),
                 "name the layout (nhd, hnd, packed) where the cache is allocated, and compare it with the kernel's",
                 0,
                 {}};
      p.plant = function_changed(&Model::elements, [facts, sides, order](const auto& before, Side side, const Place& place,
                                                                         std::int64_t head, std::span<std::int64_t> at) {
        if (!sides.has(side)) return before(side, place, head, at);
        if (!order.inside) return transpose_within_head(*facts, side, place, head, at);
        for (std::size_t d = 0; d < at.size(); ++d)
          at[d] = place.page * facts->strides(side)[0] +
                  order.inside(*facts, place, head, static_cast<std::int64_t>(d), facts->dims_of(side));
      });
      list.push_back(std::move(p));
    }
}

/// K in place of V and V in place of K, each by its own strides. No kernel takes one for the other if their lengths differ.
void propose_exchange(const Facts& facts, Proposals& list) {
  if (!facts.has_equal_dims()) return;
  list.push_back({"layout", "uses K as V and V as K", "", "compare the order of arguments at the call with the declaration", 0,
                  [](Model& m) {
                    m.vector = [f = m.facts](const Row&, Side side, const Place& place, std::int64_t head, std::span<double> v) {
                      const Side other = side == Side::key ? Side::value : Side::key;
                      if (place.kind == Place::Kind::new_row) faults_detail::load_new_row(*f, other, place.token, head, v);
                      if (place.kind != Place::Kind::cache) return;
                      const float* stored = f->decoded.slot(other, place.page, place.offset, head);
                      const double scale = Model(*f).scale(other, place, head);
                      for (std::size_t d = 0; stored != nullptr && d < v.size(); ++d)
                        v[d] = scale * static_cast<double>(stored[d]);
                    };
                  }});
}

}  // namespace

void propose_element_type(const Scene& scene, Proposals& list) {
  propose_readings(scene.facts, list);
  propose_query_reading(scene.facts, list);
}
void propose_layout(const Scene& scene, Proposals& list) {
  propose_orders(scene.facts, list);
  propose_exchange(scene.facts, list);
}

}  // namespace quire::diagnose_detail
