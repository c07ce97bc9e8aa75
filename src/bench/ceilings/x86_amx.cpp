// SPDX-License-Identifier: Apache-2.0
// Peak rate of TDPBF16PS: four accumulator tiles, two tiles of each operand (Intel SDM vol. 1, chapter 18).
#if defined(__x86_64__)

#include <immintrin.h>

#include "bench/ceilings/loops.h"

namespace quire::bench_detail {
namespace {

constexpr int kRows = 16, kRowBytes = 64;

/// Palette 1; every tile 16 rows of 64 bytes (Intel SDM vol. 2A, LDTILECFG).
struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

float multiply_add_tiles(std::int64_t count) {
  TileConfig config;
  for (int t = 0; t < 8; ++t) {
    config.row_bytes[t] = kRowBytes;
    config.rows[t] = kRows;
  }
  _tile_loadconfig(&config);
  alignas(64) std::uint16_t operand[kRows * kRowBytes / 2];
  for (std::uint16_t& x : operand) x = 0x3C00;  // bf16 0.0078125
  _tile_loadd(4, operand, kRowBytes);
  _tile_loadd(5, operand, kRowBytes);
  _tile_loadd(6, operand, kRowBytes);
  _tile_loadd(7, operand, kRowBytes);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (std::int64_t i = 0; i < count; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  alignas(64) float sum[kRows * kRowBytes / 4];
  _tile_stored(3, sum, kRowBytes);
  _tile_release();
  return sum[0];
}

}  // namespace

const Bf16Dot& amx_tiles() {
  // A tile product: 16 x 16 sums over 32 products, two FLOPs each.
  static constexpr Bf16Dot kTiles{multiply_add_tiles, 4 * 16.0 * 16 * 32 * 2};
  return kTiles;
}

}  // namespace quire::bench_detail

#endif
