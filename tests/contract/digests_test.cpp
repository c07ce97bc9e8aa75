// SPDX-License-Identifier: Apache-2.0
// Ledgers with digests: every bit of a slot counts, in every type, layout and scale form; moves that were announced are followed,
// and those that were not carried out are found. Runs of slots are one finding.
#include <gmock/gmock.h>

#include "contract/small_batch.h"
#include "quire/attention.hpp"
#include "quire/tools/capture.hpp"
#include "semantics/index_tensor.h"
#include "semantics/layout.h"
#include "text/formatted.h"

namespace quire::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::string> found(const Findings& findings, std::string_view rule = "Q-L07") {
  std::vector<std::string> messages;
  for (const Finding& f : findings.items)
    if (f.rule == rule) messages.push_back(f.message);
  return messages;
}

/// A made case whose ledger knows what its slots hold.
struct Known {
  explicit Known(const std::string& line)
      : made(make_case(parse_problem_line(line).value())), c(made.value()), ledger(num_pages(c.cache), page_size(c.cache), true) {
    const std::vector<std::int64_t> lens = semantics::indices_of(c.batch.seq_lens);
    std::vector<std::int64_t> slots;
    for (std::int64_t r = 0; r < static_cast<std::int64_t>(lens.size()); ++r)
      for (std::int64_t p = 0; p < lens[static_cast<std::size_t>(r)]; ++p) {
        ledger.record(slot(r, p), {r, p});
        slots.push_back(slot(r, p));
      }
    remembered = ledger.remember(c.cache, slots);
  }
  std::int64_t slot(std::int64_t request, std::int64_t position) const {
    const std::int64_t size = page_size(c.cache);
    return semantics::index_at(c.batch.block_table, request, position / size) * size + position % size;
  }
  std::vector<std::string> check() const { return found(quire::check(c.batch, c.cache, c.options, Depth::contents, &ledger)); }

  Result<Case> made;
  Case& c;
  SlotLedger ledger;
  Status remembered;
};

/// The last byte of the last head's row, of its token scale and of its last block scale, for K or V.
std::vector<std::byte*> bytes_of(const KVCache& cache, bool is_k, std::int64_t slot) {
  const Tensor &codes = is_k ? cache.k : cache.v, &scale = is_k ? cache.k_scale : cache.v_scale,
               &blocks = is_k ? cache.k_block_scale : cache.v_block_scale;
  const std::int64_t page = slot / page_size(cache), offset = slot % page_size(cache), head = num_kv_heads(cache) - 1;
  const semantics::KvStrides strides = is_k ? semantics::k_strides(cache) : semantics::v_strides(cache);
  const std::int64_t row = strides.row(page, head, offset), item = itemsize(codes.dtype);
  const std::int64_t last = codes.dtype == DType::fp8_ds_mla ? 655 : (is_k ? head_dim(cache) : v_head_dim(cache)) - 1;
  const auto at = [](const Tensor& t, std::int64_t byte) { return static_cast<std::byte*>(t.data) + byte; };
  std::vector<std::byte*> bytes;
  if (is_four_bit(codes.dtype))
    bytes.push_back(at(codes, (row + last) / 2));
  else
    bytes.push_back(at(codes, (row + strides.element(last)) * item + item - 1));
  if (scale.rank == 3)
    bytes.push_back(at(scale, 4 * (page * scale.stride[0] + offset * scale.stride[1] + head * scale.stride[2])));
  if (blocks.present())
    bytes.push_back(at(blocks, page * blocks.stride[0] + offset * blocks.stride[1] + head * blocks.stride[2] +
                                   (blocks.shape[3] - 1) * blocks.stride[3]));
  return bytes;
}

class Forms : public testing::TestWithParam<const char*> {};

TEST_P(Forms, EveryTensorOfASlotCounts) {
  Known known(GetParam());
  ASSERT_TRUE(known.remembered.ok()) << known.remembered.message();
  EXPECT_THAT(known.check(), IsEmpty());
  const std::int64_t slot = known.slot(1, 20);
  const bool shared = known.c.cache.k.data == known.c.cache.v.data;
  for (const bool is_k : {true, false})
    for (std::byte* byte : bytes_of(known.c.cache, is_k, slot)) {
      *byte ^= std::byte{1};
      const std::int64_t size = page_size(known.c.cache);
      EXPECT_THAT(known.check(),
                  ElementsAre(HasSubstr(formatted(
                      "Q-L07 block_table[1][{}]: request 1 reads position 20 from page {} offset {}, which was written by "
                      "request 1 for position 20 in step 0, {} changed since",
                      20 / size, slot / size, slot % size,
                      shared ? "K and V"
                      : is_k ? "K"
                             : "V"))));
      *byte ^= std::byte{1};
    }
  EXPECT_THAT(known.check(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(
    Digests, Forms,
    testing::Values("q=f32 heads=4:2 d=64 page=16 reqs=1@40,1@30", "q=f32 heads=4:2 d=60 page=7 layout=hnd reqs=1@40,1@30",
                    "q=f16 heads=4:2 d=64 dv=32 page=16 layout=packed reqs=1@40,1@30",
                    "q=bf16 heads=8:8 d=96 page=1 layout=hnd reqs=1@40,1@30",
                    "q=bf16 kv=fp8_e4m3fn heads=4:2 d=64 page=16 layout=packed kscale=head vscale=tensor reqs=1@40,1@30",
                    "q=bf16 kv=fp8_e5m2 heads=4:2 d=64 page=5 kscale=token vscale=token reqs=1@40,1@30",
                    "q=f16 kv=i8 heads=4:2 d=64 page=16 layout=hnd kscale=token vscale=token reqs=1@40,1@30",
                    "q=bf16 kv=nvfp4 heads=4:2 d=64 page=16 reqs=1@40,1@30",
                    "q=bf16 kv=mxfp4 heads=4:1 d=64 page=16 layout=hnd reqs=1@40,1@30",
                    "q=bf16 kv=bf16/fp8_e4m3fn heads=4:2 d=64 page=16 reqs=1@40,1@30",
                    "q=bf16 kv=fp8_ds_mla heads=16:1 d=576 dv=512 latent=1 page=64 reqs=1@40,1@30"));

TEST(Digests, AppendRecordsWhatItWrites) {
  SmallBatch b;
  b.keep_digests();
  const AppendOptions options{.ledger = &b.ledger, .tags = b.tags};
  ASSERT_TRUE(append(b.cache, b.batch.key, b.batch.value, b.batch.slot_mapping, options).ok());
  EXPECT_NE(b.ledger.digest(3 * 4 + 1).k, 0u);
  EXPECT_THAT(found(b.check()), IsEmpty());
  b.k_at(3, 1) += 1;
  EXPECT_THAT(found(b.check()), ElementsAre(HasSubstr("reads position 5 from page 3 offset 1")));
}

TEST(Digests, ARunOfSlotsIsOneFinding) {
  SmallBatch b;
  b.keep_digests();
  for (std::int64_t offset = 1; offset < 4; ++offset) b.k_at(2, offset) = b.v_at(2, offset) = 0;
  b.k_at(3, 0) = b.v_at(3, 0) = 0;
  EXPECT_THAT(
      found(b.check()),
      ElementsAre("Q-L07 block_table[0][0]: request 70 reads positions 1 to 4 from page 2 offset 1 to page 3 offset 0, which "
                  "were written by request 70 for positions 1 to 4 in step 4, K and V changed since, expected the bytes of "
                  "that write"));
  b.ledger.record(2 * 4 + 2, {70, 2});  // a write whose bytes nobody took
  EXPECT_EQ(found(b.check()).size(), 2u);
  b.depth = Depth::tables;
  EXPECT_THAT(found(b.check()), IsEmpty());
}

TEST(Digests, MovesAreFollowed) {
  SmallBatch b;
  b.keep_digests();
  const std::int64_t from[] = {3 * 4 + 2, 3 * 4 + 3}, to[] = {3 * 4 + 1, 3 * 4 + 2};  // position 5 was refused
  const WriteTag tags[] = {{-1, 5}, {-1, 6}};
  b.ledger.begin_step(9);
  ASSERT_TRUE(b.ledger.move(from, to, tags).ok());
  EXPECT_EQ(b.ledger.entry(to[1]).position, 6);
  EXPECT_EQ(b.ledger.entry(to[1]).request, 70);
  EXPECT_EQ(b.ledger.entry(to[1]).step, 9);
  EXPECT_EQ(b.ledger.digest(to[1]).k, b.ledger.digest(from[1]).k) << "all sources are read first";
  EXPECT_THAT(
      found(b.check()),
      ElementsAre("Q-L07 block_table[0][1]: request 70 reads positions 5 to 6 from page 3 offsets 1 to 2, which were moved from "
                  "slots 14 to 15 in step 9, K and V differ, expected the bytes of that write"));
  const std::size_t row = 16;
  for (std::vector<float>* side : {&b.k, &b.v}) std::copy_n(side->begin() + 14 * row, 2 * row, side->begin() + 13 * row);
  EXPECT_THAT(found(b.check()), IsEmpty());
  EXPECT_THAT(found(b.check(), "Q-L03"), IsEmpty());
}

TEST(Digests, MovesThatCannotBe) {
  SlotLedger ledger(4, 4, true);
  ledger.record(3, {1, 0});
  const std::int64_t one[] = {3}, out[] = {16}, twice[] = {5, 5}, two[] = {3, 4};
  EXPECT_EQ(ledger.move(one, two).message(), "move: 1 slots to 2 slots with 0 tags, expected as many of each");
  EXPECT_EQ(ledger.move(one, out).message(), "move: to[0]: slot 16 outside [0, 16)");
  EXPECT_EQ(ledger.move(out, one).message(), "move: from[0]: slot 16 outside [0, 16)");
  EXPECT_EQ(ledger.move(two, twice).message(), "move: to[1]: slot 5 as to[0], expected each slot once");
  EXPECT_EQ(ledger.entry(5).request, -1);
  const std::int64_t never[] = {9};
  const WriteTag tags[] = {{1, 1}};
  EXPECT_TRUE(ledger.move(never, one, tags).ok());
  EXPECT_EQ(ledger.entry(3).request, -1) << "what nobody wrote stays so";
}

TEST(Digests, RememberNeedsThemAndASoundCacheOfThisSize) {
  SmallBatch b;
  const std::int64_t slots[] = {8};
  EXPECT_EQ(b.ledger.remember(b.cache, slots).message(), "remember: the ledger was made without digests");
  SlotLedger other(8, 4, true);
  EXPECT_THAT(other.remember(b.cache, slots).message(), HasSubstr("Q-L05"));
  b.keep_digests();
  b.cache.k.data = nullptr;
  EXPECT_THAT(b.ledger.remember(b.cache, slots).message(), HasSubstr("Q-M04"));
}

// --- a table of slots -----------------------------------------------------------------------------------------------------

constexpr const char* kHint = "(entry j of this row is the slot of position j: the table holds slots, pages are expected)";

TEST(TableOfSlots, IsSaidOnceForARunOfReads) {
  SmallBatch b;
  b.batch.block_table.dtype = DType::i32;
  std::vector<std::int32_t> slots(SmallBatch::kReqs * 8, SmallBatch::kHugePage);
  for (std::int32_t j = 0; j < 8; ++j) slots[static_cast<std::size_t>(j)] = 8 + j;
  for (std::int32_t j = 2; j < 5; ++j) slots[static_cast<std::size_t>(8 + j)] = 5 + j;
  b.batch.block_table = Tensor::contiguous(slots.data(), DType::i32, SmallBatch::kReqs, 8);
  const std::vector<std::string> lines = found(b.check(), "Q-L01");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], HasSubstr("request 70 reads positions 5 to 7 from page 9 offsets 1 to 3, which were never written"));
  EXPECT_THAT(lines[0], HasSubstr(kHint));
}

TEST(TableOfSlots, IsSaidOfPagesOutside) {
  SmallBatch b;
  b.ledger = SlotLedger(SmallBatch::kPages, SmallBatch::kPage);
  for (std::int64_t p = 0; p < 6; ++p) b.ledger.record(20 + p, {70, p});
  b.seq_lens[0] = b.cached_lens[0] = 6;
  for (std::int32_t j = 0; j < 6; ++j) b.block_table[static_cast<std::size_t>(j)] = 20 + j;
  const std::vector<std::string> lines = found(b.check(), "Q-T03");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0], std::string("Q-T03 block_table[0][0]: page 20 outside [0, 16) ") + kHint);
}

}  // namespace
}  // namespace quire::test
