// SPDX-License-Identifier: Apache-2.0
// The end of an item on the matrix units: rows to the output, or partial results to the workspace and their merge by whoever
// completes the last part of a tile.
#pragma once

#include "backend/gpu/merge_rows.h"
#include "backend/hip/matrix/lane_rows.h"
#include "backend/hip/matrix/segments.h"
#include "backend/hip/matrix/sizes.h"

namespace quire::hip::matrix {

using semantics::SoftmaxState;

/// A state in natural units from a base-2 maximum, to which weights are 2^kWeightShift too large. A NaN sum marks a NaN score,
/// which a maximum passes over.
template <class T>
QUIRE_DEVICE SoftmaxState natural_state(float max2, float sum) {
  return {sum != sum ? sum : (max2 - T::kWeightShift) * kLn2, sum};
}

/// Where an output row begins, in elements, and what its sums are multiplied by.
struct OutputRow {
  std::int64_t at = 0;
  float factor = 0.0f;
};

/// Adds the sink and normalises. An empty row has factor 0 and sums of 0.
QUIRE_DEVICE OutputRow finish_row(const gpu::AttendArgs& a, std::int32_t token, std::int32_t head, const SoftmaxState& state,
                                  bool writes_lse) {
  const semantics::Merged with_sink = semantics::combine_sink(state, a.sinks.at(head, -INFINITY));
  if (writes_lse && a.lse != nullptr) a.lse[token * a.lse_token + head * a.lse_head] = semantics::log_sum_exp(with_sink.state);
  const float sum = with_sink.state.sum;
  return {a.output_strides.row(0, head, token), sum == 0.0f ? 0.0f : with_sink.weight_a / sum};
}

/// Adding 0 makes every zero +0, whatever its history.
template <class T>
QUIRE_DEVICE std::uint32_t encode_pair(float x, float y, float factor) {
  return T::encode(x * factor + 0.0f) | T::encode(y * factor + 0.0f) << 16;
}

/// Dims [d, d + 2 * kWords) of the output row at element `at`.
template <int kWords>
QUIRE_DEVICE void store_words(const gpu::AttendArgs& a, std::int64_t at, int d, const Words<kWords>& words, bool whole_rows) {
  auto* to = static_cast<std::uint16_t*>(a.output) + at;
  if (whole_rows) {
    *reinterpret_cast<Words<kWords>*>(to + d) = words;
    return;
  }
  QUIRE_UNROLL
  for (int i = 0; i < 2 * kWords; ++i)
    to[(d + i) * a.output_strides.dim] = static_cast<std::uint16_t>(words.word[i / 2] >> i % 2 * 16);
}

/// Four dims from d on.
template <class T>
QUIRE_DEVICE void store_output(const gpu::AttendArgs& a, const OutputRow& row, int d, const Floats<4>& sums, bool whole_rows) {
  const Words<2> words = {encode_pair<T>(sums.x[0], sums.x[1], row.factor), encode_pair<T>(sums.x[2], sums.x[3], row.factor)};
  store_words(a, row.at, d, words, whole_rows);
}

/// The lane's neighbouring dims of register i, normalised.
template <class T, class Gpu, int kBlocks>
QUIRE_DEVICE Words<kBlocks / 2> encode_dims(const RowSums<Gpu, kBlocks>& sums, int i, float factor) {
  Words<kBlocks / 2> words;
  QUIRE_UNROLL
  for (int w = 0; w < kBlocks / 2; ++w) words.word[w] = encode_pair<T>(sums.acc[2 * w].x[i], sums.acc[2 * w + 1].x[i], factor);
  return words;
}

/// Row `row` of the item's tile: dims [d, d + kCount) and, with the first of them, its state.
template <int kCount>
QUIRE_DEVICE void keep_partial(const gpu::AttendArgs& a, const gpu::GenericItem& item, int row, int d, const Floats<kCount>& sums,
                               const SoftmaxState& state) {
  const gpu::Partial to(a, item, item.slice.part);
  QUIRE_UNROLL
  for (int i = 0; i < kCount; ++i) gpu::store_for_others(&to.acc[static_cast<std::int64_t>(row) * a.head_dim + d + i], sums.x[i]);
  if (d != 0) return;
  gpu::store_for_others(&to.states[2 * row], state.max);
  gpu::store_for_others(&to.states[2 * row + 1], state.sum);
}

/// All parts of the item's tile in key order, to the output. All threads of the block, four dims at a time.
template <class T, int kDim, int kThreads>
QUIRE_DEVICE void merge_parts(const gpu::AttendArgs& a, const gpu::GenericItem& item, bool whole_rows) {
  QUIRE_NO_UNROLL
  for (int i = gpu::thread_here(); i < item.num_rows * (kDim / 4); i += kThreads) {
    const int r = i / (kDim / 4), d = i % (kDim / 4) * 4;
    SoftmaxState state;
    Floats<4> sums{};
    QUIRE_NO_UNROLL
    for (std::int32_t part = 0; part < item.slice.num_parts; ++part) {
      const gpu::Partial from(a, item, part);
      const semantics::Merged merged = semantics::combine(state, {from.states[2 * r], from.states[2 * r + 1]});
      QUIRE_UNROLL
      for (int j = 0; j < 4; ++j)
        sums.x[j] = gpu::fma(from.acc[static_cast<std::int64_t>(r) * kDim + d + j], merged.weight_b, sums.x[j] * merged.weight_a);
      state = merged.state;
    }
    const std::int32_t row = item.slice.row_begin + r;
    const OutputRow out =
        finish_row(a, item.lengths.first_token + row / a.group, item.kv_head * a.group + row % a.group, state, d == 0);
    store_output<T>(a, out, d, sums, whole_rows);
  }
}

/// True on all threads if it is on one. `flag` is 0 before and after.
QUIRE_DEVICE bool any_in_block(bool mine, std::int32_t* flag) {
  if (mine) *flag = 1;
  gpu::block_barrier();  // flags of all threads are visible
  const bool any = *flag != 0;
  gpu::block_barrier();  // every thread has read the flag before it becomes 0
  if (gpu::thread_here() == 0) *flag = 0;
  return any;
}

}  // namespace quire::hip::matrix
