// SPDX-License-Identifier: Apache-2.0
// Stage: attend. The two products of a block of 16 score rows, cut into steps of two multiplications: the tile unit
// works on them beside the vector units, so the softmax of one block hides the sums of the block before it and the scores of the
// one after it.
#pragma once

#include <cstdint>

#include "backend/cpu/amx/amx_item.h"
#include "backend/cpu/amx/products.h"
#include "backend/cpu/amx/weigh_rows.h"
#include "backend/cpu/amx/weights.h"

namespace quire::cpu {
namespace {

/// Up to 16 score rows against one tile of keys. Their dot products and then their weights are in `weights`.
struct RowBlock {
  std::int64_t first_row = 0, num_rows = 0;
  ChunkRange chunks;   ///< chunks that some row sees
  bool whole = false;  ///< every row sees every key of the tile
  WeightsInPlace weights{};

  bool present() const { return num_rows > 0; }
  bool all_chunks() const { return present() && chunks.begin == 0 && chunks.end == kTileKeys / kChunkKeys; }
};

template <class T>
class TileWork {
 public:
  /// The sums of `before` and then the scores of `next`, either of which may be absent, at `places` calls of step().
  TileWork(const AmxItem& item, const RowBlock& before, const RowBlock& next, std::int64_t places)
      : v_(item), before_(before), next_(next), places_(places) {
    const std::int64_t vectors = v_.dims / kVectorDims;
    sums_left_ = before.present() ? (before.chunks.end - before.chunks.begin) * vectors * kParts : 0;
    scores_left_ = next.present() ? (next.chunks.end - next.chunks.begin) * vectors : 0;
    sum_chunk_ = before.chunks.begin, score_chunk_ = next.chunks.begin;
    per_call_ = sums_left_ + scores_left_;
  }
  void step() {
    for (credit_ += per_call_; credit_ >= places_; credit_ -= places_) {
      if (sums_left_ > 0)
        sum();
      else if (scores_left_ > 0)
        score();
    }
  }
  /// The sums of one block of 32 dims, in steps that are known when compiling: begin, kChunks * kParts times sum, end. For blocks
  /// that multiply all chunks.
  inline __attribute__((always_inline)) void begin_sums(std::int64_t dim) {
    float* acc = v_.acc + before_.first_row * v_.dims + dim;
    T::template load<0>(acc, 4 * v_.dims);
    T::template load<1>(acc + 16, 4 * v_.dims);
  }
  template <int kStep>
  inline __attribute__((always_inline)) void sum(std::int64_t dim) {
    if constexpr (kStep % kParts == 0) {
      const std::uint8_t* values = v_.v_panel + (kStep / kParts * v_.dims + dim) / 16 * kTileBytes;
      T::template stream<6>(values, 64);
      T::template stream<7>(values + kTileBytes, 64);
    }
    sum_part(kStep % kParts, kStep / kParts);
  }
  inline __attribute__((always_inline)) void end_sums(std::int64_t dim) {
    float* acc = v_.acc + before_.first_row * v_.dims + dim;
    T::template store<0>(acc, 4 * v_.dims);
    T::template store<1>(acc + 16, 4 * v_.dims);
  }
  /// Scores with one chunk of keys, likewise: begin, a step for each 32 dims, end.
  inline __attribute__((always_inline)) void begin_scores() {
    T::template zero<0>();
    T::template zero<1>();
  }
  inline __attribute__((always_inline)) void score(std::int64_t chunk, std::int64_t dim) {
    const std::int64_t block_bytes = v_.dims / kVectorDims * kTileBytes;
    const std::uint8_t* k = v_.k_panel + 2 * chunk * block_bytes + dim / kVectorDims * kTileBytes;
    T::template load<4>(v_.query + 2 * (next_.first_row * v_.dims + dim), 2 * v_.dims);
    T::template stream<6>(k, 64);
    T::template dot<0, 4, 6>();
    T::template stream<7>(k + block_bytes, 64);
    T::template dot<1, 4, 7>();
  }
  inline __attribute__((always_inline)) void end_scores(std::int64_t chunk) {
    float* to = next_.weights.dots + chunk * kChunkKeys;
    T::template store<0>(to, 4 * kTileKeys);
    T::template store<1>(to + kTileRows, 4 * kTileKeys);
  }
  /// Nothing is left.
  void done() { sums_left_ = scores_left_ = 0; }
  /// Whatever is left.
  void rest() {
    while (sums_left_ > 0) sum();
    while (scores_left_ > 0) score();
  }

 private:
  /// acc += weights V for 32 dims, one chunk of keys and one part of its weights.
  inline __attribute__((always_inline)) void sum_part(int part, std::int64_t chunk) {
    T::template load<4>(before_.weights.words(part, chunk), part == 2 ? 2 * kTileKeys : 4 * kTileKeys);
    T::template dot<0, 4, 6>();
    T::template dot<1, 4, 7>();
  }
  /// The next step of the sums.
  void sum() {
    --sums_left_;
    if (part_ == 0) {
      if (sum_chunk_ == before_.chunks.begin) begin_sums(sum_dim_);
      const std::uint8_t* values = v_.v_panel + (sum_chunk_ * v_.dims + sum_dim_) / 16 * kTileBytes;
      T::template stream<6>(values, 64);
      T::template stream<7>(values + kTileBytes, 64);
    }
    sum_part(part_, sum_chunk_);
    if (++part_ < kParts) return;
    part_ = 0;
    if (++sum_chunk_ < before_.chunks.end) return;
    sum_chunk_ = before_.chunks.begin;
    end_sums(sum_dim_);
    sum_dim_ += kVectorDims;
  }
  /// The next step of the scores.
  void score() {
    --scores_left_;
    if (score_dim_ == 0) begin_scores();
    score(score_chunk_, score_dim_);
    score_dim_ += kVectorDims;
    if (score_dim_ < v_.dims) return;
    score_dim_ = 0;
    end_scores(score_chunk_++);
  }

  const AmxItem& v_;
  const RowBlock& before_;
  const RowBlock& next_;
  std::int64_t places_, per_call_ = 0, credit_ = 0;
  std::int64_t sums_left_ = 0, sum_dim_ = 0, sum_chunk_ = 0;
  int part_ = 0;
  std::int64_t scores_left_ = 0, score_dim_ = 0, score_chunk_ = 0;
};

/// Weights of a plain block, with the sums of the block before it and the scores of the one after it, all three of all chunks, at
/// places that are known when compiling: a step is two multiplications, and there are kVectors / 4 of them for each chunk of a
/// row. A loop that asks which step is next costs more than the step. kVectors: dims / 32, 2 or 4.
template <int kVectors, PlainKind kKind, class T>
void weigh_amid_products(PlainBlock<T>& block, TileWork<T>& work) {
  constexpr int kChunks = kTileKeys / kChunkKeys, kSums = kChunks * kParts;
  constexpr int kSumRows = kSums / kVectors;  // rows that are weighed beside the sums of 32 dims
  for (std::int64_t d = 0; d < kVectors; ++d) {
    work.begin_sums(d * kVectorDims);
    unroll<kSumRows>([&](auto i) __attribute__((always_inline)) {
      const std::int64_t r = d * kSumRows + i.kValue;
      PlainRow<kKind> row = block.template row<kKind>(r);
      unroll<kChunks>([&](auto c) __attribute__((always_inline)) {
        constexpr int kPlace = decltype(i)::kValue * kChunks + decltype(c)::kValue;
        row.chunk(c.kValue);
        if constexpr (kPlace * kVectors % 4 == 0) work.template sum<kPlace * kVectors / 4>(d * kVectorDims);
      });
      block.set_sum(r, row.lanes());
    });
    work.end_sums(d * kVectorDims);
  }
  for (std::int64_t chunk = 0; chunk < kChunks; ++chunk) {
    const std::int64_t r = kVectors * kSumRows + chunk;
    PlainRow<kKind> row = block.template row<kKind>(r);
    work.begin_scores();
    unroll<kChunks>([&](auto c) __attribute__((always_inline)) {
      row.chunk(c.kValue);
      if constexpr (decltype(c)::kValue * kVectors % 4 == 0) work.score(chunk, decltype(c)::kValue * kVectors / 4 * kVectorDims);
    });
    work.end_scores(chunk);
    block.set_sum(r, row.lanes());
  }
  work.done();
}

}  // namespace
}  // namespace quire::cpu
