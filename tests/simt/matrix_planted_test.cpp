// SPDX-License-Identifier: Apache-2.0
// Faults that the matrix kernels' tests must not let pass: each barrier removed in turn, shared arrays one element short, fences
// without effect, a wrong lane map in the matrix unit, keys read that must not be.
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "kernels/judge.h"
#include "simt/matrix_device.h"
#include "simt/matrix_unit.h"

namespace quire::test {
namespace {

// Both lists, split tiles, several tiles of keys, fresh rows, a window; a NaN among the values for the careful path.
constexpr const char* kLines[] = {
    "q=f16 kv=f16 layout=nhd heads=4:2 d=64 page=16 lse=1 reqs=40@300,3@294",
    "q=bf16 kv=fp8_e4m3fn layout=nhd kscale=head heads=4:2 d=128 page=16 window=70 lse=1 reqs=20@100/110,1@150",
};

/// A case whose V holds a NaN in a tile that some rows of both lists see and others do not; where one thread takes it out of the
/// tile and another reads that place first.
Case made(const char* text) {
  const Case c = make_case(parse_problem_line(text).value()).value();
  const auto put = [&](std::int64_t req, std::int64_t position) {
    const std::int64_t page = semantics::index_row(c.batch.block_table, req)[position / 16];
    const Tensor& v = c.cache.v;
    semantics::store(v.data, v.dtype, ((page * 16 + position % 16) * v.shape[2] + 1) * v.shape[3] + 12, std::nanf(""));
  };
  if (c.cache.v.dtype == DType::f16) put(0, 325), put(1, 295);
  return c;
}

std::vector<std::string> findings_of(const simt::MatrixGpu& gpu, simt::Device device) {
  std::vector<std::string> findings;
  for (const char* text : kLines) {
    const verify_detail::Prepared p = prepared(made(text));
    for (device.seed = 0; device.seed < 6 && findings.empty(); ++device.seed) {
      const Attend attend = [&](const Case& guarded, int, std::int64_t& rows) {
        return simt::attend_matrix(gpu, device, guarded, rows);
      };
      findings = judge_one_call(p, attend);
    }
  }
  return findings;
}

/// In a process of its own: some faults lead to wild addresses.
bool found(const simt::MatrixGpu& gpu, const simt::Device& device) {
  const pid_t child = fork();
  if (child == 0) {
    ::alarm(60);
    if (std::freopen("/dev/null", "w", stderr) == nullptr) ::_exit(2);
    ::_exit(findings_of(gpu, device).empty() ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

const simt::Device kDevice{.blocks = 4, .split_keys = 0, .target_items = 12};

class SimtMatrixPlanted : public testing::TestWithParam<const simt::MatrixGpu*> {};

TEST_P(SimtMatrixPlanted, NothingIsFoundWithoutAFault) {
  EXPECT_FALSE(found(*GetParam(), kDevice)) << testing::PrintToString(findings_of(*GetParam(), kDevice));
}

/// Barriers of other files are the portable kernels'.
const std::set<std::string>& own_files() {
  static const std::set<std::string> files = {"attend_short.h", "attend_tall.h", "finish.h", "items.h", "query.h"};
  return files;
}

const simt::MatrixGpu* const kGpus[] = {&simt::kGfx942, &simt::kGfx1201, &simt::kGfx1100};

// On one device at least: where lanes exchange weights, on RDNA3, they meet more often than the source says.
TEST(SimtMatrixBarriers, EachIsNeeded) {
  std::set<std::string> barriers;
  simt::Device device = kDevice;
  device.barriers = &barriers;
  findings_of(simt::kGfx942, device);
  device.barriers = nullptr;
  std::size_t ours = 0;
  for (const std::string& barrier : barriers) {
    if (!own_files().contains(barrier.substr(0, barrier.find(':')))) continue;  // planted_test.cpp
    ++ours;
    device.fault.removed_barrier = barrier;
    const auto missed_on = [&](const simt::MatrixGpu* gpu) { return found(*gpu, device); };
    EXPECT_TRUE(std::any_of(std::begin(kGpus), std::end(kGpus), missed_on)) << "nobody misses the barrier at " << barrier;
  }
  EXPECT_GE(ours, 16u);
}

TEST_P(SimtMatrixPlanted, AWrongLaneMap) {
  for (const simt::MatrixFault fault : {simt::MatrixFault::swapped_rows, simt::MatrixFault::swapped_keys}) {
    simt::set_matrix_fault(fault);
    EXPECT_TRUE(found(*GetParam(), kDevice));
    simt::set_matrix_fault(simt::MatrixFault::none);
  }
}

TEST_P(SimtMatrixPlanted, EveryPieceOfSharedMemoryHasAGuard) {
  for (int piece = 0; piece < 3; ++piece) {
    simt::Device device = kDevice;
    device.fault.short_piece = piece;
    device.fault.short_bytes = 17;
    EXPECT_TRUE(found(*GetParam(), device)) << "piece " << piece;
  }
}

TEST_P(SimtMatrixPlanted, PartialsNeedTheirFence) {
  simt::Device device = kDevice;
  device.fault.no_fences = true;
  EXPECT_TRUE(found(*GetParam(), device));
}

TEST_P(SimtMatrixPlanted, AKeyThatMustNotBeRead) {
  simt::Device device = kDevice;
  device.tamper = [](gpu::AttendArgs& a) { a.window += a.window > 0 ? 1 : 0; };
  EXPECT_TRUE(found(*GetParam(), device)) << "one key left of the window";
  device.tamper = [](gpu::AttendArgs& a) { a.cached_lens = {}; };
  EXPECT_TRUE(found(*GetParam(), device)) << "this step's rows, read from slots that do not hold them yet";
}

INSTANTIATE_TEST_SUITE_P(, SimtMatrixPlanted, testing::ValuesIn(kGpus),
                         [](const auto& test) { return std::string(test.param->name); });

}  // namespace
}  // namespace quire::test
