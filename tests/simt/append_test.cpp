// SPDX-License-Identifier: Apache-2.0
// append() and merge() on the stand-in: the same bits as the CPU's, for every type, layout and stride.
#include <gtest/gtest.h>

#include <utility>

#include "backend/gpu/append.h"
#include "backend/gpu/append_four_bits.h"
#include "backend/gpu/append_words_args.h"
#include "backend/gpu/merge.h"
#include "backend/gpu/resolve.h"
#include "kernels/move_cases.h"
#include "simt/device.h"

namespace quire::test {
namespace {

std::string append_on_device(const AppendCase& c, int wave, std::uint64_t seed, gpu::Outcome& outcome) {
  gpu::AppendArgs a;
  a.num_tokens = static_cast<std::int32_t>(c.slots.size());
  a.num_kv_heads = static_cast<std::int32_t>(c.key.shape[1]);
  a.head_dim = static_cast<std::int32_t>(c.key.shape[2]);
  a.v_head_dim = static_cast<std::int32_t>(c.value.shape[2]);
  a.page_size = AppendCase::kPageSize;
  a.num_pages = AppendCase::kPages;
  a.key = simt::rows_of(c.key);
  a.value = simt::rows_of(c.value);
  a.cache_k = {c.cache.k.data, c.cache.k.dtype, semantics::k_strides(c.cache)};
  a.cache_v = {c.cache.v.data, c.cache.v.dtype, semantics::v_strides(c.cache)};
  a.k_scale = simt::per_head(c.cache.k_scale);
  a.v_scale = simt::per_head(c.cache.v_scale);
  a.k_token_scale = semantics::token_scales(c.cache.k_scale);
  a.v_token_scale = semantics::token_scales(c.cache.v_scale);
  a.k_block_scale = semantics::k_block_scales(c.cache);
  a.v_block_scale = semantics::v_block_scales(c.cache);
  a.slots = {c.slots.data(), DType::i64, 1};
  a.outcome = &outcome;
  const simt::Launch launch{.blocks = 2, .threads = gpu::kAppendThreads, .wave = wave, .seed = seed};
  std::string errors = simt::run(launch, [&] { gpu::validate_slots(a); });
  if (gpu::appends_four_bits(a)) errors += simt::run(launch, [&] { gpu::append_four_bits(a); });
  if (gpu::appends_others(a)) errors += simt::run(launch, [&] { gpu::append(a); });
  return errors;
}

Status append_on_cpu(const AppendCase& c) { return append(c.cache, c.key, c.value, c.slot_mapping()); }

TEST(SimtAppend, EqualsTheCpuForEveryTypeLayoutAndStride) {
  int turn = 0;
  for_each_append([&](DType stored, DType source, CacheLayout layout, bool gap, int scales) {
    SCOPED_TRACE(testing::Message() << name(layout) << " " << name(stored) << " from " << name(source) << (gap ? " gaps" : ""));
    const AppendCase cpu(stored, source, layout, gap, 3, 16, scales), device(stored, source, layout, gap, 3, 16, scales);
    const Status status = append_on_cpu(cpu);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_FALSE(same_bytes(cpu.cache, device.cache)) << "nothing was appended";
    gpu::Outcome outcome;
    ++turn;
    EXPECT_EQ(append_on_device(device, turn % 2 == 0 ? 32 : 64, static_cast<std::uint64_t>(turn), outcome), "");
    EXPECT_EQ(outcome.broken, 0);
    EXPECT_TRUE(same_bytes(cpu.cache, device.cache));
  });
}

/// Rows of V that are longer than K's, and shorter: a latent row is written as 512 and 64 dims.
TEST(SimtAppend, KAndVOfDifferentHeadDims) {
  std::uint64_t turn = 0;
  for (const CacheLayout layout : {CacheLayout::nhd, CacheLayout::hnd, CacheLayout::packed})
    for (const auto& [k_dim, v_dim] :
         {std::pair{16, 40}, std::pair{64, 8}, std::pair{512, 64}, std::pair{32, 1}, std::pair{16, 21}}) {
      const DType type = turn % 4 < 2 ? DType::bf16 : DType::f16;
      SCOPED_TRACE(testing::Message() << name(type) << " " << name(layout) << " " << k_dim << " " << v_dim);
      const AppendCase cpu(type, type, layout, /*gap=*/turn % 2 == 1, 3, k_dim, 1, v_dim);
      const AppendCase device(type, type, layout, /*gap=*/turn % 2 == 1, 3, k_dim, 1, v_dim);
      const Status status = append_on_cpu(cpu);
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_FALSE(same_bytes(cpu.cache, device.cache)) << "nothing was appended";
      gpu::Outcome outcome;
      EXPECT_EQ(append_on_device(device, 32, ++turn, outcome), "");
      EXPECT_TRUE(same_bytes(cpu.cache, device.cache));
    }
}

TEST(SimtAppend, KAndVOfUnlikeTypes) {
  std::uint64_t turn = 0;
  for (const auto& [k, v] : unlike_pairs())
    for (const CacheLayout layout : {CacheLayout::nhd, CacheLayout::hnd, CacheLayout::packed}) {
      const bool wide = k == DType::f32 || v == DType::f32, gap = turn % 2 == 1;
      const DType source = wide || turn % 3 == 0 ? DType::f32 : turn % 3 == 1 ? DType::bf16 : DType::f16;
      const int scales = turn % 2 == 0 || k == DType::i8 || v == DType::i8 ? AppendCase::kOfTokens : 2;
      SCOPED_TRACE(testing::Message() << name(layout) << " " << name(k) << "/" << name(v));
      const AppendCase cpu(k, source, layout, gap, 3, 16, scales, 24, v), device(k, source, layout, gap, 3, 16, scales, 24, v);
      const Status status = append_on_cpu(cpu);
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_FALSE(same_bytes(cpu.cache, device.cache)) << "nothing was appended";
      gpu::Outcome outcome;
      ++turn;
      EXPECT_EQ(append_on_device(device, turn % 2 == 0 ? 32 : 64, turn, outcome), "");
      EXPECT_TRUE(same_bytes(cpu.cache, device.cache));
    }
}

TEST(SimtAppend, FourBits) {
  std::uint64_t turn = 0;
  for_each_four_bit_append([&](const std::string& what, const auto& make) {
    SCOPED_TRACE(what);
    const AppendCase cpu = make(), device = make();
    const Status status = append_on_cpu(cpu);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_FALSE(same_bytes(cpu.cache.k, device.cache.k)) << "nothing was appended";
    gpu::Outcome outcome;
    ++turn;
    EXPECT_EQ(append_on_device(device, turn % 2 == 0 ? 32 : 64, turn, outcome), "");
    EXPECT_TRUE(same_bytes(cpu.cache, device.cache));
    EXPECT_FALSE(gpu::append_words_args(gpu::append_args(device.cache, device.key, device.value, device.slot_mapping())))
        << "words know no scales of blocks";
  });
}

/// Rows of fp8_ds_mla: codes, scales and bf16 of the CPU's, bit for bit.
TEST(SimtAppend, RowsOf656Bytes) {
  constexpr std::int64_t kTokens = 7, kPages = 3, kPage = 5, kRow = 656;
  std::uint64_t turn = 0;
  for (const DType source : {DType::f32, DType::f16, DType::bf16})
    for (const bool gap : {false, true}) {
      SCOPED_TRACE(testing::Message() << name(source) << gap);
      const AppendCase rows(source, source, CacheLayout::nhd, gap, 1, 512, 0, 64);
      ASSERT_GE(rows.key.shape[0], kTokens);
      std::vector<std::int64_t> slots = {7, -1, 0, 10, 5, 14, 3};
      alignas(16) static std::uint8_t bytes[2][kPages * kPage * kRow];
      for (auto& each : bytes) std::fill(std::begin(each), std::end(each), std::uint8_t{0xA5});
      const Tensor mapping = Tensor::contiguous(slots.data(), DType::i64, kTokens);
      const Status status =
          append(latent_cache(Tensor::contiguous(bytes[0], DType::u8, kPages, kPage, kRow)), rows.key, rows.value, mapping);
      ASSERT_TRUE(status.ok()) << status.message();
      const gpu::AppendArgs a = gpu::append_args(latent_cache(Tensor::contiguous(bytes[1], DType::u8, kPages, kPage, kRow)),
                                                 rows.key, rows.value, mapping);
      EXPECT_FALSE(gpu::append_words_args(a)) << "words know no scales of blocks";
      const simt::Launch launch{.blocks = 2, .threads = gpu::kAppendThreads, .wave = ++turn % 2 == 0 ? 32 : 64, .seed = turn};
      EXPECT_EQ(simt::run(launch, [&] { gpu::append(a); }), "");
      EXPECT_TRUE(std::equal(std::begin(bytes[0]), std::end(bytes[0]), std::begin(bytes[1])));
      EXPECT_NE(std::count(std::begin(bytes[0]), std::end(bytes[0]), std::uint8_t{0xA5}), kPages * kPage * kRow);
    }
}

TEST(SimtAppend, RowsWiderThanABlock) {
  const AppendCase cpu(DType::fp8_e5m2, DType::bf16, CacheLayout::packed, /*gap=*/false, 72, 64, 1);
  const AppendCase device(DType::fp8_e5m2, DType::bf16, CacheLayout::packed, /*gap=*/false, 72, 64, 1);
  ASSERT_TRUE(append_on_cpu(cpu).ok());
  gpu::Outcome outcome;
  EXPECT_EQ(append_on_device(device, 32, 3, outcome), "");
  EXPECT_TRUE(same_bytes(cpu.cache, device.cache));
}

/// 20 dims are two pieces and a half.
TEST(SimtAppend, RowsThatEndWithinAPiece) {
  for (const DType stored : {DType::bf16, DType::fp8_e4m3fn, DType::i8})
    for (const DType source : {DType::bf16, DType::f16, DType::f32}) {
      SCOPED_TRACE(testing::Message() << name(stored) << " from " << name(source));
      const int scales = stored == DType::i8 ? AppendCase::kOfTokens : 2;
      const AppendCase cpu(stored, source, CacheLayout::hnd, /*gap=*/false, 3, 20, scales),
          device(stored, source, CacheLayout::hnd, /*gap=*/false, 3, 20, scales);
      ASSERT_TRUE(append_on_cpu(cpu).ok());
      gpu::Outcome outcome;
      EXPECT_EQ(append_on_device(device, 32, 5, outcome), "");
      EXPECT_TRUE(same_bytes(cpu.cache, device.cache));
    }
}

TEST(SimtAppend, ASlotBeyondTheCacheBreaksTheCallBeforeTheFirstWrite) {
  AppendCase device(DType::bf16, DType::bf16, CacheLayout::nhd, /*gap=*/false, 2, 8, 0);
  const AppendCase untouched(DType::bf16, DType::bf16, CacheLayout::nhd, /*gap=*/false, 2, 8, 0);
  device.slots.back() = AppendCase::kPages * AppendCase::kPageSize;
  gpu::Outcome outcome;
  EXPECT_EQ(append_on_device(device, 32, 0, outcome), "");
  EXPECT_NE(outcome.broken, 0);
  EXPECT_TRUE(same_bytes(device.cache, untouched.cache));
}

TEST(SimtMerge, EqualsTheCpuAlsoInPlace) {
  for_each_merge([](DType dtype, bool gap, bool in_place) {
    const MergeCase cpu(dtype, gap);
    MergeCase device(dtype, gap);
    ASSERT_TRUE(merge(cpu.out_a, cpu.lse_a, cpu.out_b, cpu.lse_b, cpu.out, cpu.lse).ok());
    if (in_place) device.out = device.out_a, device.lse = device.lse_b;
    gpu::MergeArgs a;
    a.num_tokens = MergeCase::kTokens;
    a.num_heads = MergeCase::kHeads;
    a.head_dim = MergeCase::kDim;
    a.out_a = simt::rows_of(device.out_a);
    a.out_b = simt::rows_of(device.out_b);
    a.lse_a = simt::lse_of(device.lse_a);
    a.lse_b = simt::lse_of(device.lse_b);
    a.out = {device.out.data, dtype, simt::row_strides(device.out)};
    a.lse = simt::lse_of(device.lse);
    EXPECT_EQ(simt::run({.blocks = 2, .threads = gpu::kMergeThreads, .seed = 9}, [&] { gpu::merge(a); }), "");
    EXPECT_TRUE(same_bytes(cpu.out, device.out)) << name(dtype) << gap << in_place;
    EXPECT_TRUE(same_bytes(cpu.lse, device.lse)) << name(dtype) << gap << in_place;
  });
}

TEST(SimtMerge, AStackEqualsTheCpuForEveryTypeStrideAndNumberOfParts) {
  for_each_stack([](DType dtype, bool gap, std::int64_t parts) {
    const StackCase cpu(dtype, gap, parts), device(dtype, gap, parts);
    ASSERT_TRUE(merge_many(cpu.outs, cpu.lses, cpu.out, cpu.lse).ok());
    gpu::MergeManyArgs a;
    a.num_parts = static_cast<std::int32_t>(parts);
    a.num_tokens = StackCase::kTokens;
    a.num_heads = StackCase::kHeads;
    a.head_dim = StackCase::kDim;
    const auto& s = device.outs.stride;
    a.outs = {device.outs.data, dtype, {s[0], s[2], s[1], 0, s[3], StackCase::kDim}};
    a.lses = {static_cast<float*>(device.lses.data), device.lses.stride[1], device.lses.stride[2]};
    a.lse_part = device.lses.stride[0];
    a.out = {device.out.data, dtype, simt::row_strides(device.out)};
    a.lse = simt::lse_of(device.lse);
    EXPECT_EQ(simt::run({.blocks = 2, .threads = gpu::kMergeThreads, .seed = 9}, [&] { gpu::merge_many(a); }), "");
    EXPECT_TRUE(same_bytes(cpu.out, device.out)) << name(dtype) << gap << parts;
    EXPECT_TRUE(same_bytes(cpu.lse, device.lse)) << name(dtype) << gap << parts;
  });
}

}  // namespace
}  // namespace quire::test
