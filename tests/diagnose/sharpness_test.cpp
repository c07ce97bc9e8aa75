// SPDX-License-Identifier: Apache-2.0
// A tolerance is worth what it rejects: faults that a published suite let pass (max |q|, |k|, |v| of 1e-3, atol 1e-4) against
// ours on N(0,1) data, and an honest single-precision kernel that must stay inside.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <sstream>

#include "quire/tools/diagnose.hpp"
#include "support/small_case.h"

namespace quire::test {
namespace {

/// The decode row of the failing batch: 930 keys of dim 128; a few heads are enough. Window and a second row where needed.
SmallSpec spec_of(DType dtype, std::int64_t query_len = 1, std::optional<std::int64_t> window = std::nullopt) {
  SmallSpec spec;
  Problem& p = spec.problem;
  p.q_dtype = p.kv_dtype = dtype;
  p.num_q_heads = p.num_kv_heads = 4;
  p.head_dim = 128;
  p.page_size = 32;
  p.sliding_window = window;
  p.lse = true;
  p.reqs = {{query_len, 930 - query_len, 930}};
  return spec;
}

/// What a mutant may do differently; the identity by default.
struct Mutant {
  std::function<std::int64_t(std::int64_t)> k_key = [](std::int64_t k) { return k; };
  std::function<std::int64_t(std::int64_t)> v_key = [](std::int64_t k) { return k; };
  std::function<bool(std::int64_t k, std::int64_t q_pos, std::int64_t window)> visible =
      [](std::int64_t k, std::int64_t q, std::int64_t w) { return k <= q && q - k < w; };
  double scale = 1 / std::sqrt(128.0);
  bool zero_last_slot = false, zero_cache = false, zero_output = false;
};

/// One-pass f32 softmax attention on the logical values, key by key: rescales as often as a kernel can.
void attend_f32(const SmallCase& c, const Mutant& mutant) {
  const Request& req = c.problem().reqs[0];
  const std::int64_t window = c.problem().sliding_window.value_or(req.seq_len());
  for (std::int64_t i = 0; i < req.query_len; ++i)
    for (std::int64_t h = 0; h < c.problem().num_q_heads; ++h) {
      float max = -INFINITY, sum = 0, acc[128] = {};
      for (std::int64_t k = 0; k < req.seq_len(); ++k) {
        if (!mutant.visible(k, req.context_len + i, window)) continue;
        const bool zero = mutant.zero_cache || (mutant.zero_last_slot && k == req.seq_len() - 1);
        float dot = 0;
        for (std::int64_t d = 0; d < 128 && !zero; ++d)
          dot += static_cast<float>(c.query(i, h, d)) * static_cast<float>(c.k[0](mutant.k_key(k), h, d));
        const float s = dot * static_cast<float>(mutant.scale);
        const float new_max = std::max(max, s), correction = std::exp(max - new_max), p = std::exp(s - new_max);
        max = new_max;
        sum = sum * correction + p;
        for (std::int64_t d = 0; d < 128; ++d)
          acc[d] = acc[d] * correction + p * (zero ? 0.0f : static_cast<float>(c.v[0](mutant.v_key(k), h, d)));
      }
      for (std::int64_t d = 0; d < 128; ++d) set(c.batch.output, {i, h, d}, mutant.zero_output ? 0.0f : acc[d] / sum);
      set(c.batch.lse, {i, h}, max + std::log(sum));
    }
}

double worst_ratio(DType dtype, const Mutant& mutant, std::int64_t query_len = 1,
                   std::optional<std::int64_t> window = std::nullopt) {
  const SmallCase c(spec_of(dtype, query_len, window));
  attend_f32(c, mutant);
  const Result<Reference> ref = reference(c.batch, c.cache, c.options);
  EXPECT_TRUE(ref.ok()) << ref.status().message();
  return compare(c.batch.output, {}, ref.value()).worst_ratio;
}

TEST(Sharpness, AnHonestSinglePrecisionKernelStaysInside) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (const std::int64_t query_len : {std::int64_t{1}, std::int64_t{3}}) {
      const SmallCase c(spec_of(dtype, query_len));
      attend_f32(c, {});
      const Comparison result = compare(c.batch.output, c.batch.lse, reference(c.batch, c.cache, c.options).value());
      EXPECT_TRUE(result.ok) << result.text;
      // In f32 the accumulation is judged, where bounds exceed real errors; in 16 bits the final rounding, whose bound is
      // attained.
      EXPECT_LT(result.worst_ratio, dtype == DType::f32 ? 0.1 : 1.0);
      RecordProperty("honest " + std::string(name(dtype)) + " " + std::to_string(query_len), std::to_string(result.worst_ratio));
    }
}

struct Planted {
  const char* name;
  Mutant mutant;
  std::int64_t query_len = 1;
  std::optional<std::int64_t> window;
};

std::vector<Planted> planted_faults() {
  std::vector<Planted> list;
  const auto add = [&](const char* name, auto edit, std::int64_t query_len = 1,
                       std::optional<std::int64_t> window = std::nullopt) {
    list.push_back({name, {}, query_len, window});
    edit(list.back().mutant);
  };
  add("output all zeros", [](Mutant& m) { m.zero_output = true; });
  add("decode row's own K/V slot zero", [](Mutant& m) { m.zero_last_slot = true; });
  add("scale from 64 heads instead of 128 dims", [](Mutant& m) { m.scale = 1 / std::sqrt(64.0); });
  add("QK ignored", [](Mutant& m) { m.scale = 0; });
  add("K rows permuted", [](Mutant& m) { m.k_key = [](std::int64_t k) { return 929 - k; }; });
  add("V pages rotated by one", [](Mutant& m) { m.v_key = [](std::int64_t k) { return (k + 32) % 930; }; });
  add("last partial page skipped", [](Mutant& m) { m.visible = [](auto k, auto, auto) { return k < 928; }; });
  add("one future key seen", [](Mutant& m) { m.visible = [](auto k, auto q, auto) { return k <= q + 1; }; }, 2);
  add("own key hidden", [](Mutant& m) { m.visible = [](auto k, auto q, auto) { return k < q; }; });
  add("window one short", [](Mutant& m) { m.visible = [](auto k, auto q, auto w) { return k <= q && q - k < w - 1; }; }, 1, 256);
  add("window one long", [](Mutant& m) { m.visible = [](auto k, auto q, auto w) { return k <= q && q - k < w + 1; }; }, 1, 256);
  add("window ignored", [](Mutant& m) { m.visible = [](auto k, auto q, auto) { return k <= q; }; }, 1, 256);
  add("cached K/V read as zero", [](Mutant& m) { m.zero_cache = true; });
  return list;
}

/// The guaranteed ratios of docs/reference/numerics.md section 4, by fault: f32, f16, bf16.
std::map<std::string, std::array<double, 3>> documented_ratios() {
  std::ifstream file(QUIRE_SOURCE_DIR "/docs/reference/numerics.md");
  std::map<std::string, std::array<double, 3>> rows;
  for (std::string line; std::getline(file, line);) {
    std::array<double, 3> r{};
    const std::size_t bar = line.find(" | ", 2);
    if (bar == std::string::npos) continue;
    if (std::sscanf(line.c_str() + bar, " | %lf | %lf | %lf |", &r[0], &r[1], &r[2]) == 3) rows[line.substr(2, bar - 2)] = r;
  }
  return rows;
}

TEST(Sharpness, EveryPlantedFaultExceedsTheToleranceByTheDocumentedFactor) {
  const auto rows = documented_ratios();
  const DType dtypes[] = {DType::f32, DType::f16, DType::bf16};
  for (const Planted& fault : planted_faults()) {
    ASSERT_TRUE(rows.contains(fault.name)) << "docs/reference/numerics.md section 4 has no row for: " << fault.name;
    for (std::size_t i = 0; i < 3; ++i) {
      const double ratio = worst_ratio(dtypes[i], fault.mutant, fault.query_len, fault.window);
      EXPECT_GE(ratio, rows.at(fault.name)[i]) << fault.name << " in " << name(dtypes[i]);
      EXPECT_GE(rows.at(fault.name)[i], 1.5) << fault.name << ": a documented factor near 1 is no detection";
      RecordProperty(std::string(fault.name) + " " + std::string(name(dtypes[i])), std::to_string(ratio));
    }
  }
}

}  // namespace
}  // namespace quire::test
