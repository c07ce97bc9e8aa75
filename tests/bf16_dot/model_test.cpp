// SPDX-License-Identifier: Apache-2.0
// cpu_avx512bf16 on processors without AVX512-BF16: the model of the instruction against the instruction, where there is one, and
// the kernel's hazard cases with the model in the instruction's place. This program has its own copy of the kernel
// (kernel.cpp); it needs AVX-512.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "bf16_dot/bf16_dot_model.h"
#include "bf16_dot/dot_probe.h"
#include "kernels/hazard_cases.h"
#include "kernels/host_kernels.h"
#include "kernels/judge.h"

namespace quire::test {
namespace {

constexpr int kLanes = 16;

/// Findings of the model against the instruction for one vector of operands.
void expect_same(const std::uint32_t* a, const std::uint32_t* b, const float* c) {
  float found[kLanes];
  kHardwareDot(a, b, c, found);
  for (int i = 0; i < kLanes; ++i) {
    const float model = cpu::bf16_dot_model(semantics::bits_to_float(a[i]), semantics::bits_to_float(b[i]), c[i]);
    ASSERT_TRUE(std::isnan(model) ? std::isnan(found[i]) : semantics::float_to_bits(model) == semantics::float_to_bits(found[i]))
        << std::hex << "a " << a[i] << " b " << b[i] << " c " << semantics::float_to_bits(c[i]) << ": model "
        << semantics::float_to_bits(model) << ", instruction " << semantics::float_to_bits(found[i]);
  }
}

bool host_has_the_instruction() { return (host_device().cpu_features & kAvx512Bf16) != 0 && kHardwareDot != nullptr; }

TEST(Bf16DotModel, IsTheInstructionOnRandomBits) {
  if (!host_has_the_instruction()) GTEST_SKIP() << "this processor has no AVX512-BF16";
  std::mt19937_64 random(5);
  std::uint32_t a[kLanes], b[kLanes];
  float c[kLanes];
  for (int round = 0; round < 200000; ++round) {
    for (int i = 0; i < kLanes; ++i) {
      a[i] = static_cast<std::uint32_t>(random());
      b[i] = static_cast<std::uint32_t>(random());
      c[i] = semantics::bits_to_float(static_cast<std::uint32_t>(random()));
    }
    ASSERT_NO_FATAL_FAILURE(expect_same(a, b, c));
  }
}

/// Values whose products and sums meet: rounding ties, cancellation, the ends of the range.
TEST(Bf16DotModel, IsTheInstructionOnSpecialValues) {
  if (!host_has_the_instruction()) GTEST_SKIP() << "this processor has no AVX512-BF16";
  const std::uint16_t codes[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x007F, 0x0080, 0x8080, 0x0100, 0x1F80, 0x2000, 0x3380, 0x3F80,
                                 0xBF80, 0x3F81, 0x4000, 0x4B80, 0x5F80, 0x7F00, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80, 0x7FC0};
  const float sums[] = {0.0f,       -0.0f,     1.0f,      -1.0f,   0x1p-24f, 0x1p-126f,
                        -0x1p-126f, 0x1p-127f, 0x1p-149f, 3.4e38f, -3.4e38f, INFINITY};
  std::mt19937 random(6);
  const auto pair = [&] {
    const auto code = [&] { return static_cast<std::uint32_t>(codes[random() % std::size(codes)]); };
    return code() | code() << 16;
  };
  std::uint32_t a[kLanes], b[kLanes];
  float c[kLanes];
  for (int round = 0; round < 200000; ++round) {
    for (int i = 0; i < kLanes; ++i) a[i] = pair(), b[i] = pair(), c[i] = sums[random() % std::size(sums)];
    ASSERT_NO_FATAL_FAILURE(expect_same(a, b, c));
  }
}

/// Plans as if the instruction were there; the calls in this program go to the model.
Status attend_by_model(const Case& c, int num_threads, std::int64_t& rows) {
  Device device = host_device();
  device.cpu_features |= kAvx512Bf16;
  Result<Plan> plan =
      quire::plan(problem_of(c.batch, c.cache, c.options), device, {.kernel = "cpu_avx512bf16", .num_threads = num_threads});
  if (!plan.ok()) return plan.status();
  plan->device = host_device();
  return attend_planned(plan.value(), c, num_threads, rows);
}

TEST(Bf16DotModel, CarriesTheKernelThroughItsHazards) {
  if ((host_device().cpu_features & kAvx512) == 0) GTEST_SKIP() << "this processor has no AVX-512";
  std::uint64_t seed = 1;
  std::int64_t judged = 0;
  for (const Hazard& hazard : hazards())
    for (const std::string& shape : hazard.shapes) {
      const std::string types[] = {"q=bf16 kv=bf16 layout=nhd", "q=bf16 kv=bf16 layout=packed",
                                   "q=bf16 kv=fp8_e4m3fn layout=hnd kscale=head vscale=head"};
      const ProblemLine line = hazard_line(types[seed % 3], shape, seed);
      ++seed;
      const std::vector<std::string> findings = judge(line, attend_by_model);
      EXPECT_TRUE(findings.empty()) << hazard.name << "\n" << report(line, findings);
      ++judged;
    }
  EXPECT_GT(judged, 20);
}

}  // namespace
}  // namespace quire::test
