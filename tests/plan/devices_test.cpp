// SPDX-License-Identifier: Apache-2.0
// Devices: every name is found, real ones are detected from CPUID words, overrides only narrow.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "plan/this_cpu.h"
#include "quire/plan.hpp"

namespace quire {
namespace {

using plan_detail::CpuidWords;
using plan_detail::features_from_cpuid;
using plan_detail::narrow_features;
using ::testing::HasSubstr;

// A Sapphire Rapids class machine whose operating system saves every register.
CpuidWords everything() {
  CpuidWords words;
  words.leaf1_ecx = 1u << 12 | 1u << 27 | 1u << 28 | 1u << 29;
  words.leaf7_ebx = 1u << 5 | 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
  words.leaf7_ecx = 1u << 1;
  words.leaf7_edx = 1u << 22 | 1u << 24;
  words.leaf7_1_eax = 1u << 5;
  words.xcr0 = 0x600E7;
  return words;
}

TEST(Devices, EveryKnownNameIsFoundAndUnique) {
  std::set<std::string> names;
  for (const Device& device : known_devices()) {
    const Result<Device> found = find_device(device.name);
    ASSERT_TRUE(found.ok()) << device.name;
    EXPECT_EQ(found.value(), device);
    EXPECT_TRUE(names.insert(device.name).second) << device.name;
    EXPECT_GE(device.num_threads, 1);
    EXPECT_GT(device.l2_bytes, 0);
  }
  for (const char* name : {"scalar", "avx2", "avx512", "avx512bf16", "amx", "neon", "sm80", "sm86", "sm89", "sm90", "sm100",
                           "sm120", "gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201"}) {
    EXPECT_EQ(names.count(name), 1u) << name;
  }
}

TEST(Devices, ProductsAreFoundByTheirNames) {
  struct {
    const char *typed, *name, *product;
  } const products[] = {{"h100", "sm90", "NVIDIA H100 80GB HBM3"},
                        {"H200", "sm90", "NVIDIA H200"},
                        {"h20", "sm90", "NVIDIA H20"},
                        {"a100", "sm80", "NVIDIA A100"},
                        {"b200", "sm100", "NVIDIA B200"},
                        {"l40s", "sm89", "NVIDIA L40S"},
                        {"MI300X", "gfx942", "AMD Instinct MI300X"},
                        {"mi355x", "gfx950", "AMD Instinct MI355X"}};
  for (const auto& one : products) {
    const Result<Device> found = find_device(one.typed);
    ASSERT_TRUE(found.ok()) << one.typed;
    EXPECT_EQ(found->name, one.name);
    EXPECT_EQ(found->product, one.product);
  }
  EXPECT_EQ(find_device("sm90")->product, "") << "an architecture is no product";
  EXPECT_FALSE(find_device("h10").ok());
}

TEST(Devices, UnknownNameListsTheKnownOnes) {
  const Result<Device> found = find_device("gfx94");
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.status().code(), Code::invalid_argument);
  EXPECT_THAT(found.status().message(), HasSubstr("'gfx94'"));
  for (const Device& device : known_devices()) EXPECT_THAT(found.status().message(), HasSubstr(device.name));
}

TEST(Devices, HugeNameIsCutInTheMessage) {
  const Result<Device> found = find_device(std::string(1 << 20, 'x'));
  ASSERT_FALSE(found.ok());
  EXPECT_LT(found.status().message().size(), 400u);
}

TEST(HostDevice, FeaturesNeedEveryPart) {
  EXPECT_EQ(features_from_cpuid({}), 0u);
  EXPECT_EQ(features_from_cpuid(everything()), kAvx2 | kAvx512 | kAvx512Bf16 | kAmxBf16);
  for (int bit : {12, 27, 28, 29}) {  // FMA, OSXSAVE, AVX and F16C: no kernel runs without them
    CpuidWords words = everything();
    words.leaf1_ecx &= ~(1u << bit);
    EXPECT_EQ(features_from_cpuid(words), 0u) << bit;
  }
  for (int bit : {16, 17, 30, 31}) {
    CpuidWords words = everything();
    words.leaf7_ebx &= ~(1u << bit);
    EXPECT_EQ(features_from_cpuid(words), kAvx2) << bit;
  }
  for (int bit : {22, 24}) {  // AMX-BF16, AMX-TILE
    CpuidWords words = everything();
    words.leaf7_edx &= ~(1u << bit);
    EXPECT_EQ(features_from_cpuid(words), kAvx2 | kAvx512 | kAvx512Bf16) << bit;
  }
  CpuidWords words = everything();
  words.leaf7_ecx = 0;  // Cooper Lake has no byte permutes, with which bf16 kernels read fp8 caches
  EXPECT_EQ(features_from_cpuid(words), kAvx2 | kAvx512);
  words = everything();
  words.leaf7_1_eax = 0;
  EXPECT_EQ(features_from_cpuid(words), kAvx2 | kAvx512);
}

TEST(HostDevice, FastBf16DotIsAmdWithTheInstruction) {
  CpuidWords words = everything();
  words.leaf0_ebx = 0x68747541;  // AuthenticAMD
  EXPECT_EQ(features_from_cpuid(words), kAvx2 | kAvx512 | kAvx512Bf16 | kAmxBf16 | kFastBf16Dot);
  words.leaf7_1_eax = 0;
  EXPECT_EQ(features_from_cpuid(words), kAvx2 | kAvx512);
  words = everything();
  words.leaf0_ebx = 0x756e6547;  // GenuineIntel
  EXPECT_EQ(features_from_cpuid(words) & kFastBf16Dot, 0u);
}

TEST(HostDevice, RegistersTheSystemDoesNotSaveDoNotCount) {
  CpuidWords words = everything();
  words.xcr0 = 0x200E7;  // system saves no tile data
  EXPECT_EQ(features_from_cpuid(words), kAvx2 | kAvx512 | kAvx512Bf16);
  words.xcr0 = 0x07;  // system saves no ZMM state
  EXPECT_EQ(features_from_cpuid(words), kAvx2);
  words.xcr0 = 0x03;  // system saves no YMM state
  EXPECT_EQ(features_from_cpuid(words), 0u);
}

TEST(HostDevice, OverrideNarrowsOnly) {
  const std::uint32_t all = kAvx2 | kAvx512 | kAvx512Bf16 | kAmxBf16;
  EXPECT_EQ(narrow_features(all, "scalar"), 0u);
  EXPECT_EQ(narrow_features(all, "avx2"), kAvx2);
  EXPECT_EQ(narrow_features(all, "avx512"), kAvx2 | kAvx512);
  EXPECT_EQ(narrow_features(all, "avx512bf16"), kAvx2 | kAvx512 | kAvx512Bf16);
  EXPECT_EQ(narrow_features(all, "amx"), all);
  EXPECT_EQ(narrow_features(all, ""), all);
  EXPECT_EQ(narrow_features(kAvx2, "avx512bf16"), kAvx2);
  EXPECT_EQ(narrow_features(0, "avx2"), 0u);
  EXPECT_EQ(narrow_features(all | kFastBf16Dot, "avx512bf16"), kAvx2 | kAvx512 | kAvx512Bf16 | kFastBf16Dot);
  EXPECT_EQ(narrow_features(all | kFastBf16Dot, "avx512"), kAvx2 | kAvx512);
}

TEST(HostDevice, ThreadCountIsAWholePositiveNumber) {
  EXPECT_EQ(plan_detail::parse_thread_count(nullptr, 3), 3);
  EXPECT_EQ(plan_detail::parse_thread_count("7", 3), 7);
  for (const char* text : {"", "0", "-2", "2x", " 2", "99999999999999999999"}) {
    EXPECT_EQ(plan_detail::parse_thread_count(text, 3), 3) << text;
  }
}

TEST(HostDevice, EnvironmentIsHonoured) {
  ::setenv("QUIRE_CPU", "scalar", 1);
  ::setenv("QUIRE_NUM_THREADS", "5", 1);
  const Device narrowed = host_device();
  ::unsetenv("QUIRE_CPU");
  ::unsetenv("QUIRE_NUM_THREADS");
  const Device host = host_device();
  EXPECT_EQ(narrowed.cpu_features & (kAvx2 | kAvx512 | kAvx512Bf16), 0u);
  EXPECT_EQ(narrowed.num_threads, 5);
  EXPECT_EQ(host.backend, Backend::cpu);
  EXPECT_GE(host.num_threads, 1);
  EXPECT_EQ(host.name, plan_detail::level_name(host.cpu_features));
  EXPECT_EQ(host.cpu_features & narrowed.cpu_features, narrowed.cpu_features);
}

}  // namespace
}  // namespace quire
