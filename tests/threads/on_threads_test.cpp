// SPDX-License-Identifier: Apache-2.0
// The loop that diagnose, verify, the reference and captures share: everything runs once, failures wait for all threads, and a
// system that grants no thread only makes it slower.
#include "threads/on_threads.h"

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "quire/interrupt.hpp"
#include "quire/tools/capture.hpp"
#include "quire/tools/diagnose.hpp"
#include "quire/tools/faults.hpp"
#include "quire/tools/verify.hpp"
#include "support/no_more_threads.h"

namespace quire {
namespace {

TEST(ForEachIndex, EveryIndexOnce) {
  for (const std::size_t threads : {0, 1, 2, 7})
    for (const std::size_t count : {0, 1, 2, 100}) {
      std::vector<int> seen(count);  // plain ints: an index that runs twice would be a race
      threads::for_each_index(count, threads, [&](std::size_t i) { ++seen[i]; });
      EXPECT_THAT(seen, testing::Each(1)) << threads;
    }
}

TEST(OnThreads, RunsOnAllAtTheSameTime) {
  std::atomic<int> inside{0};
  std::mutex mutex;
  std::set<std::thread::id> ids;
  threads::on_threads(3, [&] {
    ++inside;
    while (inside < 3) std::this_thread::yield();
    const std::lock_guard lock(mutex);
    ids.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(ids.size(), 3u);
}

TEST(ForEachIndex, AnExceptionWaitsForAllThreadsAndStopsTheRest) {
  std::atomic<int> running{0}, begun{0};
  const auto work = [&](std::size_t i) {
    ++begun;
    ++running;
    if (i == 3) {
      --running;
      throw std::runtime_error("index 3");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    --running;
  };
  try {
    threads::for_each_index(100000, 4, work);
    FAIL() << "the exception was lost";
  } catch (const std::runtime_error& e) {
    EXPECT_STREQ(e.what(), "index 3");
  }
  EXPECT_EQ(running, 0) << "a thread outlived the call";
  EXPECT_LT(begun, 2000);
}

TEST(ForEachIndex, WithoutThreadsTheCallerDoesItAll) {
  const test::NoMoreThreads limit;
  std::vector<int> seen(50);
  const auto caller = std::this_thread::get_id();
  threads::for_each_index(seen.size(), 8, [&](std::size_t i) {
    ++seen[i];
    EXPECT_EQ(std::this_thread::get_id(), caller);
  });
  EXPECT_THAT(seen, testing::Each(1));
}

TEST(ForEachIndex, WithFewThreadsTheyShareItAll) {
  const test::FewThreads limit(2);
  std::mutex mutex;
  std::set<std::thread::id> ids;
  std::vector<int> seen(200);
  threads::for_each_index(seen.size(), 8, [&](std::size_t i) {
    ++seen[i];
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const std::lock_guard lock(mutex);
    ids.insert(std::this_thread::get_id());
  });
  EXPECT_THAT(seen, testing::Each(1));
  EXPECT_GE(ids.size(), 2u) << "the limit leaves no thread: the test shows nothing";
  EXPECT_LE(ids.size(), 3u);
}

/// Large enough that the reference starts threads.
constexpr const char* kLine = "q=f32 heads=8:2 d=64 page=16 reqs=64@300,1@700,3@90 seed=5";

TEST(WithoutThreads, ReferenceDiagnoseAndVerifyGiveTheSameAnswer) {
  Case c = make_case(parse_problem_line(kLine).value()).value();
  ASSERT_TRUE(attend_with_fault(c.batch, c.cache, c.options, "scale_from_query_heads").ok());
  c.observed = c.batch.output;
  VerifyOptions few;
  few.matrices = {};
  few.lines = {"q=f32 heads=2:1 d=8 page=4 reqs=3@5 seed=1"};
  const auto answers = [&] {
    const Result<Reference> r = reference(c.batch, c.cache, c.options);
    EXPECT_TRUE(r.ok()) << r.status().message();
    const Result<Diagnosis> d = diagnose(c, {.full = false, .seconds = 60, .progress = {}});
    EXPECT_TRUE(d.ok()) << d.status().message();
    const Result<Verdict> v = verify(backend_target("cpu_generic", 4).value(), few);
    EXPECT_TRUE(v.ok()) << v.status().message();
    return std::tuple(r.ok() ? r->out : std::vector<double>(), name(d->verdict), name(v->verdict));
  };
  const auto with_threads = answers();
  {
    const test::NoMoreThreads limit;
    EXPECT_EQ(answers(), with_threads);
  }
  const test::FewThreads limit(1);
  EXPECT_EQ(answers(), with_threads);
}

bool is_set(void* flag) { return static_cast<std::atomic<bool>*>(flag)->load(); }

/// Steps of a loop without end, on some threads, until `end` is set after 50 ms by somebody else.
void run_until_ended(std::size_t num_threads) {
  std::atomic<bool> end{false};
  std::atomic<int> begun{0};
  std::jthread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    end = true;
  });
  const InterruptScope scope(&is_set, &end);
  const auto step = [&](std::size_t) {
    ++begun;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  EXPECT_THROW(threads::for_each_index(std::size_t{1} << 40, num_threads, step), Interrupted);
  EXPECT_GT(begun, 0);
}

TEST(Interrupt, EndsALoopOnAnyNumberOfThreads) {
  for (const std::size_t num_threads : {1, 2, 5}) run_until_ended(num_threads);
  std::atomic<int> steps{0};
  threads::for_each_index(100, 3, [&](std::size_t) { ++steps; });
  EXPECT_EQ(steps, 100) << "no scope is left";
}

TEST(Interrupt, OfTheCallingThreadIsAskedWhileItWaitsForOthers) {
  std::atomic<bool> end{true};
  const auto caller = std::this_thread::get_id();
  const InterruptScope scope(&is_set, &end);
  EXPECT_THROW(threads::on_threads(2,
                                   [&] {
                                     if (std::this_thread::get_id() == caller) return;  // the other one works on
                                     for (;; std::this_thread::sleep_for(std::chrono::milliseconds(1))) end_if_interrupted();
                                   }),
               Interrupted);
}

TEST(Interrupt, OfAnOuterScopeEndsTheInnerOne) {
  std::atomic<bool> outer_end{true}, inner_end{false};
  const InterruptScope outer(&is_set, &outer_end);
  InterruptScope inner(&is_set, &inner_end);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_TRUE(inner.ended());
}

}  // namespace
}  // namespace quire
