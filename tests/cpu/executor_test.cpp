// SPDX-License-Identifier: Apache-2.0
// Callers' executors: one that skips, repeats, invents or mixes up tasks and thread numbers fails the call; nothing crashes, and
// nobody's answer is silently incomplete.
#include <gmock/gmock.h>

#include <vector>

#include "backend/cpu/parallel.h"
#include "quire/attention.hpp"
#include "quire/tools/capture.hpp"

namespace quire {
namespace {

using testing::HasSubstr;

using Run = std::function<void(std::int64_t num_tasks, const std::function<void(std::int64_t, int)>& task)>;

class Scripted final : public Executor {
 public:
  Scripted(int num_threads, Run run) : num_threads_(num_threads), run_(std::move(run)) {}
  int num_threads() const noexcept override { return num_threads_; }
  void run(std::int64_t num_tasks, void (*task)(void*, std::int64_t, int), void* context) override {
    run_(num_tasks, [&](std::int64_t i, int thread) { task(context, i, thread); });
  }

 private:
  int num_threads_;
  Run run_;
};

struct Broken {
  const char* name;
  const char* message;
  Run run;
};

/// Runs the tasks that `from` and `to` bound, one after the other.
void in_order(std::int64_t from, std::int64_t to, const std::function<void(std::int64_t, int)>& task) {
  for (std::int64_t i = from; i < to; ++i) task(i, 0);
}

const std::vector<Broken>& broken_executors() {
  static const std::vector<Broken> list = {
      {"even tasks twice, odd ones never", "ran task 0 of ",
       [](std::int64_t n, auto& task) {
         for (std::int64_t i = 0; i < n; ++i) task(i / 2 * 2, 0);
       }},
      {"the last task never", "did not run task ", [](std::int64_t n, auto& task) { in_order(0, n - 1, task); }},
      {"no task at all", "did not run task 0 of ", [](std::int64_t, auto&) {}},
      {"every task once, and one once more", "ran task 1 of ",
       [](std::int64_t n, auto& task) {
         in_order(0, n, task);
         task(1, 0);
       }},
      {"a task past the end", "expected 0 to ", [](std::int64_t n, auto& task) { in_order(0, n + 1, task); }},
      {"a task before the first", "ran task -1, expected 0 to ", [](std::int64_t n, auto& task) { in_order(-1, n, task); }},
      {"thread num_threads", "ran task 1 as thread 2, expected 0 to num_threads - 1 = 1",
       [](std::int64_t n, auto& task) {
         for (std::int64_t i = 0; i < n; ++i) task(i, i == 1 ? 2 : 0);
       }},
      {"a thread far away", "as thread 1000000, expected 0 to num_threads - 1 = 1",
       [](std::int64_t n, auto& task) {
         for (std::int64_t i = 0; i < n; ++i) task(i, 1000000);
       }},
      {"a negative thread", "as thread -1, expected",
       [](std::int64_t n, auto& task) {
         for (std::int64_t i = 0; i < n; ++i) task(i, -1);
       }},
  };
  return list;
}

constexpr const char* kLine = "q=bf16 heads=8:2 d=64 page=16 reqs=70@33,1@2500,0@9,33@40 lse=1 seed=3";

/// A made case, its plan for two threads, and a workspace.
struct Call {
  Case data = make_case(parse_problem_line(kLine).value()).value();
  Plan plan = quire::plan(data.batch, data.cache, data.options, {.num_threads = 2}).value();
  std::vector<std::byte> memory = std::vector<std::byte>(workspace_bytes(plan) + 64);

  Status attend(Executor& executor) {
    std::byte* at = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
    return quire::attend(plan, data.batch, data.cache, data.options, {at, workspace_bytes(plan)}, {.executor = &executor});
  }
  Status append(Executor& executor) {
    std::vector<std::int64_t> slots(static_cast<std::size_t>(data.batch.query.shape[0]));
    for (std::size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<std::int64_t>(i);
    Tensor rows = data.batch.query;
    rows.shape[1] = num_kv_heads(data.cache);
    return quire::append(data.cache, rows, rows, Tensor::contiguous(slots.data(), DType::i64, slots.size()),
                         {.executor = &executor});
  }
  Status merge(Executor& executor) {
    const Batch& b = data.batch;
    std::vector<float> lse(static_cast<std::size_t>(b.lse.num_elements()));
    const Tensor weights = Tensor::contiguous(lse.data(), DType::f32, b.lse.shape[0], b.lse.shape[1]);
    return quire::merge(b.query, weights, b.query, weights, b.output, {}, {.executor = &executor});
  }
};

void expect_refused(const Status& status, const char* call, const Broken& broken) {
  EXPECT_EQ(status.code(), Code::invalid_argument) << call << ": " << broken.name;
  EXPECT_THAT(status.message(), testing::StartsWith(std::string(call) + ": the executor ")) << broken.name;
  EXPECT_THAT(status.message(), HasSubstr(broken.message)) << broken.name;
}

TEST(Executor, WhatIsNotEveryTaskOnceFailsTheCall) {
  for (const Broken& broken : broken_executors()) {
    Call call;
    ASSERT_GT(call.plan.num_items(), 4);
    Scripted executor(2, broken.run);
    expect_refused(call.attend(executor), "attend", broken);
    expect_refused(call.append(executor), "append", broken);
    expect_refused(call.merge(executor), "merge", broken);
  }
}

TEST(Executor, AnyOrderIsFine) {
  Scripted executor(2, [](std::int64_t n, auto& task) {
    for (std::int64_t i = n; i-- > 0;) task(i, static_cast<int>(i % 2));
  });
  Call call;
  for (const Status& status : {call.attend(executor), call.append(executor), call.merge(executor)})
    EXPECT_TRUE(status.ok()) << status.message();
}

TEST(Executor, NumberOfThreadsIsWithinBounds) {
  for (const int num_threads : {0, -1, kMaxThreads + 1, INT32_MAX}) {
    Scripted executor(num_threads, [](std::int64_t n, auto& task) { in_order(0, n, task); });
    Call call;
    for (const Status& status : {call.attend(executor), call.append(executor), call.merge(executor)}) {
      EXPECT_EQ(status.code(), Code::invalid_argument) << num_threads;
      EXPECT_THAT(status.message(), HasSubstr("the executor has " + std::to_string(num_threads) + " threads"));
    }
  }
}

/// Task 1 begins as thread 0 while task 0, which is that thread, is at work.
TEST(Executor, AThreadNumberInUseIsNotGivenAgain) {
  std::function<void(std::int64_t, int)> again;
  Scripted executor(2, [&](std::int64_t n, auto& task) {
    again = task;
    in_order(0, n, task);
  });
  std::vector<int> seen(4);
  auto body = [&](std::int64_t i, int) {
    ++seen[static_cast<std::size_t>(i)];
    if (i == 0) again(1, 0);
  };
  const Status status = cpu::parallel_for("attend", executor, 4, body);
  EXPECT_EQ(status.code(), Code::invalid_argument);
  EXPECT_THAT(status.message(), HasSubstr("ran task 1 as thread 0 while that thread ran another"));
  EXPECT_THAT(seen, testing::Each(1));
}

/// run() may return while another thread is still inside a task.
TEST(Executor, ATaskThatIsNotDoneIsNotCounted) {
  cpu::RollCall roll_call(2, 2);
  ASSERT_TRUE(roll_call.made());
  ASSERT_TRUE(roll_call.begins(0, 0) && roll_call.begins(1, 1));
  roll_call.finished(0, 0);
  EXPECT_THAT(roll_call.verdict("attend").message(), HasSubstr("the executor returned before task 1 of 2 was done"));
  roll_call.finished(1, 1);
  EXPECT_TRUE(roll_call.verdict("attend").ok());
}

}  // namespace
}  // namespace quire
