// SPDX-License-Identifier: Apache-2.0
// The model without a fault is the reference: two implementations, one truth.
#include <cmath>
#include <random>

#include "faults/fault.h"
#include "faults/faults_util.h"

namespace quire::test {
namespace {

using faults_detail::Facts;
using faults_detail::Model;
using faults_detail::RowHead;
using faults_detail::RowResult;

std::vector<RowResult> all_rows(const Facts& f, const Model& model) {
  std::vector<RowHead> rows;
  for (std::int64_t t = 0; t < f.num_tokens; ++t)
    for (std::int64_t h = 0; h < f.num_q_heads; ++h) rows.push_back({t, h});
  return evaluate(model, rows);
}

bool near(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return a == b || std::fabs(a - b) <= 1e-11 * std::max(1.0, std::fabs(b));
}

void expect_truth(const std::string& line) {
  SCOPED_TRACE(line);
  const Case c = made(line);
  const Result<Reference> expected = reference(c.batch, c.cache, c.options);
  ASSERT_TRUE(expected.ok()) << expected.status().message();
  const Facts f(c.batch, c.cache, c.options);
  const std::vector<RowResult> got = all_rows(f, Model(f));
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(got[i].written);
    wrong += near(got[i].lse, expected.value().lse[i]) ? 0 : 1;
    for (std::size_t d = 0; d < got[i].out.size(); ++d)
      wrong += near(got[i].out[d], expected.value().out[i * got[i].out.size() + d]) ? 0 : 1;
  }
  EXPECT_EQ(wrong, 0u);
}

TEST(Model, WithoutAFaultIsTheReferenceOnEveryGeometry) {
  for (const Geometry& geometry : all_geometries()) expect_truth(geometry.line);
}

TEST(Model, WithoutAFaultIsTheReferenceOnRandomProblems) {
  std::mt19937 random(7);
  const auto pick = [&](std::initializer_list<const char*> of) { return std::string(*(of.begin() + random() % of.size())); };
  for (int i = 0; i < 60; ++i) {
    const std::string kv = pick({"f32", "f16", "bf16", "fp8_e4m3fn", "fp8_e4m3fnuz", "fp8_e5m2", "fp8_e5m2fnuz"});
    const std::string q = kv == "f32" ? "f32" : pick({"f32", "f16", "bf16"});
    expect_truth("q=" + q + " kv=" + kv + " heads=" + pick({"4", "6:2", "5:1", "8:4"}) + " d=" + pick({"16", "32", "48"}) +
                 " page=" + pick({"1", "5", "16"}) + " layout=" + pick({"nhd", "hnd", "packed"}) + " reqs=" +
                 pick({"7@20,1@33,0@4,3", "1@70,12@12/15,9@9/9", "4x1@17,20@1"}) + " kscale=" + pick({"none", "tensor", "head"}) +
                 " vscale=" + pick({"none", "tensor", "head"}) + " alibi=" + pick({"0", "1"}) + " sinks=" + pick({"0", "1"}) +
                 pick({"", " window=1", " window=9"}) + pick({"", " cap=5"}) + pick({"", " scale=0.5"}) +
                 " index=" + pick({"i32", "i64"}) + " lse=1 seed=" + std::to_string(i));
  }
}

/// vLLM writes V's block scale s of token t for trtllm-gen to token t / 4 * 4 + s / (S / 4) and place s % (S / 4) * 4 + t % 4 of
/// a page and head, where a row has S scales: swizzle_scale_offset() of csrc/libtorch_stable/nvfp4_kv_cache_kernels.cu (vLLM,
/// commit 0cd789b). The fault reads there, so it is the truth about a cache whose scales come from there.
TEST(Model, InterleavedBlockScalesOfVAreInTrtllmGensOrder) {
  for (const std::int64_t dim : {64, 128, 256}) {
    const std::string line = "q=f32 kv=nvfp4 heads=4:2 d=" + std::to_string(dim) + " page=8 reqs=3@21 lse=1 seed=5";
    Case c = made(line), moved = made(line);
    const std::int64_t count = dim / 16, group = count / 4;
    const Tensor& scales = c.cache.v_block_scale;
    const auto at = [&](const Case& of, std::int64_t page, std::int64_t t, std::int64_t head, std::int64_t s) -> std::uint8_t& {
      const auto& stride = scales.stride;
      return static_cast<std::uint8_t*>(
          of.cache.v_block_scale.data)[page * stride[0] + t * stride[1] + head * stride[2] + s * stride[3]];
    };
    for (std::int64_t page = 0; page < scales.shape[0]; ++page)
      for (std::int64_t t = 0; t < 8; ++t)
        for (std::int64_t head = 0; head < 2; ++head)
          for (std::int64_t s = 0; s < count; ++s)
            at(moved, page, t, head, s) = at(c, page, t / 4 * 4 + s / group, head, s % group * 4 + t % 4);
    const Status status = attend_with_fault(c.batch, c.cache, c.options, "v_block_scales_interleaved");
    ASSERT_TRUE(status.ok()) << status.message();
    const Result<Reference> expected = reference(moved.batch, moved.cache, moved.options);
    ASSERT_TRUE(expected.ok());
    for (std::int64_t i = 0; i < c.batch.output.num_elements(); ++i)
      ASSERT_EQ(static_cast<const float*>(c.batch.output.data)[i],
                static_cast<float>(expected.value().out[static_cast<std::size_t>(i)]))
          << dim << " element " << i;
  }
}

TEST(Model, ScoresOfMinusInfinityLeaveZero) {
  Case c = made("q=f32 heads=1 d=1 page=4 reqs=1@2");
  auto* k = static_cast<float*>(c.cache.k.data);
  static_cast<float*>(c.batch.query.data)[0] = 1;
  for (std::int64_t i = 0; i < c.cache.k.num_elements(); ++i) k[i] = -INFINITY;
  const Facts f(c.batch, c.cache, c.options);
  const std::vector<RowResult> got = all_rows(f, Model(f));
  EXPECT_EQ(got[0].out[0], 0);
  EXPECT_EQ(got[0].lse, -INFINITY);
}

/// What a wrong page id or stride leads to outside of the cache is nothing that can be decoded.
TEST(Model, ReadsOutsideTheCacheGiveNaN) {
  const Case c = made("q=f32 heads=1 d=4 page=4 reqs=1@2");
  const Facts f(c.batch, c.cache, c.options);
  for (const std::int64_t page : {std::int64_t{-1}, std::int64_t{1} << 40}) {
    Model m(f);
    m.table = [page](std::int64_t, std::int64_t) { return page; };
    EXPECT_TRUE(std::isnan(all_rows(f, m)[0].out[0]));
  }
}

/// A belief about rows, heads or dims may be out of range for another belief that is planted beside it.
TEST(Model, ReadsOutsideTheQueryTheNewRowsAndTheSlopesGiveNaN) {
  const Case c = made("q=f32 heads=2 d=5 page=4 reqs=2@3/3,1@4 alibi=1");
  const Facts f(c.batch, c.cache, c.options);
  const Model m(f);
  faults_detail::Row row = m.row(0, 0);
  for (std::int64_t d = 0; d < 5; ++d) EXPECT_FALSE(std::isnan(m.query(row, d)));
  EXPECT_TRUE(std::isnan(m.query(row, -1)));
  EXPECT_TRUE(std::isnan(m.query(row, 5)));
  Model wrong_head(f);
  wrong_head.kv_head = [](const faults_detail::Row&, faults_detail::Side) { return 2; };
  EXPECT_TRUE(std::isnan(all_rows(f, wrong_head)[0].out[0]));
  Model flipped(f);
  faults_detail::find("alibi_sign_flipped")->suspects({f, {}}).list.front().plant(flipped);
  for (const std::int64_t head : {-1, 0, 1, 2}) {
    const bool inside = head == 0 || head == 1;
    row.query_head = head;
    EXPECT_EQ(std::isnan(faults_detail::slope_of(f, head)), !inside) << head;
    EXPECT_EQ(std::isnan(m.bias(row, 1)), !inside) << head;
    EXPECT_EQ(std::isnan(flipped.bias(row, 1)), !inside) << head;
  }
}

TEST(Model, TwoFaultsCompose) {
  const Case c = made("q=f32 heads=4:2 d=16 page=8 window=20 reqs=9@30,1@50,4@12 seed=4");
  const Facts f(c.batch, c.cache, c.options);
  const auto with = [&](std::initializer_list<const char*> ids) {
    Model m(f);
    for (const char* id : ids) faults_detail::find(id)->suspects({f, {}}).list.front().plant(m);
    return all_rows(f, m);
  };
  const auto a = with({"kv_head_always_zero"}), b = with({"scale_applied_twice"});
  const auto both = with({"kv_head_always_zero", "scale_applied_twice"}),
             reverse = with({"scale_applied_twice", "kv_head_always_zero"});
  std::size_t differs_from_a = 0, differs_from_b = 0;
  for (std::size_t i = 0; i < both.size(); ++i) {
    EXPECT_EQ(both[i].out, reverse[i].out);
    differs_from_a += both[i].out != a[i].out ? 1 : 0;
    differs_from_b += both[i].out != b[i].out ? 1 : 0;
  }
  EXPECT_GT(differs_from_a, both.size() / 2);
  EXPECT_GT(differs_from_b, both.size() / 4);
  const auto rows = with({"last_row_not_written", "window_ignored"});
  EXPECT_FALSE(rows.back().written);
  EXPECT_TRUE(rows.front().written);
}

}  // namespace
}  // namespace quire::test
