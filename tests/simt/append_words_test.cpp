// SPDX-License-Identifier: Apache-2.0
// append() by words and columns on the stand-in: the same bits as the general kernel's for every code of a row and every phase of
// slots, as the CPU's for every type and layout, no word beside its slots, and each number of its arguments is needed.
#include <gtest/gtest.h>

#include <functional>
#include <numeric>

#include "backend/gpu/append.h"
#include "backend/gpu/append_words.h"
#include "kernels/move_cases.h"
#include "simt/device.h"

namespace quire::test {
namespace {

gpu::AppendArgs args_of(const KVCache& cache, const Tensor& key, const Tensor& value, const Tensor& slots) {
  gpu::AppendArgs a;
  a.num_tokens = static_cast<std::int32_t>(slots.shape[0]);
  a.num_kv_heads = static_cast<std::int32_t>(key.shape[1]);
  a.head_dim = static_cast<std::int32_t>(key.shape[2]);
  a.v_head_dim = static_cast<std::int32_t>(value.shape[2]);
  a.page_size = static_cast<std::int32_t>(page_size(cache));
  a.num_pages = num_pages(cache);
  a.key = simt::rows_of(key);
  a.value = simt::rows_of(value);
  a.cache_k = {cache.k.data, cache.k.dtype, semantics::k_strides(cache)};
  a.cache_v = {cache.v.data, cache.v.dtype, semantics::v_strides(cache)};
  a.k_scale = simt::per_head(cache.k_scale);
  a.v_scale = simt::per_head(cache.v_scale);
  a.k_token_scale = semantics::token_scales(cache.k_scale);
  a.v_token_scale = semantics::token_scales(cache.v_scale);
  a.slots = semantics::index_view(slots);
  return a;
}

template <DType kRows, DType kStored>
void run_thread(const gpu::AppendWords& w) {
  if (w.widest_run > 0)
    gpu::append_words<kRows, kStored, true>(w, [] {});
  else
    gpu::append_words<kRows, kStored, false>(w, [] {});
}

template <DType kRows>
void run_thread(const gpu::AppendWords& w) {
  switch (w.stored) {
    case DType::fp8_e4m3fn: return run_thread<kRows, DType::fp8_e4m3fn>(w);
    case DType::fp8_e5m2: return run_thread<kRows, DType::fp8_e5m2>(w);
    default: return run_thread<kRows, kRows>(w);
  }
}

std::string run_words(const gpu::AppendWords& w, std::uint64_t seed = 1) {
  const simt::Launch launch{
      .blocks = static_cast<int>(gpu::append_word_blocks(w)), .threads = gpu::kAppendWordThreads, .seed = seed};
  return simt::run(launch, [&] { w.rows == DType::bf16 ? run_thread<DType::bf16>(w) : run_thread<DType::f16>(w); });
}

std::string run_general(const gpu::AppendArgs& a) {
  return simt::run({.blocks = 2, .threads = gpu::kAppendThreads, .seed = 2}, [&] { gpu::append(a); });
}

TEST(SimtAppendWords, EqualTheCpuWhereverTheyAreTaken) {
  int taken = 0, columns = 0, turn = 0;
  for_each_append([&](DType stored, DType source, CacheLayout layout, bool gap, int scales) {
    SCOPED_TRACE(testing::Message() << name(layout) << " " << name(stored) << " from " << name(source) << (gap ? " gaps" : ""));
    const AppendCase cpu(stored, source, layout, gap, 3, 16, scales), device(stored, source, layout, gap, 3, 16, scales);
    const std::optional<gpu::AppendWords> w =
        gpu::append_words_args(args_of(device.cache, device.key, device.value, device.slot_mapping()));
    if (!w) return;
    ++taken, columns += w->widest_run > 0 ? 1 : 0;
    ASSERT_TRUE(append(cpu.cache, cpu.key, cpu.value, cpu.slot_mapping()).ok());
    EXPECT_EQ(run_words(*w, static_cast<std::uint64_t>(++turn)), "");
    EXPECT_TRUE(same_bytes(cpu.cache, device.cache));
  });
  EXPECT_EQ(taken, 14);  // cases without gaps: 4 conversions in 3 layouts, and the 2 copies whose turn has no scale
  EXPECT_EQ(columns, 4);
}

/// Rows that hold every code of their type once, for a cache of 16-token pages.
struct EveryCode {
  static constexpr std::int64_t kTokens = 512, kHeads = 2, kDim = 64;

  EveryCode(DType stored, DType source, CacheLayout layout, std::int64_t page, DType index, std::int64_t phase, bool scaled) {
    const std::int64_t x = packed_x(stored), pages = 640 / page;
    cache.layout = layout;
    const bool packed = layout == CacheLayout::packed;
    cache.k = packed ? make_tensor(storage, stored, {pages, kHeads, kDim / x, page, x})
                     : make_tensor(storage, stored, {pages, page, kHeads, kDim});
    cache.v = packed ? make_tensor(storage, stored, {pages, kHeads, kDim, page})
                     : make_tensor(storage, stored, {pages, page, kHeads, kDim});
    key = make_tensor(storage, source, {kTokens, kHeads, kDim});
    value = make_tensor(storage, source, {kTokens, kHeads, kDim});
    for (std::int64_t i = 0; i < kTokens * kHeads * kDim; ++i) {
      static_cast<std::uint16_t*>(key.data)[i] = static_cast<std::uint16_t>(i);
      static_cast<std::uint16_t*>(value.data)[i] = static_cast<std::uint16_t>(40503 * i);
    }
    // A run from `phase` on, a skipped row, a run with a gap behind each sixth row, and one that goes backwards.
    slots = make_tensor(storage, index, {kTokens});
    for (std::int64_t t = 0; t < kTokens; ++t) {
      const std::int64_t slot = t < 200 ? phase + t : t < 300 ? phase + t + (t - 200) / 6 : phase + 619 - (t - 300);
      set_index(slots, {t}, t == 77 ? -1 : t == 78 ? -2147483647 : slot);
    }
    if (!scaled) return;
    cache.k_scale = make_tensor(storage, DType::f32, {kHeads});
    cache.v_scale = make_tensor(storage, DType::f32, {1});
    for (std::int64_t h = 0; h < kHeads; ++h) set(cache.k_scale, {h}, 0.37 + static_cast<double>(h));
    set(cache.v_scale, {0}, 0.7);
  }
  gpu::AppendArgs args() const { return args_of(cache, key, value, slots); }

  Storage storage;
  KVCache cache;
  Tensor key, value, slots;
};

TEST(SimtAppendWords, EveryCodeInEveryPhase) {
  std::int64_t turn = 0;
  for (const DType source : {DType::bf16, DType::f16})
    for (const DType stored : {source, DType::fp8_e4m3fn, DType::fp8_e5m2})
      for (const CacheLayout layout : {CacheLayout::nhd, CacheLayout::packed})
        for (const std::int64_t page : {16, 20, 2, 5}) {
          const std::int64_t phase = turn++ % 8;
          const DType index = turn % 2 == 0 ? DType::i32 : DType::i64;
          SCOPED_TRACE(testing::Message() << name(layout) << " " << name(stored) << " from " << name(source) << " pages of "
                                          << page << " phase " << phase);
          const bool scaled = stored != source && turn % 3 != 0;
          const EveryCode general(stored, source, layout, page, index, phase, scaled),
              device(stored, source, layout, page, index, phase, scaled);
          const std::optional<gpu::AppendWords> w = gpu::append_words_args(device.args());
          ASSERT_TRUE(w);
          EXPECT_EQ(w->widest_run, layout != CacheLayout::packed ? 0 : page == 16 ? 8 : page == 20 ? 4 : page == 2 ? 2 : 1);
          EXPECT_EQ(run_general(general.args()), "");
          EXPECT_EQ(run_words(*w, static_cast<std::uint64_t>(turn)), "");
          EXPECT_TRUE(same_bytes(general.cache, device.cache));
        }
}

TEST(SimtAppendWords, ASlotBeyondTheCacheIsSkipped) {
  const EveryCode device(DType::bf16, DType::bf16, CacheLayout::packed, 16, DType::i64, 0, false),
      general(DType::bf16, DType::bf16, CacheLayout::packed, 16, DType::i64, 0, false);
  for (const std::int64_t beyond : {std::int64_t{640}, std::int64_t{1} << 32, (std::int64_t{1} << 32) - 1, std::int64_t{-640}}) {
    SCOPED_TRACE(beyond);
    set_index(device.slots, {5}, beyond);
    set_index(general.slots, {5}, -1);
    EXPECT_EQ(run_words(gpu::append_words_args(device.args()).value()), "");
    EXPECT_EQ(run_general(general.args()), "");
    EXPECT_TRUE(same_bytes(general.cache, device.cache));
  }
}

/// Whether an argument told wrongly changes a byte.
bool found(CacheLayout layout, std::int64_t page, const std::function<void(gpu::AppendWords&)>& tamper) {
  const EveryCode right(DType::bf16, DType::bf16, layout, page, DType::i32, 3, false),
      wrong(DType::bf16, DType::bf16, layout, page, DType::i32, 3, false);
  gpu::AppendWords w = gpu::append_words_args(wrong.args()).value();
  EXPECT_EQ(run_words(gpu::append_words_args(right.args()).value()), "");
  tamper(w);
  return !run_words(w).empty() || !same_bytes(right.cache, wrong.cache);
}

TEST(SimtAppendWords, PlantedFaultsAreFound) {
  for (const CacheLayout layout : {CacheLayout::nhd, CacheLayout::packed}) {
    const auto planted = [&](const std::function<void(gpu::AppendWords&)>& tamper) { return found(layout, 16, tamper); };
    EXPECT_FALSE(planted([](gpu::AppendWords&) {}));
    EXPECT_TRUE(planted([](gpu::AppendWords& w) { w.slot_stride = 0; }));
    EXPECT_TRUE(planted([](gpu::AppendWords& w) { w.num_slots -= 32; }));
    EXPECT_TRUE(planted([](gpu::AppendWords& w) { w.num_tokens -= 1; }));
    EXPECT_TRUE(planted([](gpu::AppendWords& w) { w.key_blocks -= 1; }));
    EXPECT_TRUE(planted([](gpu::AppendWords& w) { w.value_blocks -= 1; }));
    EXPECT_TRUE(planted([](gpu::AppendWords& w) { w.page_size = gpu::divisor_of(17); }));
    EXPECT_TRUE(planted([](gpu::AppendWords& w) { w.rows = DType::f16; }));  // another NaN becomes quiet
    EXPECT_TRUE(planted([](gpu::AppendWords& w) { w.value.row_head = 0; }));
    EXPECT_TRUE(planted([](gpu::AppendWords& w) { w.key.row_token = w.key.row_head; }));
    EXPECT_TRUE(planted([](gpu::AppendWords& w) { w.key.of_row = gpu::divisor_of(9); }));
    EXPECT_TRUE(planted([](gpu::AppendWords& w) { w.value.of_token = gpu::divisor_of(w.value.of_token.divisor - 1); }));
  }
  // A word of 4 tokens in pages of 2 or 5 reaches into another head's or another page's memory.
  EXPECT_TRUE(found(CacheLayout::packed, 2, [](gpu::AppendWords& w) { w.widest_run = 4; }));
  EXPECT_TRUE(found(CacheLayout::packed, 5, [](gpu::AppendWords& w) { w.widest_run = 2; }));
}

TEST(AppendWords, DivisionIsExact) {
  for (std::uint32_t d : {1u, 2u, 3u, 5u, 7u, 16u, 20u, 255u, 256u, 257u, 65535u, 1000003u, 0x40000001u, 0x7FFFFFFFu})
    for (std::uint32_t at : {0u, 1u, 0x7FFFFFFFu / d}) {
      for (std::uint32_t off : {0u, 1u, d - 1, d}) {
        const std::uint64_t n = std::uint64_t{at} * d + off;
        if (n > 0x7FFFFFFFu) continue;
        EXPECT_EQ(gpu::divisor_of(d).of(static_cast<std::uint32_t>(n)), n / d) << n << " / " << d;
      }
    }
}

TEST(AppendWords, LeavesTheRestToTheGeneralKernel) {
  const EveryCode c(DType::bf16, DType::bf16, CacheLayout::nhd, 16, DType::i32, 0, false);
  const auto taken = [&](const std::function<void(gpu::AppendArgs&)>& change) {
    gpu::AppendArgs a = c.args();
    change(a);
    return gpu::append_words_args(a).has_value();
  };
  gpu::Outcome outcome;
  const float one = 1.0f;
  EXPECT_TRUE(taken([](gpu::AppendArgs&) {}));
  EXPECT_FALSE(taken([](gpu::AppendArgs& a) { a.key.dtype = a.value.dtype = DType::f32; }));
  EXPECT_FALSE(taken([](gpu::AppendArgs& a) { a.cache_k.dtype = a.cache_v.dtype = DType::f16; }));
  EXPECT_FALSE(taken([](gpu::AppendArgs& a) { a.cache_k.dtype = a.cache_v.dtype = DType::fp8_e4m3fnuz; }));
  EXPECT_FALSE(taken([&](gpu::AppendArgs& a) { a.k_scale.data = &one; }));
  EXPECT_FALSE(taken([&](gpu::AppendArgs& a) { a.outcome = &outcome; }));
  EXPECT_FALSE(taken([](gpu::AppendArgs& a) { a.key.data = static_cast<const std::uint16_t*>(a.key.data) + 4; }));
  EXPECT_FALSE(taken([](gpu::AppendArgs& a) { a.cache_v.strides.head += 4; }));
  EXPECT_FALSE(taken([](gpu::AppendArgs& a) { a.key.strides.dim = 2; }));
  EXPECT_FALSE(taken([](gpu::AppendArgs& a) { a.head_dim = 60; }));
  EXPECT_FALSE(taken([](gpu::AppendArgs& a) { a.num_pages = std::int64_t{1} << 28; }));
  EXPECT_FALSE(taken([](gpu::AppendArgs& a) { a.num_tokens = 0x7FFFFFF; }));
}

}  // namespace
}  // namespace quire::test
