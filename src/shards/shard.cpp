// SPDX-License-Identifier: Apache-2.0
// A rank's slots and tables, derived from the global ones by the shard's functions.
#include "batch/caught.h"
#include "quire/shards.hpp"
#include "semantics/ceil_div.h"
#include "text/formatted.h"

namespace quire {

Result<std::vector<std::int64_t>> local_slots(const ContextShard& shard, std::span<const std::int64_t> positions,
                                              std::span<const std::int64_t> requests, std::span<const std::int64_t> local_table,
                                              std::int64_t pages_per_request, std::int64_t page_size) try {
  if (const Findings findings = check_shard(shard); !findings.ok()) return findings.status();
  if (requests.size() != positions.size() || page_size < 1 || pages_per_request < 0)
    return Status(Code::invalid_argument,
                  formatted("local_slots: {} requests for {} positions, page_size {}, {} pages per request", requests.size(),
                            positions.size(), page_size, pages_per_request));
  std::vector<std::int64_t> slots(positions.size(), -1);
  for (std::size_t t = 0; t < positions.size(); ++t) {
    if (positions[t] < 0)
      return Status(Code::invalid_argument, formatted("local_slots: positions[{}] is {}, expected >= 0", t, positions[t]));
    if (!shard.holds(positions[t])) continue;
    const std::int64_t local = shard.local_index(positions[t]), column = local / page_size;
    const std::int64_t rows = static_cast<std::int64_t>(local_table.size()) / std::max<std::int64_t>(pages_per_request, 1);
    if (column >= pages_per_request || requests[t] < 0 || requests[t] >= rows)
      return Status(
          Code::invalid_argument,
          formatted("local_slots: position {} of request {} is in local page {}, but the table has {} pages per request",
                    positions[t], requests[t], column, pages_per_request));
    slots[t] = local_table[static_cast<std::size_t>(requests[t] * pages_per_request + column)] * page_size + local % page_size;
  }
  return slots;
} catch (...) {
  return batch::caught("local_slots");
}

Result<LocalTable> local_table(const ContextShard& shard, std::span<const std::int64_t> table, std::int64_t pages_per_request,
                               std::span<const std::int64_t> lengths, std::int64_t page_size) try {
  if (const Findings findings = check_shard(shard, page_size); !findings.ok()) return findings.status();
  if (static_cast<std::int64_t>(table.size()) != static_cast<std::int64_t>(lengths.size()) * pages_per_request)
    return Status(Code::invalid_argument, formatted("local_table: {} entries, expected {} requests of {} pages", table.size(),
                                                    lengths.size(), pages_per_request));
  const auto local_pages = [&](std::int64_t length) { return semantics::ceil_div(shard.local_length(length), page_size); };
  LocalTable local;
  for (std::size_t r = 0; r < lengths.size(); ++r) {
    const std::int64_t needed = local_pages(lengths[r]);
    const std::int64_t column = needed > 0 ? shard.global_position((needed - 1) * page_size) / page_size : -1;
    if (column >= pages_per_request)
      return Status(Code::invalid_argument, formatted("local_table: request {} of {} tokens needs page {}, the table has {}", r,
                                                      lengths[r], column, pages_per_request));
    local.pages_per_request = std::max(local.pages_per_request, needed);
  }
  local.pages.assign(lengths.size() * static_cast<std::size_t>(local.pages_per_request), -1);
  for (std::size_t r = 0; r < lengths.size(); ++r)
    for (std::int64_t j = 0; j < local_pages(lengths[r]); ++j) {
      const std::int64_t column = shard.global_position(j * page_size) / page_size;
      local.pages[r * static_cast<std::size_t>(local.pages_per_request) + static_cast<std::size_t>(j)] =
          table[r * static_cast<std::size_t>(pages_per_request) + static_cast<std::size_t>(column)];
    }
  return local;
} catch (...) {
  return batch::caught("local_table");
}

}  // namespace quire
