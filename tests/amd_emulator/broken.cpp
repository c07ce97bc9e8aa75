// SPDX-License-Identifier: Apache-2.0
// See move.h: batches that break a rule.
#include "amd_emulator/move.h"
#include "kernels/broken_batches.h"
#include "text/formatted.h"
#include "verify/guarded.h"

namespace quire::amd {

Judged judge_broken(const std::string& device, const AttendKernel& kernel, LaunchKernel launch, std::uint64_t seed) {
  Judged judged;
  for (const test::Mutation& mutation : test::mutations()) {
    Case c = test::without_slots(test::kLineToBreak);
    // The plan is made for lengths that hold: only the device can notice what is in its memory.
    const Result<Plan> plan = plan_for(device, kernel, c, /*batch_invariant=*/false);
    mutation.apply(c);
    verify_detail::Guarded output(c.batch.output, verify_detail::Spread::contiguous);
    c.batch.output = output.view;
    ++judged.cases;
    const auto finding = [&](const std::string& text) { judged.findings.push_back(mutation.rule + " broken: " + text); };
    if (!plan.ok()) {
      finding(plan.status().message());
      continue;
    }
    const Attended attended = attend_once(plan.value(), kernel, launch, seed++, c);
    if (!attended.launched.ok()) finding(attended.launched.message());
    if (!attended.broken) finding("nobody noticed");
    if (output.take() != verify_detail::fill_pattern(c.batch.output.dtype, c.batch.output.num_elements()) ||
        output.damaged() != 0)
      finding("something was written");
  }
  return judged;
}

}  // namespace quire::amd
