// SPDX-License-Identifier: Apache-2.0
// See move.h: the look at contents.
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
  return judged;
}

}  // namespace quire::amd
