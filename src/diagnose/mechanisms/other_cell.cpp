// SPDX-License-Identifier: Apache-2.0
// See other_cell.h. Behind the last row or head comes the first.
#include "diagnose/mechanisms/other_cell.h"

#include <algorithm>

namespace quire::diagnose_detail {

std::vector<OtherCell> other_cells() {
  using N = std::int64_t;
  std::vector<OtherCell> list;
  const auto row = [&](const char* text, N (*index)(N index, N rows)) {
    list.push_back({text, [index](const Facts&, const Row& r) {
                      const N i = r.token - r.first_token, n = std::max<N>(r.query_len, 1);
                      return RowHead{r.first_token + (index(i, n) % n + n) % n, r.head};
                    }});
  };
  const auto head = [&](const char* text, N (*other)(const Facts& f, N head)) {
    list.push_back({text, [other](const Facts& f, const Row& r) { return RowHead{r.token, other(f, r.head)}; }});
  };
  row("of the row behind, in its request", [](N i, N) { return i + 1; });
  row("of the row before, in its request", [](N i, N) { return i - 1; });
  row("of the first row of its request", [](N, N) { return N{0}; });
  row("of the last row of its request", [](N, N n) { return n - 1; });
  head("of the head before", [](const Facts& f, N h) { return (h - 1 + f.num_q_heads) % f.num_q_heads; });
  head("of the head behind", [](const Facts& f, N h) { return (h + 1) % f.num_q_heads; });
  head("of the first head of its group", [](const Facts& f, N h) { return h / f.group * f.group; });
  head("of the even head of its pair", [](const Facts&, N h) { return h / 2 * 2; });
  return list;
}

}  // namespace quire::diagnose_detail
