// SPDX-License-Identifier: Apache-2.0
// See memory.h.
#include "bench/memory.h"
#include "cases/device_case.h"
#include "semantics/ceil_div.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include <sys/mman.h>

namespace quire::bench_detail {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::int64_t kInCache = std::int64_t{16} << 20;  // bytes; larger cases are timed on cold copies
constexpr std::int64_t kShare = 2;                         // copies take at most this fraction of the memory that is left

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

/// Members of K and of V that may have an entry for each token.
struct Side {
  Tensor KVCache::*k, KVCache::*v;
};
constexpr Side kSides[] = {
    {&KVCache::k, &KVCache::v}, {&KVCache::k_scale, &KVCache::v_scale}, {&KVCache::k_block_scale, &KVCache::v_block_scale}};

bool has_entries_of_tokens(const Tensor& t) { return t.present() && t.rank >= 3; }

/// V's part of a pair lies in K's: rows of MLA, and their scales.
bool is_view(const KVCache& cache, const Side& side) { return cases::is_within(cache.*side.v, cache.*side.k); }

/// The tensors that a copy of the cache has of its own.
std::vector<Tensor> tensors_of_tokens(const KVCache& cache) {
  std::vector<Tensor> tensors;
  for (const Side& side : kSides) {
    if (has_entries_of_tokens(cache.*side.k)) tensors.push_back(cache.*side.k);
    if (has_entries_of_tokens(cache.*side.v) && !is_view(cache, side)) tensors.push_back(cache.*side.v);
  }
  return tensors;
}

/// Copies what `side` has for each token into `copy`; false without memory.
bool copy_side(const KVCache& cache, const Side& side, KVCache& copy, std::vector<Memory>& memory) {
  const auto copy_of = [&](const Tensor& t) { return has_entries_of_tokens(t) ? copied(t, memory) : t; };
  copy.*side.k = copy_of(cache.*side.k);
  if ((cache.*side.k).present() && !(copy.*side.k).present()) return false;
  copy.*side.v = is_view(cache, side) ? cases::moved_with(cache.*side.v, cache.*side.k, copy.*side.k) : copy_of(cache.*side.v);
  return !(cache.*side.v).present() || (copy.*side.v).present();
}

}  // namespace

Memory::Memory(std::int64_t bytes) : bytes_(bytes) {
  mapped_ = (static_cast<std::size_t>(bytes) + 2 * kHugePage - 1) / kHugePage * kHugePage;
  void* mapping = ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return;
  mapping_ = mapping;
  std::size_t room = mapped_;
  data_ = static_cast<std::byte*>(std::align(kHugePage, static_cast<std::size_t>(bytes), mapping, room));
#if defined(MADV_HUGEPAGE)
  (void)::madvise(data_, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);  // a refusal costs speed, nothing else
#endif
}

Memory::~Memory() {
  if (mapping_ != nullptr) ::munmap(mapping_, mapped_);
}

Memory::Memory(Memory&& other) noexcept { *this = std::move(other); }

Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(mapping_, other.mapping_);
  std::swap(mapped_, other.mapped_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

std::int64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  std::int64_t kib = 0;
  for (std::string rest; file >> key >> kib; std::getline(file, rest))
    if (key == "MemAvailable:") return kib << 10;
  return std::int64_t{1} << 30;
}

Rotation::Rotation(const KVCache& cache, std::int64_t copies) {
  const std::vector<Tensor> tensors = tensors_of_tokens(cache);
  if (!std::all_of(tensors.begin(), tensors.end(), forward)) {  // a cache with negative strides has no first byte to copy from
    caches_.push_back(cache);
    return;
  }
  std::int64_t each = 0;
  for (const Tensor& t : tensors) each += span_bytes(t);
  const std::int64_t room = each > 0 ? available_memory() / kShare / each : copies;
  for (std::int64_t i = 0; i < std::max<std::int64_t>(1, std::min(copies, room)); ++i) {
    KVCache copy = cache;
    for (const Side& side : kSides)
      if (!copy_side(cache, side, copy, memory_)) return;
    caches_.push_back(copy);
  }
}

std::int64_t copies_for(std::int64_t visible_bytes, std::int64_t l3_bytes, std::int64_t cold) {
  const std::int64_t in_cache = l3_bytes > 0 ? std::min(kInCache, l3_bytes / 2) : kInCache;
  if (visible_bytes <= in_cache) return 1;
  return std::max<std::int64_t>(2, semantics::ceil_div(cold, visible_bytes));
}

}  // namespace quire::bench_detail
