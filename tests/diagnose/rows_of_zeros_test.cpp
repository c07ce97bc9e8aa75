// SPDX-License-Identifier: Apache-2.0
// Rows that hold 0 in every dim: the answer of a row that sees no key (docs/design.md, section 1), what a cleared buffer holds
// where nobody wrote, and what anything times 0 gives. Nothing is the cause of them for certain.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "diagnose/written_by.h"

namespace quire::test {
namespace {

using faults_detail::Facts;
using faults_detail::Key;
using faults_detail::Model;
using faults_detail::Row;

const char* const kLine = "q=f16 heads=8:1 d=64 page=32 reqs=1@152,13@136,29@1,1@1,1@40,19@15,29@150,1@34";

/// A kernel that sees no key of prefill rows in heads 4 to 7: out = 0 and lse = -inf.
void sees_no_key(Model& m) {
  m.keys = [before = m.keys](const Row& row, std::vector<Key>& keys) {
    if (row.query_len == 1 || row.head < 4) before(row, keys);
  };
}

/// The same rows are not written.
void never_writes(Model& m) {
  m.row = [before = m.row](std::int64_t token, std::int64_t head) {
    Row row = before(token, head);
    row.written = row.query_len == 1 || row.head < 4;
    return row;
  };
}

/// What the output buffer of a case held before the call.
void fill(Case& c, float value) {
  for (std::int64_t i = 0; i < c.batch.output.num_elements(); ++i)
    semantics::store(c.batch.output.data, c.batch.output.dtype, i, value);
  for (std::int64_t i = 0; i < c.batch.lse.num_elements(); ++i) static_cast<float*>(c.batch.lse.data)[i] = NAN;
}

/// The observed output of rows that the model does not write is what the buffer held before.
Case left_over(const std::string& line, float value) {
  Case c = written_by(line, {}, never_writes);
  const Facts f(c.batch, c.cache, c.options);
  Model m(f);
  never_writes(m);
  for (std::int64_t token = 0; token < f.num_tokens; ++token)
    for (std::int64_t head = 0; head < f.num_q_heads; ++head) {
      if (m.row(token, head).written) continue;
      for (std::int64_t d = 0; d < f.v_head_dim; ++d)
        semantics::store(c.observed.data, c.observed.dtype, (token * f.num_q_heads + head) * f.v_head_dim + d, value);
    }
  fill(c, value);
  return c;
}

Case blind(const std::string& line, float before) {
  Case c = written_by(line, {}, sees_no_key);
  fill(c, before);
  return c;
}

TEST(RowsOfZeros, OfRowsThatSeeNoKeyAreNotCalledUnwritten) {
  for (const char* lse : {"", " lse=1"})
    for (const float before : {0.0f, NAN}) {
      Case c = blind(kLine + std::string(lse), before);
      if (c.observed_lse.present()) {
        const Facts f(c.batch, c.cache, c.options);
        Model m(f);
        sees_no_key(m);
        for (std::int64_t t = 0; t < f.num_tokens; ++t)
          for (std::int64_t h = 0; h < f.num_q_heads; ++h) {
            const faults_detail::RowHead at{t, h};
            static_cast<float*>(c.observed_lse.data)[t * f.num_q_heads + h] =
                static_cast<float>(evaluate(m, std::span(&at, 1))[0].lse);
          }
      }
      const Diagnosis d = diagnosed(c);
      EXPECT_NE(d.verdict, DiagnosisVerdict::cause_found) << to_string(d);
      EXPECT_NE(d.verdict, DiagnosisVerdict::right) << to_string(d);
    }
}

TEST(RowsOfZeros, OfAClearedBufferHaveNoCertainCause) {
  const Diagnosis d = diagnosed(left_over(kLine, 0.0f));
  EXPECT_EQ(d.verdict, DiagnosisVerdict::mechanism_likely) << to_string(d);
  EXPECT_EQ(d.suspicions.front().mechanism, "not_written") << to_string(d);
}

/// The power of the tests above: bytes that no sum of V rows gives prove it.
TEST(RowsOfZeros, AreToldFromRowsThatKeepAnotherNumber) {
  const Diagnosis d = diagnosed(left_over(kLine, 7.0f));
  EXPECT_EQ(d.verdict, DiagnosisVerdict::cause_found) << to_string(d);
  EXPECT_EQ(d.suspicions.front().mechanism, "not_written") << to_string(d);
}

}  // namespace
}  // namespace quire::test
