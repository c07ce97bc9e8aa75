// SPDX-License-Identifier: Apache-2.0
// Faults in the meaning of a stored code: fp8 and 16-bit formats taken for one another.
#include <algorithm>
#include <cmath>

#include "faults/families.h"
#include "text/formatted.h"

namespace quire::faults_detail {
namespace {

DType type_of(const Facts& f) { return f.cache.k.dtype; }

std::string not_fp8(const Facts& f) { return formatted("the cache is {}", name_of(type_of(f))); }

using Decode = std::function<void(const void* data, std::span<const std::int64_t> at, double* values)>;

/// Suspects with both caches misread, or one of them.
Suspects misread(const Clues& e, const Decode& decode, const std::string& detail) {
  if (!any_cached(e.facts)) return cannot_show("no row reads the cache");
  Suspects s;
  for (const int sides : {3, 1, 2}) {
    if (sides == 1 && !scores_matter(e.facts)) continue;
    const char* which = sides == 3 ? "K and V" : sides == 1 ? "K only" : "V only";
    s.list.push_back({formatted("{}, {}", detail, which), [decode, sides](Model& m) {
                        m.decode = [decode, sides, before = m.decode](Side side, const void* data,
                                                                      std::span<const std::int64_t> at, double* values) {
                          const bool wrong = (sides & (side == Side::key ? 1 : 2)) != 0;
                          return wrong ? decode(data, at, values) : before(side, data, at, values);
                        };
                      }});
  }
  return s;
}

Suspects read_as(const Clues& e, DType wrong) {
  return misread(
      e, [wrong](const void* data, std::span<const std::int64_t> at, double* values) { decode_as(wrong, data, at, values); },
      formatted("{} read as {}", name_of(type_of(e.facts)), name_of(wrong)));
}

Suspects other_zero(const Clues& e) {
  switch (type_of(e.facts)) {
    case DType::fp8_e4m3fn: return read_as(e, DType::fp8_e4m3fnuz);
    case DType::fp8_e4m3fnuz: return read_as(e, DType::fp8_e4m3fn);
    case DType::fp8_e5m2: return read_as(e, DType::fp8_e5m2fnuz);
    case DType::fp8_e5m2fnuz: return read_as(e, DType::fp8_e5m2);
    default: return cannot_show(not_fp8(e.facts));
  }
}

Suspects other_exponent(const Clues& e) {
  switch (type_of(e.facts)) {
    case DType::fp8_e4m3fn: return read_as(e, DType::fp8_e5m2);
    case DType::fp8_e4m3fnuz: return read_as(e, DType::fp8_e5m2fnuz);
    case DType::fp8_e5m2: return read_as(e, DType::fp8_e4m3fn);
    case DType::fp8_e5m2fnuz: return read_as(e, DType::fp8_e4m3fnuz);
    default: return cannot_show(not_fp8(e.facts));
  }
}

Suspects other_half(const Clues& e) {
  switch (type_of(e.facts)) {
    case DType::f16: return read_as(e, DType::bf16);
    case DType::bf16: return read_as(e, DType::f16);
    default: return cannot_show(not_fp8(e.facts));
  }
}

Suspects integers(const Clues& e) {
  if (!is_fp8(type_of(e.facts))) return cannot_show(not_fp8(e.facts));
  Suspects all;
  for (const bool is_signed : {false, true}) {
    Suspects s = misread(
        e,
        [is_signed](const void* data, std::span<const std::int64_t> at, double* values) {
          for (std::size_t i = 0; i < at.size(); ++i) {
            const std::uint8_t code = static_cast<const std::uint8_t*>(data)[at[i]];
            values[i] = is_signed ? static_cast<std::int8_t>(code) : code;
          }
        },
        is_signed ? "int8" : "uint8");
    std::move(s.list.begin(), s.list.end(), std::back_inserter(all.list));
    all.why_not = s.why_not;
  }
  return all;
}

/// Changes of single values: `wrong(value)`.
Suspects values(const Clues& e, const std::string& detail, const std::function<double(double)>& wrong) {
  return misread(
      e,
      [type = type_of(e.facts), wrong](const void* data, std::span<const std::int64_t> at, double* to) {
        decode_as(type, data, at, to);
        for (std::size_t i = 0; i < at.size(); ++i) to[i] = wrong(to[i]);
      },
      detail);
}

/// Share of the visible values of one side that `counts` is true for; looks at 65536 values at most.
template <typename Predicate>
double share(const Facts& f, Side side, Predicate&& counts) {
  Model m(f);
  m.scale = [](Side, const Place&, std::int64_t) { return 1.0; };
  std::vector<std::int64_t> scratch;
  std::vector<double> v(Facts::at(f.dims_of(side)));
  std::int64_t seen = 0, found = 0;
  for (std::int64_t r = 0; r < f.num_reqs; ++r) {
    const Range range = cached_range(f, r);
    if (range.empty()) continue;
    Row row = m.row(f.query_start_loc[Facts::at(r)], 0);
    for (std::int64_t k = range.first; k <= range.last; ++k)
      for (row.query_head = 0; row.query_head < f.num_q_heads && seen < 65536; row.query_head += f.group) {
        load_vector(m, row, side, k, scratch, v);
        seen += f.dims_of(side);
        found += std::count_if(v.begin(), v.end(), counts);
      }
  }
  return seen == 0 ? 0 : static_cast<double>(found) / static_cast<double>(seen);
}

Suspects flushed(const Clues& e) {
  constexpr double kEnough = 0.002;
  double smallest = 0;
  switch (type_of(e.facts)) {
    case DType::fp8_e4m3fn: smallest = 0x1p-6; break;
    case DType::fp8_e4m3fnuz: smallest = 0x1p-7; break;
    case DType::fp8_e5m2: smallest = 0x1p-14; break;
    case DType::fp8_e5m2fnuz: smallest = 0x1p-15; break;
    default: return cannot_show(not_fp8(e.facts));
  }
  const auto subnormal = [smallest](double v) { return v != 0 && std::fabs(v) < smallest; };
  if (std::max(share(e.facts, Side::key, subnormal), share(e.facts, Side::value, subnormal)) < kEnough)
    return cannot_show("hardly any stored value is subnormal");
  return values(e, "subnormals", [subnormal](double v) { return subnormal(v) ? 0 : v; });
}

Suspects saturated(const Clues& e) {
  static constexpr double kMost = 240;
  if (type_of(e.facts) != DType::fp8_e4m3fn)
    return cannot_show(formatted("the cache is {}, not fp8_e4m3fn", name_of(type_of(e.facts))));
  const auto large = [](double v) { return std::fabs(v) > kMost; };
  if (share(e.facts, Side::key, large) + share(e.facts, Side::value, large) < 0.001)
    return cannot_show("hardly any stored value exceeds 240");
  return values(e, "at 240", [](double v) { return std::isnan(v) ? v : std::clamp(v, -kMost, kMost); });
}

Suspects sign_lost(const Clues& e) {
  return values(e, "sign bit masked off", [](double v) { return std::fabs(v); });
}

}  // namespace

void add_formats(std::vector<Fault>& list) {
  const Family add{list, "formats"};
  const char* const kName =
      "name the format in full, fn or fnuz, e4m3 or e5m2, from the append to the kernel; \"fp8\" is not a type";
  add("fp8_fn_fnuz_confused", "reads OCP fp8 codes as fnuz, or the reverse", "vllm#45562, vllm#14152", kName, other_zero);
  add("fp8_e4m3_e5m2_confused", "reads e4m3 codes as e5m2, or the reverse", "", kName, other_exponent);
  add("fp8_codes_as_integers", "reads fp8 codes as integers", "mudler/vllm.cpp#2065",
      "a uint8 cache needs a view of its real type", integers);
  add("fp8_subnormals_flushed", "flushes fp8 subnormals to zero", "",
      "look at the conversion to 16 bits: bit tricks forget exponent 0", flushed);
  add("fp8_saturated_at_240", "cuts fp8_e4m3fn values at 240, the largest of e4m3fnuz", "", kName, saturated);
  add("f16_bf16_confused", "reads f16 codes as bf16, or the reverse", "", "pass the cache's type, not the query's", other_half);
  add("sign_lost", "loses the sign of cached values", "", "look at the bit mask of the conversion", sign_lost);
}

}  // namespace quire::faults_detail
