// SPDX-License-Identifier: Apache-2.0
// Rows of stored elements into shared memory as f32, scaled. Reads exactly the rows and dims asked for.
//
// Sixteen bytes a thread where strides and addresses allow, an element a thread elsewhere; neighbouring threads read neighbouring
// addresses in every layout.
#pragma once

#include "backend/gpu/runtime.h"

#include "backend/gpu/args.h"
#include "backend/gpu/decode.h"
#include "backend/gpu/generic_args.h"
#include "backend/gpu/generic_sizes.h"
#include "semantics/latent_row.h"

namespace quire::gpu {

/// Rows [begin, end), dims [first_dim, first_dim + dims) of `source`; row r begins at element at[r].
struct StagedRows {
  RowSource source;
  const std::int64_t* at = nullptr;
  int begin = 0, end = 0;
  int first_dim = 0, dims = 0;
  int head_dim = 0;
  float scale = 1.0f;
  float* to = nullptr;  ///< row r at to + r * pitch, 16-byte aligned; zeros up to the next multiple of 4 dims
  int pitch = 0;
};

/// Whether each group of sixteen bytes of a row is one aligned load.
QUIRE_DEVICE bool in_chunks(const RowSource& source, int item_size, int head_dim) {
  const semantics::KvStrides& s = source.strides;
  const std::int64_t steps = (s.page | s.head | s.token | (s.x < head_dim ? s.chunk : 0)) * item_size;
  const int per_chunk = 16 / item_size;
  return s.dim == 1 && head_dim % per_chunk == 0 && s.x % per_chunk == 0 &&
         ((steps | static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(source.data))) & 15) == 0;
}

template <DType kType>
QUIRE_DEVICE void stage_chunks(const StagedRows& job) {
  constexpr int per_chunk = 16 / kItemSize<kType>;
  const int rows = job.end - job.begin, chunks = job.dims / per_chunk;
  const bool rows_first = job.source.strides.x < job.head_dim;  // packed: the chunks of neighbouring tokens are neighbours
  const auto* bytes = static_cast<const unsigned char*>(job.source.data);
  QUIRE_NO_UNROLL  // rolled, the loop lets three blocks share an SM without spills
      for (int i = thread_index(); i < rows * chunks; i += kGenericThreads) {
    const int row = job.begin + (rows_first ? i % rows : i / chunks);
    const int chunk = rows_first ? i / rows : i % chunks;
    const std::int64_t at = job.at[row] + element_of(job.source.strides, job.first_dim + chunk * per_chunk);
    const Bytes16 loaded = *reinterpret_cast<const Bytes16*>(bytes + at * kItemSize<kType>);
    auto* to = reinterpret_cast<Float4*>(job.to + row * job.pitch + chunk * per_chunk);
    QUIRE_UNROLL
    for (int j = 0; j < per_chunk; j += 4) {
      to[j / 4] = {decode<kType>(loaded, j) * job.scale, decode<kType>(loaded, j + 1) * job.scale,
                   decode<kType>(loaded, j + 2) * job.scale, decode<kType>(loaded, j + 3) * job.scale};
    }
  }
}

/// Stages elements of any strides and sizes.
QUIRE_DEVICE void stage_elements(const StagedRows& job) {
  const semantics::KvStrides& s = job.source.strides;
  const int rows = job.end - job.begin, padded = (job.dims + 3) / 4 * 4;
  const bool rows_first = (s.token < 0 ? -s.token : s.token) < (s.dim < 0 ? -s.dim : s.dim);
  QUIRE_NO_UNROLL
  for (int i = thread_index(); i < rows * padded; i += kGenericThreads) {
    const int row = job.begin + (rows_first ? i % rows : i / padded);
    const int d = rows_first ? i / rows : i % padded;
    float value = 0.0f;
    if (d < job.dims)
      value = semantics::load(job.source.data, job.source.dtype, job.at[row] + element_of(s, job.first_dim + d)) * job.scale;
    job.to[row * job.pitch + d] = value;
  }
}

/// Stages rows of fp8_ds_mla, four dims a step: codes and rows begin at multiples of four bytes. `job.scale` is 1 (Q-R03), but
/// for the scale of a query. A block of dims has one scale.
QUIRE_DEVICE void stage_latent_rows(const StagedRows& job) {
  namespace latent = semantics::latent_row;
  static_assert(kDimBlock == latent::kBlockDims);
  const int rows = job.end - job.begin, fours = job.dims / 4;
  const bool of_codes = job.first_dim < latent::kLatentDims;
  const auto* bytes = static_cast<const std::uint8_t*>(job.source.data);
  QUIRE_NO_UNROLL
  for (int i = thread_index(); i < rows * fours; i += kGenericThreads) {
    const int row = job.begin + i / fours, d = i % fours * 4;
    const std::uint8_t* from = bytes + job.at[row];
    Float4 to;
    if (of_codes) {
      const std::uint32_t codes = *reinterpret_cast<const std::uint32_t*>(from + job.first_dim + d);
      const float scale = reinterpret_cast<const float*>(from + latent::kScalesAt)[job.first_dim / latent::kBlockDims];
      const auto code = [&](int j) { return decode<DType::fp8_e4m3fn>(codes >> (8 * j) & 0xFFu) * scale * job.scale; };
      to = {code(0), code(1), code(2), code(3)};
    } else {
      const auto* words =
          reinterpret_cast<const std::uint32_t*>(from + latent::kRopeAt + 2 * (job.first_dim + d - latent::kLatentDims));
      const auto element = [&](int j) { return decode<DType::bf16>(words[j / 2] >> (16 * (j % 2)) & 0xFFFFu) * job.scale; };
      to = {element(0), element(1), element(2), element(3)};
    }
    *reinterpret_cast<Float4*>(job.to + row * job.pitch + d) = to;
  }
}

/// The rows of a tile in the cache: row r is the key at position first_key + r.
struct CachedTile {
  int first_key = 0, page_size = 1, kv_head = 0;
};

/// Sixteen codes of 4 bits.
struct alignas(8) Codes16 {
  std::uint32_t word[2];
};

QUIRE_DEVICE Codes16 load_codes(const std::uint8_t* at) {
  if ((reinterpret_cast<std::uintptr_t>(at) & 7) == 0) return *reinterpret_cast<const Codes16*>(at);
  Codes16 codes{};
  QUIRE_UNROLL
  for (int i = 0; i < 8; ++i) codes.word[i / 4] |= static_cast<std::uint32_t>(at[i]) << (8 * (i % 4));
  return codes;
}

/// Stages rows of 4-bit codes. A step is sixteen dims, which share a scale. at[r] is the page of row r. A code times the scale of
/// its block is exact.
QUIRE_DEVICE void stage_block_rows(const StagedRows& job, const BlockRows& blocks, const CachedTile& tile) {
  constexpr int kDims = 16;
  static_assert(kDimBlock % kDims == 0);
  const int rows = job.end - job.begin, steps = job.dims / kDims;
  const DType cached = blocks.scales.cached;
  QUIRE_NO_UNROLL
  for (int i = thread_index(); i < rows * steps; i += kGenericThreads) {
    const int row = job.begin + i / steps, d = i % steps * kDims, dim = job.first_dim + d;
    const std::int64_t page = job.at[row], token = (tile.first_key + row) % tile.page_size;
    const int block = cached == DType::nvfp4 ? dim / 16 : dim / 32;
    const float scale = decode_block_scale(cached, blocks.scales.code_at(page, token, tile.kv_head, block));
    const std::int64_t at = blocks.strides.row(page, tile.kv_head, token) + dim;
    const Codes16 codes = load_codes(static_cast<const std::uint8_t*>(job.source.data) + at / 2);
    auto* to = reinterpret_cast<Float4*>(job.to + row * job.pitch + d);
    QUIRE_UNROLL
    for (int j = 0; j < kDims; j += 4) {
      const std::uint32_t four = codes.word[j / 8] >> (j % 8 * 4);
      const auto element = [&](int k) { return decode_e2m1(four >> (4 * k)) * scale * job.scale; };
      to[j / 4] = {element(0), element(1), element(2), element(3)};
    }
  }
}

/// Stages rows, with all threads of the block. kRowTypes: only types of query, key and value rows; fp8 queries go by elements.
template <bool kRowTypes>
QUIRE_DEVICE void stage_rows(const StagedRows& job) {
  if (job.begin >= job.end) return;
  const DType type = job.source.dtype;
  if constexpr (!kRowTypes)
    if (type == DType::fp8_ds_mla) return stage_latent_rows(job);
  const int item_size = type == DType::f32 ? 4 : type == DType::f16 || type == DType::bf16 ? 2 : 1;
  // An fp8 query is staged once an item: element by element it needs no instance of its own.
  const bool by_element = (kRowTypes && item_size == 1) || !in_chunks(job.source, item_size, job.head_dim);
  if (by_element) return stage_elements(job);
  switch (type) {
    case DType::f32: return stage_chunks<DType::f32>(job);
    case DType::f16: return stage_chunks<DType::f16>(job);
    case DType::bf16: return stage_chunks<DType::bf16>(job);
    default: break;
  }
  if constexpr (!kRowTypes) {
    switch (type) {
      case DType::fp8_e4m3fn: return stage_chunks<DType::fp8_e4m3fn>(job);
      case DType::fp8_e4m3fnuz: return stage_chunks<DType::fp8_e4m3fnuz>(job);
      case DType::fp8_e5m2: return stage_chunks<DType::fp8_e5m2>(job);
      case DType::fp8_e5m2fnuz: return stage_chunks<DType::fp8_e5m2fnuz>(job);
      case DType::i8: return stage_chunks<DType::i8>(job);
      default: break;
    }
  }
}

}  // namespace quire::gpu
