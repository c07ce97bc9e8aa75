// SPDX-License-Identifier: Apache-2.0
// derive_cached_lens() on the stand-in: every index type and stride, more requests than threads, and nothing beside its elements.
#include <gtest/gtest.h>

#include "backend/gpu/cached_lens.h"
#include "simt/device.h"
#include "support/small_case.h"

namespace quire::test {
namespace {

constexpr std::int64_t kReqs = 300;

/// Query lengths 0 to 4; seq_lens from there on.
std::int64_t query_len(std::int64_t r) { return r * 7 % 5; }
std::int64_t seq_len(std::int64_t r) { return query_len(r) + r * 13 % 900; }

/// Differences from the formula, of all elements.
int differences(DType starts_type, DType lens_type, bool gap, const std::function<void(gpu::CachedLensArgs&)>& tamper = {}) {
  Storage storage;
  const Tensor starts = make_tensor(storage, starts_type, {kReqs + 1}, gap), lens = make_tensor(storage, lens_type, {kReqs}, gap),
               cached = make_tensor(storage, lens_type, {kReqs}, gap);
  set_index(starts, {0}, 0);
  for (std::int64_t r = 0, sum = 0; r < kReqs; ++r) {
    set_index(starts, {r + 1}, sum += query_len(r));
    set_index(lens, {r}, seq_len(r));
    set_index(cached, {r}, -7);
  }
  gpu::CachedLensArgs a{.num_reqs = kReqs,
                        .query_start_loc = semantics::index_view(starts),
                        .seq_lens = semantics::index_view(lens),
                        .cached_lens = cached.data,
                        .stride = cached.stride[0],
                        .wide = lens_type == DType::i64};
  if (tamper) tamper(a);
  const simt::Launch launch{.blocks = 2, .threads = gpu::kCachedLensThreads, .seed = 3};
  EXPECT_EQ(simt::run(launch, [&] { gpu::derive_cached_lens(a); }), "");
  int found = 0;
  const semantics::IndexView got = semantics::index_view(cached);
  for (std::int64_t r = 0; r < kReqs; ++r) found += got[r] != (query_len(r) == 1 ? seq_len(r) : seq_len(r) - query_len(r));
  return found;
}

TEST(SimtCachedLens, FollowTheFormula) {
  for (const DType starts : {DType::i32, DType::i64})
    for (const DType lens : {DType::i32, DType::i64})
      for (const bool gap : {false, true}) EXPECT_EQ(differences(starts, lens, gap), 0) << name(starts) << name(lens) << gap;
}

TEST(SimtCachedLens, PlantedFaultsAreFound) {
  EXPECT_GT(differences(DType::i32, DType::i32, false, [](gpu::CachedLensArgs& a) { a.num_reqs -= 1; }), 0);
  EXPECT_GT(differences(DType::i32, DType::i32, true, [](gpu::CachedLensArgs& a) { a.stride = 1; }), 0);
  EXPECT_GT(differences(DType::i32, DType::i64, false, [](gpu::CachedLensArgs& a) { a.wide = false; }), 0);
  EXPECT_GT(differences(DType::i32, DType::i32, false, [](gpu::CachedLensArgs& a) { a.query_start_loc.stride = 0; }), 0);
}

}  // namespace
}  // namespace quire::test
