// SPDX-License-Identifier: Apache-2.0
// The products of the stand-in's matrix units.
//
// Products of 16-bit elements are exact in f32. Their sum is taken in the order of k with a rounding after each, no better than
// what any hardware is believed to do: AMD does not publish the order or the width of its sums.
#include "simt/matrix_unit.h"

#include <fmt/format.h>

#include <array>

#include "semantics/dtype.h"
#include "simt/machine.h"

namespace quire::simt {
namespace {

/// MFMA: row of A and column of B are lane % 16, k = 4 * (lane / 16) + i; D has rows 4 * (lane / 16) + i.
MatrixLayout mfma() {
  MatrixLayout layout{64, {}, {}, {}};
  for (int lane = 0; lane < 64; ++lane) {
    std::vector<Place> a, b, d;
    for (int i = 0; i < 4; ++i) {
      const int k = 4 * (lane / 16) + i;
      a.push_back({lane % 16, k});
      b.push_back({k, lane % 16});
      d.push_back({k, lane % 16});
    }
    layout.a.push_back(a), layout.b.push_back(b), layout.d.push_back(d);
  }
  return layout;
}

/// RDNA3: every lane has all of k, lanes 16 to 31 repeat; D has even rows in lanes 0 to 15, odd ones above.
MatrixLayout wmma_gfx11() {
  MatrixLayout layout{32, {}, {}, {}};
  for (int lane = 0; lane < 32; ++lane) {
    std::vector<Place> a, b, d;
    for (int k = 0; k < 16; ++k) a.push_back({lane % 16, k}), b.push_back({k, lane % 16});
    for (int i = 0; i < 8; ++i) d.push_back({2 * i + lane / 16, lane % 16});
    layout.a.push_back(a), layout.b.push_back(b), layout.d.push_back(d);
  }
  return layout;
}

/// RDNA4: k = 8 * (register / 2) + 4 * (lane / 16) + 2 * (register % 2) + half; D has rows 8 * (lane / 16) + i.
MatrixLayout wmma_gfx12() {
  MatrixLayout layout{32, {}, {}, {}};
  for (int lane = 0; lane < 32; ++lane) {
    std::vector<Place> a, b, d;
    for (int i = 0; i < 8; ++i) {
      const int word = i / 2, k = 8 * (word / 2) + 4 * (lane / 16) + 2 * (word % 2) + i % 2;
      a.push_back({lane % 16, k});
      b.push_back({k, lane % 16});
      d.push_back({8 * (lane / 16) + i, lane % 16});
    }
    layout.a.push_back(a), layout.b.push_back(b), layout.d.push_back(d);
  }
  return layout;
}

MatrixFault the_fault = MatrixFault::none;

/// What one lane brings to a product.
struct LaneRegisters {
  const std::uint32_t* a;
  const std::uint32_t* b;
  float* d;
};

using Matrix = std::array<std::array<float, 16>, 16>;

float element(const std::uint32_t* words, std::size_t i, bool bf16) {
  const auto code = static_cast<std::uint16_t>(words[i / 2] >> i % 2 * 16);
  return bf16 ? semantics::bf16_decode(code) : semantics::f16_decode(code);
}

float& at(Matrix& m, const Place& place) {
  return m[static_cast<std::size_t>(place.row)][static_cast<std::size_t>(place.column)];
}

/// The elements of an operand. Where several lanes bring the same one they must agree: hardware may take either.
std::string gather(Matrix& m, const std::vector<void*>& lanes, const std::vector<std::vector<Place>>& places, bool is_a,
                   bool bf16) {
  std::array<std::array<bool, 16>, 16> known{};
  for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
    const auto& registers = *static_cast<const LaneRegisters*>(lanes[lane]);
    for (std::size_t i = 0; i < places[lane].size(); ++i) {
      const Place place = places[lane][i];
      const float value = element(is_a ? registers.a : registers.b, i, bf16);
      bool& seen = known[static_cast<std::size_t>(place.row)][static_cast<std::size_t>(place.column)];
      if (seen && semantics::float_to_bits(at(m, place)) != semantics::float_to_bits(value))
        return fmt::format("lane {} brings another element ({}, {}) than a lane before it", lane, place.row, place.column);
      seen = true;
      at(m, place) = value;
    }
  }
  return {};
}

void plant(Matrix& b, Matrix& d) {
  if (the_fault == MatrixFault::swapped_rows) std::swap(d[0], d[1]);
  if (the_fault == MatrixFault::swapped_keys) std::swap(b[0], b[1]);
}

}  // namespace

const MatrixLayout& layout_of(MatrixUnit unit) {
  static const MatrixLayout layouts[] = {mfma(), wmma_gfx11(), wmma_gfx12()};
  return layouts[static_cast<std::size_t>(unit)];
}

void set_matrix_fault(MatrixFault fault) { the_fault = fault; }

void multiply(MatrixUnit unit, bool bf16, const std::uint32_t* a, const std::uint32_t* b, float* d, const char* file, int line) {
  LaneRegisters mine{a, b, d};
  in_wave(&mine, file, line, [&](const std::vector<void*>& lanes) -> std::string {
    const MatrixLayout& layout = layout_of(unit);
    if (lanes.size() != static_cast<std::size_t>(layout.lanes))
      return fmt::format("a wave of {} lanes has no such unit", lanes.size());
    Matrix left{}, right{}, sums{};
    if (std::string e = gather(left, lanes, layout.a, /*is_a=*/true, bf16); !e.empty()) return e;
    if (std::string e = gather(right, lanes, layout.b, /*is_a=*/false, bf16); !e.empty()) return e;
    for (std::size_t lane = 0; lane < lanes.size(); ++lane)
      for (std::size_t i = 0; i < layout.d[lane].size(); ++i)
        at(sums, layout.d[lane][i]) = static_cast<const LaneRegisters*>(lanes[lane])->d[i];
    Matrix faulty = sums;
    plant(right, faulty);
    for (std::size_t row = 0; row < 16; ++row)
      for (std::size_t k = 0; k < 16; ++k)
        for (std::size_t column = 0; column < 16; ++column) faulty[row][column] += left[row][k] * right[k][column];
    for (std::size_t lane = 0; lane < lanes.size(); ++lane)
      for (std::size_t i = 0; i < layout.d[lane].size(); ++i)
        static_cast<const LaneRegisters*>(lanes[lane])->d[i] = at(faulty, layout.d[lane][i]);
    return {};
  });
}

}  // namespace quire::simt
