// SPDX-License-Identifier: Apache-2.0
// The conformance suite on lists that hold every key that a row sees, in any order: attention over them is attention.
#include <gmock/gmock.h>

#include "quire/tools/report.hpp"
#include "quire/tools/verify.hpp"

namespace quire::test {
namespace {

Verdict verdict_of(const Target& target, VerifyOptions options) {
  options.quick = true;
  const Result<Verdict> verdict = verify(target, options);
  EXPECT_TRUE(verdict.ok()) << verdict.status().message();
  return verdict.ok() ? verdict.value() : Verdict{};
}

std::int64_t passed(const Verdict& verdict) {
  return std::ranges::count_if(verdict.cases, [](const CaseResult& c) { return c.status == CaseStatus::pass; });
}

/// Every form of a list, and the faults of the catalogue that can show.
TEST(SparseConformance, ListsOfAllVisibleKeysAreAttention) {
  const Verdict verdict =
      verdict_of(backend_target("cpu_lists").value(), {.types = {{DType::f32, DType::f32}, {DType::bf16, DType::fp8_e4m3fn}}});
  EXPECT_EQ(verdict.verdict, VerifyVerdict::pass) << to_string(verdict);
  EXPECT_GT(passed(verdict), 80) << "of " << verdict.cases.size();
  RecordProperty("passed", static_cast<int>(passed(verdict)));
}

/// FlashMLA's sparse decode: lists over rows of 656 bytes.
TEST(SparseConformance, ListsOverRowsOf656Bytes) {
  VerifyOptions options;
  options.matrices.clear();
  options.power = false;
  for (const char* shape :
       {"reqs=1@300,3@20 page=64", "reqs=1@190,9@66 page=5 window=20 sinks=1", "reqs=2x1@90 page=16 layout=hnd"})
    for (const char* types : {"q=bf16", "q=f32"})
      options.lines.push_back(std::string(types) + " kv=fp8_ds_mla heads=16:1 d=576 dv=512 latent=1 lse=1 " + shape);
  const Verdict verdict = verdict_of(backend_target("cpu_lists").value(), options);
  EXPECT_EQ(passed(verdict), 6) << to_string(verdict);
}

/// A list that loses its last entry is noticed.
TEST(SparseConformance, AMissingKeyIsNoticed) {
  Target target = backend_target("cpu_lists").value();
  target.attend = [right = target.attend](const Case& c, std::string& kernel) {
    if (c.batch.query.shape[0] == 0 || problem_of(c.batch, c.cache, c.options).max_seq_len() < 2) return right(c, kernel);
    Case shorter = c;
    std::vector<std::int64_t> lens(static_cast<std::size_t>(c.batch.seq_lens.shape[0]));
    for (std::size_t r = 0; r < lens.size(); ++r) {
      const Request q = request_of(c.batch, c.options, static_cast<std::int64_t>(r));
      lens[r] = q.seq_len() > q.query_len ? q.seq_len() - 1 : q.seq_len();
    }
    shorter.batch.seq_lens = Tensor::contiguous(lens.data(), DType::i64, lens.size());
    shorter.batch.cached_lens = Tensor{};
    return right(shorter, kernel);
  };
  VerifyOptions options;
  options.matrices.clear();
  options.power = false;
  options.lines = {"q=f32 heads=4:2 d=16 page=8 causal=0 reqs=3@20,1@9 lse=1"};
  const Verdict verdict = verdict_of(target, options);
  ASSERT_EQ(verdict.cases.size(), 1u);
  EXPECT_EQ(verdict.cases[0].status, CaseStatus::fail);
}

}  // namespace
}  // namespace quire::test
