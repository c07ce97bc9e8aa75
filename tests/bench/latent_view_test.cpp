// SPDX-License-Identifier: Apache-2.0
// V in K's rows stays there when K is copied, and a problem says so.
#include <gtest/gtest.h>

#include "bench/memory.h"
#include "cases/device_case.h"
#include "quire/problem.hpp"
#include "quire/tools/capture.hpp"

namespace quire {
namespace {

Case made(const char* line) { return make_case(parse_problem_line(line).value()).value(); }

TEST(LatentView, IsFoundByItsBytes) {
  const Case latent = made("q=bf16 heads=4:1 d=24 dv=16 latent=1 page=8 reqs=1@20");
  const Case apart = made("q=bf16 heads=4:1 d=24 dv=16 page=8 reqs=1@20");
  EXPECT_TRUE(cases::is_within(latent.cache.v, latent.cache.k));
  EXPECT_FALSE(cases::is_within(latent.cache.k, latent.cache.v)) << "K is longer";
  EXPECT_FALSE(cases::is_within(apart.cache.v, apart.cache.k));
  EXPECT_FALSE(cases::is_within(Tensor{}, latent.cache.k));
}

TEST(LatentView, MovesWithItsTensor) {
  const Case latent = made("q=bf16 heads=4:1 d=24 dv=16 latent=1 page=8 reqs=1@20");
  Tensor moved = latent.cache.k;
  moved.data = static_cast<std::byte*>(latent.cache.k.data) + 4096;
  moved.memory = Memory::cuda;
  const Tensor v = cases::moved_with(latent.cache.v, latent.cache.k, moved);
  EXPECT_EQ(v.data, static_cast<std::byte*>(latent.cache.v.data) + 4096);
  EXPECT_EQ(v.memory, Memory::cuda);
  EXPECT_EQ(v.shape, latent.cache.v.shape);
}

TEST(LatentView, IsAFactOfTheProblem) {
  for (const char* line : {"q=bf16 heads=4:2 d=24 dv=16 latent=1 page=8 reqs=1@20 seed=1",
                           "q=bf16 kv=mxfp4 heads=4:2 d=64 dv=32 latent=1 page=8 layout=hnd reqs=1@20 seed=1",
                           "q=bf16 kv=fp8_ds_mla heads=4:1 d=576 dv=512 latent=1 page=8 reqs=1@20 seed=1",
                           "q=bf16 heads=4:2 d=24 page=8 reqs=1@20 seed=1"}) {
    const Case c = made(line);
    EXPECT_EQ(problem_of(c.batch, c.cache, c.options), parse_problem_line(line)->problem) << line;
  }
  // K and V side by side in rows of 2 * 16 elements: neighbours, and no view.
  Case c = made("q=bf16 heads=4:1 d=32 dv=16 latent=1 page=8 reqs=1@20");
  c.cache.k.shape[3] = 16;
  c.cache.v.data = static_cast<std::byte*>(c.cache.k.data) + 16 * 2;
  EXPECT_FALSE(problem_of(c.batch, c.cache, c.options).latent);
  c.cache.v.data = static_cast<std::byte*>(c.cache.k.data) + 2;
  EXPECT_FALSE(problem_of(c.batch, c.cache, c.options).latent) << "one dim beyond the rows of K";
  c.cache.k.shape[3] = 17;
  EXPECT_TRUE(problem_of(c.batch, c.cache, c.options).latent) << "the last dims of K";
}

TEST(LatentView, IsKeptByCopiesOfTheCache) {
  const Case c = made("q=bf16 kv=mxfp4 heads=4:2 d=64 dv=32 latent=1 page=8 reqs=1@20");
  bench_detail::Rotation rotation(c.cache, 2);
  ASSERT_EQ(rotation.copies(), 2);
  for (int turn = 0; turn < 2; ++turn) {
    const KVCache& copy = rotation.next();
    EXPECT_NE(copy.k.data, c.cache.k.data);
    EXPECT_EQ(copy.v.data, copy.k.data);
    EXPECT_NE(copy.k_block_scale.data, c.cache.k_block_scale.data) << "scales are as cold as codes";
    EXPECT_EQ(copy.v_block_scale.data, copy.k_block_scale.data);
  }
  const Case apart = made("q=bf16 kv=i8 kscale=token vscale=token heads=4:2 d=64 page=8 reqs=1@20");
  bench_detail::Rotation other(apart.cache, 1);
  const KVCache& copy = other.next();
  for (const Tensor KVCache::* member : {&KVCache::k, &KVCache::v, &KVCache::k_scale, &KVCache::v_scale})
    EXPECT_NE((copy.*member).data, (apart.cache.*member).data);
}

}  // namespace
}  // namespace quire
