// SPDX-License-Identifier: Apache-2.0
// Index from prefixes to pages. A node stands for one exact prefix of full pages: the chain (parent node, tokens of one page)
// down to the root. Hashing only finds candidates; a hit is granted after the parent and every token were compared, so that
// two prefixes with the same hash can never share a page. The index does not know reference counts.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace quire {

using PrefixHash = std::uint64_t (*)(std::int64_t parent, std::span<const std::int32_t> tokens);

/// Mixes the parent node and the tokens of one page; the default hash of PrefixIndex.
std::uint64_t hash_page(std::int64_t parent, std::span<const std::int32_t> tokens);

class PrefixIndex {
 public:
  static constexpr std::int64_t kRoot = 0;     ///< parent of first pages
  static constexpr std::int64_t kNoNode = -1;  ///< a page that cannot be found

  struct Hit {
    std::int64_t node = kNoNode;
    std::int32_t page = -1;
  };

  /// Tests pass a constant hash to show that equal hashes alone never match.
  explicit PrefixIndex(PrefixHash hash = hash_page) : hash_(hash) {}

  /// The page whose contents are exactly `tokens` after the prefix `parent`.
  std::optional<Hit> find(std::int64_t parent, std::span<const std::int32_t> tokens) const;
  /// Makes `page` findable under (parent, tokens), which must not be there yet. Returns its node; nodes are never reused.
  std::int64_t insert(std::int64_t parent, std::span<const std::int32_t> tokens, std::int32_t page);
  /// Nodes below an erased one stay, but can no longer be reached from the root.
  void erase(std::int64_t node);
  bool contains(std::int64_t node) const { return node == kRoot || entries_.count(node) != 0; }
  std::size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    std::uint64_t hash = 0;
    std::int64_t parent = kNoNode;
    std::int32_t page = -1;
    std::vector<std::int32_t> tokens;
  };
  PrefixHash hash_;
  std::int64_t next_node_ = kRoot + 1;
  std::unordered_map<std::int64_t, Entry> entries_;
  std::unordered_multimap<std::uint64_t, std::int64_t> by_hash_;
};

}  // namespace quire
