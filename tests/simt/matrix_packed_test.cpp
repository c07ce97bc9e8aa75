// SPDX-License-Identifier: Apache-2.0
// The matrix kernels read packed caches by pieces: 16 bytes of a key, 8 tokens of a dim of the values. Tests take all types and
// head_dims, pages of 8 and of odd multiples of 8, windows and lengths that begin and end inside a piece, and this step's rows
// behind cached ones. Pages that are no multiple of 8 are read element by element.
#include <gtest/gtest.h>

#include <array>
#include <functional>

#include "kernels/judge.h"
#include "simt/matrix_device.h"

namespace quire::test {
namespace {

class SimtMatrixPacked : public testing::TestWithParam<const simt::MatrixGpu*> {};

constexpr const char* kTypes[] = {"q=f16 kv=f16 index=i64", "q=bf16 kv=bf16",    "q=bf16 kv=fp8_e4m3fn",
                                  "q=f16 kv=fp8_e4m3fnuz",  "q=f16 kv=fp8_e5m2", "q=bf16 kv=fp8_e5m2fnuz"};
// Both lists, split tiles; the first request's rows are longer than a tile of rows. context/cached: this step's rows.
constexpr const char* kShapes[] = {
    "page=8 lse=1 reqs=40@300,3@294,1@77",
    "page=16 window=70 reqs=20@100/110,1@150",
    "page=24 window=21 cap=5 alibi=1 reqs=1@50,35@61/73,2@9",
    "page=40 kscale=head vscale=head lse=1 reqs=70@13/40,1@200",
    "page=12 reqs=20@100,1@150",
};

TEST_P(SimtMatrixPacked, Reads) {
  std::size_t turn = 0;
  for (const char* shape : kShapes)
    for (const char* types : kTypes) {
      const int dim = std::array{64, 128, 256, 128}[turn % 4];
      const std::string text = std::string(types) + " layout=packed heads=4:2 d=" + std::to_string(dim) + " " + shape;
      const simt::Device device{.target_items = turn++ % 2 == 0 ? 0 : 8};
      const ProblemLine line = parse_problem_line(text).value();
      const std::vector<std::string> findings = judge(line, on_matrix_device(*GetParam(), device));
      EXPECT_TRUE(findings.empty()) << GetParam()->name << "\n" << report(line, findings);
    }
}

/// Findings of a line whose call has been tampered with.
std::vector<std::string> findings_of(const simt::MatrixGpu& gpu, const char* text,
                                     const std::function<void(gpu::GenericArgs&)>& tamper) {
  simt::Device device{.target_items = 8};
  device.tamper = tamper;
  return judge(parse_problem_line(text).value(), on_matrix_device(gpu, device));
}

// A piece is found by four strides and bounds. A fault is planted in each.
TEST_P(SimtMatrixPacked, WrongStridesAreFound) {
  constexpr const char* kLine = "q=bf16 kv=bf16 layout=packed heads=4:2 d=128 page=16 reqs=20@100,1@150";
  EXPECT_TRUE(findings_of(*GetParam(), kLine, [](gpu::AttendArgs&) {}).empty());
  EXPECT_FALSE(findings_of(*GetParam(), kLine, [](gpu::AttendArgs& a) { a.cache_k.strides.chunk -= 64; }).empty());
  EXPECT_FALSE(findings_of(*GetParam(), kLine, [](gpu::AttendArgs& a) { a.cache_v.strides.dim -= 8; }).empty());
  EXPECT_FALSE(findings_of(*GetParam(), kLine, [](gpu::AttendArgs& a) { a.window = 90; }).empty());
}

INSTANTIATE_TEST_SUITE_P(, SimtMatrixPacked, testing::Values(&simt::kGfx942, &simt::kGfx1100, &simt::kGfx1201),
                         [](const auto& test) { return std::string(test.param->name); });

}  // namespace
}  // namespace quire::test
