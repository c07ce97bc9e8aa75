// SPDX-License-Identifier: Apache-2.0
// error_picture(): planted errors appear where they were planted, with compare()'s judgement, and its size is bounded.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "numerics/tolerance.h"
#include "report/pictures.h"
#include "support/small_case.h"

namespace quire::test {
namespace {

using nlohmann::json;

/// A batch of requests with these query_lens (context_len 10 each), a reference of plausible rows, and an output equal to it.
struct Scene {
  Storage storage;
  Batch batch;
  Reference ref;
  Tensor output;

  Scene(const std::vector<std::int64_t>& query_lens, std::int64_t heads, std::int64_t dims, DType index = DType::i64) {
    const auto reqs = static_cast<std::int64_t>(query_lens.size());
    batch.query_start_loc = make_tensor(storage, index, {reqs + 1}, /*gap=*/true);
    batch.seq_lens = make_tensor(storage, index, {reqs});
    set_index(batch.query_start_loc, {0}, 0);
    std::int64_t tokens = 0;
    for (std::int64_t r = 0; r < reqs; ++r) {
      tokens += query_lens[static_cast<std::size_t>(r)];
      set_index(batch.query_start_loc, {r + 1}, tokens);
      set_index(batch.seq_lens, {r}, query_lens[static_cast<std::size_t>(r)] + 10);
    }
    ref.num_tokens = tokens;
    ref.num_q_heads = heads;
    ref.head_dim = ref.v_head_dim = dims;
    const auto rows = static_cast<std::size_t>(tokens * heads), elements = rows * static_cast<std::size_t>(dims);
    for (std::size_t i = 0; i < elements; ++i) ref.out.push_back(0.5 + 0.001 * static_cast<double>(i % 100));
    ref.abs_pv.assign(elements, 0.8);
    ref.abs_spv.assign(elements, 4.0);
    ref.lse.assign(rows, 2.5);
    ref.score_mag.assign(rows, 5.0);
    ref.num_keys.assign(rows, 100);
    output = make_tensor(storage, DType::f32, {tokens, heads, dims}, /*gap=*/true);
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t h = 0; h < heads; ++h)
        for (std::int64_t d = 0; d < dims; ++d) set(output, {t, h, d}, ref.out[index_of(t, h, d)]);
  }
  std::size_t index_of(std::int64_t t, std::int64_t h, std::int64_t d) const {
    return static_cast<std::size_t>((t * ref.num_q_heads + h) * ref.v_head_dim + d);
  }
  double tolerance(std::int64_t t, std::int64_t h, std::int64_t d) const {
    return numerics::output_tolerance(ref, t * ref.num_q_heads + h, static_cast<std::int64_t>(index_of(t, h, d)),
                                      numerics::output_type(DType::f32));
  }
  /// Makes an element wrong by `factor` tolerances.
  void plant(std::int64_t t, std::int64_t h, std::int64_t d, double factor) {
    set(output, {t, h, d}, ref.out[index_of(t, h, d)] + factor * tolerance(t, h, d));
  }
};

TEST(ErrorPicture, ShowsPlantedErrorsInTheirCells) {
  Scene s({3, 0, 2}, 4, 6);
  s.plant(1, 2, 5, 100);
  s.plant(2, 2, 0, 40);
  set(s.output, {4, 3, 1}, std::nan(""));
  set(s.output, {4, 3, 2}, std::numeric_limits<double>::infinity());
  const json p = report::error_picture(s.output, {}, s.ref, s.batch);

  const json& map = p["request_head"];
  ASSERT_EQ(map["requests"].size(), 2U) << "the request without rows has nothing to show";
  EXPECT_EQ(map["requests"][0], json({{"req", 0}, {"query_len", 3}, {"context_len", 10}, {"rows", 3}}));
  EXPECT_EQ(map["requests"][1], json({{"req", 2}, {"query_len", 2}, {"context_len", 10}, {"rows", 2}}));
  EXPECT_EQ(map["heads"], json::parse("[[0,0],[1,1],[2,2],[3,3]]"));
  EXPECT_NEAR(map["worst"][0][2].get<double>(), 100, 2);
  EXPECT_LT(map["worst"][0][1].get<double>(), 1);
  EXPECT_EQ(map["nonfinite"], json::parse("[[0,0,0,0],[0,0,0,2]]"));
  EXPECT_EQ(map["wrong"], json::parse("[[0,0,2,0],[0,0,0,1]]")) << "cells: heads of rows";
  EXPECT_LT(map["worst"][1][3].get<double>(), 1) << "the finite elements of that cell are right";

  const json& rows = p["row_dim"];
  ASSERT_EQ(rows["rows"].size(), 20U);
  EXPECT_EQ(rows["rows"][19], json({{"token", 4}, {"req", 2}, {"q_pos", 11}, {"head", 3}}));
  EXPECT_TRUE(rows["ratio"][19][1].is_null());
  EXPECT_TRUE(rows["ratio"][19][2].is_null());
  EXPECT_FALSE(rows["ratio"][19][0].is_null());
  EXPECT_NEAR(rows["ratio"][1 * 4 + 2][5].get<double>(), 100, 2);
  EXPECT_NEAR(rows["ratio"][2 * 4 + 2][0].get<double>(), 40, 1);
  EXPECT_EQ(p["rows_compared"], 20);
  EXPECT_EQ(p["rows_total"], 20);
  EXPECT_EQ(map["text"], "");
  EXPECT_EQ(rows["text"], "");
}

TEST(ErrorPicture, AgreesWithCompare) {
  Scene s({5}, 3, 8, DType::i32);
  for (int i = 0; i < 30; ++i) s.plant(i % 5, i % 3, i % 8, 0.3 * i);
  set(s.output, {0, 0, 7}, std::nan(""));
  s.ref.out[s.index_of(3, 1, 4)] = std::nan("");
  s.ref.out[s.index_of(3, 1, 5)] = std::nan("");
  set(s.output, {3, 1, 5}, std::nan(""));
  s.ref.out[s.index_of(2, 2, 2)] = 1e39;
  set(s.output, {2, 2, 2}, std::numeric_limits<double>::infinity());
  const Comparison c = compare(s.output, {}, s.ref);
  const json p = report::error_picture(s.output, {}, s.ref, s.batch);
  double worst = 0;
  std::int64_t nonfinite = 0, over = 0, null = 0;
  for (const json& cell : p["request_head"]["worst"][0]) worst = std::max(worst, cell.get<double>());
  for (const json& cell : p["request_head"]["nonfinite"][0]) nonfinite += cell.get<std::int64_t>();
  for (const json& row : p["row_dim"]["ratio"])
    for (const json& cell : row) null += cell.is_null() ? 1 : 0, over += !cell.is_null() && cell.get<double>() > 1 ? 1 : 0;
  EXPECT_NEAR(worst, c.worst_ratio, 1e-3 * c.worst_ratio);
  EXPECT_EQ(nonfinite, c.num_nonfinite_mismatches);
  EXPECT_EQ(null, c.num_nonfinite_mismatches);
  EXPECT_EQ(over + null, c.num_mismatches);
}

/// A wrong lse makes its cell wrong, however right the output is.
TEST(ErrorPicture, ShowsWrongLse) {
  Scene s({3, 2}, 4, 6);
  Tensor lse = make_tensor(s.storage, DType::f32, {5, 4}, /*gap=*/true);
  for (std::int64_t t = 0; t < 5; ++t)
    for (std::int64_t h = 0; h < 4; ++h) set(lse, {t, h}, 2.5);
  set(lse, {1, 2}, 2.5 + 300 * numerics::lse_tolerance(s.ref, 1 * 4 + 2));
  set(lse, {4, 0}, std::nan(""));
  const json p = report::error_picture(s.output, lse, s.ref, s.batch);
  EXPECT_NEAR(p["request_head"]["worst"][0][2].get<double>(), 300, 5);
  EXPECT_EQ(p["request_head"]["nonfinite"], json::parse("[[0,0,0,0],[1,0,0,0]]"));
  EXPECT_EQ(p["request_head"]["wrong"], json::parse("[[0,0,1,0],[1,0,0,0]]"));
  ASSERT_EQ(p["row_dim"]["lse"].size(), 20U);
  EXPECT_NEAR(p["row_dim"]["lse"][1 * 4 + 2].get<double>(), 300, 5);
  EXPECT_TRUE(p["row_dim"]["lse"][4 * 4].is_null());
  EXPECT_FALSE(report::error_picture(s.output, {}, s.ref, s.batch)["row_dim"].contains("lse"));
}

TEST(ErrorPicture, SubsetOfRows) {
  Scene all({4, 3, 2}, 2, 5);
  all.plant(5, 1, 3, 700);
  const std::vector<std::int64_t> tokens = {8, 5};
  Reference some = all.ref;
  some.num_tokens = 2;
  some.out.clear();
  for (const std::int64_t t : tokens)
    for (std::int64_t i = 0; i < 10; ++i) some.out.push_back(all.ref.out[static_cast<std::size_t>(t * 10 + i)]);
  const json p = report::error_picture(all.output, {}, some, all.batch, tokens);
  ASSERT_EQ(p["request_head"]["requests"].size(), 2U);
  EXPECT_EQ(p["request_head"]["requests"][0]["req"], 1);
  EXPECT_EQ(p["request_head"]["requests"][0]["rows"], 1);
  EXPECT_EQ(p["request_head"]["requests"][1]["req"], 2);
  EXPECT_NEAR(p["request_head"]["worst"][0][1].get<double>(), 700, 10);
  EXPECT_LT(p["request_head"]["worst"][1][1].get<double>(), 1);
  EXPECT_EQ(p["rows_compared"], 4);
  EXPECT_EQ(p["rows_total"], 18);
}

TEST(ErrorPicture, HugeBatchesGiveBoundedPicturesWithTheWorstInThem) {
  Scene s(std::vector<std::int64_t>(200, 2), 130, 300);
  s.plant(333, 129, 299, 5e5);
  set(s.output, {7, 0, 0}, std::nan(""));
  const json p = report::error_picture(s.output, {}, s.ref, s.batch);
  const json& map = p["request_head"];
  EXPECT_EQ(map["requests"].size(), 64U);
  EXPECT_EQ(map["heads"].size(), 65U);
  EXPECT_EQ(map["heads"][64], json::parse("[128,129]"));
  EXPECT_EQ(p["row_dim"]["rows"].size(), 64U);
  EXPECT_EQ(p["row_dim"]["bin"], 2);
  EXPECT_EQ(p["row_dim"]["ratio"][0].size(), 150U);
  EXPECT_EQ(map["text"], "the 64 worst of 200 requests, 2 heads side by side");
  EXPECT_EQ(p["row_dim"]["text"], "the 64 worst of 52000 cells, 2 dims side by side");
  EXPECT_LT(p.dump().size(), 300000U);
  bool wrong = false, broken = false;
  for (std::size_t i = 0; i < 64; ++i) {
    if (map["requests"][i]["req"] == 166) wrong = map["worst"][i][64] > 4e5;
    if (map["requests"][i]["req"] == 3) broken = map["nonfinite"][i][0] == 1;
  }
  EXPECT_TRUE(wrong);
  EXPECT_TRUE(broken);
}

TEST(ErrorPicture, NothingToDraw) {
  Scene s({2}, 2, 4);
  EXPECT_TRUE(report::error_picture({}, {}, s.ref, s.batch).is_null());
  EXPECT_TRUE(report::error_picture(s.output, {}, s.ref, {}).is_null());
  const std::vector<std::int64_t> outside = {0, 2};
  EXPECT_TRUE(report::error_picture(s.output, {}, s.ref, s.batch, outside).is_null());
}

TEST(ErrorPicture, AZeroToleranceIsStillDrawable) {
  Scene s({1}, 1, 2);
  s.ref.out = {0, 0};
  s.ref.abs_pv = s.ref.abs_spv = {0, 0};
  set(s.output, {0, 0, 0}, 3.0);
  set(s.output, {0, 0, 1}, 0.0);
  const json p = report::error_picture(s.output, {}, s.ref, s.batch);
  EXPECT_GT(p["row_dim"]["ratio"][0][0].get<double>(), 1e40);
  EXPECT_EQ(p["row_dim"]["ratio"][0][1], 0.0);
}

}  // namespace
}  // namespace quire::test
