// SPDX-License-Identifier: Apache-2.0
// Judges an output against the oracle: NaN and infinity positions first, then the derived tolerance element by element.
#include <cmath>

#include "numerics/tolerance.h"
#include "quire/tools/compare.hpp"
#include "semantics/dtype.h"
#include "text/formatted.h"

namespace quire {
namespace {

using numerics::ElementVerdict;
using numerics::judge;

constexpr std::size_t kListed = 16;

class Tally {
 public:
  explicit Tally(Comparison& c) : c_(c) {}

  void add(const Mismatch& m, double overflow) {
    ++c_.num_elements;
    const ElementVerdict verdict = judge(m.observed, m.expected, m.tolerance, overflow);
    const double error = std::fabs(m.observed - m.expected);
    // Equal values first: 0 / 0 is no ratio, and equal infinities have no difference.
    const double ratio = m.observed == m.expected || !std::isfinite(error) ? 0.0 : error / m.tolerance;
    if (verdict != ElementVerdict::fine) {
      ++c_.num_mismatches;
      if (verdict == ElementVerdict::wrong_class) ++c_.num_nonfinite_mismatches;
      if (c_.first.size() < kListed) c_.first.push_back(m);
    }
    const bool first_wrong_class = verdict == ElementVerdict::wrong_class && c_.num_nonfinite_mismatches == 1;
    if (first_wrong_class || (c_.num_nonfinite_mismatches == 0 && ratio > c_.worst_ratio)) c_.worst = m;
    if (std::isfinite(ratio) && ratio > c_.worst_ratio) c_.worst_ratio = ratio;
  }

 private:
  Comparison& c_;
};

bool same_shape(const Tensor& t, std::initializer_list<std::int64_t> shape) {
  if (t.rank != static_cast<int>(shape.size())) return false;
  std::size_t i = 0;
  for (const std::int64_t n : shape)
    if (t.shape[i++] != n) return false;
  return true;
}

/// The rows of an output, or its rows of requests where padding rows are left as they are.
bool as_many_rows(const Tensor& t, const Reference& ref) {
  return t.rank > 0 && (t.shape[0] == ref.num_tokens || t.shape[0] == ref.num_tokens + ref.num_left_rows);
}

void tally_output(const Tensor& output, const Reference& ref, Tally& tally) {
  const numerics::OutputType type = numerics::output_type(ref, output.dtype);
  for (std::int64_t row = 0; row < ref.num_tokens * ref.num_q_heads; ++row) {
    const std::int64_t token = row / ref.num_q_heads, head = row % ref.num_q_heads;
    const std::int64_t base = token * output.stride[0] + head * output.stride[1];
    const numerics::RowErrors errors = numerics::row_errors(ref, row);
    for (std::int64_t d = 0; d < ref.v_head_dim; ++d) {
      const std::int64_t i = row * ref.v_head_dim + d;
      tally.add({token, head, d, semantics::load(output.data, output.dtype, base + d * output.stride[2]),
                 ref.out[static_cast<std::size_t>(i)], numerics::output_tolerance(ref, errors, i, type)},
                type.overflow);
    }
  }
}

/// dim = -1 marks an lse element.
void tally_lse(const Tensor& lse, const Reference& ref, Tally& tally) {
  const double overflow = numerics::output_type(DType::f32).overflow;
  for (std::int64_t row = 0; row < ref.num_tokens * ref.num_q_heads; ++row) {
    const std::int64_t token = row / ref.num_q_heads, head = row % ref.num_q_heads;
    tally.add({token, head, -1, semantics::load(lse.data, lse.dtype, token * lse.stride[0] + head * lse.stride[1]),
               ref.lse[static_cast<std::size_t>(row)], numerics::lse_tolerance(ref, row)},
              overflow);
  }
}

std::string place(const Mismatch& m) {
  return m.dim < 0 ? formatted("lse[token {}, head {}]", m.token, m.head)
                   : formatted("output[token {}, head {}, dim {}]", m.token, m.head, m.dim);
}

std::string describe(const Comparison& c) {
  const Mismatch& w = c.worst;
  const std::string worst = formatted("{}: observed {:.9g}, expected {:.9g}, error {:.3g}, tolerance {:.3g}", place(w),
                                      w.observed, w.expected, std::fabs(w.observed - w.expected), w.tolerance);
  if (c.num_elements == 0) return "nothing to compare: no elements";
  if (c.ok && c.worst_ratio == 0) return formatted("all {} elements equal the reference", c.num_elements);
  if (c.ok)
    return formatted("all {} elements within tolerance; the worst reaches {:.3g} of it at {}", c.num_elements, c.worst_ratio,
                     worst);
  if (c.num_nonfinite_mismatches > 0)
    return formatted(
        "{} of {} elements differ, {} of them in NaN or infinity; first of these {}; finite errors reach {:.3g} "
        "times the tolerance",
        c.num_mismatches, c.num_elements, c.num_nonfinite_mismatches, worst, c.worst_ratio);
  return formatted("{} of {} elements exceed the tolerance, the worst by a factor of {:.3g} at {}", c.num_mismatches,
                   c.num_elements, c.worst_ratio, worst);
}

bool is_lse(const Tensor& lse, const Reference& expected) {
  return as_many_rows(lse, expected) && same_shape(lse, {lse.shape[0], expected.num_q_heads}) && lse.dtype == DType::f32;
}

std::string wrong_lse(const Tensor& lse, const Reference& expected) {
  return formatted("lse is {}, expected f32 [{}, {}]", to_string(lse), expected.num_tokens, expected.num_q_heads);
}

}  // namespace

Comparison compare(const Tensor& output, const Tensor& lse, const Reference& expected) {
  Comparison c;
  const bool fits =
      as_many_rows(output, expected) && same_shape(output, {output.shape[0], expected.num_q_heads, expected.v_head_dim});
  if (!fits || !is_floating(output.dtype)) {
    c.text = formatted("output is {}, the reference [{}, {}, {}]", to_string(output), expected.num_tokens, expected.num_q_heads,
                       expected.v_head_dim);
    return c;
  }
  if (lse.present() && !is_lse(lse, expected)) {
    c.text = wrong_lse(lse, expected);
    return c;
  }
  Tally tally(c);
  tally_output(output, expected, tally);
  if (lse.present()) tally_lse(lse, expected, tally);
  c.ok = c.num_mismatches == 0;
  c.text = describe(c);
  if (expected.output != DType::none && expected.output != output.dtype)
    c.text += formatted("; the output is {}, judged as the batch's {}", name(output.dtype), name(expected.output));
  return c;
}

Comparison compare_lse(const Tensor& lse, const Reference& expected) {
  Comparison c;
  if (!is_lse(lse, expected)) {
    c.text = wrong_lse(lse, expected);
    return c;
  }
  Tally tally(c);
  tally_lse(lse, expected, tally);
  c.ok = c.num_mismatches == 0;
  c.text = describe(c);
  return c;
}

}  // namespace quire
