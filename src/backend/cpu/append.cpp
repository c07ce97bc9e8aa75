// SPDX-License-Identifier: Apache-2.0
// cpu::append(): this step's K/V rows into their slots, converted to the cache's type; with the scales of their tokens, if these
// have their own, and with the scales of blocks of 4-bit codes.

#include <algorithm>
#include <cstring>

#include "backend/cpu/encode_rows.h"
#include "backend/cpu/entry.h"
#include "backend/cpu/parallel.h"
#include "semantics/block_scale.h"
#include "semantics/dtype.h"
#include "semantics/latent_row.h"
#include "semantics/layout.h"
#include "semantics/page_walk.h"
#include "semantics/token_scale.h"

namespace quire::cpu {
namespace {

constexpr std::int64_t kTokensPerTask = 16;

/// One of K and V: where rows come from and where they go.
struct Side {
  const Tensor& source;
  const Tensor& cache;
  semantics::KvStrides strides;
  const Tensor& scale;
  semantics::BlockScales blocks;  ///< scales of 4-bit codes
};

/// The scale that a row is divided by. The scale of a token is found here, and stored.
float scale_of(const Side& side, std::int64_t from, std::int64_t head, std::int64_t page, std::int64_t offset) {
  const Tensor& scale = side.scale;
  if (!scale.present()) return 1.0f;
  if (const semantics::TokenScales scales = semantics::token_scales(scale); scales.present()) {
    semantics::RowScale row;
    for (std::int64_t d = 0; d < side.source.shape[2]; ++d)
      row.add(semantics::load(side.source.data, side.source.dtype, from + d * side.source.stride[2]));
    return scales.at(page, offset, head) = row.of(side.cache.dtype);
  }
  const bool per_head = scale.rank == 1 && scale.shape[0] > 1;
  return static_cast<const float*>(scale.data)[per_head ? head * scale.stride[0] : 0];
}

/// A row as 4-bit codes, and the scales of its blocks, which are found here.
void write_blocks(const Side& side, std::int64_t from, std::int64_t to, std::int64_t head, std::int64_t page, std::int64_t offset,
                  float divisor) {
  constexpr std::int64_t kMostElements = 32;
  const std::int64_t dims = side.source.shape[2], size = semantics::elements_of_block(side.blocks.cached);
  for (std::int64_t first = 0; first < dims; first += size) {
    float y[kMostElements];
    semantics::BlockScale found;
    for (std::int64_t i = 0; i < size; ++i) {
      const float x = semantics::load(side.source.data, side.source.dtype, from + (first + i) * side.source.stride[2]);
      found.add(y[i] = divisor == 1.0f ? x : x / divisor);
    }
    const std::uint8_t code = found.code(side.blocks.cached);
    const float scale = semantics::block_scale_decode(side.blocks.cached, code);
    side.blocks.code_at(page, offset, head, first / size) = code;
    for (std::int64_t i = 0; i < size; ++i)
      semantics::store_code4(side.cache.data, to + first + i, semantics::encode_in_block(y[i], scale));
  }
}

void write_row(const Side& side, std::int64_t token, std::int64_t head, std::int64_t page, std::int64_t offset) {
  const std::int64_t head_dim = side.source.shape[2];
  const std::int64_t from = token * side.source.stride[0] + head * side.source.stride[1];
  const std::int64_t to = side.strides.row(page, head, offset);
  const float scale = scale_of(side, from, head, page, offset);
  if (side.blocks.present()) return write_blocks(side, from, to, head, page, offset, scale);
  const bool side_by_side = side.source.stride[2] == 1 && side.strides.dim == 1 && side.strides.x >= head_dim;
  const auto* row = static_cast<const std::byte*>(side.source.data) + from * itemsize(side.source.dtype);
  const std::int64_t size = itemsize(side.cache.dtype);
  std::byte* slot = static_cast<std::byte*>(side.cache.data) + to * size;
  if (side_by_side && side.source.dtype == side.cache.dtype && scale == 1.0f) {
    std::memcpy(slot, row, static_cast<std::size_t>(head_dim * size));
    return;
  }
  if (side_by_side &&
      encode_row(row, side.source.dtype, head_dim, scale, side.cache.dtype, reinterpret_cast<std::uint8_t*>(slot)))
    return;
  for (std::int64_t d = 0; d < head_dim; ++d) {
    const float value = semantics::load(side.source.data, side.source.dtype, from + d * side.source.stride[2]);
    semantics::store(side.cache.data, side.cache.dtype, to + side.strides.element(d), scale == 1.0f ? value : value / scale);
  }
}

/// Both parts of a row of fp8_ds_mla.
void write_latent_row(const Side (&sides)[2], std::int64_t token, std::int64_t page, std::int64_t offset) {
  namespace latent = semantics::latent_row;
  auto* row = static_cast<std::uint8_t*>(sides[0].cache.data) + sides[0].strides.row(page, 0, offset);
  const auto element = [token](const Tensor& t) {
    return [&t, token](std::int64_t d) { return semantics::load(t.data, t.dtype, token * t.stride[0] + d * t.stride[2]); };
  };
  latent::write_latent(row, element(sides[0].source));
  const auto rope = element(sides[1].source);
  for (std::int64_t d = 0; d < latent::kRopeDims; ++d) latent::store_rope(row, d, rope(d));
}

}  // namespace

Status append(const KVCache& cache, const Tensor& key, const Tensor& value, const Tensor& slot_mapping,
              const AppendOptions& options) {
  const Findings findings = check_append(cache, key, value, slot_mapping, Depth::tables, options.ledger, options.tags);
  if (!findings.ok()) return findings.status();
  const std::int64_t num_tokens = slot_mapping.shape[0];
  const semantics::IndexView slots = semantics::index_view(slot_mapping);
  const std::int64_t tokens_per_page = page_size(cache);
  const Side sides[] = {{key, cache.k, semantics::k_strides(cache), cache.k_scale, semantics::k_block_scales(cache)},
                        {value, cache.v, semantics::v_strides(cache), cache.v_scale, semantics::v_block_scales(cache)}};
  auto task = [&](std::int64_t index, int) {
    const std::int64_t end = std::min(num_tokens, (index + 1) * kTokensPerTask);
    for (std::int64_t t = index * kTokensPerTask; t < end; ++t) {
      if (slots[t] < 0) continue;
      const std::int64_t page = slots[t] / tokens_per_page, offset = slots[t] % tokens_per_page;
      if (cache.k.dtype == DType::fp8_ds_mla) {
        write_latent_row(sides, t, page, offset);
        continue;
      }
      for (const Side& side : sides)
        for (std::int64_t head = 0; head < key.shape[1]; ++head) write_row(side, t, head, page, offset);
    }
  };
  Executor& executor = options.executor != nullptr ? *options.executor : default_executor();
  return parallel_for("append", executor, (num_tokens + kTokensPerTask - 1) / kTokensPerTask, task);
}

}  // namespace quire::cpu
