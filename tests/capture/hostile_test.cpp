// SPDX-License-Identifier: Apache-2.0
// Captures made to hurt: each is refused with a parse_error that says where, what was found and what was expected.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <sstream>

#include "capture/case_util.h"

namespace quire {
namespace {

using ::testing::HasSubstr;

std::string with_length(std::uint64_t length, const std::string& rest) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(length >> (8 * i) & 0xFF);
  return bytes + rest;
}

Result<Case> parse(const std::string& bytes) { return parse_capture(std::as_bytes(std::span(bytes))); }

/// A file with this header and `data_bytes` zero bytes.
Result<Case> parse_header_text(const std::string& json, std::size_t data_bytes) {
  return parse(with_length(json.size(), json + std::string(data_bytes, '\0')));
}

// A complete tiny capture: 28 data bytes. Tests replace one part of it.
const std::string kGood = R"({"__metadata__":{"layout":"nhd"},)"
                          R"("query":{"dtype":"F32","shape":[1,1,2],"data_offsets":[0,8]},)"
                          R"("query_start_loc":{"dtype":"I32","shape":[2],"data_offsets":[8,16]},)"
                          R"("seq_lens":{"dtype":"I32","shape":[1],"data_offsets":[16,20]},)"
                          R"("block_table":{"dtype":"I32","shape":[1,1],"data_offsets":[20,24]},)"
                          R"("k_cache":{"dtype":"F8_E4M3","shape":[1,1,1,2],"data_offsets":[24,26]},)"
                          R"("v_cache":{"dtype":"F8_E4M3","shape":[1,1,1,2],"data_offsets":[26,28]}})";
constexpr std::size_t kGoodData = 28;

std::string replaced(const std::string& from, const std::string& to) {
  std::string text = kGood;
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(CaptureHostile, TheGoodFileIsGood) {
  const Result<Case> c = parse_header_text(kGood, kGoodData);
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_TRUE(parse_header_text(kGood + "   \n", kGoodData).ok()) << "padding after the JSON is part of the format";
}

struct Hostile {
  const char* from;
  const char* to;
  const char* message;
  std::size_t data_bytes = kGoodData;
};
void PrintTo(const Hostile& h, std::ostream* out) { *out << h.from << " -> " << h.to; }

class CaptureRefuses : public ::testing::TestWithParam<Hostile> {};

TEST_P(CaptureRefuses, AndSaysWhere) {
  const Result<Case> c = parse_header_text(replaced(GetParam().from, GetParam().to), GetParam().data_bytes);
  ASSERT_FALSE(c.ok());
  EXPECT_EQ(c.status().code(), Code::parse_error);
  EXPECT_THAT(c.status().message(), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Json, CaptureRefuses,
    ::testing::Values(
        Hostile{"[26,28]}}", "[26,28]}", "not valid JSON at byte"}, Hostile{"[0,8]", "[0,8", "not valid JSON at byte"},
        Hostile{"[26,28]}}", "[26,28]}}x", "not valid JSON at byte"},
        Hostile{"{\"__meta", "[{\"__meta", "expected JSON that begins with {"},
        Hostile{"\"query\":", "\"quer\xFFy\":", "ill-formed UTF-8"}, Hostile{"nhd", "n\xC0\x80", "ill-formed UTF-8"},
        Hostile{"\"seq_lens\":", "\"query\":", "header: \"query\": the key is given twice"},
        Hostile{"\"layout\":\"nhd\"", "\"layout\":\"nhd\",\"layout\":\"hnd\"",
                "__metadata__: \"layout\": the key is given twice"},
        Hostile{"\"shape\":[1,1,2]", "\"shape\":[1,1,2],\"shape\":[2]", "tensor \"query\": \"shape\": the key is given twice"},
        Hostile{"\"shape\":[1,1,2],", "", "tensor \"query\": shape is missing"},
        Hostile{"\"dtype\":\"F32\",", "", "tensor \"query\": dtype is missing"},
        Hostile{",\"data_offsets\":[0,8]", "", "tensor \"query\": data_offsets is missing"},
        Hostile{"\"shape\":[1,1,2]", "\"shape\":[1,1,2],\"strides\":[1]", "tensor \"query\": \"strides\": unknown field"},
        Hostile{"{\"dtype\":\"F32\",\"shape\":[1,1,2],\"data_offsets\":[0,8]}", "[]",
                "header: \"query\": expected an object, got an array"},
        Hostile{"{\"layout\":\"nhd\"}", "\"nhd\"", "header: \"__metadata__\": expected an object, got \"nhd\""},
        Hostile{"\"layout\":\"nhd\"", "\"layout\":1", "__metadata__: \"layout\": expected a string, got 1"},
        Hostile{"\"layout\":\"nhd\"", "\"layout\":{}", "__metadata__: \"layout\": expected a string, got an object"},
        Hostile{"\"F32\"", "32", "tensor \"query\": \"dtype\": expected a string, got 32"},
        Hostile{"\"F32\"", "null", "tensor \"query\": \"dtype\": expected a string, got null"},
        Hostile{"\"F32\"", "[true]", "tensor \"query\": \"dtype\": expected a string, got an array"},
        Hostile{"[1,1,2]", "2", "tensor \"query\": \"shape\": expected an array of integers, got 2"},
        Hostile{"[1,1,2]", "\"1,1,2\"", "tensor \"query\": \"shape\": expected an array of integers"},
        Hostile{"[1,1,2]", "[1,\"1\",2]", "tensor \"query\": shape[1]: expected an integer in [0, 2^63), got \"1\""},
        Hostile{"[1,1,2]", "[1,1,2.0]", "tensor \"query\": shape[2]: expected an integer in [0, 2^63), got \"2.0\""},
        Hostile{"[1,1,2]", "[1,true,2]", "tensor \"query\": shape[1]: expected an integer in [0, 2^63), got a boolean"},
        Hostile{"[1,1,2]", "[1,[1],2]", "tensor \"query\": shape[1]: expected an integer in [0, 2^63), got an array"},
        Hostile{"[1,1,2]", "[1,1,1e999]", "not valid JSON at byte"}));

INSTANTIATE_TEST_SUITE_P(
    Sizes, CaptureRefuses,
    ::testing::Values(
        Hostile{"[1,1,2]", "[1,1,-2]", "tensor \"query\": shape[2]: expected an integer in [0, 2^63), got -2"},
        Hostile{"[1,1,2]", "[9223372036854775808]", "shape[0]: expected an integer in [0, 2^63), got 9223372036854775808"},
        Hostile{"[1,1,2]", "[99999999999999999999999]", "shape[0]: expected an integer in [0, 2^63)"},
        Hostile{"[1,1,2]", "[4611686018427387904,4]",
                "tensor \"query\": F32 [4611686018427387904, 4]: the size in bytes exceeds 2^63"},
        Hostile{"[1,1,2]", "[4611686018427387904,4611686018427387904,0]", "the size in bytes exceeds 2^63"},
        Hostile{"[1,1,2]", "[1,1,1,1,1,2]", "tensor \"query\": shape[5]: more than 5 dimensions"},
        Hostile{"[1,1,2]", "[1,1,3]", "tensor \"query\": data_offsets [0, 8]: expected 12 bytes for F32 [1, 1, 3], got 8"},
        Hostile{"\"F32\"", "\"F64\"", "tensor \"query\": dtype \"F64\": expected one of F32, F16"},
        Hostile{"\"F32\"", "\"\"", "tensor \"query\": dtype \"\""},
        Hostile{"\"F32\"", "\"BF16\"", "expected 4 bytes for BF16 [1, 1, 2], got 8"},
        Hostile{"[0,8]", "[8]", "tensor \"query\": \"data_offsets\": 1 numbers, expected [begin, end]"},
        Hostile{"[0,8]", "[0,8,16]", "tensor \"query\": \"data_offsets\": 3 numbers"},
        Hostile{"[0,8]", "[-8,0]", "tensor \"query\": data_offsets[0]: expected an integer in [0, 2^63), got -8"},
        Hostile{"[0,8]", "[8,0]", "tensor \"query\": data_offsets [8, 0]: begin is after end"},
        Hostile{"[0,8]", "[9223372036854775800,9223372036854775807]", "outside the 28 data bytes"},
        Hostile{"[0,8]", "[18446744073709551608,0]", "data_offsets[0]: expected an integer in [0, 2^63)"},
        Hostile{"[26,28]", "[24,26]", "tensor \"v_cache\" begins at data byte 24, inside tensor \"k_cache\", which ends at 26",
                26},
        Hostile{"[8,16]", "[4,12]", "tensor \"query_start_loc\" begins at data byte 4, inside tensor \"query\", which ends at 8"},
        Hostile{"[26,28]", "[28,30]", "data bytes [26, 28) before tensor \"v_cache\" belong to no tensor", 30},
        Hostile{"[26,28]", "[26,28]", "the last 3 data bytes belong to no tensor", 31},
        Hostile{"[26,28]", "[26,28]",
                "tensor \"v_cache\": data_offsets [26, 28]: outside the 27 data bytes of the file (truncated?)", 27}));

INSTANTIATE_TEST_SUITE_P(
    Names, CaptureRefuses,
    ::testing::Values(
        Hostile{"\"block_table\":", "\"block_tables\":", "unknown tensor \"block_tables\", did you mean \"block_table\"?"},
        Hostile{"\"block_table\":", "\"\":", "unknown tensor \"\"; expected names: query output"},
        Hostile{"\"block_table\":", "\"sinks\":", "tensor \"block_table\" is missing"},
        Hostile{"\"query\":", "\"observed\":", "tensor \"query\" is missing"},
        Hostile{"\"query_start_loc\":", "\"key\":", "tensor \"query_start_loc\" is missing"},
        Hostile{"\"seq_lens\":", "\"key\":", "tensor \"seq_lens\" is missing"},
        Hostile{"\"k_cache\":", "\"key\":", "tensor \"k_cache\" is missing"},
        Hostile{"\"v_cache\":", "\"key\":", "tensor \"v_cache\" is missing"},
        Hostile{"\"layout\":\"nhd\"", "", "metadata key \"layout\" is missing; expected nhd, hnd or packed"},
        Hostile{"\"__metadata__\":{\"layout\":\"nhd\"},", "", "metadata key \"layout\" is missing"},
        Hostile{"\"nhd\"", "\"NHD\"", "metadata \"layout\"=\"NHD\": expected nhd, hnd or packed"},
        Hostile{"\"nhd\"", "\"nhd\",\"quire_capture\":\"2\"", "metadata \"quire_capture\"=\"2\": expected format version 1"},
        Hostile{"\"nhd\"", "\"nhd\",\"softmax_scale\":\"0,5\"", "metadata \"softmax_scale\"=\"0,5\": expected a number"},
        Hostile{"\"nhd\"", "\"nhd\",\"logits_soft_cap\":\"1e60\"", "metadata \"logits_soft_cap\"=\"1e60\": expected a number"},
        Hostile{"\"nhd\"", "\"nhd\",\"sliding_window\":\"9223372036854775808\"", "metadata \"sliding_window\"="},
        Hostile{"\"nhd\"", "\"nhd\",\"sliding_window\":\"4 \"", "expected an integer"},
        Hostile{"\"nhd\"", "\"nhd\",\"padding\":\"ignored\"", "metadata \"padding\"=\"ignored\": expected refused, left or zero"},
        Hostile{"\"nhd\"", "\"nhd\",\"sliding_windows\":\"4\"",
                "unknown metadata key \"sliding_windows\": did you mean \"sliding_window\"?"},
        Hostile{"\"nhd\"", "\"nhd\",\"dtype.key\":\"fp8_e5m2\"", "metadata key \"dtype.key\": the file has no such tensor"},
        Hostile{"\"nhd\"", "\"nhd\",\"dtype.k_cache\":\"fp8_e4m3fnuz\"", "the file stores F8_E4M3, which is fp8_e4m3fn"},
        Hostile{"\"k_cache\":{\"dtype\":\"F8_E4M3\"", "\"k_cache\":{\"dtype\":\"U8\"",
                "tensor \"k_cache\": dtype U8 needs metadata key \"dtype.k_cache\""},
        Hostile{"\"nhd\"},\"query\":{\"dtype\":\"F32\",\"shape\":[1,1,2]",
                "\"nhd\",\"dtype.query\":\"f32\"},\"query\":{\"dtype\":\"U8\",\"shape\":[8]",
                "expected an fp8 type, fp8_ds_mla, nvfp4 or mxfp4 for a U8 tensor"}));

TEST(CaptureHostile, HeaderLengths) {
  struct Length {
    std::uint64_t value;
    const char* message;
  };
  for (const Length length : {Length{0, "expected JSON that begins with {"},
                              {1u << 20, "the file has only 10 bytes after the length (truncated?)"},
                              {100000001, "expected at most 100000000"},
                              {~std::uint64_t{0}, "header length 18446744073709551615"},
                              {std::uint64_t{1} << 63, "expected at most 100000000"},
                              {~std::uint64_t{0} - 7, "expected at most"}}) {
    const Result<Case> c = parse(with_length(length.value, "{\"a\":     "));
    ASSERT_FALSE(c.ok());
    EXPECT_EQ(c.status().code(), Code::parse_error);
    EXPECT_THAT(c.status().message(), HasSubstr(length.message));
  }
  for (const std::size_t n : {0u, 1u, 7u}) EXPECT_FALSE(parse(std::string(n, '\0')).ok());
}

TEST(CaptureHostile, DeepNestingIsRefusedAtTheFirstStep) {
  const Result<Case> arrays = parse_header_text("{\"query\":" + std::string(1000000, '['), 0);
  ASSERT_FALSE(arrays.ok());
  EXPECT_THAT(arrays.status().message(), HasSubstr("header: \"query\": expected an object, got an array"));
  std::string objects = "{";
  for (int i = 0; i < 200000; ++i) objects += "\"query\":{";
  EXPECT_THAT(parse_header_text(objects, 0).status().message(), HasSubstr("tensor \"query\": \"query\": unknown field"));
}

TEST(CaptureHostile, TooManyTensors) {
  std::string json = "{";
  for (int i = 0; i < 2000; ++i)
    json += "\"t" + std::to_string(i) + "\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]},";
  EXPECT_THAT(parse_header_text(json, 0).status().message(), HasSubstr("more than 1024 tensors"));
}

std::string with_metadata(const std::string& more) { return replaced("\"nhd\"", "\"nhd\"" + more); }

TEST(CaptureHostile, MetadataIsBounded) {
  std::string keys;
  for (int i = 0; i < 1023; ++i) keys += ",\"k" + std::to_string(i) + "x\":\"\"";
  EXPECT_TRUE(parse_header_text(with_metadata(keys), kGoodData).ok()) << "1024 with layout";
  EXPECT_THAT(parse_header_text(with_metadata(keys + ",\"one more\":\"\""), kGoodData).status().message(),
              HasSubstr("__metadata__: \"one more\": more than 1024 metadata keys"));
  const std::string large(std::size_t{9} << 20, 'x');
  const Status status =
      parse_header_text(with_metadata(",\"first\":\"" + large + "\",\"second\":\"" + large + "\""), kGoodData).status();
  EXPECT_EQ(status.code(), Code::parse_error);
  EXPECT_THAT(status.message(), HasSubstr("__metadata__: \"second\": more than 16777216 bytes of metadata"));
}

TEST(CaptureHostile, ANoteIsNotAReport) {
  EXPECT_THAT(parse_header_text(with_metadata(",\"a\\nverdict\":\"right\""), kGoodData).status().message(),
              HasSubstr("\"a\\x0averdict\": a key with a control character"));
  const auto notes = [](const std::string& problem) {
    return parse_header_text(with_metadata(",\"problem\":\"" + problem + "\""), kGoodData).value().notes;
  };
  const std::string own = "q=f32 kv=fp8_e4m3fn heads=1 d=2 page=1 layout=nhd reqs=1 seed=5";
  // The good file's indices are all zero, which breaks the contract: its note is nobody's.
  EXPECT_EQ(notes(own).count("problem"), 1u);
}

TEST(CaptureHostile, AForeignProblemLineIsNotTheBatchs) {
  Case c = make_case(parse_problem_line("q=f32 heads=2:1 d=4 page=2 reqs=3@1,1 kscale=head seed=5").value()).value();
  const std::string own = c.notes.at("problem");
  const std::string file = ::testing::TempDir() + "quire_problem_note.safetensors";
  const auto read_back = [&](const std::string& note) {
    c.notes["problem"] = note;
    EXPECT_TRUE(write_capture(file, c).ok());
    return read_capture(file).value().notes;
  };
  EXPECT_EQ(read_back(own).at("problem"), own);
  std::string spaced = own;
  spaced.replace(spaced.find(' '), 1, " \n");
  const auto lines = read_back(spaced);
  EXPECT_TRUE(lines.count("problem") == 0 || lines.at("problem") == own) << "one line";
  for (const std::string foreign : {"q=f16 \nverdict  right", "q=f32 heads=2:1 d=4 page=2 reqs=3@2,1", ""}) {
    const auto found = read_back(foreign);
    EXPECT_EQ(found.count("problem"), 0u) << foreign;
    EXPECT_EQ(found.at("other_problem"), foreign);
  }
  std::remove(file.c_str());
}

TEST(CaptureHostile, LongNamesAreCutInTheMessage) {
  const Result<Case> c = parse_header_text(replaced("\"query\":", "\"" + std::string(1000000, 'a') + "\":"), kGoodData);
  ASSERT_FALSE(c.ok());
  EXPECT_LT(c.status().message().size(), 400u);
}

TEST(CaptureHostile, MisalignedDataIsCopiedToAlignedMemory) {
  // One blank more shifts all data by a byte.
  const Result<Case> c = parse_header_text(kGood + std::string(kGood.size() % 2 == 0 ? 1 : 2, ' '), kGoodData);
  ASSERT_TRUE(c.ok()) << c.status().message();
  for (const auto& [name, t] : test::tensors_of(c.value())) EXPECT_EQ(reinterpret_cast<std::uintptr_t>(t.data) % 64, 0u) << name;
}

TEST(CaptureAccepts, ScalarsEmptyTensorsAnyOrderAndBothFnuzForms) {
  const std::string json =
      R"({"v_cache":{"dtype":"F8_E4M3FNUZ","shape":[1,1,1,2],"data_offsets":[30,32]},)"
      R"("sinks":{"data_offsets":[32,32],"shape":[0],"dtype":"F32"},)"
      R"("k_scale":{"dtype":"F32","shape":[],"data_offsets":[24,28]},)"
      R"("query":{"dtype":"F32","shape":[1,1,2],"data_offsets":[0,8]},)"
      R"("query_start_loc":{"dtype":"I32","shape":[2],"data_offsets":[8,16]},)"
      R"("seq_lens":{"dtype":"I32","shape":[1],"data_offsets":[16,20]},)"
      R"("block_table":{"dtype":"I32","shape":[1,1],"data_offsets":[20,24]},)"
      R"("k_cache":{"dtype":"U8","shape":[1,1,1,2],"data_offsets":[28,30]},)"
      R"("__metadata__":{"format":"pt","layout":"hnd","dtype.k_cache":"fp8_e4m3fnuz","dtype.v_cache":"fp8_e4m3fnuz"}})";
  const Result<Case> c = parse_header_text(json, 32);
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c.value().cache.k.dtype, DType::fp8_e4m3fnuz);
  EXPECT_EQ(c.value().cache.v.dtype, DType::fp8_e4m3fnuz);
  EXPECT_EQ(c.value().cache.layout, CacheLayout::hnd);
  EXPECT_EQ(c.value().cache.k_scale.rank, 0);
  EXPECT_EQ(c.value().options.sinks.num_elements(), 0);
  EXPECT_EQ(c.value().notes.at("format"), "pt");
  EXPECT_EQ(c.value().notes.size(), 1u);
}

std::string capture_page() {
  std::ifstream file(QUIRE_SOURCE_DIR "/docs/reference/capture.md");
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST(CaptureDocs, EveryTensorHasARow) {
  const std::string page = capture_page();
  const std::string message = parse_header_text(replaced("\"query\":", "\"?\":"), kGoodData).status().message();
  std::stringstream names(message.substr(message.find("expected names: ") + 16));
  int count = 0;
  for (std::string name; names >> name; ++count) EXPECT_THAT(page, HasSubstr("\n| `" + name + "` |"));
  EXPECT_EQ(count, 30);
}

TEST(CaptureDocs, QuotedErrorsAreTheRealOnes) {
  const std::string page = capture_page();
  for (const Hostile& h : {Hostile{"[1,1,2]", "[1,\"1\",2]", ""},
                           {"\"dtype\":\"F32\",", "", ""},
                           {"[1,1,2]", "[1,1,-2]", ""},
                           {"[1,1,2]", "[4611686018427387904,4]", ""},
                           {"[1,1,2]", "[1,1,1,1,1,2]", ""},
                           {"[1,1,2]", "[1,1,3]", ""},
                           {"[0,8]", "[0,64]", ""},
                           {"[26,28]", "[28,30]", "", 30},
                           {"\"k_cache\":", "\"key\":", ""},
                           {"\"layout\":\"nhd\"", "", ""},
                           {"\"nhd\"", "\"nhd\",\"softmax_scale\":\"0,5\"", ""},
                           {"\"nhd\"", "\"nhd\",\"sliding_windows\":\"4\"", ""}}) {
    std::string message = parse_header_text(replaced(h.from, h.to), h.data_bytes).status().message();
    message = message.substr(message.find(": ") + 2);
    message = message.substr(0, message.find("; expected"));
    EXPECT_THAT(page, HasSubstr("`" + message + "`"));
  }
}

}  // namespace
}  // namespace quire
