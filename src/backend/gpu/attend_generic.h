// SPDX-License-Identifier: Apache-2.0
// Stage: attend. The kernel that takes every valid problem: any types, layout, strides, head_dims, page_size, group and options.
//
// Arithmetic is f32. A block holds 16 score rows and goes over its keys 64 at a time; K and V pass through shared memory as f32
// in blocks of 128 dims. Output dims beyond what the registers hold are made in further passes over the keys, with equal scores.
// Reads the rows of visible keys and nothing else of K, V or the table. Guarantees numerics.md and bits that depend only on
// the work list.
#pragma once

#include "backend/gpu/runtime.h"

#include "backend/gpu/args.h"
#include "backend/gpu/draw.h"
#include "backend/gpu/generic_args.h"
#include "backend/gpu/generic_block.h"
#include "backend/gpu/generic_products.h"
#include "backend/gpu/generic_softmax.h"
#include "backend/gpu/merge_rows.h"

namespace quire::gpu {

/// Dims of the block that begins at `first_dim`, of `all`.
QUIRE_DEVICE int dims_from(int all, int first_dim) { return all - first_dim < kDimBlock ? all - first_dim : kDimBlock; }

/// Raw dot products of the tile into block.scores. The query stays in shared memory from tile to tile if it is one block of dims.
QUIRE_DEVICE void score_tile(const GenericArgs& a, const GenericItem& item, const TileKeys& keys, const GenericBlock& block,
                             bool first_tile) {
  DotProducts dots;
  const float k_scale = a.k_scale.at(item.kv_head, 1.0f) * a.q_scale.at(item.kv_head, 1.0f);
  QUIRE_NO_UNROLL
  for (int first_dim = 0; first_dim < a.head_dim; first_dim += kDimBlock) {
    const int dims = dims_from(a.head_dim, first_dim);
    if (first_dim > 0) block_barrier();  // the block of dims before is used up
    if (first_tile || a.head_dim > kDimBlock)
      stage_rows</*kRowTypes=*/true>(
          {a.query, block.query_at, 0, item.num_rows, first_dim, dims, a.head_dim, 1.0f, block.query, kDimPitch});
    stage_tile(a, item, {a.cache_k, a.key, a.head_dim, block.key_at, k_scale, &GenericArgs::k_blocks}, keys, block, first_dim,
               dims);
    block_barrier();  // query and keys are visible
    dots.add(block, item, keys, dims);
  }
  dots.store(block);
}

/// Folds the tile's values into `acc`: dims [first_dim, first_dim + kOutDims).
QUIRE_DEVICE void weigh_tile(const GenericArgs& a, const GenericItem& item, const TileKeys& keys, const GenericBlock& block,
                             Accumulator& acc, int first_dim) {
  static_assert(Accumulator::kBlocks == 2);
  const float v_scale = a.v_scale.at(item.kv_head, 1.0f);
  QUIRE_NO_UNROLL
  for (int b = 0; b < Accumulator::kBlocks; ++b) {
    const int from = first_dim + b * kDimBlock;
    if (from >= a.v_head_dim) return;
    if (b > 0) block_barrier();  // the block of dims before is used up
    stage_tile(a, item, {a.cache_v, a.value, a.v_head_dim, block.value_at, v_scale, &GenericArgs::v_blocks}, keys, block, from,
               dims_from(a.v_head_dim, from));
    block_barrier();  // weights and values are visible
    if (b == 0) {
      add_values(block, acc.sum[0], keys.of_tree);
    } else {
      add_values(block, acc.sum[1], keys.of_tree);
    }
  }
}

/// Attends to all keys of the item for output dims [first_dim, first_dim + kOutDims); leaves every row's state in block.rows.
QUIRE_DEVICE void attend_keys(const GenericArgs& a, const GenericItem& item, const GenericBlock& block, Accumulator& acc,
                              int first_dim) {
  acc.clear();
  SoftmaxState state;
  const std::int32_t begin = block.keys->seen.next(item.slice.key_begin);
  QUIRE_NO_UNROLL
  for (std::int32_t at = begin; at < item.slice.key_end;) {
    block_barrier();  // rows are described; the tile before is used up
    const TileKeys keys = tile_keys_at(item, block, at);
    describe_tile(a, item, keys, block);
    block_barrier();  // the tile is described
    score_tile(a, item, keys, block, at == begin);
    block_barrier();  // dot products are visible, and no thread reads the keys any more
    softmax_tile(a, keys, block, state);
    weigh_tile(a, item, keys, block, acc, first_dim);
    at = block.keys->seen.next(keys.first + keys.end);
  }
  if (thread_index() % kSoftmaxLanes == 0) {
    ScoreRow& row = block.rows[thread_index() / kSoftmaxLanes];
    row.max = state.max;
    row.sum = state.sum;
  }
  block_barrier();  // states are visible
}

QUIRE_DEVICE void attend_item(const GenericArgs& a, const GenericItem& item, const GenericBlock& block) {
  Accumulator acc;
  SoftmaxState states[Accumulator::kRows];
  const bool whole = item.slice.num_parts == 1;
  describe_rows(a, item, block);
  QUIRE_NO_UNROLL
  for (int first_dim = 0; first_dim < a.v_head_dim; first_dim += kOutDims) {
    attend_keys(a, item, block, acc, first_dim);
    QUIRE_UNROLL
    for (int r = 0; r < Accumulator::kRows; ++r) {
      const ScoreRow& row = block.rows[Accumulator::first_row() + r];
      states[r] = {row.max, row.sum};
    }
    if (whole) {
      finish_rows(a, item, block, acc, states, first_dim);
    } else {
      keep_partial(a, item, acc, states, first_dim);
    }
  }
  if (!whole) {
    if (!is_last_part(a, item, block.is_last)) return;
    QUIRE_NO_UNROLL
    for (int first_dim = 0; first_dim < a.v_head_dim; first_dim += kOutDims) {
      fold_parts(a, item, acc, states, first_dim);
      finish_rows(a, item, block, acc, states, first_dim);
    }
  }
  if (thread_index() == 0) atomic_add(&a.outcome->rows_written, static_cast<unsigned long long>(item.num_rows));
}

/// Persistent: any number of blocks of kGenericThreads threads draw items from the work list until it is empty.
QUIRE_DEVICE void attend_generic(const GenericArgs& a, SharedArea shared) {
  const GenericBlock block(shared);
  confirm_if_first(a);
  if (is_refused(a)) return;
  const std::int32_t num_items = *a.work.num_slices * a.num_kv_heads;
  for (;;) {
    // The item before has had barriers since its number and its keys were read.
    if (thread_index() == 0) {
      *block.next_item = draw_item(a, num_items);
      if (*block.next_item < num_items) describe_keys(a, *block.next_item, block);
    }
    block_barrier();  // the item's number is visible, and no thread reads rows of the previous item
    const std::int32_t index = *block.next_item;
    if (index >= num_items) return;
    attend_item(a, item_at(a, index), block);
  }
}

}  // namespace quire::gpu
