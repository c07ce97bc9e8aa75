// SPDX-License-Identifier: Apache-2.0
// diagnose() plants two faults at once, in either order: whatever one believes, the other must stay inside the batch. What they
// compute is nobody's promise; AddressSanitizer watches (./test asan).
#include <gtest/gtest.h>

#include "faults/fault.h"
#include "quire/tools/capture.hpp"

namespace quire::test {
namespace {

using faults_detail::Facts;
using faults_detail::Model;
using faults_detail::RowHead;

/// The first candidate of every fault that can show on the batch.
std::vector<faults_detail::Suspect> suspects(const Facts& facts) {
  std::vector<faults_detail::Suspect> list;
  for (const faults_detail::Fault& f : faults_detail::catalogue()) {
    faults_detail::Suspects s = f.suspects({facts, {}});
    if (!s.list.empty()) list.push_back(std::move(s.list.front()));
  }
  return list;
}

class PairsOfFaults : public testing::TestWithParam<const char*> {};

TEST_P(PairsOfFaults, StayInsideTheBatch) {
  const Result<Case> c = make_case(parse_problem_line(GetParam()).value());
  ASSERT_TRUE(c.ok()) << c.status().message();
  const Facts facts(c->batch, c->cache, c->options);
  const std::vector<faults_detail::Suspect> list = suspects(facts);
  EXPECT_GT(list.size(), 60U);
  const RowHead rows[] = {{0, 0}, {facts.num_tokens - 1, facts.num_q_heads - 1}};
  for (const faults_detail::Suspect& first : list)
    for (const faults_detail::Suspect& second : list) {
      Model model(facts);
      first.plant(model);
      second.plant(model);
      ASSERT_EQ(faults_detail::evaluate(model, rows).size(), 2U) << first.detail << " + " << second.detail;
    }
}

INSTANTIATE_TEST_SUITE_P(
    , PairsOfFaults,
    testing::Values("q=f32 kv=bf16 heads=4:2 d=6 page=3 window=5 alibi=1 lse=1 index=i64 reqs=2@7,0@3,1@5",
                    "q=bf16 kv=fp8_e4m3fn heads=4:2 d=16 page=4 layout=packed kscale=head vscale=head sinks=1 "
                    "cap=5 lse=1 reqs=3@6/7,1@9",
                    "q=f16 kv=f16 heads=2:2 d=5 page=4 layout=hnd reqs=3@6,1@9"),
    [](const auto& test) { return "batch" + std::to_string(test.index); });

}  // namespace
}  // namespace quire::test
