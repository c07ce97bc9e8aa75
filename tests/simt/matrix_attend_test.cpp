// The matrix kernels on the stand-in, with the fragments of each generation: every hazard in the types and head_dims that they
// take, against the fp64 reference, with poison, guards, shuffled threads.
#include <gtest/gtest.h>

#include "kernels/hazard_cases.h"
#include "simt/matrix_device.h"

namespace quire::test {
namespace {

const std::vector<std::string>& matrix_types() {
  static const std::vector<std::string> list = {
      "q=f16 kv=f16 layout=hnd index=i64",
      "q=bf16 kv=bf16 layout=nhd",
      "q=bf16 kv=fp8_e4m3fn layout=nhd kscale=head vscale=tensor",
      "q=f16 kv=fp8_e4m3fnuz layout=nhd kscale=tensor vscale=head index=i64",
      "q=bf16 kv=bf16 layout=packed vscale=tensor",
      "q=f16 kv=fp8_e5m2 layout=hnd vscale=head",
      "q=bf16 kv=fp8_e5m2fnuz layout=hnd",
      "q=f16 kv=fp8_e4m3fn layout=packed kscale=tensor vscale=tensor",
  };
  return list;
}

using GpuAndHazard = std::tuple<const simt::MatrixGpu*, Hazard>;
class SimtMatrix : public testing::TestWithParam<GpuAndHazard> {};

/// The shape with a head_dim of these kernels.
std::string with_head_dim(std::string shape, int head_dim) {
  const std::size_t at = shape.find(" d="), end = shape.find(' ', at + 1);
  shape.replace(at, end == std::string::npos ? end : end - at, " d=" + std::to_string(head_dim));
  return shape;
}

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
