// SPDX-License-Identifier: Apache-2.0
// Decodes a page at the first read of one of its slots.
#include "faults/decoded_pages.h"

#include <new>
#include <utility>

#include "faults/model.h"

namespace quire::faults_detail {

DecodedPages::DecodedPages(const KVCache& cache)
    : cache_(cache),
      num_pages_(quire::num_pages(cache)),
      page_size_(quire::page_size(cache)),
      num_kv_heads_(quire::num_kv_heads(cache)),
      head_dim_(quire::head_dim(cache)),
      v_head_dim_(quire::v_head_dim(cache)),
      pages_(static_cast<float**>(std::calloc(static_cast<std::size_t>(2 * num_pages_ * num_kv_heads_) + 1, sizeof(float*)))) {
  if (pages_ == nullptr) throw std::bad_alloc();
}

const float* DecodedPages::slot(Side side, std::int64_t page, std::int64_t offset, std::int64_t kv_head) const {
  const bool inside =
      page >= 0 && page < num_pages_ && offset >= 0 && offset < page_size_ && kv_head >= 0 && kv_head < num_kv_heads_;
  if (!inside) return nullptr;
  const std::int64_t index = (static_cast<std::int64_t>(side) * num_pages_ + page) * num_kv_heads_ + kv_head;
  float*& entry = pages_[static_cast<std::size_t>(index)];
  const float* values = std::atomic_ref(entry).load(std::memory_order_acquire);
  if (values == nullptr) values = decode(side, page, kv_head, entry);
  return values == nullptr ? nullptr : values + offset * dims_of(side);
}

const float* DecodedPages::decode(Side side, std::int64_t page, std::int64_t kv_head, float*& entry) const {
  const std::int64_t elements = page_size_ * dims_of(side), size = elements * static_cast<std::int64_t>(sizeof(float));
  if (bytes_.fetch_add(size) + size > kMostBytes) {
    bytes_.fetch_sub(size);
    return nullptr;
  }
  const Tensor& t = side == Side::key ? cache_.k : cache_.v;
  const auto dims = static_cast<std::size_t>(dims_of(side));
  std::unique_ptr<float[]> values(new float[static_cast<std::size_t>(elements)]);
  std::vector<std::int64_t> at(dims);
  std::vector<double> row(dims);
  Place place;
  place.page = page;
  for (place.offset = 0; place.offset < page_size_; ++place.offset) {
    elements_as(cache_.layout, side, code_strides(t), cache_.k.shape[4], place, kv_head, at);
    decode_as(t.dtype, t.data, at, row.data());
    for (std::size_t d = 0; is_four_bit(t.dtype) && d < dims; ++d)
      row[d] *= block_scale(cache_, side, place, kv_head, static_cast<std::int64_t>(d) / block_size(t.dtype));
    for (std::size_t d = 0; d < dims; ++d) values[static_cast<std::size_t>(place.offset) * dims + d] = static_cast<float>(row[d]);
  }
  const std::lock_guard<std::mutex> lock(keeping_);
  if (entry != nullptr) {
    bytes_.fetch_sub(size);
    return entry;
  }
  kept_.push_back(std::move(values));
  std::atomic_ref(entry).store(kept_.back().get(), std::memory_order_release);
  return entry;
}

}  // namespace quire::faults_detail
