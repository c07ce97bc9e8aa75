// The case that Quire started from (docs/the_case.md), at full size: an int64 query_start_loc read as int32, row 5336 never
// written.
#include <fmt/format.h>
#include <gmock/gmock.h>

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

const Suspicion* find(const Diagnosis& d, const std::string& fault) {
  for (const Suspicion& s : d.suspicions)
    if (s.fault == fault) return &s;
  return nullptr;
}

TEST(NotesBatch, IsDiagnosedAsAnIndexTensorReadWithTheWrongWidth) {
  Case c = made(notes_line("q=f16 kv=f16"));
  // What the heap held: an earlier tensor, as in the notes, whose largest value was 1.6855.
  const Tensor& o = c.batch.output;
  for (std::int64_t i = 0; i < o.num_elements(); ++i)
    semantics::store(o.data, o.dtype, i, 1.6855f * static_cast<float>((i * 7919) % 2001 - 1000) / 1000.0f);
  const Status status = attend_with_fault(c.batch, c.cache, c.options, "query_start_loc_as_int32_in_decode");
  ASSERT_TRUE(status.ok()) << status.message();
  observe_output(c);

  const Diagnosis d = diagnosed(c, {.seconds = 0.5});
  ASSERT_EQ(d.verdict, "cause found") << d.text;
  EXPECT_EQ(d.suspicions[0].fault, "query_start_loc_as_int32_in_decode");
  EXPECT_EQ(d.suspicions[0].explained, 1);
  EXPECT_THAT(d.suspicions[0].detail, HasSubstr("0 880 -880 1290 -1290 2082 -2082 3009 -3009 3455"));
  EXPECT_EQ(d.wrong_tokens, std::vector<std::int64_t>{5336});
  EXPECT_THAT(
      d.text,
      HasSubstr("row 5336 (request 9: query_len 1, context_len 929, seq_len 930): all 64 heads, dims 0-127; 8192 elements"));
  EXPECT_THAT(d.text, HasSubstr("outside the convex hull of its V rows: 1 row (5336)"));

  // The notes' own diagnosis, and the other suspects of the time.
  const Suspicion* slot = find(d, "own_slot_zero");
  ASSERT_NE(slot, nullptr);
  EXPECT_GT(slot->largest_move, 1e-8);
  EXPECT_LT(slot->largest_move, 1.2e-6);
  EXPECT_THAT(slot->refutation, HasSubstr("moves these rows by at most 1.1e-06; observed 1.69"));
  const Suspicion* numerics = find(d, "rounding");
  ASSERT_NE(numerics, nullptr);
  EXPECT_LT(numerics->largest_move, 1e-5);
}

}  // namespace
}  // namespace quire::test
