// SPDX-License-Identifier: Apache-2.0
// See rotation.h.
#include "bench/rotation.h"

#include <algorithm>
#include <cstring>

namespace quire::benchmark {
namespace {

constexpr std::int64_t kMiBRotation = std::int64_t{1} << 20;
constexpr std::int64_t kInCache = 16 * kMiBRotation;
constexpr std::int64_t kShare = 2;  // copies take at most this fraction of the memory that is left

std::int64_t span_bytes(const Tensor& t) {
  std::int64_t last = 0;
  for (int i = 0; i < t.rank; ++i) last += (t.shape[static_cast<std::size_t>(i)] - 1) * t.stride[static_cast<std::size_t>(i)];
  return t.num_elements() == 0 ? 0 : (last + 1) * itemsize(t.dtype);
}

bool forward(const Tensor& t) {
  return std::all_of(t.stride.begin(), t.stride.begin() + std::max(0, t.rank), [](std::int64_t s) { return s >= 0; });
}

/// A view of the same shape and strides over a copy of the bytes; absent without memory.
Tensor copied(const Tensor& t, std::vector<Memory>& memory) {
  Memory copy(std::max<std::int64_t>(64, span_bytes(t)));
  if (copy.data() == nullptr) return {};
  std::memcpy(copy.data(), t.data, static_cast<std::size_t>(span_bytes(t)));
  Tensor view = t;
  view.data = copy.data();
  memory.push_back(std::move(copy));
  return view;
}

}  // namespace

Rotation::Rotation(const KVCache& cache, std::int64_t copies) {
  if (!forward(cache.k) || !forward(cache.v)) {  // no place to begin a copy at; used where it lies
    caches_.push_back(cache);
    return;
  }
  const std::int64_t each = span_bytes(cache.k) + span_bytes(cache.v);
  const std::int64_t room = each > 0 ? available_memory() / kShare / each : copies;
  for (std::int64_t i = 0; i < std::max<std::int64_t>(1, std::min(copies, room)); ++i) {
    KVCache copy = cache;
    copy.k = copied(cache.k, memory_);
    copy.v = copied(cache.v, memory_);
    if (!copy.k.present() || !copy.v.present()) return;
    caches_.push_back(copy);
  }
}

std::int64_t copies_for(std::int64_t visible_bytes, std::int64_t l3_bytes, std::int64_t cold) {
  const std::int64_t in_cache = l3_bytes > 0 ? std::min(kInCache, l3_bytes / 2) : kInCache;
  if (visible_bytes <= in_cache) return 1;
  return std::max<std::int64_t>(2, (cold + visible_bytes - 1) / visible_bytes);
}

}  // namespace quire::benchmark
