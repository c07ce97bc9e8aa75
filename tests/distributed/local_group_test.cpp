// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads: what arrives where, in any order of arrival, and that no rank waits for ever for one that fails.
#include <gmock/gmock.h>

#include <chrono>
#include <cstring>
#include <random>
#include <thread>

#include "quire/distributed.hpp"

namespace quire::test {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

std::vector<std::unique_ptr<Communicator>> group_of(std::int32_t world, milliseconds limit = milliseconds(20000)) {
  auto made = local_group(world, limit);
  EXPECT_TRUE(made.ok());
  return std::move(made).value();
}

/// body(communicator) on a thread for each rank; the statuses by rank.
template <class Body>
std::vector<Status> on_ranks(std::vector<std::unique_ptr<Communicator>>& group, Body&& body) {
  std::vector<Status> statuses(group.size());
  std::vector<std::thread> threads;
  for (std::size_t k = 0; k < group.size(); ++k) threads.emplace_back([&, k] { statuses[k] = body(*group[k]); });
  for (std::thread& t : threads) t.join();
  return statuses;
}

TEST(LocalGroup, GathersAndSwapsInRankOrderWhateverArrivesFirst) {
  for (std::int32_t world = 1; world <= 4; ++world) {
    auto group = group_of(world);
    const auto statuses = on_ranks(group, [&](Communicator& c) -> Status {
      std::mt19937 random(static_cast<unsigned>(c.rank()));
      for (int turn = 0; turn < 200; ++turn) {
        if (random() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
        std::vector<int> sent, all(static_cast<std::size_t>(world)), swapped(static_cast<std::size_t>(world));
        const int mine[] = {1000 * turn + c.rank()};
        for (int k = 0; k < world; ++k) sent.push_back(100 * turn + 10 * c.rank() + k);
        if (Status s = c.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all))); !s.ok()) return s;
        if (Status s = c.all_to_all(std::as_bytes(std::span(sent)), std::as_writable_bytes(std::span(swapped))); !s.ok())
          return s;
        for (int k = 0; k < world; ++k) {
          const auto i = static_cast<std::size_t>(k);
          if (all[i] != 1000 * turn + k || swapped[i] != 100 * turn + 10 * k + c.rank())
            return {Code::internal_error, "mixed up"};
        }
      }
      return {};
    });
    for (const Status& s : statuses) EXPECT_TRUE(s.ok()) << s.message();
  }
}

Status gather(Communicator& c) {
  const std::int64_t mine[] = {c.rank()};
  std::vector<std::int64_t> all(static_cast<std::size_t>(c.world()));
  return c.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
}

TEST(LocalGroup, ARankThatDoesNotComeIsNamedByAllThatWait) {
  auto group = group_of(3, milliseconds(100));
  const auto statuses = on_ranks(group, [](Communicator& c) { return c.rank() == 1 ? Status() : gather(c); });
  for (const std::size_t k : {0U, 2U}) EXPECT_EQ(statuses[k].message(), "all_gather: rank 1 did not come within 100 ms");
  EXPECT_FALSE(gather(*group[1]).ok());  // rank 1 is too late
}

TEST(LocalGroup, ARankThatFailsIsNamedAtOnce) {
  auto group = group_of(3, milliseconds(60000));
  const auto before = std::chrono::steady_clock::now();
  const auto statuses = on_ranks(group, [](Communicator& c) -> Status {
    if (c.rank() != 2) return gather(c);
    std::this_thread::sleep_for(milliseconds(20));
    c.fail("no pages left");
    return gather(c);
  });
  for (const Status& s : statuses) EXPECT_EQ(s.message(), "rank 2 failed: no pages left");
  EXPECT_LT(std::chrono::steady_clock::now() - before, milliseconds(30000));
}

TEST(LocalGroup, RanksThatCallDifferentThingsAreTold) {
  auto group = group_of(2);
  const auto statuses = on_ranks(group, [](Communicator& c) -> Status {
    if (c.rank() == 0) return gather(c);
    const std::int64_t sent[] = {1, 2};
    std::int64_t received[2];
    return c.all_to_all(std::as_bytes(std::span(sent)), std::as_writable_bytes(std::span(received)));
  });
  for (const Status& s : statuses)
    EXPECT_THAT(s.message(), HasSubstr("rank 1 calls all_to_all with 16 bytes, rank 0 calls all_gather with 8 bytes"));
}

TEST(LocalGroup, SizesThatDoNotFitAreRefused) {
  auto group = group_of(2);
  const std::int64_t one[1] = {};
  std::int64_t two[3] = {};
  EXPECT_THAT(group[0]->all_gather(std::as_bytes(std::span(one)), std::as_writable_bytes(std::span(two))).message(),
              HasSubstr("all_gather: room for 24 bytes, expected 8 for each of 2 ranks"));
  EXPECT_EQ(local_group(0, milliseconds(1)).status().rule(), "Q-D01");
}

}  // namespace
}  // namespace quire::test
