// SPDX-License-Identifier: Apache-2.0
// append(), merge(), merge_many() and check_contents() on the emulated device, and batches that break a rule. Each function
// returns findings, none if all is well.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "amd_emulator/attend.h"
#include "amd_emulator/launcher.h"

namespace quire::amd {

struct Judged {
  std::int64_t cases = 0;
  std::vector<std::string> findings;
};

/// Every type, layout, stride and scale form against the CPU, to the bit; a slot outside the cache must break the call unwritten.
Judged judge_append(LaunchKernel launch, std::uint64_t seed);
/// Every type and stride, in place and not, against fp64; exact where a side is empty.
Judged judge_merge(LaunchKernel launch, std::uint64_t seed);
/// Stacks of every type, stride and number of parts, some of them empty, against fp64.
Judged judge_merge_many(LaunchKernel launch, std::uint64_t seed);
/// Lengths and tables that break one rule each: validate() must notice, and nothing may be written.
Judged judge_broken(const std::string& device, const AttendKernel& kernel, LaunchKernel launch, std::uint64_t seed);
/// Cases full of poison that nobody reads are finite; with NaN in one key that is read they are not.
Judged judge_contents(LaunchKernel launch, std::uint64_t seed);

}  // namespace quire::amd
