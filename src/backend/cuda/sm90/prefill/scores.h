// SPDX-License-Identifier: Apache-2.0
// Scores of a prefill tile: which keys a row sees, soft cap and ALiBi.
#pragma once

#include "backend/cuda/sm90/prefill/rows.h"
#include "backend/cuda/tile/logits.h"

namespace quire::cuda::sm90::prefill {

/// Facts of a job for the loop over tiles. Registers are scarce: other facts are looked up where they are needed.
struct Work {
  int first;                         ///< score row of the warpgroup
  int unmasked_begin, unmasked_end;  ///< tiles of the job, from the cache, whose every key is seen by all of its rows
  int row_end[2];                    ///< ends of the keys that this thread's two rows see
  float factor;                      ///< factor of dot products with cached keys, if they are scaled and nothing else

  /// Position of the thread's row `h`, the last key that it sees. (Positions instead of ends would cost two registers more.)
  __device__ int position(int h) const { return row_end[h] - 1; }
  __device__ bool is_unmasked(int n) const { return n >= unmasked_begin && n < unmasked_end; }
};

template <typename Memory>
struct Scoring {
  using Job = typename Memory::Job;
  static constexpr int kKeys = Memory::kKeys;

  const Block<Memory> block;

  __device__ Work work_of(const Job& job) const {
    const gpu::WorkSlice& slice = job.item.slice;
    const auto [first, end] = block.rows_of(slice);
    const int local = first - slice.row_begin;
    const semantics::KeyRange of_first = semantics::visible_range(block.position_of(job, local), block.a.window);
    const semantics::KeyRange of_last =
        semantics::visible_range(block.position_of(job, end - 1 - slice.row_begin), block.a.window);
    const int before =
        job.order.first_cached + (job.keys.cached_end - 1) / kKeys;  // tile n holds keys from (before - n) kKeys on
    const int seen_begin = max(slice.key_begin, static_cast<int>(of_last.begin));
    const int seen_end = min(job.keys.cached_end, static_cast<int>(of_first.end));
    Work w{first, 0, 0, {}, block.a.score.scale * tile::kLog2e * job.k_scale};
    w.unmasked_begin = max(before + 1 - seen_end / kKeys, job.order.first_cached);
    w.unmasked_end = before + 1 - (seen_begin + kKeys - 1) / kKeys;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = min(local + Lane::row_in_group() + 8 * h, slice.row_end - 1 - slice.row_begin);
      w.row_end[h] = semantics::visible_range<std::int32_t>(block.position_of(job, row), block.a.window).end;
    }
    return w;
  }

  /// k_scale, soft cap and ALiBi. `first`: position of the thread's first column; position(h): of its row `h`.
  template <int kCount, typename Position>
  __device__ void cap_and_slope(float (&s)[kCount], const Work& w, const tile::Item& item, int first, float k_scale,
                                Position&& position) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = w.first + Lane::row_in_group() + 8 * h;
      const float slope = block.a.alibi_slopes.at(item.kv_head * block.a.group + row % block.a.group, 0.0f);
#pragma unroll
      for (int i = 0; i < kCount / 2; ++i) {
        const auto distance = static_cast<float>(first + i / 2 * 8 + i % 2 - position(h));
        float& x = s[i / 2 * 4 + 2 * h + i % 2];
        x = tile::kLog2e * semantics::score<tile::ShortTanh>(x * k_scale, block.a.score, slope, distance);
      }
    }
  }

  /// A bit for each of this thread's columns 0, 1, 8, 9, 16, ... (counted from its first) that is below `end`.
  __device__ static std::uint32_t columns_below(int end) {
    const int at = min(max(end, 0), kKeys), count = at / 8 * 2 + min(at % 8, 2);
    return static_cast<std::uint32_t>((std::uint64_t{1} << count) - 1);
  }

  /// Dot products to logits in base 2 where that takes more than one product; -inf for keys that a row does not see.
  template <bool kPlain, int kCount>
  __device__ void finish_scores(float (&s)[kCount], const Work& w, const Job& job, const KeyTileSpan& span, float k_scale) const {
    const int first = span.first + Lane::column();
    if constexpr (!kPlain) cap_and_slope(s, w, job.item, first, k_scale, [&](int h) { return w.position(h); });
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const semantics::KeyRange seen = semantics::visible_range(w.position(h), block.a.window);
      const int begin = max(static_cast<int>(seen.begin), span.begin) - first, end = min(w.row_end[h], span.end) - first;
      const std::uint32_t hidden = ~columns_below(end) | columns_below(begin);
#pragma unroll
      for (int i = 0; i < kCount / 2; ++i)
        if (hidden >> i & 1) s[i / 2 * 4 + 2 * h + i % 2] = -INFINITY;
    }
  }

  /// End of the keys that the tile's rows [first, last] see.
  __device__ int seen_end(const Job& job, int /*first*/, int last) const {
    return semantics::visible_range<std::int32_t>(block.position_of(job, last), block.a.window).end;
  }

  /// True if the thread's row `h` sees the whole tile. An unmasked tile says so for all rows; here each row is asked, because a
  /// row must not depend on other rows.
  __device__ bool sees_all(const Work& w, const KeyTileSpan& span, int h) const {
    const semantics::KeyRange seen = semantics::visible_range(w.position(h), block.a.window);
    return seen.begin <= span.first && min(w.row_end[h], span.end) >= span.first + kKeys;
  }
};

}  // namespace quire::cuda::sm90::prefill
