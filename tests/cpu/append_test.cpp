// SPDX-License-Identifier: Apache-2.0
// append(): every layout and type against element-wise expectation; skipped slots, strides, wide rows, scales, the ledger.
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "quire/attention.hpp"
#include "semantics/block_scale.h"
#include "semantics/dtype.h"
#include "support/small_case.h"

namespace quire::test {
namespace {

struct Shape {
  std::int64_t tokens = 11, heads = 3, dim = 16, pages = 5, page_size = 4;
};

/// Cache element (page, head, offset, d) by the documented shapes, written without semantics/layout.h.
std::int64_t element(const KVCache& c, const Tensor& t, bool is_k, std::int64_t page, std::int64_t head, std::int64_t at,
                     std::int64_t d) {
  if (c.layout == CacheLayout::nhd) return offset(t, {page, at, head, d});
  if (c.layout == CacheLayout::hnd) return offset(t, {page, head, at, d});
  const std::int64_t x = 16 / itemsize(t.dtype);
  return is_k ? offset(t, {page, head, d / x, at, d % x}) : offset(t, {page, head, d, at});
}

KVCache make_cache(Storage& storage, const Shape& s, DType dtype, CacheLayout layout, bool gap) {
  KVCache c;
  c.layout = layout;
  const std::int64_t x = 16 / itemsize(dtype);
  if (layout == CacheLayout::nhd) c.k = make_tensor(storage, dtype, {s.pages, s.page_size, s.heads, s.dim}, gap);
  if (layout == CacheLayout::hnd) c.k = make_tensor(storage, dtype, {s.pages, s.heads, s.page_size, s.dim}, gap);
  if (layout == CacheLayout::packed) c.k = make_tensor(storage, dtype, {s.pages, s.heads, s.dim / x, s.page_size, x}, gap);
  c.v = layout == CacheLayout::packed ? make_tensor(storage, dtype, {s.pages, s.heads, s.dim, s.page_size}, gap) : c.k;
  if (layout != CacheLayout::packed) {
    std::vector<std::int64_t> shape(c.k.shape.begin(), c.k.shape.begin() + 4);
    c.v = make_tensor(storage, dtype, shape, gap);
  }
  return c;
}

Tensor make_rows(Storage& storage, const Shape& s, DType dtype, bool gap, std::uint64_t seed) {
  Tensor t = make_tensor(storage, dtype, {s.tokens, s.heads, s.dim}, gap);
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < s.tokens; ++i)
    for (std::int64_t h = 0; h < s.heads; ++h)
      for (std::int64_t d = 0; d < s.dim; ++d)
        semantics::store(t.data, dtype, offset(t, {i, h, d}), normal(random) * (h == 1 ? 400.0f : 1.0f));
  return t;
}

std::vector<std::int64_t> shuffled_slots(const Shape& s) {
  std::vector<std::int64_t> slots(static_cast<std::size_t>(s.pages * s.page_size));
  std::iota(slots.begin(), slots.end(), std::int64_t{0});
  std::shuffle(slots.begin(), slots.end(), std::mt19937(5));
  slots.resize(static_cast<std::size_t>(s.tokens));
  slots[2] = -1;
  slots[7] = -100;
  return slots;
}

/// What element-wise arithmetic says a slot must hold, as the code that is stored.
bool same_code(const Tensor& cache, std::int64_t at, float expected) {
  alignas(8) std::byte code[8] = {};
  semantics::store(code, cache.dtype, 0, expected);
  const auto size = static_cast<std::size_t>(itemsize(cache.dtype));
  return std::memcmp(static_cast<const std::byte*>(cache.data) + at * itemsize(cache.dtype), code, size) == 0;
}

void expect_appended(const KVCache& c, const Tensor& key, const Tensor& value, const std::vector<std::int64_t>& slots,
                     const Shape& s, const std::vector<float>& k_scale, const std::vector<float>& v_scale) {
  for (std::size_t t = 0; t < slots.size(); ++t) {
    if (slots[t] < 0) continue;
    const auto token = static_cast<std::int64_t>(t);
    for (std::int64_t h = 0; h < s.heads; ++h)
      for (std::int64_t d = 0; d < s.dim; ++d) {
        const float k = semantics::load(key.data, key.dtype, offset(key, {token, h, d})) / k_scale[static_cast<std::size_t>(h)];
        const float v =
            semantics::load(value.data, value.dtype, offset(value, {token, h, d})) / v_scale[static_cast<std::size_t>(h)];
        const std::int64_t page = slots[t] / s.page_size, at = slots[t] % s.page_size;
        ASSERT_TRUE(same_code(c.k, element(c, c.k, true, page, h, at, d), k)) << "K token " << t << " head " << h << " dim " << d;
        ASSERT_TRUE(same_code(c.v, element(c, c.v, false, page, h, at, d), v))
            << "V token " << t << " head " << h << " dim " << d;
      }
  }
}

/// Elements of slots that nobody named still hold the storage's fill.
std::int64_t changed_elements(const KVCache& c, const Tensor& t, bool is_k, const Shape& s,
                              const std::vector<std::int64_t>& slots) {
  const bool fnuz = t.dtype == DType::fp8_e4m3fnuz || t.dtype == DType::fp8_e5m2fnuz;
  std::int64_t changed = 0;
  for (std::int64_t slot = 0; slot < s.pages * s.page_size; ++slot) {
    if (std::find(slots.begin(), slots.end(), slot) != slots.end()) continue;
    for (std::int64_t h = 0; h < s.heads; ++h)
      for (std::int64_t d = 0; d < s.dim; ++d) {
        const auto* bytes = static_cast<const std::uint8_t*>(t.data) +
                            element(c, t, is_k, slot / s.page_size, h, slot % s.page_size, d) * itemsize(t.dtype);
        for (std::int64_t b = 0; b < itemsize(t.dtype); ++b) changed += bytes[b] != (fnuz ? 0x80 : 0xFF);
      }
  }
  return changed;
}

const DType kCacheTypes[] = {DType::f32,          DType::f16,      DType::bf16,        DType::fp8_e4m3fn,
                             DType::fp8_e4m3fnuz, DType::fp8_e5m2, DType::fp8_e5m2fnuz};

TEST(Append, EveryLayoutTypeAndStride) {
  const Shape s;
  for (CacheLayout layout : {CacheLayout::nhd, CacheLayout::hnd, CacheLayout::packed})
    for (DType stored : kCacheTypes)
      for (DType source : {DType::f32, DType::f16, DType::bf16})
        for (bool gap : {false, true}) {
          if (stored == DType::f32 && source != DType::f32) continue;  // Q-M20: no query type could read it
          Storage storage;
          const KVCache cache = make_cache(storage, s, stored, layout, gap);
          const Tensor key = make_rows(storage, s, source, gap, 1), value = make_rows(storage, s, source, gap, 2);
          std::vector<std::int64_t> slots = shuffled_slots(s);
          const Status status = append(cache, key, value, Tensor::contiguous(slots.data(), DType::i64, slots.size()));
          ASSERT_TRUE(status.ok()) << status.message();
          const std::vector<float> ones(static_cast<std::size_t>(s.heads), 1.0f);
          SCOPED_TRACE(testing::Message() << name(layout) << " " << name(stored) << " from " << name(source)
                                          << (gap ? " strided" : ""));
          expect_appended(cache, key, value, slots, s, ones, ones);
          EXPECT_EQ(changed_elements(cache, cache.k, true, s, slots), 0);
          EXPECT_EQ(changed_elements(cache, cache.v, false, s, slots), 0);
        }
}

TEST(Append, KAndVOfUnlikeTypes) {
  const Shape s;
  for (const auto& [of_k, of_v] : {std::pair{DType::i8, DType::fp8_e4m3fn},
                                   {DType::fp8_e4m3fn, DType::bf16},
                                   {DType::f16, DType::fp8_e5m2},
                                   {DType::fp8_e5m2fnuz, DType::f32}})
    for (CacheLayout layout : {CacheLayout::nhd, CacheLayout::hnd, CacheLayout::packed}) {
      Storage storage;
      KVCache cache = make_cache(storage, s, of_k, layout, /*gap=*/true);
      cache.v = make_cache(storage, s, of_v, layout, /*gap=*/false).v;
      std::vector<float> k_scale(static_cast<std::size_t>(s.heads), 1.0f), v_scale = k_scale;
      if (is_code(of_k)) k_scale = {0.5f, 3.0f, 0.7f};
      cache.k_scale = Tensor::contiguous(k_scale.data(), DType::f32, s.heads);
      const Tensor key = make_rows(storage, s, DType::f32, false, 1), value = make_rows(storage, s, DType::f32, true, 2);
      std::vector<std::int64_t> slots = shuffled_slots(s);
      const Status status = append(cache, key, value, Tensor::contiguous(slots.data(), DType::i64, slots.size()));
      ASSERT_TRUE(status.ok()) << status.message();
      SCOPED_TRACE(testing::Message() << name(layout) << " " << name(of_k) << "/" << name(of_v));
      expect_appended(cache, key, value, slots, s, k_scale, v_scale);
      EXPECT_EQ(changed_elements(cache, cache.k, true, s, slots) + changed_elements(cache, cache.v, false, s, slots), 0);
    }
}

TEST(Append, ScalesPerTensorAndPerHead) {
  const Shape s;
  Storage storage;
  KVCache cache = make_cache(storage, s, DType::fp8_e4m3fn, CacheLayout::hnd, /*gap=*/false);
  std::vector<float> per_head = {0.5f, 3.0f, 0.01f}, one = {0.25f};
  cache.k_scale = Tensor::contiguous(per_head.data(), DType::f32, 3);
  cache.v_scale = Tensor::contiguous(one.data(), DType::f32);
  const Tensor key = make_rows(storage, s, DType::f32, /*gap=*/false, 1),
               value = make_rows(storage, s, DType::f32, /*gap=*/false, 2);
  std::vector<std::int64_t> slots = shuffled_slots(s);
  ASSERT_TRUE(append(cache, key, value, Tensor::contiguous(slots.data(), DType::i64, slots.size())).ok());
  expect_appended(cache, key, value, slots, s, per_head, {0.25f, 0.25f, 0.25f});
}

/// The scale of a row by its definition, in double: the largest magnitude over the largest code, rounded to f32.
float scale_by_definition(const Tensor& rows, std::int64_t token, std::int64_t head, float largest) {
  double most = 0;
  for (std::int64_t d = 0; d < rows.shape[2]; ++d)
    most = std::max(most, std::fabs(static_cast<double>(semantics::load(rows.data, rows.dtype, offset(rows, {token, head, d})))));
  return std::max(static_cast<float>(most / largest), 0x1p-126f);
}

float largest_of(DType stored) {
  return stored == DType::i8 ? 127.0f : stored == DType::fp8_e4m3fn ? 448.0f : stored == DType::fp8_e4m3fnuz ? 240.0f : 57344.0f;
}

void expect_token_scales(const KVCache& c, const Tensor& key, const Tensor& value, const std::vector<std::int64_t>& slots,
                         const Shape& s) {
  for (std::size_t t = 0; t < slots.size(); ++t) {
    if (slots[t] < 0) continue;
    const std::int64_t page = slots[t] / s.page_size, at = slots[t] % s.page_size;
    for (const auto& [rows, codes, scales, is_k] : {std::tuple{&key, &c.k, &c.k_scale, true}, {&value, &c.v, &c.v_scale, false}})
      for (std::int64_t h = 0; h < s.heads; ++h) {
        const float expected = scale_by_definition(*rows, static_cast<std::int64_t>(t), h, largest_of(codes->dtype));
        const float scale = semantics::load(scales->data, DType::f32, offset(*scales, {page, at, h}));
        ASSERT_EQ(scale, expected) << "token " << t << " head " << h;
        for (std::int64_t d = 0; d < s.dim; ++d) {
          const float x = semantics::load(rows->data, rows->dtype, offset(*rows, {static_cast<std::int64_t>(t), h, d}));
          ASSERT_TRUE(same_code(*codes, element(c, *codes, is_k, page, h, at, d), x / scale))
              << "token " << t << " head " << h << " dim " << d << ": " << x << " / " << scale;
        }
      }
  }
}

TEST(Append, ScalesOfTokens) {
  const Shape s;
  for (CacheLayout layout : {CacheLayout::nhd, CacheLayout::hnd, CacheLayout::packed})
    for (DType stored : {DType::i8, DType::fp8_e4m3fn, DType::fp8_e4m3fnuz, DType::fp8_e5m2, DType::fp8_e5m2fnuz})
      for (DType source : {DType::f32, DType::f16, DType::bf16})
        for (bool gap : {false, true}) {
          Storage storage;
          KVCache cache = make_cache(storage, s, stored, layout, gap);
          cache.k_scale = make_tensor(storage, DType::f32, {s.pages, s.page_size, s.heads}, gap);
          cache.v_scale = make_tensor(storage, DType::f32, {s.pages, s.page_size, s.heads}, !gap);
          const Tensor key = make_rows(storage, s, source, gap, 1), value = make_rows(storage, s, source, gap, 2);
          for (std::int64_t d = 0; d < s.dim; ++d)
            semantics::store(key.data, source, offset(key, {4, 0, d}), d % 2 ? 0.0f : -0.0f);
          std::vector<std::int64_t> slots = shuffled_slots(s);
          const Status status = append(cache, key, value, Tensor::contiguous(slots.data(), DType::i64, slots.size()));
          ASSERT_TRUE(status.ok()) << status.message();
          SCOPED_TRACE(testing::Message() << name(layout) << " " << name(stored) << " from " << name(source)
                                          << (gap ? " strided" : ""));
          expect_token_scales(cache, key, value, slots, s);
          EXPECT_EQ(changed_elements(cache, cache.k, true, s, slots), 0);
          EXPECT_EQ(changed_elements(cache, cache.v, false, s, slots), 0);
        }
}

/// Every bf16 as the one element of a row, beside a small one: scales from the floor to the largest, and rows that are not
/// finite.
TEST(Append, ScalesOfEveryBf16) {
  const Shape s{.tokens = 65536, .heads = 1, .dim = 2, .pages = 65536, .page_size = 1};
  Storage storage;
  KVCache cache = make_cache(storage, s, DType::i8, CacheLayout::nhd, /*gap=*/false);
  cache.k_scale = make_tensor(storage, DType::f32, {s.pages, 1, 1}, /*gap=*/false);
  cache.v_scale = make_tensor(storage, DType::f32, {s.pages, 1, 1}, /*gap=*/false);
  const Tensor rows = make_tensor(storage, DType::bf16, {s.tokens, 1, 2}, /*gap=*/false);
  std::vector<std::int64_t> slots(65536);
  for (std::int64_t t = 0; t < s.tokens; ++t) {
    static_cast<std::uint16_t*>(rows.data)[2 * t] = static_cast<std::uint16_t>(t);
    semantics::store(rows.data, DType::bf16, 2 * t + 1, 0x1p-120f);
    slots[static_cast<std::size_t>(t)] = t;
  }
  ASSERT_TRUE(append(cache, rows, rows, Tensor::contiguous(slots.data(), DType::i64, s.tokens)).ok());
  for (std::int64_t t = 0; t < s.tokens; ++t) {
    const float x = semantics::load(rows.data, DType::bf16, 2 * t), scale = static_cast<const float*>(cache.k_scale.data)[t];
    const std::int8_t code = static_cast<const std::int8_t*>(cache.k.data)[2 * t];
    if (!std::isfinite(x)) {
      ASSERT_TRUE(std::isnan(scale)) << x;
      continue;
    }
    ASSERT_EQ(scale, scale_by_definition(rows, t, 0, 127)) << x;
    ASSERT_EQ(code, std::nearbyint(x / scale)) << x;
    // A value is off by half a code, and by the roundings of scale and quotient.
    ASSERT_LE(std::fabs(static_cast<double>(code) * scale - x), scale * 0.5001) << x;
  }
}

/// The scale of a block by its definition, in double, as the code that is stored.
std::uint8_t block_scale_by_definition(DType type, const std::vector<float>& block) {
  double most = 0;
  for (const float x : block) most = std::max(most, std::fabs(static_cast<double>(x)));
  if (type == DType::nvfp4) return semantics::fp8_encode<semantics::E4m3fn>(static_cast<float>(most) / 6.0f);
  return most == 0 ? std::uint8_t{0} : static_cast<std::uint8_t>(std::max(std::floor(std::log2(most)) - 2, -127.0) + 127);
}

/// Codes and scales of every row, and no byte of a slot that nobody named.
TEST(Append, FourBits) {
  const Shape s{.dim = 64};
  for (const DType type : {DType::nvfp4, DType::mxfp4})
    for (const CacheLayout layout : {CacheLayout::nhd, CacheLayout::hnd})
      for (const DType source : {DType::f32, DType::f16, DType::bf16})
        for (const bool scaled : {false, true}) {
          SCOPED_TRACE(testing::Message() << name(type) << " " << name(layout) << " from " << name(source)
                                          << (scaled ? " scaled" : ""));
          Storage storage;
          const Shape bytes{.tokens = s.tokens, .heads = s.heads, .dim = s.dim / 2, .pages = s.pages, .page_size = s.page_size};
          KVCache cache = make_cache(storage, bytes, type, layout, /*gap=*/false);
          const std::int64_t size = block_size(type), blocks = s.dim / size;
          cache.k_block_scale =
              make_tensor(storage, block_scale_type(type), {s.pages, s.page_size, s.heads, blocks}, /*gap=*/true);
          cache.v_block_scale =
              make_tensor(storage, block_scale_type(type), {s.pages, s.page_size, s.heads, blocks}, /*gap=*/false);
          std::vector<float> k_scale{0.3f, 2.0f, 0.7f};
          if (scaled) cache.k_scale = Tensor::contiguous(k_scale.data(), DType::f32, s.heads);
          const Tensor key = make_rows(storage, s, source, scaled, 1), value = make_rows(storage, s, source, !scaled, 2);
          for (std::int64_t d = 0; d < size; ++d) semantics::store(key.data, source, offset(key, {4, 0, d}), 0.0f);
          semantics::store(key.data, source, offset(key, {5, 1, 3}), std::nanf(""));
          std::vector<std::int64_t> slots = shuffled_slots(s);
          const Status status = append(cache, key, value, Tensor::contiguous(slots.data(), DType::i64, slots.size()));
          ASSERT_TRUE(status.ok()) << status.message();
          for (std::size_t t = 0; t < slots.size(); ++t) {
            if (slots[t] < 0) continue;
            const auto token = static_cast<std::int64_t>(t);
            const std::int64_t page = slots[t] / s.page_size, at = slots[t] % s.page_size;
            for (const auto& [rows, codes, scales, is_k] :
                 {std::tuple{&key, &cache.k, &cache.k_block_scale, true}, {&value, &cache.v, &cache.v_block_scale, false}})
              for (std::int64_t h = 0; h < s.heads; ++h)
                for (std::int64_t b = 0; b < blocks; ++b) {
                  std::vector<float> block;
                  for (std::int64_t d = b * size; d < (b + 1) * size; ++d) {
                    const float x = semantics::load(rows->data, rows->dtype, offset(*rows, {token, h, d}));
                    block.push_back(is_k && scaled ? x / k_scale[static_cast<std::size_t>(h)] : x);
                  }
                  const std::uint8_t code = static_cast<const std::uint8_t*>(scales->data)[offset(*scales, {page, at, h, b})];
                  if (is_k && token == 5 && h == 1 && b == 0) {
                    ASSERT_EQ(code, type == DType::nvfp4 ? 0x7F : 0xFF) << "a block with a NaN";
                    continue;
                  }
                  ASSERT_EQ(code, block_scale_by_definition(type, block)) << "token " << t << " head " << h << " block " << b;
                  const float scale = semantics::block_scale_decode(type, code);
                  for (std::int64_t d = b * size; d < (b + 1) * size; ++d) {
                    const std::uint8_t byte =
                        static_cast<const std::uint8_t*>(codes->data)[element(cache, *codes, is_k, page, h, at, d / 2)];
                    const std::uint32_t stored = d % 2 == 0 ? byte & 15u : byte >> 4;
                    const float x = block[static_cast<std::size_t>(d - b * size)];
                    ASSERT_EQ(stored, scale > 0 ? semantics::e2m1_encode(x / scale) : 0u)
                        << "token " << t << " head " << h << " dim " << d;
                  }
                }
          }
          EXPECT_EQ(changed_elements(cache, cache.k, true, bytes, slots), 0);
          EXPECT_EQ(changed_elements(cache, cache.v, false, bytes, slots), 0);
        }
}

/// Rows of fp8_ds_mla by their definition: codes, four scales and bf16, at bytes 0, 512 and 528 of 656. Other rows keep their
/// bytes.
TEST(Append, RowsOf656Bytes) {
  constexpr std::int64_t kTokens = 5, kPages = 3, kPage = 4, kRow = 656;
  for (const DType source : {DType::f32, DType::f16, DType::bf16})
    for (const bool gap : {false, true}) {
      SCOPED_TRACE(testing::Message() << name(source) << (gap ? " strided" : ""));
      Storage storage;
      const Shape latent{.tokens = kTokens, .heads = 1, .dim = 512}, rope{.tokens = kTokens, .heads = 1, .dim = 64};
      const Tensor key = make_rows(storage, latent, source, gap, 1), value = make_rows(storage, rope, source, gap, 2);
      for (std::int64_t d = 0; d < 128; ++d)
        semantics::store(key.data, source, offset(key, {3, 0, 256 + d}), d % 2 ? 0.0f : -0.0f);
      semantics::store(key.data, source, offset(key, {4, 0, 200}), std::nanf(""));
      alignas(16) static std::uint8_t bytes[kPages * kPage * kRow];
      std::fill(std::begin(bytes), std::end(bytes), std::uint8_t{0xA5});
      const KVCache cache = latent_cache(Tensor::contiguous(bytes, DType::u8, kPages, kPage, kRow));
      std::vector<std::int64_t> slots = {7, -1, 0, 10, 5};
      const Status status = append(cache, key, value, Tensor::contiguous(slots.data(), DType::i64, slots.size()));
      ASSERT_TRUE(status.ok()) << status.message();
      for (std::int64_t slot = 0; slot < kPages * kPage; ++slot) {
        const std::uint8_t* row = bytes + slot * kRow;
        const auto at = std::find(slots.begin(), slots.end(), slot);
        if (at == slots.end()) {
          EXPECT_TRUE(std::all_of(row, row + kRow, [](std::uint8_t b) { return b == 0xA5; })) << "slot " << slot;
          continue;
        }
        const std::int64_t t = at - slots.begin();
        for (std::int64_t d = 0; d < 512; ++d) {
          double most = 0;
          for (std::int64_t e = d / 128 * 128; e < d / 128 * 128 + 128; ++e)
            most = std::max(most, std::fabs(static_cast<double>(semantics::load(key.data, source, offset(key, {t, 0, e})))));
          float scale;
          std::memcpy(&scale, row + 512 + 4 * (d / 128), sizeof scale);
          if (t == 4 && d / 128 == 1) {
            EXPECT_TRUE(std::isnan(scale)) << d;
            continue;
          }
          ASSERT_EQ(scale, std::max(static_cast<float>(most / 448), 0x1p-126f)) << "token " << t << " dim " << d;
          const float x = semantics::load(key.data, source, offset(key, {t, 0, d}));
          ASSERT_EQ(row[d], semantics::fp8_encode<semantics::E4m3fn>(x / scale)) << "token " << t << " dim " << d;
        }
        for (std::int64_t d = 0; d < 64; ++d) {
          const float x = semantics::load(value.data, source, offset(value, {t, 0, d}));
          ASSERT_EQ(semantics::load(row + 528, DType::bf16, d), semantics::bf16_decode(semantics::bf16_encode(x)))
              << t << " " << d;
        }
      }
    }
}

TEST(Append, RowsWiderThanAnyThreadBlock) {
  for (const auto& [heads, dim] : {std::pair<std::int64_t, std::int64_t>{64, 128}, {40, 128}, {32, 256}, {1, 1}}) {
    const Shape s{.tokens = 3, .heads = heads, .dim = dim, .pages = 2, .page_size = 4};
    Storage storage;
    const KVCache cache = make_cache(storage, s, DType::f16, dim == 1 ? CacheLayout::nhd : CacheLayout::packed, /*gap=*/false);
    const Tensor key = make_rows(storage, s, DType::f16, /*gap=*/false, 1),
                 value = make_rows(storage, s, DType::f16, /*gap=*/false, 2);
    std::vector<std::int64_t> slots = {6, 0, 3};
    ASSERT_TRUE(append(cache, key, value, Tensor::contiguous(slots.data(), DType::i64, 3)).ok());
    const std::vector<float> ones(static_cast<std::size_t>(heads), 1.0f);
    expect_appended(cache, key, value, slots, s, ones, ones);
  }
}

TEST(Append, ShorterMappingWritesOnlyItsTokensAndInt32IsReadAsInt32) {
  const Shape s;
  Storage storage;
  const KVCache cache = make_cache(storage, s, DType::bf16, CacheLayout::nhd, /*gap=*/false);
  const Tensor key = make_rows(storage, s, DType::bf16, /*gap=*/false, 1),
               value = make_rows(storage, s, DType::bf16, /*gap=*/false, 2);
  std::vector<std::int32_t> slots = {19, -1, 4};
  ASSERT_TRUE(append(cache, key, value, Tensor::contiguous(slots.data(), DType::i32, 3)).ok());
  const std::vector<float> ones(3, 1.0f);
  expect_appended(cache, key, value, {19, -1, 4}, s, ones, ones);
  EXPECT_EQ(changed_elements(cache, cache.k, true, s, {19, 4}), 0);
}

TEST(Append, RefusesBeforeTheFirstWrite) {
  const Shape s;
  Storage storage;
  const KVCache cache = make_cache(storage, s, DType::bf16, CacheLayout::nhd, /*gap=*/false);
  const Tensor key = make_rows(storage, s, DType::bf16, /*gap=*/false, 1),
               value = make_rows(storage, s, DType::bf16, /*gap=*/false, 2);
  std::vector<std::int64_t> out_of_range = {0, 1, s.pages * s.page_size}, twice = {3, 4, 3};
  for (auto& [slots, rule] : {std::pair{&out_of_range, "Q-S01"}, {&twice, "Q-S02"}}) {
    const Status status = append(cache, key, value, Tensor::contiguous(slots->data(), DType::i64, 3));
    EXPECT_EQ(status.rule(), rule) << status.message();
    EXPECT_EQ(changed_elements(cache, cache.k, true, s, {}), 0);
  }
}

TEST(Append, FeedsTheLedger) {
  const Shape s;
  Storage storage;
  const KVCache cache = make_cache(storage, s, DType::bf16, CacheLayout::nhd, /*gap=*/false);
  const Tensor key = make_rows(storage, s, DType::bf16, /*gap=*/false, 1),
               value = make_rows(storage, s, DType::bf16, /*gap=*/false, 2);
  std::vector<std::int64_t> slots = {6, -1, 9};
  const Tensor mapping = Tensor::contiguous(slots.data(), DType::i64, 3);
  SlotLedger ledger(s.pages, s.page_size);
  ledger.begin_step(4);
  EXPECT_EQ(append(cache, key, value, mapping, {.ledger = &ledger}).code(), Code::invalid_argument) << "tags are needed";
  const std::vector<WriteTag> tags = {{77, 12}, {77, 13}, {78, 0}}, nobody = {{77, 12}, {77, 13}, {-1, 0}};
  EXPECT_EQ(append(cache, key, value, mapping, {.tags = tags}).message(), "append: 3 tags, but no ledger to record them in");
  EXPECT_EQ(append(cache, key, value, mapping, {.ledger = &ledger, .tags = nobody}).rule(), "Q-L06");
  SlotLedger other(s.pages + 1, s.page_size);
  EXPECT_EQ(append(cache, key, value, mapping, {.ledger = &other, .tags = tags}).rule(), "Q-L05");
  EXPECT_EQ(changed_elements(cache, cache.k, true, s, {}), 0);
  EXPECT_EQ(ledger.slots_written(), 0);
  EXPECT_EQ(other.slots_written(), 0);
  ASSERT_TRUE(append(cache, key, value, mapping, {.ledger = &ledger, .tags = tags}).ok());
  EXPECT_EQ(ledger.slots_written(), 2);
  EXPECT_EQ(ledger.entry(6).request, 77);
  EXPECT_EQ(ledger.entry(6).position, 12);
  EXPECT_EQ(ledger.entry(9).request, 78);
  EXPECT_EQ(ledger.entry(9).step, 4);
  EXPECT_EQ(ledger.entry(5).request, -1);
}

}  // namespace
}  // namespace quire::test
