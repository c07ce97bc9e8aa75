// SPDX-License-Identifier: Apache-2.0
// Hazards whose data a problem line cannot describe: every fp8 code, scores of -inf, NaN in a visible key, offsets beyond 32
// bits, stale table entries.
//
// All hazards start from a made case, whose NaNs mark the memory that no kernel may read.
#include <sys/mman.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "semantics/index_tensor.h"
#include "verify/prepare.h"

namespace quire::verify_detail {
namespace {

constexpr std::int64_t kImpossiblePage = 2147480000;  // page id in range for int32, far outside any cache

/// Visits every element of a contiguous tensor that is not poison.
template <typename Visit>
void for_each_value(const Tensor& t, Visit&& visit) {
  for (std::int64_t i = 0; t.present() && i < t.num_elements(); ++i)
    if (!std::isnan(semantics::load(t.data, t.dtype, i))) visit(i);
}

/// Element offset of dim d of a cached key (page, offset in the page, head), from the documented shapes.
std::int64_t key_element(const KVCache& cache, std::int64_t page, std::int64_t offset, std::int64_t head, std::int64_t d) {
  const auto& s = cache.k.stride;
  if (cache.layout == CacheLayout::nhd) return page * s[0] + offset * s[1] + head * s[2] + d * s[3];
  if (cache.layout == CacheLayout::hnd) return page * s[0] + head * s[1] + offset * s[2] + d * s[3];
  const std::int64_t x = cache.k.shape[4];
  return page * s[0] + head * s[1] + d / x * s[2] + offset * s[3] + d % x * s[4];
}

/// Element offset of dim d of the key at a position of request 0.
std::int64_t first_request_key(const Case& c, std::int64_t position, std::int64_t head, std::int64_t d) {
  const std::int64_t size = page_size(c.cache);
  return key_element(c.cache, semantics::index_at(c.batch.block_table, 0, position / size), position % size, head, d);
}

/// Puts every finite code into K and V, subnormals, both zeros and the largest values included; k_scale brings scores to a few
/// tens.
void store_every_fp8_code(Case& c) {
  std::vector<std::uint8_t> all(256), finite;
  std::iota(all.begin(), all.end(), std::uint8_t{0});
  float largest = 0;
  for (const std::uint8_t code : all) {
    const float value = semantics::load(all.data(), c.cache.k.dtype, code);
    if (!std::isfinite(value)) continue;
    finite.push_back(code);
    largest = std::max(largest, value);
  }
  std::mt19937 random(5);
  for (const Tensor* t : {&c.cache.k, &c.cache.v})
    for_each_value(*t, [&](std::int64_t i) { static_cast<std::uint8_t*>(t->data)[i] = finite[random() % finite.size()]; });
  for (const Tensor* scale : {&c.cache.k_scale, &c.cache.v_scale})
    for (std::int64_t i = 0; scale->present() && i < scale->num_elements(); ++i)
      static_cast<float*>(scale->data)[i] = (scale == &c.cache.k_scale ? 8.0f : 3.0f) / largest * static_cast<float>(i % 3 + 1);
}

/// Queries are e_0, and K_0 = -inf in every key of request 0. Not for fp8, where stores saturate.
void make_scores_minus_infinite(Case& c) {
  const Tensor& q = c.batch.query;
  for_each_value(q, [&](std::int64_t i) { semantics::store(q.data, q.dtype, i, i % q.shape[2] == 0 ? 1.0f : 0.0f); });
  const std::int64_t seq_len = semantics::index_at(c.batch.seq_lens, 0);
  for (std::int64_t k = 0; k < seq_len; ++k)
    for (std::int64_t h = 0; h < num_kv_heads(c.cache); ++h)
      semantics::store(c.cache.k.data, c.cache.k.dtype, first_request_key(c, k, h, 0), -INFINITY);
}

/// Puts a NaN into the last KV head of a key in the middle of request 0; rows before that key do not see it.
void put_nan_into_a_key(Case& c) {
  const std::int64_t seq_len = semantics::index_at(c.batch.seq_lens, 0);
  semantics::store(c.cache.k.data, c.cache.k.dtype, first_request_key(c, seq_len / 2, num_kv_heads(c.cache) - 1, 0),
                   std::nanf(""));
}

/// The pages of a made case, moved to ids so high that their element offsets need more than 31 bits (and, for the highest, more
/// than 32). Where an offset that wrapped to 32 bits leads, memory holds zeros.
class HugePages {
 public:
  explicit HugePages(const Tensor& t) : pages_(kElements / t.stride[0]) {}
  std::int64_t count() const { return pages_; }

  /// Alternately just below the end (> 2^32 elements) and in the upper half of 2^31 .. 2^32.
  std::int64_t id(std::int64_t page) const { return page % 2 == 0 ? pages_ - 1 - page : pages_ * 3 / 4 - page; }

  /// Address space without memory behind it until a page is touched.
  bool move(Tensor& t, Case& owner) const {
    const auto size = static_cast<std::size_t>(kElements * itemsize(t.dtype));
    void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) return false;
    auto* bytes = static_cast<std::byte*>(data);
    owner.storage.emplace_back(bytes, [size](std::byte* p) { ::munmap(p, size); });
    const std::int64_t page_bytes = t.stride[0] * itemsize(t.dtype);
    for (std::int64_t page = 0; page < t.shape[0]; ++page)
      std::memcpy(bytes + id(page) * page_bytes, static_cast<const std::byte*>(t.data) + page * page_bytes,
                  static_cast<std::size_t>(page_bytes));
    t.data = data;
    t.shape[0] = pages_;
    return true;
  }

 private:
  static constexpr std::int64_t kElements = (std::int64_t{1} << 32) + (std::int64_t{1} << 28);
  std::int64_t pages_;
};

bool move_pages_beyond_32_bits(Case& c) {
  const HugePages pages(c.cache.k);
  const std::int64_t old_pages = num_pages(c.cache);
  if (!pages.move(c.cache.k, c) || !pages.move(c.cache.v, c)) return false;
  const Tensor& table = c.batch.block_table;
  for (std::int64_t i = 0; i < table.num_elements(); ++i) {
    const std::int64_t page = semantics::load_index(table.data, table.dtype, i);
    if (page >= old_pages) continue;  // past the end: stays impossible
    semantics::store_index(table, i, pages.id(page));
  }
  c.batch.slot_mapping = {};
  return true;
}

/// An engine with a sliding window frees the pages that no row sees any more, and leaves their ids in the table.
void make_hidden_pages_stale(Case& c) {
  const Problem p = problem_of(c.batch, c.cache, c.options);
  const Tensor& table = c.batch.block_table;
  for (std::size_t r = 0; r < p.reqs.size(); ++r) {
    const std::int64_t first_key = p.reqs[r].context_len + 1 - p.sliding_window.value_or(p.reqs[r].context_len + 1);
    for (std::int64_t j = 0; (j + 1) * p.page_size <= first_key; ++j)
      semantics::store_index(table, static_cast<std::int64_t>(r) * table.stride[0] + j * table.stride[1], kImpossiblePage);
  }
}

}  // namespace

bool apply(Special special, Case& c) {
  switch (special) {
    case Special::every_fp8_code: store_every_fp8_code(c); return true;
    case Special::minus_infinite_scores: make_scores_minus_infinite(c); return true;
    case Special::nan_in_a_key: put_nan_into_a_key(c); return true;
    case Special::huge_offsets: return move_pages_beyond_32_bits(c);
    case Special::stale_pages: make_hidden_pages_stale(c); return true;
    case Special::none: break;
  }
  return true;
}

}  // namespace quire::verify_detail
