// SPDX-License-Identifier: Apache-2.0
// Every test of this program runs on the fake runtime: it is named before anybody asks for a device.
#include <gtest/gtest.h>

#include <cstdlib>

#include "hip/on_fake.h"

namespace quire::test {
namespace {

class FakeRuntime : public testing::Environment {
 public:
  void SetUp() override {
    ::setenv("QUIRE_HIP_LIBRARY", QUIRE_FAKE_HIP_LIBRARY, 1);
    ::setenv("QUIRE_FAKE_HIP", kFakeDevices, 1);
  }
};

const testing::Environment* const kFakeRuntime = testing::AddGlobalTestEnvironment(new FakeRuntime);

}  // namespace
}  // namespace quire::test
