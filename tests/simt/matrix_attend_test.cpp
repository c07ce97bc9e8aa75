// SPDX-License-Identifier: Apache-2.0
// The matrix kernels on the stand-in, with the fragments of each generation: every hazard in the types and head_dims that they
// take, against the fp64 reference, with poison, guards, shuffled threads.
#include <gtest/gtest.h>

#include "kernels/hazard_cases.h"
#include "simt/matrix_device.h"
#include "simt/matrix_types.h"

namespace quire::test {
namespace {

using GpuAndHazard = std::tuple<const simt::MatrixGpu*, Hazard>;
class SimtMatrix : public testing::TestWithParam<GpuAndHazard> {};

// Types, layouts and head_dims take turns over the shapes.
TEST_P(SimtMatrix, Hazard) {
  const auto& [gpu, hazard] = GetParam();
  constexpr int kDims[] = {64, 128, 64, 256};
  std::size_t turn = static_cast<std::size_t>(gpu->wave) / 32;
  for (const char c : hazard.name) turn += static_cast<std::size_t>(c);
  for (const std::string& shape : hazard.shapes) {
    ++turn;
    const std::string& types = matrix_types()[turn % matrix_types().size()];
    const ProblemLine line = hazard_line(types, with_head_dim(shape, kDims[turn / 3 % 4]), turn);
    if (!line.problem.is_causal_at_end()) continue;  // refused: hip_generic serves it
    const simt::Device device{.target_items = turn % 4 < 2 ? 0 : 8};
    const std::vector<std::string> findings = judge(line, on_matrix_device(*gpu, device));
    EXPECT_TRUE(findings.empty()) << gpu->name << "\n" << report(line, findings);
  }
}

INSTANTIATE_TEST_SUITE_P(, SimtMatrix,
                         testing::Combine(testing::Values(&simt::kGfx942, &simt::kGfx1100, &simt::kGfx1201),
                                          testing::ValuesIn(hazards())),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param)->name) + "_" + std::get<1>(test.param).name;
                         });

}  // namespace
}  // namespace quire::test
