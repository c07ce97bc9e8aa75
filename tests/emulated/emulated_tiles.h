// SPDX-License-Identifier: Apache-2.0
// The tile instructions in portable C++, bit for bit: for tests on machines without AMX.
//
// The order of TDPBF16PS's additions is that of the manual's pseudocode: the products of even and of odd elements are summed in
// two chains of fused multiply-adds that start at zero, then the two sums are added, then C. tests/cpu compares it
// with the hardware where there is one.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "backend/cpu/amx/tiles.h"

namespace quire::cpu {
namespace {

struct TileState {
  std::int64_t rows[8] = {};
  alignas(64) std::uint8_t bytes[8][kTileBytes] = {};
};
inline thread_local TileState tile_state;

/// bf16 to f32 with denormals as zero.
inline float tile_operand(const std::uint8_t* at) {
  std::uint16_t code;
  std::memcpy(&code, at, 2);
  const std::uint32_t bits = (code & 0x7F80u) == 0 ? (code & 0x8000u) << 16 : static_cast<std::uint32_t>(code) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline float flushed(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }

/// The interface of HardwareTiles.
struct EmulatedTiles {
  using Faults = NoFaults;
  static void configure(std::int64_t rows) {
    for (int tile = 0; tile < 8; ++tile) tile_state.rows[tile] = has_few_rows(tile) ? rows : kTileRows;
    std::memset(tile_state.bytes, 0, sizeof tile_state.bytes);
  }
  static void release() {
    for (std::int64_t& rows : tile_state.rows) rows = 0;
  }
  template <int kTile>
  static void zero() {
    std::memset(tile_state.bytes[kTile], 0, kTileBytes);
  }
  template <int kTile>
  static void load(const void* from, std::int64_t stride) {
    for (std::int64_t r = 0; r < tile_state.rows[kTile]; ++r)
      std::memcpy(tile_state.bytes[kTile] + r * 64, static_cast<const std::uint8_t*>(from) + r * stride, 64);
  }
  template <int kTile>
  static void stream(const void* from, std::int64_t stride) {
    load<kTile>(from, stride);
  }
  template <int kTile>
  static void store(void* to, std::int64_t stride) {
    for (std::int64_t r = 0; r < tile_state.rows[kTile]; ++r)
      std::memcpy(static_cast<std::uint8_t*>(to) + r * stride, tile_state.bytes[kTile] + r * 64, 64);
  }
  template <int kC, int kA, int kB>
  static void dot() {
    for (std::int64_t m = 0; m < tile_state.rows[kC]; ++m) {
      float even[16] = {}, odd[16] = {};
      for (std::int64_t k = 0; k < kTileRows; ++k) {
        const std::uint8_t* a = tile_state.bytes[kA] + m * 64 + k * 4;
        const std::uint8_t* b = tile_state.bytes[kB] + k * 64;
        const float a_even = tile_operand(a), a_odd = tile_operand(a + 2);
        for (int n = 0; n < 16; ++n) {
          even[n] = flushed(std::fma(a_even, tile_operand(b + 4 * n), even[n]));
          odd[n] = flushed(std::fma(a_odd, tile_operand(b + 4 * n + 2), odd[n]));
        }
      }
      float c[16];
      std::memcpy(c, tile_state.bytes[kC] + m * 64, 64);
      for (int n = 0; n < 16; ++n) c[n] = flushed(flushed(c[n]) + flushed(even[n] + odd[n]));
      std::memcpy(tile_state.bytes[kC] + m * 64, c, 64);
    }
  }
};

}  // namespace
}  // namespace quire::cpu
