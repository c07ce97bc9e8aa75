// SPDX-License-Identifier: Apache-2.0
// A non-owning strided view of one tensor, and the element types that Quire knows.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace quire {

/// Element types. The four fp8 formats are four distinct types; nothing in Quire is called just "fp8".
/// Numbers are part of the C ABI.
enum class DType : std::int32_t {
  none = 0,
  f32 = 1,
  f16 = 2,           ///< IEEE 754 binary16
  bf16 = 3,          ///< upper half of binary32
  fp8_e4m3fn = 4,    ///< OCP 8-bit: bias 7, max 448, no infinity, NaN 0x7F/0xFF
  fp8_e4m3fnuz = 5,  ///< bias 8, max 240, no infinity, no -0, NaN 0x80 (AMD gfx94x)
  fp8_e5m2 = 6,      ///< OCP 8-bit: bias 15, max 57344, IEEE-like infinities and NaN
  fp8_e5m2fnuz = 7,  ///< bias 16, max 57344, no infinity, no -0, NaN 0x80
  i32 = 8,
  i64 = 9,
  u8 = 10,  ///< 0 or 1: flags (numpy and torch bool)
  i8 = 11,  ///< codes -128 to 127 of a cache, whose scales make them real values
  /// A byte with the e2m1 codes (0, 0.5, 1, 1.5, 2, 3, 4, 6, and a sign) of two dims of a cache, the even one in the low bits. 16
  /// dims share an fp8_e4m3fn scale.
  nvfp4 = 12,
  mxfp4 = 13,     ///< e2m1 codes as nvfp4's; 32 dims share an fp8_e8m0 scale (OCP Microscaling Formats v1.0)
  fp8_e8m0 = 14,  ///< scales 2^(code - 127) of mxfp4 blocks; NaN 0xFF
  /// Bytes of rows of 656, FlashMLA's fp8 cache of MLA: 512 codes of fp8_e4m3fn, four f32 scales, 64 elements of bf16. An element
  /// of such a tensor is one byte; see latent_cache() of cache.hpp.
  fp8_ds_mla = 15,
};

/// Canonical name ("bf16", "fp8_e4m3fn", "i64", ...); "none" for DType::none.
std::string_view name(DType dtype) noexcept;
/// Inverse of name(); nullopt if the text is not exactly one of the names.
std::optional<DType> dtype_from_name(std::string_view text) noexcept;
/// Bytes per element; 0 for DType::none.
std::int64_t itemsize(DType dtype) noexcept;
bool is_fp8(DType dtype) noexcept;  ///< true for the four fp8 formats
/// f32, f16, bf16 or one of the four fp8 formats.
bool is_floating(DType dtype) noexcept;
/// A type that K or V of a cache may have: floating, i8, nvfp4 or mxfp4. Bytes of fp8_ds_mla are parts of rows, not elements.
bool is_cached(DType dtype) noexcept;
/// A type of 8-bit codes that a cache may hold: an fp8 format, or i8.
bool is_code(DType dtype) noexcept;

/// nvfp4 or mxfp4: an element of a tensor is a byte, and holds two dims.
bool is_four_bit(DType dtype) noexcept;
/// Dims that share a block scale: 16 of nvfp4, 32 of mxfp4; 0 of other types.
std::int64_t block_size(DType dtype) noexcept;
/// The type of block scales: fp8_e4m3fn of nvfp4, fp8_e8m0 of mxfp4; none of other types.
DType block_scale_type(DType dtype) noexcept;

/// Memory that holds a tensor's bytes.
enum class Memory : std::int32_t { cpu = 0, cuda = 1, hip = 2 };
/// "cpu", "cuda", "hip" or "unknown".
std::string_view name(Memory memory) noexcept;

/// A view: pointer, type, shape and element strides. Owns nothing.
///
/// A default-constructed Tensor is *absent* (used for every optional tensor). A scalar is present with rank 0.
/// Element (i, j, ...) lives at `data + (i * stride[0] + j * stride[1] + ...) * itemsize(dtype)` bytes. Strides may have any
/// value that a backend can address; all arithmetic is 64-bit.
struct Tensor {
  static constexpr int kMaxRank = 5;

  void* data = nullptr;
  DType dtype = DType::none;
  int rank = -1;  ///< -1 absent, 0 scalar, up to kMaxRank
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> stride{};  ///< strides in elements
  Memory memory = Memory::cpu;

  explicit operator bool() const noexcept { return rank >= 0; }
  bool present() const noexcept { return rank >= 0; }
  /// Product of the shape; 1 for a scalar, 0 for an absent tensor.
  std::int64_t num_elements() const noexcept;
  bool is_contiguous() const noexcept;  ///< row-major without gaps; strides of dims of size 1 do not matter

  /// A row-major contiguous view over `data`.
  template <typename... Dims>
  static Tensor contiguous(void* data, DType dtype, Dims... dims) noexcept {
    static_assert(sizeof...(Dims) <= kMaxRank);
    return from_shape(data, dtype, {static_cast<std::int64_t>(dims)...}, static_cast<int>(sizeof...(Dims)));
  }
  static Tensor from_shape(void* data, DType dtype, std::array<std::int64_t, kMaxRank> shape, int rank) noexcept;
};

/// "bf16 [37, 32, 128]" or "absent"; strides are added when the view is not contiguous.
std::string to_string(const Tensor& tensor);

}  // namespace quire
