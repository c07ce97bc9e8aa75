// SPDX-License-Identifier: Apache-2.0
// The portable attention kernel on the stand-in: every hazard against the fp64 reference, with poison, guards, shuffled threads.
#include <gtest/gtest.h>

#include "kernels/hazard_cases.h"
#include "kernels/judge.h"
#include "simt/on_device.h"

namespace quire::test {
namespace {

class Simt : public testing::TestWithParam<Hazard> {};

// Types and layouts take turns over the shapes, waves of 32 and 64 over the types.
TEST_P(Simt, Hazard) {
  const std::vector<std::string>& types = type_combinations();
  std::size_t turn = 0;
  for (const char c : GetParam().name) turn += static_cast<std::size_t>(c);
  for (const std::string& shape : GetParam().shapes)
    for (int i = 0; i < (shape.find("heads=72") != std::string::npos ? 1 : 2); ++i, ++turn) {
      const ProblemLine line = hazard_line(types[turn % types.size()], shape, turn);
      const simt::Device device{.wave = turn % 2 == 0 ? 32 : 64, .target_items = turn % 4 < 2 ? 0 : 8};
      const std::vector<std::string> findings = judge(line, on_device(device));
      EXPECT_TRUE(findings.empty()) << "wave " << device.wave << "\n" << report(line, findings);
    }
}

TEST(SimtTokenScales, EveryTypeAndShape) {
  std::uint64_t turn = 0;
  for (const verify_detail::Entry& entry : verify_detail::token_scale_matrix({}, /*quick=*/false)) {
    if (entry.special != Special::none || ++turn % 2 == 0) continue;
    const simt::Device device{.wave = turn % 4 == 1 ? 32 : 64, .target_items = turn % 8 < 4 ? 0 : 8};
    const std::vector<std::string> findings = judge(entry.line, on_device(device));
    EXPECT_TRUE(findings.empty()) << "wave " << device.wave << "\n" << report(entry.line, findings);
  }
}

TEST(SimtUnlikeTypes, EveryTypeAndShape) {
  std::uint64_t turn = 0;
  for (const verify_detail::Entry& entry : verify_detail::unlike_type_matrix({}, /*quick=*/false)) {
    if (++turn % 2 == 0) continue;
    const simt::Device device{.wave = turn % 4 == 1 ? 32 : 64, .target_items = turn % 8 < 4 ? 0 : 8};
    const std::vector<std::string> findings = judge(entry.line, on_device(device));
    EXPECT_TRUE(findings.empty()) << "wave " << device.wave << "\n" << report(entry.line, findings);
  }
}

TEST(SimtFourBits, EveryTypeAndShape) {
  std::uint64_t turn = 0;
  for (const verify_detail::Entry& entry : verify_detail::four_bit_matrix({}, /*quick=*/false)) {
    if (++turn % 2 == 0) continue;
    const simt::Device device{.wave = turn % 4 == 1 ? 32 : 64, .target_items = turn % 8 < 4 ? 0 : 8};
    const std::vector<std::string> findings = judge(entry.line, on_device(device));
    EXPECT_TRUE(findings.empty()) << "wave " << device.wave << "\n" << report(entry.line, findings);
  }
}

INSTANTIATE_TEST_SUITE_P(, Simt, testing::ValuesIn(hazards()), [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace quire::test
