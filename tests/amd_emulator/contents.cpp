// SPDX-License-Identifier: Apache-2.0
// See move.h: the look at contents.
#include <algorithm>

#include "amd_emulator/move.h"
#include "backend/gpu/resolve.h"
#include "text/formatted.h"
#include "verify/prepare.h"

namespace quire::amd {
namespace {

/// Whether check_contents() says that some element is not finite.
Status look(const Case& c, LaunchKernel kernel, std::uint64_t seed, bool& broken) {
  Arrays arrays(seed % 2 == 0 ? Against::front : Against::back);
  const Case there = place(arrays, c);
  auto* outcome = new (arrays.take("outcome", sizeof(gpu::Outcome))) gpu::Outcome;
  const gpu::GenericArgs args = gpu::batch_args(there.batch, there.cache, there.options, outcome);
  const Status status = launch(kernel, "quire_check_contents", 1 + static_cast<std::uint32_t>(seed % 3), args, seed, arrays);
  broken = outcome->broken != 0;
  return status;
}

void ruin_block_scales(const Case& c) {
  const Tensor& t = c.cache.k_block_scale;
  std::fill_n(static_cast<std::uint8_t*>(t.data), t.num_elements(), std::uint8_t{0xFF});  // NaN in both formats
}

}  // namespace

Judged judge_contents(LaunchKernel kernel, std::uint64_t seed) {
  Judged judged;
  for (const std::string& types : verify_detail::type_combinations())
    for (const verify_detail::Special special : {verify_detail::Special::none, verify_detail::Special::nan_in_a_key}) {
      const ProblemLine line = verify_detail::hazard_line(types, "heads=4:2 d=16 page=8 window=40 reqs=9@30/33,1@90", seed);
      const bool planted = special != verify_detail::Special::none;
      Result<Case> c = make_case(line);
      bool broken = false;
      Status status = c.ok() ? Status() : c.status();
      if (status.ok() && !verify_detail::apply(special, c.value())) status = {Code::internal_error, "no data"};
      if (status.ok()) status = look(c.value(), kernel, seed++, broken);
      ++judged.cases;
      const auto finding = [&](const std::string& text) { judged.findings.push_back("contents of " + types + ": " + text); };
      if (!status.ok()) finding(status.message());
      if (status.ok() && broken != planted) finding(planted ? "nobody noticed a NaN" : "finite contents are called broken");
    }
  for (const char* types : {"q=f32 kv=nvfp4", "q=bf16 kv=mxfp4 layout=hnd"})
    for (const bool planted : {false, true}) {
      Result<Case> c = make_case(verify_detail::hazard_line(types, "heads=4:2 d=32 page=8 window=40 reqs=9@30/33,1@90", seed));
      bool broken = false;
      if (c.ok() && planted) ruin_block_scales(c.value());
      const Status status = c.ok() ? look(c.value(), kernel, seed++, broken) : c.status();
      ++judged.cases;
      if (!status.ok()) judged.findings.push_back(formatted("contents of {}: {}", types, status.message()));
      if (status.ok() && broken != planted)
        judged.findings.push_back(formatted("contents of {}: {}", types, planted ? "nobody noticed NaN" : "called broken"));
    }
  return judged;
}

}  // namespace quire::amd
