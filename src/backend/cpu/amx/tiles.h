// SPDX-License-Identifier: Apache-2.0
// The eight tile registers of Intel AMX and the instructions on them that the kernel uses.
//
// Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18, and volume 2: LDTILECFG, TILELOADD,
// TILELOADDT1, TILESTORED, TDPBF16PS. A tile here has up to 16 rows of 64 bytes. TDPBF16PS: C[m][n] += sum over k < 16 of
// A[m][2k] B[k][2n] + A[m][2k+1] B[k][2n+1], in f32, rounding to nearest even, with denormals in and out taken as zero.
// Register use: C tiles 0 and 1, A tile 4, B tiles 6 and 7; where few rows are summed, C tiles 2 and 3, A tile 5 and B tile 6. No
// more: loads and products overlap by renaming, and while the core's other hardware thread is busy there is little to rename to.
// A load and a product with 3 or 4 registers in use then took 36 cycles, with 7 in use 48, with 8 in use 66; with the core to
// itself 16, whatever is in use.
#pragma once

#include <cstdint>

#include "backend/cpu/faults.h"

namespace quire::cpu {
namespace {

constexpr std::int64_t kTileRows = 16;
constexpr std::int64_t kTileBytes = 1024;

/// Operand of LDTILECFG.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t column_bytes[16] = {};
  std::uint8_t rows[16] = {};
};

/// Registers with as many rows as configure() says: C tiles 2 and 3, A tile 5. A product takes a cycle for each row of A.
constexpr bool has_few_rows(int tile) { return tile == 2 || tile == 3 || tile == 5; }

/// The instructions themselves. `kTile` is a tile register, `stride` is in bytes.
struct HardwareTiles {
  using Faults = NoFaults;
  /// Tiles of few rows have `rows` (1 to 16), the others 16.
  static void configure(std::int64_t rows) {
    TileConfig config;
    for (int tile = 0; tile < 8; ++tile) {
      config.column_bytes[tile] = 64;
      config.rows[tile] = static_cast<std::uint8_t>(has_few_rows(tile) ? rows : kTileRows);
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(config) : "memory");
  }
  /// Back to the initial state, so that context switches need not save 8 KiB.
  static void release() { __asm__ volatile("tilerelease" : : : "memory"); }

  template <int kTile>
  static void zero() {
    __asm__ volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  template <int kTile>
  static void load(const void* from, std::int64_t stride) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(kTile) : "memory");
  }
  /// load() of what is not wanted again soon: other lines stay in L1.
  template <int kTile>
  static void stream(const void* from, std::int64_t stride) {
    __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  static void store(void* to, std::int64_t stride) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kC, int kA, int kB>
  static void dot() {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
  }
};

}  // namespace
}  // namespace quire::cpu
