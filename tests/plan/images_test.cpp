// SPDX-License-Identifier: Apache-2.0
// Devices that a build has code for: a GPU without an image must not be listed, since its kernels would write nothing.
#include "device/images.h"

#include <gtest/gtest.h>

namespace quire::device {
namespace {

constexpr const char* kAll = "80-real 86-real 89-real 90a-real 100-real 120";

TEST(Images, EveryArchitectureOfTheFullListRuns) {
  for (const int sm : {80, 86, 87, 89, 90, 100, 103, 120, 121}) EXPECT_TRUE(has_image(kAll, sm)) << sm;
}

TEST(Images, OlderDevicesAreNotListed) {
  for (const int sm : {60, 70, 75}) EXPECT_FALSE(has_image(kAll, sm)) << sm;
}

TEST(Images, PtxServesLaterDevicesAndMachineCodeDoesNot) {
  EXPECT_TRUE(has_image("80", 120));
  EXPECT_FALSE(has_image("80-real", 120));
  EXPECT_TRUE(has_image("80-virtual", 89));
  EXPECT_TRUE(has_image("80-real", 89)) << "machine code runs on later minor versions";
  EXPECT_FALSE(has_image("86-real", 80)) << "and not on earlier ones";
}

TEST(Images, HopperNeedsItsOwnKernels) {
  EXPECT_FALSE(has_image("80", 90)) << "the kernels of cuda_sm90 are empty in PTX of sm_80";
  EXPECT_TRUE(has_image("80 90a", 90));
  EXPECT_FALSE(has_image("90a", 100)) << "code for 90a runs on nothing else";
}

TEST(Images, NothingIsBuiltForNothing) { EXPECT_FALSE(has_image("", 90)); }

}  // namespace
}  // namespace quire::device
