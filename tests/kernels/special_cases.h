// SPDX-License-Identifier: Apache-2.0
// Hazards whose data a problem line cannot describe: scores of -inf, every fp8 code, stale table entries, offsets beyond 32 bits.
#pragma once

#include <sys/mman.h>

#include <cmath>
#include <numeric>
#include <random>

#include "kernels/judge.h"
#include "semantics/layout.h"
#include "semantics/page_walk.h"
#include "verify/matrix.h"
#include "verify/prepare.h"

namespace quire::test {

/// All elements of a contiguous tensor that are not poison.
template <typename Visit>
void for_each_value(const Tensor& t, Visit&& visit) {
  for (std::int64_t i = 0; t.present() && i < t.num_elements(); ++i)
    if (!std::isnan(semantics::load(t.data, t.dtype, i))) visit(i);
}

/// NoVisibleKey: queries are e_0, and K_0 = -inf in every visible key of request 0, so all scores of its rows are -inf.
inline Case only_minus_infinite_scores(Case c) {
  const std::int64_t dim = c.batch.query.shape[2];
  for_each_value(c.batch.query, [&](std::int64_t i) {
    semantics::store(c.batch.query.data, c.batch.query.dtype, i, i % dim == 0 ? 1.0f : 0.0f);
  });
  const semantics::KvStrides k = semantics::k_strides(c.cache);
  const std::int64_t seq_len = semantics::index_view(c.batch.seq_lens)[0];
  semantics::for_each_page_run(semantics::index_row(c.batch.block_table, 0), page_size(c.cache), 0, seq_len,
                               [&](std::int64_t page, std::int64_t offset, std::int64_t count, std::int64_t) {
                                 for (std::int64_t j = 0; j < count; ++j)
                                   for (std::int64_t h = 0; h < num_kv_heads(c.cache); ++h)
                                     semantics::store(c.cache.k.data, c.cache.k.dtype, k.row(page, h, offset + j), -INFINITY);
                               });
  return c;
}

/// Fp8Extremes: every finite code occurs, subnormals, both zeros and the largest values included; k_scale brings scores to
/// a few tens.
inline Case every_fp8_code(Case c) {
  std::vector<std::uint8_t> finite;
  float largest = 0;
  std::vector<std::uint8_t> all(256);
  std::iota(all.begin(), all.end(), std::uint8_t{0});
  for (std::int64_t code = 0; code < 256; ++code) {
    const float value = semantics::load(all.data(), c.cache.k.dtype, code);
    if (!std::isfinite(value)) continue;
    finite.push_back(all[static_cast<std::size_t>(code)]);
    largest = std::max(largest, value);
  }
  std::mt19937 random(5);
  for (const Tensor* t : {&c.cache.k, &c.cache.v})
    for_each_value(*t, [&](std::int64_t i) { static_cast<std::uint8_t*>(t->data)[i] = finite[random() % finite.size()]; });
  for (const Tensor* scale : {&c.cache.k_scale, &c.cache.v_scale})
    for (std::int64_t i = 0; scale->present() && i < scale->num_elements(); ++i)
      static_cast<float*>(scale->data)[i] = (scale == &c.cache.k_scale ? 8.0f : 3.0f) / largest * static_cast<float>(i + 1);
  return c;
}

/// StalePagesLeftOfWindow: the lines of the matrix, and what is done to their cases.
inline std::vector<ProblemLine> stale_page_lines() {
  std::vector<ProblemLine> lines;
  for (const conformance::Entry& entry : conformance::hazard_matrix(/*quick=*/true))
    if (entry.special == conformance::Special::stale_pages) lines.push_back(entry.line);
  return lines;
}
inline Case with_stale_pages(Case c) {
  conformance::apply(conformance::Special::stale_pages, c);
  return c;
}

/// A sparse mapping: address space without memory behind it until a page is touched.
class SparseBytes {
 public:
  explicit SparseBytes(std::size_t size) : size_(size) {
    data_ = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) data_ = nullptr;
  }
  ~SparseBytes() {
    if (data_ != nullptr) ::munmap(data_, size_);
  }
  SparseBytes(const SparseBytes&) = delete;
  SparseBytes& operator=(const SparseBytes&) = delete;
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

/// HugeOffsets: the pages of a made case, moved to ids so high that their element offsets need more than 31 bits (and, for
/// the highest, more than 32). Where an offset wrapped to 32 bits leads, memory holds zeros.
class HugeCase {
 public:
  explicit HugeCase(Case c) : c_(std::move(c)), k_(bytes(c_.cache.k)), v_(bytes(c_.cache.v)) {
    if (!ok()) return;
    const std::int64_t old_pages = c_.cache.k.shape[0], page_elements = c_.cache.k.stride[0];
    const std::int64_t pages = kElements / page_elements;
    move_pages(c_.cache.k, k_.data(), pages);
    move_pages(c_.cache.v, v_.data(), pages);
    const Tensor& table = c_.batch.block_table;
    for (std::int64_t i = 0; i < table.num_elements(); ++i) {
      const std::int64_t page = semantics::load_index(table.data, table.dtype, i);
      if (page >= old_pages) continue;
      if (table.dtype == DType::i64) {
        static_cast<std::int64_t*>(table.data)[i] = new_id(page, pages);
      } else {
        static_cast<std::int32_t*>(table.data)[i] = static_cast<std::int32_t>(new_id(page, pages));
      }
    }
    c_.batch.slot_mapping = {};
  }
  bool ok() const { return k_.data() != nullptr && v_.data() != nullptr; }
  const Case& view() const { return c_; }

 private:
  static constexpr std::int64_t kElements = (std::int64_t{1} << 32) + (std::int64_t{1} << 28);
  static std::size_t bytes(const Tensor& t) { return static_cast<std::size_t>(kElements * itemsize(t.dtype)); }

  /// Alternately just below the end (> 2^32 elements) and in the upper half of 2^31 .. 2^32.
  static std::int64_t new_id(std::int64_t page, std::int64_t pages) {
    return page % 2 == 0 ? pages - 1 - page : pages * 3 / 4 - page;
  }

  static void move_pages(Tensor& t, void* to, std::int64_t pages) {
    const std::int64_t page_bytes = t.stride[0] * itemsize(t.dtype);
    for (std::int64_t page = 0; page < t.shape[0]; ++page)
      std::memcpy(static_cast<char*>(to) + new_id(page, pages) * page_bytes, static_cast<char*>(t.data) + page * page_bytes,
                  static_cast<std::size_t>(page_bytes));
    t.data = to;
    t.shape[0] = pages;
  }

  Case c_;
  SparseBytes k_, v_;
};

/// judge() without the finite-garbage pass, which would touch every page of a sparse cache.
inline std::vector<std::string> judge_values(const Case& c, const Attend& attend) {
  std::vector<std::string> findings;
  const Result<Reference> expected = reference(c.batch, c.cache, c.options);
  if (!expected.ok()) return {"reference refused: " + expected.status().message()};
  const Run first = run_guarded(c, attend, Spread::contiguous, 1, &expected.value(), findings);
  const Run threads = run_guarded(c, attend, Spread::gaps_between_heads, 8, nullptr, findings);
  if (!(first == threads)) findings.push_back("bits: cut for 13 threads differs from 1");
  return findings;
}

}  // namespace quire::test
