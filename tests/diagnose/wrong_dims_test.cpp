// SPDX-License-Identifier: Apache-2.0
// Localisation keeps which dims of a compared (row, head) are wrong, beyond 64 dims and next to right neighbours.
#include <set>
#include <utility>

#include "diagnose/diagnose_util.h"
#include "diagnose/localise.h"

namespace quire::test {
namespace {

TEST(WrongDims, AreKeptPerCell) {
  Case c = right("q=f32 heads=4:2 d=80 page=16 reqs=3@20,1@50 seed=5");
  const std::set<std::int64_t> planted = {0, 63, 64, 79};
  for (const std::int64_t d : planted) f32_at(c.observed, 2, 1, d) += 1.0f;
  f32_at(c.observed, 3, 3, 7) += 1.0f;
  const faults_detail::Facts facts(c.batch, c.cache, c.options);
  const Result<diagnose_detail::Localisation> where = diagnose_detail::localise(facts, {c.observed, c.observed_lse}, {});
  ASSERT_TRUE(where.ok()) << where.status().message();
  for (std::size_t i = 0; i < where->rows.size(); ++i)
    for (std::int64_t d = 0; d < 80; ++d) {
      const diagnose_detail::Compared& cell = where->rows[i];
      const std::pair<std::int64_t, std::int64_t> at{cell.token, cell.head};
      const bool wrong = (at == std::pair<std::int64_t, std::int64_t>{2, 1} && planted.contains(d)) ||
                         (at == std::pair<std::int64_t, std::int64_t>{3, 3} && d == 7);
      EXPECT_EQ(where->wrong_dim(i, d), wrong) << cell.token << ", " << cell.head << ", " << d;
    }
}

}  // namespace
}  // namespace quire::test
