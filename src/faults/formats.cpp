// SPDX-License-Identifier: Apache-2.0
// Faults in the meaning of a stored code: fp8 and 16-bit formats taken for one another.
#include <algorithm>
#include <cmath>

#include "faults/families.h"
#include "text/formatted.h"

namespace quire::faults_detail {
namespace {

DType type_of(const Facts& f, Side side) { return side == Side::key ? f.cache.k.dtype : f.cache.v.dtype; }

/// "i8", or "i8/bf16" of K and V with types of their own.
std::string types_of(const Facts& f) {
  const DType k = type_of(f, Side::key), v = type_of(f, Side::value);
  return k == v ? name_of(k) : formatted("{}/{}", name_of(k), name_of(v));
}

std::string not_fp8(const Facts& f) { return formatted("the cache is {}", types_of(f)); }

/// A side's type -> reader of its codes, or none if the fault says nothing of the type.
using Decode = std::function<void(const void* data, std::span<const std::int64_t> at, double* values)>;
using Reader = std::function<Decode(DType stored)>;

/// Suspects with both caches misread, or one of them, as far as the fault speaks of their types.
Suspects misread(const Clues& e, const Reader& reader, const std::string& detail, const std::string& why_not) {
  if (!any_cached(e.facts)) return cannot_show(kNotCached);
  const Decode of_key = reader(type_of(e.facts, Side::key)), of_value = reader(type_of(e.facts, Side::value));
  Suspects s;
  for (const int sides : {3, 1, 2}) {
    if ((sides & 1) != 0 && !of_key) continue;
    if ((sides & 2) != 0 && !of_value) continue;
    if (sides == 1 && !scores_matter(e.facts)) continue;
    const char* which = sides == 3 ? "K and V" : sides == 1 ? "K only" : "V only";
    s.list.push_back(
        {formatted("{}, {}", detail, which),
         function_changed(&Model::decode, [of_key, of_value, sides](const auto& before, Side side, const void* data,
                                                                    std::span<const std::int64_t> at, double* values) {
           const bool wrong = (sides & (side == Side::key ? 1 : 2)) != 0;
           const Decode& decode = side == Side::key ? of_key : of_value;
           return wrong ? decode(data, at, values) : before(side, data, at, values);
         })});
  }
  return std::move(s).or_why_not(of_key ? kOneKey : why_not);
}

/// `wrong(stored)` is the type that codes are taken for; none: the fault says nothing of the stored type.
Find read_as(DType (*wrong)(DType stored)) {
  return [wrong](const Clues& e) {
    const DType k = type_of(e.facts, Side::key), v = type_of(e.facts, Side::value);
    const DType stored = wrong(k) != DType::none ? k : v;
    return misread(
        e,
        [wrong](DType of_side) -> Decode {
          const DType type = wrong(of_side);
          if (type == DType::none) return {};
          return
              [type](const void* data, std::span<const std::int64_t> at, double* values) { decode_as(type, data, at, values); };
        },
        formatted("{} read as {}", name_of(stored), name_of(wrong(stored))), not_fp8(e.facts));
  };
}

Suspects integers(const Clues& e) {
  Suspects all;
  for (const bool is_signed : {false, true}) {
    Suspects s = misread(
        e,
        [is_signed](DType stored) -> Decode {
          if (!is_fp8(stored)) return {};
          return [is_signed](const void* data, std::span<const std::int64_t> at, double* values) {
            for (std::size_t i = 0; i < at.size(); ++i) {
              const std::uint8_t code = static_cast<const std::uint8_t*>(data)[at[i]];
              values[i] = is_signed ? static_cast<std::int8_t>(code) : code;
            }
          };
        },
        is_signed ? "int8" : "uint8", not_fp8(e.facts));
    std::move(s.list.begin(), s.list.end(), std::back_inserter(all.list));
    all.why_not = s.why_not;
  }
  return all;
}

/// One side's type for both: only where elements have one size, as others lie at other addresses.
Find type_of_other(Side wrong) {
  return [wrong](const Clues& e) {
    const Facts& f = e.facts;
    const Side other = wrong == Side::key ? Side::value : Side::key;
    const DType own = type_of(f, wrong), taken = type_of(f, other);
    if (own == taken) return cannot_show("K and V have one type");
    if (itemsize(own) != itemsize(taken) || is_four_bit(own) || is_four_bit(taken))
      return cannot_show(formatted("elements of {} and {} have sizes of their own", name_of(own), name_of(taken)));
    if (!any_cached(f)) return cannot_show(kNotCached);
    if (wrong == Side::key && !scores_matter(f)) return cannot_show(kOneKey);
    return one(function_changed(&Model::decode,
                                [wrong, taken](const auto& before, Side side, const void* data, std::span<const std::int64_t> at,
                                               double* values) {
                                  return side == wrong ? decode_as(taken, data, at, values) : before(side, data, at, values);
                                }),
               formatted("{} read as {}", name_of(own), name_of(taken)));
  };
}

/// Changes of single values: `wrong_of(type)(value)`; none for types that the fault says nothing of.
Find values(const char* detail, std::function<double(double)> (*wrong_of)(DType)) {
  return [=](const Clues& e) {
    return misread(
        e,
        [wrong_of](DType type) -> Decode {
          const std::function<double(double)> wrong = wrong_of(type);
          if (!wrong) return {};
          return [type, wrong](const void* data, std::span<const std::int64_t> at, double* to) {
            decode_as(type, data, at, to);
            for (std::size_t i = 0; i < at.size(); ++i) to[i] = wrong(to[i]);
          };
        },
        detail, not_fp8(e.facts));
  };
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

/// The smallest normal number of an fp8 format; 0 for other types.
double smallest_normal(DType type) {
  switch (type) {
    case DType::fp8_e4m3fn: return 0x1p-6;
    case DType::fp8_e4m3fnuz: return 0x1p-7;
    case DType::fp8_e5m2: return 0x1p-14;
    case DType::fp8_e5m2fnuz: return 0x1p-15;
    default: return 0;
  }
}

bool is_subnormal(double value, double smallest) { return value != 0 && std::fabs(value) < smallest; }

Suspects flushed(const Clues& e) {
  constexpr double kEnough = 0.002;
  double most = -1;
  for (const Side side : kSides)
    if (const double smallest = smallest_normal(type_of(e.facts, side)); smallest > 0)
      most = std::max(most, share(e.facts, side, [smallest](double v) { return is_subnormal(v, smallest); }));
  if (most < 0) return cannot_show(not_fp8(e.facts));
  if (most < kEnough) return cannot_show("hardly any stored value is subnormal");
  return values("subnormals", [](DType type) -> std::function<double(double)> {
    const double smallest = smallest_normal(type);
    if (smallest == 0) return {};
    return [smallest](double v) { return is_subnormal(v, smallest) ? 0 : v; };
  })(e);
}

Suspects saturated(const Clues& e) {
  static constexpr double kMost = 240;
  double found = -1;
  for (const Side side : kSides)
    if (type_of(e.facts, side) == DType::fp8_e4m3fn)
      found = std::max(found, 0.0) + share(e.facts, side, [](double v) { return std::fabs(v) > kMost; });
  if (found < 0) return cannot_show(formatted("the cache is {}, not fp8_e4m3fn", types_of(e.facts)));
  if (found < 0.001) return cannot_show("hardly any stored value exceeds 240");
  return values("at 240", [](DType type) -> std::function<double(double)> {
    if (type != DType::fp8_e4m3fn) return {};
    return [](double v) { return std::isnan(v) ? v : std::clamp(v, -kMost, kMost); };
  })(e);
}

}  // namespace

void add_formats(std::vector<Fault>& list) {
  const Family add{list, "formats"};
  const char* const kName =
      "name the format in full, fn or fnuz, e4m3 or e5m2, from the append to the kernel; \"fp8\" is not a type";
  add("fp8_fn_fnuz_confused", "reads OCP fp8 codes as fnuz, or the reverse", "vllm#45562, vllm#14152", kName,
      read_as([](DType stored) {
        switch (stored) {
          case DType::fp8_e4m3fn: return DType::fp8_e4m3fnuz;
          case DType::fp8_e4m3fnuz: return DType::fp8_e4m3fn;
          case DType::fp8_e5m2: return DType::fp8_e5m2fnuz;
          case DType::fp8_e5m2fnuz: return DType::fp8_e5m2;
          default: return DType::none;
        }
      }));
  add("fp8_e4m3_e5m2_confused", "reads e4m3 codes as e5m2, or the reverse", "", kName, read_as([](DType stored) {
        switch (stored) {
          case DType::fp8_e4m3fn: return DType::fp8_e5m2;
          case DType::fp8_e4m3fnuz: return DType::fp8_e5m2fnuz;
          case DType::fp8_e5m2: return DType::fp8_e4m3fn;
          case DType::fp8_e5m2fnuz: return DType::fp8_e4m3fnuz;
          default: return DType::none;
        }
      }));
  add("fp8_codes_as_integers", "reads fp8 codes as integers", "mudler/vllm.cpp#2065",
      "a uint8 cache needs a view of its real type", integers);
  add("fp8_subnormals_flushed", "flushes fp8 subnormals to zero", "",
      "look at the conversion to 16 bits: bit tricks forget exponent 0", flushed);
  add("fp8_saturated_at_240", "cuts fp8_e4m3fn values at 240, the largest of e4m3fnuz", "", kName, saturated);
  add("f16_bf16_confused", "reads f16 codes as bf16, or the reverse", "", "pass the cache's type, not the query's",
      read_as([](DType stored) {
        return stored == DType::f16 ? DType::bf16 : stored == DType::bf16 ? DType::f16 : DType::none;
      }));
  const char* const kTypes = "pass the type of each side; K and V may have types of their own";
  add("sign_lost", "loses the sign of cached values", "", "look at the bit mask of the conversion",
      values("sign bit masked off",
             [](DType) -> std::function<double(double)> { return [](double v) { return std::fabs(v); }; }));
  const Family add_of_types{list, "unlike_types"};
  add_of_types("v_read_as_type_of_k", "reads values as the type of keys", "", kTypes, type_of_other(Side::value));
  add_of_types("k_read_as_type_of_v", "reads keys as the type of values", "", kTypes, type_of_other(Side::key));
}

}  // namespace quire::faults_detail
