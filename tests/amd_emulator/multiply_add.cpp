// SPDX-License-Identifier: Apache-2.0
// v_mad_f32, which gfx90a has and later targets lack: the product is rounded before the sum, and denormals are zero. clang
// divides whole numbers below 2^24 with it, whose products are exact.
#include <cmath>

#include "amd_emulator/models.h"

namespace quire::amd {
namespace {

constexpr int kLanes = 64;

float without_denormals(float value) { return std::fabs(value) < 0x1p-126f ? std::copysign(0.0f, value) : value; }

void multiply_add(std::uint32_t* scalars, std::uint32_t* vectors, void*, void*, void*, std::uint32_t*) {
  const std::uint32_t* word = words_at_pc(scalars);
  const std::uint32_t codes[3] = {word[1] & 0x1FF, word[1] >> 9 & 0x1FF, word[1] >> 18 & 0x1FF};
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!active(scalars, lane)) continue;
    float in[3] = {};
    for (std::uint32_t i = 0; i < 3; ++i) {
      std::uint32_t bits = source(scalars, vectors, codes[i], kLanes, lane);
      if ((word[0] >> (8 + i) & 1) != 0) bits &= 0x7FFFFFFF;
      if ((word[1] >> (29 + i) & 1) != 0) bits ^= 0x80000000;
      in[i] = without_denormals(semantics::bits_to_float(bits));
    }
    const float product = without_denormals(in[0] * in[1]);
    vectors[(word[0] & 0xFF) * kLanes + static_cast<std::uint32_t>(lane)] =
        semantics::float_to_bits(without_denormals(product + in[2]));
  }
  advance(scalars, 8);
}

}  // namespace

Model multiply_add_model(std::string_view target, std::string_view mnemonic) {
  return target == "gfx90a" && mnemonic == "v_mad_f32" ? multiply_add : nullptr;
}

}  // namespace quire::amd
