// SPDX-License-Identifier: Apache-2.0
// Memory that runs out at any allocation of a public call: the call does not throw, and its status is out_of_memory.
//
// The operator new of this program can be told to count down. At zero it finds no more memory until the call has returned.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <limits>
#include <new>
#include <string>
#include <vector>

#include "quire/attention.hpp"
#include "quire/cascade.hpp"
#include "quire/contract.hpp"
#include "quire/page_pool.hpp"
#include "quire/shards.hpp"
#include "quire/tools/capture.hpp"
#include "quire/tools/diagnose.hpp"
#include "quire/tools/faults.hpp"
#include "quire/workspace.hpp"

namespace {

std::atomic<std::int64_t> g_left{std::numeric_limits<std::int64_t>::max()};  ///< allocations until there is no more memory

}  // namespace

void* operator new(std::size_t bytes) {
  if (g_left.fetch_sub(1) <= 0) throw std::bad_alloc();
  if (void* made = std::malloc(bytes > 0 ? bytes : 1)) return made;
  throw std::bad_alloc();
}
// AddressSanitizer has an own one, whose memory delete() below must not free.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return operator new(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* made) noexcept { std::free(made); }
void operator delete(void* made, std::size_t) noexcept { std::free(made); }

namespace quire::test {
namespace {

/// Runs `call` with room for `n` allocations.
Status with_room_for(std::int64_t n, const std::function<Status()>& call, bool& threw) {
  g_left = n;
  Status status;
  try {
    status = call();
    threw = false;
  } catch (...) {
    threw = true;
  }
  g_left = std::numeric_limits<std::int64_t>::max();
  return status;
}

/// Gives a call more and more room until it succeeds.
void expect_out_of_memory_until_it_fits(const char* name, const std::function<Status()>& call) {
  std::int64_t failures = 0;
  for (std::int64_t n = 0;; n += 1 + n / 16, ++failures) {
    ASSERT_LT(n, 10'000'000) << name;
    bool threw = false;
    const Status status = with_room_for(n, call, threw);
    ASSERT_FALSE(threw) << name << " throws after " << n << " allocations";
    if (status.ok()) break;
    ASSERT_EQ(status.code(), Code::out_of_memory) << name << " after " << n << " allocations: " << status.message();
  }
  EXPECT_GT(failures, 0) << name << " allocates nothing";
}

constexpr const char* kLine = "q=f32 heads=4:2 d=16 page=4 reqs=3x2@20 share=2 lse=1 seed=3";

template <typename T>
Status status_of(const Result<T>& result) {
  return result.status();
}

TEST(OutOfMemory, IsAStatusOfEveryCall) {
  const ProblemLine line = parse_problem_line(kLine).value();
  Case c = make_case(line).value();
  const Plan planned = plan(c.batch, c.cache, c.options).value();
  const BoundAttend bound = BoundAttend::make(planned, c.batch, c.cache, c.options).value();
  const Cascade cascade = plan_cascade(c.batch, c.cache, c.options, {.always = true}).value();
  Workspace memory;
  const std::span<std::byte> workspace = memory.at_least(workspace_bytes(planned) + workspace_bytes(cascade));
  const Status attended = attend(planned, c.batch, c.cache, c.options, workspace);
  ASSERT_TRUE(attended.ok()) << attended.message();
  c.observed = c.batch.output;
  const ContextShard shard{.rank = 1, .world = 2, .interleave = 4};
  const std::vector<std::int64_t> starts = {0, 2, 4, 6}, lengths = {22, 22, 22}, table(18, 1), where = {4, 5}, who = {0, 1};
  const std::pair<const char*, std::function<Status()>> calls[] = {
      {"check", [&] { return check(c.batch, c.cache, c.options).status(); }},
      {"plan", [&] { return status_of(plan(c.batch, c.cache, c.options)); }},
      {"bound call", [&] { return bound.run(c.batch, c.cache, c.options, workspace); }},
      {"attend", [&] { return attend(planned, c.batch, c.cache, c.options, workspace); }},
      {"reference", [&] { return status_of(reference(c.batch, c.cache, c.options)); }},
      {"make_case", [&] { return status_of(make_case(line)); }},
      {"poison_case", [&] { return poison_case(c, PoisonKind::nan); }},
      {"parse_problem_line", [&] { return status_of(parse_problem_line(kLine)); }},
      {"plan_cascade", [&] { return status_of(plan_cascade(c.batch, c.cache, c.options, {.always = true})); }},
      {"attend_cascade", [&] { return attend_cascade(cascade, c.batch, c.cache, c.options, workspace); }},
      {"attend_with_fault", [&] { return attend_with_fault(c.batch, c.cache, c.options, "slots_reversed"); }},
      {"diagnose", [&] { return status_of(diagnose(c, {})); }},
      {"local_lengths", [&] { return status_of(local_lengths(shard, starts, lengths, std::nullopt)); }},
      {"local_table", [&] { return status_of(local_table(shard, table, 6, lengths, 4)); }},
      {"local_slots", [&] { return status_of(local_slots(shard, where, who, table, 6, 4)); }},
      {"SlotLedger", [] { return status_of(SlotLedger::create(4, 4)); }},
      {"PagePool", [] { return status_of(PagePool::create({.num_pages = 4, .page_size = 4})); }},
  };
  for (const auto& [name, call] : calls) expect_out_of_memory_until_it_fits(name, call);
}

}  // namespace
}  // namespace quire::test
