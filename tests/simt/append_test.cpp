// append() and merge() on the stand-in: the same bits as the CPU's, for every type, layout and stride.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "simt/device.h"
#include "support/small_case.h"

namespace quire::test {
namespace {

constexpr std::int64_t kTokens = 7, kPages = 4, kPageSize = 3;

/// One set of tensors for append, the same bits for the same arguments.
struct AppendCase {
  AppendCase(DType stored, DType source, CacheLayout layout, bool gap, std::int64_t heads, std::int64_t dim, int scales) {
    const std::int64_t x = packed_x(stored);
    cache.layout = layout;
    const auto make = [&](bool is_k) {
      if (layout == CacheLayout::nhd) return make_tensor(storage, stored, {kPages, kPageSize, heads, dim}, gap);
      if (layout == CacheLayout::hnd) return make_tensor(storage, stored, {kPages, heads, kPageSize, dim}, gap);
      return is_k ? make_tensor(storage, stored, {kPages, heads, dim / x, kPageSize, x}, gap)
                  : make_tensor(storage, stored, {kPages, heads, dim, kPageSize}, gap);
    };
    cache.k = make(true);
    cache.v = make(false);
    std::mt19937_64 random(11);
    std::normal_distribution<float> normal;
    for (Tensor* rows : {&key, &value}) {
      *rows = make_tensor(storage, source, {kTokens, heads, dim}, gap);
      for (std::int64_t t = 0; t < kTokens; ++t)
        for (std::int64_t h = 0; h < heads; ++h)
          for (std::int64_t d = 0; d < dim; ++d) set(*rows, {t, h, d}, normal(random) * (h == 1 ? 400.0f : 1.0f));
    }
    if (scales > 0) cache.k_scale = make_tensor(storage, DType::f32, {heads}, gap);
    if (scales > 1) cache.v_scale = make_tensor(storage, DType::f32, {1});
    for (std::int64_t h = 0; scales > 0 && h < heads; ++h) set(cache.k_scale, {h}, 0.3 * static_cast<double>(h + 1));
    if (scales > 1) set(cache.v_scale, {0}, 0.7);
  }

  std::string append_on_device(int wave, std::uint64_t seed, gpu::Outcome& outcome) const {
    gpu::AppendArgs a;
    a.num_tokens = static_cast<std::int32_t>(slots.size());
    a.num_kv_heads = static_cast<std::int32_t>(key.shape[1]);
    a.head_dim = static_cast<std::int32_t>(key.shape[2]);
    a.page_size = kPageSize;
    a.num_pages = kPages;
    a.key = simt::rows_of(key);
    a.value = simt::rows_of(value);
    a.cache_k = {cache.k.data, cache.k.dtype, semantics::k_strides(cache)};
    a.cache_v = {cache.v.data, cache.v.dtype, semantics::v_strides(cache)};
    a.k_scale = simt::per_head(cache.k_scale);
    a.v_scale = simt::per_head(cache.v_scale);
    a.slots = {slots.data(), DType::i64, 1};
    a.outcome = &outcome;
    const simt::Launch launch{.blocks = 2, .threads = gpu::kAppendThreads, .wave = wave, .seed = seed};
    const std::string first = simt::run(launch, [&] { gpu::validate_slots(a); });
    return first + simt::run(launch, [&] { gpu::append(a); });
  }

  Storage storage;
  KVCache cache;
  Tensor key, value;
  std::vector<std::int64_t> slots = {5, -1, 0, 11, 7, -100, 3};
};

/// Bytes of a tensor from its first to its last element.
std::size_t bytes_of(const Tensor& t) {
  std::int64_t last = 0;
  for (int i = 0; i < t.rank; ++i) last += (t.shape[i] - 1) * t.stride[i];
  return static_cast<std::size_t>((last + 1) * itemsize(t.dtype));
}

bool same_bytes(const KVCache& a, const KVCache& b) {
  return std::memcmp(a.k.data, b.k.data, bytes_of(a.k)) == 0 && std::memcmp(a.v.data, b.v.data, bytes_of(a.v)) == 0;
}

constexpr DType kStored[] = {DType::f32,          DType::f16,      DType::bf16,        DType::fp8_e4m3fn,
                             DType::fp8_e4m3fnuz, DType::fp8_e5m2, DType::fp8_e5m2fnuz};

TEST(SimtAppend, EqualsTheCpuForEveryTypeLayoutAndStride) {
  int turn = 0;
  for (const DType stored : kStored)
    for (const DType source : {DType::f32, DType::f16, DType::bf16})
      for (const CacheLayout layout : {CacheLayout::nhd, CacheLayout::hnd, CacheLayout::packed})
        for (const bool gap : {false, true}) {
          if (stored == DType::f32 && source != DType::f32) continue;  // Q-M20: no query type could read it
          SCOPED_TRACE(testing::Message() << name(layout) << " " << name(stored) << " from " << name(source)
                                          << (gap ? " gaps" : ""));
          const AppendCase cpu(stored, source, layout, gap, 3, 16, turn % 3),
              device(stored, source, layout, gap, 3, 16, turn % 3);
          ++turn;
          std::vector<std::int64_t> slots = cpu.slots;
          const Status status = append(cpu.cache, cpu.key, cpu.value, Tensor::contiguous(slots.data(), DType::i64, slots.size()));
          ASSERT_TRUE(status.ok()) << status.message();
          EXPECT_FALSE(same_bytes(cpu.cache, device.cache)) << "nothing was appended";
          gpu::Outcome outcome;
          EXPECT_EQ(device.append_on_device(turn % 2 == 0 ? 32 : 64, static_cast<std::uint64_t>(turn), outcome), "");
          EXPECT_EQ(outcome.broken, 0);
          EXPECT_TRUE(same_bytes(cpu.cache, device.cache));
        }
}

TEST(SimtAppend, RowsWiderThanABlock) {
  AppendCase cpu(DType::fp8_e5m2, DType::bf16, CacheLayout::packed, false, 72, 64, 1);
  const AppendCase device(DType::fp8_e5m2, DType::bf16, CacheLayout::packed, false, 72, 64, 1);
  ASSERT_TRUE(append(cpu.cache, cpu.key, cpu.value, Tensor::contiguous(cpu.slots.data(), DType::i64, cpu.slots.size())).ok());
  gpu::Outcome outcome;
  EXPECT_EQ(device.append_on_device(32, 3, outcome), "");
  EXPECT_TRUE(same_bytes(cpu.cache, device.cache));
}

TEST(SimtAppend, ASlotBeyondTheCacheBreaksTheCallBeforeTheFirstWrite) {
  AppendCase device(DType::bf16, DType::bf16, CacheLayout::nhd, false, 2, 8, 0);
  const AppendCase untouched(DType::bf16, DType::bf16, CacheLayout::nhd, false, 2, 8, 0);
  device.slots.back() = kPages * kPageSize;
  gpu::Outcome outcome;
  EXPECT_EQ(device.append_on_device(32, 0, outcome), "");
  EXPECT_NE(outcome.broken, 0);
  EXPECT_TRUE(same_bytes(device.cache, untouched.cache));
}

struct MergeCase {
  MergeCase(DType dtype, bool gap) {
    std::mt19937_64 random(5);
    std::normal_distribution<float> normal;
    for (Tensor* t : {&out_a, &out_b, &out}) *t = make_tensor(storage, dtype, {9, 5, 24}, gap);
    for (Tensor* t : {&lse_a, &lse_b, &lse}) *t = make_tensor(storage, DType::f32, {9, 5}, gap);
    for (const auto& [values, sums] : {std::pair{&out_a, &lse_a}, {&out_b, &lse_b}})
      for (std::int64_t t = 0; t < 9; ++t)
        for (std::int64_t h = 0; h < 5; ++h) {
          const bool empty = (t == 2 && sums == &lse_a) || (t == 4 && sums == &lse_b) || t == 7;
          set(*sums, {t, h}, empty ? -INFINITY : 3.0f * normal(random));
          for (std::int64_t d = 0; d < 24; ++d) set(*values, {t, h, d}, empty ? NAN : normal(random));
        }
  }
  Storage storage;
  Tensor out_a, out_b, out, lse_a, lse_b, lse;
};

TEST(SimtMerge, EqualsTheCpuAlsoInPlace) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (const bool gap : {false, true})
      for (const bool in_place : {false, true}) {
        MergeCase cpu(dtype, gap), device(dtype, gap);
        ASSERT_TRUE(merge(cpu.out_a, cpu.lse_a, cpu.out_b, cpu.lse_b, cpu.out, cpu.lse).ok());
        if (in_place) device.out = device.out_a, device.lse = device.lse_b;
        gpu::MergeArgs a;
        a.num_tokens = 9;
        a.num_heads = 5;
        a.head_dim = 24;
        a.out_a = simt::rows_of(device.out_a);
        a.out_b = simt::rows_of(device.out_b);
        a.lse_a = simt::lse_of(device.lse_a);
        a.lse_b = simt::lse_of(device.lse_b);
        a.out = {device.out.data, dtype, simt::row_strides(device.out)};
        a.lse = simt::lse_of(device.lse);
        EXPECT_EQ(simt::run({.blocks = 2, .threads = gpu::kMergeThreads, .seed = 9}, [&] { gpu::merge(a); }), "");
        EXPECT_EQ(std::memcmp(cpu.out.data, device.out.data, bytes_of(cpu.out)), 0) << name(dtype) << gap << in_place;
        EXPECT_EQ(std::memcmp(cpu.lse.data, device.lse.data, bytes_of(cpu.lse)), 0) << name(dtype) << gap << in_place;
      }
}

}  // namespace
}  // namespace quire::test
