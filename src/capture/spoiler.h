// SPDX-License-Identifier: Apache-2.0
// What stands in memory that no kernel may read, one element at a time: NaN, finite garbage or zeros in the tensor's own type,
// and ids that no cache has in tensors of indices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "capture/fill.h"
#include "quire/tools/capture.hpp"
#include "semantics/fp4.h"

namespace quire::capture {

/// Makes elements NaN, zero, or garbage of a size that no softmax average can hide. The sign of garbage varies from element to
/// element.
class Spoiler {
 public:
  Spoiler(const Tensor& t, PoisonKind kind)
      : data_(static_cast<std::byte*>(t.data)), size_(itemsize(t.dtype)), is_code4_(is_four_bit(t.dtype)) {
    if (is_code4_) {  // 4-bit codes have no NaN: -6 stands for it, and 6 of either sign is garbage.
      sign_varies_ = kind == PoisonKind::finite_garbage;
      bits_[0][0] = kind == PoisonKind::zero ? std::byte{0} : sign_varies_ ? std::byte{7} : std::byte{15};
      bits_[1][0] = std::byte{15};
      return;
    }
    // 0xFF is NaN in each part of a row, and sets all flags and bits of a tree.
    if (t.dtype == DType::fp8_ds_mla || t.dtype == DType::u8) {
      const std::byte wild{kind == PoisonKind::zero ? std::uint8_t{0} : std::uint8_t{0xFF}};
      bits_[0][0] = bits_[1][0] = wild;
      return;
    }
    if (t.dtype == DType::i32 || t.dtype == DType::i64) {  // Garbage is an index that most batches have.
      const std::int64_t wild = kind == PoisonKind::nan ? kImpossiblePage : kind == PoisonKind::zero ? 0 : 1;
      for (auto& bits : bits_) semantics::store_index(Tensor::contiguous(bits, t.dtype, 1), 0, wild);
      return;
    }
    if (t.dtype == DType::fp8_e8m0) {  // garbage: 2^64
      bits_[0][0] = bits_[1][0] = kind == PoisonKind::nan    ? std::byte{0xFF}
                                  : kind == PoisonKind::zero ? std::byte{0}
                                                             : std::byte{191};
      return;
    }
    float value = kind == PoisonKind::zero ? 0.0f : quiet_nan();
    sign_varies_ = kind == PoisonKind::finite_garbage;
    if (sign_varies_) value = is_code(t.dtype) ? 1e30f : 1e4f;  // stores of codes saturate
    semantics::store(bits_[0], t.dtype, 0, value);
    semantics::store(bits_[1], t.dtype, 0, -value);
    if (t.dtype == DType::i8 && kind == PoisonKind::nan) bits_[0][0] = std::byte{0x80};  // i8 has no NaN: -128
  }
  void operator()(std::int64_t element) const {
    const bool minus = sign_varies_ && (mix64(static_cast<std::uint64_t>(element)) & 1) != 0;
    if (is_code4_) return semantics::store_code4(data_, element, static_cast<std::uint32_t>(bits_[minus ? 1 : 0][0]));
    std::byte* at = data_ + element * size_;
    switch (size_) {
      case 1: std::memcpy(at, bits_[minus ? 1 : 0], 1); break;
      case 2: std::memcpy(at, bits_[minus ? 1 : 0], 2); break;
      case 8: std::memcpy(at, bits_[minus ? 1 : 0], 8); break;
      default: std::memcpy(at, bits_[minus ? 1 : 0], sizeof(float));
    }
  }

 private:
  std::byte* data_;
  std::int64_t size_;
  bool is_code4_;
  bool sign_varies_ = false;
  alignas(8) std::byte bits_[2][8] = {};  ///< bits of one element of the tensor's type, with either sign
};

}  // namespace quire::capture
