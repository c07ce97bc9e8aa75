// SPDX-License-Identifier: Apache-2.0
// The parts of host_device() that are pure functions, so that tests can ask about machines that are not there.
#pragma once

#include <cstdint>
#include <string_view>

#include "quire/plan.hpp"

namespace quire::plan_detail {

/// The CPUID words that decide (Intel SDM vol. 2A, CPUID; vol. 1, 13.3 for XCR0). All zero without CPUID.
struct CpuidWords {
  std::uint32_t leaf0_ebx = 0;  ///< the vendor's first four letters
  std::uint32_t leaf1_ecx = 0;
  std::uint32_t leaf7_ebx = 0;
  std::uint32_t leaf7_ecx = 0;
  std::uint32_t leaf7_edx = 0;
  std::uint32_t leaf7_1_eax = 0;
  std::uint32_t xcr0 = 0;
};
std::uint32_t features_from_cpuid(const CpuidWords& words);

/// Features left when `limit` (scalar, avx2, avx512, avx512bf16, amx) caps them. Never adds one.
std::uint32_t narrow_features(std::uint32_t features, std::string_view limit);

/// Features that plans for this machine may use now: QUIRE_CPU narrows them. Asked by each call, so the system is not.
std::uint32_t host_features();

/// Name of the best level that a feature mask reaches.
std::string_view level_name(std::uint32_t features);

/// A whole positive number, or `fallback`.
int parse_thread_count(const char* text, int fallback);

}  // namespace quire::plan_detail
