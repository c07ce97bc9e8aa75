// SPDX-License-Identifier: Apache-2.0
// The stand-in itself: what it lets pass, and each mistake of a kernel that it must name.
#include "simt/machine.h"

#include <gmock/gmock.h>

#include <numeric>
#include <vector>

#include "backend/gpu/runtime.h"

namespace quire::simt {
namespace {

using testing::HasSubstr;

TEST(SimtMachine, BarriersSharedMemoryAndShufflesOfEachWaveSize) {
  for (const int wave : {32, 64})
    for (const std::uint64_t seed : {0, 1, 2}) {
      std::vector<float> sums(3 * 256, 0.0f);
      const auto kernel = [&] {
        gpu::SharedArea area;
        auto* numbers = area.take<float>(256);
        const int t = gpu::thread_index();
        EXPECT_NE(numbers[t], numbers[t]) << "shared memory begins as NaN";
        gpu::block_barrier();
        numbers[255 - t] = static_cast<float>(t);
        gpu::block_barrier();
        float sum = numbers[t];
        for (int mask = 1; mask < wave; mask *= 2) sum += gpu::shuffle_xor(sum, mask);
        sums[static_cast<std::size_t>(gpu::block_index() * 256 + t)] = sum;
      };
      EXPECT_EQ(run({.blocks = 3, .threads = 256, .wave = wave, .shared_bytes = 1024, .seed = seed}, kernel), "");
      for (std::size_t i = 0; i < sums.size(); ++i) {
        const int first = 255 - static_cast<int>(i % 256) / wave * wave;  // numbers[t] = 255 - t
        const int sum = wave * (2 * first - wave + 1) / 2;
        EXPECT_EQ(sums[i], static_cast<float>(sum)) << "wave " << wave << " thread " << i;
      }
    }
}

TEST(SimtMachine, ThreadsMayLeaveBeforeABarrier) {
  int after = 0;
  const auto kernel = [&] {
    if (gpu::thread_index() % 3 == 0) return;
    gpu::block_barrier();
    ++after;
  };
  EXPECT_EQ(run({.threads = 96}, kernel), "");
  EXPECT_EQ(after, 64);
}

TEST(SimtMachine, AtomicsHandOutEachNumberOnce) {
  std::int32_t counter = 0;
  std::vector<int> seen(512, 0);
  const auto kernel = [&] { ++seen[static_cast<std::size_t>(gpu::atomic_add(&counter, 1))]; };
  EXPECT_EQ(run({.blocks = 2, .threads = 256, .seed = 5}, kernel), "");
  EXPECT_EQ(std::accumulate(seen.begin(), seen.end(), 0), 512);
  EXPECT_THAT(seen, testing::Each(1));
}

TEST(SimtMachine, StoresForOthersAreSeenAfterTheirFence) {
  float before = 0.0f, after = 0.0f, left = 0.0f;
  float at[2] = {1.0f, 1.0f};
  const auto kernel = [&] {
    if (gpu::thread_index() == 0) gpu::store_for_others(&at[0], 2.0f);
    if (gpu::thread_index() == 0) gpu::store_for_others(&at[1], 2.0f);
    gpu::block_barrier();
    if (gpu::thread_index() == 1) before = at[0];
    gpu::block_barrier();
    if (gpu::thread_index() == 0) gpu::device_fence();
    gpu::block_barrier();
    if (gpu::thread_index() == 1) after = at[0];
    if (gpu::thread_index() == 0) gpu::store_for_others(&at[1], 3.0f);
    gpu::block_barrier();
    if (gpu::thread_index() == 1) left = at[1];
  };
  EXPECT_EQ(run({.threads = 32}, kernel), "");
  EXPECT_EQ(before, 1.0f);
  EXPECT_EQ(after, 2.0f);
  EXPECT_EQ(left, 2.0f);
  EXPECT_EQ(at[1], 3.0f) << "the end of a kernel is a fence";
}

TEST(SimtMachine, NamesWhatIsWrong) {
  const auto error_of = [](const std::function<void()>& kernel) { return run({.threads = 64, .shared_bytes = 16}, kernel); };
  EXPECT_THAT(error_of([] {
                if (gpu::thread_index() < 32) gpu::shuffle_xor(1.0f, gpu::thread_index() == 3 ? 0 : 1);
                if (gpu::thread_index() == 40) gpu::shuffle_xor(1.0f, 1);
              }),
              HasSubstr("deadlock: 1 threads"));
  // Not within a macro, where every call has the same line.
  const auto two_shuffles = [] {
    if (gpu::thread_index() % 2 == 0) {
      gpu::shuffle_xor(1.0f, 1);
    } else {
      gpu::shuffle_xor(2.0f, 1);
    }
  };
  EXPECT_THAT(error_of(two_shuffles), HasSubstr("lanes of one wave at different shuffles"));
  const auto two_barriers = [] {
    if (gpu::thread_index() == 0) {  // NOLINT(bugprone-branch-clone): a barrier is known by its line
      gpu::block_barrier();
    } else {
      gpu::block_barrier();
    }
  };
  EXPECT_THAT(error_of(two_barriers), HasSubstr("while others wait at machine_test.cpp"));
  EXPECT_THAT(error_of([] { gpu::SharedArea().take<float>(5); }), HasSubstr("32 bytes of shared memory taken, 16 declared"));
  EXPECT_THAT(error_of([] { gpu::SharedArea().take<float>(gpu::thread_index() == 9 ? 3 : 4); }), HasSubstr("different pieces"));
#if !defined(__SANITIZE_ADDRESS__)  // AddressSanitizer ends the program there
  EXPECT_THAT(error_of([] {
                gpu::SharedArea area;
                area.take<float>(4)[gpu::thread_index() == 0 ? 4 : 0] = 1.0f;
              }),
              HasSubstr("outside a shared piece"));
#endif
  EXPECT_EQ(error_of([] {}), "") << "and nothing of it stays";
}

}  // namespace
}  // namespace quire::simt
