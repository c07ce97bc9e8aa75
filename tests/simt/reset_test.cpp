// SPDX-License-Identifier: Apache-2.0
// reset() and fill_rows() on the stand-in: what a refused call leaves behind, and which rows are filled with what.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "backend/gpu/fill_rows.h"
#include "backend/gpu/reset.h"
#include "kernels/broken_batches.h"
#include "kernels/judge.h"
#include "simt/device.h"
#include "verify/guarded.h"

namespace quire::test {
namespace {

using verify_detail::Guarded;
using verify_detail::Spread;

/// The leading words of a workspace, with more behind that are not reset.
struct Leading {
  static constexpr std::int32_t kWords = 96, kBehind = 8;
  alignas(gpu::kUnheardAt) std::uint32_t words[kWords + kBehind];
  explicit Leading(int byte) { std::memset(words, byte, sizeof words); }
  gpu::CallState& state() { return *reinterpret_cast<gpu::CallState*>(words); }
  void reset() {
    const gpu::ResetArgs args{&state(), kWords};
    EXPECT_EQ(simt::run({.blocks = 1, .threads = gpu::kResetThreads}, [&] { gpu::reset(args); }), "");
  }
};

TEST(SimtReset, AWorkspaceIsBornWithAnythingInIt) {
  for (const int byte : {0xFF, 0x00, 0x7F}) {
    Leading w(byte);
    w.reset();
    EXPECT_TRUE(w.state().unheard.is_sealed());
    EXPECT_EQ(w.state().unheard.refused, 0);
    EXPECT_EQ(w.state().unheard.miscounted, 0);
    EXPECT_EQ(w.state().outcome.broken, 0);
    EXPECT_EQ(w.state().outcome.rows_written, 0u);
    for (std::int32_t i = 2 * gpu::kUnheardAt / 4; i < Leading::kWords; ++i) EXPECT_EQ(w.words[i], 0u) << i;
    for (std::int32_t i = Leading::kWords; i < Leading::kWords + Leading::kBehind; ++i)
      EXPECT_EQ(w.words[i], 0x01010101u * static_cast<unsigned>(byte)) << i;
  }
}

TEST(SimtReset, ARefusedCallStaysInTheRecordOverCleanOnes) {
  Leading w(0xFF);
  w.reset();
  w.state().outcome.broken = 1;
  w.reset();
  EXPECT_EQ(w.state().outcome.broken, 0);
  for (int clean = 0; clean < 3; ++clean) {
    w.state().outcome.rows_written = w.state().outcome.rows_due = 24;
    w.reset();
  }
  EXPECT_EQ(w.state().unheard.refused, 1);
  EXPECT_TRUE(w.state().unheard.is_sealed());
  w.state().outcome.rows_written = 23;
  w.state().outcome.rows_due = 24;
  w.reset();
  EXPECT_EQ(w.state().unheard.miscounted, 1);
}

TEST(SimtReset, WhatWasHeardIsNotCounted) {
  Leading w(0xFF);
  w.reset();
  w.state().outcome.broken = 1;
  w.state().unheard.heard = 1;
  w.reset();
  EXPECT_EQ(w.state().unheard.refused, 0);
  w.state().outcome.broken = 1;  // nobody has asked about this call
  w.reset();
  EXPECT_EQ(w.state().unheard.refused, 1);
}

/// Counts that the seal does not bear are memory of somebody else.
TEST(SimtReset, ARecordWithoutItsSealIsNone) {
  Leading w(0xFF);
  w.reset();
  w.state().unheard.refused = 5;
  w.reset();
  EXPECT_EQ(w.state().unheard.refused, 0);
}

constexpr const char* kTypes[] = {"q=f32", "q=f16", "q=bf16"};
ProblemLine padded(const std::string& types, const std::string& pad) {
  return parse_problem_line(types + " heads=4:2 d=24 page=8 reqs=3@20,1@9,2x0 lse=1 index=i64 seed=3 " + pad).value();
}

/// All rows are NaN if the device refuses, and no row that it does not refuse.
TEST(SimtFillRows, NanIfRefused) {
  for (const char* types : kTypes)
    for (const bool asked : {false, true})
      for (const Spread spread : {Spread::contiguous, Spread::apart}) {
        Case c = make_case(padded(types, "pad=3:zero")).value();
        static_cast<std::int64_t*>(c.batch.block_table.data)[0] = -1;
        Guarded output(c.batch.output, spread), lse(c.batch.lse, spread);
        c.batch.output = output.view;
        c.batch.lse = lse.view;
        for (std::int64_t i = 0; i < 7 * 4; ++i)
          for (std::int64_t d = 0; d < 24; ++d)
            semantics::store(output.view.data, output.view.dtype,
                             i / 4 * output.view.stride[0] + i % 4 * output.view.stride[1] + d * output.view.stride[2], 5.0f);
        gpu::GenericArgs a = simt::attend_args(c);
        a.nan_if_refused = asked;
        simt::WorkMemory memory(a, 100, 0, 8);
        gpu::Outcome outcome;
        ASSERT_EQ(simt::attend({}, a, outcome, memory), "");
        EXPECT_NE(outcome.broken, 0);
        const std::vector<std::byte> rows = output.take(), sums = lse.take();
        EXPECT_EQ(output.damaged() + lse.damaged(), 0);
        for (std::int64_t i = 0; i < c.batch.output.num_elements(); ++i)
          ASSERT_EQ(std::isnan(semantics::load(rows.data(), c.batch.output.dtype, i)), asked) << types;
        for (std::int64_t i = 0; i < c.batch.lse.num_elements(); ++i)
          ASSERT_TRUE(std::isnan(semantics::load(sums.data(), DType::f32, i)));
      }
}

TEST(SimtFillRows, ASoundCallKeepsItsRowsWhateverIsAskedOfARefusedOne) {
  for (const char* pad : {"", "pad=3", "pad=3:zero"}) {
    const ProblemLine line = padded("q=f32", pad);
    const std::vector<std::string> findings = judge(line, [](const Case& c, int, std::int64_t& rows) -> Status {
      gpu::GenericArgs a = simt::attend_args(c);
      a.nan_if_refused = true;
      simt::WorkMemory memory(a, 100, 0, 8);
      gpu::Outcome outcome;
      if (const std::string e = simt::attend({}, a, outcome, memory); !e.empty()) return {Code::internal_error, e};
      rows = static_cast<std::int64_t>(outcome.rows_written);
      EXPECT_EQ(outcome.rows_due, 16u);
      return {};
    });
    EXPECT_TRUE(findings.empty()) << report(line, findings);
  }
}

}  // namespace
}  // namespace quire::test
