// SPDX-License-Identifier: Apache-2.0
// Plain observations: what was planted in an output is what the lines say, for factors, offsets, zeros, NaN and lse.
#include <functional>

#include "diagnose/diagnose_util.h"
#include "diagnose/pattern.h"

namespace quire::test {
namespace {

const std::string kLine = "q=f32 heads=4:2 d=64 page=16 lse=1 reqs=20@100,1@77,25,1@300,17@33";

/// The lines for a right output that `change` made wrong.
std::vector<std::string> lines_after(const std::function<void(Case&)>& change, const std::string& line = kLine) {
  Case c = right(line);
  change(c);
  const faults_detail::Facts facts(c.batch, c.cache, c.options);
  const Result<diagnose_detail::Localisation> where = diagnose_detail::localise(facts, {c.observed, c.observed_lse}, {});
  EXPECT_TRUE(where.ok()) << where.status().message();
  std::vector<std::string> lines = diagnose_detail::observations(facts, {c.observed, c.observed_lse}, where.value());
  EXPECT_LE(lines.size(), 5u);
  return lines;
}

void scale(Case& c, const std::function<double(std::int64_t token, std::int64_t head)>& factor) {
  const Tensor& o = c.observed;
  for (std::int64_t t = 0; t < o.shape[0]; ++t)
    for (std::int64_t h = 0; h < o.shape[1]; ++h)
      for (std::int64_t d = 0; d < o.shape[2]; ++d) {
        float& x = f32_at(o, t, h, d);
        x = static_cast<float>(x * factor(t, h));
      }
}

bool says(const std::vector<std::string>& lines, const std::string& text) {
  for (const std::string& line : lines)
    if (line.find(text) != std::string::npos) return true;
  return false;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

#define EXPECT_SAYS(lines, text) EXPECT_TRUE(says(lines, text)) << joined(lines)

TEST(Observations, NothingWrongIsNothingToSay) {
  EXPECT_TRUE(lines_after([](Case&) {}).empty());
}

TEST(Observations, OneFactorOfAll) {
  const auto lines = lines_after([](Case& c) { scale(c, [](auto, auto) { return 0.5; }); });
  EXPECT_SAYS(lines, "out is 0.5 x the expected one in every wrong cell looked at (256)");
  EXPECT_SAYS(lines, "|out| is too small in 100 % of the wrong elements");
  EXPECT_SAYS(lines, "lse is right in the wrong cells");
  EXPECT_SAYS(lines, "visible keys: wrong from 1 to 301, none right");
}

TEST(Observations, OneFactorPerHead) {
  const auto lines = lines_after(
      [](Case& c) { scale(c, [](auto, std::int64_t h) { return h == 0 ? 1.0 : 1.0 + 0.25 * static_cast<double>(h); }); });
  EXPECT_SAYS(lines, "out / expected is one number per head: head 1: 1.25, head 2: 1.5, head 3: 1.75");
}

TEST(Observations, OneFactorPerCell) {
  const auto lines = lines_after([](Case& c) {
    scale(c, [](std::int64_t t, std::int64_t h) { return 2.0 + static_cast<double>(t) + 0.5 * static_cast<double>(h); });
  });
  EXPECT_SAYS(lines, "out / expected is one number per (row, head), from 2 to 66.5");
}

TEST(Observations, NoFactor) {
  const auto lines = lines_after([](Case& c) {
    for (std::int64_t d = 0; d < 64; ++d) f32_at(c.observed, 3, 1, d) += 0.1f * static_cast<float>(d % 5);
  });
  EXPECT_SAYS(lines, "out / expected differs from dim to dim");
}

TEST(Observations, ZerosAndNaN) {
  EXPECT_SAYS(lines_after([](Case& c) { scale(c, [](auto, auto) { return 0.0; }); }), "out is 0 in every wrong cell looked at");
  EXPECT_SAYS(lines_after([](Case& c) { f32_at(c.observed, 7, 2, 5) = NAN; }), "in 1 of 1 wrong cells");
}

TEST(Observations, SizesSeparate) {
  const auto lines = lines_after([](Case& c) { scale(c, [](std::int64_t t, auto) { return t == 20 || t == 46 ? 2.0 : 1.0; }); });
  EXPECT_SAYS(lines, "visible keys: smallest wrong 78, largest right 120");
  EXPECT_SAYS(lines, "rows of the request: largest wrong 1, smallest right 17");
}

TEST(Observations, LseAlone) {
  const auto lines = lines_after([](Case& c) {
    for (std::int64_t i = 0; i < 64 * 4; ++i) static_cast<float*>(c.observed_lse.data)[i] += 0.6931472f;
  });
  EXPECT_SAYS(lines, "lse is off by 0.6931 in every wrong cell; out is right");
}

}  // namespace
}  // namespace quire::test
