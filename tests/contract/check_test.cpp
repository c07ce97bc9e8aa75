// SPDX-License-Identifier: Apache-2.0
// Promises of check() beyond single rules: memory that it must not read, rules that it leaves out, its lists, and its survival.
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "batch/fields.h"
#include "contract/small_batch.h"
#include "quire/tools/capture.hpp"

namespace quire::test {
namespace {

using ::testing::ElementsAre;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

std::vector<std::string> ids(const Findings& findings) {
  std::vector<std::string> all;
  for (const Finding& finding : findings.items) all.push_back(finding.rule);
  return all;
}

std::vector<std::string> messages(const Findings& findings) {
  std::vector<std::string> all;
  for (const Finding& finding : findings.items) all.push_back(finding.message);
  return all;
}

// --- padding rows -------------------------------------------------------------------------------------------------------

/// The last row is padding: NaN in all that is read of a row, and no slot.
void pad_last_row(SmallBatch& b, Padding padding) {
  b.query_start_loc = {0, 3, 4, 5, 5};
  b.seq_lens[2] = 1;
  b.batch.padding = padding;
  b.slot_mapping[5] = -1;
  std::fill(b.query.end() - 4 * 8, b.query.end(), kNaN);
  std::fill(b.key.end() - 2 * 8, b.key.end(), kNaN);
  std::fill(b.value.end() - 2 * 8, b.value.end(), kNaN);
}

TEST(Padding, RowsBehindTheLastStartAreNotRead) {
  for (const Padding padding : {Padding::left, Padding::zero}) {
    SmallBatch b;
    pad_last_row(b, padding);
    EXPECT_THAT(messages(b.check()), ElementsAre());
  }
}

TEST(Padding, IsRefusedUnlessAskedFor) {
  SmallBatch b;
  pad_last_row(b, Padding::refused);
  EXPECT_THAT(ids(b.check()), ElementsAre("Q-T04"));
}

TEST(Padding, MayHaveNoRows) {
  SmallBatch b;
  b.batch.padding = Padding::zero;
  EXPECT_THAT(messages(b.check()), ElementsAre());
}

TEST(Padding, RequestsWithoutTokensAreLegalWithAndWithoutIt) {
  for (const Padding padding : {Padding::refused, Padding::left, Padding::zero}) {
    SmallBatch b;
    b.seq_lens[3] = b.cached_lens[3] = 0;  // query_len 0, too
    b.batch.padding = padding;
    EXPECT_THAT(messages(b.check()), ElementsAre());
  }
}

/// int64 starts seen as int32 are no padding: 0 0 3 0 4 decreases.
TEST(Padding, DoesNotHideHalves) {
  SmallBatch b;
  b.query_start_loc = {0, 0, 3, 0, 4};
  b.batch.padding = Padding::left;
  EXPECT_THAT(ids(b.check()), ElementsAre("Q-T05"));
}

/// Q-T05 of a table is a guess: a page id that is wrong in any case is told as well.
TEST(Halves, OfATableDoNotHideAWrongPage) {
  SmallBatch b;
  b.options.sliding_window.reset();
  for (std::size_t column = 0; column < 6; ++column)
    for (std::size_t r = 0; r < 4; ++r) b.block_table[r * 6 + column] = column % 2 == 0 ? 4 : 0;
  EXPECT_THAT(ids(b.check()), ElementsAre("Q-T05"));
  b.block_table[1 * 6 + 2] = 1 << 20;
  EXPECT_THAT(ids(b.check()), UnorderedElementsAre("Q-T05", "Q-T03"));
}

// --- words for layouts -------------------------------------------------------------------------------------------------

/// The cache of the small batch has 2 KV heads and pages of 4: read as hnd, 4 KV heads and pages of 2.
TEST(Words, ACacheOfTheOtherLayoutIsNamedWhereItsHeadsFit) {
  SmallBatch b;
  b.batch.key = b.batch.value = b.batch.slot_mapping = Tensor{};
  b.cache.k_scale = b.cache.v_scale = Tensor{};
  b.use_ledger = false;
  b.depth = Depth::metadata;
  for (Tensor* t : {&b.batch.query, &b.batch.output}) t->shape[1] = 2;
  b.batch.lse = b.options.alibi_slopes = b.options.sinks = Tensor{};
  b.cache.layout = CacheLayout::hnd;
  EXPECT_THAT(messages(b.check()), ElementsAre("Q-M23 query: num_q_heads 2, expected a multiple of num_kv_heads 4 (as layout nhd "
                                               "the cache has 2 KV heads and pages of 4)"));
  std::swap(b.cache.k.shape[1], b.cache.k.shape[2]);
  std::swap(b.cache.v.shape[1], b.cache.v.shape[2]);
  b.cache.layout = CacheLayout::nhd;
  EXPECT_THAT(messages(b.check()), ElementsAre("Q-M23 query: num_q_heads 2, expected a multiple of num_kv_heads 4 (as layout hnd "
                                               "the cache has 2 KV heads and pages of 4)"));
}

TEST(Words, AShuffledVIsToldHowItBecomesPacked) {
  SmallBatch b;
  b.depth = Depth::metadata;
  b.cache.layout = CacheLayout::packed;
  b.cache.k = Tensor::contiguous(b.k.data(), DType::f32, 16, 2, 2, 4, 4);
  b.cache.v = Tensor::contiguous(b.v.data(), DType::f32, 16, 2, 1, 8, 4);
  EXPECT_THAT(messages(b.check()), ::testing::Contains(::testing::AllOf(
                                       ::testing::StartsWith("Q-M06 cache.v: rank 5, expected rank 4 for layout packed"),
                                       ::testing::HasSubstr("order 0 1 3 2 4"))));
  b.cache.v.shape[4] = 2;
  EXPECT_THAT(messages(b.check()), ::testing::Not(::testing::Contains(::testing::HasSubstr("0 1 3 2 4"))));
}

// --- one page at two places of one request ------------------------------------------------------------------------------

/// The small batch without ledger and slots, whose rules have their own words for such a table.
struct Repeated : SmallBatch {
  Repeated() {
    use_ledger = false;
    batch.slot_mapping = Tensor{};
  }
};

TEST(DistinctSlots, ATableFilledInPartIsNamedAndServed) {
  Repeated b;
  b.options.sliding_window.reset();
  std::fill(b.k.begin(), b.k.end(), 0.5f);
  std::fill(b.v.begin(), b.v.end(), 0.5f);
  std::fill(b.block_table.begin() + 6 + 2, b.block_table.begin() + 12, 0);
  b.block_table[6] = 7, b.block_table[6 + 1] = 8;
  EXPECT_THAT(messages(b.check()),
              ElementsAre("Q-T22 block_table[1][3]: page 0 at positions 12 to 15, expected slots that the request sees once: "
                          "block_table[1][2] has that page at positions 8 to 11 (are the entries behind those in use zeros?)",
                          "Q-T22 block_table[1][4]: page 0 at position 16, expected slots that the request sees once: "
                          "block_table[1][2] has that page at positions 8 to 11 (are the entries behind those in use zeros?)"));
  b.depth = Depth::tables;  // depth that plan(), attend() and reference() ask for
  EXPECT_THAT(messages(b.check()), ElementsAre());
}

/// Three pages and a window of six keys: the oldest visible key and the newest one share a page, and no slot.
TEST(DistinctSlots, ARingUnderAWindowIsLegal) {
  Repeated b;
  b.options.sliding_window = 6;  // positions 11 to 16
  b.block_table[6 + 4] = 7;      // position 16 has offset 0, position 11 has offset 3
  EXPECT_THAT(messages(b.check()), ElementsAre());
  b.options.sliding_window = 9;  // positions 8 to 16
  EXPECT_THAT(ids(b.check()), ElementsAre("Q-T22"));
}

TEST(DistinctSlots, PagesBetweenAPrefixAndAWindowMayRepeatAnything) {
  Repeated b;
  b.options.sliding_window = 5;  // positions 12 to 16
  b.options.prefix_len = 4;
  b.block_table[6] = 7, b.block_table[6 + 1] = b.block_table[6 + 2] = 8;
  EXPECT_THAT(messages(b.check()), ElementsAre());
  b.block_table[6] = 8;
  EXPECT_THAT(messages(b.check()),
              ElementsAre("Q-T22 block_table[1][3]: page 8 at positions 12 to 15, expected slots that the request sees once: "
                          "block_table[1][0] has that page at positions 0 to 3"));
}

TEST(DistinctSlots, TwoRequestsMaySharePages) {
  Repeated b;
  b.block_table[6 + 2] = 2, b.block_table[6 + 3] = 3;
  EXPECT_THAT(messages(b.check()), ElementsAre());
}

/// Four requests see the one page of a table that is stored once.
TEST(DistinctSlots, ABroadcastTableTakesNoMemory) {
  Repeated b;
  b.options.sliding_window.reset();
  b.block_table[0] = 7;
  b.batch.block_table.stride[0] = b.batch.block_table.stride[1] = 0;
  const Findings findings = b.check();
  EXPECT_EQ(findings.total, 1 + 4);  // request 0 has two pages, request 1 five
  EXPECT_THAT(ids(findings), ::testing::Each("Q-T22"));
}

// --- the failing batch of a well-known bug report -----------------------------------------------------------------------

/// Ten requests, 64 heads of 128, pages of 32 out of 640. Data is never touched at depth tables, so inputs are broadcast views.
struct KnownCase {
  static constexpr std::int64_t kReqs = 10;
  std::vector<std::int64_t> query_lens{880, 410, 792, 927, 446, 57, 281, 1004, 539, 1};
  std::vector<std::int64_t> context_lens{430, 956, 818, 865, 326, 1007, 504, 382, 613, 929};
  std::vector<std::int64_t> starts{0};
  std::vector<std::int32_t> seq_lens, block_table = std::vector<std::int32_t>(10 * 64);
  std::vector<std::uint16_t> row = std::vector<std::uint16_t>(64 * 128);
  std::unique_ptr<std::uint16_t[]> output;
  Batch batch;
  KVCache cache;

  KnownCase() {
    for (std::size_t r = 0; r < kReqs; ++r) {
      starts.push_back(starts.back() + query_lens[r]);
      seq_lens.push_back(static_cast<std::int32_t>(query_lens[r] + context_lens[r]));
    }
    std::iota(block_table.begin(), block_table.end(), 0);
    output.reset(new std::uint16_t[static_cast<std::size_t>(starts.back()) * 64 * 128]);
    batch.query = Tensor::contiguous(row.data(), DType::f16, starts.back(), 64, 128);
    batch.query.stride[0] = 0;
    batch.output = Tensor::contiguous(output.get(), DType::f16, starts.back(), 64, 128);
    batch.query_start_loc = Tensor::contiguous(starts.data(), DType::i64, kReqs + 1);
    batch.seq_lens = Tensor::contiguous(seq_lens.data(), DType::i32, kReqs);
    batch.block_table = Tensor::contiguous(block_table.data(), DType::i32, kReqs, 64);
    cache.k = Tensor::contiguous(row.data(), DType::f16, 640, 32, 64, 128);
    cache.k.stride[0] = cache.k.stride[1] = 0;
    cache.v = cache.k;
  }
};

TEST(KnownCase, HonestInt64HasNoFinding) {
  const KnownCase known;
  EXPECT_EQ(known.starts.back(), 5337);
  EXPECT_THAT(messages(check(known.batch, known.cache, {}, Depth::tables)), ElementsAre());
}

TEST(KnownCase, Int64ReadAsInt32IsNamed) {
  KnownCase known;
  known.batch.query_start_loc.dtype = DType::i32;
  EXPECT_THAT(
      messages(check(known.batch, known.cache, {}, Depth::tables)),
      ElementsAre("Q-T05 query_start_loc: every second value is 0 (0 0 880 0 1290 0 ...), expected indices of their own type "
                  "(looks like an int64 array read as int32: pass it as i64, or convert it)"));
}

TEST(KnownCase, ConvertedToInt32HasNoFinding) {
  KnownCase known;
  std::vector<std::int32_t> converted(known.starts.begin(), known.starts.end());
  known.batch.query_start_loc = Tensor::contiguous(converted.data(), DType::i32, 11);
  EXPECT_THAT(messages(check(known.batch, known.cache, {}, Depth::tables)), ElementsAre());
}

TEST(KnownCase, PageOutOfRangeReadsAsDocumented) {
  KnownCase known;
  known.cache.k.shape[0] = known.cache.v.shape[0] = 512;
  for (std::int32_t& page : known.block_table) page %= 512;
  known.block_table[5 * 64 + 2] = 913;
  const Findings findings = check(known.batch, known.cache, {}, Depth::tables);
  ASSERT_THAT(messages(findings), ElementsAre("Q-T03 block_table[5][2]: page 913 outside [0, 512)"));
  EXPECT_EQ(findings.items[0].tensor, "block_table");
  EXPECT_THAT(findings.items[0].index, ElementsAre(5, 2));
  EXPECT_EQ(findings.items[0].value, "page 913");
  EXPECT_EQ(findings.items[0].expected, "in [0, 512)");
}

// --- valid, though unusual ----------------------------------------------------------------------------------------------

TEST(Valid, NoRequestsAndNoRows) {
  SmallBatch b;
  b.use_ledger = false;
  b.query_start_loc[0] = 0;
  for (Tensor* t : {&b.batch.query, &b.batch.output, &b.batch.key, &b.batch.value, &b.batch.slot_mapping, &b.batch.lse}) {
    t->shape[0] = 0;
    t->data = nullptr;
  }
  b.batch.query_start_loc.shape[0] = 1;
  for (Tensor* t : {&b.batch.seq_lens, &b.batch.cached_lens, &b.batch.block_table, &b.batch.request_ids}) {
    t->shape[0] = 0;
    t->data = nullptr;
  }
  EXPECT_THAT(messages(b.check()), ElementsAre());
  EXPECT_THAT(messages(b.check_append()), ElementsAre());
}

TEST(Valid, EveryOptionalTensorAbsent) {
  SmallBatch b;
  b.batch.key = b.batch.value = b.batch.slot_mapping = b.batch.lse = b.batch.request_ids = b.batch.cached_lens = Tensor{};
  b.cache.k_scale = b.cache.v_scale = Tensor{};
  b.options = Options{};
  b.options.sliding_window = 9;
  b.seq_lens[2] = 2;
  b.block_table[12] = 10;  // request 2 is cached now
  b.use_ledger = false;
  b.depth = Depth::tables;
  EXPECT_THAT(messages(b.check()), ElementsAre());
}

TEST(Valid, KAndVInterleavedInOneAllocation) {
  SmallBatch b;
  std::vector<float> both(2 * b.k.size());
  b.cache.k = b.cache.v = Tensor::contiguous(both.data(), DType::f32, 16, 4, 2, 8);
  b.cache.k.stride[0] = b.cache.v.stride[0] = 2 * 64;
  b.cache.v.data = both.data() + 64;
  EXPECT_THAT(messages(b.check_append()), ElementsAre());
  b.cache.v.data = both.data() + 63;  // halves collide in one element
  EXPECT_THAT(ids(b.check_append()), ElementsAre("Q-S07"));
}

TEST(Valid, AValueMayHaveAHeadDimOfItsOwn) {
  SmallBatch b;
  b.narrow_values();
  EXPECT_THAT(messages(b.check()), ElementsAre());
  EXPECT_THAT(messages(b.check_append()), ElementsAre());
}

/// Dims that V has not are not read, and those that it has are.
TEST(Unread, DimsBehindThoseOfV) {
  SmallBatch b;
  b.narrow_values();
  b.v[static_cast<std::size_t>((7 * 4 + 3) * 2 * 8 + 7)] = kNaN;  // dim 7 of a visible key of request 1
  EXPECT_THAT(messages(b.check()), ElementsAre());
  b.v[static_cast<std::size_t>((7 * 4 + 3) * 2 * 8 + 5)] = kNaN;
  EXPECT_THAT(ids(b.check()), ElementsAre("Q-C03"));
}

TEST(Valid, VMayLieInRowsOfKForReadingAlone) {
  for (const std::int64_t dims : {std::int64_t{6}, std::int64_t{8}}) {
    SmallBatch b;
    b.put_values_into_keys(dims);
    EXPECT_THAT(messages(b.check()), ElementsAre());
    EXPECT_THAT(ids(b.check_append()), ElementsAre("Q-S07"));
    b.cache.k.shape[3] = 6;  // a latent row is appended as its two parts
    b.cache.v.shape[3] = 2;
    b.cache.v.data = static_cast<float*>(b.cache.k.data) + 6;
    b.batch.key.shape[2] = 6;
    b.batch.value.shape[2] = 2;
    EXPECT_THAT(messages(b.check_append()), ElementsAre());
  }
}

TEST(Valid, OutputInterleavedWithQuery) {
  SmallBatch b;
  std::vector<float> both(2 * b.query.size());
  b.batch.query = b.batch.output = Tensor::contiguous(both.data(), DType::f32, 6, 4, 8);
  b.batch.query.stride[0] = b.batch.output.stride[0] = 64;
  b.batch.output.data = both.data() + 32;
  EXPECT_THAT(messages(b.check()), ElementsAre());
  b.batch.output.data = both.data() + 31;
  EXPECT_THAT(ids(b.check()), ElementsAre("Q-M16"));
}

TEST(Valid, WorkspaceBesideAndBetweenTensors) {
  SmallBatch b;
  std::vector<float> arena(2 * b.query.size());
  b.batch.query = Tensor::contiguous(arena.data(), DType::f32, 6, 4, 8);
  const auto bytes = std::as_bytes(std::span(arena));
  const auto findings = [&](std::span<const std::byte> workspace) {
    return messages(check_workspace(b.batch, b.cache, b.options, workspace));
  };
  EXPECT_THAT(findings(bytes.subspan(b.query.size() * 4)), ElementsAre());
  EXPECT_THAT(findings({}), ElementsAre());
  EXPECT_THAT(findings(bytes.first(0)), ElementsAre());
  EXPECT_THAT(findings(bytes.subspan(b.query.size() * 4 - 1)),
              ElementsAre(StartsWith("Q-M37 workspace: shares memory with query")));
  b.batch.query.stride[0] = 64;  // a row of 32 elements, and room for as many until the next
  EXPECT_THAT(findings(bytes.subspan(64 * 4 + 32 * 4, 32 * 4)), ElementsAre());
  EXPECT_THAT(findings(bytes.subspan(64 * 4 + 32 * 4, 32 * 4 + 1)), ElementsAre(StartsWith("Q-M37")));
  b.batch.output = b.batch.query;
  EXPECT_EQ(findings(bytes).size(), 2u);  // every tensor is named
  b.batch.query.memory = Memory::hip;
  b.batch.output.memory = Memory::cpu;  // equal addresses in another memory are another place
  EXPECT_THAT(findings(bytes), ElementsAre(StartsWith("Q-M37 workspace: shares memory with query")));
}

TEST(Valid, NegativeStridesAndTransposedOutput) {
  SmallBatch b;
  b.batch.output.data = b.output.data() + 5 * 32;
  b.batch.output.stride[0] = -32;
  b.batch.lse.stride = {1, 6};
  EXPECT_THAT(messages(b.check()), ElementsAre());
}

TEST(Valid, SharedPrefixPages) {
  SmallBatch b;
  b.block_table[6 + 2] = 15;  // request 1 continues on a page of request 70 ...
  for (std::int64_t p = 8; p < 12; ++p) b.ledger.record(15 * 4 + p - 8, {70, p});
  for (std::int64_t o = 0; o < 4; ++o)
    for (std::int64_t i = 0; i < 16; ++i) (&b.k_at(15, o))[i] = (&b.v_at(15, o))[i] = 1.5f;
  EXPECT_THAT(
      messages(b.check()),
      ElementsAre("Q-L02 block_table[1][2]: request 71 reads positions 8 to 11 from page 15 offsets 0 to 3, which were written "
                  "by request 70 for positions 8 to 11 in step 4, expected slots of request 71 or pages shared with it"));
  b.ledger.share(15, 71);
  EXPECT_THAT(messages(b.check()), ElementsAre());
}

TEST(Valid, PrefixWrittenByOneRequestAndReadByAnotherInTheSameStep) {
  SmallBatch b;
  b.use_ledger = false;
  b.cached_lens[2] = 2;
  b.block_table[12] = 10;
  b.seq_lens[3] = b.cached_lens[3] = 3;
  for (float* p : {&b.k_at(10, 0), &b.v_at(10, 0), &b.k_at(10, 1), &b.v_at(10, 1)}) std::fill_n(p, 16, 1.0f);
  EXPECT_THAT(messages(b.check()), ElementsAre());
}

TEST(Valid, NegativeSlotsAreSkipped) {
  SmallBatch b;
  b.slot_mapping = {-1, -1, -7, 36, -1, -1};
  EXPECT_THAT(messages(b.check()), ElementsAre());
  EXPECT_THAT(messages(b.check_append()), ElementsAre());
}

// --- what must not be read ----------------------------------------------------------------------------------------------

TEST(Unread, WindowDecidesWhichPagesCount) {
  SmallBatch b;
  b.use_ledger = false;
  b.depth = Depth::tables;
  b.options.sliding_window = 13;  // position 16 now sees 4 .. 16: one page more, and its table entry is poison
  EXPECT_THAT(messages(b.check()), ElementsAre("Q-T03 block_table[1][1]: page 1073741824 outside [0, 16)"));
  b.options.sliding_window.reset();
  EXPECT_EQ(b.check().total, 2);
}

TEST(Unread, WindowOfOneNeedsNoCachedPageWhenNewRowsComeAlong) {
  SmallBatch b;
  b.use_ledger = false;
  b.options.sliding_window = 1;
  b.cached_lens = {5, 16, 0, 3};
  b.batch.block_table.shape[1] = 0;
  b.batch.slot_mapping = Tensor{};
  EXPECT_THAT(messages(b.check()), ElementsAre());
  b.batch.block_table.data = nullptr;  // frameworks pass null for tensors without elements; UBSan forbids to add to it
  EXPECT_THAT(messages(b.check()), ElementsAre());
}

TEST(Unread, RequestsWithoutRowsNeedNoPages) {
  SmallBatch b;
  b.seq_lens[3] = b.cached_lens[3] = 1000;  // far more than the table is wide, but no row looks
  EXPECT_THAT(messages(b.check()), ElementsAre());
}

/// Memory that ends where the next access is a fault.
class BeforeAWall {
 public:
  explicit BeforeAWall(std::span<const std::int32_t> values) : page_(static_cast<std::size_t>(sysconf(_SC_PAGESIZE))) {
    base_ = static_cast<std::byte*>(mmap(nullptr, 2 * page_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_EQ(mprotect(base_ + page_, page_, PROT_NONE), 0);
    std::memcpy(data_ = base_ + page_ - values.size_bytes(), values.data(), values.size_bytes());
  }
  ~BeforeAWall() { munmap(base_, 2 * page_); }
  BeforeAWall(const BeforeAWall&) = delete;
  BeforeAWall& operator=(const BeforeAWall&) = delete;
  void* data() const { return data_; }

 private:
  std::size_t page_;
  std::byte* base_;
  std::byte* data_;
};

TEST(Unread, NoTableEntryOfAWindowThatBeginsBehindTheTable) {
  for (const std::int32_t seq_len : {24 + 9, 24 + 10, 24 + 11, 1000, 40000000, 2147483647}) {
    SmallBatch b;
    const BeforeAWall table(b.block_table);
    b.batch.block_table.data = table.data();
    b.query_start_loc = {0, 3, 3, 5, 6};  // the last request has a row, and its table row is the last one
    b.seq_lens[3] = b.cached_lens[3] = seq_len;
    b.slot_mapping[5] = 60;
    b.use_ledger = false;
    b.depth = Depth::tables;
    EXPECT_THAT(ids(b.check()), ElementsAre("Q-T10")) << seq_len;
  }
}

TEST(Unread, LedgerCountsItsReads) {
  SmallBatch b;
  EXPECT_EQ(b.ledger.slots_written(), 17);
  EXPECT_EQ(b.ledger.slots_read(), 0);
  ASSERT_TRUE(b.check().ok());
  EXPECT_EQ(b.ledger.slots_read(), 8 + 9);
}

// --- layouts and types at depth contents --------------------------------------------------------------------------------

TEST(Contents, EveryLayoutNamesTheElementAsShaped) {
  SmallBatch b;
  b.use_ledger = false;
  std::vector<float> k(b.k.size(), 1.0f), v(b.v.size(), 1.0f);
  b.cache.layout = CacheLayout::hnd;
  b.cache.k = Tensor::contiguous(k.data(), DType::f32, 16, 2, 4, 8);
  b.cache.v = Tensor::contiguous(v.data(), DType::f32, 16, 2, 4, 8);
  k[static_cast<std::size_t>(((7 * 2 + 1) * 4 + 3) * 8 + 5)] = kNaN;
  EXPECT_THAT(
      messages(b.check()),
      ElementsAre(
          "Q-C02 cache.k[7][1][3][5]: nan at position 11 of request 1 (page 7, offset 3, head 1, dim 5), expected finite"));

  std::fill(k.begin(), k.end(), 1.0f);
  b.cache.layout = CacheLayout::packed;
  b.cache.k = Tensor::contiguous(k.data(), DType::f32, 16, 2, 2, 4, 4);
  b.cache.v = Tensor::contiguous(v.data(), DType::f32, 16, 2, 8, 4);
  k[static_cast<std::size_t>((((7 * 2 + 1) * 2 + 1) * 4 + 3) * 4 + 2)] = kNaN;
  v[static_cast<std::size_t>(((2 * 2 + 0) * 8 + 6) * 4 + 1)] = kInf;
  EXPECT_THAT(
      messages(b.check()),
      ElementsAre(
          "Q-C02 cache.k[7][1][1][3][2]: nan at position 11 of request 1 (page 7, offset 3, head 1, dim 6), expected finite",
          "Q-C03 cache.v[2][0][6][1]: inf at position 1 of request 0 (page 2, offset 1, head 0, dim 6), expected finite"));
}

struct CodeCase {
  DType dtype;
  std::uint32_t finite;      ///< the largest finite code
  std::uint32_t non_finite;  ///< the smallest code that is not
};

class Codes : public ::testing::TestWithParam<CodeCase> {};

TEST_P(Codes, LargestFinitePassesAndTheNextFails) {
  const auto [dtype, finite, non_finite] = GetParam();
  SmallBatch b;
  b.use_ledger = false;
  const auto size = static_cast<std::size_t>(itemsize(dtype));
  std::vector<std::byte> k(b.k.size() * size), v(b.v.size() * size);
  b.cache.k = Tensor::contiguous(k.data(), dtype, 16, 4, 2, 8);
  b.cache.v = Tensor::contiguous(v.data(), dtype, 16, 4, 2, 8);
  b.cache.v_scale = Tensor{};
  std::byte* element = k.data() + (7 * 4 + 1) * 16 * static_cast<std::ptrdiff_t>(size);
  std::memcpy(element, &finite, size);
  EXPECT_THAT(messages(b.check()), ElementsAre());
  std::memcpy(element, &non_finite, size);
  EXPECT_THAT(ids(b.check()), ElementsAre("Q-C02"));
}

INSTANTIATE_TEST_SUITE_P(Contents, Codes,
                         ::testing::Values(CodeCase{DType::f32, 0x7F7FFFFF, 0x7F800000}, CodeCase{DType::f16, 0xFBFF, 0xFC00},
                                           CodeCase{DType::bf16, 0x7F7F, 0x7F80}, CodeCase{DType::fp8_e4m3fn, 0xFE, 0xFF},
                                           CodeCase{DType::fp8_e4m3fnuz, 0xFF, 0x80}, CodeCase{DType::fp8_e5m2, 0x7B, 0x7C},
                                           CodeCase{DType::fp8_e5m2fnuz, 0x7F, 0x80}));

// --- listing ------------------------------------------------------------------------------------------------------------

TEST(Listing, CapsPerRuleAndCountsAll) {
  SmallBatch b;
  std::fill(b.query.begin(), b.query.end(), kNaN);
  b.k_scale[0] = -1.0f;
  const Findings findings = b.check();
  EXPECT_EQ(findings.total, 1 + 6 * 4 * 8);
  EXPECT_EQ(static_cast<std::int64_t>(findings.items.size()), 1 + Findings::kMaxPerRule);
  EXPECT_EQ(findings.items[0].rule, "Q-T13");
  EXPECT_EQ(findings.status().message(), "Q-T13 k_scale[0]: -1, expected finite and > 0 (and 192 more)");
}

TEST(Listing, ComesInRuleOrder) {
  SmallBatch b;
  b.sinks[0] = kNaN;
  b.options.softmax_scale = -1.0f;
  b.slot_mapping[5] = 1000;
  b.query[0] = kInf;
  b.block_table[0] = 16;
  EXPECT_THAT(ids(b.check()), ElementsAre("Q-M31", "Q-T03", "Q-T15", "Q-S01", "Q-C01"));
}

TEST(Listing, ExhaustedMemoryIsNotSilence) {
  Findings findings;
  findings.total = 1;
  EXPECT_EQ(findings.status().code(), Code::out_of_memory);
}

// --- hostile input ------------------------------------------------------------------------------------------------------

TEST(Hostile, EverythingAbsent) {
  EXPECT_THAT(ids(check({}, {}, {})), ElementsAre("Q-M01", "Q-M01", "Q-M01", "Q-M01", "Q-M01", "Q-M01", "Q-M01"));
  EXPECT_THAT(ids(check_append({}, {}, {}, {})), ElementsAre("Q-M01", "Q-M01", "Q-M01", "Q-M01", "Q-M01"));
  EXPECT_THAT(ids(check_merge({}, {}, {}, {}, {}, {})), ElementsAre("Q-M01", "Q-M01", "Q-M01", "Q-M01", "Q-M01"));
}

TEST(Hostile, ExtremeNumbersInEveryDescriptorField) {
  const std::int64_t extremes[] = {INT64_MIN, -1, 0, 1, INT64_MAX, std::int64_t{1} << 31, std::int64_t{1} << 62};
  SmallBatch proto;
  Tensor* (*const pick[])(SmallBatch&) = {
      [](SmallBatch& b) { return &b.batch.query; },
      [](SmallBatch& b) { return &b.batch.output; },
      [](SmallBatch& b) { return &b.batch.block_table; },
      [](SmallBatch& b) { return &b.batch.seq_lens; },
      [](SmallBatch& b) { return &b.batch.key; },
      [](SmallBatch& b) { return &b.cache.k; },
      [](SmallBatch& b) { return &b.cache.v; },
      [](SmallBatch& b) { return &b.batch.query_start_loc; },
      [](SmallBatch& b) { return &b.batch.slot_mapping; },
      [](SmallBatch& b) { return &b.options.sinks; },
  };
  for (auto* which : pick) {
    for (std::int64_t extreme : extremes) {
      SmallBatch b;
      b.depth = Depth::metadata;  // the memory behind such shapes does not exist; no rule of metadata may miss it
      Tensor* t = which(b);
      t->shape[0] = extreme;
      const Findings by_shape = b.check();
      EXPECT_TRUE(!by_shape.ok() || (extreme >= 0 && extreme < std::int64_t{1} << 31));
      (void)b.check_append();
      t->shape[0] = which(proto)->shape[0];
      t->stride[0] = extreme;
      const Findings by_stride = b.check();
      EXPECT_TRUE(!by_stride.ok() || (extreme != INT64_MIN && extreme != INT64_MAX));
      t->stride[0] = which(proto)->stride[0];
      t->rank = static_cast<int>(extreme);
      (void)b.check();
    }
  }
}

TEST(Hostile, ARankThatIsNoneInAnyTensor) {
  for (const char* form : {"q=f32 kv=nvfp4 d=64 kscale=head vscale=head", "q=f32 kv=i8 d=8 kscale=token vscale=token",
                           "q=bf16 kv=fp8_ds_mla d=576 dv=512 latent=1"})
    for (std::size_t i = 0; i < batch::kNumTensors; ++i)
      for (const int rank : {8, 1 << 30}) {
        const std::string line = std::string(form) + " heads=2:1 page=4 reqs=2@6/7,1@9 lse=1 seed=1";
        Case c = make_case(parse_problem_line(line).value()).value();
        std::size_t at = 0;
        bool changed = false;
        const auto change = [&](const auto&, Tensor& t) {
          if (at++ != i || !t.present()) return;
          t.rank = rank;
          changed = true;
        };
        batch::for_each_tensor(change, c);
        EXPECT_EQ(check(c.batch, c.cache, c.options, Depth::contents).ok(), !changed) << batch::kTensors[i].name << " " << line;
      }
}

TEST(Hostile, IndexValuesAtTheEdgeOfInt64) {
  for (const std::int64_t extreme : {INT64_MIN, INT64_MIN + 1, INT64_MAX - 1, INT64_MAX}) {
    for (int which = 0; which < 4; ++which) {
      SmallBatch b;
      std::vector<std::int64_t> starts(b.query_start_loc.begin(), b.query_start_loc.end());
      std::vector<std::int64_t> seq(b.seq_lens.begin(), b.seq_lens.end()), cached(b.cached_lens.begin(), b.cached_lens.end());
      std::vector<std::int64_t> table(b.block_table.begin(), b.block_table.end());
      b.batch.query_start_loc = Tensor::contiguous(starts.data(), DType::i64, 5);
      b.batch.seq_lens = Tensor::contiguous(seq.data(), DType::i64, 4);
      b.batch.cached_lens = Tensor::contiguous(cached.data(), DType::i64, 4);
      b.batch.block_table = Tensor::contiguous(table.data(), DType::i64, 4, 6);
      EXPECT_TRUE(b.check().ok());
      (which == 0 ? starts[1] : which == 1 ? seq[1] : which == 2 ? cached[1] : table[8]) = extreme;
      EXPECT_FALSE(b.check().ok()) << which << " " << extreme;
    }
  }
}

TEST(Hostile, ExtremeNumbersInKeyLists) {
  const std::int64_t extremes[] = {INT64_MIN, -1, 0, 1, INT64_MAX, std::int64_t{1} << 31, std::int64_t{1} << 62};
  Tensor* (*const pick[])(SmallLists&) = {[](SmallLists& l) { return &l.lists.ids; },
                                          [](SmallLists& l) { return &l.lists.num_keys; }};
  for (auto* which : pick)
    for (const std::int64_t extreme : extremes) {
      SmallLists l;
      l.list_pages();
      Tensor* const t = which(l);
      const Tensor sound = *t;
      t->shape[0] = extreme;
      EXPECT_FALSE(l.check().ok());
      *t = sound;
      t->stride[0] = extreme;
      const Findings by_stride = l.metadata();
      EXPECT_TRUE(!by_stride.ok() || (extreme != INT64_MIN && extreme != INT64_MAX));
      *t = sound;
      t->rank = static_cast<int>(extreme);
      EXPECT_FALSE(extreme != 1 && l.check().ok());
    }
  for (const std::int64_t extreme : {INT64_MIN, INT64_MIN + 1, INT64_MAX - 1, INT64_MAX})
    for (const bool in_ids : {false, true}) {
      SmallLists l;
      l.list_pages();
      std::vector<std::int64_t> ids(l.ids.begin(), l.ids.end()), num_keys(l.num_keys.begin(), l.num_keys.end());
      l.lists.ids = Tensor::contiguous(ids.data(), DType::i64, 4, 4);
      l.lists.num_keys = Tensor::contiguous(num_keys.data(), DType::i64, 4);
      EXPECT_TRUE(l.check().ok());
      (in_ids ? ids[0] : num_keys[0]) = extreme;
      EXPECT_FALSE(l.check().ok());
    }
}

TEST(Hostile, ABroadcastListOfManyEntriesCostsNoMemory) {
  SmallLists l;
  l.lists.ids.shape[1] = std::numeric_limits<std::int32_t>::max() / 1024;
  l.lists.ids.stride[1] = 0;
  const Findings findings = l.check();
  EXPECT_GT(findings.total, 1000);
  EXPECT_EQ(findings.items.front().rule, "Q-K08");
}

TEST(Hostile, ABroadcastClaimOfManyRowsCostsNoMemory) {
  SmallBatch b;
  float row[8] = {};
  std::int64_t slot = 3;
  const Tensor rows{row, DType::f32, 3, {1 << 24, 2, 8, 0, 0}, {0, 0, 1, 0, 0}, Memory::cpu};
  const Tensor slots{&slot, DType::i64, 1, {1 << 24, 0, 0, 0, 0}, {0, 0, 0, 0, 0}, Memory::cpu};
  EXPECT_THAT(messages(check_append(b.cache, rows, rows, slots)),
              ElementsAre("Q-S02 slot_mapping[1]: slot 3, expected a slot of its own, not that of row 0"));
}

TEST(Hostile, ABrokenPrerequisiteSilencesWhatDependsOnIt) {
  SmallBatch b;
  b.block_table[0] = 99;
  b.batch.seq_lens.dtype = DType::f32;  // lengths unknown: no page rule may guess
  EXPECT_THAT(ids(b.check()), ElementsAre("Q-M27"));
  b.batch.seq_lens.dtype = DType::i32;
  EXPECT_THAT(ids(b.check()), ElementsAre("Q-T03"));
}

TEST(Masks, AreValidAndFreeOfFindings) {
  SmallBatch b;
  b.ask_for_masks();
  EXPECT_TRUE(b.check().ok()) << b.check().status().message();
  b.batch.causal = {};
  b.options.causal = false;
  b.options.window_right = 0;
  EXPECT_TRUE(b.check().ok()) << b.check().status().message();
}

TEST(Masks, RequestsMayLackKeysWhereTheySaySo) {
  SmallBatch b;
  b.seq_lens[0] = b.cached_lens[0] = 0;
  b.slot_mapping[0] = b.slot_mapping[1] = b.slot_mapping[2] = -1;
  EXPECT_EQ(b.check().items.front().rule, "Q-T06");
  b.ask_for_masks();
  EXPECT_TRUE(b.check().ok()) << b.check().status().message();
  b.batch.q_begin = {};
  EXPECT_EQ(b.check().items.front().rule, "Q-T06");
  b.causal[0] = 0;
  EXPECT_TRUE(b.check().ok()) << b.check().status().message();
}

/// The ledger counts positions in the sequence: a cache that lost its head is sound, and a wrong key_begin is not.
TEST(Masks, TheLedgerKnowsWhereKeysBegin) {
  SmallBatch b;
  b.drop_head_of_request_1();
  EXPECT_TRUE(b.check().ok()) << b.check().status().message();
  b.key_begin[1] = 7;
  b.q_begin[1] = 15;
  const Findings findings = b.check();
  ASSERT_FALSE(findings.ok());
  for (const Finding& f : findings.items) EXPECT_TRUE(f.rule == "Q-L03" || f.rule == "Q-S03" || f.rule == "Q-S04") << f.message;
  EXPECT_NE(findings.status().message().find("position"), std::string::npos);
}

/// Scales of slots that no row sees may hold anything; those in use, and scales inside of pages, are sound.
TEST(TokenScales, BesideTheCacheAndInsideOfPages) {
  SmallBatch b;
  b.ask_for_token_scales();
  EXPECT_TRUE(b.check().ok()) << b.check().status().message();
  EXPECT_TRUE(b.check_append().ok()) << b.check_append().status().message();

  // vLLM's rows: [K codes, K scale, V codes, V scale] of a token and KV head.
  constexpr std::int64_t kRow = 2 * (SmallBatch::kDim + 4), kSlots = SmallBatch::kPages * SmallBatch::kPage;
  std::vector<float> pages(static_cast<std::size_t>(kSlots * SmallBatch::kKvHeads * kRow / 4), 0.5f);
  auto* bytes = reinterpret_cast<std::int8_t*>(pages.data());
  KVCache& c = b.cache;
  for (const auto& [codes, scale, at] : {std::tuple{&c.k, &c.k_scale, 0}, {&c.v, &c.v_scale, kRow / 2}}) {
    codes->data = bytes + at;
    codes->stride = {SmallBatch::kPage * SmallBatch::kKvHeads * kRow, SmallBatch::kKvHeads * kRow, kRow, 1};
    scale->data = bytes + at + SmallBatch::kDim;
    scale->stride = {codes->stride[0] / 4, codes->stride[1] / 4, kRow / 4};
  }
  EXPECT_TRUE(b.check_append().ok()) << b.check_append().status().message();
  EXPECT_TRUE(b.check().ok()) << b.check().status().message();
  c.k_scale.data = bytes + SmallBatch::kDim - 4;  // scales begin in the row's codes
  EXPECT_EQ(b.check_append().items.front().message, "Q-S07 k_scale: shares memory with cache.k, expected memory of its own");
}

/// Scales of slots that no row sees may hold anything; scales may lie behind the codes of their page, as vLLM and FlashInfer have
/// them; append() writes them, so they share no memory.
TEST(BlockScales, BesideTheCacheAndInsideOfPages) {
  for (const DType type : {DType::nvfp4, DType::mxfp4}) {
    SmallBatch b;
    b.ask_for_blocks(type);
    EXPECT_TRUE(b.check().ok()) << b.check().status().message();
    EXPECT_TRUE(b.check_append().ok()) << b.check_append().status().message();

    constexpr std::int64_t kRows = SmallBatch::kPage * SmallBatch::kKvHeads;  // rows of a page
    const std::int64_t blocks = 64 / block_size(type), side = kRows * (32 + blocks);
    std::vector<std::uint8_t> pages(static_cast<std::size_t>(SmallBatch::kPages * 2 * side), type == DType::nvfp4 ? 0x38 : 127);
    KVCache& c = b.cache;
    for (const auto& [codes, scales, at] :
         {std::tuple{&c.k, &c.k_block_scale, std::int64_t{0}}, {&c.v, &c.v_block_scale, side}}) {
      codes->data = pages.data() + at;
      codes->stride[0] = 2 * side;
      scales->data = pages.data() + at + kRows * 32;
      scales->stride[0] = 2 * side;
    }
    EXPECT_TRUE(b.check_append().ok()) << b.check_append().status().message();
    EXPECT_TRUE(b.check().ok()) << b.check().status().message();
    c.v_block_scale.data = pages.data() + kRows * 32 - 1;
    EXPECT_EQ(b.check_append().items.front().message,
              "Q-S07 v_block_scale: shares memory with cache.k, expected memory of its own");
  }
}

/// One scale of the tensor or the head serves an i8 cache, too.
TEST(TokenScales, AnI8CacheMayHaveOtherScales) {
  SmallBatch b;
  b.ask_for_token_scales();
  b.cache.k_scale = Tensor::contiguous(b.k_scale.data(), DType::f32, SmallBatch::kKvHeads);
  b.cache.v_scale = Tensor::contiguous(b.v_scale.data(), DType::f32);
  EXPECT_TRUE(b.check().ok()) << b.check().status().message();
}

}  // namespace
}  // namespace quire::test
