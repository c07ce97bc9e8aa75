// SPDX-License-Identifier: Apache-2.0
// Results stored and caches read in another order, planted from their index formulas.
#include <gmock/gmock.h>

#include <functional>

#include "diagnose/diagnose_util.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

const std::string kLine = "q=f32 heads=8:2 d=64 page=16 lse=1 reqs=1@60,1@99,1@33,1@140,1@77";

/// The place at which a reader finds [row, KV head, head in the group] of 5 rows and 2 groups of 4 heads, for three writers.
std::size_t moved(int kind, std::size_t token, std::size_t head) {
  const std::size_t flat = kind == 0 ? head * 5 + token : head / 4 * 20 + token * 4 + head % 4;
  return kind == 2 ? flat % 5 * 8 + flat / 5 : flat;
}
const char* const kKinds[] = {"written as [KV head, head in the group, row] and read as [row, head]",
                              "written as [KV head, row, head in the group] and read as [row, head]",
                              "written as [KV head, row, head in the group] and read as [head, row]"};

TEST(Orders, OfAnLseIsNamed) {
  for (const int kind : {0, 1, 2}) {
    Case c = right(kLine);
    float* lse = static_cast<float*>(c.observed_lse.data);
    const std::vector<float> was(lse, lse + 40);
    for (std::size_t token = 0; token < 5; ++token)
      for (std::size_t head = 0; head < 8; ++head) lse[moved(kind, token, head)] = was[token * 8 + head];
    const Diagnosis d = diagnosed(c);
    EXPECT_EQ(d.verdict, DiagnosisVerdict::cause_found) << to_string(d);
    EXPECT_EQ(d.suspicions[0].mechanism, "factor_lse") << to_string(d);
    EXPECT_THAT(to_string(d), HasSubstr(kKinds[kind])) << to_string(d);
  }
}

TEST(Orders, OfAnOutputIsNamed) {
  for (const int kind : {0, 1, 2}) {
    Case c = right("q=f32 heads=8:2 d=64 page=16 reqs=1@60,1@99,1@33,1@140,1@77");
    float* out = static_cast<float*>(c.observed.data);
    const std::vector<float> was(out, out + 40 * 64);
    for (std::size_t token = 0; token < 5; ++token)
      for (std::size_t head = 0; head < 8; ++head)
        std::copy_n(&was[(token * 8 + head) * 64], 64, &out[moved(kind, token, head) * 64]);
    const Diagnosis d = diagnosed(c);
    EXPECT_EQ(d.verdict, DiagnosisVerdict::cause_found) << to_string(d);
    EXPECT_EQ(d.suspicions[0].mechanism, "output_row") << to_string(d);
    EXPECT_THAT(to_string(d), HasSubstr(kKinds[kind])) << to_string(d);
  }
}

using Place = std::array<std::int64_t, 4>;  // page, slot, head, dim of a cache [page, slot, head, dim]

/// The answers over a cache whose K has at each place the element of the right K at offset `from` of its allocation.
Case with_k_read(const std::string& line, const std::function<std::int64_t(const Tensor& k, const Place&)>& from) {
  Case c = right(line);
  const Case wrong = made(line);
  const Tensor& k = wrong.cache.k;
  auto* stored = static_cast<float*>(c.cache.k.data);
  for (std::int64_t i = 0; i < k.num_elements(); ++i)  // unused slots hold numbers of their own, as in an engine, not poison
    if (std::isnan(stored[i])) stored[i] = 0.25F * static_cast<float>(i % 9 - 4);
  Place at{};
  for (at[0] = 0; at[0] < k.shape[0]; ++at[0])
    for (at[1] = 0; at[1] < k.shape[1]; ++at[1])
      for (at[2] = 0; at[2] < k.shape[2]; ++at[2])
        for (at[3] = 0; at[3] < k.shape[3]; ++at[3])
          static_cast<float*>(k.data)[at[0] * k.stride[0] + at[1] * k.stride[1] + at[2] * k.stride[2] + at[3]] =
              stored[from(k, at)];
  const Result<Reference> r = reference(wrong.batch, wrong.cache, wrong.options);
  EXPECT_TRUE(r.ok()) << r.status().message();
  for (std::size_t i = 0; i < r->out.size(); ++i) static_cast<float*>(c.observed.data)[i] = static_cast<float>(r->out[i]);
  return c;
}

/// Tiles of 16 slots and 16 dims, as matrix instructions load them, over pages of one head that are written row by row.
TEST(Orders, OfTilesWithinAHeadIsNamed) {
  const Case c = with_k_read("q=f32 heads=4:1 d=64 page=32 reqs=1@60,1@99,5@33,1@140", [](const Tensor& k, const Place& at) {
    return at[0] * k.stride[0] + ((at[1] / 16 * 4 + at[3] / 16) * 16 + at[1] % 16) * 16 + at[3] % 16;
  });
  const Diagnosis d = diagnosed(c);
  EXPECT_EQ(d.verdict, DiagnosisVerdict::cause_found) << to_string(d);
  EXPECT_EQ(d.suspicions[0].mechanism, "layout") << to_string(d);
  EXPECT_EQ(d.suspicions[0].detail, "a page taken for tiles of [16 slots, 16 dims] within a head") << to_string(d);
}

/// The pointer of a page is K's, and its slots are V's apart.
TEST(Orders, OfTheOtherTensorsStridesIsNamed) {
  const Case c =
      with_k_read("q=f32 heads=8:2 d=96 dv=64 page=16 reqs=1@60,1@99,5@33,1@140",
                  [](const Tensor& k, const Place& at) { return at[0] * k.stride[0] + at[1] * 2 * 64 + at[2] * 96 + at[3]; });
  const Diagnosis d = diagnosed(c);
  EXPECT_EQ(d.verdict, DiagnosisVerdict::cause_found) << to_string(d);
  EXPECT_EQ(d.suspicions[0].text, "steps through K by strides of V") << to_string(d);
  EXPECT_EQ(d.suspicions[0].detail, "from one slot to the next") << to_string(d);
}

}  // namespace
}  // namespace quire::test
