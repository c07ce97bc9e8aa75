// SPDX-License-Identifier: Apache-2.0
// See move.h: merge.
#include "amd_emulator/move.h"
#include "backend/gpu/resolve.h"
#include "kernels/compare_merged.h"
#include "text/formatted.h"

namespace quire::amd {

using test::MergeCase;

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

}  // namespace quire::amd
