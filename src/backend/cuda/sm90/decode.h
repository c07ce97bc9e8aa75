// Decode on Hopper: up to 8 score rows (query rows x group) of one request and KV head against its keys, 64 at a time.
//
// Roles: one warp copies, a box a page, by the tensor copy engine (TMA); a warpgroup of four multiplies by wgmma with keys and
// dims as the 64 rows of the matrix unit and score rows as its columns ("swap-AB"), so that 8 rows waste nothing:
//
//     S^T [64 keys x 8]       = K [64 x d] Q^T [d x 8]
//     O^T [64 dims x 16] (x2) += V^T [64 x 64 keys] P^T [64 keys x 16]
//
// where columns 0-7 of P^T are the high parts of the weights and 8-15 the low ones. plain_tiles.h and fp8_tiles.h say where K and
// V^T come from.
//
// Weights enter in two 16-bit parts as in cuda_mma. Work: shares.h. What not all rows see is kept out of the second product and
// added in f32, so that 0 x NaN cannot reach a row that does not see the NaN. (Rows of visible pages that no row sees are copied
// and not used; no other memory of the cache is read.)
#pragma once

#include "backend/cuda/mma/finish.h"
#include "backend/cuda/mma/fold_tile.h"
#include "backend/cuda/sm90/hopper.h"
#include "backend/cuda/sm90/instance.h"
#include "backend/cuda/sm90/shares.h"

namespace quire::cuda::sm90 {

/// T: of query, output and this step's rows. Tiles: PlainTiles or Fp8Tiles.
template <typename T, typename Tiles>
struct Decode {
  using Tile = typename Tiles::Tile;
  using Weight = typename Tiles::Weight;
  static constexpr int kDim = Tiles::kDim;
  static constexpr int kRows = 8;
  static constexpr int kHalves = kDim / 64;
  static constexpr int kStages = Tiles::kStages;
  static constexpr int kWorkers = 128, kThreads = kWorkers + 32;
  static constexpr int kBlocksPerMultiprocessor = Tiles::kBlocksPerMultiprocessor;
  static constexpr int kQueryBytes = 128;             ///< of a row's 64 dims
  static constexpr int kWeightBytes = 2 * kRows * 2;  ///< of a key: high parts, low parts

  struct Shared {
    alignas(1024) Tile k[kStages];
    Tile v[kStages];
    union {
      struct {
        Byte query[kHalves][kRows * kQueryBytes];
        Byte weights[kTileKeys * kWeightBytes];  ///< swizzled by 32 bytes
        float exact[kTileKeys][kRows];           ///< weights of tiles with keys that not all rows see
      };
      float out[kRows][kDim + 4];  ///< at the end of a piece
    };
    float of_warp[2][4][kRows];
    hopper::Barrier k_full[kStages], v_full[kStages], k_free[kStages], v_free[kStages];
    int last;
    Row row;
  };

  static_assert(kBlocksPerMultiprocessor * (sizeof(Shared) + 1024) <= 228 * 1024);

  const gpu::AttendArgs& a;
  const CacheMaps& maps;
  Shared& shared;
  const Pieces pieces;

  /// A position in the ring of stages.
  struct Ring {
    int stage = 0;
    std::uint32_t parity = 0;
    __device__ void advance() {
      if (++stage == kStages) stage = 0, parity ^= 1;
    }
  };

  // --- the copying warp ---

  __device__ int page_of(const Piece& piece, int box) const {
    const int column = box * maps.box_tokens / a.page_size;
    if (column >= a.block_table.columns) return -1;
    const std::int64_t page = a.block_table.page(piece.req, column);
    return page < 0 || page >= a.num_pages ? -1 : static_cast<int>(page);  // no page is outside the tensor: zeros
  }

  __device__ void copy_piece(const Piece& piece, Ring& ring) const {
    const int lane = threadIdx.x % 32, tokens = maps.box_tokens, boxes = kTileKeys / tokens;
    const semantics::KeyRange seen = semantics::visible_range(piece.lengths.context_len, piece.lengths.seq_len() - 1, a.window);
    const int begin = static_cast<int>(seen.begin) / tokens;  // boxes [begin, end) hold a cached key that some row sees
    const int end = (min(static_cast<int>(seen.end), piece.lengths.cached_len) + tokens - 1) / tokens;
    const int box = lane / Tiles::kBoxes, half = lane % Tiles::kBoxes;  // lanes beyond the tile's boxes have nothing to do
    const auto look_up = [&](int first) {                               // pages of 32 boxes, a lane each
      return first + lane >= begin && first + lane < end ? page_of(piece, first + lane) : -1;
    };
    int ids = -1, next_ids = look_up(piece.first * boxes);
    for (int tile = piece.first; tile < piece.end; ++tile, ring.advance()) {
      const int first = tile * boxes, ahead = (tile - piece.first) * boxes % 32;
      if (ahead == 0) ids = next_ids, next_ids = look_up(first + 32);
      const int page = __shfl_sync(~0u, ids, (ahead + box) % 32);
      const bool mine = lane < boxes * Tiles::kBoxes && first + box >= begin && first + box < end;
      const std::uint32_t bytes = __popc(__ballot_sync(~0u, mine)) * tokens * Tiles::kRowBytes;
      const int at = box * tokens * Tiles::kRowBytes, token = (first + box) * tokens % a.page_size;
      const auto copy = [&](Tile& to, const CUtensorMap& map, hopper::Barrier& free, hopper::Barrier& full) {
        hopper::wait(&free, ring.parity ^ 1);
        if (lane == 0) hopper::arrive_and_expect(&full, bytes);
        __syncwarp();
        if (mine) hopper::copy_box(to.boxes[half] + at, &map, &full, half * 64, token, piece.kv_head, page);
      };
      copy(shared.k[ring.stage], maps.k, shared.k_free[ring.stage], shared.k_full[ring.stage]);
      copy(shared.v[ring.stage], maps.v, shared.v_free[ring.stage], shared.v_full[ring.stage]);
    }
  }

  __device__ void copy_all() const {
    Pieces walk = pieces;
    Ring ring;
    for (Piece piece; walk.next(piece);) copy_piece(piece, ring);
    hopper::wait_for_dependencies();
  }

  // --- the workers ---

  __device__ static void sync_workers() { hopper::named_barrier<1, kWorkers>(); }

  /// This thread's columns (score rows) are 2 (lane % 4) + {0, 1}; its keys: 16 warp + lane / 4 + {0, 8}; dims: Tiles::dim_of().
  __device__ static int column() { return static_cast<int>(threadIdx.x) % 4 * 2; }
  __device__ static int matrix_row() { return static_cast<int>(threadIdx.x) / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4; }

  struct State {
    float out[kHalves][8];  ///< [64 dims x 16 columns] each
    float max[2], sum[2];   ///< base 2; the sum over this thread's keys
  };

  struct Work {
    Parts parts;
    mma::Item item;
    mma::RowSpan span;
    mma::Logits logits;
    float v_scale;
    float slope[2];
    int q_pos[2];
  };

  __device__ Work work_of(const Piece& piece) const {
    Work w;
    w.parts = pieces.parts_of(piece);
    w.item.lengths = piece.lengths;
    w.item.kv_head = piece.kv_head;
    w.item.slice.req = piece.req;
    w.item.slice.row_begin = 0;
    w.item.slice.row_end = piece.lengths.query_len * a.group;
    w.item.slice.num_parts = w.parts.count;
    w.span = mma::row_span(a, piece.lengths, 0, w.item.slice.row_end);
    const float scale = a.score.scale * a.k_scale.at(piece.kv_head, 1.0f);
    w.logits = {scale, a.score.soft_cap, scale * mma::kLog2e, a.score.soft_cap == 0.0f && a.alibi_slopes.data == nullptr};
    w.v_scale = a.v_scale.at(piece.kv_head, 1.0f);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int row = min(column() + e, w.item.slice.row_end - 1);
      w.slope[e] = a.alibi_slopes.at(piece.kv_head * a.group + row % a.group, 0.0f);
      w.q_pos[e] = piece.lengths.context_len + row / a.group;
    }
    return w;
  }

  __device__ bool is_e4m3() const { return a.cache_k.dtype == DType::fp8_e4m3fn; }

  /// 16 bytes of a row that is a run of aligned chunks; zeros if there is none.
  __device__ static uint4 chunk_of(const std::uint16_t* from) {
    return from != nullptr ? *reinterpret_cast<const uint4*>(from) : uint4{};
  }

  __device__ const std::uint16_t* query_row(const Work& w, int row) const {
    const std::int64_t token = w.item.lengths.first_token + row / a.group;
    return static_cast<const std::uint16_t*>(a.query.data) +
           a.query.strides.row(0, w.item.kv_head * a.group + row % a.group, token);
  }

  __device__ void load_query(const Work& w) const {
    constexpr int kChunks = kDim / 8;
    for (int i = threadIdx.x; i < kRows * kChunks; i += kWorkers) {
      const int row = i / kChunks, chunk = i % kChunks;
      const std::uint16_t* from = row < w.item.slice.row_end ? query_row(w, row) + chunk * 8 : nullptr;
      Tiles::put_query(shared.query[chunk / 8] + row * kQueryBytes, row % 8, chunk % 8, chunk_of(from));
    }
  }

  __device__ const std::uint16_t* fresh_row(const gpu::RowSource& rows, const Work& w, int position) const {
    const std::int64_t token = w.item.lengths.first_token + position - w.item.lengths.context_len;
    return static_cast<const std::uint16_t*>(rows.data) + rows.strides.row(0, w.item.kv_head, token);
  }

  /// Overwrites the rows of a tile outside positions [begin, end): what is not in the cache, or must not enter a product as it
  /// is. `source(position)`: the row instead, null for zeros (which are the same in every type).
  template <typename Source>
  __device__ void patch(Tile& tile, int first, int begin, int end, Source&& source) const {
    constexpr int kChunks = kDim * Tiles::kElementBytes / 16;
    for (int i = threadIdx.x; i < kTileKeys * kChunks; i += kWorkers) {
      const int key = i / kChunks, chunk = i % kChunks, position = first + key;
      if (position >= begin && position < end) continue;
      const std::uint16_t* from = source(position);
      *reinterpret_cast<uint4*>(Tiles::chunk_at(tile, key, chunk)) = chunk_of(from != nullptr ? from + chunk * 8 : nullptr);
    }
    hopper::fence_shared();
    sync_workers();
  }

  __device__ void multiply_scores(float (&s)[4], const typename Tiles::Keys& keys, const Tile& k) const {
    hopper::wgmma_begin();
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const std::uint64_t query = hopper::matrix<hopper::Swizzle::bytes128>(shared.query[half], 8 * kQueryBytes);
#pragma unroll
      for (int step = 0; step < 4; ++step) Tiles::multiply_keys(s, keys, k, hopper::advanced(query, step * 32), half, step);
    }
    hopper::wgmma_commit();
    hopper::wgmma_wait<0>();
  }

  __device__ void multiply_values(State& state, const typename Tiles::Values& values, const Tile& v) const {
    hopper::wgmma_begin();
    const std::uint64_t weights = hopper::matrix<hopper::Swizzle::bytes32>(shared.weights, 8 * kWeightBytes);
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
#pragma unroll
      for (int step = 0; step < kTileKeys / 16; ++step)
        Tiles::multiply_values(state.out[half], values, v, hopper::advanced(weights, step * 16 * kWeightBytes), half, step);
    hopper::wgmma_commit();
    hopper::wgmma_wait<0>();
  }

  /// Keys from here on are not in the tiles.
  __device__ static int end_in_tiles(const Work& w) { return Tiles::kHoldFreshRows ? w.span.any_end : w.item.lengths.cached_len; }

  /// Dot products to base-2 logits; -inf for keys that a row does not see or a tile does not hold.
  __device__ void finish_scores(float (&s)[4], const Work& w, int first, bool whole) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int position = first + matrix_row() + i / 2 * 8, e = i % 2;
      if (w.logits.plain) {
        s[i] *= w.logits.base2;
      } else {
        s[i] = mma::kLog2e * semantics::score<mma::ShortTanh>(s[i], {w.logits.scale, w.logits.soft_cap}, w.slope[e],
                                                              static_cast<float>(position - w.q_pos[e]));
      }
      if (whole) continue;
      const semantics::KeyRange seen = semantics::visible_range(w.q_pos[e], a.window);
      if (position < seen.begin || position >= seen.end || position >= end_in_tiles(w)) s[i] = -INFINITY;
    }
  }

  /// The largest of the tile's logits in each of this thread's columns.
  __device__ void column_maxima(float (&top)[2], const float (&s)[4], int turn) const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      top[e] = fmaxf(s[e], s[2 + e]);
#pragma unroll
      for (int mask = 4; mask < 32; mask *= 2) top[e] = fmaxf(top[e], __shfl_xor_sync(~0u, top[e], mask));
    }
    if (lane < 4) *reinterpret_cast<float2*>(&shared.of_warp[turn][warp][column()]) = make_float2(top[0], top[1]);
    sync_workers();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 other = *reinterpret_cast<const float2*>(&shared.of_warp[turn][i][column()]);
      top[0] = fmaxf(top[0], other.x), top[1] = fmaxf(top[1], other.y);
    }
  }

  /// Logits to weights relative to the new maximum (times 2^kWeightShift); state follows.
  __device__ void fold_weights(float (&s)[4], State& state, int turn) const {
    float top[2];
    column_maxima(top, s, turn);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      top[e] = fmaxf(top[e], state.max[e]);
      const float base = top[e] == -INFINITY ? 0.0f : top[e];  // nothing seen yet: every weight below becomes 0
      const float rescale = ptx::exp2_approx(state.max[e] - base);
      s[e] = ptx::exp2_approx(s[e] - (base - Weight::kWeightShift));
      s[2 + e] = ptx::exp2_approx(s[2 + e] - (base - Weight::kWeightShift));
      state.sum[e] = state.sum[e] * rescale + (s[e] + s[2 + e]);
      if (state.max[e] != top[e]) {
#pragma unroll
        for (int half = 0; half < kHalves; ++half)
#pragma unroll
          for (int i = e; i < 8; i += 2) state.out[half][i] *= rescale;
      }
      state.max[e] = top[e];
    }
  }

  __device__ void put_weights(const float (&s)[4]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int key = matrix_row() + i * 8;
      const std::uint32_t high = Weight::pack(s[2 * i], s[2 * i + 1]);
      const float2 kept = Weight::unpack(high);
      const std::uint32_t low = Weight::pack(s[2 * i] - kept.x, s[2 * i + 1] - kept.y);
      Byte* const at = shared.weights + key * kWeightBytes + column() * 2;
      const int swap = key / 4 % 2 * 16;
      *reinterpret_cast<std::uint32_t*>(at + swap) = high;
      *reinterpret_cast<std::uint32_t*>(at + (16 - swap)) = low;
    }
    hopper::fence_shared();
  }

  /// Adds weight times value, in f32, for keys that some rows see and others do not. Cached values are still in the tile.
  __device__ void add_partly_seen(State& state, const Work& w, const Tile& v, int first) const {
    const int begin = max(first, w.span.any_begin), end = min(first + kTileKeys, min(w.span.any_end, end_in_tiles(w)));
#pragma unroll 1
    for (int position = begin; position < end; ++position) {
      if (position >= w.span.full_begin && position < w.span.full_end) continue;
      const bool fresh = position >= w.item.lengths.cached_len;
      const std::uint16_t* row = fresh ? fresh_row(a.value, w, position) : nullptr;
      const int key = position - first;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const semantics::KeyRange seen = semantics::visible_range(w.q_pos[e], a.window);
        if (position < seen.begin || position >= seen.end) continue;
        const float weight = shared.exact[key][column() + e];
#pragma unroll
        for (int half = 0; half < kHalves; ++half)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int dim = Tiles::dim_of(half, i);
            const float value = fresh ? T::unpack(row[dim]).x : Tiles::value_at(v, key, dim, is_e4m3());
            state.out[half][2 * i + e] += weight * value;
          }
      }
    }
  }

  /// Values of a tile that holds keys beyond the ends: zeros where the second product must not see them.
  __device__ void prepare_values(State& state, const Work& w, Tile& v, const float (&s)[4], int first) const {
    if (w.span.any_begin != w.span.full_begin || w.span.any_end != w.span.full_end) {
#pragma unroll
      for (int i = 0; i < 4; ++i) shared.exact[matrix_row() + i / 2 * 8][column() + i % 2] = s[i];
      sync_workers();
      add_partly_seen(state, w, v, first);
      sync_workers();
    }
    const int cached_end = min(w.span.full_end, w.item.lengths.cached_len);
    patch(v, first, w.span.full_begin, cached_end, [&](int position) -> const std::uint16_t* {
      const bool fresh = position >= w.span.full_begin && position >= w.item.lengths.cached_len && position < w.span.full_end;
      return Tiles::kHoldFreshRows && fresh ? fresh_row(a.value, w, position) : nullptr;
    });
  }

  __device__ void fold_tile(State& state, const Work& w, int tile, const Ring& ring) const {
    const int first = tile * kTileKeys, cached = w.item.lengths.cached_len, lane = threadIdx.x % 32;
    const bool whole = first >= w.span.full_begin && first + kTileKeys <= min(w.span.full_end, cached);
    Tile& k = shared.k[ring.stage];
    Tile& v = shared.v[ring.stage];
    hopper::wait(&shared.k_full[ring.stage], ring.parity);
    if (Tiles::kHoldFreshRows && first + kTileKeys > cached && cached < w.span.any_end)
      patch(k, first, 0, cached,
            [&](int position) { return position < w.span.any_end ? fresh_row(a.key, w, position) : nullptr; });
    const auto free = [&](hopper::Barrier& barrier) {
      __syncwarp();
      if (lane == 0) hopper::arrive(&barrier);
    };
    typename Tiles::Keys keys;
    Tiles::load_keys(keys, k, is_e4m3());
    if (Tiles::kInRegisters) free(shared.k_free[ring.stage]);
    float s[4];
    multiply_scores(s, keys, k);
    if (!Tiles::kInRegisters) free(shared.k_free[ring.stage]);
    finish_scores(s, w, first, whole);
    fold_weights(s, state, tile % 2);
    put_weights(s);
    hopper::wait(&shared.v_full[ring.stage], ring.parity);
    if (!whole) prepare_values(state, w, v, s, first);
    typename Tiles::Values values;
    Tiles::load_values(values, v, is_e4m3());
    if (Tiles::kInRegisters) free(shared.v_free[ring.stage]);
    sync_workers();  // all weights are there
    multiply_values(state, values, v);
    if (!Tiles::kInRegisters) free(shared.v_free[ring.stage]);
  }

  /// High and low parts as one, in real units, in the high parts' place. Where a value was infinite the low parts say nothing.
  __device__ void combine_parts(State& state, const Work& w) const {
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& high = state.out[half][i];
        high = (isfinite(high) ? high + state.out[half][4 + i] : high) * w.v_scale;
      }
  }

  /// The whole row's sum, and its accumulators to shared memory.
  __device__ void publish(State& state) const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int e = 0; e < 2; ++e)
#pragma unroll
      for (int mask = 4; mask < 32; mask *= 2) state.sum[e] += __shfl_xor_sync(~0u, state.sum[e], mask);
    if (lane < 4) *reinterpret_cast<float2*>(&shared.of_warp[0][warp][column()]) = make_float2(state.sum[0], state.sum[1]);
    if (lane < 4 && warp == 0)
      *reinterpret_cast<float2*>(&shared.of_warp[1][0][column()]) = make_float2(state.max[0], state.max[1]);
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
#pragma unroll
      for (int i = 0; i < 4; ++i) shared.out[column() + i % 2][Tiles::dim_of(half, i / 2)] = state.out[half][i];
  }

  /// Rows from shared memory to the output, or to this part's place in the workspace.
  __device__ void write_rows(const Work& w) const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const bool split = w.parts.count > 1;
    for (int r = warp; r < w.item.slice.row_end; r += kWorkers / 32) {
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < 4; ++i) sum += shared.of_warp[0][i][r];
      const semantics::SoftmaxState state = mma::natural_state<Weight>(shared.of_warp[1][0][r], sum);
      const std::int64_t at = static_cast<std::int64_t>(w.parts.place(w.parts.part)) * kRows + r;
      mma::OutputRow to{};
      if (!split) to = mma::finish_row(a, w.item, r, state, lane == 0);
      if (split && lane == 0) *reinterpret_cast<float2*>(a.work.partial_states + at * 2) = make_float2(state.max, state.sum);
#pragma unroll
      for (int dim = lane * 2; dim < kDim; dim += 64) {
        const float2 pair = *reinterpret_cast<const float2*>(&shared.out[r][dim]);
        if (split)
          *reinterpret_cast<float2*>(a.work.partial_acc + at * kDim + dim) = pair;
        else
          mma::store_pair<T>(a, to, dim, pair.x, pair.y);
      }
    }
  }

  /// True in every worker of the block that completes the last part of the segment. One thread's fence stands for all: the
  /// barriers make it cumulative (PTX ISA, "Memory Consistency Model", causality order).
  __device__ bool is_last_part(const Work& w) const {
    sync_workers();
    if (threadIdx.x == 0) {
      __threadfence();
      shared.last = atomicAdd(a.work.parts_done + w.parts.first_block, 1) == w.parts.count - 1;
      __threadfence();
    }
    sync_workers();
    return shared.last != 0;
  }

  // --- this step's rows beside a cache of another type: at most kRows keys, in f32 ---

  /// Logits of key cached_len + i and row r to shared.exact[i][r]; -inf where the row does not see the key.
  __device__ void score_fresh_rows(const Work& w) const {
    static_assert(2 * kRows * kRows == kWorkers);  // two threads for every key and row
    const int half = threadIdx.x % 2, r = threadIdx.x / 2 % kRows, i = threadIdx.x / 2 / kRows;
    const int position = w.item.lengths.cached_len + i, q_pos = w.item.lengths.context_len + r / a.group;
    const semantics::KeyRange seen = semantics::visible_range(q_pos, a.window);
    const bool sees = r < w.item.slice.row_end && position < w.span.any_end && position >= seen.begin && position < seen.end;
    float dot = 0.0f;
    if (sees) {
      const std::uint16_t* q = query_row(w, r) + half * (kDim / 2);
      const std::uint16_t* k = fresh_row(a.key, w, position) + half * (kDim / 2);
#pragma unroll 1
      for (int chunk = 0; chunk < kDim / 16; ++chunk) {
        const uint4 x = chunk_of(q + chunk * 8), y = chunk_of(k + chunk * 8);
        const std::uint32_t xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float2 p = T::unpack(xs[j]), q2 = T::unpack(ys[j]);
          dot += p.x * q2.x;
          dot += p.y * q2.y;
        }
      }
    }
    dot += __shfl_xor_sync(~0u, dot, 1);
    if (half != 0) return;
    const float slope = sees ? a.alibi_slopes.at(w.item.kv_head * a.group + r % a.group, 0.0f) : 0.0f;
    const float logit = semantics::score<mma::ShortTanh>(dot, a.score, slope, static_cast<float>(position - q_pos));
    shared.exact[i][r] = sees ? mma::kLog2e * logit : -INFINITY;
  }

  __device__ void fold_fresh_rows(State& state, const Work& w) const {
    sync_workers();  // the weights of the last tile are used up
    score_fresh_rows(w);
    sync_workers();
    const int count = w.span.any_end - w.item.lengths.cached_len;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float top = state.max[e];
      for (int i = 0; i < count; ++i) top = fmaxf(top, shared.exact[i][column() + e]);
      const float base = top == -INFINITY ? 0.0f : top;
      const float rescale = ptx::exp2_approx(state.max[e] - base);
      state.sum[e] *= rescale;
#pragma unroll
      for (int half = 0; half < kHalves; ++half)
#pragma unroll
        for (int i = 0; i < 2; ++i) state.out[half][2 * i + e] *= rescale;
      state.max[e] = top;
      for (int i = 0; i < count; ++i) {
        const int position = w.item.lengths.cached_len + i;
        const semantics::KeyRange seen = semantics::visible_range(w.q_pos[e], a.window);
        if (position < seen.begin || position >= seen.end) continue;
        const float weight = ptx::exp2_approx(shared.exact[i][column() + e] - (base - Weight::kWeightShift));
        if (matrix_row() == 0) state.sum[e] += weight;  // one thread of each column
        const std::uint16_t* row = fresh_row(a.value, w, position);
#pragma unroll
        for (int half = 0; half < kHalves; ++half)
#pragma unroll
          for (int j = 0; j < 2; ++j) state.out[half][2 * j + e] += weight * T::unpack(row[Tiles::dim_of(half, j)]).x;
      }
    }
  }

  __device__ void finish_piece(State& state, const Work& w) const {
    combine_parts(state, w);
    const bool has_end = w.parts.part == w.parts.count - 1;
    if (!Tiles::kHoldFreshRows && has_end && w.item.lengths.cached_len < w.span.any_end) fold_fresh_rows(state, w);
    sync_workers();  // query and weights are used up: results take their memory
    publish(state);
    sync_workers();
    write_rows(w);
    bool counts = true;
    if (w.parts.count > 1) {
      counts = is_last_part(w);
      if (counts) mma::merge_parts<T>(a, w.item, kWorkers / 32, [&](int part) { return w.parts.place(part); });
    }
    if (counts) mma::count_rows(a, w.item);
    sync_workers();  // results are used up
  }

  __device__ void work_all() const {
    Pieces walk = pieces;
    Ring ring;
    bool asked = false;
    for (Piece piece; walk.next(piece);) {
      const Work w = work_of(piece);
      load_query(w);
      hopper::fence_shared();
      State state{};
      state.max[0] = state.max[1] = -INFINITY;
      if (!asked) hopper::wait_for_dependencies();  // the keys are on their way; nothing was written so far
      asked = true;
      const std::int32_t broken = *static_cast<volatile const std::int32_t*>(&a.outcome->broken);
      sync_workers();  // the query is there
      for (int tile = piece.first; tile < piece.end; ++tile, ring.advance()) fold_tile(state, w, tile, ring);
      if (broken == 0) finish_piece(state, w);
    }
    if (!asked) hopper::wait_for_dependencies();
  }
};

template <typename T, typename Tiles>
__global__ void __launch_bounds__(Decode<T, Tiles>::kThreads, Tiles::kBlocksPerMultiprocessor)
    attend_decode(const __grid_constant__ gpu::AttendArgs a, const __grid_constant__ CacheMaps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Kernel = Decode<T, Tiles>;
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<typename Kernel::Shared*>(memory);
  if (threadIdx.x == Kernel::kWorkers) hopper::prefetch_map(&maps.k), hopper::prefetch_map(&maps.v);
  if (threadIdx.x == 0) {
    for (int i = 0; i < Kernel::kStages; ++i) {
      hopper::init_barrier(&shared.k_full[i], 1), hopper::init_barrier(&shared.v_full[i], 1);
      hopper::init_barrier(&shared.k_free[i], Kernel::kWorkers / 32),
          hopper::init_barrier(&shared.v_free[i], Kernel::kWorkers / 32);
    }
    hopper::fence_barrier_init();
  }
  if (!count_tiles<Kernel::kThreads>(a, shared.row)) {  // prepare says so, too
    hopper::wait_for_dependencies();
    return;
  }
  const Kernel kernel{a, maps, shared, Pieces(a, shared.row, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x))};
  if (threadIdx.x >= Kernel::kWorkers)
    kernel.copy_all();
  else
    kernel.work_all();
#endif
}

}  // namespace quire::cuda::sm90
