// SPDX-License-Identifier: Apache-2.0
// Classes of cells are asked in the order of what is sure: kept bytes, zeros, NaN, another cell's answer.
#include "diagnose/cell_bytes.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "diagnose/cell_directory.h"
#include "diagnose/fault_model.h"
#include "numerics/tolerance.h"
#include "text/formatted.h"

namespace quire::diagnose_detail {
namespace {

constexpr std::size_t kCellsAsked = 256;  // wrong cells, an even choice

template <typename Holds>
bool in_every_dim(const Facts& f, const Compared& cell, Holds&& holds) {
  for (std::int64_t d = 0; d < f.v_head_dim; ++d)
    if (!holds(cell.token, cell.head, d)) return false;
  return true;
}

/// The lse of every cell in the order of `axes`, a permutation of row, KV head and head in the group, read as if it were in the
/// order of the call, or with heads first.
bool lse_in_order(const Facts& f, const Observed& observed, const Localisation& where, const std::array<int, 3>& axes,
                  bool heads_first) {
  const std::array<std::int64_t, 3> sizes{f.num_tokens, f.num_kv_heads, f.group};
  for (const Compared& cell : where.rows) {
    const std::array<std::int64_t, 3> at{cell.token, cell.head / f.group, cell.head % f.group};
    std::int64_t flat = 0;
    for (const int axis : axes) flat = flat * sizes[Facts::at(axis)] + at[Facts::at(axis)];
    const std::int64_t token = heads_first ? flat % f.num_tokens : flat / f.num_q_heads;
    const std::int64_t head = heads_first ? flat / f.num_tokens : flat % f.num_q_heads;
    const double seen = observed.lse_at(token, head), expected = where.reference.lse[Facts::at(cell.reference_row)];
    if (!(seen == expected || std::fabs(seen - expected) <= numerics::lse_tolerance(where.reference, cell.reference_row)))
      return false;
  }
  return true;
}

std::string lse_order(const Facts& f, const Observed& observed, const Localisation& where) {
  const char* const names[] = {"row", "KV head", "head in the group"};
  const bool wrong = std::ranges::any_of(where.rows, &Compared::wrong_lse);
  if (!observed.lse.present() || !wrong || !where.complete || observed.lse.shape[0] != f.num_tokens) return {};
  for (const bool heads_first : {false, true}) {
    std::array<int, 3> axes{0, 1, 2};
    do {
      if (lse_in_order(f, observed, where, axes, heads_first))
        return formatted("lse holds every right value, written as [{}, {}, {}] and read as {}", names[axes[0]], names[axes[1]],
                         names[axes[2]], heads_first ? "[head, row]" : "[row, head]");
    } while (std::next_permutation(axes.begin(), axes.end()));
  }
  return {};
}

}  // namespace

std::vector<std::string> cell_bytes(const Facts& f, const Observed& observed, const Localisation& where) {
  std::vector<const Compared*> wrong;
  for (const Compared& cell : where.rows)
    if (cell.wrong_dims > 0) wrong.push_back(&cell);
  const Observed was{f.batch.output, f.batch.lse};
  const auto keeps = [&](const Compared& cell) {
    return in_every_dim(f, cell, [&](auto t, auto h, auto d) {
      const double a = was.at(t, h, d), b = observed.at(t, h, d);
      return a == b || (std::isnan(a) && std::isnan(b));
    });
  };
  // An output that holds right answers was written by somebody else: it says nothing of the time before the call.
  const bool before = std::ranges::none_of(where.rows, [&](const Compared& c) { return !c.wrong && keeps(c); }) &&
                      std::ranges::any_of(where.rows, [&](const Compared& c) { return !keeps(c); });
  const CellDirectory directory(f, observed, where);
  const std::size_t step = wrong.size() / kCellsAsked + 1;
  std::array<std::size_t, 4> counts{};
  std::string holder_text;
  std::size_t asked = 0;
  for (std::size_t i = 0; i < wrong.size(); i += step, ++asked) {
    const Compared& cell = *wrong[i];
    if (before && keeps(cell)) {
      ++counts[0];
    } else if (in_every_dim(f, cell, [&](auto t, auto h, auto d) { return observed.at(t, h, d) == 0; })) {
      ++counts[1];
    } else if (in_every_dim(f, cell, [&](auto t, auto h, auto d) { return !std::isfinite(observed.at(t, h, d)); })) {
      ++counts[2];
    } else if (const Compared* holder = directory.holder(cell); holder != nullptr) {
      if (counts[3]++ == 0)
        holder_text = formatted(" (row {} head {} that of row {} head {})", cell.token, cell.head, holder->token, holder->head);
    }
  }
  const char* const what[] = {"what output held before the call", "zeros", "no finite number", "another cell's right answer"};
  std::string text;
  for (std::size_t k = 0; k < counts.size(); ++k)
    if (counts[k] > 0) text += formatted("{}{} {}{}", text.empty() ? "" : ", ", counts[k], what[k], k == 3 ? holder_text : "");
  std::vector<std::string> lines;
  if (!text.empty()) lines.push_back(formatted("the {} wrong cells looked at hold: {}", asked, text));
  if (std::string order = lse_order(f, observed, where); !order.empty()) lines.push_back(std::move(order));
  return lines;
}

}  // namespace quire::diagnose_detail
