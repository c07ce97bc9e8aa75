// SPDX-License-Identifier: Apache-2.0
// Caches of 4 bits on the stand-in: what the device decodes, and rows and block scales of any strides.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "backend/gpu/decode.h"
#include "kernels/hazard_cases.h"
#include "kernels/judge.h"
#include "simt/device.h"

namespace quire::test {
namespace {

using verify_detail::hazard_line;

std::uint32_t bits(float value) { return semantics::float_to_bits(value); }

TEST(SimtFourBits, EveryCodeAndEveryScale) {
  for (std::uint32_t code = 0; code < 16; ++code)
    EXPECT_EQ(bits(gpu::decode_e2m1(code)), bits(semantics::e2m1_decode(code))) << code;
  for (const DType type : {DType::nvfp4, DType::mxfp4})
    for (int code = 0; code < 256; ++code) {
      const auto byte = static_cast<std::uint8_t>(code);
      const float expected = semantics::block_scale_decode(type, byte), decoded = gpu::decode_block_scale(type, byte);
      EXPECT_TRUE(bits(expected) == bits(decoded) || (std::isnan(expected) && std::isnan(decoded))) << name(type) << code;
    }
}

/// A copy of a tensor of bytes in a buffer of `poison`, whose rows lie further apart.
struct Spread {
  Spread(const Tensor& t, std::int64_t of_last, std::int64_t gap, std::uint8_t poison) : view(t) {
    std::int64_t step = of_last;
    for (int i = t.rank - 1; i >= 0; --i) {
      view.stride[i] = step;
      step = step * t.shape[i] + gap;
    }
    bytes.assign(static_cast<std::size_t>(step + 1), poison);
    view.data = bytes.data() + 1;
    copy(t, 0, 0, 0);
  }
  void copy(const Tensor& t, int axis, std::int64_t from, std::int64_t to) {
    if (axis == t.rank) {
      static_cast<std::uint8_t*>(view.data)[to] = static_cast<const std::uint8_t*>(t.data)[from];
      return;
    }
    for (std::int64_t i = 0; i < t.shape[axis]; ++i) copy(t, axis + 1, from + i * t.stride[axis], to + i * view.stride[axis]);
  }
  Tensor view;
  std::vector<std::uint8_t> bytes;
};

std::vector<std::uint8_t> output_of(const Case& c) {
  std::int64_t rows = 0;
  const Status status = simt::attend({.target_items = 8}, c, rows);
  EXPECT_TRUE(status.ok()) << status.message();
  const auto* at = static_cast<const std::uint8_t*>(c.batch.output.data);
  return {at, at + c.batch.output.num_elements() * itemsize(c.batch.output.dtype)};
}

// Rows at odd addresses, and scales with strides of their own: the bits do not change.
TEST(SimtFourBits, RowsAndScalesOfAnyStrides) {
  for (const char* types : {"q=f32 kv=nvfp4 kscale=head vscale=head", "q=bf16 kv=mxfp4 layout=hnd"}) {
    Case c = make_case(hazard_line(types, "heads=4:2 d=96 page=8 reqs=9@60/64,1@33", 3)).value();
    const std::vector<std::uint8_t> plain = output_of(c);
    for (const std::int64_t gap : {1, 4, 8}) {
      Case spread = c;
      const Spread k(c.cache.k, 1, gap, 0x77), v(c.cache.v, 1, gap + 3, 0x77);
      const Spread k_scale(c.cache.k_block_scale, 3, gap, 0x7F), v_scale(c.cache.v_block_scale, 2, gap + 1, 0x7F);
      spread.cache.k = k.view;
      spread.cache.v = v.view;
      spread.cache.k_block_scale = k_scale.view;
      spread.cache.v_block_scale = v_scale.view;
      std::memset(c.batch.output.data, 0xA5, plain.size());
      EXPECT_EQ(output_of(spread), plain) << types << " gap " << gap;
    }
  }
}

}  // namespace
}  // namespace quire::test
