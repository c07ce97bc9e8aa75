// SPDX-License-Identifier: Apache-2.0
// Stage: attention. append() goes to where the cache is, and tells the ledger of what was written. A ledger and the tags that it
// records come together.
#include "attention/dispatch.h"
#include "backend/cpu/entry.h"
#include "batch/caught.h"
#include "contract/values.h"
#include "quire/attention.hpp"
#include "text/formatted.h"

namespace quire {
namespace {

Status check_tags_given(const Tensor& slot_mapping, const AppendOptions& options) {
  const auto given = static_cast<std::int64_t>(options.tags.size());
  if (options.ledger == nullptr && given > 0)
    return {Code::invalid_argument, formatted("append: {} tags, but no ledger to record them in", given)};
  if (options.ledger != nullptr && slot_mapping.rank == 1 && given < slot_mapping.shape[0])
    return {Code::invalid_argument,
            formatted("append: a ledger needs one tag per token: {} tags for {} tokens", given, slot_mapping.shape[0])};
  return {};
}

}  // namespace

Status append(const KVCache& cache, const Tensor& key, const Tensor& value, const Tensor& slot_mapping,
              const AppendOptions& options) try {
  if (Status s = check_tags_given(slot_mapping, options); !s.ok()) return s;
  const gpu::Vendor* vendor = attention::vendor_of(cache.k.memory);
  Status written = vendor != nullptr ? gpu::append(*vendor, cache, key, value, slot_mapping, options)
                                     : cpu::append(cache, key, value, slot_mapping, options);
  if (!written.ok() || options.ledger == nullptr) return written;
  return contract::record_append(*options.ledger, cache, slot_mapping, options.tags);
} catch (...) {
  return batch::caught("append");
}

}  // namespace quire
