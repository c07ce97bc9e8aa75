// SPDX-License-Identifier: Apache-2.0
// Captures: what is written is read back to the byte, and the file itself is fixed by a golden.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <thread>

#include "capture/case_util.h"
#include "files/atomic_file.h"

namespace quire {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// A folder of its own, removed at the end.
class CaptureFile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "quire_capture_XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  std::string path(const char* name = "case.safetensors") const { return (folder_ / name).string(); }
  std::size_t num_files() const {
    return static_cast<std::size_t>(
        std::distance(std::filesystem::directory_iterator(folder_), std::filesystem::directory_iterator()));
  }
  std::filesystem::path folder_;
};

std::string file_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

Case make(const std::string& text) { return make_case(parse_problem_line(text).value()).value(); }

void expect_equal(const Case& a, const Case& b) {
  const auto left = test::tensors_of(a);
  const auto right = test::tensors_of(b);
  for (std::size_t i = 0; i < left.size(); ++i) {
    const Tensor& x = left[i].second;
    const Tensor& y = right[i].second;
    ASSERT_EQ(to_string(x), to_string(y)) << left[i].first;
    EXPECT_TRUE(x.num_elements() == 0 || std::memcmp(x.data, y.data, test::bytes_of(x)) == 0) << left[i].first;
  }
  EXPECT_EQ(a.cache.layout, b.cache.layout);
  EXPECT_EQ(a.options.softmax_scale, b.options.softmax_scale);
  EXPECT_EQ(a.options.sliding_window, b.options.sliding_window);
  EXPECT_EQ(a.options.logits_soft_cap, b.options.logits_soft_cap);
  EXPECT_EQ(a.batch.padding, b.batch.padding);
  EXPECT_EQ(a.options.causal, b.options.causal);
  EXPECT_EQ(a.options.window_right, b.options.window_right);
  EXPECT_EQ(a.options.attention_chunk, b.options.attention_chunk);
  EXPECT_EQ(a.options.prefix_len, b.options.prefix_len);
  EXPECT_EQ(a.options.spans_beyond_window, b.options.spans_beyond_window);
  EXPECT_EQ(a.notes, b.notes);
}

TEST_F(CaptureFile, RoundTripsEveryTypeLayoutAndOption) {
  for (const char* text :
       {"q=f32 heads=4:2 d=7 page=5 reqs=3@10,0@12,1 window=4 lse=1 seed=1 scale=0.1",
        "q=f32 heads=4:2 d=8 page=4 reqs=3@10,9,1@7 window=4 chunk=8 spans=0:2-4,0:9-12,1:0-5 beyond=1 prefix=1x2,1x0,1x3 "
        "tree=3,9,0",
        "q=f16 heads=4:2 d=8 page=4 reqs=3@10 window=4 prefix=2 index=i64",
        "q=bf16 kv=fp8_e4m3fn heads=8:2 d=64 page=16 reqs=20@33/40,1@64/64 kscale=head vscale=tensor alibi=1 sinks=1 cap=33.3",
        "q=f16 kv=fp8_e4m3fnuz heads=3 d=16 page=1 layout=packed reqs=2@3,1@17 window=1 kscale=tensor vscale=head",
        "q=f16 kv=fp8_e5m2 heads=2:1 d=24 page=8 layout=hnd reqs=3x4@20,2@50 share=2 index=i64 pages=40 seed=9",
        "q=bf16 kv=fp8_e5m2fnuz heads=2 d=16 page=3 layout=packed reqs=9@4/6,1@1/1 lse=1",
        "q=bf16 heads=2 d=4 page=4 reqs=none lse=1 alibi=1 sinks=1", "q=bf16 heads=2 d=4 page=4 reqs=3@9,2x0 pad=4 lse=1",
        "q=bf16 heads=2 d=4 page=4 reqs=3@9,2x0 pad=4:zero lse=1", "q=bf16 heads=2 d=4 dv=6 page=4 reqs=3@9/10,1@2 lse=1",

        "q=bf16 heads=2 d=4 page=4 causal=1x1,1x0 wright=3 kbegin=1x16,1x0 qbegin=1x30,1x4 reqs=3@9,4:2 lse=1",
        "q=bf16 heads=2 d=4 page=4 causal=0 wright=0 reqs=3@9,4:0"}) {
    Case c = make(text);
    c.observed = c.batch.output;
    c.observed_lse = c.batch.lse;
    c.batch.request_ids = c.batch.seq_lens;
    c.notes["producer"] = "test \"quotes\" \\ \n \x01 \xC3\xA9";
    ASSERT_TRUE(write_capture(path(), c).ok());
    const Result<Case> back = read_capture(path());
    ASSERT_TRUE(back.ok()) << back.status().message();
    expect_equal(back.value(), c);
    // Canonical: writing what was read gives the same file.
    ASSERT_TRUE(write_capture(path("again"), back.value()).ok());
    EXPECT_EQ(file_bytes(path()), file_bytes(path("again")));
    for (const auto& [name, t] : test::tensors_of(back.value()))
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(t.data) % 64, 0u) << name;
  }
}

/// A V in K's rows keeps its numbers; it comes back as a tensor of its own.
TEST_F(CaptureFile, AViewOfKComesBackAsACopy) {
  const Case c = make("q=f16 heads=4:1 d=12 dv=8 latent=1 page=4 reqs=3@9 seed=2");
  ASSERT_EQ(c.cache.v.data, c.cache.k.data);
  ASSERT_TRUE(write_capture(path(), c).ok());
  const Result<Case> back = read_capture(path());
  ASSERT_TRUE(back.ok()) << back.status().message();
  const Tensor& v = back->cache.v;
  ASSERT_NE(v.data, back->cache.k.data);
  ASSERT_EQ(v.shape[3], 8);
  const auto* rows = static_cast<const std::uint16_t*>(c.cache.k.data);
  for (std::int64_t i = 0; i < v.num_elements(); ++i)
    ASSERT_EQ(static_cast<const std::uint16_t*>(v.data)[i], rows[i / 8 * 12 + i % 8]) << i;
  EXPECT_EQ(back->batch.output.shape[2], 8);
}

TEST_F(CaptureFile, WithoutPaddingIsTheFileThatItAlwaysWas) {
  ASSERT_TRUE(write_capture(path(), make("q=f32 heads=2 d=4 page=4 reqs=3@9 seed=1")).ok());
  EXPECT_EQ(file_bytes(path()).find("padding"), std::string::npos);
  EXPECT_EQ(read_capture(path())->batch.padding, Padding::refused);
}

/// 4 MiB of query and as much cache: large tensors stay in the file, small ones are read.
TEST_F(CaptureFile, MappedIsTheSameCaseAndItsWritesStayInMemory) {
  const Case c = make("q=f32 heads=8 d=128 page=16 reqs=1024 seed=3");
  ASSERT_TRUE(write_capture(path(), c).ok());
  const std::string before = file_bytes(path());
  {
    const Result<Case> mapped = map_capture(path());
    ASSERT_TRUE(mapped.ok()) << mapped.status().message();
    expect_equal(mapped.value(), c);
    EXPECT_NE(reinterpret_cast<std::uintptr_t>(mapped->batch.query.data) % 64, 0u) << "an offset in the file: it was not copied";
    std::memset(mapped->batch.query.data, 0x5A, 4096);
  }
  EXPECT_EQ(file_bytes(path()), before);
}

TEST_F(CaptureFile, MappedSurvivesThatTheFileIsReplaced) {
  ASSERT_TRUE(write_capture(path(), make("q=f32 heads=8 d=128 page=16 reqs=1024 seed=3")).ok());
  const Result<Case> mapped = map_capture(path());
  ASSERT_TRUE(mapped.ok()) << mapped.status().message();
  ASSERT_TRUE(write_capture(path(), make("q=f32 heads=1 d=8 page=16 reqs=1")).ok());
  expect_equal(mapped.value(), make("q=f32 heads=8 d=128 page=16 reqs=1024 seed=3"));
}

TEST_F(CaptureFile, FloatsKeepEveryBit) {
  Case c = make("q=f32 heads=1 d=1 page=1 reqs=1");
  for (const float x : {0.1f, 1.0f / 3, std::numeric_limits<float>::max(), std::numeric_limits<float>::denorm_min(), -0.0f,
                        std::numeric_limits<float>::infinity(), 16777217.0f, 1e-10f}) {
    c.options.softmax_scale = c.options.logits_soft_cap = x;
    ASSERT_TRUE(write_capture(path(), c).ok());
    const Result<Case> back = read_capture(path());
    ASSERT_TRUE(back.ok()) << back.status().message();
    EXPECT_EQ(std::memcmp(&*back.value().options.softmax_scale, &x, sizeof x), 0) << x;
    EXPECT_EQ(back.value().options.logits_soft_cap, x);
  }
  // A broken option must reach check() as it is.
  c.options.softmax_scale = std::numeric_limits<float>::quiet_NaN();
  c.options.sliding_window = std::numeric_limits<std::int64_t>::min();
  ASSERT_TRUE(write_capture(path(), c).ok());
  const Result<Case> back = read_capture(path());
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_NE(*back.value().options.softmax_scale, *back.value().options.softmax_scale);
  EXPECT_EQ(back.value().options.sliding_window, std::numeric_limits<std::int64_t>::min());
}

TEST_F(CaptureFile, BytesAreTheGoldenOnes) {
  Case c;
  float query[2] = {1.0f, -2.0f};
  std::int32_t starts[2] = {0, 1}, lens[1] = {1}, table[1] = {0};
  std::uint8_t k[2] = {0x38, 0xB8}, v[2] = {0x40, 0x41};
  c.batch.query = Tensor::contiguous(query, DType::f32, 1, 1, 2);
  c.batch.query_start_loc = Tensor::contiguous(starts, DType::i32, 2);
  c.batch.seq_lens = Tensor::contiguous(lens, DType::i32, 1);
  c.batch.block_table = Tensor::contiguous(table, DType::i32, 1, 1);
  c.cache.k = Tensor::contiguous(k, DType::fp8_e4m3fn, 1, 1, 1, 2);
  c.cache.v = Tensor::contiguous(v, DType::fp8_e4m3fnuz, 1, 1, 1, 2);
  c.options.sliding_window = 4;
  c.options.softmax_scale = 0.5f;
  c.notes["producer"] = "golden";
  ASSERT_TRUE(write_capture(path(), c).ok());

  std::string json = R"({"__metadata__":{"dtype.v_cache":"fp8_e4m3fnuz","layout":"nhd","producer":"golden","quire_capture":"1",)"
                     R"("quire_version":"0.1.0","sliding_window":"4","softmax_scale":"0.5"},)"
                     R"("query":{"dtype":"F32","shape":[1,1,2],"data_offsets":[0,8]},)"
                     R"("query_start_loc":{"dtype":"I32","shape":[2],"data_offsets":[8,16]},)"
                     R"("seq_lens":{"dtype":"I32","shape":[1],"data_offsets":[16,20]},)"
                     R"("block_table":{"dtype":"I32","shape":[1,1],"data_offsets":[20,24]},)"
                     R"("k_cache":{"dtype":"F8_E4M3","shape":[1,1,1,2],"data_offsets":[24,26]},)"
                     R"("v_cache":{"dtype":"U8","shape":[1,1,1,2],"data_offsets":[26,28]}})";
  json.append((8 - json.size() % 8) % 8, ' ');
  std::string expected = {static_cast<char>(json.size() & 0xFF), static_cast<char>(json.size() >> 8), 0, 0, 0, 0, 0, 0};
  expected += json;
  expected += std::string("\x00\x00\x80\x3F\x00\x00\x00\xC0", 8);  // query: 1, -2
  expected += std::string("\x00\x00\x00\x00\x01\x00\x00\x00", 8);  // query_start_loc
  expected += std::string("\x01\x00\x00\x00\x00\x00\x00\x00", 8);  // seq_lens, block_table
  expected += std::string("\x38\xB8\x40\x41", 4);                  // k, v
  EXPECT_EQ(file_bytes(path()), expected);

  const Result<Case> back = read_capture(path());
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(back.value().cache.v.dtype, DType::fp8_e4m3fnuz);
  ASSERT_EQ(to_string(back.value().batch.output), "f32 [1, 1, 2]") << "an absent output is supplied";
  EXPECT_TRUE(std::isnan(test::float_at(back.value().batch.output, 1)));
}

TEST_F(CaptureFile, StridedTensorsAreWrittenContiguous) {
  Case c = make("q=f32 heads=3:1 d=4 page=2 reqs=5");
  const Case plain = make("q=f32 heads=3:1 d=4 page=2 reqs=5");
  // The same query with a gap after every row, the dims reversed in memory, and the table broadcast from one column.
  auto* wide = reinterpret_cast<float*>(c.allocate(5 * 20 * sizeof(float)));
  for (int t = 0; t < 5; ++t)
    for (int i = 0; i < 12; ++i) wide[t * 20 + i / 4 * 4 + 3 - i % 4] = test::float_at(plain.batch.query, t * 12 + i);
  c.batch.query.data = wide + 3;
  c.batch.query.stride = {20, 4, -1};
  c.batch.block_table.stride[1] = 0;
  ASSERT_TRUE(write_capture(path(), c).ok());
  const Result<Case> back = read_capture(path());
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_TRUE(back.value().batch.query.is_contiguous());
  EXPECT_EQ(std::memcmp(back.value().batch.query.data, plain.batch.query.data, test::bytes_of(plain.batch.query)), 0);
  for (std::int64_t j = 0; j < c.batch.block_table.shape[1]; ++j)
    EXPECT_EQ(test::index_at(back.value().batch.block_table, j), test::index_at(plain.batch.block_table, 0));
}

TEST_F(CaptureFile, LargeStridedTensorsPassTheBuffer) {
  Case c = make("q=f32 heads=1 d=1 page=1 reqs=1");
  const std::int64_t rows = 400000;
  auto* data = reinterpret_cast<float*>(c.allocate(static_cast<std::size_t>(rows) * 2 * sizeof(float)));
  for (std::int64_t i = 0; i < 2 * rows; ++i) data[i] = static_cast<float>(i);
  c.options.sinks = Tensor::contiguous(data, DType::f32, rows);
  c.options.sinks.stride[0] = 2;
  ASSERT_TRUE(write_capture(path(), c).ok());
  const Result<Case> back = read_capture(path());
  ASSERT_TRUE(back.ok());
  for (std::int64_t i = 0; i < rows; ++i) ASSERT_EQ(test::float_at(back.value().options.sinks, i), static_cast<float>(2 * i));
}

TEST_F(CaptureFile, WritesWholeFilesOrNothing) {
  const Case c = make("q=f32 heads=1 d=1 page=1 reqs=1");
  ASSERT_TRUE(write_capture(path(), c).ok());
  EXPECT_EQ(num_files(), 1u) << "the temporary file is gone";
  struct stat info{};
  ASSERT_EQ(::stat(path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0444u & ~0044u, 0400u);
  const std::string before = file_bytes(path());

  Case bad = c;
  bad.batch.query.shape[0] = -1;
  EXPECT_EQ(write_capture(path(), bad).code(), Code::invalid_argument);
  EXPECT_EQ(file_bytes(path()), before) << "a failed write leaves the old file";
  EXPECT_EQ(num_files(), 1u);

  const Status no_folder = write_capture(path("missing/case"), c);
  EXPECT_EQ(no_folder.code(), Code::io_error);
  EXPECT_THAT(no_folder.message(), AllOf(HasSubstr("missing/case"), HasSubstr("No such file")));
  const Status is_folder = write_capture(folder_.string(), c);
  EXPECT_EQ(is_folder.code(), Code::io_error);
  EXPECT_THAT(is_folder.message(), HasSubstr("not a regular file"));
}

TEST_F(CaptureFile, FullDiskLeavesNothingBehind) {
  // RLIMIT-free stand-in for a full disk: the write goes to a file system that refuses it.
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  const Status s = write_capture("/dev/full", make("q=f32 heads=1 d=1 page=1 reqs=1"));
  EXPECT_EQ(s.code(), Code::io_error);
  EXPECT_TRUE(std::filesystem::exists("/dev/full")) << "a device must not be replaced by a file";
}

struct Refusal {
  void (*spoil)(Case&);
  const char* message;
};

TEST_F(CaptureFile, RefusesToWriteWhatCannotBeRead) {
  const Refusal refusals[] = {
      {[](Case& c) { c.batch.query = {}; }, "tensor \"query\": it is absent"},
      {[](Case& c) { c.cache.v = {}; }, "tensor \"v_cache\": it is absent"},
      {[](Case& c) { c.batch.seq_lens.shape[0] = -3; }, "tensor \"seq_lens\": a dimension is negative"},
      {[](Case& c) { c.cache.k.shape[0] = std::int64_t{1} << 62; },
       "tensor \"k_cache\": a dimension is negative or the size exceeds"},
      {[](Case& c) { c.batch.output.data = nullptr; }, "tensor \"output\": data is null"},
      {[](Case& c) { c.batch.output.memory = Memory::cuda; }, "tensor \"output\": it is in device memory"},
      {[](Case& c) { c.batch.output.dtype = DType::none; }, "tensor \"output\": type none"},
      {[](Case& c) { c.batch.output.rank = 6; }, "tensor \"output\": rank 6"},
      {[](Case& c) { c.cache.layout = static_cast<CacheLayout>(9); }, "layout"},
      {[](Case& c) { c.notes["bad"] = "\xFF"; }, "UTF-8"},
      {[](Case& c) { c.notes["layout"] = "nhd"; }, "note \"layout\""},
      {[](Case& c) { c.notes["sliding_windo"] = "3"; }, "note \"sliding_windo\""},
      {[](Case& c) { c.notes["dtype.k_cache"] = "x"; }, "note \"dtype.k_cache\""},
      {[](Case& c) { c.notes["two\nlines"] = "x"; }, "note \"two\\x0alines\": a key with a control character"},
      {[](Case& c) { c.notes["long"] = std::string(std::size_t{17} << 20, 'x'); }, "more than 16777216 bytes of metadata"},
      {[](Case& c) {
         for (int i = 0; i < 1100; ++i) c.notes["k" + std::to_string(i) + "x"] = "";
       },
       "more than 1024 metadata keys"},
      {[](Case& c) {
         c.observed = c.batch.output;
         c.observed.shape[2] = 3;
       },
       "tensor \"observed\": f32 [1, 1, 3], expected a floating type and the shape of an output, [1, 1, 4]"},
      {[](Case& c) {
         c.observed = c.batch.query;
         c.observed.dtype = DType::i32;
       },
       "tensor \"observed\": i32 [1, 1, 4], expected a floating type"},
      {[](Case& c) { c.observed_lse = c.batch.query; }, "tensor \"observed_lse\": f32 [1, 1, 4], expected f32 [1, 1]"},
  };
  for (const Refusal& refusal : refusals) {
    Case c = make("q=f32 heads=1 d=4 page=1 reqs=1");
    refusal.spoil(c);
    const Status s = write_capture(path(), c);
    EXPECT_EQ(s.code(), Code::invalid_argument) << refusal.message;
    EXPECT_THAT(s.message(), HasSubstr(refusal.message));
    EXPECT_EQ(num_files(), 0u);
  }
}

TEST_F(CaptureFile, ReadErrorsNameThePath) {
  const Result<Case> missing = read_capture(path("nobody"));
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().code(), Code::io_error);
  EXPECT_THAT(missing.status().message(), AllOf(HasSubstr("nobody"), HasSubstr("No such file")));
  const Result<Case> folder = read_capture(folder_.string());
  ASSERT_FALSE(folder.ok());
  EXPECT_EQ(folder.status().code(), Code::io_error);
  std::ofstream(path("empty"));
  const Result<Case> empty = read_capture(path("empty"));
  ASSERT_FALSE(empty.ok());
  EXPECT_EQ(empty.status().code(), Code::parse_error);
  EXPECT_THAT(empty.status().message(), AllOf(HasSubstr("empty"), HasSubstr("the file has 0 bytes")));
}

TEST_F(CaptureFile, ReadsPipes) {
  const Case c = make("q=f32 heads=2 d=8 page=4 reqs=9");
  ASSERT_TRUE(write_capture(path(), c).ok());
  const std::string bytes = file_bytes(path());
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ASSERT_LT(bytes.size(), 60000u) << "fits a pipe's buffer";
  ASSERT_EQ(::write(ends[1], bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  ::close(ends[1]);
  const Result<Case> back = read_capture("/dev/fd/" + std::to_string(ends[0]));
  ::close(ends[0]);
  ASSERT_TRUE(back.ok()) << back.status().message();
  expect_equal(back.value(), c);
}

/// Writes `bytes` and then zeros for as long as somebody reads.
Result<Case> read_endless(const std::string& bytes) {
  ::signal(SIGPIPE, SIG_IGN);
  int ends[2];
  if (::pipe(ends) != 0) return Status(Code::io_error, "no pipe");
  std::thread writer([&] {
    std::string zeros(1 << 16, '\0');
    ssize_t put = ::write(ends[1], bytes.data(), bytes.size());
    while (put > 0) put = ::write(ends[1], zeros.data(), zeros.size());
    ::close(ends[1]);
  });
  Result<Case> c = read_capture("/dev/fd/" + std::to_string(ends[0]));
  ::close(ends[0]);
  writer.join();
  return c;
}

TEST_F(CaptureFile, WhatNeverEndsIsRefused) {
  if (std::filesystem::exists("/dev/zero")) {
    const Result<Case> zeros = read_capture("/dev/zero");
    ASSERT_FALSE(zeros.ok());
    EXPECT_EQ(zeros.status().code(), Code::parse_error);
    EXPECT_THAT(zeros.status().message(), AllOf(HasSubstr("/dev/zero"), HasSubstr("expected JSON that begins with {")));
  }
  ASSERT_TRUE(write_capture(path(), make("q=f32 heads=2 d=8 page=4 reqs=9")).ok());
  const std::string bytes = file_bytes(path());
  EXPECT_THAT(read_endless(bytes).status().message(), HasSubstr("the last 1 data bytes belong to no tensor"));
  EXPECT_THAT(read_endless(std::string(8, '\xFF')).status().message(), HasSubstr("header length 18446744073709551615"));
  std::string huge = R"({"query":{"dtype":"F32","shape":[1],"data_offsets":[0,4611686018427387904]}})";
  std::string prefix(8, '\0');
  prefix[0] = static_cast<char>(huge.size());
  EXPECT_THAT(read_endless(prefix + huge).status().message(),
              HasSubstr("a pipe or device with 4611686018427387904 data bytes: expected at most 1073741824"));
}

mode_t mode_of(const std::string& path) {
  struct stat info{};
  return ::stat(path.c_str(), &info) == 0 ? info.st_mode & 07777u : 0;
}

TEST_F(CaptureFile, HoldsUsersDataSoNewOnesAreTheOwnersAndOldOnesKeepTheirMode) {
  const Case c = make("q=f32 heads=1 d=2 page=1 reqs=2");
  ASSERT_TRUE(write_capture(path(), c).ok());
  EXPECT_EQ(mode_of(path()), 0600u);
  for (const mode_t mode : {0600u, 0640u, 0644u, 0400u}) {
    ASSERT_EQ(::chmod(path().c_str(), mode), 0);
    ASSERT_TRUE(write_capture(path(), c).ok());
    EXPECT_EQ(mode_of(path()), mode);
  }
  EXPECT_EQ(num_files(), 1u);
}

TEST_F(CaptureFile, IsWrittenBehindALink) {
  const Case c = make("q=f32 heads=1 d=2 page=1 reqs=2");
  ASSERT_TRUE(write_capture(path("target.safetensors"), make("q=f32 heads=1 d=2 page=1 reqs=3")).ok());
  std::filesystem::create_symlink(path("target.safetensors"), path());
  ASSERT_TRUE(write_capture(path(), c).ok());
  EXPECT_TRUE(std::filesystem::is_symlink(path()));
  EXPECT_EQ(read_capture(path("target.safetensors"))->batch.query.shape[0], 2);
}

TEST_F(CaptureFile, NothingStaysOfAProcessThatDiesWhileItWrites) {
  const pid_t child = ::fork();
  if (child == 0) {
    files::AtomicFile file;
    const std::vector<std::byte> bytes(1 << 20);
    const bool written = file.open(path(), files::kUserData).ok() && file.write(bytes).ok();
    ::_exit(written ? 0 : 1);
  }
  int status = 1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(num_files(), 0u);
}

TEST_F(CaptureFile, OfABroadcastCacheIsAsLargeAsADiskHoldsOrRefused) {
  Case c = make("q=f32 heads=1 d=8 page=4 reqs=2");
  c.cache.k.stride[0] = c.cache.v.stride[0] = 0;
  c.cache.k.shape[0] = c.cache.v.shape[0] = 1000;
  ASSERT_TRUE(write_capture(path(), c).ok());
  EXPECT_EQ(read_capture(path())->cache.k.shape[0], 1000);
  const std::string before = file_bytes(path());
  c.cache.k.shape[0] = c.cache.v.shape[0] = 400'000'000;
  const Status refused = write_capture(path(), c);
  EXPECT_EQ(refused.code(), Code::invalid_argument);
  EXPECT_THAT(refused.message(), AllOf(HasSubstr("tensor \"k_cache\""), HasSubstr("stride 0"), HasSubstr("51200000000 bytes"),
                                       HasSubstr("only the pages that block_table names")));
  EXPECT_EQ(file_bytes(path()), before);
  EXPECT_EQ(num_files(), 1u);
}

TEST_F(CaptureFile, EveryTruncationIsRefused) {
  ASSERT_TRUE(write_capture(path(), make("q=f32 heads=1 d=2 page=1 reqs=2")).ok());
  const std::string bytes = file_bytes(path());
  ASSERT_TRUE(parse_capture(std::as_bytes(std::span(bytes))).ok());
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    const Result<Case> c = parse_capture(std::as_bytes(std::span(bytes)).first(n));
    ASSERT_FALSE(c.ok()) << n;
    ASSERT_EQ(c.status().code(), Code::parse_error);
  }
  const std::string longer = bytes + "x";
  const Result<Case> c = parse_capture(std::as_bytes(std::span(longer)));
  ASSERT_FALSE(c.ok());
  EXPECT_THAT(c.status().message(), HasSubstr("the last 1 data bytes belong to no tensor"));
}

}  // namespace
}  // namespace quire
