// The pool runs every task exactly once, never shares a thread number, publishes results, and survives concurrent callers.
#include <gmock/gmock.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "quire/executor.hpp"

namespace quire {
namespace {

template <typename F>
void run(Executor& pool, std::int64_t count, F f) {
  pool.run(count, [](void* context, std::int64_t i, int thread) { (*static_cast<F*>(context))(i, thread); }, &f);
}

TEST(ThreadPool, EveryTaskOnce) {
  for (int threads : {1, 2, 5}) {
    const auto pool = make_thread_pool(threads);
    EXPECT_EQ(pool->num_threads(), threads);
    for (int count : {0, 1, 2, 3, 100}) {
      for (int repeat = 0; repeat < 50; ++repeat) {
        std::vector<int> seen(static_cast<std::size_t>(count));  // plain ints: a second run of a task would be a race
        run(*pool, count, [&](std::int64_t i, int) { ++seen[static_cast<std::size_t>(i)]; });
        ASSERT_THAT(seen, testing::Each(1));
      }
    }
  }
}

TEST(ThreadPool, ThreadNumbersAreNeverShared) {
  const auto pool = make_thread_pool(3);
  std::vector<std::atomic<int>> inside(3);
  std::atomic<bool> shared{false};
  run(*pool, 2000, [&](std::int64_t, int thread) {
    if (inside[static_cast<std::size_t>(thread)].fetch_add(1) != 0) shared = true;
    for (int i = 0; i < 20; ++i) std::atomic_signal_fence(std::memory_order_seq_cst);
    inside[static_cast<std::size_t>(thread)].fetch_sub(1);
  });
  EXPECT_FALSE(shared);
}

TEST(ThreadPool, ConcurrentCallersQueue) {
  const auto pool = make_thread_pool(2);
  std::atomic<int> total{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c)
    callers.emplace_back([&] {
      for (int i = 0; i < 100; ++i) run(*pool, 10, [&](std::int64_t, int) { ++total; });
    });
  for (std::thread& t : callers) t.join();
  EXPECT_EQ(total, 4 * 100 * 10);
}

TEST(ThreadPool, WakesAfterSleeping) {
  const auto pool = make_thread_pool(2);
  for (int i = 0; i < 3; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::atomic<int> count{0};
    run(*pool, 8, [&](std::int64_t, int) { ++count; });
    EXPECT_EQ(count, 8);
  }
}

TEST(ThreadPool, CanBeDestroyedUnused) {
  for (int i = 0; i < 20; ++i) make_thread_pool(4);
}

}  // namespace
}  // namespace quire
