// SPDX-License-Identifier: Apache-2.0
// Fuzzes the capture reader: no input crashes, reads out of bounds or allocates beyond its own size; a case that comes out can be
// checked, and if its tables hold, every byte that it promises is there.
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "capture_from_bytes.h"
#include "quire/contract.hpp"
#include "quire/tools/capture.hpp"

namespace {

/// Touches every byte, so that AddressSanitizer proves that the tensor owns them.
void touch(const quire::Tensor& t) {
  const auto* bytes = static_cast<const volatile unsigned char*>(t.data);
  for (std::int64_t i = 0; i < t.num_elements() * quire::itemsize(t.dtype); ++i) (void)bytes[i];
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string file = quire::fuzz::capture_of(data, size);
  auto c = quire::parse_capture(std::as_bytes(std::span(file)));
  if (!c.ok()) {
    if (c.status().code() != quire::Code::parse_error || c.status().message().size() > 2000) std::abort();
    return 0;
  }
  quire::Case& it = c.value();
  for (const quire::Tensor* t : {&it.batch.query,
                                 &it.batch.output,
                                 &it.batch.query_start_loc,
                                 &it.batch.seq_lens,
                                 &it.batch.block_table,
                                 &it.batch.cached_lens,
                                 &it.batch.key,
                                 &it.batch.value,
                                 &it.batch.slot_mapping,
                                 &it.batch.lse,
                                 &it.batch.request_ids,
                                 &it.cache.k,
                                 &it.cache.v,
                                 &it.cache.k_scale,
                                 &it.cache.v_scale,
                                 &it.cache.k_block_scale,
                                 &it.cache.v_block_scale,
                                 &it.options.alibi_slopes,
                                 &it.options.sinks,
                                 &it.observed,
                                 &it.observed_lse})
    touch(*t);
  (void)quire::check(it.batch, it.cache, it.options, quire::Depth::contents);
  if (!quire::poison_case(it, quire::PoisonKind::finite_garbage).ok()) return 0;
  // Poisoning a sound batch leaves it sound: it changes only what no rule and no kernel reads.
  if (!quire::check(it.batch, it.cache, it.options, quire::Depth::tables).ok()) std::abort();
  return 0;
}
