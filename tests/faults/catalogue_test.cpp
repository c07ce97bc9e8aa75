// SPDX-License-Identifier: Apache-2.0
// The catalogue keeps its promises: every fault shows, on at least three geometries, in an output that compare() rejects; where
// it says that it cannot show, it says why.
#include <gmock/gmock.h>

#include <map>
#include <set>

#include "faults/fault.h"
#include "faults/faults_util.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

class EveryFault : public testing::TestWithParam<Geometry> {};

TEST_P(EveryFault, ShowsOrSaysWhyNot) {
  Case c = made(GetParam().line);
  const Result<Reference> expected = reference(c.batch, c.cache, c.options);
  ASSERT_TRUE(expected.ok());
  const faults_detail::Facts facts(c.batch, c.cache, c.options);
  for (const FaultInfo& info : faults()) {
    SCOPED_TRACE(info.id);
    clear_output(c);
    const faults_detail::Suspects suspects = faults_detail::find(info.id)->suspects({facts, {}});
    const Status status = attend_with_fault(c.batch, c.cache, c.options, info.id);
    EXPECT_EQ(status.ok(), !suspects.list.empty()) << status.message();
    EXPECT_LE(suspects.list.size(), 72u);
    if (!status.ok()) {
      EXPECT_EQ(status.code(), Code::unsupported);
      EXPECT_FALSE(suspects.why_not.empty());
      EXPECT_THAT(status.message(), HasSubstr(suspects.why_not));
      continue;
    }
    EXPECT_TRUE(suspects.why_not.empty()) << suspects.why_not;
    const Comparison judged = compare(c.batch.output, c.batch.lse, expected.value());
    EXPECT_FALSE(judged.ok) << "a kernel that " << info.text << " passes; worst error / tolerance " << judged.worst_ratio;
  }
}

std::string name_of(const testing::TestParamInfo<Geometry>& test) { return test.param.name; }
INSTANTIATE_TEST_SUITE_P(, EveryFault, testing::ValuesIn(all_geometries()), name_of);

TEST(Catalogue, EveryFaultCanShowOnThreeGeometries) {
  std::map<std::string, int> shown;
  for (const Geometry& geometry : all_geometries()) {
    const Case c = made(geometry.line);
    const faults_detail::Facts facts(c.batch, c.cache, c.options);
    for (const faults_detail::Fault& fault : faults_detail::catalogue())
      if (!fault.suspects({facts, {}}).list.empty()) ++shown[fault.info.id];
  }
  for (const FaultInfo& info : faults()) {
    if (info.id == "element_offset_32_bit") continue;  // needs 2^31 elements: huge_offsets_test.cpp
    EXPECT_GE(shown[info.id], 3) << info.id;
  }
}

TEST(Catalogue, EntriesAreComplete) {
  std::set<std::string> ids, families;
  std::string last_family;
  for (const FaultInfo& info : faults()) {
    EXPECT_TRUE(ids.insert(info.id).second) << info.id << " is there twice";
    EXPECT_EQ(info.id.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_"), std::string::npos) << info.id;
    EXPECT_FALSE(info.text.empty() || info.next.empty()) << info.id;
    EXPECT_TRUE(info.text.empty() || (std::islower(static_cast<unsigned char>(info.text[0])) != 0 && info.text.back() != '.'))
        << info.id << " does not complete \"a kernel that ...\"";
    const bool in_order = info.family == last_family || families.insert(info.family).second;
    EXPECT_TRUE(in_order) << info.family << " stands in two places";
    last_family = info.family;
  }
  EXPECT_GE(ids.size(), 160u);
}

TEST(Catalogue, CandidatesOfALargeBatchStayBounded) {
  const Case c = made("q=f16 heads=8:2 d=16 page=16 reqs=40x1@500,3x200@300,20x1@90 index=i64 window=128 seed=3");
  const faults_detail::Facts facts(c.batch, c.cache, c.options);
  std::size_t total = 0;
  for (const faults_detail::Fault& fault : faults_detail::catalogue()) total += fault.suspects({facts, {}}).list.size();
  EXPECT_LE(total, 700u);
}

TEST(AttendWithFault, RefusesAnUnknownId) {
  const Case c = made(geometries().front().line);
  const Status status = attend_with_fault(c.batch, c.cache, c.options, "no_such_fault");
  EXPECT_EQ(status.code(), Code::invalid_argument);
  EXPECT_THAT(status.message(), HasSubstr("no_such_fault"));
}

TEST(AttendWithFault, RefusesABrokenBatch) {
  Case c = made("q=f32 heads=2 d=8 page=4 reqs=3@5");
  static_cast<std::int32_t*>(c.batch.seq_lens.data)[0] = 1;
  const Status status = attend_with_fault(c.batch, c.cache, c.options, "last_row_not_written");
  EXPECT_EQ(status.code(), Code::contract_violation) << status.message();
}

TEST(AttendWithFault, KeepsTheBytesOfRowsThatAreNeverWritten) {
  Case c = made("q=f32 heads=2 d=8 page=4 reqs=3@5,1@9");
  auto* out = static_cast<float*>(c.batch.output.data);
  for (std::int64_t i = 0; i < c.batch.output.num_elements(); ++i) out[i] = 1234.5f;
  ASSERT_TRUE(attend_with_fault(c.batch, c.cache, c.options, "last_row_not_written").ok());
  for (std::int64_t i = 0; i < c.batch.output.num_elements(); ++i) EXPECT_EQ(out[i] == 1234.5f, i >= 3 * 2 * 8) << i;
}

TEST(AttendWithFault, SaysWhyAFaultCannotShow) {
  Case c = made("q=f32 heads=2 d=8 page=4 reqs=3@5,1@9");
  const Status status = attend_with_fault(c.batch, c.cache, c.options, "window_one_short");
  EXPECT_EQ(status.code(), Code::unsupported);
  EXPECT_THAT(status.message(), HasSubstr("no sliding window"));
}

/// Right rows of a large batch are left to the kernels, the others to the model: the result must not depend on it.
TEST(AttendWithFault, LargeBatchesGiveTheSameRows) {
  Case c = made("q=f32 heads=4:2 d=8 page=16 reqs=700@300,1@900,300@600 index=i64 lse=1 seed=2");
  ASSERT_TRUE(attend_with_fault(c.batch, c.cache, c.options, "query_start_loc_as_int32_in_decode").ok());
  Result<Reference> expected = reference(c.batch, c.cache, c.options);
  ASSERT_TRUE(expected.ok());
  const Comparison judged = compare(c.batch.output, c.batch.lse, expected.value());
  EXPECT_FALSE(judged.ok);
  EXPECT_EQ(judged.worst.token, 700);
  EXPECT_EQ(judged.num_mismatches, 4 * 8 + 4) << judged.text;
}

}  // namespace
}  // namespace quire::test
