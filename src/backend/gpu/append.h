// append(): this step's K/V rows into their slots, converted to the cache's type. Every layout, type and stride, any number of
// heads and dims. The same bits as on the CPU: conversion is semantics/dtype.h, division is exact to the last bit.
#pragma once

#include "backend/gpu/runtime.h"

#include "backend/gpu/args.h"
#include "backend/gpu/launch_sizes.h"
#include "semantics/dtype.h"

namespace quire::gpu {

/// Sets outcome->broken if a slot is beyond the cache (Q-S01). Any number of blocks of kAppendThreads threads.
QUIRE_DEVICE void validate_slots(const AppendArgs& a) {
  bool broken = false;
  const std::int64_t step = static_cast<std::int64_t>(num_blocks()) * kAppendThreads;
  for (std::int64_t t = static_cast<std::int64_t>(block_index()) * kAppendThreads + thread_index(); t < a.num_tokens; t += step)
    broken |= a.slots[t] >= a.num_pages * a.page_size;
  if (broken) atomic_set(&a.outcome->broken, 1);
}

/// One row of one side into its slot, an element per thread.
QUIRE_DEVICE void append_element(const RowSource& from, const RowTarget& to, const PerHead& scale, std::int64_t token,
                                 std::int64_t slot, std::int64_t page_size, std::int64_t head, std::int64_t d) {
  const float value = from.load(token, head, d);
  const float divisor = scale.at(head, 1.0f);
  const std::int64_t at = to.strides.row(slot / page_size, head, slot % page_size) + element_of(to.strides, d);
  semantics::store(to.data, to.dtype, at, divisor == 1.0f ? value : value / divisor);
}

/// Any number of blocks of kAppendThreads threads, after validate_slots() if there is an outcome: writes nothing if `broken` is
/// set. A slot outside the cache is never written, whether anybody asked or not.
QUIRE_DEVICE void append(const AppendArgs& a) {
  if (a.outcome != nullptr && a.outcome->broken != 0) return;
  const std::int64_t num_slots = a.num_pages * a.page_size;
  const std::int64_t width = static_cast<std::int64_t>(a.num_kv_heads) * a.head_dim;
  for (std::int64_t token = block_index(); token < a.num_tokens; token += num_blocks()) {
    const std::int64_t slot = a.slots[token];
    if (slot < 0 || slot >= num_slots) continue;
    for (std::int64_t i = thread_index(); i < width; i += kAppendThreads) {
      append_element(a.key, a.cache_k, a.k_scale, token, slot, a.page_size, i / a.head_dim, i % a.head_dim);
      append_element(a.value, a.cache_v, a.v_scale, token, slot, a.page_size, i / a.head_dim, i % a.head_dim);
    }
  }
}

}  // namespace quire::gpu
