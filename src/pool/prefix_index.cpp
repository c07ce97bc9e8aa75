// SPDX-License-Identifier: Apache-2.0
// Hash table of prefixes behind PagePool's sharing; see prefix_index.h for the guarantee.
#include "pool/prefix_index.h"

#include <algorithm>

namespace quire {

namespace {

// Finaliser of splitmix64 (Steele, Lea, Flood 2014): every input bit reaches every output bit.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

}  // namespace

std::uint64_t hash_page(std::int64_t parent, std::span<const std::int32_t> tokens) {
  std::uint64_t h = mix(static_cast<std::uint64_t>(parent));
  for (const std::int32_t token : tokens) h = mix(h ^ static_cast<std::uint32_t>(token));
  return h;
}

std::optional<PrefixIndex::Hit> PrefixIndex::find(std::int64_t parent, std::span<const std::int32_t> tokens) const {
  const auto [first, last] = by_hash_.equal_range(hash_(parent, tokens));
  for (auto it = first; it != last; ++it) {
    const Entry& entry = entries_.at(it->second);
    if (entry.parent == parent && std::equal(tokens.begin(), tokens.end(), entry.tokens.begin(), entry.tokens.end())) {
      return Hit{it->second, entry.page};
    }
  }
  return std::nullopt;
}

std::int64_t PrefixIndex::insert(std::int64_t parent, std::span<const std::int32_t> tokens, std::int32_t page) {
  const std::int64_t node = next_node_++;
  const std::uint64_t hash = hash_(parent, tokens);
  entries_.emplace(node, Entry{hash, parent, page, {tokens.begin(), tokens.end()}});
  by_hash_.emplace(hash, node);
  return node;
}

void PrefixIndex::erase(std::int64_t node) {
  const auto entry = entries_.find(node);
  if (entry == entries_.end()) return;
  const auto [first, last] = by_hash_.equal_range(entry->second.hash);
  by_hash_.erase(std::find_if(first, last, [node](const auto& item) { return item.second == node; }));
  entries_.erase(entry);
}

}  // namespace quire
