// See move.h: merge.
#include <cmath>

#include "amd_emulator/move.h"
#include "backend/gpu/resolve.h"
#include "kernels/move_cases.h"
#include "text/formatted.h"

namespace quire::amd {
namespace {

using test::MergeCase;

float at(const Tensor& t, std::initializer_list<std::int64_t> index) {
  return semantics::load(t.data, t.dtype, test::offset(t, index));
}

/// The first element that is further off than it may be, or nothing. Rows with an empty side are the other side, to the bit.
std::string compare_merged(const MergeCase& c, const Tensor& out, const Tensor& lse) {
  for (std::int64_t t = 0; t < MergeCase::kTokens; ++t)
    for (std::int64_t h = 0; h < MergeCase::kHeads; ++h) {
      const float a = at(c.lse_a, {t, h}), b = at(c.lse_b, {t, h});
      const bool a_empty = a == -INFINITY, b_empty = b == -INFINITY;
      const test::MergedLse merged(a, b);
      const float got_lse = at(lse, {t, h});
      const bool lse_right =
          a_empty || b_empty ? got_lse == std::max(a, b) : std::fabs(got_lse - merged.value) <= merged.tolerance;
      if (!lse_right) return formatted("lse[{}, {}] is {}, expected {}", t, h, got_lse, merged.value);
      for (std::int64_t d = 0; d < MergeCase::kDim; ++d) {
        const float x = at(c.out_a, {t, h, d}), y = at(c.out_b, {t, h, d}), got = at(out, {t, h, d});
        const float other = a_empty ? (b_empty ? 0.0f : y) : x;
        const bool right = a_empty || b_empty
                               ? got == other
                               : std::fabs(got - merged.element(x, y)) <= merged.element_tolerance(x, y, out.dtype);
        if (!right)
          return formatted("out[{}, {}, {}] is {}, expected {}", t, h, d, got, a_empty || b_empty ? other : merged.element(x, y));
      }
    }
  return {};
}

}  // namespace

Judged judge_merge(LaunchKernel kernel, std::uint64_t seed) {
  Judged judged;
  test::for_each_merge([&](DType dtype, bool gap, bool in_place) {
    const MergeCase c(dtype, gap);
    Arrays arrays(++seed % 2 == 0 ? Against::front : Against::back);
    const Use into = in_place ? Use::output : Use::input;
    const Tensor out_a = arrays.place("out_a", c.out_a, into), lse_a = arrays.place("lse_a", c.lse_a, Use::input);
    const Tensor out_b = arrays.place("out_b", c.out_b, Use::input), lse_b = arrays.place("lse_b", c.lse_b, into);
    const Tensor out = in_place ? out_a : arrays.place("out", c.out, Use::output);
    const Tensor lse = in_place ? lse_b : arrays.place("lse", c.lse, Use::output);
    const gpu::MergeArgs args = gpu::merge_args(out_a, lse_a, out_b, lse_b, out, lse);
    const Status status = launch(kernel, "quire_merge", 1 + static_cast<std::uint32_t>(seed % 3), args, seed, arrays);
    const std::string finding = status.ok() ? compare_merged(c, out, lse) : status.message();
    ++judged.cases;
    if (!finding.empty())
      judged.findings.push_back(
          formatted("merge {}{}{}: {}", name(dtype), gap ? " with gaps" : "", in_place ? " in place" : "", finding));
  });
  return judged;
}

}  // namespace quire::amd
