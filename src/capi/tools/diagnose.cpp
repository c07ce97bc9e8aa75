// SPDX-License-Identifier: Apache-2.0
// C ABI: judge an output against the fp64 reference.
#include "quire/tools/diagnose.hpp"

#include "capi/convert.h"
#include "capi/guard.h"

extern "C" quire_code quire_compare(const quire_batch* batch, const quire_cache* cache, const quire_options* options,
                                    quire_comparison* out, char* buffer, size_t capacity, size_t* length) {
  return quire::capi::guarded({{out, "out"}}, [&]() -> quire::Status {
    *out = {};
    auto inputs = quire::capi::read_inputs(batch, cache, options);
    if (!inputs.ok()) return inputs.status();
    auto expected = quire::reference(inputs->batch, inputs->cache, inputs->options);
    if (!expected.ok()) return expected.status();
    const quire::Comparison verdict = quire::compare(inputs->batch.output, inputs->batch.lse, expected.value());
    if (quire::Status s = quire::capi::copy_text(verdict.text, buffer, capacity, length); !s.ok()) return s;
    *out = {.num_elements = verdict.num_elements, .num_mismatches = verdict.num_mismatches, .worst_ratio = verdict.worst_ratio};
    return {};
  });
}
