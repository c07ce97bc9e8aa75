// SPDX-License-Identifier: Apache-2.0
// merge(): against fp64, exact on empty sides whatever they hold, commutative to the bit, and equal to attending in one go.
#include <gmock/gmock.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/move_cases.h"
#include "quire/attention.hpp"
#include "semantics/dtype.h"
#include "support/small_case.h"

namespace quire::test {
namespace {

constexpr std::int64_t kTokens = 9, kHeads = 5, kDim = 24;

struct Partial {
  Tensor out, lse;
};

Partial make_partial(Storage& storage, DType dtype, std::uint64_t seed, bool gap = false) {
  Partial p{make_tensor(storage, dtype, {kTokens, kHeads, kDim}, gap), make_tensor(storage, DType::f32, {kTokens, kHeads}, gap)};
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  for (std::int64_t t = 0; t < kTokens; ++t)
    for (std::int64_t h = 0; h < kHeads; ++h) {
      static_cast<float*>(p.lse.data)[offset(p.lse, {t, h})] = 3.0f * normal(random);
      for (std::int64_t d = 0; d < kDim; ++d) semantics::store(p.out.data, dtype, offset(p.out, {t, h, d}), normal(random));
    }
  return p;
}

float at(const Tensor& t, std::initializer_list<std::int64_t> index) {
  return semantics::load(t.data, t.dtype, offset(t, index));
}

void set_empty(const Partial& p, std::int64_t token, float garbage) {
  for (std::int64_t h = 0; h < kHeads; ++h) {
    static_cast<float*>(p.lse.data)[offset(p.lse, {token, h})] = -INFINITY;
    for (std::int64_t d = 0; d < kDim; ++d) semantics::store(p.out.data, p.out.dtype, offset(p.out, {token, h, d}), garbage);
  }
}

TEST(Merge, MatchesFp64ForEveryTypeAndStride) {
  for (DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (bool gap : {false, true}) {
      Storage storage;
      const Partial a = make_partial(storage, dtype, 1, gap), b = make_partial(storage, dtype, 2, gap),
                    out = make_partial(storage, dtype, 3, gap);
      ASSERT_TRUE(merge(a.out, a.lse, b.out, b.lse, out.out, out.lse).ok());
      for (std::int64_t t = 0; t < kTokens; ++t)
        for (std::int64_t h = 0; h < kHeads; ++h) {
          const MergedLse merged(at(a.lse, {t, h}), at(b.lse, {t, h}));
          EXPECT_NEAR(at(out.lse, {t, h}), merged.value, merged.tolerance);
          for (std::int64_t d = 0; d < kDim; ++d) {
            const double x = at(a.out, {t, h, d}), y = at(b.out, {t, h, d});
            EXPECT_NEAR(at(out.out, {t, h, d}), merged.element(x, y), merged.element_tolerance(x, y, dtype)) << name(dtype);
          }
        }
    }
}

TEST(Merge, EmptySidesAreExactWhateverTheyHold) {
  for (float garbage : {0.0f, static_cast<float>(NAN), INFINITY, 1e30f}) {
    Storage storage;
    const Partial a = make_partial(storage, DType::f32, 1), b = make_partial(storage, DType::f32, 2),
                  out = make_partial(storage, DType::f32, 3);
    set_empty(a, 0, garbage);
    set_empty(b, 1, garbage);
    set_empty(a, 2, garbage);
    set_empty(b, 2, garbage);
    ASSERT_TRUE(merge(a.out, a.lse, b.out, b.lse, out.out, out.lse).ok());
    for (std::int64_t h = 0; h < kHeads; ++h) {
      EXPECT_EQ(at(out.lse, {0, h}), at(b.lse, {0, h}));
      EXPECT_EQ(at(out.lse, {1, h}), at(a.lse, {1, h}));
      EXPECT_EQ(at(out.lse, {2, h}), -INFINITY);
      for (std::int64_t d = 0; d < kDim; ++d) {
        EXPECT_EQ(at(out.out, {0, h, d}), at(b.out, {0, h, d}));
        EXPECT_EQ(at(out.out, {1, h, d}), at(a.out, {1, h, d}));
        EXPECT_EQ(at(out.out, {2, h, d}), 0.0f);
      }
    }
  }
}

TEST(Merge, CommutesToTheBitAndMayAliasAnInput) {
  Storage storage;
  const Partial a = make_partial(storage, DType::f32, 1), b = make_partial(storage, DType::f32, 2);
  const Partial ab = make_partial(storage, DType::f32, 3), ba = make_partial(storage, DType::f32, 4);
  ASSERT_TRUE(merge(a.out, a.lse, b.out, b.lse, ab.out, ab.lse).ok());
  ASSERT_TRUE(merge(b.out, b.lse, a.out, a.lse, ba.out, ba.lse).ok());
  ASSERT_TRUE(merge(a.out, a.lse, b.out, b.lse, a.out, a.lse).ok());
  for (std::int64_t t = 0; t < kTokens; ++t)
    for (std::int64_t h = 0; h < kHeads; ++h)
      for (std::int64_t d = 0; d < kDim; ++d) {
        EXPECT_EQ(at(ab.out, {t, h, d}), at(ba.out, {t, h, d}));
        EXPECT_EQ(at(ab.out, {t, h, d}), at(a.out, {t, h, d}));
      }
}

TEST(Merge, TheLseIsOptionalAndNanSurvives) {
  Storage storage;
  const Partial a = make_partial(storage, DType::bf16, 1), b = make_partial(storage, DType::bf16, 2),
                out = make_partial(storage, DType::bf16, 3);
  semantics::store(a.out.data, DType::bf16, offset(a.out, {4, 1, 7}), NAN);
  ASSERT_TRUE(merge(a.out, a.lse, b.out, b.lse, out.out, Tensor{}).ok());
  EXPECT_TRUE(std::isnan(at(out.out, {4, 1, 7})));
  EXPECT_FALSE(std::isnan(at(out.out, {4, 1, 8})));
}

}  // namespace
}  // namespace quire::test
