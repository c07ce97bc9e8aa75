// SPDX-License-Identifier: Apache-2.0
// List of AMD GPUs, and the message if there is none, which names the missing part.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/command.h"
#include "hip/on_fake.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

std::vector<Device> amd_devices() {
  std::vector<Device> all = gpu_devices();
  std::erase_if(all, [](const Device& d) { return d.backend != Backend::hip; });
  return all;
}

TEST(HipDevices, AreThoseWithKernelsInTheDriversOrder) {
  EXPECT_TRUE(has_backend(Backend::hip));
  const std::vector<Device> devices = amd_devices();
  ASSERT_EQ(devices.size(), 3u) << "gfx906 has no code object";
  const char* names[] = {"gfx942", "gfx1100", "gfx1201"};
  for (int i = 0; i < 3; ++i) {
    const Device& d = devices[static_cast<std::size_t>(i)];
    EXPECT_EQ(d.name, names[i]) << "features behind the name do not count";
    EXPECT_EQ(d.ordinal, i);
    EXPECT_EQ(d.num_threads, 1);
    EXPECT_EQ(d.l2_bytes, 4 << 20);
    EXPECT_EQ(d.product, "a stand-in");
  }
}

TEST(HipDevices, OneWithoutKernelsIsNamed) {
  const Result<Device> device = device::device_at(Memory::hip, 3);
  ASSERT_FALSE(device.ok());
  EXPECT_EQ(device.status().message(),
            "there is no hip GPU 3 that this build has kernels for; there are 0 (gfx942), 1 (gfx1100), 2 (gfx1201)");
}

TEST(HipDevices, HostMemoryIsOnNone) {
  const int here = 0;
  const Result<int> ordinal = device::runtime_of(Memory::hip)->ordinal_of(&here);
  ASSERT_FALSE(ordinal.ok());
  EXPECT_THAT(ordinal.status().message(), HasSubstr("is in no AMD GPU's memory"));
}

/// What a user sees of `quire verify --backend hip` on a small problem under an environment.
Ran verify_hip(const Environment& environment) {
  Environment all = {{"QUIRE_HIP_LIBRARY", QUIRE_FAKE_HIP_LIBRARY}, {"QUIRE_FAKE_HIP", "gfx942"}};
  for (const auto& [key, value] : environment) all[key] = value;
  return quire({"verify", "--backend", "hip", "--no-power", "--line", "q=f16 kv=f16 heads=2:1 d=8 page=4 reqs=1@5"}, all);
}

struct Lack {
  const char* name;
  Environment environment;
  const char* words;
};

void PrintTo(const Lack& lack, std::ostream* out) { *out << lack.name; }

TEST(HipDevices, TheCommandListsThemOrSaysWhyThereIsNone) {
  const Environment fake = {{"QUIRE_HIP_LIBRARY", QUIRE_FAKE_HIP_LIBRARY}, {"QUIRE_FAKE_HIP", "gfx942"}};
  const Ran listed = quire({"info", "devices"}, fake);
  EXPECT_THAT(listed.out, testing::ContainsRegex("gfx942 +hip +1 +4 MiB +- +GPU 0, a stand-in"));
  EXPECT_THAT(listed.out, testing::Not(HasSubstr("no GPU")));
  const Ran none = quire({"info", "devices"}, {{"QUIRE_HIP_LIBRARY", "/nowhere"}});
  EXPECT_THAT(none.out, HasSubstr("no GPU: "));
  EXPECT_THAT(none.out, HasSubstr("QUIRE_HIP_LIBRARY: /nowhere"));
}

class HipLacks : public testing::TestWithParam<Lack> {};

TEST_P(HipLacks, IsSaid) {
  const Ran ran = verify_hip(GetParam().environment);
  EXPECT_NE(ran.exit_code, 0) << ran.out;
  EXPECT_THAT(ran.out + ran.err, HasSubstr(GetParam().words));
}

const Lack kLacks[] = {
    {"Library",
     {{"QUIRE_HIP_LIBRARY", "/nowhere/libamdhip64.so"}},
     "the HIP runtime of ROCm 6 or newer is missing (QUIRE_HIP_LIBRARY: /nowhere/libamdhip64.so: cannot open"},
    {"Functions",
     {{"QUIRE_HIP_LIBRARY", "libm.so.6"}},
     "the libamdhip64 that was found has no hipGetDeviceCount, hipGetDevicePropertiesR0600, hipGetDevice,"},
    {"Device",
     {{"QUIRE_FAKE_HIP", ""}},
     "no AMD GPU can be used: hipGetDeviceCount: no ROCm-capable device is detected (hipErrorNoDevice)"},
    {"KernelsForTheDevice",
     {{"QUIRE_FAKE_HIP", "gfx906"}},
     "this build has kernels for gfx90a, gfx942, gfx950, gfx1100, gfx1201, not for gfx906 (GPU 0, a stand-in)"},
    {"Properties",
     {{"QUIRE_FAKE_HIP_FAILS", "hipGetDevicePropertiesR0600"}},
     "hipGetDeviceProperties: hipGetDevicePropertiesR0600 fails as it was told to (hipErrorInvalidDevice)"},
    {"LoadableCode",
     {{"QUIRE_FAKE_HIP_FAILS", "hipModuleLoadData"}},
     "loading code object kernels for gfx942: hipModuleLoadData fails as it was told to (hipErrorNoBinaryForGpu)"},
    {"Kernel",
     {{"QUIRE_FAKE_HIP_FAILS", "hipModuleGetFunction"}},
     "looking for kernel quire_attend_generic in code object kernels: "},
    {"Launch", {{"QUIRE_FAKE_HIP_FAILS", "hipModuleLaunchKernel"}}, "launching quire_reset with 1 blocks of 256 threads: "},
    {"Memory", {{"QUIRE_FAKE_HIP_FAILS", "hipMalloc"}}, "hipMalloc: hipMalloc fails as it was told to (hipErrorOutOfMemory)"},
};
INSTANTIATE_TEST_SUITE_P(, HipLacks, testing::ValuesIn(kLacks), [](const auto& test) { return std::string(test.param.name); });

TEST(HipDevices, WithNothingMissingTheCommandRuns) {
  const Ran ran = verify_hip({});
  EXPECT_EQ(ran.exit_code, 0) << ran.out << ran.err;
}

}  // namespace
}  // namespace quire::test
