// SPDX-License-Identifier: Apache-2.0
// A kernel is a value: one KernelRow holds all that planning knows of a kernel. Each row is defined in a file of
// src/plan/kernels/; src/plan/kernels.inc puts the rows in order of preference.
//
// Launches are not here: a backend names the row that it launches (KernelEntry of src/backend/cpu, cuda and hip).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plan/work.h"
#include "quire/plan.hpp"
#include "schedule/shares.h"

namespace quire::plan_detail {

/// Properties of a CPU kernel.
struct CpuTraits {
  std::int64_t lanes;        ///< f32 values of the widest vector; rows of scratch are multiples of it
  std::int64_t direct_rows;  ///< items of up to this many score rows take the path for few rows, whose sums have another order
  std::int64_t (*scratch_bytes)(const Plan& plan);  ///< scratch memory of one thread
};

/// Code of a GPU kernel that serves the lists of one role.
struct Body {
  Role role;
  std::string_view name;  ///< name in explain()
  /// Rounding of shares, where blocks find equal shares of the work themselves (Stream-K) and no list is written. Shares of 0
  /// tiles: blocks draw the items of a list.
  schedule::Rounding<std::int32_t> shares{.least = 0, .whole = 0};
  /// Rounding of shares of 8-bit caches and of tiles with several heads; null where `shares` holds for them, too.
  const schedule::Rounding<std::int32_t>* small_row_shares = nullptr;
  std::int64_t blocks_per_unit = 1;     ///< blocks that work on an item together
  std::int64_t matrix_rows = 1;         ///< score rows that the matrix units are given for a tile are a multiple of it
  bool rounds_weights = false;          ///< softmax weights, to 16 bits before they meet V (numerics.md, "Rounded weights")
  bool f16_weights_over_codes = false;  ///< weights over fp8 caches are f16; otherwise they have the query's type
  bool deals_itself() const { return shares.least > 0; }
};

/// Properties of a GPU kernel.
struct GpuTraits {
  /// Lists of a plan whose problem, bounds and settings are set, with their capacities.
  std::vector<DeviceList> (*lists)(const Plan& plan);
  /// The list that stands in where the kernel cannot read a call's tensors: another kernel or role, in the room of `list`. Null:
  /// the kernel reads all tensors.
  DeviceList (*instead)(const Plan& plan, const DeviceList& list) = nullptr;
  /// Why the decode rows of a plan are served in one of the kernel's ways and not in another, in words; empty for a plan that has
  /// no choice. Null: the kernel has one way.
  std::string (*decode_reason)(const Plan& plan) = nullptr;
  std::span<const Body> bodies;
  /// SMs for the first plan's call, if it should be served at the same time as the second plan's, which has the rest; 0 if not.
  /// Null: the kernel serves one call at a time.
  std::int64_t (*units_beside)(const Plan& longer, const Plan& shorter) = nullptr;
};

inline constexpr std::string_view kFirstInTable = "its row comes first in the table";

struct KernelRow {
  Kernel info;
  /// Returns a reason for each condition of this row that the problem breaks (refusals_of() adds device conditions).
  std::vector<std::string> (*refuses)(const Problem& problem, const Device& device);
  std::string_view why_first = kFirstInTable;  ///< advantage over later rows
  /// Returns why a device that could run this row gets the next row, unless the row is asked for by name; empty if it does not.
  std::string (*slower)(const Device& device) = [](const Device&) { return std::string(); };
  const CpuTraits* cpu = nullptr;  ///< properties of a CPU kernel; null otherwise
  const GpuTraits* gpu = nullptr;  ///< properties of a GPU kernel; null otherwise
};

namespace rows {
// A row has the kernel's name, which users write.
#define QUIRE_KERNEL(name) extern const KernelRow name;  // NOLINT(readability-identifier-naming)
#include "plan/kernels.inc"
#undef QUIRE_KERNEL
}  // namespace rows

/// src/plan/kernels.inc, in order of preference.
std::span<const KernelRow* const> kernel_rows() noexcept;

/// The code that serves a list of a plan.
inline const Body& body_of(const DeviceList& list) {
  const std::span<const Body> bodies = list.kernel.row().gpu->bodies;
  for (const Body& body : bodies)
    if (body.role == list.role) return body;
  return bodies.front();
}

inline std::vector<std::string> refuses_nothing(const Problem&, const Device&) { return {}; }

}  // namespace quire::plan_detail
