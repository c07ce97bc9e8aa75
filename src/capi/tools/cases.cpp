// SPDX-License-Identifier: Apache-2.0
// C ABI: batches that own their memory.
#include "capi/convert.h"
#include "capi/guard.h"
#include "capi/handles.h"
#include "quire/problem.hpp"
#include "quire/tools/capture.hpp"

struct quire_case {
  quire::Case content;
};

using quire::Status;
using quire::capi::guarded;
using quire::capi::hand_out;
using quire::capi::require;

extern "C" {

quire_code quire_case_from_problem_line(const char* line, quire_case** out) {
  return guarded({{out, "out"}}, [&]() -> Status {
    *out = nullptr;
    if (Status s = require({{line, "line"}}); !s.ok()) return s;
    auto parsed = quire::parse_problem_line(line);
    if (!parsed.ok()) return parsed.status();
    return hand_out(quire::make_case(parsed.value()), out);
  });
}

quire_code quire_case_read(const char* path, quire_case** out) {
  return guarded({{out, "out"}}, [&]() -> Status {
    *out = nullptr;
    if (Status s = require({{path, "path"}}); !s.ok()) return s;
    return hand_out(quire::read_capture(path), out);
  });
}

quire_code quire_case_write(const quire_case* handle, const char* path) {
  return guarded({{handle, "handle"}, {path, "path"}}, [&]() -> Status { return quire::write_capture(path, handle->content); });
}

quire_code quire_case_views(const quire_case* handle, quire_batch* batch, quire_cache* cache, quire_options* options) {
  return guarded({{handle, "handle"}}, [&]() -> Status {
    const quire::Case& c = handle->content;
    if (batch != nullptr)
      if (Status s = quire::capi::write_batch(c.batch, batch); !s.ok()) return s;
    if (cache != nullptr)
      if (Status s = quire::capi::write_cache(c.cache, cache); !s.ok()) return s;
    if (options != nullptr)
      if (Status s = quire::capi::write_options(c.options, options); !s.ok()) return s;
    return {};
  });
}

quire_code quire_case_observed(const quire_case* handle, quire_tensor* output, quire_tensor* lse) {
  return guarded({{handle, "handle"}}, [&]() -> Status {
    if (output != nullptr) *output = quire::capi::to_c(handle->content.observed);
    if (lse != nullptr) *lse = quire::capi::to_c(handle->content.observed_lse);
    return {};
  });
}

void quire_case_free(quire_case* handle) { delete handle; }

}  // extern "C"
