// The copying warps of prefill.h where the cache holds fp8 codes: they copy codes, and write what they stand for as tiles of
// 16-bit elements, from where wgmma takes keys and values.
//
// Keys become the type of the queries, which wgmma asks for; values become f16, one instruction a pair (a bf16 takes four). Both
// are exact. Each block of a pair copies half of the codes to both blocks, and converts all of them for itself. This step's
// 16-bit rows are copied to their tiles at once.
#pragma once

#include <cuda_fp8.h>

#include "backend/cuda/mma/convert_fp8.h"
#include "backend/cuda/sm90/prefill_copy.h"

namespace quire::cuda::sm90 {

template <typename T, int kDim>
struct PrefillConvert : PrefillItems<PrefillMemory<kDim, true>> {
  using Base = PrefillItems<PrefillMemory<kDim, true>>;
  using Base::copy_warp, Base::maps, Base::shared, Base::kKeys, Base::kRowBytes;
  using typename Base::Box;
  using typename Base::Memory;
  using typename Base::Ring;
  using typename Base::Tile;
  using CodeTile = typename Memory::CodeTile;
  using CodeRing = typename Memory::CodeRing;
  static constexpr int kWarps = Memory::kCopyWarps, kBoxDims = Memory::kBoxDims, kBoxes = Memory::kBoxes;
  static constexpr int kCodeStages = Memory::kCodeStages;

  /// Where a lane finds 16 codes of a row, and where their elements go: 16 bytes at `to`, and 16 at `to` ^ 16. Offsets into a box
  /// and into the tile. A warp takes 8 rows at once, of 128 codes only half of each: eight lanes, whose accesses come together,
  /// then meet neither a bank twice in the box (swizzled by its width) nor in the tile (swizzled by 128 bytes).
  struct Place {
    int from, to;
  };
  static constexpr int kTurns = kBoxDims == 128 ? 2 : 1;  ///< for 8 rows
  __device__ static Place place(int turn) {
    int lane = threadIdx.x % 32;
    hopper::compute_here(lane);  // not once for all tiles: there are no registers to keep it in
    const int quarter = lane % 4;
    if constexpr (kBoxDims == 128) {
      const int half = lane / 4 % 2, row = lane / 8 * 2 + (half ^ turn);
      return {row * 128 + (half * 4 + quarter ^ row) * 16,
              half * static_cast<int>(sizeof(Tile::halves[0])) + row * kRowBytes + (quarter * 2 ^ row) * 16};
    }
    const int row = lane / 4;
    return {row * 64 + (quarter ^ row / 2 % 4) * 16, row * kRowBytes + (quarter * 2 ^ row) * 16};
  }

  template <typename Element, bool kE4m3>
  __device__ static void convert_chunk(unsigned char* rows, int to, const uint4& codes) {
    const std::uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
    std::uint32_t pairs[8];
#pragma unroll
    for (int i = 0; i < 8; ++i)
      pairs[i] = mma::convert_pair<Element>(static_cast<std::uint16_t>(words[i / 2] >> i % 2 * 16), kE4m3);
    *reinterpret_cast<uint4*>(rows + to) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    *reinterpret_cast<uint4*>(rows + (to ^ 16)) = make_uint4(pairs[4], pairs[5], pairs[6], pairs[7]);
  }

  /// This warp's rows. What was not copied is converted like the rest, and used like the rest of a 16-bit tile that was not.
  /// Codes are loaded kAhead chunks early: beside products a load takes long.
  template <typename Element, bool kE4m3>
  __device__ static void convert_tile(Tile& tile, const CodeTile& codes) {
    constexpr int kRows = kKeys / kWarps, kSteps = kRows / 8 * kTurns, kAll = kBoxes * kSteps, kAhead = 4;
    const Place places[2] = {place(0), place(kTurns - 1)};
    const int row = copy_warp() * kRows;
    const unsigned char* const from = codes.boxes[0] + row * kBoxDims;
    unsigned char* const to = tile.halves[0] + row * kRowBytes;
    const auto load = [&](int i) {
      const int box = i / kSteps, step = i % kSteps;
      return *reinterpret_cast<const uint4*>(from + places[step % kTurns].from + box * static_cast<int>(sizeof(codes.boxes[0])) +
                                             step / kTurns * 8 * kBoxDims);
    };
    uint4 ahead[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) ahead[i] = load(i);
#pragma unroll
    for (int i = 0; i < kAll; ++i) {
      const int box = i / kSteps, step = i % kSteps;
      const uint4 now = ahead[i % kAhead];
      if (i + kAhead < kAll) ahead[i % kAhead] = load(i + kAhead);
      convert_chunk<Element, kE4m3>(to + box * 2 * static_cast<int>(sizeof(tile.halves[0])) + step / kTurns * 8 * kRowBytes,
                                    places[step % kTurns].to, now);
    }
  }

  /// A stage of codes to a stage of 16-bit elements, which is free when all workers of the block have read it.
  template <typename Element>
  __device__ void convert(Tile& tile, hopper::Barrier& free, hopper::Barrier& full, const Ring& ring, const CodeTile& codes,
                          hopper::Barrier& codes_free, hopper::Barrier& codes_full, const CodeRing& at) const {
    hopper::wait(&codes_full, at.parity);
    hopper::wait(&free, ring.parity ^ 1);
    if (this->a.cache_k.dtype == DType::fp8_e4m3fn)
      convert_tile<Element, true>(tile, codes);
    else
      convert_tile<Element, false>(tile, codes);
    hopper::fence_shared();
    __syncwarp();
    free_in_block(full);
    free_in_pair(codes_free);
  }

  __device__ void copy_codes(CodeTile& to, const CUtensorMap& map, hopper::Barrier& free, hopper::Barrier& full,
                             const CodeRing& ring, const Box& box, int kv_head) const {
    hopper::wait(&free, ring.parity ^ 1);
    if (threadIdx.x == Base::kWorkers) hopper::arrive_and_expect(&full, box.bytes);
    __syncwarp();
    if (box.mine)
      hopper::copy_box_to_pair(to.boxes[box.part] + box.row * kBoxDims, &map, &full, box.part * kBoxDims, box.token, kv_head,
                               box.page);
  }
  __device__ void copy_keys(const Box& box, const CodeRing& ring, int kv_head) const {
    auto& barriers = shared.code_barriers;
    copy_codes(shared.codes.k[ring.stage], maps.cache.k, barriers.k_free[ring.stage], barriers.k_full[ring.stage], ring, box,
               kv_head);
  }
  __device__ void copy_values(const Box& box, const CodeRing& ring, int kv_head) const {
    auto& barriers = shared.code_barriers;
    copy_codes(shared.codes.v[ring.stage], maps.cache.v, barriers.v_free[ring.stage], barriers.v_full[ring.stage], ring, box,
               kv_head);
  }
  __device__ void convert_keys(const Ring& ring, const CodeRing& at) const {
    auto& barriers = shared.code_barriers;
    convert<T>(shared.k[ring.stage], shared.k_free[ring.stage], shared.k_full[ring.stage], ring, shared.codes.k[at.stage],
               barriers.k_free[at.stage], barriers.k_full[at.stage], at);
  }
  __device__ void convert_values(const Ring& ring, const CodeRing& at) const {
    auto& barriers = shared.code_barriers;
    convert<mma::F16>(shared.v[ring.stage], shared.v_free[ring.stage], shared.v_full[ring.stage], ring, shared.codes.v[at.stage],
                      barriers.v_free[at.stage], barriers.v_full[at.stage], at);
  }

  /// Codes are copied up to kCodeStages tiles ahead of those that are converted. A stage is free when both blocks have given it
  /// back, which takes its time: where there are two, it is asked for a conversion later.
  __device__ void copy_cached(const PrefillJob& job, Ring& ring, CodeRing& at) const {
    const int tiles = job.cached_tiles, kv_head = job.item.kv_head;
    const typename Base::Boxes boxes{maps.cache.box_tokens, kBoxes, kBoxDims, kPair * kWarps, kPair * copy_warp() + this->rank};
    typename Base::PageIds pages;
    Box box;
    CodeRing ahead = at;
    for (int n = 0; n < min(tiles, kCodeStages); ++n, ahead.advance()) {
      box = this->cached_box(job, key_tile<kKeys>(job, n), boxes, pages);
      copy_keys(box, ahead, kv_head);
      copy_values(box, ahead, kv_head);
    }
    for (int n = 0; n < tiles; ++n, ring.advance(), at.advance()) {
      const CodeRing again{at.stage, at.parity ^ 1};  // of tile n + kCodeStages
      const bool more = n + kCodeStages < tiles;
      convert_keys(ring, at);
      if constexpr (kCodeStages == 1) {
        if (more) box = this->cached_box(job, key_tile<kKeys>(job, n + 1), boxes, pages), copy_keys(box, again, kv_head);
        convert_values(ring, at);
        if (more) copy_values(box, again, kv_head);
      } else {
        CodeRing next = at;
        next.advance();
        if (n > 0 && n + 1 < tiles) copy_values(box, next, kv_head);
        convert_values(ring, at);
        if (more) box = this->cached_box(job, key_tile<kKeys>(job, n + 2), boxes, pages), copy_keys(box, again, kv_head);
      }
    }
  }

  /// This step's rows. Boxes go round the warps; every warp arrives, as it does when it has converted.
  __device__ void copy_fresh_tile(Tile& to, const CUtensorMap& map, hopper::Barrier& free, hopper::Barrier& full,
                                  const Ring& ring, const Box& box, int kv_head) const {
    hopper::wait(&free, ring.parity ^ 1);
    if (threadIdx.x == Base::kWorkers)
      hopper::arrive_and_expect(&full, box.bytes);
    else
      free_in_block_unless_first(full);
    __syncwarp();
    if (box.mine) hopper::copy_box(to.halves[box.part] + box.row * kRowBytes, &map, &full, box.part * 64, box.token, kv_head, 0);
  }
  __device__ static void free_in_block_unless_first(hopper::Barrier& full) {
    if (copy_warp() > 0) free_in_block(full);
  }
  __device__ void copy_fresh(const PrefillJob& job, Ring& ring) const {
    for (int n = job.first_fresh; n < job.tiles(); ++n, ring.advance()) {
      const Box box = this->fresh_box(job, key_tile<kKeys>(job, n), kWarps, copy_warp());
      copy_fresh_tile(shared.k[ring.stage], maps.key, shared.k_free[ring.stage], shared.k_full[ring.stage], ring, box,
                      job.item.kv_head);
      copy_fresh_tile(shared.v[ring.stage], maps.value, shared.v_free[ring.stage], shared.v_full[ring.stage], ring, box,
                      job.item.kv_head);
    }
  }

  __device__ void copy_all() const {
    Ring ring;
    CodeRing at;
    this->for_each_job([&](const PrefillJob& job) {
      copy_cached(job, ring, at);
      copy_fresh(job, ring);
    });
  }
};

}  // namespace quire::cuda::sm90
