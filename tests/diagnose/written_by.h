// SPDX-License-Identifier: Apache-2.0
// Cases whose observed output comes from a model: a profile's, or one that a test has changed.
#pragma once

#include "diagnose/diagnose_util.h"
#include "diagnose/find_profile.h"

namespace quire::test {

/// Makes a case with the output of a kernel with this profile, after a change of its model.
inline Case written_by(const std::string& line, const NumericsProfile& profile, void (*change)(faults_detail::Model&) = nullptr) {
  Case c = made(line);
  const faults_detail::Facts facts(c.batch, c.cache, c.options);
  faults_detail::Model model = diagnose_detail::emulated(facts, profile);
  if (change != nullptr) change(model);
  for (std::int64_t token = 0; token < facts.num_tokens; ++token)
    for (std::int64_t head = 0; head < facts.num_q_heads; ++head) {
      const faults_detail::RowHead at{token, head};
      const faults_detail::RowResult row = evaluate(model, std::span(&at, 1)).front();
      for (std::int64_t d = 0; d < facts.v_head_dim; ++d)
        semantics::store(c.batch.output.data, c.batch.output.dtype, (token * facts.num_q_heads + head) * facts.v_head_dim + d,
                         static_cast<float>(row.out[static_cast<std::size_t>(d)]));
    }
  observe_output(c);
  return c;
}

}  // namespace quire::test
