// SPDX-License-Identifier: Apache-2.0
// The run loop of the emulated AMD device: waves of several workgroups side by side, preempted at random, on host memory.
//
// Each instruction is a C function from outside: emulator.py lets tinygrad's emulator compile one from AMD's pseudocode, and
// matrix.cpp and conversions.cpp hold our own. Registers and shared memory begin as garbage chosen by the seed, because hardware
// promises no value there either. The structs are C structs, because Python fills them.
#pragma once

#include <cstdint>

namespace quire::amd {

/// Word indices in a wave's scalar registers, as tinygrad's functions expect them. 128 to 248 hold the inline constants.
enum ScalarWord : std::uint32_t { kVcc = 106, kTtmp = 108, kNull = 124, kExec = 126, kScc = 253, kPc = 256, kScalarWords = 260 };

enum StepKind : std::uint32_t {
  kUnknown = 0,      ///< ask the decoder
  kCall = 1,         ///< function(arguments by mask); it moves the program counter
  kCallAndWait = 2,  ///< call, then wait for the workgroup
  kSkip = 3,         ///< `operand` bytes without effect here: caches and waits
};

/// The instruction that begins at one word of the code.
struct Step {
  void* function = nullptr;
  std::uint32_t kind = kUnknown;
  std::uint32_t operand = 0;  ///< mask of the arguments: scalar, vector, memory, shared, scratch, accumulation registers
};

/// Makes the step of the instruction at `pc`; 0, or it cannot.
using Decode = int (*)(std::uint64_t pc);

struct Launch {
  std::uint64_t entry = 0, code = 0, code_words = 0;  ///< addresses; `code` is that of step 0
  Step* steps = nullptr;
  std::uint64_t* executed = nullptr;  ///< counts per word: how often a wave has begun the instruction there
  const std::uint32_t* user_scalars = nullptr;
  std::uint32_t num_user_scalars = 0;
  std::uint32_t wave_size = 0, threads = 0, blocks = 0, shared_bytes = 0;
  std::uint32_t block_in_ttmp = 0;    ///< the workgroup's number is in ttmp9 instead of behind the user scalars
  std::uint32_t flush_denormals = 0;  ///< denormals of f32
  std::uint32_t longest_turn = 0;     ///< a wave is preempted after at most so many instructions
  std::uint32_t resident_blocks = 0;  ///< workgroups that take turns; others begin when these have ended
  std::uint64_t seed = 0;
  std::uint64_t instruction_limit = 0;  ///< most instructions of the launch
  Decode decode = nullptr;
};

enum StopKind : std::uint32_t {
  kFinished = 0,
  kNotDecoded = 1,  ///< decode() failed
  kWild = 2,        ///< the program counter left the code
  kFault = 3,       ///< an access to memory that is not mapped, or a write to memory that is read-only
  kEndless = 4,     ///< wave ran more instructions than the limit
};

struct Stop {
  std::uint32_t kind = kFinished;
  std::uint32_t block = 0, wave = 0;
  std::uint32_t is_write = 0;
  std::uint64_t pc = 0;
  std::uint64_t address = 0;       ///< address of a fault
  std::uint64_t instructions = 0;  ///< instructions executed, summed over waves
};

extern "C" void amd_run(const Launch* launch, Stop* stop);

/// Address of the last fault of this process.
std::uint64_t last_fault_address();

}  // namespace quire::amd
