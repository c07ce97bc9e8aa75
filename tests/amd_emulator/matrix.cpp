// SPDX-License-Identifier: Apache-2.0
// MFMA and WMMA with f32 accumulators. Sums are taken in double and rounded once: hardware's order and width of accumulation are
// not published in full, so last bits are nobody's promise.
#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <string>

#include "amd_emulator/layouts.h"
#include "amd_emulator/models.h"
#include "text/formatted.h"

namespace quire::amd {
namespace {

constexpr int bits_of(DType type) { return type == DType::f16 || type == DType::bf16 ? 16 : 8; }

template <DType kType>
float element(const std::uint32_t* registers, int lanes, std::uint32_t first, int lane, int index) {
  constexpr int per_word = 32 / bits_of(kType);
  const std::uint32_t word =
      registers[(first + static_cast<std::uint32_t>(index / per_word)) * static_cast<std::uint32_t>(lanes) +
                static_cast<std::uint32_t>(lane)];
  return decode_bits<kType>(word >> (index % per_word * bits_of(kType)));
}

/// "The FP16 and BF16 V_DOT2 and MFMA matrix instructions flush input and output denormal values to zero" on MI200
/// (PyTorch, "Numerical accuracy"); denormal as the type of the value sees it.
float flushed(float value, float smallest_normal) {
  return std::fabs(value) < smallest_normal ? std::copysign(0.0f, value) : value;
}

template <DType kType, bool kFlush>
float operand(float value) {
  if (!kFlush) return value;
  return flushed(value, kType == DType::f16 ? 6.103515625e-05f : 1.17549435e-38f);
}

template <class Layout, DType kA, DType kB, bool kFlush = false>
void multiply(std::uint32_t* scalars, std::uint32_t* vectors, void*, void*, void*, std::uint32_t* accumulators) {
  constexpr int lanes = Layout::kLanes, size = Layout::kSize;
  const std::uint32_t* word = words_at_pc(scalars);
  // Only GFX9 has accumulation registers; elsewhere the bits belong to op_sel_hi.
  const bool cd_in_acc = lanes == 64 && (word[0] >> 15 & 1) != 0;
  const std::uint32_t* const from_a = lanes == 64 && (word[1] >> 27 & 1) != 0 ? accumulators : vectors;
  const std::uint32_t* const from_b = lanes == 64 && (word[1] >> 28 & 1) != 0 ? accumulators : vectors;
  std::uint32_t* const to = cd_in_acc ? accumulators : vectors;
  const std::uint32_t d = word[0] & 0xFF, c = word[1] >> 18 & 0x1FF;
  const std::uint32_t a = (word[1] & 0x1FF) - kFirstVector, b = (word[1] >> 9 & 0x1FF) - kFirstVector;

  static std::array<std::array<float, Layout::kDepth>, size> rows, columns;
  for (int lane = 0; lane < lanes; ++lane)
    for (int e = 0; e < Layout::kElements; ++e) {
      const auto i = static_cast<std::size_t>(lane % size), k = static_cast<std::size_t>(Layout::k(lane, e));
      float in_row = operand<kA, kFlush>(element<kA>(from_a, lanes, a, lane, e));
      float in_column = operand<kB, kFlush>(element<kB>(from_b, lanes, b, lane, e));
      if (Layout::kElements == Layout::kDepth && lane >= size) {  // the repeated half: no promise if it differs
        if (semantics::float_to_bits(rows[i][k]) != semantics::float_to_bits(in_row)) in_row = NAN;
        if (semantics::float_to_bits(columns[i][k]) != semantics::float_to_bits(in_column)) in_column = NAN;
      }
      rows[i][k] = in_row;
      columns[i][k] = in_column;
    }
  // All of C is read before D is written: clang lets small ones overlap, by some of their registers.
  static std::array<std::uint32_t, static_cast<std::size_t>(Layout::kResults) * lanes> results;
  for (int lane = 0; lane < lanes; ++lane)
    for (int r = 0; r < Layout::kResults; ++r) {
      const auto at = static_cast<std::uint32_t>(r * lanes + lane);
      const std::uint32_t addend = c >= kFirstVector ? to[(c - kFirstVector) * lanes + at] : scalars[c];
      double sum = semantics::bits_to_float(addend);
      const auto& row = rows[static_cast<std::size_t>(Layout::row(lane, r))];
      const auto& column = columns[static_cast<std::size_t>(lane % size)];
      for (std::size_t k = 0; k < row.size(); ++k) sum += static_cast<double>(row[k]) * column[k];
      const auto result = static_cast<float>(sum);
      results[at] = semantics::float_to_bits(kFlush ? flushed(result, 1.17549435e-38f) : result);
    }
  std::copy(results.begin(), results.end(), to + static_cast<std::ptrdiff_t>(d) * lanes);
  advance(scalars, 8);
}

/// A layout as numbers, for those who check it.
struct LayoutTable {
  int size, depth, lanes, elements, results;
  int (*k)(int lane, int element);
  int (*row)(int lane, int result);
};

template <class Layout>
constexpr LayoutTable kTable = {Layout::kSize,    Layout::kDepth, Layout::kLanes, Layout::kElements,
                                Layout::kResults, Layout::k,      Layout::row};

struct Row {
  std::string_view targets, mnemonic;
  Model model;
  LayoutTable layout;
};

template <class Layout, DType kA, DType kB, bool kFlush = false>
constexpr Row row(std::string_view targets, std::string_view mnemonic) {
  return {targets, mnemonic, multiply<Layout, kA, kB, kFlush>, kTable<Layout>};
}

constexpr DType kHalf = DType::f16, kBf16 = DType::bf16;
constexpr DType kFn = DType::fp8_e4m3fn, kE5m2 = DType::fp8_e5m2, kFnuz = DType::fp8_e4m3fnuz, kE5m2Fnuz = DType::fp8_e5m2fnuz;

/// Instructions and their layouts. gfx950's products of twice the depth in k are missing: AMD's calculator does not know them.
constexpr Row kRows[] = {
    row<Mfma16<16>, kHalf, kHalf, true>("gfx90a", "v_mfma_f32_16x16x16f16"),
    row<Mfma16<16>, kBf16, kBf16, true>("gfx90a", "v_mfma_f32_16x16x16bf16_1k"),
    row<Mfma32<8>, kHalf, kHalf, true>("gfx90a", "v_mfma_f32_32x32x8f16"),
    row<Mfma32<8>, kBf16, kBf16, true>("gfx90a", "v_mfma_f32_32x32x8bf16_1k"),
    row<Mfma16<16>, kHalf, kHalf>("gfx942 gfx950", "v_mfma_f32_16x16x16_f16"),
    row<Mfma16<16>, kBf16, kBf16>("gfx942 gfx950", "v_mfma_f32_16x16x16_bf16"),
    row<Mfma32<8>, kHalf, kHalf>("gfx942 gfx950", "v_mfma_f32_32x32x8_f16"),
    row<Mfma32<8>, kBf16, kBf16>("gfx942 gfx950", "v_mfma_f32_32x32x8_bf16"),
    row<Mfma16<32>, kFnuz, kFnuz>("gfx942", "v_mfma_f32_16x16x32_fp8_fp8"),
    row<Mfma16<32>, kFnuz, kE5m2Fnuz>("gfx942", "v_mfma_f32_16x16x32_fp8_bf8"),
    row<Mfma16<32>, kE5m2Fnuz, kFnuz>("gfx942", "v_mfma_f32_16x16x32_bf8_fp8"),
    row<Mfma16<32>, kE5m2Fnuz, kE5m2Fnuz>("gfx942", "v_mfma_f32_16x16x32_bf8_bf8"),
    row<Mfma16<32>, kFn, kFn>("gfx950", "v_mfma_f32_16x16x32_fp8_fp8"),
    row<Mfma16<32>, kFn, kE5m2>("gfx950", "v_mfma_f32_16x16x32_fp8_bf8"),
    row<Mfma16<32>, kE5m2, kFn>("gfx950", "v_mfma_f32_16x16x32_bf8_fp8"),
    row<Mfma16<32>, kE5m2, kE5m2>("gfx950", "v_mfma_f32_16x16x32_bf8_bf8"),
    row<Wmma11, kHalf, kHalf>("gfx1100", "v_wmma_f32_16x16x16_f16"),
    row<Wmma11, kBf16, kBf16>("gfx1100", "v_wmma_f32_16x16x16_bf16"),
    row<Wmma12, kHalf, kHalf>("gfx1201", "v_wmma_f32_16x16x16_f16"),
    row<Wmma12, kBf16, kBf16>("gfx1201", "v_wmma_f32_16x16x16_bf16"),
    row<Wmma12Bytes, kFn, kFn>("gfx1201", "v_wmma_f32_16x16x16_fp8_fp8"),
    row<Wmma12Bytes, kFn, kE5m2>("gfx1201", "v_wmma_f32_16x16x16_fp8_bf8"),
    row<Wmma12Bytes, kE5m2, kFn>("gfx1201", "v_wmma_f32_16x16x16_bf8_fp8"),
    row<Wmma12Bytes, kE5m2, kE5m2>("gfx1201", "v_wmma_f32_16x16x16_bf8_bf8"),
};

}  // namespace

Model matrix_model(std::string_view target, std::string_view mnemonic) {
  for (const Row& row : kRows)
    if (row.mnemonic == mnemonic && row.targets.find(target) != std::string_view::npos) return row.model;
  return nullptr;
}

/// Entry `index` of the table above as CSV for check_layouts.py: the targets, the instruction, then a line for each lane of A, B
/// and D with its elements in the order of the registers. Null behind the last.
extern "C" const char* amd_layout(std::uint32_t index) {
  static std::string text;
  if (index >= std::size(kRows)) return nullptr;
  const LayoutTable& t = kRows[index].layout;
  text = formatted("{},{}\n", kRows[index].targets, kRows[index].mnemonic);
  for (const char matrix : {'A', 'B', 'D'})
    for (int lane = 0; lane < t.lanes; ++lane) {
      text += std::to_string(lane);
      for (int e = 0; e < (matrix == 'D' ? t.results : t.elements); ++e) {
        const int own = lane % t.size, other = matrix == 'D' ? t.row(lane, e) : t.k(lane, e);
        text += formatted(",{}[{}][{}]", matrix, matrix == 'A' ? own : other, matrix == 'A' ? other : own);
      }
      text += '\n';
    }
  return text.c_str();
}

}  // namespace quire::amd
