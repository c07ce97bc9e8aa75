// SPDX-License-Identifier: Apache-2.0
// The pool runs every task exactly once, never shares a thread number, publishes results, and survives concurrent callers.
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "quire/executor.hpp"
#include "quire/plan.hpp"
#include "support/no_more_threads.h"

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

TEST(ThreadPool, ARunThatIsOverDoesNotWaitForSleepers) {
  const auto pool = make_thread_pool(64);  // threads far beyond the cores: most come too late for most runs
  std::atomic<int> total{0};
  for (int i = 0; i < 500; ++i) run(*pool, 3, [&](std::int64_t, int) { ++total; });
  EXPECT_EQ(total, 1500);
}

TEST(ThreadPool, WorksWithTheThreadsThatItGets) {
  std::unique_ptr<Executor> pool;
  {
    const test::NoMoreThreads limit;
    pool = make_thread_pool(4);
  }
  EXPECT_EQ(pool->num_threads(), 1);
  std::atomic<int> total{0};
  run(*pool, 10, [&](std::int64_t, int) { ++total; });
  EXPECT_EQ(total, 10);
}

TEST(ThreadPool, AForkedChildDoesTheWorkAlone) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer does not follow a fork of a threaded process";
#endif
  const auto pool = make_thread_pool(3);
  std::atomic<int> total{0};
  run(*pool, 10, [&](std::int64_t, int) { ++total; });
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);  // a child that waits for threads it does not have ends here, by a signal
    run(*pool, 10, [&](std::int64_t, int) { ++total; });
    _exit(total == 20 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

/// Forks while another thread is inside a run of `pool`; true if in the child `work` ends and returns true.
template <typename Work>
bool child_can(Executor& pool, Work&& work) {
  std::atomic<bool> inside{false}, may_end{false};
  std::thread other([&] {
    run(pool, 4, [&](std::int64_t, int) {
      inside = true;
      while (!may_end) std::this_thread::yield();
    });
  });
  while (!inside) std::this_thread::yield();
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    _exit(work() ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  may_end = true;
  other.join();
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(ThreadPool, AChildForkedDuringARunDoesTheWorkAlone) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer does not follow a fork of a threaded process";
#endif
  auto pool = make_thread_pool(3);
  const auto ten = [](Executor& executor) {
    std::atomic<int> total{0};
    run(executor, 10, [&](std::int64_t, int) { ++total; });
    return total == 10;
  };
  EXPECT_TRUE(child_can(*pool, [&] { return ten(*pool) && ten(*pool); }));
  EXPECT_TRUE(child_can(*pool, [&] { return pool.reset(), true; })) << "the child cannot destroy the pool";
  EXPECT_TRUE(child_can(default_executor(), [&] { return ten(default_executor()); }));
  EXPECT_TRUE(child_can(default_executor(), [&] {
    return default_executor().num_threads() == host_device().num_threads && ten(default_executor());
  })) << "the child's own pool has other threads";
  EXPECT_TRUE(ten(*pool) && ten(default_executor())) << "in the parent all is as it was";
}

TEST(ThreadPool, CanBeDestroyedUnused) {
  for (int i = 0; i < 20; ++i) make_thread_pool(4);
}

}  // namespace
}  // namespace quire
