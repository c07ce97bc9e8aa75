// SPDX-License-Identifier: Apache-2.0
// Key lists as ordinary batches over views of the cache.
#pragma once

#include <cstdint>
#include <vector>

#include "quire/sparse.hpp"

namespace quire::sparse {

/// The rows of all KV heads, or of one, as a batch whose block table are their lists.
struct Part {
  Batch batch;
  KVCache cache;
  Options options;
};

/// Parts of a call that keeps the metadata rules, without reading a tensor. `lists` has num_keys and, if it is of rows,
/// row_starts; slots are evenly spaced.
std::vector<Part> parts_of(const Batch& batch, const KVCache& cache, const Options& options, const KeyLists& lists, bool causal);

/// Lists of a call in host memory that keeps all rules, as parts_of() takes them: counted, and with slots as pages of the view.
/// They live as long as this.
class HostLists {
 public:
  HostLists(const Batch& batch, const KVCache& cache, const KeyLists& lists);
  const KeyLists& lists() const { return made_; }

 private:
  void count(const Batch& batch, const KeyLists& lists);
  void copy_ids(const KVCache& cache, const KeyLists& lists, std::int64_t width);

  std::vector<std::int64_t> ids_, num_keys_;
  std::vector<std::int32_t> row_starts_;
  KeyLists made_;
};

}  // namespace quire::sparse
