// SPDX-License-Identifier: Apache-2.0
// The scheduler of decode: blocks find the shares of src/schedule/shares.h (Stream-K) from the lengths, so nothing has to run
// before them. The arithmetic of shares is there; here are the sums over a block's threads and the memory that they are in.
#pragma once

#include "backend/gpu/runtime.h"

#include <cstdint>

#include "backend/cuda/sm90/instance.h"
#include "backend/cuda/tile/rows.h"
#include "backend/gpu/args.h"
#include "backend/gpu/checked_lengths.h"
#include "plan/kernels/cuda_sm90.h"
#include "schedule/shares.h"
#include "semantics/visible_range.h"

namespace quire::cuda::sm90::decode {

using schedule::kPartialsOfBlock;
using schedule::quotient;
using Parts = schedule::Parts<std::int32_t>;
using Piece = schedule::Piece<std::int32_t>;
using RowSlice = schedule::RowSlice<std::int32_t>;
template <bool kSlices>
using Iterations = schedule::Iterations<gpu::AttendArgs, kSlices>;

/// Keys that rows of a slice see. Where the slice has all rows of a request, their positions take no divisions.
template <bool kSlices>
__device__ inline tile::RowSpan span_of(const gpu::AttendArgs& a, const gpu::Lengths& n, const RowSlice& slice) {
  if (kSlices) return tile::row_span(a, n, slice.row_begin, slice.row_end);
  const auto first = semantics::visible_range<std::int32_t>(n.context_len, a.window);
  const auto last = semantics::visible_range<std::int32_t>(n.seq_len() - 1, a.window);
  return {slice.row_begin, slice.row_end, last.begin, first.end, first.begin, last.end};
}

/// First iterations of requests, in shared memory. The host has checked that 32 bits are enough.
struct WorkEntries {
  alignas(16) std::int32_t begin[kWorkEntries + 1];  ///< first iterations, every requests_of_entry()-th request; then the end
  std::int32_t of_warp[12];
  /// For few requests, each producer warp has entries and all lengths in the same memory.
  __device__ std::int32_t* begin_of_few(int warp) { return begin + warp * kWorkEntries / 2; }
  __device__ gpu::Lengths* lengths_of_few(int warp) {
    static_assert(kFewRequests * (1 + sizeof(gpu::Lengths) / 4) <= kWorkEntries / 2 && kFewRequests % 4 == 0);
    return reinterpret_cast<gpu::Lengths*>(begin_of_few(warp) + kFewRequests);
  }
};
__device__ inline std::int32_t requests_of_entry(const gpu::AttendArgs& a) { return (a.num_reqs - 1) / kWorkEntries + 1; }

/// gpu::checked_lengths() and gpu::lengths_of() at once.
__device__ inline bool are_sound(const HopperArgs& args, std::int32_t req, gpu::Lengths& lengths) {
  const gpu::AttendArgs& a = args.common;
  if (args.plain_lengths) {
    const auto at = [&](const semantics::IndexView& view, int i) { return static_cast<const std::int32_t*>(view.data)[i]; };
    const std::int32_t first = at(a.query_start_loc, req), last = at(a.query_start_loc, req + 1), seq_len = at(a.seq_lens, req);
    const std::int32_t cached_len = a.cached_lens.data != nullptr ? at(a.cached_lens, req) : seq_len;
    lengths = {first, last - first, seq_len - (last - first), cached_len};
    return first >= 0 && last >= first && last <= a.num_tokens && seq_len >= last - first && cached_len >= lengths.context_len &&
           cached_len <= seq_len && (cached_len == seq_len || a.key.data != nullptr);
  }
  const gpu::CheckedLengths n = gpu::checked_lengths(a, req);
  lengths = {static_cast<std::int32_t>(a.query_start_loc[req]), static_cast<std::int32_t>(n.query_len),
             static_cast<std::int32_t>(n.context_len), static_cast<std::int32_t>(n.cached_len)};
  return n.sound;
}

/// Whether some row sees a cached key beyond the table. The last cached key is seen unless there are no rows, or rows see their
/// own key alone and all of these are new.
__device__ inline bool needs_wider_table(const gpu::AttendArgs& a, const gpu::Lengths& n) {
  return n.cached_len > a.block_table.columns * a.page_size && n.query_len > 0 && (a.window != 1 || n.cached_len > n.context_len);
}

/// Iterations of all segments of a request; `unsound` if lengths break a rule, or ask for more parts than there is room for.
template <bool kSlices>
__device__ inline std::int32_t iterations_of_request(const HopperArgs& args, const Iterations<kSlices>& iterations,
                                                     std::int32_t req, gpu::Lengths& lengths, bool& unsound) {
  const gpu::AttendArgs& a = args.common;
  const bool sound = are_sound(args, req, lengths);
  const std::int32_t last = lengths.first_token + lengths.query_len;  // gpu::starts_are_sound()
  if (!sound || (req == 0 && lengths.first_token != 0) || (req == a.num_reqs - 1 && !a.may_end_at(last)) ||
      needs_wider_table(a, lengths) || !iterations.has_room(lengths.query_len, lengths.context_len)) {
    unsound = true;
    return 0;
  }
  return iterations.of_head(lengths.query_len, lengths.context_len) * a.num_kv_heads;
}

constexpr std::int32_t kUnsound = -1;  ///< number of iterations if lengths break a rule: then nothing may be read

/// First iterations of requests, in shared memory, and the number of all iterations.
struct Counted {
  const std::int32_t* begin;
  std::int32_t all;
  const gpu::Lengths* lengths;  ///< lengths of all requests; null where requests are many
};

/// All threads of the block together; or, of up to kFewRequests, the producer warps, which alone have to know, each on its own:
/// no barrier of the block is between the lengths and the first copy then. `warp`: of those.
template <int kThreads, bool kSlices>
__device__ inline Counted count_iterations(const HopperArgs& args, const Iterations<kSlices>& iterations, WorkEntries& work,
                                           bool few, int warp) {
  const gpu::AttendArgs& a = args.common;
  static_assert(kThreads / 32 <= sizeof(work.of_warp) / sizeof(work.of_warp[0]));
  const int of_entry = requests_of_entry(a), entries = of_entry == 1 ? a.num_reqs : (a.num_reqs - 1) / of_entry + 1;
  const int lane = threadIdx.x % 32, t = few ? lane : static_cast<int>(threadIdx.x);
  const int each = few ? (entries + 31) / 32 : (entries + kThreads - 1) / kThreads;
  std::int32_t* const begin = few ? work.begin_of_few(warp) : work.begin;
  gpu::Lengths* const lengths = few ? work.lengths_of_few(warp) : nullptr;
  bool unsound = false;
  std::int32_t mine = 0;
#pragma unroll 1
  for (int entry = t * each; entry < min((t + 1) * each, entries); ++entry) {
    std::int32_t sum = 0;
#pragma unroll 1
    for (int req = entry * of_entry; req < min((entry + 1) * of_entry, a.num_reqs); ++req) {
      gpu::Lengths of_request;
      sum += iterations_of_request(args, iterations, req, of_request, unsound);
      if (few) lengths[req] = of_request;
    }
    begin[entry] = sum;
    mine += sum;
  }
  std::int32_t end = mine;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const std::int32_t other = __shfl_up_sync(~0u, end, distance);
    if (lane >= distance) end += other;
  }
  if (!few) {
    if (lane == 31) work.of_warp[t / 32] = end;
    __syncthreads();
#pragma unroll 1
    for (int w = 0; w < t / 32; ++w) end += work.of_warp[w];
  }
  std::int32_t at = end - mine;
#pragma unroll 1
  for (int entry = t * each; entry < min((t + 1) * each, entries); ++entry) {
    const std::int32_t count = begin[entry];
    begin[entry] = at;
    at += count;
  }
  if (few) {
    __syncwarp();
    return {begin, __any_sync(~0u, unsound) ? kUnsound : __shfl_sync(~0u, end, 31), lengths};
  }
  if (t == kThreads - 1) begin[entries] = end;
  return {begin, __syncthreads_or(unsound) != 0 ? kUnsound : begin[entries], nullptr};
}

/// Lengths of requests, as a block has them.
struct Requests {
  using Lengths = gpu::Lengths;
  const gpu::AttendArgs& a;
  const Lengths* known;  ///< lengths of all requests; null where requests are many
  __device__ Lengths lengths(std::int32_t req) const { return known != nullptr ? known[req] : gpu::lengths_of(a, req); }
};

/// The last request that begins at or before `iteration`, of kFewRequests: it has tiles.
__device__ inline int request_of(const std::int32_t* begin, int num_reqs, std::int32_t iteration) {
  int before = 0;
#pragma unroll
  for (int first = 0; first < kFewRequests; first += 32) {
    const int req = first + static_cast<int>(threadIdx.x) % 32;
    before += __popc(__ballot_sync(~0u, req < num_reqs && begin[req] <= iteration));
  }
  return before - 1;
}

template <bool kSlices>
using Pieces = schedule::Pieces<gpu::AttendArgs, kSlices, Requests>;

/// The pieces of this block's share. Every thread that walks sees the same.
template <bool kSlices>
__device__ inline Pieces<kSlices> pieces_of(const gpu::AttendArgs& a, const Iterations<kSlices>& iterations,
                                            const Counted& counted, int blocks, schedule::Rounding<std::int32_t> rounding) {
  const std::int32_t all = max(counted.all, 0), share = schedule::share_of(all, iterations.segments(), blocks, rounding);
  const auto find = [&](std::int32_t iteration) -> schedule::WorkEntry<std::int32_t> {
    const int of_entry = requests_of_entry(a), entries = of_entry == 1 ? a.num_reqs : (a.num_reqs - 1) / of_entry + 1;
    const int entry = counted.lengths != nullptr ? request_of(counted.begin, a.num_reqs, iteration)
                                                 : schedule::last_at_or_below(counted.begin, entries, iteration);
    return {entry * of_entry, counted.begin[entry]};
  };
  return {iterations, {a, counted.lengths}, all, share, static_cast<int>(blockIdx.x), find};
}

}  // namespace quire::cuda::sm90::decode
