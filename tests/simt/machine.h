// SPDX-License-Identifier: Apache-2.0
// A GPU made of one CPU thread: runs a kernel of src/backend/gpu with all its blocks resident at once, and reports its
// mistakes.
//
// Every GPU thread is a fiber. Checks: all lanes of a wave meet at the same shuffle or product, and all live threads of a block
// at the same barrier; shared memory is NaN at first, fits the kernel's declaration, and each piece has guards
// (AddressSanitizer's, or words that are compared afterwards); stores meant for other blocks stay invisible until their thread's
// device fence. The order of threads is a function of the seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

namespace quire::simt {

/// Faults that a test plants.
struct Fault {
  std::string removed_barrier;  ///< "file.h:line": threads pass it without waiting
  bool no_fences = false;       ///< device fences do nothing
  int short_piece = -1;         ///< index of a piece of shared memory that is too short
  std::size_t short_bytes = 0;  ///< bytes that the piece lacks
};

struct Launch {
  int blocks = 1;
  int threads = 256;
  int wave = 32;
  int shared_bytes = 0;    ///< bytes that the launch would reserve
  std::uint64_t seed = 0;  ///< 0: threads run in order
  Fault fault;
  std::set<std::string>* barriers = nullptr;  ///< barriers that were reached ("file.h:line"); null = not recorded
  int first_block = 0;                        ///< first of the blocks that run
  int grid = 0;                               ///< blocks of the grid, if others than those that run; 0: `blocks`
};

/// Empty if nothing was wrong. The kernel's effects on global memory remain.
std::string run(const Launch& launch, const std::function<void()>& kernel);

/// Collective operation of a wave on `lanes`, the operand of each lane. Returns a complaint, or "".
using WaveAct = std::function<std::string(const std::vector<void*>& lanes)>;

/// Called by all lanes of a wave at one place of the source; returns when the last of them has acted for all.
void in_wave(void* brings, const char* file, int line, const WaveAct& act);

}  // namespace quire::simt
