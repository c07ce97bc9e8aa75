// SPDX-License-Identifier: Apache-2.0
// See move.h: merge and merge_many.
#include "amd_emulator/move.h"
#include "backend/gpu/resolve.h"
#include "kernels/compare_merged.h"
#include "text/formatted.h"

namespace quire::amd {

using test::MergeCase, test::StackCase;

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
    const std::string finding = status.ok() ? test::compare_merged(c, out, lse) : status.message();
    ++judged.cases;
    if (!finding.empty())
      judged.findings.push_back(
          formatted("merge {}{}{}: {}", name(dtype), gap ? " with gaps" : "", in_place ? " in place" : "", finding));
  });
  return judged;
}

Judged judge_merge_many(LaunchKernel kernel, std::uint64_t seed) {
  Judged judged;
  test::for_each_stack([&](DType dtype, bool gap, std::int64_t parts) {
    const StackCase c(dtype, gap, parts);
    Arrays arrays(++seed % 2 == 0 ? Against::front : Against::back);
    const Tensor outs = arrays.place("outs", c.outs, Use::input), lses = arrays.place("lses", c.lses, Use::input);
    const Tensor out = arrays.place("out", c.out, Use::output), lse = arrays.place("lse", c.lse, Use::output);
    const gpu::MergeManyArgs args = gpu::merge_many_args(outs, lses, out, lse, {});
    const Status status = launch(kernel, "quire_merge_many", 1 + static_cast<std::uint32_t>(seed % 3), args, seed, arrays);
    const std::string finding = status.ok() ? test::compare_stack(c, out, lse) : status.message();
    ++judged.cases;
    if (!finding.empty())
      judged.findings.push_back(
          formatted("merge_many {}{} of {} parts: {}", name(dtype), gap ? " with gaps" : "", parts, finding));
  });
  return judged;
}

}  // namespace quire::amd
