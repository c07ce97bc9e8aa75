// SPDX-License-Identifier: Apache-2.0
// Classes of cells are asked in the order of what is sure: kept bytes, zeros, NaN, another cell's answer.
#include "diagnose/cell_bytes.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "diagnose/cell_directory.h"
#include "diagnose/fault_model.h"
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

/// Comparison of what the buffer held before the call with what it holds now. NaN is what captures hold where nobody knows, and a
/// kernel may compute it: only numbers that stand there still prove that nobody wrote them.
class Earlier {
 public:
  Earlier(const Facts& f, const Observed& observed, const Localisation& where)
      : f_(f), was_{f.batch.output, f.batch.lse}, observed_(observed) {
    // An output that holds right answers was written by somebody else: it says nothing of the time before the call.
    is_known_ = std::ranges::none_of(where.rows, [&](const Compared& c) { return !c.wrong && keeps(c); }) &&
                std::ranges::any_of(where.rows, [&](const Compared& c) { return !keeps(c); });
  }
  Before compared(const Compared& cell) const {
    const auto was_nan = [&](auto t, auto h, auto d) { return std::isnan(was_.at(t, h, d)); };
    if (!is_known_ || in_every_dim(f_, cell, was_nan)) return Before::unknown;
    return keeps(cell) ? Before::same : Before::other;
  }

 private:
  bool keeps(const Compared& cell) const {
    return in_every_dim(f_, cell, [&](auto t, auto h, auto d) {
      const double a = was_.at(t, h, d), b = observed_.at(t, h, d);
      return a == b || (std::isnan(a) && std::isnan(b));
    });
  }

  const Facts& f_;
  const Observed was_;
  const Observed& observed_;
  bool is_known_ = false;
};

}  // namespace

void classify(const Facts& f, const Observed& observed, Localisation& where) {
  const Earlier earlier(f, observed, where);
  for (Compared& cell : where.rows) {
    if (!cell.wrong) continue;
    cell.before = earlier.compared(cell);
    if (cell.wrong_dims == 0) continue;
    const auto all = [&](auto&& holds) {
      return in_every_dim(f, cell, [&](auto t, auto h, auto d) { return holds(observed.at(t, h, d)); });
    };
    cell.bytes = cell.before == Before::same                               ? CellBytes::kept
                 : all([](double value) { return value == 0; })            ? CellBytes::zeros
                 : all([](double value) { return !std::isfinite(value); }) ? CellBytes::nonfinite
                                                                           : CellBytes::numbers;
  }
}

std::string cell_bytes(const Facts& f, const Observed& observed, const Localisation& where) {
  std::vector<const Compared*> wrong;
  for (const Compared& cell : where.rows)
    if (cell.wrong_dims > 0) wrong.push_back(&cell);
  const CellDirectory directory(f, observed, where);
  const std::size_t step = wrong.size() / kCellsAsked + 1;
  std::array<std::size_t, 4> counts{};  // of kept, zeros, nonfinite, another cell's answer
  std::string holder_text;
  std::size_t asked = 0;
  for (std::size_t i = 0; i < wrong.size(); i += step, ++asked) {
    const Compared& cell = *wrong[i];
    if (cell.bytes != CellBytes::numbers) {
      ++counts[static_cast<std::size_t>(cell.bytes) - 1];
    } else if (const Compared* holder = directory.holder(cell); holder != nullptr) {
      if (counts[3]++ == 0)
        holder_text = formatted(" (row {} head {} that of row {} head {})", cell.token, cell.head, holder->token, holder->head);
    }
  }
  const char* const what[] = {"what output held before the call", "zeros", "no finite number", "another cell's right answer"};
  std::string text;
  for (std::size_t k = 0; k < counts.size(); ++k)
    if (counts[k] > 0) text += formatted("{}{} {}{}", text.empty() ? "" : ", ", counts[k], what[k], k == 3 ? holder_text : "");
  return text.empty() ? text : formatted("the {} wrong cells looked at hold: {}", asked, text);
}

}  // namespace quire::diagnose_detail
