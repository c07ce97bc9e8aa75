// SPDX-License-Identifier: Apache-2.0
// Built once from semantics/fp8.h.
#include "backend/cpu/fp8_tables.h"

#include <array>

#include "semantics/dtype.h"
#include "semantics/fp4.h"

namespace quire::cpu {
namespace {

using Table = std::array<float, 256>;

Table build(DType dtype) {
  Table table{};
  std::array<std::uint8_t, 256> codes{};
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(i);
  for (std::size_t i = 0; i < codes.size(); ++i)
    table[i] = dtype == DType::fp8_e8m0 ? semantics::e8m0_decode(codes[i])
                                        : semantics::load(codes.data(), dtype, static_cast<std::int64_t>(i));
  return table;
}

using WordTable = std::array<std::uint16_t, 256>;

WordTable build_words(DType dtype) {
  const Table table = build(dtype);
  WordTable words{};
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = semantics::bf16_encode(table[i]);
  return words;
}

/// The table that `make` builds of one of the five types; null for every other type.
template <auto make>
const auto* table_of(DType dtype) noexcept {
  static const auto e4m3fn = make(DType::fp8_e4m3fn), e4m3fnuz = make(DType::fp8_e4m3fnuz);
  static const auto e5m2 = make(DType::fp8_e5m2), e5m2fnuz = make(DType::fp8_e5m2fnuz), e8m0 = make(DType::fp8_e8m0);
  switch (dtype) {
    case DType::fp8_e4m3fn: return e4m3fn.data();
    case DType::fp8_e4m3fnuz: return e4m3fnuz.data();
    case DType::fp8_e5m2: return e5m2.data();
    case DType::fp8_e5m2fnuz: return e5m2fnuz.data();
    case DType::fp8_e8m0: return e8m0.data();
    default: return static_cast<decltype(e4m3fn.data())>(nullptr);
  }
}

}  // namespace

const float* fp8_table(DType dtype) noexcept { return table_of<build>(dtype); }

const std::uint16_t* fp8_bf16_table(DType dtype) noexcept { return table_of<build_words>(dtype); }

}  // namespace quire::cpu
