// SPDX-License-Identifier: Apache-2.0
// Stage: attention. derive_cached_lens() goes to where the lengths are.
#include "attention/dispatch.h"
#include "quire/attention.hpp"
#include "text/formatted.h"

namespace quire {

Status derive_cached_lens(const Tensor& query_start_loc, const Tensor& seq_lens, const Tensor& cached_lens, void* stream) {
  const gpu::Vendor* vendor = attention::vendor_of(seq_lens.memory);
  if (vendor == nullptr || vendor->enqueue_cached_lens == nullptr)
    return {Code::unsupported, formatted("derive_cached_lens: not offered for {} memory", name(seq_lens.memory))};
  return gpu::derive_cached_lens(*vendor, query_start_loc, seq_lens, cached_lens, stream);
}

}  // namespace quire
