// SPDX-License-Identifier: Apache-2.0
// The batches that a cascade is made of.
#pragma once

#include <cstddef>
#include <vector>

#include "quire/cascade.hpp"

namespace quire::cascade {

/// A block table in host memory, row by row, as it was found sound.
struct HostTable {
  std::vector<std::int32_t> pages;
  std::int64_t columns = 0;
};

/// Levels without plans: one for each level of runs, and own keys.
std::vector<CascadeLevel> make_levels(const Problem& problem, const SharedPrefixes& shared, const HostTable& table);

/// Bytes of the index tensors of a level, each of which begins at a multiple of kIndexAlignment.
inline constexpr std::size_t kIndexAlignment = 64;
std::size_t index_bytes(const CascadeLevel& level) noexcept;
/// Writes them to `to`, in host memory.
void copy_index(const CascadeLevel& level, std::byte* to) noexcept;

/// Place of the index tensors of a level: its own vectors, or index_bytes() at an address on a device.
struct IndexPlace {
  const std::byte* base = nullptr;  ///< null = the vectors
  Memory memory = Memory::cpu;
};
/// The level as a batch: rows of `batch`, results into `out` and `lse`.
Batch batch_of(const CascadeLevel& level, const Batch& batch, const IndexPlace& place, const Tensor& out, const Tensor& lse);
/// Options of the level.
Options options_of(const CascadeLevel& level, const Options& options);

/// Rows [0, rows) of a tensor whose first axis are tokens; an absent tensor stays absent.
Tensor rows_of(Tensor t, std::int64_t rows) noexcept;

}  // namespace quire::cascade
