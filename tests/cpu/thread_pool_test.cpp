// The pool runs every task exactly once, never shares a thread number, publishes results, and survives concurrent callers.
#include <gmock/gmock.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

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

TEST(ThreadPool, ARunThatIsOverDoesNotWaitForSleepers) {
  const auto pool = make_thread_pool(64);  // many more than cores: most come too late for most runs
  std::atomic<int> total{0};
  for (int i = 0; i < 500; ++i) run(*pool, 3, [&](std::int64_t, int) { ++total; });
  EXPECT_EQ(total, 1500);
}

/// New threads ask for a stack that no machine has, as long as this lives.
class NoMoreThreads {
 public:
  NoMoreThreads() {
    pthread_getattr_default_np(&before_);
    pthread_attr_t huge;
    pthread_attr_init(&huge);
    pthread_attr_setstacksize(&huge, std::size_t{1} << 46);
    pthread_setattr_default_np(&huge);
    pthread_attr_destroy(&huge);
  }
  ~NoMoreThreads() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }
  NoMoreThreads(const NoMoreThreads&) = delete;
  NoMoreThreads& operator=(const NoMoreThreads&) = delete;

 private:
  pthread_attr_t before_;
};

TEST(ThreadPool, WorksWithTheThreadsThatItGets) {
  std::unique_ptr<Executor> pool;
  {
    const NoMoreThreads limit;
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

TEST(ThreadPool, CanBeDestroyedUnused) {
  for (int i = 0; i < 20; ++i) make_thread_pool(4);
}

}  // namespace
}  // namespace quire
