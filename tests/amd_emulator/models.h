// SPDX-License-Identifier: Apache-2.0
// Our own models of instructions that tinygrad's emulator gets wrong or lacks, called like its functions: they read their
// operands from the instruction at the program counter, act on the wave's registers and move on.
#pragma once

#include <cstdint>
#include <string_view>

#include "amd_emulator/machine.h"
#include "semantics/dtype.h"

namespace quire::amd {

using Model = void (*)(std::uint32_t* scalars, std::uint32_t* vectors, void* memory, void* shared, void* scratch,
                       std::uint32_t* accumulators);

/// Our model of a matrix instruction, by target and LLVM's mnemonic; null if tinygrad's function is right.
Model matrix_model(std::string_view target, std::string_view mnemonic);
Model conversion_model(std::string_view target, std::string_view mnemonic);
Model multiply_add_model(std::string_view target, std::string_view mnemonic);

/// The words of the instruction at the program counter.
inline const std::uint32_t* words_at_pc(const std::uint32_t* scalars) {
  const std::uint64_t pc = scalars[kPc] | static_cast<std::uint64_t>(scalars[kPc + 1]) << 32;
  return reinterpret_cast<const std::uint32_t*>(pc);  // NOLINT(performance-no-int-to-ptr): code lies in this process
}

inline void advance(std::uint32_t* scalars, std::uint32_t bytes) {
  const std::uint64_t pc = (scalars[kPc] | static_cast<std::uint64_t>(scalars[kPc + 1]) << 32) + bytes;
  scalars[kPc] = static_cast<std::uint32_t>(pc);
  scalars[kPc + 1] = static_cast<std::uint32_t>(pc >> 32);
}

/// Operand codes from here on are vector registers; below, scalar registers and inline constants.
inline constexpr std::uint32_t kFirstVector = 256;

inline std::uint32_t source(const std::uint32_t* scalars, const std::uint32_t* vectors, std::uint32_t code, int lanes, int lane) {
  return code < kFirstVector
             ? scalars[code]
             : vectors[(code - kFirstVector) * static_cast<std::uint32_t>(lanes) + static_cast<std::uint32_t>(lane)];
}

inline bool active(const std::uint32_t* scalars, int lane) {
  return (scalars[kExec + static_cast<std::uint32_t>(lane / 32)] >> (lane % 32) & 1) != 0;
}

template <DType kType>
float decode_bits(std::uint32_t code) {
  return semantics::load(&code, kType, 0);  // little-endian: the low bytes come first
}

}  // namespace quire::amd
