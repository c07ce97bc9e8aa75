// SPDX-License-Identifier: Apache-2.0
// The stand-in's matrix instructions: their layouts against AMD's calculator, and products of random matrices.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <random>
#include <sstream>

#include "backend/hip/matrix/mfma.h"
#include "backend/hip/matrix/wmma_gfx11.h"
#include "backend/hip/matrix/wmma_gfx12.h"
#include "simt/machine.h"
#include "simt/matrix_unit.h"

namespace quire::test {
namespace {

using simt::MatrixUnit;
using simt::Place;

/// "architecture instruction matrix" -> places by lane and element.
using Layouts = std::map<std::string, std::vector<std::vector<Place>>>;

Layouts published_layouts() {
  std::ifstream file(std::string(QUIRE_SOURCE_DIR) + "/tests/simt/layouts/matrix_calculator_1_3_2.txt");
  Layouts layouts;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    std::string architecture, instruction, matrix, element;
    std::size_t lane = 0;
    words >> architecture >> instruction >> matrix >> lane;
    auto& lanes = layouts[architecture + " " + instruction + " " + matrix];
    EXPECT_EQ(lanes.size(), lane) << line;
    lanes.emplace_back();
    while (words >> element) {
      const std::size_t dot = element.find('.');
      lanes.back().push_back({std::stoi(element), std::stoi(element.substr(dot + 1))});
    }
  }
  return layouts;
}

MatrixUnit unit_of(const std::string& name) {
  if (name.starts_with("cdna")) return MatrixUnit::mfma;
  return name.starts_with("rdna3") ? MatrixUnit::wmma_gfx11 : MatrixUnit::wmma_gfx12;
}

TEST(SimtMatrixUnit, LayoutsAreThoseThatAmdPublishes) {
  const Layouts published = published_layouts();
  ASSERT_EQ(published.size(), 24u);  // cdna2, cdna3, rdna3, rdna4, each f16 and bf16, each A, B and D
  for (const auto& [name, lanes] : published) {
    const simt::MatrixLayout& ours = simt::layout_of(unit_of(name));
    EXPECT_EQ(lanes, name.back() == 'A' ? ours.a : name.back() == 'B' ? ours.b : ours.d) << name;
  }
}

/// What the fragments say of D, against the same tables.
template <class Gpu>
void expect_sum_rows(MatrixUnit unit) {
  const simt::MatrixLayout& layout = simt::layout_of(unit);
  ASSERT_EQ(layout.lanes, Gpu::kWave);
  for (int lane = 0; lane < Gpu::kWave; ++lane)
    for (int i = 0; i < Gpu::kSums; ++i)
      EXPECT_EQ(layout.d[static_cast<std::size_t>(lane)][static_cast<std::size_t>(i)],
                (Place{Gpu::sum_row(lane / 16, i), lane % 16}));
}

TEST(SimtMatrixUnit, FragmentsKnowWhichRowsALaneHolds) {
  expect_sum_rows<hip::matrix::Gfx942>(MatrixUnit::mfma);
  expect_sum_rows<hip::matrix::Gfx1100>(MatrixUnit::wmma_gfx11);
  expect_sum_rows<hip::matrix::Gfx1201>(MatrixUnit::wmma_gfx12);
}

/// E = C (A B)^T, elements small integers: the result of one product is an operand of the next, as in the kernels, so that an
/// order of k in which A and B agree with each other but not with D would show.
template <class Gpu, class T>
void expect_chained_products() {
  std::mt19937 random(7);
  std::vector<std::vector<float>> a(16, std::vector<float>(Gpu::kRunDims)), b = a, c(16, std::vector<float>(16));
  for (auto* matrix : {&a, &b, &c})
    for (auto& row : *matrix)
      for (float& x : row) x = static_cast<float>(static_cast<int>(random() % 5) - 2);
  std::vector<std::vector<float>> chained(16, std::vector<float>(16));
  const auto run_of = [](const std::vector<float>& row, int group) {
    typename Gpu::Run run{};
    for (int i = 0; i < Gpu::kRunElements; ++i)
      run.word[i / 2] |= T::encode(row[static_cast<std::size_t>(Gpu::run_begin(group) + i)]) << i % 2 * 16;
    return run;
  };
  const std::string error = simt::run({.blocks = 1, .threads = Gpu::kWave, .wave = Gpu::kWave, .seed = 3}, [&] {
    const int lane = gpu::thread_index(), group = lane / 16;
    const auto row = static_cast<std::size_t>(lane % 16);
    typename Gpu::Sums s{};
    const typename Gpu::Run x = run_of(a[row], group), y = run_of(b[row], group);
    Gpu::template multiply<T>(s, Gpu::template part<0>(x), Gpu::template part<0>(y));
    if constexpr (Gpu::kProducts == 2) Gpu::template multiply<T>(s, Gpu::template part<1>(x), Gpu::template part<1>(y));
    hip::matrix::Words<Gpu::kSums / 2> pairs;
    for (int i = 0; i < Gpu::kSums / 2; ++i) pairs.word[i] = T::encode(s.x[2 * i]) | T::encode(s.x[2 * i + 1]) << 16;
    typename Gpu::Operand left{};
    for (int i = 0; i < 4 * Gpu::kQuads; ++i)
      left.word[i / 2] |= T::encode(c[row][static_cast<std::size_t>(4 * Gpu::first_quad(group) + i)]) << i % 2 * 16;
    typename Gpu::Sums e{};
    Gpu::template multiply<T>(e, left, Gpu::weights(pairs, group));
    for (int i = 0; i < Gpu::kSums; ++i) chained[static_cast<std::size_t>(Gpu::sum_row(group, i))][row] = e.x[i];
  });
  ASSERT_EQ(error, "");
  for (std::size_t i = 0; i < 16; ++i)
    for (std::size_t j = 0; j < 16; ++j) {
      float expected = 0.0f;
      for (std::size_t m = 0; m < 16; ++m)
        for (std::size_t k = 0; k < a[m].size(); ++k) expected += c[i][m] * a[m][k] * b[j][k];
      EXPECT_EQ(chained[i][j], expected) << i << " " << j;
    }
}

TEST(SimtMatrixUnit, AResultIsInPlaceForTheNextProduct) {
  expect_chained_products<hip::matrix::Gfx942, hip::matrix::F16>();
  expect_chained_products<hip::matrix::Gfx1100, hip::matrix::F16>();
  expect_chained_products<hip::matrix::Gfx1201, hip::matrix::F16>();
  expect_chained_products<hip::matrix::Gfx942, hip::matrix::Bf16>();
  expect_chained_products<hip::matrix::Gfx1100, hip::matrix::Bf16>();
  expect_chained_products<hip::matrix::Gfx1201, hip::matrix::Bf16>();
}

TEST(SimtMatrixUnit, LanesThatRepeatAnElementMustAgree) {
  const std::string error = simt::run({.blocks = 1, .threads = 32, .wave = 32}, [] {
    hip::matrix::Words<8> a{}, b{};
    if (gpu::thread_index() == 20) a.word[3] = 0x3C00;
    hip::matrix::Floats<8> d{};
    hip::matrix::wmma_gfx11_f16(d, a, b);
  });
  EXPECT_NE(error.find("brings another element"), std::string::npos) << error;
}

}  // namespace
}  // namespace quire::test
