// SPDX-License-Identifier: Apache-2.0
// Stage: check() at depth contents, on the device. Looks for elements that attention would read and that are not finite once
// their scale is applied (Q-C01 to Q-C05, Q-C07, Q-C08): query rows of requests, new rows that the cache does not hold, and
// cached tokens that some row sees. Sets outcome->broken; the host finds the element.
//
// The batch breaks no rule of lengths, tables and scales: check() has made sure. Other memory is not read: poison is never found.
#pragma once

#include "backend/gpu/runtime.h"

#include "backend/gpu/args.h"
#include "backend/gpu/decode.h"
#include "backend/gpu/generic_args.h"
#include "backend/gpu/launch_sizes.h"
#include "backend/gpu/pages.h"
#include "backend/gpu/stage_rows.h"
#include "semantics/latent_row.h"

namespace quire::gpu {

/// Rows [first, first + rows) of one page, or of a [tokens, heads, dim] tensor, in every head.
struct ContentBox {
  RowSource source;
  PerHead scale;
  semantics::TokenScales token_scale;  ///< replacement of `scale`
  semantics::BlockScales block_scale;  ///< scales of 4-bit codes
  std::int32_t heads = 0;
  std::int32_t rows = 0;
  std::int64_t page = 0;
  std::int64_t first = 0;
  std::int32_t dims = 0;  ///< dims of a row
};

/// Codes that are NaN or infinite: (code & mask) - low <= span, unsigned. Bits above those of the code do not matter.
struct BadCodes {
  std::uint32_t mask, low, span;
  QUIRE_DEVICE bool contain(std::uint32_t code) const { return (code & mask) - low <= span; }
};

QUIRE_DEVICE BadCodes bad_codes(DType type) {
  switch (type) {
    case DType::f32: return {0x7FFFFFFFu, 0x7F800000u, 0x7FFFFFu};
    case DType::f16: return {0x7FFFu, 0x7C00u, 0x3FFu};
    case DType::bf16: return {0x7FFFu, 0x7F80u, 0x7Fu};
    case DType::fp8_e4m3fn: return {0x7Fu, 0x7Fu, 0};
    case DType::fp8_e5m2: return {0x7Fu, 0x7Cu, 3};
    case DType::i8: return {0xFFu, 0x100u, 0};  // i8 has no infinity and no NaN
    default: return {0xFFu, 0x80u, 0};          // fnuz formats have one NaN
  }
}

QUIRE_DEVICE bool is_finite(float value) { return (semantics::float_to_bits(value) & 0x7F800000u) != 0x7F800000u; }

/// Rows of one head: row r begins at element `at` + r * strides.token.
struct ContentRows {
  RowSource source;
  std::int64_t at;
  std::int32_t rows;
  std::int32_t head_dim;

  /// Calls visit(element) for every `width`-th dim of every row; neighbouring threads get neighbouring addresses in every layout.
  template <class Visit>
  QUIRE_DEVICE void for_each(std::int32_t width, Visit&& visit) const {
    const semantics::KvStrides& s = source.strides;
    // Dims that lie side by side; one where tokens lie closer to each other than dims do.
    const std::int32_t run = s.token < s.dim ? 1 : static_cast<std::int32_t>(s.x < head_dim ? s.x : head_dim) / width;
    const std::int32_t run_of_rows = run * rows, count = head_dim / width * rows;
    for (std::int32_t i = thread_index(); i < count; i += kContentThreads) {
      const std::int32_t d = (i / run_of_rows * run + i % run) * width, row = i % run_of_rows / run;
      visit(at + row * s.token + element_of(s, d));
    }
  }
};

/// Word: an unsigned integer of an element's size.
template <class Word>
QUIRE_DEVICE bool has_bad_code(const ContentRows& job) {
  constexpr int size = sizeof(Word), per_chunk = 16 / size;
  const auto* words = static_cast<const Word*>(job.source.data);
  const BadCodes codes = bad_codes(job.source.dtype);
  bool bad = false;
  if (!in_chunks(job.source, size, job.head_dim)) {
    job.for_each(1, [&](std::int64_t at) { bad |= codes.contain(words[at]); });
    return bad;
  }
  job.for_each(per_chunk, [&](std::int64_t at) {
    const Bytes16 loaded = *reinterpret_cast<const Bytes16*>(words + at);
    QUIRE_UNROLL
    for (int i = 0; i < per_chunk; ++i) bad |= codes.contain(loaded.word[i * size / 4] >> (i * size % 4 * 8));
  });
  return bad;
}

/// A scale may make infinities of finite codes; then each product is looked at.
QUIRE_DEVICE bool has_bad_row(const ContentRows& job, float scale) {
  const RowSource& source = job.source;
  if (!is_finite(semantics::largest_finite(source.dtype) * scale)) {
    bool bad = false;
    job.for_each(1, [&](std::int64_t at) { bad |= !is_finite(semantics::load(source.data, source.dtype, at) * scale); });
    return bad;
  }
  if (source.dtype == DType::f32) return has_bad_code<std::uint32_t>(job);
  if (source.dtype == DType::f16 || source.dtype == DType::bf16) return has_bad_code<std::uint16_t>(job);
  return has_bad_code<std::uint8_t>(job);
}

/// Rows whose tokens have scales: each must be finite and > 0, and overflow with no code of the type. The host, which looks at
/// the codes that there are, may find nothing then.
QUIRE_DEVICE bool has_bad_scale(const ContentBox& box) {
  bool bad = false;
  const float largest = semantics::largest_finite(box.source.dtype);
  for (std::int32_t i = thread_index(); i < box.rows * box.heads; i += kContentThreads) {
    const float scale = box.token_scale.at(box.page, box.first + i / box.heads, i % box.heads);
    bad |= !(scale > 0.0f) || !is_finite(scale) || !is_finite(scale * largest);
  }
  return bad;
}

/// Rows of fp8_ds_mla: a scale that is not finite and > 0, or an element that is not finite.
QUIRE_DEVICE bool has_bad_latent_row(const ContentBox& box) {
  namespace latent = semantics::latent_row;
  bool bad = false;
  QUIRE_NO_UNROLL
  for (std::int32_t i = thread_index(); i < box.rows * box.dims; i += kContentThreads) {
    const auto* row =
        static_cast<const std::uint8_t*>(box.source.data) + box.source.strides.row(box.page, 0, box.first + i / box.dims);
    const std::int32_t d = i % box.dims;
    bad |= !is_finite(latent::load(row, d)) || (d < latent::kLatentDims && !(latent::scale(row, d / latent::kBlockDims) > 0.0f));
  }
  return bad;
}

/// Rows of 4-bit codes, of which none is NaN: a block scale that is negative or NaN, or that overflows with the largest code. The
/// host, which looks at the codes that there are, may find nothing then.
QUIRE_DEVICE bool has_bad_block_scale(const ContentBox& box) {
  const semantics::BlockScales& scales = box.block_scale;
  const std::int32_t blocks = box.dims / semantics::elements_of_block(scales.cached);
  bool bad = false;
  QUIRE_NO_UNROLL
  for (std::int32_t head = 0; head < box.heads; ++head) {
    const float factor = box.scale.at(head, 1.0f);
    QUIRE_NO_UNROLL
    for (std::int32_t i = thread_index(); i < box.rows * blocks; i += kContentThreads) {
      const std::uint8_t code = scales.code_at(box.page, box.first + i / blocks, head, i % blocks);
      bad |= scales.cached == DType::nvfp4 ? code >= 0x7F : code == 0xFF;
      bad |= !is_finite(6.0f * decode_block_scale(scales.cached, code) * factor);
    }
  }
  return bad;
}

QUIRE_DEVICE bool has_bad_row(const ContentBox& box) {
  if (box.block_scale.present()) return has_bad_block_scale(box);
  if (box.source.dtype == DType::fp8_ds_mla) return has_bad_latent_row(box);
  bool bad = box.token_scale.present() && has_bad_scale(box);
  // Limit the rows of one pass, so that 32 bits hold the number of their elements.
  const std::int32_t most = 1 + (1 << 30) / box.dims;
  QUIRE_NO_UNROLL
  for (std::int32_t done = 0; done < box.rows; done += most) {
    QUIRE_NO_UNROLL
    for (std::int32_t head = 0; head < box.heads; ++head)
      bad |= has_bad_row({box.source, box.source.strides.row(box.page, head, box.first + done),
                          box.rows - done < most ? box.rows - done : most, box.dims},
                         box.scale.at(head, 1.0f));
  }
  return bad;
}

/// The request that query row `token` belongs to: the last that begins at or before it.
QUIRE_DEVICE std::int32_t request_of(const AttendArgs& a, std::int64_t token) {
  std::int32_t low = 0, high = a.num_reqs;  // starts[low] <= token < starts[high]
  while (high - low > 1) {
    const std::int32_t middle = low + (high - low) / 2;
    (a.query_start_loc[middle] <= token ? low : high) = middle;
  }
  return low;
}

/// Selects a source value by value, because a choice of addresses would put the arguments into local memory.
QUIRE_DEVICE RowSource either(bool first, const RowSource& a, const RowSource& b) {
  RowSource chosen;
  chosen.data = first ? a.data : b.data;
  chosen.dtype = first ? a.dtype : b.dtype;
  chosen.strides.page = first ? a.strides.page : b.strides.page;
  chosen.strides.head = first ? a.strides.head : b.strides.head;
  chosen.strides.token = first ? a.strides.token : b.strides.token;
  chosen.strides.chunk = first ? a.strides.chunk : b.strides.chunk;
  chosen.strides.dim = first ? a.strides.dim : b.strides.dim;
  chosen.strides.x = first ? a.strides.x : b.strides.x;
  return chosen;
}

/// The query row of a token (i = 0), and its key and value (1, 2) if they are not in the cache. No rows if there is nothing to
/// read, as of padding.
QUIRE_DEVICE ContentBox box_of_token(const AttendArgs& a, std::int64_t token, int i) {
  if (a.may_be_padded && token >= a.query_start_loc[a.num_reqs]) return {};
  if (i == 0) return {a.query, {}, {}, {}, a.num_q_heads, 1, 0, token, a.head_dim};
  if (i > 2 || a.key.data == nullptr) return {};
  const Lengths n = lengths_of(a, request_of(a, token));
  if (n.cached_len == n.seq_len() || n.context_len + (token - n.first_token) < n.cached_len) return {};
  return {either(i == 1, a.key, a.value), {}, {}, {}, a.num_kv_heads, 1, 0, token, i == 1 ? a.head_dim : a.v_head_dim};
}

/// Cached tokens of one page of a request that some row may see: keys of a tree count, whatever its bits say.
QUIRE_DEVICE ContentBox box_of_page(const GenericArgs& a, std::int32_t req, std::int64_t column, bool is_k) {
  const Lengths n = lengths_of(a, req);
  if (n.query_len == 0) return {};
  const std::int64_t page = page_at(a, req, column), size = a.page_size;
  if (page == kNoPage) return {};  // No row sees a key of such a page (Q-T03, Q-T10).
  const Sight sight = sight_of(a, req, n);
  const semantics::SeenKeys keys = sight.mask.seen_by(sight.first, sight.first + n.query_len - 1).below(n.cached_len);
  // A page with keys of two ranges, or of a tree, is read as a whole: what is found there is judged by the host.
  std::int64_t low = (column + 1) * size, high = column * size;
  const auto widen = [&](const semantics::KeyRange& range) {
    const std::int64_t begin = range.begin > column * size ? range.begin : column * size;
    const std::int64_t end = range.end < (column + 1) * size ? range.end : (column + 1) * size;
    if (begin >= end) return;
    low = begin < low ? begin : low;
    high = end > high ? end : high;
  };
  widen(keys.prefix);
  widen(keys.middle);
  widen(keys.tree);
  if (low >= high) return {};
  ContentBox box = {either(is_k, a.cache_k, a.cache_v), {}, {}, {}, a.num_kv_heads, static_cast<std::int32_t>(high - low)};
  box.scale.data = is_k ? a.k_scale.data : a.v_scale.data;
  box.scale.stride = is_k ? a.k_scale.stride : a.v_scale.stride;
  box.token_scale.data = is_k ? a.k_token_scale.data : a.v_token_scale.data;
  box.token_scale.page = is_k ? a.k_token_scale.page : a.v_token_scale.page;
  box.token_scale.token = is_k ? a.k_token_scale.token : a.v_token_scale.token;
  box.token_scale.head = is_k ? a.k_token_scale.head : a.v_token_scale.head;
  const semantics::BlockScales &k = a.k_blocks.scales, &v = a.v_blocks.scales;
  box.block_scale.data = is_k ? k.data : v.data;
  box.block_scale.page = is_k ? k.page : v.page;
  box.block_scale.token = is_k ? k.token : v.token;
  box.block_scale.head = is_k ? k.head : v.head;
  box.block_scale.block = is_k ? k.block : v.block;
  box.block_scale.cached = is_k ? k.cached : v.cached;
  box.page = page;
  box.first = low - column * size;
  box.dims = is_k ? a.head_dim : a.v_head_dim;
  return box;
}

/// Checks contents, with any number of blocks of kContentThreads threads. A unit is a token, or kContentColumns pages of a
/// request. Does not read args.work.
QUIRE_DEVICE void check_contents(const GenericArgs& a) {
  const std::int64_t pieces = a.block_table.columns / kContentColumns + 1, units = a.num_reqs * pieces + a.num_tokens;
  bool bad = false;
  for (std::int64_t unit = block_index(); unit < units; unit += num_blocks()) {
    const bool is_token = unit < a.num_tokens;
    const std::int64_t piece = is_token ? 0 : unit - a.num_tokens, column = piece % pieces * kContentColumns;
    const auto req = static_cast<std::int32_t>(piece / pieces);
    QUIRE_NO_UNROLL
    for (int i = 0; i < (is_token ? 3 : 2 * kContentColumns); ++i) {
      const ContentBox box = is_token ? box_of_token(a, unit, i) : box_of_page(a, req, column + i / 2, i % 2 == 0);
      if (box.rows > 0) bad |= has_bad_row(box);
    }
  }
  if (bad) atomic_set(&a.outcome->broken, 1);
}

}  // namespace quire::gpu
