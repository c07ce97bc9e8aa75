// SPDX-License-Identifier: Apache-2.0
// Calls into the vector types from units compiled with their instruction set, so that the tests themselves stay portable.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/cpu/attend_args.h"

namespace quire::test {

/// Functions compiled for one instruction set; null if this build lacks the instruction set.
struct SimdProbe {
  const char* name;
  std::uint32_t cpu_features;
  int width;
  void (*exp)(const float* x, float* y, std::int64_t n);  ///< n a multiple of width
  void (*tanh)(const float* x, float* y, std::int64_t n);
  void (*store_f16)(const float* x, std::uint16_t* y, std::int64_t n);
  void (*store_bf16)(const float* x, std::uint16_t* y, std::int64_t n);
  void (*load_f16)(const std::uint16_t* x, float* y, std::int64_t n);
  void (*load_bf16)(const std::uint16_t* x, float* y, std::int64_t n);
  void (*load_fp8)(const cpu::RowSource& codes, float* y, std::int64_t n);            ///< loads with the converter of the kernels
  void (*load_block_row)(const cpu::RowSource& rows, float* y, std::int64_t number);  ///< loads row `number` of 4-bit codes
  void (*transpose)(const float* src, float* dst);                                    ///< width x width, both contiguous
  void (*split_bf16)(const std::uint16_t* x, float* even, float* odd);  ///< width pairs; null if kernels do not ask for it
  void (*keep)(float* row, int first, int begin, int end);              ///< row[i] = -1 outside [begin, end) counted from first
  float (*reduce_max)(const float* x);
  float (*reduce_add)(const float* x);
  bool (*any_nan)(const float* x);
};

extern const SimdProbe kScalarProbe;
extern const SimdProbe kAvx2Probe;
extern const SimdProbe kAvx512Probe;
extern const SimdProbe kNeonProbe;

}  // namespace quire::test
