// SPDX-License-Identifier: Apache-2.0
// The law of outputs with one wrong element: diagnose() finds the element, and reduce_case() makes a clean case of pages of the
// cache. The other laws stand apart, because this one needs more of the library and more time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>

#include "batch_laws.h"
#include "quire/tools/capture.hpp"
#include "quire/tools/diagnose.hpp"

namespace quire::fuzz {

/// Every page of `part` holds the bytes of one of `whole`.
inline bool pages_come_from(const Tensor& part, const Tensor& whole) {
  const auto bytes =
      static_cast<std::size_t>(part.num_elements() / std::max<std::int64_t>(part.shape[0], 1) * itemsize(part.dtype));
  for (std::int64_t page = 0; page < part.shape[0]; ++page) {
    const auto* own = static_cast<const std::byte*>(part.data) + static_cast<std::size_t>(page) * bytes;
    bool known = false;
    for (std::int64_t other = 0; other < whole.shape[0] && !known; ++other)
      known = std::memcmp(own, static_cast<const std::byte*>(whole.data) + static_cast<std::size_t>(other) * bytes, bytes) == 0;
    if (!known) return false;
  }
  return true;
}

/// A broken law is text, none is ""; `reduced` counts how often all of it was asked.
inline std::string broken_reduce_law(std::span<const std::uint8_t> data, std::int64_t& reduced_cases) {
  Tally tally;
  FuzzBatch f(data);
  if (!f.tame_values || !check(f.batch, f.cache, f.options, Depth::contents).ok() || f.batch.query.num_elements() == 0) return {};
  if (std::string text = attend_law(f, /*contents_clean=*/false, tally); !text.empty()) return text;
  Case c;
  c.batch = f.batch;
  c.cache = f.cache;
  c.options = f.options;
  c.observed = f.batch.output;
  semantics::store(c.observed.data, c.observed.dtype, 0, 1e4f);
  const Result<Diagnosis> d = diagnose(c, {.full = false, .seconds = 0.01, .progress = {}});
  if (!d.ok()) return "clean, but diagnose: " + d.status().message();
  if (d->verdict == DiagnosisVerdict::right) return "an element of 10000 is called right";
  const Result<Case> reduced = reduce_case(c, d.value());
  if (!reduced.ok()) return "clean, but reduce_case: " + reduced.status().message();
  const Findings findings = check(reduced->batch, reduced->cache, reduced->options, Depth::contents);
  if (!findings.ok()) return "the reduced case is broken: " + findings.items.front().message;
  ++reduced_cases;
  if (!f.cache.k.is_contiguous() || !f.cache.v.is_contiguous()) return {};
  return pages_come_from(reduced->cache.k, c.cache.k) && pages_come_from(reduced->cache.v, c.cache.v)
             ? ""
             : "the reduced case holds bytes that are not of the cache";
}

}  // namespace quire::fuzz
