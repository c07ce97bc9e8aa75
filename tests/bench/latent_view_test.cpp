// SPDX-License-Identifier: Apache-2.0
// V in K's rows stays there when K is copied to a device.
#include <gtest/gtest.h>

#include "cases/device_case.h"
#include "quire/capture.hpp"
#include "quire/problem.hpp"

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

}  // namespace
}  // namespace quire
