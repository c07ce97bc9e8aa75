// SPDX-License-Identifier: Apache-2.0
// check_contents() on the stand-in: it agrees with check() at depth contents on any element of any tensor, in every type and
// layout.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <random>

#include "backend/gpu/check_contents.h"
#include "kernels/hazard_cases.h"
#include "kernels/judge.h"
#include "simt/device.h"

namespace quire::test {
namespace {

constexpr const char* kShapes[] = {"heads=4:2 d=16 page=8 window=20 reqs=3@20/21,5@9,0@4,1@37,30@0/0",
                                   "heads=3:1 d=24 page=5 reqs=2@70/71,9@3/12,1@200"};

bool found_on_device(const Case& c, int blocks = 3) {
  gpu::GenericArgs a = simt::attend_args(c);
  gpu::Outcome outcome;
  a.outcome = &outcome;
  EXPECT_EQ(simt::run({.blocks = blocks, .threads = gpu::kContentThreads}, [&] { gpu::check_contents(a); }), "");
  return outcome.broken != 0;
}

bool found_on_host(const Case& c) { return !check(c.batch, c.cache, c.options, Depth::contents).ok(); }

Case made(const std::string& types, const std::string& shape, std::uint64_t seed) {
  return make_case(hazard_line(types, shape, seed)).value();
}

// Everything that must not be read is NaN in a made case.
TEST(SimtContents, PoisonIsNotFound) {
  for (const std::string& types : type_combinations())
    for (const char* shape : kShapes) {
      const Case c = made(types, shape, 1);
      ASSERT_FALSE(found_on_host(c)) << types;
      EXPECT_FALSE(found_on_device(c)) << types << " " << shape;
      EXPECT_FALSE(found_on_device(c, 200)) << types << " " << shape;
    }
  for (const ProblemLine& line : stale_page_lines())
    EXPECT_FALSE(found_on_device(test::made(line, Special::stale_pages))) << to_string(line);
  EXPECT_FALSE(found_on_device(make_case(parse_problem_line("q=f32 heads=2:1 d=8 page=4 reqs=none").value()).value()));
}

// A NaN or an infinity in any one element: found if and only if attention would read it.
TEST(SimtContents, AgreesWithCheckOnEveryElement) {
  std::mt19937_64 random(7);
  std::map<std::string, int> found, missed;
  for (const std::string& types : type_combinations())
    for (int i = 0; i < 40; ++i) {
      const Case c = made(types, kShapes[i % 2], 1);
      const std::pair<const char*, const Tensor*> tensors[] = {{"query", &c.batch.query},
                                                               {"key", &c.batch.key},
                                                               {"value", &c.batch.value},
                                                               {"cache.k", &c.cache.k},
                                                               {"cache.v", &c.cache.v}};
      const auto& [name, t] = tensors[random() % std::size(tensors)];
      const auto element = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(t->num_elements()));
      // fp8 stores saturate: NaN alone is not finite there.
      semantics::store(t->data, t->dtype, element, i % 3 == 0 && !is_fp8(t->dtype) ? -INFINITY : std::nanf(""));
      const bool expected = found_on_host(c);
      EXPECT_EQ(found_on_device(c), expected) << types << " " << name << " element " << element;
      ++(expected ? found : missed)[name];
    }
  for (const char* name : {"key", "value", "cache.k", "cache.v"}) {
    EXPECT_GT(found[name], 10) << name;
    EXPECT_GT(missed[name], 10) << name;
  }
  EXPECT_GT(found["query"], 10);
}

// Finite codes whose product with the scale is not.
TEST(SimtContents, AScaleThatOverflowsIsFound) {
  for (const char* types : {"q=f32 kv=fp8_e4m3fn kscale=head vscale=tensor", "q=bf16 kv=bf16 kscale=tensor vscale=head"})
    for (const bool of_k : {true, false})
      for (const float scale : {1e30f, 3e38f}) {
        const Case c = made(types, kShapes[0], 1);
        const Tensor& t = of_k ? c.cache.k_scale : c.cache.v_scale;
        static_cast<float*>(t.data)[t.num_elements() - 1] = scale;
        EXPECT_EQ(found_on_device(c), found_on_host(c)) << types;
        EXPECT_EQ(found_on_host(c), is_fp8(c.cache.k.dtype) && scale > 1e38f) << types;
      }
}

// Scales of tokens: those of unread slots are NaN in a made case, and a bad one is found exactly where some row sees its token.
TEST(SimtContents, ScalesOfTokens) {
  std::mt19937_64 random(9);
  int found = 0, missed = 0;
  for (const char* types : {"q=f32 kv=i8 kscale=token vscale=token", "q=bf16 kv=fp8_e5m2 layout=packed vscale=token",
                            "q=f16 kv=i8 layout=hnd kscale=token vscale=head"})
    for (const char* shape : kShapes) {
      EXPECT_FALSE(found_on_device(made(types, shape, 1))) << types << " " << shape;
      for (const float bad : {std::nanf(""), 0.0f, -1.0f, INFINITY})
        for (int i = 0; i < 20; ++i) {
          const Case c = made(types, shape, 1);
          const bool of_k = c.cache.k_scale.rank == 3 && (c.cache.v_scale.rank != 3 || i % 2 == 0);
          const Tensor& t = of_k ? c.cache.k_scale : c.cache.v_scale;
          static_cast<float*>(t.data)[random() % static_cast<std::uint64_t>(t.num_elements())] = bad;
          const bool expected = found_on_host(c);
          EXPECT_EQ(found_on_device(c), expected) << types << " " << bad;
          ++(expected ? found : missed);
        }
    }
  EXPECT_GT(found, 20);
  EXPECT_GT(missed, 20);
}

// Scales of blocks: those of unread slots are NaN in a made case, and a bad one is found exactly where some row sees its token.
TEST(SimtContents, ScalesOfBlocks) {
  std::mt19937_64 random(13);
  int found = 0, missed = 0;
  constexpr const char* kBlockShapes[] = {"heads=4:2 d=32 page=8 window=20 reqs=3@20/21,5@9,0@4,1@37,30@0/0",
                                          "heads=3:1 d=96 page=5 reqs=2@70/71,9@3/12,1@200"};
  for (const char* types : {"q=f32 kv=nvfp4 kscale=head", "q=bf16 kv=mxfp4 layout=hnd", "q=f16 kv=fp8_e4m3fn/nvfp4 vscale=head",
                            "q=bf16 kv=mxfp4/bf16"})
    for (const char* shape : kBlockShapes) {
      EXPECT_FALSE(found_on_device(made(types, shape, 1))) << types << " " << shape;
      for (int i = 0; i < 40; ++i) {
        const Case c = made(types, shape, 1);
        const bool of_k = c.cache.k_block_scale.present() && (!c.cache.v_block_scale.present() || i % 2 == 0);
        const Tensor& t = of_k ? c.cache.k_block_scale : c.cache.v_block_scale;
        // NaN, and of e4m3fn a negative number and -0.
        const std::uint8_t bad_e4m3fn[] = {0x7F, 0xFF, 0x80, 0xB8};
        static_cast<std::uint8_t*>(t.data)[random() % static_cast<std::uint64_t>(t.num_elements())] =
            t.dtype == DType::fp8_e4m3fn ? bad_e4m3fn[i / 2 % 4] : 0xFF;
        const bool expected = found_on_host(c);
        EXPECT_EQ(found_on_device(c), expected) << types << " " << i;
        ++(expected ? found : missed);
      }
    }
  EXPECT_GT(found, 50);
  EXPECT_GT(missed, 50);
}

// A scale of a side that makes an infinity of the largest code: of mxfp4 with its largest scale, without any.
TEST(SimtContents, ABlockScaleThatOverflowsIsFound) {
  for (const float factor : {1.0f, 1e30f, 3e38f}) {
    const Case c = made("q=f32 kv=nvfp4 kscale=head", "heads=4:2 d=32 page=8 reqs=1@20", 1);
    static_cast<float*>(c.cache.k_scale.data)[1] = factor;
    EXPECT_EQ(found_on_host(c), factor > 1e38f);
    EXPECT_EQ(found_on_device(c), factor > 1e38f) << factor;
  }
  const Case c = made("q=f32 kv=mxfp4", "heads=4:2 d=32 page=8 reqs=1@20", 1);
  auto* const scales = static_cast<std::uint8_t*>(c.cache.k_block_scale.data);
  const std::int64_t of_page = 8 * 2;  // scales of the first page in the table
  const auto page = static_cast<const std::int32_t*>(c.batch.block_table.data)[0];
  std::memset(scales + page * of_page, 254, static_cast<std::size_t>(of_page));
  EXPECT_TRUE(found_on_host(c));
  EXPECT_TRUE(found_on_device(c));
}

// Rows of 656 bytes: a bad byte of a scale, a code or a RoPE dim is found exactly where the host finds it.
TEST(SimtContents, RowsOf656Bytes) {
  std::mt19937_64 random(11);
  int found = 0, missed = 0;
  const char* shape = "heads=4:1 d=576 dv=512 latent=1 page=8 window=20 reqs=3@20/21,1@37";
  for (const char* types : {"q=f32 kv=fp8_ds_mla", "q=bf16 kv=fp8_ds_mla layout=hnd"}) {
    EXPECT_FALSE(found_on_device(made(types, shape, 1))) << types;
    for (int i = 0; i < 90; ++i) {
      const Case c = made(types, shape, 1);
      auto* rows = static_cast<std::uint8_t*>(c.cache.k.data);
      std::uint8_t* row =
          rows + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(c.cache.k.num_elements() / 656)) * 656;
      const float bad[] = {std::nanf(""), 0.0f, -1.0f, INFINITY};
      const auto at = static_cast<std::int64_t>(random() % 512);
      if (i % 3 == 0) row[at] = 0x7F;
      if (i % 3 == 1) std::memcpy(row + 512 + 4 * (at % 4), &bad[i / 3 % 4], sizeof(float));
      if (i % 3 == 2) row[528 + 2 * (at % 64)] = 0x80, row[529 + 2 * (at % 64)] = 0x7F;
      const bool expected = found_on_host(c);
      EXPECT_EQ(found_on_device(c), expected) << types << " " << i;
      ++(expected ? found : missed);
    }
  }
  EXPECT_GT(found, 20);
  EXPECT_GT(missed, 20);
}

}  // namespace
}  // namespace quire::test
