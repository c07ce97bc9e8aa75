// SPDX-License-Identifier: Apache-2.0
// The contents of a cache as rows: K or V of one token and KV head, found by request and position, or by slot.
#pragma once

#include <array>
#include <optional>
#include <unordered_map>
#include <vector>

#include "quire/tools/compare_caches.hpp"
#include "semantics/index_tensor.h"
#include "semantics/stored_row.h"

namespace quire::caches {

/// A row by its place in memory. A slot is page * page_size + offset; heads count from 0.
struct Row {
  bool is_k = true;
  std::int64_t slot = 0, head = 0;
  bool operator==(const Row&) const = default;
};
/// A row by its place in a request. Requests count from 0.
struct Place {
  bool is_k = true;
  std::int64_t request = 0, head = 0, position = 0;
};

class View {
 public:
  /// Errors: invalid_argument or contract_violation for what does not fit. Tensors must outlive the view.
  static Result<View> create(const CacheContents& contents, const char* name);

  const KVCache& cache() const noexcept { return contents_.cache; }
  std::int64_t requests() const noexcept { return static_cast<std::int64_t>(lengths_.size()); }
  std::int64_t heads() const noexcept { return static_cast<std::int64_t>(heads_.size()); }
  std::int64_t page_size() const noexcept { return quire::page_size(cache()); }
  std::int64_t slots() const noexcept { return num_pages(cache()) * page_size(); }
  std::int64_t length(std::int64_t request) const noexcept { return lengths_[static_cast<std::size_t>(request)]; }
  std::int64_t id(std::int64_t request) const noexcept { return ids_[static_cast<std::size_t>(request)]; }
  std::int64_t model_head(std::int64_t head) const noexcept { return heads_[static_cast<std::size_t>(head)]; }
  std::optional<std::int64_t> request_of(std::int64_t id) const;
  std::optional<std::int64_t> head_of(std::int64_t model_head) const;

  /// The page of a column of a request's table row; nullopt beyond the table, and for an id outside the cache.
  std::optional<std::int64_t> page(std::int64_t request, std::int64_t column) const noexcept;
  /// The row of a place, which may be beyond the request's length in its last page.
  std::optional<Row> row(const Place& place) const noexcept;
  /// A place that lists this row, one of `request` first; nullopt: no request lists its page.
  std::optional<Place> place(const Row& row, std::int64_t request) const;

  /// Whether one row stands for both K and V, as in fp8_ds_mla.
  bool is_one() const noexcept { return cache().k.dtype == DType::fp8_ds_mla; }
  /// Real values of a row.
  std::vector<double> values(const Row& row) const;
  /// The scale of a tensor or head; 1 where tokens have their own.
  float scale(bool is_k, std::int64_t head) const noexcept;

 private:
  explicit View(const CacheContents& contents) : contents_(contents) {}

  CacheContents contents_;
  std::vector<std::int64_t> lengths_, ids_, heads_;
  std::unordered_map<std::int64_t, std::vector<std::pair<std::int64_t, std::int64_t>>> listed_;  ///< page -> (request, column)
};

/// Finds rows by their digests. A row takes 16 bytes.
class Index {
 public:
  void add(std::uint64_t digest, const Row& row, const View& view);
  void sort();  ///< find() needs it first; a row that was added twice counts once
  /// The rows with this digest: at most `most`, and at least two if there are several.
  std::vector<Row> find(std::uint64_t digest, const View& view, std::size_t most = 4) const;

 private:
  std::vector<std::pair<std::uint64_t, std::int64_t>> rows_;  ///< digest, (slot * heads + head) * 2 + is_k
};

/// Digests of the rows of a cache, K and V, as they are stored.
class Digests {
 public:
  explicit Digests(const KVCache& k, const KVCache& v)
      : sides_{semantics::StoredRows(k, true), semantics::StoredRows(v, false)}, page_size_(quire::page_size(k)) {}
  std::uint64_t of(const Row& row) {
    const semantics::StoredRows& side = sides_[row.is_k ? 0 : 1];
    bytes_.resize(side.bytes());
    side.copy(row.slot / page_size_, row.head, row.slot % page_size_, bytes_.data());
    semantics::Digest digest;
    digest.add(bytes_.data(), bytes_.size());
    return digest.value();
  }

 private:
  std::array<semantics::StoredRows, 2> sides_;
  std::int64_t page_size_;
  std::vector<std::byte> bytes_;
};

/// A's rows rounded to B's types as append() rounds, in the slots in which A has them. Memory belongs to `owner`.
Result<KVCache> rounded(const View& a, const View& b, std::vector<std::vector<std::byte>>& owner);

}  // namespace quire::caches
