// SPDX-License-Identifier: Apache-2.0
// The peer's power on small cases, and the chosen rows of a planted fault that it rests on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "quire/problem.hpp"
#include "quire/tools/faults.hpp"
#include "verify/matrix.h"
#include "verify/power.h"

namespace quire::verify_detail {
namespace {

Case made(const std::string& line) { return make_case(parse_problem_line(line).value()).value(); }

TEST(ChosenRowsOfAFault, AreThoseOfAllRowsAndTheOthersKeepTheirBytes) {
  const std::string line = "q=f32 heads=4:2 d=8 page=4 reqs=5@9,1@7 lse=1 seed=2";
  const Case all = made(line), some = made(line);
  ASSERT_TRUE(attend_with_fault(all.batch, all.cache, all.options, "qk_ignored").ok());
  const std::vector<std::int64_t> tokens = {1, 5};
  ASSERT_TRUE(attend_with_fault(some.batch, some.cache, some.options, "qk_ignored", tokens).ok());
  const auto *a = static_cast<const float*>(all.batch.output.data), *s = static_cast<const float*>(some.batch.output.data);
  for (std::int64_t t = 0; t < 6; ++t)
    for (std::int64_t i = t * 32; i < t * 32 + 32; ++i) {
      if (t == 1 || t == 5) {
        EXPECT_EQ(a[i], s[i]) << t;
      } else {
        EXPECT_TRUE(std::isnan(s[i])) << t;
      }
    }
  for (const std::int64_t outside : {-1, 6})
    EXPECT_EQ(attend_with_fault(some.batch, some.cache, some.options, "qk_ignored", std::vector<std::int64_t>{outside}).code(),
              Code::invalid_argument);
}

/// The same shape with the peer's data and with N(0,1), judged with one tolerance.
PeerPower power_of(const std::string& data) {
  const Result<PeerPower> power = measure_peer(
      {"small", "q=f16 heads=4:4 d=32 page=8 layout=packed reqs=9@50/50,1@70 index=i64 seed=1 data=" + data, 1e-3}, 2);
  EXPECT_TRUE(power.ok()) << power.status().message();
  return power.ok() ? power.value() : PeerPower{};
}

TEST(Peer, DataOfATinySizeHideWhatNormalDataShow) {
  const PeerPower tiny = power_of("tiny"), normal = power_of("normal");
  EXPECT_LE(tiny.total, normal.total) << "a few faults need NaN in the cache to show";
  EXPECT_LT(tiny.killed, normal.killed);
  EXPECT_EQ(tiny.known_total, 10);
  EXPECT_EQ(tiny.known_killed, 0) << "an output of zeros is within 1e-3 of values within 1e-3";
  EXPECT_EQ(normal.known_killed, 10);
  EXPECT_GT(normal.killed, normal.total * 8 / 10);
  EXPECT_LT(tiny.rows_compared, tiny.rows_total);
}

TEST(Peer, ItsCasesAreTheNotesOwn) {
  ASSERT_EQ(peer_cases().size(), 3u);
  for (const PeerCase& c : peer_cases()) {
    const Result<ProblemLine> line = parse_problem_line(c.line);
    ASSERT_TRUE(line.ok()) << line.status().message();
    EXPECT_EQ(line->data, DataKind::tiny);
    EXPECT_EQ(line->problem.num_tokens(), 5337);
    EXPECT_EQ(line->problem.num_kv_heads, 64);
  }
}

TEST(Peer, TheStudysFaultsAreInTheCatalogue) {
  std::set<std::string> ids;
  for (const FaultInfo& fault : faults()) ids.insert(fault.id);
  for (const std::string& id : study_faults()) EXPECT_TRUE(ids.contains(id)) << id;
  EXPECT_EQ(study_faults().size(), 10u);
}

}  // namespace
}  // namespace quire::verify_detail
