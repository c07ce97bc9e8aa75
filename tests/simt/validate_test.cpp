// SPDX-License-Identifier: Apache-2.0
// validate() on the stand-in: one mutation per rule, agreement with check() on random mutations, and nothing written when broken.
#include <gtest/gtest.h>

#include <random>
#include <tuple>

#include "backend/gpu/validate.h"
#include "kernels/broken_batches.h"
#include "simt/device.h"

namespace quire::test {
namespace {

Case made(const std::string& line = kLineToBreak) { return without_slots(line); }

bool broken_on_device(const Case& c) {
  gpu::GenericArgs a = simt::attend_args(c);
  gpu::Outcome outcome;
  a.outcome = &outcome;
  const std::string error = simt::run({.blocks = 3, .threads = gpu::kValidateThreads},
                                      [&] { gpu::validate(a, gpu::block_index(), gpu::num_blocks()); });
  EXPECT_EQ(error, "");
  return outcome.broken != 0;
}

TEST(SimtValidate, AGoodBatchIsNotBrokenWhateverLiesBeyondIt) {
  EXPECT_FALSE(broken_on_device(made()));
  EXPECT_FALSE(broken_on_device(made("q=bf16 heads=2:1 d=8 page=8 reqs=none")));
  EXPECT_FALSE(broken_on_device(made("q=bf16 heads=2:1 d=8 page=8 index=i32 reqs=300x1@3")));
}

/// Q-T04 and Q-T16: where query_start_loc may end depends on what the batch says of padding.
TEST(SimtValidate, RowsBehindTheLastStartAreLegalIfTheBatchSaysSo) {
  for (const Padding padding : {Padding::refused, Padding::left, Padding::zero})
    for (const std::int64_t last : {7, 9, 11}) {
      Case c = made();  // 9 rows
      static_cast<std::int64_t*>(c.batch.query_start_loc.data)[4] = last;
      static_cast<std::int64_t*>(c.batch.query_start_loc.data)[3] = std::min<std::int64_t>(last, 8);
      static_cast<std::int64_t*>(c.batch.query_start_loc.data)[2] = std::min<std::int64_t>(last, 8);
      c.batch.padding = padding;
      const Findings findings = check(c.batch, c.cache, c.options, Depth::tables);
      EXPECT_EQ(broken_on_device(c), !findings.ok()) << name(padding) << " " << last << ": " << findings.status().message();
      EXPECT_EQ(findings.ok(), last == 9 || (last == 7 && padding != Padding::refused)) << findings.status().message();
    }
}

TEST(SimtValidate, EachRuleBreaksTheCallAndNothingIsWritten) {
  for (const Mutation& mutation : mutations()) {
    Case c = made();
    mutation.apply(c);
    const Findings findings = check(c.batch, c.cache, c.options, Depth::tables);
    ASSERT_FALSE(findings.ok()) << mutation.rule;
    EXPECT_EQ(findings.status().rule(), mutation.rule);
    EXPECT_TRUE(broken_on_device(c)) << mutation.rule;
    const auto before = std::vector<std::uint8_t>(static_cast<const std::uint8_t*>(c.batch.output.data),
                                                  static_cast<const std::uint8_t*>(c.batch.output.data) + 9 * 4 * 8 * 4);
    const gpu::GenericArgs a = simt::attend_args(c);
    simt::WorkMemory memory(a, 100, 0, 8);
    gpu::Outcome outcome;
    EXPECT_EQ(simt::attend({}, a, outcome, memory), "") << mutation.rule;
    EXPECT_EQ(outcome.rows_written, 0u);
    EXPECT_NE(outcome.broken, 0);
    EXPECT_EQ(std::memcmp(before.data(), c.batch.output.data, before.size()), 0) << mutation.rule;
  }
}

// Threads share out requests and columns of the table: none is left out, in the first round of the blocks or a later one.
TEST(SimtValidate, EveryEntryOfEveryRequestIsLookedAt) {
  for (const auto& [line, requests, columns] : {std::tuple{"q=bf16 heads=2:1 d=8 page=1 index=i32 reqs=60x1@39", 60, 40},
                                                std::tuple{"q=bf16 heads=2:1 d=8 page=1 index=i32 reqs=9x1@1299", 9, 1300}}) {
    Case c = made(line);
    ASSERT_FALSE(broken_on_device(c)) << line;
    const Tensor& table = c.batch.block_table;
    for (int req = 0; req < requests; ++req)
      for (const int column : {0, 31, 32, 255, 256, 511, 512, 1023, 1024, columns - 1}) {
        if (column >= columns) continue;
        std::int32_t& page = static_cast<std::int32_t*>(table.data)[req * table.stride[0] + column * table.stride[1]];
        const std::int32_t right = page;
        page = -1;
        EXPECT_TRUE(broken_on_device(c)) << line << ": request " << req << ", column " << column;
        page = right;
      }
  }
}

TEST(SimtValidate, EachRuleOfMasksBreaksTheCall) {
  EXPECT_FALSE(broken_on_device(made(kMasksToBreak)));
  for (const Mutation& mutation : mask_mutations()) {
    Case c = made(kMasksToBreak);
    mutation.apply(c);
    const Findings findings = check(c.batch, c.cache, c.options, Depth::tables);
    ASSERT_FALSE(findings.ok()) << mutation.rule;
    EXPECT_EQ(findings.status().rule(), mutation.rule) << findings.status().message();
    EXPECT_TRUE(broken_on_device(c)) << mutation.rule << " " << findings.status().message();
  }
}

TEST(SimtValidate, EachRuleOfShapesBreaksTheCall) {
  EXPECT_FALSE(broken_on_device(made(kShapesToBreak)));
  for (const Mutation& mutation : shape_mutations()) {
    Case c = made(kShapesToBreak);
    mutation.apply(c);
    const Findings findings = check(c.batch, c.cache, c.options, Depth::tables);
    ASSERT_FALSE(findings.ok()) << mutation.rule;
    EXPECT_EQ(findings.status().rule(), mutation.rule) << findings.status().message();
    EXPECT_TRUE(broken_on_device(c)) << mutation.rule << " " << findings.status().message();
  }
}

TEST(SimtValidate, AgreesWithCheckOnRandomShapes) {
  std::mt19937_64 random(6);
  int broken = 0;
  for (int i = 0; i < 300; ++i) {
    Case c = made(kShapesToBreak);
    c.batch.tree_mask.dtype = DType::u8;
    std::memset(c.batch.tree_mask.data, 0, static_cast<std::size_t>(c.batch.tree_mask.num_elements()));
    c.batch.q_begin = c.batch.seq_lens;  // rows behind their keys: no bit is a row's own
    Tensor* const tensors[] = {&c.batch.spans, &c.batch.prefix_lens, &c.batch.tree_lens};
    const Tensor& t = *tensors[random() % 3];
    const std::int64_t values[] = {
        -1, 0, 1, 2, 5, 7, 8, 9, 16, 40, 100000, 0x7FFFFFFF, std::int64_t{1} << 31, std::int64_t{1} << 62};
    static_cast<std::int64_t*>(t.data)[random() % static_cast<std::size_t>(t.num_elements())] =
        values[random() % std::size(values)];
    const Findings findings = check(c.batch, c.cache, c.options, Depth::tables);
    EXPECT_EQ(broken_on_device(c), !findings.ok()) << findings.status().message();
    broken += findings.ok() ? 0 : 1;
  }
  EXPECT_GT(broken, 50);
  EXPECT_LT(broken, 280);
}

TEST(SimtValidate, AgreesWithCheckOnRandomMasks) {
  std::mt19937_64 random(5);
  int broken = 0;
  for (int i = 0; i < 400; ++i) {
    Case c = made(kMasksToBreak);
    Tensor* const tensors[] = {&c.batch.seq_lens, &c.batch.cached_lens, &c.batch.q_begin, &c.batch.key_begin};
    const std::int64_t values[] = {-1,
                                   0,
                                   1,
                                   2,
                                   3,
                                   8,
                                   9,
                                   12,
                                   20,
                                   37,
                                   38,
                                   100000,
                                   0x7FFFFFFF - 37,
                                   0x7FFFFFFF,
                                   std::int64_t{1} << 31,
                                   std::int64_t{1} << 62,
                                   -(std::int64_t{1} << 62)};
    if (random() % 5 == 0) {
      static_cast<std::uint8_t*>(c.batch.causal.data)[random() % 4] = static_cast<std::uint8_t>(random() % 3);
    } else {
      static_cast<std::int64_t*>(tensors[random() % 4]->data)[random() % 4] = values[random() % std::size(values)];
    }
    const Findings findings = check(c.batch, c.cache, c.options, Depth::tables);
    EXPECT_EQ(broken_on_device(c), !findings.ok()) << findings.status().message();
    broken += findings.ok() ? 0 : 1;
  }
  EXPECT_GT(broken, 100);
  EXPECT_LT(broken, 390);
}

// Any number anywhere in the index tensors: the device and check() agree, except where check() knows an int64 array by its looks.
TEST(SimtValidate, AgreesWithCheckOnRandomMutations) {
  std::mt19937_64 random(3);
  int broken = 0;
  for (int i = 0; i < 300; ++i) {
    Case c = made();
    Tensor* const tensors[] = {&c.batch.query_start_loc, &c.batch.seq_lens, &c.batch.cached_lens, &c.batch.block_table};
    const Tensor& t = *tensors[random() % 4];
    const std::int64_t values[] = {
        -1, 0, 1, 2, 3, 8, 9, 20, 37, 38, 100000, std::int64_t{1} << 31, std::int64_t{1} << 62, -(std::int64_t{1} << 62)};
    static_cast<std::int64_t*>(t.data)[random() % static_cast<std::size_t>(t.num_elements())] =
        values[random() % std::size(values)];
    const bool expected = !check(c.batch, c.cache, c.options, Depth::tables).ok();
    EXPECT_EQ(broken_on_device(c), expected) << check(c.batch, c.cache, c.options, Depth::tables).status().message();
    broken += expected ? 1 : 0;
  }
  EXPECT_GT(broken, 50);
  EXPECT_LT(broken, 250);
}

}  // namespace
}  // namespace quire::test
