// SPDX-License-Identifier: Apache-2.0
// A valid call gives no finding; each mutation gives exactly its one finding; every rule has a mutation.
#include <gmock/gmock.h>

#include <set>
#include <string>

#include "contract/broken_cases.h"

namespace quire::test {
namespace {

std::string all_messages(const Findings& findings) {
  std::string text;
  for (const Finding& finding : findings.items) text += finding.message + "\n";
  return text;
}

/// `pattern` may hold one '*'.
bool matches(const std::string& text, const std::string& pattern) {
  const std::size_t star = pattern.find('*');
  if (star == std::string::npos || text == pattern) return text == pattern;
  const std::string tail = pattern.substr(star + 1);
  return text.size() + 1 >= pattern.size() && text.starts_with(pattern.substr(0, star)) && text.ends_with(tail);
}

TEST(Contract, ValidCallsHaveNoFinding) {
  const SmallBatch batch;
  EXPECT_EQ(all_messages(batch.check()), "");
  EXPECT_EQ(all_messages(batch.check_append()), "");
  EXPECT_EQ(all_messages(SmallMerge().check()), "");
  EXPECT_TRUE(batch.check().status().ok());
}

TEST(Contract, TagsOfSkippedRowsMeanNothing) {
  SmallBatch batch;
  batch.slot_mapping[1] = -1;
  batch.tags[1] = {};
  EXPECT_EQ(all_messages(batch.check_append()), "");
}

class Broken : public ::testing::TestWithParam<std::size_t> {};

TEST_P(Broken, GivesExactlyItsFinding) {
  const BrokenCase& broken = broken_cases()[GetParam()];
  const Findings findings = broken.run(Depth::contents);
  ASSERT_EQ(findings.items.size(), 1u) << broken.message << "\ngot:\n" << all_messages(findings);
  EXPECT_EQ(findings.total, 1);
  EXPECT_EQ(findings.items[0].rule, broken.rule);
  EXPECT_TRUE(matches(findings.items[0].message, broken.message)) << findings.items[0].message << "\nexpected\n"
                                                                  << broken.message;
  EXPECT_EQ(findings.status().code(), Code::contract_violation);
  EXPECT_EQ(findings.status().rule(), broken.rule);
  EXPECT_EQ(findings.status().message(), findings.items[0].message);
}

std::string case_name(const ::testing::TestParamInfo<std::size_t>& param) {
  std::string name = broken_cases()[param.param].rule + "_" + std::to_string(param.param);
  name[1] = '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(Rule, Broken, ::testing::Range(std::size_t{0}, broken_cases().size()), case_name);

TEST(Contract, EveryRuleIsProducedByACase) {
  std::set<std::string> produced;
  for (const BrokenCase& broken : broken_cases())
    for (const Finding& finding : broken.run(Depth::contents).items) produced.insert(finding.rule);
  std::set<std::string> documented;
  for (const Rule& rule : rules()) documented.insert(std::string(rule.id));
  EXPECT_EQ(produced, documented);
  EXPECT_EQ(documented.size(), rules().size()) << "an id is used twice";
}

TEST(Contract, RulesApplyFromTheirDocumentedDepthOn) {
  for (const BrokenCase& broken : broken_cases()) {
    if (!broken.is_check) continue;
    for (const Rule& rule : rules()) {
      if (rule.id != broken.rule) continue;
      EXPECT_EQ(broken.run(rule.depth).total, 1) << broken.message;
      if (rule.depth == Depth::metadata) continue;
      EXPECT_EQ(broken.run(static_cast<Depth>(static_cast<int>(rule.depth) - 1)).total, 0) << broken.message;
    }
  }
}

}  // namespace
}  // namespace quire::test
