// SPDX-License-Identifier: Apache-2.0
// K, V or the query decoded as another type. The catalogue has K and V at once; kernels convert them in different places.
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

}  // namespace

void propose_element_type(const Scene& scene, Proposals& list) {
  propose_readings(scene.facts, list);
  propose_query_reading(scene.facts, list);
}

}  // namespace quire::diagnose_detail
