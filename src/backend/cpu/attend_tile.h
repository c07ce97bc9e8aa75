// Stage: attend. One row of the cache (or of this step's rows) as f32, whatever its type and layout; and which rows a tile holds.
#pragma once

#include <cstdint>

#include "backend/cpu/attend_args.h"
#include "backend/cpu/planted.h"

// Anonymous on purpose, in every header that a kernel includes: each instruction-set unit must keep its own copy of every
// function.
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

/// Calls visit(position, source, offset, fresh) for positions [begin, end): where the row lies, `offset` in elements of `source`.
/// Positions below cached_len are in the cache, later ones in this step's `fresh` rows. Touches no table entry outside.
template <class Visit>
void for_each_row(const AttendArgs& args, const KvRows& rows, const RowSource& cache, const RowSource& fresh, std::int64_t begin,
                  std::int64_t end, Visit&& visit) {
  const Request& req = args.reqs[rows.req];
  const std::int64_t cached_end = end < req.cached_len ? end : req.cached_len;
  const semantics::IndexView pages =
      semantics::index_row(args.block_table, QUIRE_PLANTED(table_row_of_first_request) ? 0 : rows.req);
  semantics::for_each_page_run(pages, args.page_size, begin, cached_end,
                               [&](std::int64_t page, std::int64_t offset, std::int64_t count, std::int64_t position) {
                                 if (QUIRE_PLANTED(pages_shifted_by_one) && position >= args.page_size)
                                   page = pages[position / args.page_size - 1];
                                 for (std::int64_t i = 0; i < count; ++i)
                                   visit(position + i, cache, cache.strides.row(page, rows.kv_head, offset + i), false);
                               });
  const std::int64_t first_token = args.query_start_loc[rows.req] - req.context_len;
  for (std::int64_t p = begin > cached_end ? begin : cached_end; p < end; ++p)
    visit(p, fresh, fresh.strides.row(0, rows.kv_head, first_token + p), true);
}

}  // namespace
}  // namespace quire::cpu
