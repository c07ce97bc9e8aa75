// SPDX-License-Identifier: Apache-2.0
// K and V of the cache as numbers. A search for a cause computes the same rows under hundreds of models; most of them read the
// cache as it is, so each page is decoded once for all of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <vector>

#include "quire/cache.hpp"

namespace quire::faults_detail {

enum class Side : int { key = 0, value = 1 };
inline constexpr Side kSides[] = {Side::key, Side::value};

/// Thread-safe: two threads that ask for the same page first decode it both, and one result is kept.
class DecodedPages {
 public:
  explicit DecodedPages(const KVCache& cache);
  DecodedPages(const DecodedPages&) = delete;
  DecodedPages& operator=(const DecodedPages&) = delete;

  /// The stored values (without scale) of one slot, head_dim or v_head_dim of them, exact in f32: no cache type is wider. nullptr
  /// if page, offset or head lie outside of the cache, or if the decoded pages would take more than kMostBytes.
  const float* slot(Side side, std::int64_t page, std::int64_t offset, std::int64_t kv_head) const;

 private:
  /// 1 GiB. A search reads the pages of its exhibits only; a larger set is decoded again at each read, which is slower, not
  /// wrong.
  static constexpr std::int64_t kMostBytes = std::int64_t{1} << 30;

  const float* decode(Side side, std::int64_t page, std::int64_t kv_head, float*& entry) const;

  const KVCache& cache_;
  std::int64_t dims_of(Side side) const { return side == Side::key ? head_dim_ : v_head_dim_; }

  std::int64_t num_pages_ = 0, page_size_ = 0, num_kv_heads_ = 0, head_dim_ = 0, v_head_dim_ = 0;
  mutable std::atomic<std::int64_t> bytes_{0};
  struct Free {
    void operator()(float** entries) const { std::free(entries); }
  };
  std::unique_ptr<float*[], Free> pages_;  ///< [side][page][kv_head]; calloc() touches no memory of pages that nobody reads
  mutable std::mutex keeping_;
  mutable std::vector<std::unique_ptr<float[]>> kept_;  ///< memory that pages_ points at
};

}  // namespace quire::faults_detail
