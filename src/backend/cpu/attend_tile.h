// Bringing a tile of keys or values from the cache (or from this step's rows) into f32 scratch, whatever its type and layout.
#pragma once

#include <cstdint>

#include "backend/cpu/attend_args.h"
#include "backend/cpu/planted.h"

// Anonymous on purpose, here and in attend_body.h: each instruction-set unit must keep its own copy of every function.
namespace quire::cpu {
namespace {

/// dst[0 .. count) = value of `count` consecutive elements starting at `offset`, times `scale`.
template <class V>
void convert_run(float* dst, const RowSource& src, std::int64_t offset, std::int64_t count, float scale) {
  const auto* words = static_cast<const std::uint16_t*>(src.data) + offset;
  const auto* bytes = static_cast<const std::uint8_t*>(src.data) + offset;
  const auto scale_reg = V::set1(scale);
  std::int64_t i = 0;
  const auto vectors = [&](auto&& load_at) {
    for (; i + V::kWidth <= count; i += V::kWidth) V::store(dst + i, V::mul(load_at(i), scale_reg));
  };
  switch (src.dtype) {
    case DType::f32: vectors([&](std::int64_t at) { return V::load(static_cast<const float*>(src.data) + offset + at); }); break;
    case DType::f16: vectors([&](std::int64_t at) { return V::load_f16(words + at); }); break;
    case DType::bf16: vectors([&](std::int64_t at) { return V::load_bf16(words + at); }); break;
    default: vectors([&](std::int64_t at) { return V::load_fp8(bytes + at, src.fp8_table); }); break;
  }
  for (; i < count; ++i) dst[i] = semantics::load(src.data, src.dtype, offset + i) * scale;
}

/// One row of head_dim elements into dst, zero-padded to args.stride.
template <class V>
void load_row(float* dst, const RowSource& src, std::int64_t offset, const AttendArgs& args, float scale) {
  const std::int64_t head_dim = args.head_dim;
  const semantics::KvStrides& s = src.strides;
  if (s.dim == 1) {
    for (std::int64_t d = 0; d < head_dim; d += s.x) {
      const std::int64_t count = s.x < head_dim - d ? s.x : head_dim - d;
      convert_run<V>(dst + d, src, offset + s.element(d), count, scale);
    }
  } else {
    for (std::int64_t d = 0; d < head_dim; ++d) dst[d] = semantics::load(src.data, src.dtype, offset + s.element(d)) * scale;
  }
  for (std::int64_t d = head_dim; d < args.stride; ++d) dst[d] = 0.0f;
}

/// Which of a request's rows: positions of request `req`, KV head `kv_head`.
struct KvRows {
  std::int64_t req = 0;
  std::int64_t kv_head = 0;
};

/// Rows of positions [begin, end) into dst + (position - tile_begin) * args.stride. Positions below cached_len come from the
/// page, later ones from this step's `fresh` rows (unscaled). Nothing outside [begin, end) is touched, tables included.
template <class V>
void load_rows(float* dst, const AttendArgs& args, const KvRows& rows, const RowSource& cache, const RowSource& fresh,
               float scale, std::int64_t tile_begin, std::int64_t begin, std::int64_t end) {
  const Request& req = args.reqs[rows.req];
  const std::int64_t cached_end = end < req.cached_len ? end : req.cached_len;
  const semantics::IndexView pages =
      semantics::index_row(args.block_table, QUIRE_PLANTED(table_row_of_first_request) ? 0 : rows.req);
  semantics::for_each_page_run(pages, args.page_size, begin, cached_end,
                               [&](std::int64_t page, std::int64_t offset, std::int64_t count, std::int64_t position) {
                                 if (QUIRE_PLANTED(pages_shifted_by_one) && position >= args.page_size)
                                   page = pages[position / args.page_size - 1];
                                 for (std::int64_t i = 0; i < count; ++i)
                                   load_row<V>(dst + (position + i - tile_begin) * args.stride, cache,
                                               cache.strides.row(page, rows.kv_head, offset + i), args, scale);
                               });
  const std::int64_t first_token = args.query_start_loc[rows.req] - req.context_len;
  for (std::int64_t p = begin > cached_end ? begin : cached_end; p < end; ++p)
    load_row<V>(dst + (p - tile_begin) * args.stride, fresh, fresh.strides.row(0, rows.kv_head, first_token + p), args,
                QUIRE_PLANTED(scales_on_new_rows) ? scale : 1.0f);
}

/// columns[d][j] = rows[j][d] for the vectors of keys that cover [begin, end); keys outside are zero, not stale.
template <class V>
void transpose_keys(float* columns, float* rows, std::int64_t tile_kv, std::int64_t stride, std::int64_t begin,
                    std::int64_t end) {
  const std::int64_t first = begin / V::kWidth * V::kWidth;
  const std::int64_t last = (end + V::kWidth - 1) / V::kWidth * V::kWidth;
  for (std::int64_t j = first; j < last; ++j) {
    if (j >= begin && j < end) continue;
    for (std::int64_t d = 0; d < stride; ++d) rows[j * stride + d] = 0.0f;
  }
  for (std::int64_t j = first; j < last; j += V::kWidth)
    for (std::int64_t d = 0; d < stride; d += V::kWidth)
      V::transpose(rows + j * stride + d, stride, columns + d * tile_kv + j, tile_kv);
}

}  // namespace
}  // namespace quire::cpu
