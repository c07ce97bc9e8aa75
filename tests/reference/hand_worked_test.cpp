// SPDX-License-Identifier: Apache-2.0
// The oracle against results worked out by hand (the numbers are in the comments, not computed by any code of ours).
#include <gtest/gtest.h>

#include <cmath>

#include "quire/tools/diagnose.hpp"
#include "support/small_case.h"

namespace quire::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

SmallSpec one_request(std::int64_t query_len, std::int64_t context_len) {
  SmallSpec spec;
  spec.problem.q_dtype = spec.problem.kv_dtype = DType::f32;
  spec.problem.head_dim = 4;
  spec.problem.page_size = 4;
  spec.problem.reqs = {{query_len, context_len, context_len + query_len}};
  return spec;
}

/// All raw scores 0 and V_k = k in every dim.
SmallCase counting_values(const SmallSpec& spec) {
  SmallCase c(spec);
  const Request& req = c.problem().reqs[0];
  for (std::int64_t k = 0; k < req.seq_len(); ++k)
    for (std::int64_t d = 0; d < 4; ++d) c.set_k(0, k, 0, d, 0.0), c.set_v(0, k, 0, d, static_cast<double>(k));
  return c;
}

Reference judge(const SmallCase& c) {
  Result<Reference> result = reference(c.batch, c.cache, c.options);
  EXPECT_TRUE(result.ok()) << result.status().message();
  return std::move(result).value();
}

/// Mean of the visible positions, since all weights are equal.
void expect_means(const Reference& ref, const std::vector<double>& means, const std::vector<std::int64_t>& counts) {
  for (std::size_t i = 0; i < means.size(); ++i) {
    EXPECT_EQ(ref.num_keys[i], counts[i]) << "row " << i;
    EXPECT_NEAR(ref.lse[i], std::log(static_cast<double>(counts[i])), 1e-14) << "row " << i;
    for (std::size_t d = 0; d < 4; ++d) EXPECT_NEAR(ref.out[i * 4 + d], means[i], 1e-14) << "row " << i;
  }
}

// Context 5, three query rows at positions 5, 6, 7: they see 0-5, 0-6, 0-7.
TEST(HandWorked, PrefillWithoutWindowSeesEverythingUpToItself) {
  expect_means(judge(counting_values(one_request(3, 5))), {2.5, 3.0, 3.5}, {6, 7, 8});
}

// Window 4: 2-5, 3-6, 4-7; in the last row the whole first page is hidden.
TEST(HandWorked, WindowFourKeepsFourKeysOwnIncluded) {
  SmallSpec spec = one_request(3, 5);
  spec.problem.sliding_window = 4;
  expect_means(judge(counting_values(spec)), {3.5, 4.5, 5.5}, {4, 4, 4});
}

TEST(HandWorked, WindowOneKeepsTheOwnKeyAlone) {
  SmallSpec spec = one_request(3, 5);
  spec.problem.sliding_window = 1;
  expect_means(judge(counting_values(spec)), {5.0, 6.0, 7.0}, {1, 1, 1});
}

TEST(HandWorked, WindowLongerThanTheSequenceHidesNothing) {
  SmallSpec spec = one_request(3, 5);
  spec.problem.sliding_window = 8;
  expect_means(judge(counting_values(spec)), {2.5, 3.0, 3.5}, {6, 7, 8});
}

// Decode: context 7, one row at position 7, window 4: keys 4-7.
TEST(HandWorked, DecodeWithWindow) {
  SmallSpec spec = one_request(1, 7);
  spec.problem.sliding_window = 4;
  expect_means(judge(counting_values(spec)), {5.5}, {4});
}

SmallCase alibi_half(bool with_sink) {
  SmallSpec spec = one_request(3, 5);
  spec.problem.alibi = true;
  spec.problem.sinks = with_sink;
  SmallCase c = counting_values(spec);
  set(c.options.alibi_slopes, {0}, 0.5);
  if (with_sink) set(c.options.sinks, {0}, 0.0);
  return c;
}

TEST(HandWorked, AlibiSlopeHalf) {
  const Reference ref = judge(alibi_half(/*with_sink=*/false));
  const double expected[] = {3.772880, 4.676470, 5.607765};
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(ref.out[i * 4], expected[i], 5e-7);
}

// A sink fixes the zero point of the bias, which must be the query's own position (not the end of the context).
TEST(HandWorked, AlibiSlopeHalfWithSinkAtZero) {
  const Reference ref = judge(alibi_half(/*with_sink=*/true));
  const double expected[] = {2.668071, 3.326741, 4.003229};
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(ref.out[i * 4], expected[i], 5e-7);
}

// Two keys with scores 0 and log 3: weights 1/4 and 3/4. With a sink of log 4: 1/8 and 3/8.
TEST(HandWorked, TwoKeysAndASink) {
  for (const bool with_sink : {false, true}) {
    SmallSpec spec = one_request(1, 1);
    spec.problem.softmax_scale = 1.0f;
    spec.problem.sinks = with_sink;
    SmallCase c = counting_values(spec);
    if (with_sink) set(c.options.sinks, {0}, std::log(4.0));
    for (std::int64_t d = 0; d < 4; ++d)
      c.set_query(0, 0, d, d == 2 ? 1.0 : 0.0), c.set_v(0, 0, 0, d, 8.0), c.set_v(0, 1, 0, d, 16.0);
    c.set_k(0, 1, 0, 2, std::log(3.0));
    const Reference ref = judge(c);
    EXPECT_NEAR(ref.out[0], with_sink ? 7.0 : 14.0, 1e-6);
    EXPECT_NEAR(ref.lse[0], std::log(with_sink ? 8.0 : 4.0), 1e-7);
    EXPECT_NEAR(ref.abs_pv[0], ref.out[0], 1e-12);
  }
}

// Soft cap 2 on a score of 2: 2 tanh(1) = 1.523188312; the other key stays at 0. Weight e^1.523188 / (1 + e^1.523188).
TEST(HandWorked, SoftCap) {
  SmallSpec spec = one_request(1, 1);
  spec.problem.softmax_scale = 1.0f;
  spec.problem.logits_soft_cap = 2.0f;
  SmallCase c = counting_values(spec);
  for (std::int64_t d = 0; d < 4; ++d) c.set_query(0, 0, d, d == 0 ? 1.0 : 0.0);
  c.set_k(0, 1, 0, 0, 2.0);
  EXPECT_NEAR(judge(c).out[0], 0.82100750, 1e-8);
}

// The default scale is 1 / sqrt(head_dim) = 1/2, not 1 / sqrt(num_heads): q.k = 2 log 3 gives a score of log 3.
TEST(HandWorked, DefaultScale) {
  SmallCase c = counting_values(one_request(1, 1));
  for (std::int64_t d = 0; d < 4; ++d) c.set_query(0, 0, d, d == 0 ? 1.0 : 0.0);
  c.set_k(0, 1, 0, 0, 2.0 * std::log(3.0));
  EXPECT_NEAR(judge(c).out[0], 0.75, 1e-7);
}

TEST(HandWorked, OnlyMinusInfiniteScoresCountAsNoKey) {
  for (const bool with_sink : {false, true}) {
    SmallSpec spec = one_request(1, 1);
    spec.problem.sinks = with_sink;
    SmallCase c = counting_values(spec);
    if (with_sink) set(c.options.sinks, {0}, 1.5);
    for (std::int64_t d = 0; d < 4; ++d) c.set_query(0, 0, d, d == 0 ? 1.0 : 0.0);
    c.set_k(0, 0, 0, 0, -kInf);
    c.set_k(0, 1, 0, 0, -kInf);
    const Reference ref = judge(c);
    EXPECT_EQ(ref.out[0], 0.0);
    EXPECT_EQ(ref.lse[0], with_sink ? 1.5 : -kInf);
  }
}

TEST(HandWorked, NaNInAVisibleKeyReachesItsRowsAndNoOthers) {
  SmallCase c = counting_values(one_request(3, 5));
  c.set_k(0, 6, 0, 1, std::nan(""));
  const Reference ref = judge(c);
  EXPECT_NEAR(ref.out[0], 2.5, 1e-14);
  EXPECT_TRUE(std::isnan(ref.out[4]) && std::isnan(ref.out[8]) && std::isnan(ref.lse[1]));
}

TEST(HandWorked, NaNInOneDimOfAValueStaysInThatDim) {
  SmallCase c = counting_values(one_request(3, 5));
  c.set_v(0, 7, 0, 3, std::nan(""));
  const Reference ref = judge(c);
  EXPECT_TRUE(std::isnan(ref.out[11]));
  EXPECT_NEAR(ref.out[10], 3.5, 1e-14);
  EXPECT_NEAR(ref.out[7], 3.0, 1e-14);
}

TEST(HandWorked, RequestsWithoutQueryRowsAndEmptyBatches) {
  SmallSpec spec = one_request(0, 6);
  spec.problem.reqs.push_back({1, 2, 3});
  spec.problem.reqs.push_back({0, 0, 0});
  const Reference ref = judge(SmallCase(spec));
  EXPECT_EQ(ref.num_tokens, 1);
  EXPECT_EQ(ref.num_keys, std::vector<std::int64_t>{3});
  spec.problem.reqs = {{0, 6, 6}};
  EXPECT_TRUE(judge(SmallCase(spec)).out.empty());
}

/// Bytes of a row of fp8_ds_mla, written here one by one: codes 1.0 (0x38) in block 0 with scale 2, 0.5 (0x30) in block 1 with
/// scale 4, 1.5 (0x3C) in block 2 with scale 8, 1.25 (0x3A) in block 3 with scale 16; RoPE dims 3.0 (bf16 0x4040).
std::vector<std::uint8_t> row_of_656_bytes(std::uint8_t first_code) {
  std::vector<std::uint8_t> row;
  for (const std::uint8_t code : {first_code, std::uint8_t{0x30}, std::uint8_t{0x3C}, std::uint8_t{0x3A}})
    row.insert(row.end(), 128, code);
  for (const std::uint8_t exponent :
       {std::uint8_t{0}, std::uint8_t{0x80}, std::uint8_t{0}, std::uint8_t{0x80}})  // 2, 4, 8, 16 as little-endian f32
    row.insert(row.end(), {0, 0, exponent, static_cast<std::uint8_t>(row.size() < 520 ? 0x40 : 0x41)});
  for (int d = 0; d < 64; ++d) row.insert(row.end(), {0x40, 0x40});
  return row;
}

// Two keys that differ in block 0 alone: codes 1.0 and 2.0 (0x40), values 2 and 4. The query is 1 in dim 0 and in RoPE dim 575.
//   scores 2 + 3 = 5 and 4 + 3 = 7; weights 1 / (1 + e^2) and e^2 / (1 + e^2)
TEST(HandWorked, RowsOf656Bytes) {
  std::vector<std::uint8_t> bytes = row_of_656_bytes(0x38), second = row_of_656_bytes(0x40);
  ASSERT_EQ(bytes.size(), 656u);
  bytes.insert(bytes.end(), second.begin(), second.end());
  alignas(16) std::uint8_t memory[2 * 656];
  std::copy(bytes.begin(), bytes.end(), memory);
  std::vector<float> query(576, 0.0f), out(512), lse(1);
  query[0] = query[575] = 1.0f;
  std::int32_t starts[] = {0, 1}, lens[] = {2}, table[] = {0};
  Batch batch;
  batch.query = Tensor::contiguous(query.data(), DType::f32, 1, 1, 576);
  batch.output = Tensor::contiguous(out.data(), DType::f32, 1, 1, 512);
  batch.query_start_loc = Tensor::contiguous(starts, DType::i32, 2);
  batch.seq_lens = Tensor::contiguous(lens, DType::i32, 1);
  batch.block_table = Tensor::contiguous(table, DType::i32, 1, 1);
  batch.lse = Tensor::contiguous(lse.data(), DType::f32, 1, 1);
  const KVCache cache = latent_cache(Tensor::contiguous(memory, DType::u8, 1, 2, 656));
  Options options;
  options.softmax_scale = 1.0f;
  const Result<Reference> ref = reference(batch, cache, options);
  ASSERT_TRUE(ref.ok()) << ref.status().message();
  const double weight = std::exp(2.0) / (1 + std::exp(2.0));
  EXPECT_NEAR(ref->lse[0], 5 + std::log(1 + std::exp(2.0)), 1e-12);
  for (std::size_t d = 0; d < 512; ++d) {
    const double expected = d < 128 ? 2 + 2 * weight : d < 256 ? 2 : d < 384 ? 12 : 20;
    EXPECT_NEAR(ref->out[d], expected, 1e-12) << d;
  }
}

}  // namespace
}  // namespace quire::test
