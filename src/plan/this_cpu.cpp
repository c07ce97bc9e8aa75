// SPDX-License-Identifier: Apache-2.0
// Stage: plan. Features of this machine's CPU, as planning sees them.
// A vector feature counts only if the processor has it and the operating system saves its registers.
#include "plan/this_cpu.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif

#include "quire/executor.hpp"

namespace quire {
namespace plan_detail {

std::uint32_t features_from_cpuid(const CpuidWords& words) {
  const auto bit = [](std::uint32_t word, int index) { return ((word >> index) & 1u) != 0; };
  const bool saves_ymm = bit(words.leaf1_ecx, 27) && (words.xcr0 & 0x06u) == 0x06u;  // OSXSAVE; XMM and YMM state
  const bool saves_zmm = saves_ymm && (words.xcr0 & 0xE0u) == 0xE0u;                 // opmask, ZMM0-15 upper, ZMM16-31
  const bool avx2 = saves_ymm && bit(words.leaf1_ecx, 28) && bit(words.leaf1_ecx, 12) && bit(words.leaf1_ecx, 29) &&
                    bit(words.leaf7_ebx, 5);  // AVX, FMA, F16C, AVX2
  const bool avx512 = avx2 && saves_zmm && bit(words.leaf7_ebx, 16) && bit(words.leaf7_ebx, 17) && bit(words.leaf7_ebx, 30) &&
                      bit(words.leaf7_ebx, 31);                                                  // F, DQ, BW, VL
  const bool bf16 = avx512 && bit(words.leaf7_1_eax, 5) && bit(words.leaf7_ecx, 1);              // AVX512-BF16, AVX512-VBMI
  const bool saves_tiles = (words.xcr0 & 0x60000u) == 0x60000u;                                  // TILECFG, TILEDATA
  const bool amx = bf16 && saves_tiles && bit(words.leaf7_edx, 22) && bit(words.leaf7_edx, 24);  // AMX-BF16, AMX-TILE
  // No CPUID bit tells the rate: AMD's Zen 4 and 5 were measured at the full one, Intel's Emerald Rapids at half of it.
  constexpr std::uint32_t kAuth = 0x68747541u;  // "Auth" of AuthenticAMD
  const bool fast_bf16 = bf16 && words.leaf0_ebx == kAuth;
  return (avx2 ? kAvx2 : 0u) | (avx512 ? kAvx512 : 0u) | (bf16 ? kAvx512Bf16 : 0u) | (amx ? kAmxBf16 : 0u) |
         (fast_bf16 ? kFastBf16Dot : 0u);
}

std::uint32_t narrow_features(std::uint32_t features, std::string_view limit) {
  std::uint32_t allowed = ~0u;
  if (limit == "scalar") allowed = 0;
  if (limit == "avx2") allowed = kAvx2;
  if (limit == "avx512") allowed = kAvx2 | kAvx512;
  if (limit == "avx512bf16") allowed = kAvx2 | kAvx512 | kAvx512Bf16 | kFastBf16Dot;
  return features & allowed;  // "amx", empty and unknown text narrow nothing
}

std::string_view level_name(std::uint32_t features) {
  if ((features & kAmxBf16) != 0) return "amx";
  if ((features & kAvx512Bf16) != 0) return "avx512bf16";
  if ((features & kAvx512) != 0) return "avx512";
  if ((features & kAvx2) != 0) return "avx2";
  if ((features & kNeon) != 0) return "neon";
  return "scalar";
}

int parse_thread_count(const char* text, int fallback) {
  if (text == nullptr) return fallback;
  const std::string_view view(text);
  int count = 0;
  const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), count);
  const bool valid = error == std::errc() && end == view.data() + view.size() && count >= 1;
  return valid ? std::min(count, kMaxThreads) : fallback;
}

}  // namespace plan_detail

namespace {

#if defined(__x86_64__) || defined(__i386__)
/// Linux grants a process the 8 KiB of tile registers only if it asks (Documentation/arch/x86/xstate.rst).
[[maybe_unused]] bool may_use_tiles() {
#if defined(__linux__) && defined(__x86_64__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

std::uint32_t detect_features() {
  plan_detail::CpuidWords words;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(0, &a, &b, &c, &d) != 0) words.leaf0_ebx = b;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0) return 0;
  words.leaf1_ecx = c;
  if (((c >> 27) & 1u) != 0) {  // XGETBV exists only with OSXSAVE
    std::uint32_t low = 0, high = 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    words.xcr0 = low;
  }
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) != 0) {
    words.leaf7_ebx = b;
    words.leaf7_ecx = c;
    words.leaf7_edx = d;
    if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0) words.leaf7_1_eax = a;
  }
  std::uint32_t features = plan_detail::features_from_cpuid(words);
#ifndef QUIRE_EMULATE_AMX
  if ((features & kAmxBf16) != 0 && !may_use_tiles()) features &= ~static_cast<std::uint32_t>(kAmxBf16);
#else
  if ((features & kAvx512) != 0) features |= kAvx512Bf16 | kAmxBf16;  // tests only
#endif
  return features;
}
#elif defined(__aarch64__)
std::uint32_t detect_features() { return kNeon; }  // part of the base architecture
#else
std::uint32_t detect_features() { return 0; }
#endif

std::optional<std::int64_t> l2_from_sysfs() {
  std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index2/size");
  std::int64_t value = 0;
  char unit = 0;
  if (!(file >> value >> unit) || value <= 0 || value > (1 << 20)) return std::nullopt;
  if (unit == 'K') return value << 10;
  if (unit == 'M') return value << 20;
  return std::nullopt;
}

std::int64_t detect_l2_bytes() {
  if (const auto bytes = l2_from_sysfs()) return *bytes;
#if defined(__x86_64__) || defined(__i386__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(0x80000006u, &a, &b, &c, &d) != 0 && (c >> 16) != 0) return static_cast<std::int64_t>(c >> 16) << 10;
#endif
  return 1 << 20;
}

int usable_cores() {
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace

std::uint32_t plan_detail::host_features() {
  static const std::uint32_t features = detect_features();
  const char* limit = std::getenv("QUIRE_CPU");
  return narrow_features(features, limit == nullptr ? "" : limit);
}

Device host_device() {
  static const std::int64_t l2_bytes = detect_l2_bytes();
  Device device;
  device.cpu_features = plan_detail::host_features();
  device.name = plan_detail::level_name(device.cpu_features);
  device.num_threads = plan_detail::parse_thread_count(std::getenv("QUIRE_NUM_THREADS"), usable_cores());
  device.l2_bytes = l2_bytes;
  return device;
}

}  // namespace quire
