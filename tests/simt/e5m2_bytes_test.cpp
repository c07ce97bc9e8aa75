// SPDX-License-Identifier: Apache-2.0
// e5m2 codes as f16 by one permutation of bytes, as the Hopper kernels do it: all 256 codes at each byte of a word, bit for bit.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>

#include "backend/cuda/tile/e5m2_bytes.h"
#include "semantics/dtype.h"
#include "semantics/fp8.h"

namespace quire::test {
namespace {

/// `prmt.b32` in its default mode: nibble i of the selector names byte i of the result, of the words a (0 to 3) and b (4 to 7);
/// its highest bit asks for eight copies of that byte's sign.
std::uint32_t permute(std::uint32_t a, std::uint32_t b, std::uint32_t selector) {
  std::uint32_t result = 0;
  for (std::uint32_t i = 0; i < 4; ++i) {
    const std::uint32_t named = selector >> 4 * i & 0xFu, from = (named & 4u) != 0 ? b : a;
    const std::uint32_t byte = from >> 8 * (named & 3u) & 0xFFu;
    result |= ((named & 8u) == 0 ? byte : (byte & 0x80u) != 0 ? 0xFFu : 0u) << 8 * i;
  }
  return result;
}

/// The f16 has the value of the code by the definition of the format; NaN for NaN.
void expect_value(std::uint32_t f16, std::uint8_t code, const std::string& where) {
  const float expected = semantics::fp8_decode<semantics::E5m2>(code);
  const std::uint8_t bytes[2] = {static_cast<std::uint8_t>(f16), static_cast<std::uint8_t>(f16 >> 8)};
  const float converted = semantics::load(bytes, DType::f16, 0);
  if (std::isnan(expected))
    EXPECT_TRUE(std::isnan(converted)) << where << ": " << converted << ", expected NaN";
  else
    EXPECT_EQ(semantics::float_to_bits(converted), semantics::float_to_bits(expected))
        << where << ": " << converted << ", expected " << expected;
}

/// Every code at bytes kLow and kHigh, once beside NaN and once beside finite codes.
template <int kLow, int kHigh>
void expect_every_code() {
  for (const std::uint32_t beside : {0x7F7F7F7Fu, 0xFDFDFDFDu, 0x3C3C3C3Cu})
    for (std::uint32_t code = 0; code < 256; ++code) {
      const std::uint32_t other = 255 - code, mask = 0xFFu << 8 * kLow | 0xFFu << 8 * kHigh;
      const std::uint32_t word = (beside & ~mask) | code << 8 * kLow | other << 8 * kHigh;
      const std::uint32_t pair = permute(word, 0, cuda::tile::kE5m2Selector<kLow, kHigh>);
      const std::string where =
          "word " + std::to_string(word) + ", bytes " + std::to_string(kLow) + " and " + std::to_string(kHigh);
      expect_value(pair & 0xFFFFu, static_cast<std::uint8_t>(code), where);
      expect_value(pair >> 16, static_cast<std::uint8_t>(other), where);
    }
}

TEST(SimtE5m2Bytes, NeighbouringCodesOfKeys) {
  expect_every_code<0, 1>();
  expect_every_code<2, 3>();
}
TEST(SimtE5m2Bytes, CodesOfTwoKeysOfValues) {
  expect_every_code<0, 2>();
  expect_every_code<1, 3>();
}
TEST(SimtE5m2Bytes, OneNanAtEachByte) {
  for (int byte = 0; byte < 4; ++byte)
    for (const std::uint32_t nan : {0x7Du, 0x7Eu, 0x7Fu, 0xFDu, 0xFEu, 0xFFu}) {
      const std::uint32_t word = (0x01BC7B00u & ~(0xFFu << 8 * byte)) | nan << 8 * byte;
      const std::uint32_t pairs[2] = {permute(word, 0, cuda::tile::kE5m2Selector<0, 2>),
                                      permute(word, 0, cuda::tile::kE5m2Selector<1, 3>)};
      for (int at = 0; at < 4; ++at)
        expect_value(pairs[at % 2] >> at / 2 * 16 & 0xFFFFu, static_cast<std::uint8_t>(word >> 8 * at),
                     "NaN at byte " + std::to_string(byte) + ", byte " + std::to_string(at));
    }
}

}  // namespace
}  // namespace quire::test
