// SPDX-License-Identifier: Apache-2.0
// Element type facts and tensor views.
#include "quire/tensor.hpp"
#include "text/formatted.h"
#include "text/names.h"

#include <cstddef>
#include <iterator>

namespace quire {
namespace {

struct DTypeRow {
  DType dtype;
  std::string_view name;
  std::int64_t itemsize;
};
constexpr DTypeRow kDTypes[] = {
    {DType::none, "none", 0},
    {DType::f32, "f32", 4},
    {DType::f16, "f16", 2},
    {DType::bf16, "bf16", 2},
    {DType::fp8_e4m3fn, "fp8_e4m3fn", 1},
    {DType::fp8_e4m3fnuz, "fp8_e4m3fnuz", 1},
    {DType::fp8_e5m2, "fp8_e5m2", 1},
    {DType::fp8_e5m2fnuz, "fp8_e5m2fnuz", 1},
    {DType::i32, "i32", 4},
    {DType::i64, "i64", 8},
    {DType::u8, "u8", 1},
    {DType::i8, "i8", 1},
    {DType::nvfp4, "nvfp4", 1},
    {DType::mxfp4, "mxfp4", 1},
    {DType::fp8_e8m0, "fp8_e8m0", 1},
    {DType::fp8_ds_mla, "fp8_ds_mla", 1},
};

constexpr bool rows_stand_by_number() {
  std::int32_t number = 0;
  for (const DTypeRow& row : kDTypes)
    if (static_cast<std::int32_t>(row.dtype) != number++) return false;
  return true;
}
static_assert(rows_stand_by_number(), "itemsize() finds a row by its number");

}  // namespace

std::string_view name(DType dtype) noexcept {
  for (const DTypeRow& row : kDTypes)
    if (row.dtype == dtype) return row.name;
  return "invalid";
}

std::string_view name(Memory memory) noexcept {
  static constexpr std::string_view kMemories[] = {"cpu", "cuda", "hip"};
  return name_in(kMemories, memory, "unknown");
}

std::optional<DType> dtype_from_name(std::string_view text) noexcept {
  for (const DTypeRow& row : kDTypes)
    if (row.name == text && row.dtype != DType::none) return row.dtype;
  return std::nullopt;
}

std::int64_t itemsize(DType dtype) noexcept {
  const auto row = static_cast<std::size_t>(dtype);  // a hostile descriptor may hold any number
  return row < std::size(kDTypes) ? kDTypes[row].itemsize : 0;
}

bool is_fp8(DType dtype) noexcept { return dtype >= DType::fp8_e4m3fn && dtype <= DType::fp8_e5m2fnuz; }

bool is_floating(DType dtype) noexcept { return dtype >= DType::f32 && dtype <= DType::fp8_e5m2fnuz; }

bool is_cached(DType dtype) noexcept { return is_floating(dtype) || dtype == DType::i8 || is_four_bit(dtype); }

bool is_code(DType dtype) noexcept { return is_fp8(dtype) || dtype == DType::i8; }

bool is_four_bit(DType dtype) noexcept { return dtype == DType::nvfp4 || dtype == DType::mxfp4; }

std::int64_t block_size(DType dtype) noexcept { return dtype == DType::nvfp4 ? 16 : dtype == DType::mxfp4 ? 32 : 0; }

DType block_scale_type(DType dtype) noexcept {
  return dtype == DType::nvfp4 ? DType::fp8_e4m3fn : dtype == DType::mxfp4 ? DType::fp8_e8m0 : DType::none;
}

std::int64_t Tensor::num_elements() const noexcept {
  if (rank < 0) return 0;
  std::int64_t count = 1;
  for (int i = 0; i < rank; ++i) count *= shape[i];
  return count;
}

bool Tensor::is_contiguous() const noexcept {
  std::int64_t expected = 1;
  for (int i = rank - 1; i >= 0; --i) {
    if (shape[i] != 1 && stride[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

Tensor Tensor::from_shape(void* data, DType dtype, std::array<std::int64_t, kMaxRank> shape, int rank) noexcept {
  Tensor t;
  t.data = data;
  t.dtype = dtype;
  t.rank = rank;
  t.shape = shape;
  std::int64_t stride = 1;
  for (int i = rank - 1; i >= 0; --i) {
    t.stride[i] = stride;
    stride *= shape[i];
  }
  return t;
}

std::string to_string(const Tensor& t) {
  if (!t.present()) return "absent";
  std::string text = formatted("{} [{}]", name(t.dtype), fmt::join(t.shape.begin(), t.shape.begin() + t.rank, ", "));
  if (!t.is_contiguous()) text += formatted(" strides [{}]", fmt::join(t.stride.begin(), t.stride.begin() + t.rank, ", "));
  return text;
}

}  // namespace quire
