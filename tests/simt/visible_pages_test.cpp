// SPDX-License-Identifier: Apache-2.0
// The device's validation and attend_generic on small masks of every kind: both need the entries that some row needs, and no
// other. What no row needs is wild, what no row sees is NaN.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "backend/gpu/validate.h"
#include "quire/tools/diagnose.hpp"
#include "simt/device.h"
#include "support/page_cases.h"

namespace quire::test {
namespace {

bool broken_on_device(const Case& c) {
  gpu::GenericArgs a = simt::attend_args(c);
  gpu::Outcome outcome;
  a.outcome = &outcome;
  EXPECT_EQ(simt::run({.blocks = 1, .threads = gpu::kValidateThreads}, [&] { gpu::validate(a, 0, 1); }), "");
  return outcome.broken != 0;
}

TEST(SimtVisiblePages, ValidationNeedsThoseOfTheDefinition) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 1500; ++i) {
    const PageCase of = drawn_page_case(random, 24);
    const std::int64_t enough = of.needed_columns();
    PageBatch batch(of, enough + static_cast<std::int64_t>(random() % 3), random);
    ASSERT_FALSE(broken_on_device(*batch)) << of.text();
    std::vector<std::int64_t> needed;
    for (std::int64_t column = 0; column < enough; ++column)
      if (of.needs(column)) needed.push_back(column);
    if (needed.empty()) continue;
    const std::int64_t column = needed[random() % needed.size()], page = batch.entry(column);
    batch.entry(column) = batch.wild(random());
    ASSERT_TRUE(broken_on_device(*batch)) << of.text() << ": column " << column;
    batch.entry(column) = page;
    batch->batch.block_table.shape[1] = enough - 1;
    ASSERT_TRUE(broken_on_device(*batch)) << of.text() << ": narrow";
  }
}

TEST(SimtVisiblePages, TheKernelReadsNothingElse) {
  std::mt19937_64 random(6);
  for (int i = 0; i < 700; ++i) {
    const PageCase of = drawn_page_case(random, i % 2 == 0 ? 24 : 300);
    PageBatch batch(of, of.needed_columns() + static_cast<std::int64_t>(random() % 2), random);
    simt::Device device;
    device.split_keys = i % 3 == 0 ? 64 : 0;
    std::int64_t rows = 0;
    const Status status = simt::attend(device, *batch, rows);
    ASSERT_TRUE(status.ok()) << of.text() << ": " << status.message();
    const Result<Reference> expected = reference(batch->batch, batch->cache, batch->options);
    ASSERT_TRUE(expected.ok()) << of.text() << ": " << expected.status().message();
    const Comparison judged = compare(batch->batch.output, batch->batch.lse, expected.value());
    ASSERT_TRUE(judged.ok) << of.text() << "\n" << judged.text;
  }
}

/// Batches that lost the device: the kernel read pages before a tree, between the middle and a tree, and of a tree whose bits are
/// 0.
TEST(SimtVisiblePages, TreesOverWildPages) {
  PageCase before_keys;
  before_keys.page_size = 16, before_keys.has_q_begin = true;
  before_keys.key_begin = 3, before_keys.num_keys = before_keys.cached = 28, before_keys.bits = {{false, false}};
  PageCase behind_window = before_keys;
  behind_window.key_begin = 0, behind_window.q_begin = 3, behind_window.window = 4;
  behind_window.num_keys = behind_window.cached = 64, behind_window.bits = {{true}};
  PageCase hidden = before_keys;
  hidden.key_begin = 100, hidden.num_keys = hidden.cached = 22, hidden.rows = 2;
  hidden.bits.assign(2, std::vector<bool>(15, false));
  PageCase some_bits = behind_window;
  some_bits.key_begin = 100, some_bits.q_begin = 145, some_bits.num_keys = some_bits.cached = 49, some_bits.rows = 3;
  some_bits.bits.assign(3, std::vector<bool>(15, true));
  std::mt19937_64 random(9);
  for (const PageCase& of : {before_keys, behind_window, hidden, some_bits}) {
    PageBatch batch(of, of.needed_columns() + 1, random);
    std::int64_t rows = 0;
    const Status status = simt::attend({}, *batch, rows);
    ASSERT_TRUE(status.ok()) << of.text() << ": " << status.message();
    const Reference expected = reference(batch->batch, batch->cache, batch->options).value();
    EXPECT_TRUE(compare(batch->batch.output, batch->batch.lse, expected).ok) << of.text();
  }
}

/// The outcome of a call in which the table changes behind the validation, as between prepare() and a layer.
gpu::Outcome attend_stale(Case& c, std::int64_t column, std::int64_t page, bool nan_if_refused) {
  const Tensor& table = c.batch.block_table;
  std::vector<std::int64_t> changed(static_cast<const std::int64_t*>(table.data),
                                    static_cast<const std::int64_t*>(table.data) + table.num_elements());
  changed[static_cast<std::size_t>(PageBatch::kRequest * table.stride[0] + column)] = page;
  simt::Device device;
  device.tamper = [&](gpu::GenericArgs& a) { a.block_table.data = changed.data(); };
  gpu::GenericArgs a = simt::attend_args(c);
  a.nan_if_refused = nan_if_refused;
  simt::WorkMemory memory(a, device.max_slices, device.split_keys, device.target_items);
  gpu::Outcome outcome;
  EXPECT_EQ(simt::attend(device, a, outcome, memory), "");
  return outcome;
}

TEST(SimtVisiblePages, AWildEntryBehindTheValidationIsNotFollowedAndIsHeard) {
  std::mt19937_64 random(7);
  int spoiled = 0, whole = 0;
  for (int i = 0; i < 300; ++i) {
    const PageCase of = drawn_page_case(random, 24);
    if (of.needed_columns() == 0) continue;
    const std::int64_t column = of.needed_columns() - 1;
    PageBatch batch(of, column + 1, random);
    EXPECT_NE(attend_stale(*batch, column, batch.wild(random()), /*nan_if_refused=*/false).broken, 0) << of.text();
    const auto* output = static_cast<const float*>(batch->batch.output.data);
    for (std::int64_t row = 0; row < of.rows; ++row) {
      bool sees = false;
      for (std::int64_t key = column * of.page_size; key < of.cached; ++key) sees = sees || of.sees(row, key);
      const std::int64_t first = row * PageBatch::kHeads * PageBatch::kDim;
      for (std::int64_t d = 0; d < PageBatch::kHeads * PageBatch::kDim; ++d)
        ASSERT_EQ(std::isnan(output[first + d]), sees) << of.text() << ": row " << row;
      (sees ? spoiled : whole) += 1;
    }
    attend_stale(*batch, column, batch.wild(random()), /*nan_if_refused=*/true);
    for (std::int64_t d = 0; d < batch->batch.output.num_elements(); ++d) ASSERT_TRUE(std::isnan(output[d])) << of.text();
  }
  EXPECT_GT(spoiled, 100);
  EXPECT_GT(whole, 50);
}

}  // namespace
}  // namespace quire::test
