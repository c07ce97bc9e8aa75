// SPDX-License-Identifier: Apache-2.0
// Promises of a head_dim of V's own, on every CPU kernel of this machine: a dim of the output depends on that dim of V alone,
// and V may lie in K's rows.
#include <gtest/gtest.h>

#include "kernels/host_kernels.h"
#include "kernels/invariance.h"
#include "kernels/judge.h"
#include "support/small_case.h"

namespace quire::test {
namespace {

class OwnV : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!takes_own_v(GetParam())) GTEST_SKIP() << GetParam() << " refuses them, with a reason";
  }
  Case case_of(const std::string& text) const {
    Result<ProblemLine> parsed = parse_problem_line(text);
    EXPECT_TRUE(parsed.ok()) << parsed.status().message();
    Result<Case> c = make_case(as_taken_by(GetParam(), parsed.value()));
    EXPECT_TRUE(c.ok()) << c.status().message();
    return std::move(c).value();
  }
  void attend(const Case& c) const {
    std::int64_t rows = 0;
    const Status s = kernel_under_test(GetParam())(c, 2, rows);
    EXPECT_TRUE(s.ok()) << s.message();
  }
};

constexpr const char* kTypes[] = {"q=f32", "q=bf16", "q=bf16 kv=fp8_e4m3fn kscale=head vscale=tensor", "q=f16 kv=f16"};

/// The leading dims of a wider V, with the strides of its tensors.
Case with_first_dims(const Case& wide, std::int64_t dims, const Tensor& output) {
  Case narrow = wide;
  narrow.cache.v.shape[wide.cache.layout == CacheLayout::packed ? 2 : 3] = dims;
  if (narrow.batch.value.present()) narrow.batch.value.shape[2] = dims;
  narrow.batch.output = output;
  return narrow;
}

/// The first dims of every row.
std::vector<std::uint32_t> leading_bits(const Tensor& t, std::int64_t dims) {
  const std::vector<std::uint32_t> all = bits_of(t);
  std::vector<std::uint32_t> some;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (static_cast<std::int64_t>(i) % t.shape[2] < dims) some.push_back(all[i]);
  return some;
}

TEST_P(OwnV, FewerDimsOfVHaveTheSameBits) {
  for (const char* types : kTypes)
    for (const char* layout : {"nhd", "hnd", "packed"})
      for (const std::int64_t dims : {1, 16, 24, 47}) {
        const std::string text =
            std::string(types) + " layout=" + layout + " heads=6:2 d=48 page=8 lse=1 reqs=20@70/80,1@100,3@9,1@1300 seed=4";
        SCOPED_TRACE(text + " dims " + std::to_string(dims));
        const Case wide = case_of(text);
        attend(wide);
        Storage storage;
        const Tensor& all = wide.batch.output;
        const Case narrow = with_first_dims(wide, dims, make_tensor(storage, all.dtype, {all.shape[0], all.shape[1], dims}));
        std::vector<float> lse(static_cast<std::size_t>(wide.batch.lse.num_elements()));
        std::copy_n(static_cast<const float*>(wide.batch.lse.data), lse.size(), lse.begin());
        attend(narrow);
        EXPECT_EQ(bits_of(narrow.batch.output), leading_bits(all, dims));
        EXPECT_TRUE(std::equal(lse.begin(), lse.end(), static_cast<const float*>(wide.batch.lse.data)));
      }
}

/// A V in K's rows, and the same numbers in a tensor of their own.
TEST_P(OwnV, AViewOfKHasTheBitsOfACopy) {
  for (const char* types : kTypes)
    for (const char* layout : {"nhd", "hnd"})
      for (const char* dims : {"d=72 dv=64", "d=24 dv=16", "d=32", "d=40 dv=1"}) {
        const std::string text =
            std::string(types) + " layout=" + layout + " " + dims + " latent=1 heads=6:2 page=8 reqs=20@70,1@100,3@9/10 seed=4";
        SCOPED_TRACE(text);
        const Case latent = case_of(text), again = case_of(text);
        attend(latent);
        Case apart = again;
        Storage storage;
        const Tensor& v = again.cache.v;
        apart.cache.v = make_tensor(storage, v.dtype, {v.shape[0], v.shape[1], v.shape[2], v.shape[3]}, /*gap=*/true);
        for (std::int64_t i = 0; i < v.num_elements(); ++i) {
          const std::int64_t d = i % v.shape[3], c = i / v.shape[3] % v.shape[2], b = i / v.shape[3] / v.shape[2] % v.shape[1];
          const std::int64_t a = i / v.shape[3] / v.shape[2] / v.shape[1];
          set(apart.cache.v, {a, b, c, d}, at(v, {a, b, c, d}));
        }
        attend(apart);
        EXPECT_EQ(bits_of(latent.batch.output), bits_of(apart.batch.output));
      }
}

/// MLA's sizes: rows in one part and in several, against the reference.
TEST_P(OwnV, ServesMlaSizes) {
  for (const char* text :
       {"q=bf16 heads=16:1 d=576 dv=512 latent=1 page=64 lse=1 reqs=1@1500,1@40,3@20",
        "q=bf16 heads=4:4 d=192 dv=128 page=16 lse=1 reqs=70@30,1@200,9@7/7",
        "q=bf16 kv=fp8_e4m3fn kscale=tensor vscale=tensor heads=16:1 d=576 dv=512 latent=1 page=64 reqs=1@300,2@70"}) {
    Result<ProblemLine> line = parse_problem_line(text);
    ASSERT_TRUE(line.ok()) << line.status().message();
    const std::vector<std::string> findings = judge(as_taken_by(GetParam(), line.value()), kernel_under_test(GetParam()));
    EXPECT_TRUE(findings.empty()) << GetParam() << "\n" << report(line.value(), findings, GetParam());
  }
}

/// A plan is of one head_dim of V.
TEST_P(OwnV, APlanOfOtherDimsIsStale) {
  const Case c = case_of("q=bf16 heads=4:2 d=32 dv=16 page=8 reqs=3@9"),
             other = case_of("q=bf16 heads=4:2 d=32 dv=24 page=8 reqs=3@9");
  const Result<Plan> plan = quire::plan(c.batch, c.cache, c.options, {.kernel = GetParam()});
  ASSERT_TRUE(plan.ok());
  std::int64_t rows = 0;
  const Status s = attend_planned(plan.value(), other, 1, rows);
  EXPECT_EQ(s.code(), Code::invalid_argument);
  EXPECT_NE(s.message().find("v_head_dim differs (plan 16, batch 24)"), std::string::npos) << s.message();
}

INSTANTIATE_TEST_SUITE_P(, OwnV, testing::ValuesIn(host_kernels()), [](const auto& test) { return test.param; });

}  // namespace
}  // namespace quire::test
