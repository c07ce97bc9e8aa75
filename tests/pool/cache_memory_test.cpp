// SPDX-License-Identifier: Apache-2.0
// Caches in memory of the pool's: attended to like any other, aligned, apart from each other, alive as long as somebody holds
// them.
#include <gmock/gmock.h>

#include <cstring>
#include <limits>
#include <memory>
#include <set>

#include "pool/cache_memory.h"
#include "quire/attention.hpp"
#include "quire/page_pool.hpp"
#include "quire/tools/capture.hpp"
#include "quire/tools/diagnose.hpp"
#include "semantics/layout.h"

namespace quire {
namespace {

using testing::HasSubstr;

PagePoolOptions owning(std::int64_t num_layers, DType dtype) {
  PagePoolOptions options;
  options.num_pages = 40;
  options.page_size = 16;
  options.cache = {.num_layers = num_layers, .num_kv_heads = 2, .head_dim = 24, .dtype = dtype};
  return options;
}

std::int64_t span_of(const Tensor& t) {
  std::int64_t last = 0;
  for (int i = 0; i < t.rank; ++i) last += (t.shape[i] - 1) * t.stride[i];
  return (last + 1) * itemsize(t.dtype);
}

TEST(PoolCache, LayersAreHeadMajorAlignedZeroAndApart) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::fp8_e4m3fn, DType::fp8_e5m2fnuz}) {
    const PagePool pool = PagePool::create(owning(3, dtype)).value();
    const std::byte* end = nullptr;
    for (std::int64_t layer = 0; layer < 3; ++layer) {
      const KVCache cache = pool.cache(layer).value();
      EXPECT_EQ(cache.layout, CacheLayout::hnd);
      EXPECT_EQ(num_pages(cache), 40);
      EXPECT_EQ(page_size(cache), 16);
      EXPECT_EQ(num_kv_heads(cache), 2);
      EXPECT_EQ(head_dim(cache), 24);
      const auto* first = static_cast<const std::byte*>(cache.k.data);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % (2 << 20), 0u);
      EXPECT_GE(first, end);
      end = static_cast<const std::byte*>(cache.v.data) + span_of(cache.v);
      EXPECT_TRUE(std::all_of(first, end, [](std::byte b) { return b == std::byte{0}; }));
      EXPECT_EQ(cache.v.data, first + 16 * 24 * itemsize(dtype)) << "V of a head follows its K";
      std::memset(cache.k.data, 0xff, static_cast<std::size_t>(end - first));  // the next layer must stay zero
    }
    EXPECT_EQ(pool.cache_memory().bytes, 3 * (2 << 20));
    EXPECT_EQ(pool.cache(1)->k.data, pool.cache(1)->k.data);
  }
}

/// Copies the values of one cache into another of the same sizes, whatever their layouts.
void copy_values(const KVCache& from, const KVCache& to) {
  const std::int64_t size = itemsize(from.k.dtype);
  const auto copy = [&](const Tensor& a, const semantics::KvStrides& sa, const Tensor& b, const semantics::KvStrides& sb) {
    for (std::int64_t page = 0; page < num_pages(from); ++page)
      for (std::int64_t head = 0; head < num_kv_heads(from); ++head)
        for (std::int64_t token = 0; token < page_size(from); ++token)
          for (std::int64_t d = 0; d < head_dim(from); ++d)
            std::memcpy(static_cast<char*>(b.data) + (sb.row(page, head, token) + sb.element(d)) * size,
                        static_cast<const char*>(a.data) + (sa.row(page, head, token) + sa.element(d)) * size,
                        static_cast<std::size_t>(size));
  };
  copy(from.k, semantics::k_strides(from), to.k, semantics::k_strides(to));
  copy(from.v, semantics::v_strides(from), to.v, semantics::v_strides(to));
}

TEST(PoolCache, IsAttendedToLikeACacheOfTheUsers) {
  for (const char* types : {"q=f32 kv=f32", "q=bf16 kv=bf16", "q=f16 kv=fp8_e4m3fn"}) {
    const std::string line = std::string(types) + " heads=6:2 d=24 page=16 lse=1 reqs=20@33,1@170 pages=40 seed=5";
    Case c = make_case(parse_problem_line(line).value()).value();
    const PagePool pool = PagePool::create(owning(2, c.cache.k.dtype)).value();
    KVCache owned = pool.cache(1).value();
    copy_values(c.cache, owned);
    owned.k_scale = c.cache.k_scale;
    owned.v_scale = c.cache.v_scale;
    const Findings findings = check(c.batch, owned, c.options, Depth::contents);
    EXPECT_TRUE(findings.ok()) << findings.status().message();
    const Plan plan = quire::plan(c.batch, owned, c.options).value();
    std::vector<std::byte> workspace(workspace_bytes(plan) + 64);
    void* aligned = workspace.data();
    std::size_t room = workspace.size();
    std::align(64, workspace_bytes(plan), aligned, room);
    ASSERT_TRUE(attend(plan, c.batch, owned, c.options, {static_cast<std::byte*>(aligned), workspace_bytes(plan)}).ok());
    const Comparison result = compare(c.batch.output, c.batch.lse, reference(c.batch, c.cache, c.options).value());
    EXPECT_TRUE(result.ok) << line << "\n" << result.text;
  }
}

TEST(PoolCache, IsAppendedTo) {
  const PagePool pool = PagePool::create(owning(1, DType::f32)).value();
  std::vector<float> key(2 * 24), value(2 * 24);
  for (std::size_t i = 0; i < key.size(); ++i) key[i] = static_cast<float>(i), value[i] = -static_cast<float>(i);
  std::int64_t slot = 17 * 16 + 5;
  const KVCache cache = pool.cache(0).value();
  const Status s = append(cache, Tensor::contiguous(key.data(), DType::f32, 1, 2, 24),
                          Tensor::contiguous(value.data(), DType::f32, 1, 2, 24), Tensor::contiguous(&slot, DType::i64, 1));
  ASSERT_TRUE(s.ok()) << s.message();
  const auto* k = static_cast<const float*>(cache.k.data);
  const auto* v = static_cast<const float*>(cache.v.data);
  EXPECT_EQ(k[semantics::k_strides(cache).row(17, 1, 5) + 3], 27.0f);
  EXPECT_EQ(v[semantics::v_strides(cache).row(17, 1, 5) + 3], -27.0f);
}

TEST(PoolCache, OutlivesThePoolByItsOwner) {
  std::shared_ptr<const void> owner;
  KVCache cache;
  {
    const PagePool pool = PagePool::create(owning(1, DType::bf16)).value();
    owner = pool.cache_owner();
    cache = pool.cache(0).value();
  }
  std::memset(cache.k.data, 1, 4096);
  EXPECT_EQ(static_cast<const char*>(cache.k.data)[4095], 1);
}

TEST(PoolCache, SaysWhatTheSystemGave) {
  PagePoolOptions options = owning(1, DType::f32);
  options.num_pages = 4096;
  const PagePool pool = PagePool::create(options).value();
  const KVCache cache = pool.cache(0).value();
  std::memset(cache.k.data, 1, std::size_t{4096} * 2 * 16 * 24 * 4 * 2);
  const PagePool::CacheMemory memory = pool.cache_memory();
  EXPECT_EQ(memory.bytes, std::int64_t{24} << 20);
  EXPECT_EQ(memory.alignment, 2 << 20);
  EXPECT_LE(memory.huge_page_bytes, memory.bytes);
  EXPECT_GE(memory.huge_page_bytes, -1);
  RecordProperty("huge_page_bytes", std::to_string(memory.huge_page_bytes));
}

TEST(PoolCache, OwnsNothingUnlessAsked) {
  const PagePool pool = PagePool::create({.num_pages = 4}).value();
  EXPECT_THAT(pool.cache(0).status().message(), HasSubstr("PagePool::cache: the pool has no cache memory"));
  EXPECT_EQ(pool.cache_owner(), nullptr);
  EXPECT_EQ(pool.cache_memory().bytes, 0);
}

TEST(PoolCache, RefusesSizesThatMeanNothing) {
  const auto message = [](auto change) {
    PagePoolOptions options = owning(1, DType::bf16);
    change(options.cache);
    return PagePool::create(options).status().message();
  };
  EXPECT_THAT(message([](PoolCacheOptions& c) { c.num_layers = -1; }), HasSubstr("cache.num_layers: -1"));
  EXPECT_THAT(message([](PoolCacheOptions& c) { c.num_kv_heads = 0; }), HasSubstr("cache.num_kv_heads: 0"));
  EXPECT_THAT(message([](PoolCacheOptions& c) { c.head_dim = 0; }), HasSubstr("cache.head_dim: 0"));
  EXPECT_THAT(message([](PoolCacheOptions& c) { c.dtype = DType::i32; }), HasSubstr("cache.dtype: i32"));
  EXPECT_THAT(message([](PoolCacheOptions& c) { c.head_dim = std::numeric_limits<std::int64_t>::max(); }),
              HasSubstr("more bytes than can be addressed"));
  EXPECT_THAT(message([](PoolCacheOptions& c) { c.head_dim = std::int64_t{1} << 46; }), HasSubstr("no memory for 1 layers"));
}

}  // namespace
}  // namespace quire
