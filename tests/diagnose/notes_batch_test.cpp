// SPDX-License-Identifier: Apache-2.0
// The case that Quire started from (docs/guides/the_case.md), at full size: an int64 query_start_loc read as int32, row 5336
// never written.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <fstream>
#include <sstream>

#include "diagnose/diagnose_util.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

/// The prefill contract of the notes: the cache holds the context only, the row's own slot is still zero.
std::string notes_line(const std::string& types) {
  return types +
         " heads=64:64 d=128 page=32 pages=640 layout=packed index=i64 data=tiny "
         "reqs=880@430/430,410@956/956,792@818/818,927@865/865,446@326/326,57@1007/1007,281@504/504,1004@382/382,539@613/"
         "613,1@929/929";
}

/// What torch.empty returned: an earlier tensor, whose largest value was 1.6855.
void fill_with_heap_garbage(const Tensor& t) {
  for (std::int64_t i = 0; i < t.num_elements(); ++i)
    semantics::store(t.data, t.dtype, i, 1.6855f * static_cast<float>((i * 7919) % 2001 - 1000) / 1000.0f);
}

const Suspicion* find(const Diagnosis& d, const std::string& fault) {
  for (const Suspicion& s : d.suspicions)
    if (s.fault == fault) return &s;
  return nullptr;
}

/// Every line of the page's block after the marker is a line of the report; "..." stands for lines left out.
void expect_quoted(const std::string& page, const std::string& report) {
  std::ifstream file(QUIRE_SOURCE_DIR "/" + page);
  std::stringstream content;
  content << file.rdbuf();
  const std::string text = content.str(), marker = "<!-- quoted from tests/diagnose/notes_batch_test.cpp -->\n```text\n";
  const std::size_t from = text.find(marker);
  ASSERT_NE(from, std::string::npos) << page;
  std::istringstream block(text.substr(from + marker.size(), text.find("```\n", from + marker.size()) - from - marker.size()));
  for (std::string line; std::getline(block, line);) {
    if (line == "...") continue;
    EXPECT_THAT("\n" + report, HasSubstr("\n" + line + "\n")) << page;
  }
}

TEST(NotesBatch, IsDiagnosedAsAnIndexTensorReadWithTheWrongWidth) {
  Case c = made(notes_line("q=f16 kv=f16"));
  fill_with_heap_garbage(c.batch.output);
  const Status status = attend_with_fault(c.batch, c.cache, c.options, "query_start_loc_as_int32_in_decode");
  ASSERT_TRUE(status.ok()) << status.message();
  observe_output(c);

  const Diagnosis d = diagnosed(c, {.reference_seconds = 0.5});
  ASSERT_EQ(d.verdict, DiagnosisVerdict::cause_found) << to_string(d);
  EXPECT_EQ(d.suspicions[0].fault, "query_start_loc_as_int32_in_decode");
  EXPECT_EQ(d.suspicions[0].explained, 1);
  EXPECT_THAT(d.suspicions[0].detail, HasSubstr("0 880 -880 1290 -1290 2082 -2082 3009 -3009 3455"));
  EXPECT_EQ(d.wrong_tokens, std::vector<std::int64_t>{5336});
  EXPECT_THAT(
      to_string(d),
      HasSubstr("row 5336 (request 9: query_len 1, context_len 929, seq_len 930): all 64 heads, dims 0-127; 8192 elements"));
  EXPECT_THAT(to_string(d), HasSubstr("outside the convex hull of its V rows: 1 row (5336)"));

  expect_quoted("docs/guides/the_case.md", to_string(d));

  // The notes' own diagnosis: the decode kernel finds its own token's slot still zero.
  const Suspicion* slot = find(d, "all_keys_from_cache");
  ASSERT_NE(slot, nullptr);
  EXPECT_GT(slot->largest_move, 1e-8);
  EXPECT_LT(slot->largest_move, 1.2e-6);
  EXPECT_THAT(slot->refutation, HasSubstr("moves these rows by at most 1.1e-06; observed 1.69"));
  // The kernel's numerics.
  const Suspicion* numerics = find(d, "rounding");
  ASSERT_NE(numerics, nullptr);
  EXPECT_LT(numerics->largest_move, 1e-5);
  EXPECT_THAT(numerics->refutation, HasSubstr("observed 1.69"));
}

/// The notes' fp8 ids failed in the same row. No misreading of the codes explains it.
TEST(NotesBatch, RefutesTheFp8FormatWithNumbers) {
  Case c = made(
      "q=f16 kv=fp8_e4m3fn kscale=tensor vscale=tensor heads=4 d=128 page=32 pages=640 layout=packed index=i64 data=tiny "
      "reqs=880@430/430,410@956/956,57@1007/1007,1@929/929");
  fill_with_heap_garbage(c.batch.output);
  const Status status = attend_with_fault(c.batch, c.cache, c.options, "query_start_loc_as_int32_in_decode");
  ASSERT_TRUE(status.ok()) << status.message();
  observe_output(c);
  const Diagnosis d = diagnosed(c);
  EXPECT_EQ(d.suspicions[0].fault, "query_start_loc_as_int32_in_decode") << to_string(d);
  const Suspicion *bias = find(d, "fp8_fn_fnuz_confused"), *split = find(d, "fp8_e4m3_e5m2_confused");
  ASSERT_TRUE(bias != nullptr && split != nullptr);
  EXPECT_THAT(bias->refutation, HasSubstr("moves these rows by at most"));
  EXPECT_LT(bias->largest_move, 1e-3);
  // Codes of 256 and more would be NaN or infinity in e5m2, and the row with them.
  EXPECT_EQ(split->refutation, "explains 0 %");
}

}  // namespace
}  // namespace quire::test
