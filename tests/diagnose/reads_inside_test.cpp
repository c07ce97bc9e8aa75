// SPDX-License-Identifier: Apache-2.0
// Hypotheses read inside the tensors of the capture, for every head_dim, also where two of them are planted in one model.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <set>

#include "diagnose/rank.h"
#include "diagnose/written_by.h"

namespace quire::test {
namespace {

using diagnose_detail::Proposal;
using faults_detail::Facts;
using faults_detail::Model;
using faults_detail::Row;
using faults_detail::Side;

/// The proposals of one mechanism that asks for no wrong cell.
diagnose_detail::Proposals proposals(const Facts& f,
                                     void (*propose)(const diagnose_detail::Scene&, diagnose_detail::Proposals&)) {
  const diagnose_detail::Observed observed{f.batch.output, {}};
  const diagnose_detail::Localisation where;
  diagnose_detail::Proposals list;
  propose({f, observed, where, {}, {}}, list);
  return list;
}

/// Which element of the query each dim of a proposal reads; -1: none.
std::vector<std::int64_t> query_dims(const Facts& f, const Proposal& p) {
  std::int64_t asked = -1;
  Model m(f);
  m.query = [&asked](const Row&, std::int64_t d) {
    asked = d;
    return 1.0;
  };
  p.plant(m);
  std::vector<std::int64_t> from;
  for (std::int64_t d = 0; d < f.head_dim; ++d) {
    asked = -1;
    const double value = m.query(Row{}, d);
    from.push_back(asked);
    EXPECT_EQ(value, asked == -1 ? 0 : 1);
  }
  return from;
}

TEST(ReadsInside, AnOrderOfDimsIsAPermutationOrLeavesOutWhatItSays) {
  for (std::int64_t dims = 4; dims <= 136; ++dims) {
    const Case c = made("q=f32 heads=1 page=4 reqs=2@5 d=" + std::to_string(dims));
    const Facts f(c.batch, c.cache, c.options);
    const diagnose_detail::Proposals list = proposals(f, diagnose_detail::propose_dims);
    EXPECT_GT(list.size(), 10u);
    for (const Proposal& p : list) {
      const std::vector<std::int64_t> from = query_dims(f, p);
      for (const std::int64_t d : from) {
        EXPECT_LT(d, dims) << p.detail << ", head_dim " << dims;
        EXPECT_GE(d, -1) << p.detail << ", head_dim " << dims;
      }
      if (p.detail.find("left out") != std::string::npos || p.detail.find("repeated") != std::string::npos) continue;
      const std::set<std::int64_t> distinct(from.begin(), from.end());
      EXPECT_EQ(distinct.size(), static_cast<std::size_t>(dims)) << p.detail << ", head_dim " << dims;
      EXPECT_EQ(*distinct.begin(), 0) << p.detail << ", head_dim " << dims;
    }
  }
}

/// A kernel that splits dims into even and odd ones keeps the middle one of an odd number in the first part.
TEST(ReadsInside, EvenDimsFirstAndInterleavedHalvesAreInverse) {
  for (const std::int64_t dims : {6, 7, 8, 33}) {
    const Case c = made("q=f32 heads=1 page=4 reqs=2@5 d=" + std::to_string(dims));
    const Facts f(c.batch, c.cache, c.options);
    std::vector<std::int64_t> even, interleaved;
    for (const Proposal& p : proposals(f, diagnose_detail::propose_dims)) {
      if (p.detail == "even dims first, then odd ones") even = query_dims(f, p);
      if (p.detail == "halves interleaved") interleaved = query_dims(f, p);
    }
    ASSERT_EQ(std::ssize(even), dims);
    ASSERT_EQ(std::ssize(interleaved), dims);
    for (std::int64_t d = 0; d < dims; ++d) {
      EXPECT_EQ(even[Facts::at(interleaved[Facts::at(d)])], d) << dims;
      EXPECT_EQ(even[Facts::at(d)], d < (dims + 1) / 2 ? 2 * d : 2 * (d - (dims + 1) / 2) + 1) << dims;
    }
  }
}

/// Element 0 of the first row under a proposal, where another belief names the KV head.
double with_kv_head(std::int64_t head, const Facts& f, const Proposal& p) {
  Model m(f);
  m.kv_head = [head](const Row&, Side) { return head; };
  p.plant(m);
  const faults_detail::RowHead first{0, 0};
  return evaluate(m, std::span(&first, 1))[0].out[0];
}

TEST(ReadsInside, NewRowsOfAHeadThatIsNotThereAreNaNAlsoWithKForV) {
  const Case c = made("q=f16 heads=2:2 d=8 page=4 reqs=3@0/0,1@9");
  const Facts f(c.batch, c.cache, c.options);
  std::size_t exchanged = 0;
  for (const Proposal& p : proposals(f, diagnose_detail::propose_layout)) {
    EXPECT_TRUE(std::isnan(with_kv_head(2, f, p))) << p.text;  // a head that does not exist reads NaN, not the next row
    exchanged += p.text == "uses K as V and V as K" ? 1 : 0;
  }
  EXPECT_EQ(exchanged, 1u);
}

/// A copy of a tensor that ends where the next access is a fault.
class BeforeAWall {
 public:
  explicit BeforeAWall(Tensor& t) : bytes_(static_cast<std::size_t>(t.num_elements() * itemsize(t.dtype))) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    size_ = (bytes_ + page - 1) / page * page;
    base_ = static_cast<std::byte*>(mmap(nullptr, size_ + kWall, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_EQ(mprotect(base_ + size_, kWall, PROT_NONE), 0);
    std::memcpy(base_ + size_ - bytes_, t.data, bytes_);
    t.data = base_ + size_ - bytes_;
  }
  ~BeforeAWall() { munmap(base_, size_ + kWall); }
  BeforeAWall(const BeforeAWall&) = delete;
  BeforeAWall& operator=(const BeforeAWall&) = delete;

 private:
  static constexpr std::size_t kWall = std::size_t{1} << 20;
  std::size_t bytes_, size_ = 0;
  std::byte* base_ = nullptr;
};

/// A kernel that finds bf16 in the only page of its only request.
void page_of_bf16(Model& m) {
  m.vector = [f = m.facts](const Row& row, Side side, const faults_detail::Place& place, std::int64_t head, std::span<double> v) {
    if (place.page != f->page(row.req, 0)) return;
    const Tensor& t = side == Side::key ? f->cache.k : f->cache.v;
    for (std::int64_t d = 0; d < std::ssize(v); ++d)
      v[Facts::at(d)] =
          semantics::load(t.data, DType::bf16, place.page * t.stride[0] + place.offset * t.stride[1] + head * t.stride[2] + d);
  };
}

TEST(ReadsInside, APageOfAnotherTypeEndsWithTheCache) {
  Case c = written_by("q=f16 heads=2:2 d=32 page=8 reqs=3@5", {}, page_of_bf16);
  const Facts f(c.batch, c.cache, c.options);
  const diagnose_detail::Observed observed{c.observed, c.observed_lse};
  const Result<diagnose_detail::Localisation> where = diagnose_detail::localise(f, observed, {});
  ASSERT_TRUE(where.ok()) << where.status().message();
  const diagnose_detail::Evidence evidence(f, observed, where.value());
  const diagnose_detail::Scene scene = diagnose_detail::make_scene(f, observed, where.value(), evidence);
  diagnose_detail::Proposals list;
  diagnose_detail::propose_page_contents(scene, list);
  const BeforeAWall k(c.cache.k), v(c.cache.v);
  const Facts moved(c.batch, c.cache, c.options);
  std::size_t of_type = 0;
  for (const Proposal& p : list) {
    if (p.detail.find("codes of bf16") == std::string::npos) continue;
    EXPECT_TRUE(std::isfinite(with_kv_head(0, moved, p))) << p.detail;
    EXPECT_TRUE(std::isnan(with_kv_head(1000, moved, p))) << p.detail;
    ++of_type;
  }
  EXPECT_GT(of_type, 0u);
}

TEST(ReadsInside, ADiagnosisReadsNothingBehindAnyTensor) {
  for (const char* line : {"q=f32 heads=1 d=7 page=1 reqs=1@5", "q=f32 heads=3:1 d=5 page=3 reqs=3@7,1@5 alibi=1 sinks=1",
                           "q=f16 heads=4:2 d=9 page=4 reqs=5@6/8,1@7/7 lse=1"})
    for (const std::int64_t wrong : {0, 1}) {
      Case c = right(line);
      for (std::int64_t i = 0; i < c.observed.num_elements(); i += wrong == 0 ? c.observed.num_elements() : 3)
        semantics::store(c.observed.data, c.observed.dtype, i, 1e4f);
      const BeforeAWall query(c.batch.query), table(c.batch.block_table), k(c.cache.k), v(c.cache.v);
      const Diagnosis d = diagnosed(c);
      EXPECT_NE(d.verdict, DiagnosisVerdict::right) << to_string(d);
      EXPECT_NE(d.verdict, DiagnosisVerdict::cause_found) << to_string(d);
    }
}

}  // namespace
}  // namespace quire::test
