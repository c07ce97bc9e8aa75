// SPDX-License-Identifier: Apache-2.0
// The state of one wave: registers in the layout that instruction functions expect, full of garbage but for what the kernel
// descriptor promises.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "amd_emulator/machine.h"

namespace quire::amd {

/// splitmix64: a whole sequence from any seed.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(next() % n); }

 private:
  std::uint64_t state_;
};

struct Wave {
  Wave(const Launch& launch, std::uint32_t block_number, std::uint32_t wave_number, void* shared, Random& random)
      : block(block_number), number(wave_number), scalars(kScalarWords), vectors(256 * launch.wave_size) {
    if (launch.wave_size == 64) accumulators.resize(vectors.size());
    for (std::vector<std::uint32_t>* registers : {&scalars, &vectors, &accumulators})
      for (std::uint32_t& word : *registers) word = garbage(random);
    for (std::uint32_t i = 0; i < launch.num_user_scalars; ++i) scalars[i] = launch.user_scalars[i];
    scalars[launch.block_in_ttmp != 0 ? kTtmp + 9 : launch.num_user_scalars] = block;
    if (launch.block_in_ttmp != 0) scalars[kTtmp + 7] = 0;  // numbers in y and z
    if (launch.wave_size == 32) scalars[kNull] = 0;
    scalars[kExec] = scalars[kExec + 1] = ~0u;
    scalars[kScc] = random.below(2);
    set_inline_constants();
    set_pc(launch.entry);
    // Work-item ids, packed with ten bits for each dimension; blocks have one.
    for (std::uint32_t lane = 0; lane < launch.wave_size; ++lane) vectors[lane] = number * launch.wave_size + lane;
    arguments = {scalars.data(), vectors.data(), nullptr,
                 shared,         nullptr,        accumulators.empty() ? vectors.data() : accumulators.data()};
  }

  std::uint64_t pc() const { return scalars[kPc] | static_cast<std::uint64_t>(scalars[kPc + 1]) << 32; }
  void set_pc(std::uint64_t pc) {
    scalars[kPc] = static_cast<std::uint32_t>(pc);
    scalars[kPc + 1] = static_cast<std::uint32_t>(pc >> 32);
  }

  std::uint32_t block, number;
  bool waits = false;
  std::vector<std::uint32_t> scalars, vectors, accumulators;
  std::array<void*, 6> arguments{};

 private:
  /// NaN in every format, or anything.
  static std::uint32_t garbage(Random& random) {
    const std::uint64_t word = random.next();
    return (word >> 32) % 2 == 0 ? ~0u : static_cast<std::uint32_t>(word);
  }

  void set_inline_constants() {
    for (std::uint32_t i = 0; i <= 64; ++i) scalars[128 + i] = i;
    for (std::uint32_t i = 1; i <= 16; ++i) scalars[192 + i] = 0u - i;
    // 0.5, -0.5, 1, -1, 2, -2, 4, -4, 1 / (2 pi)
    constexpr std::uint32_t kFloats[] = {0x3F000000, 0xBF000000, 0x3F800000, 0xBF800000, 0x40000000,
                                         0xC0000000, 0x40800000, 0xC0800000, 0x3E22F983};
    for (std::uint32_t i = 0; i < 9; ++i) scalars[240 + i] = kFloats[i];
  }
};

}  // namespace quire::amd
