// SPDX-License-Identifier: Apache-2.0
// Interface from C++ to the executor of code objects: a function that Python provides.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "amd_emulator/arrays.h"
#include "amd_emulator/machine.h"
#include "quire/status.hpp"

namespace quire::amd {

/// Runs kernel `symbol` on `blocks` workgroups with the bytes of its one argument, in an order of waves that `seed` chooses.
/// Not 0: it did not come to its end, and `error`, which holds `capacity` bytes, says why.
using LaunchKernel = int (*)(const char* symbol, std::uint32_t blocks, const void* argument, std::uint64_t bytes,
                             std::uint64_t seed, char* error, std::uint64_t capacity);

/// A launch whose error names the array that a fault was at.
template <class Args>
Status launch(LaunchKernel kernel, const std::string& symbol, std::uint32_t blocks, const Args& args, std::uint64_t seed,
              const Arrays& arrays) {
  std::array<char, 1000> error{};
  if (kernel(symbol.c_str(), blocks, &args, sizeof args, seed, error.data(), error.size() - 1) == 0) return {};
  std::string text = symbol + ": " + error.data();
  if (const std::uint64_t address = last_fault_address(); address != 0) text += ", " + arrays.place_of(address);
  return {Code::internal_error, text};
}

}  // namespace quire::amd
