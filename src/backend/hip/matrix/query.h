// SPDX-License-Identifier: Apache-2.0
// Query rows of a wave as operands of the first product; runs are explained in mfma.h.
#pragma once

#include "backend/hip/matrix/lane_rows.h"
#include "backend/hip/matrix/whole_rows.h"

namespace quire::hip::matrix {

/// Kept in registers: each lane has its parts of its row.
template <class Gpu, int kDim>
struct QueryInRegisters {
  typename Gpu::Run runs[kDim / Gpu::kRunDims];
  QUIRE_DEVICE const typename Gpu::Run& run(int r) const { return runs[r]; }
};

/// Kept in shared memory, rows kPitch apart.
template <class Gpu, int kDim>
struct QueryInShared {
  const std::uint16_t* row;  ///< the lane's, from where its runs begin
  QUIRE_DEVICE typename Gpu::Run run(int r) const { return *reinterpret_cast<const typename Gpu::Run*>(row + r * Gpu::kRunDims); }
};

/// Sixteen rows of the wave into shared memory, by all its lanes; element by element, as it is done once an item.
template <class Gpu, int kDim>
QUIRE_DEVICE void stage_query(const gpu::AttendArgs& a, const LaneRow& row, std::uint16_t* mine) {
  const semantics::KvStrides& s = a.query.strides;
  const auto* from = static_cast<const std::uint16_t*>(a.query.data) + (row.exists ? s.row(0, row.head, row.token) : 0);
  QUIRE_NO_UNROLL
  for (int d = lane_group<Gpu>(); d < kDim; d += Gpu::kWave / kBlockRows)
    mine[d] = row.exists ? from[d * s.dim] : std::uint16_t{0};
}

/// Rows pass through `memory`, which is the wave's own until the next barrier, or stay there.
template <class Gpu, int kDim>
QUIRE_DEVICE auto load_query(const gpu::AttendArgs& a, const LaneRow& row, std::uint16_t* memory) {
  std::uint16_t* mine = memory + lane_row() * kPitch<kDim>;
  stage_query<Gpu, kDim>(a, row, mine);
  gpu::wave_barrier();  // the rows are visible
  const QueryInShared<Gpu, kDim> shared{mine + Gpu::run_begin(lane_group<Gpu>())};
  if constexpr (kQueryInShared<Gpu, kDim>) {
    return shared;
  } else {
    QueryInRegisters<Gpu, kDim> query;
    QUIRE_UNROLL
    for (int r = 0; r < kDim / Gpu::kRunDims; ++r) query.runs[r] = shared.run(r);
    return query;
  }
}

}  // namespace quire::hip::matrix
