// SPDX-License-Identifier: Apache-2.0
// Rules Q-M01 to Q-M30 and Q-M41: descriptors, shapes, dtypes and overlap. Establishes the sizes that later rules rely on.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <string>

#include "contract/context.h"
#include "device/runtime.h"
#include "text/formatted.h"

namespace quire::contract {
namespace {

using enum RuleId;

std::string quoted_dtype(DType dtype) { return formatted("dtype {}", name(dtype)); }

bool is_row_dtype(DType dtype) { return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16; }

// --- any tensor -----------------------------------------------------------------------------------------------------

void m02_descriptor(Report& report, const NamedTensor& t) {
  if (itemsize(t.tensor->dtype) <= 0) {
    report.add(M02, t.name, {}, formatted("dtype {} ({})", name(t.tensor->dtype), static_cast<int>(t.tensor->dtype)),
               "one of f32, f16, bf16, the fp8 formats, i32, i64, u8");
  }
  if (t.tensor->rank > Tensor::kMaxRank) {
    report.add(M02, t.name, {}, formatted("rank {}", t.tensor->rank), formatted("in [0, {}]", Tensor::kMaxRank));
    return;
  }
  for (int i = 0; i < t.tensor->rank; ++i)
    if (t.tensor->shape[i] < 0) report.add(M02, t.name, {}, formatted("extent {} is {}", i, t.tensor->shape[i]), ">= 0");
}

void m03_size_fits(Report& report, const NamedTensor& t) {
  if (!descriptor_ok(*t.tensor) || byte_span(*t.tensor)) return;
  const auto& stride = t.tensor->stride;
  report.add(
      M03, t.name, {},
      formatted("shape {} strides [{}]", shape_text(*t.tensor), fmt::join(stride.begin(), stride.begin() + t.tensor->rank, ", ")),
      "byte sizes and offsets below 2^63");
}

void m04_has_data(Report& report, const NamedTensor& t) {
  if (!descriptor_ok(*t.tensor) || !has_elements(*t.tensor) || t.tensor->data != nullptr) return;
  report.add(M04, t.name, {}, formatted("null data for shape {}", shape_text(*t.tensor)), "data");
}

void m05_aligned(Report& report, const NamedTensor& t) {
  const std::int64_t item = itemsize(t.tensor->dtype);
  if (item <= 0 || !has_elements(*t.tensor)) return;
  const auto address = reinterpret_cast<std::uintptr_t>(t.tensor->data);
  const auto rest = address % static_cast<std::uintptr_t>(item);
  if (rest == 0) return;
  report.add(M05, t.name, {}, formatted("address {:#x} is {} bytes past a multiple of {}", address, rest, item),
             formatted("alignment to {} bytes ({})", item, name(t.tensor->dtype)));
}

/// Memory in which all tensors of a call must be: the memory of `anchor`, if this build computes there.
Memory common_memory(const Tensor& anchor) {
  return anchor.present() && device::computes_in(anchor.memory) ? anchor.memory : Memory::cpu;
}

void m07_one_memory(Report& report, const NamedTensor& t, Memory expected) {
  if (t.tensor->memory == expected) return;
  report.add(M07, t.name, {}, formatted("{} memory", name(t.tensor->memory)), formatted("{} memory", name(expected)));
}

void m08_extents(Report& report, const NamedTensor& t) {
  if (!descriptor_ok(*t.tensor)) return;
  for (int i = 0; i < t.tensor->rank; ++i) {
    if (t.tensor->shape[i] <= kMaxExtent) continue;
    report.add(M08, t.name, {}, formatted("extent {} is {}", i, t.tensor->shape[i]), formatted("at most {}", kMaxExtent));
  }
}

// --- query, output, lse -----------------------------------------------------------------------------------------------

void m09_query_shape(Context& c) {
  const Tensor& query = c.batch.query;
  if (!well_formed(query)) return;
  if (query.rank == 3 && query.shape[1] >= 1 && query.shape[2] >= 1) {
    c.sizes.num_tokens = query.shape[0];
    c.sizes.num_q_heads = query.shape[1];
    c.sizes.head_dim = query.shape[2];
    return;
  }
  c.report.add(M09, "query", {}, "shape " + shape_text(query), "[num_tokens, num_q_heads >= 1, head_dim >= 1]");
}

void m10_query_dtype(Context& c) {
  const Tensor& query = c.batch.query;
  if (!descriptor_ok(query) || is_row_dtype(query.dtype) || query.dtype == DType::fp8_e4m3fn) return;
  c.report.add(M10, "query", {}, quoted_dtype(query.dtype), "f32, f16, bf16 or fp8_e4m3fn");
}

/// The head_dim that values and output must have; unknown beside a cache that is not the query's (Q-M22).
std::int64_t value_dim(const Context& c) { return c.report.broken(M22) ? kUnknown : c.sizes.v_head_dim; }

void m11_output_shape(Context& c) {
  const Tensor& output = c.batch.output;
  if (!well_formed(output) || !known(c.sizes.head_dim)) return;
  const Tensor& query = c.batch.query;
  const std::int64_t dim = value_dim(c);
  const bool rows_fit = output.rank == 3 && std::equal(output.shape.begin(), output.shape.begin() + 2, query.shape.begin());
  if (rows_fit && (!known(dim) || output.shape[2] == dim)) return;
  c.report.add(M11, "output", {}, "shape " + shape_text(output),
               !known(dim) || dim == query.shape[2] ? shape_text(query) + " as query"
                                                    : formatted("[{}, {}, {}] = [num_tokens, num_q_heads, head_dim of cache.v]",
                                                                query.shape[0], query.shape[1], dim));
}

void m12_output_dtype(Context& c) {
  const DType query = c.batch.query.dtype, output = c.batch.output.dtype;
  if (!descriptor_ok(c.batch.query) || !descriptor_ok(c.batch.output)) return;
  const bool quantised = output == DType::fp8_e4m3fn;
  if (quantised && c.batch.output_scale.present()) return;
  if (quantised)
    return c.report.add(M12, "output", {}, "dtype fp8_e4m3fn without output_scale", "output_scale beside an 8-bit output");
  const bool fits = query == DType::fp8_e4m3fn ? is_row_dtype(output) : output == query || output == DType::f32;
  if (fits) return;
  c.report.add(M12, "output", {}, quoted_dtype(output),
               query == DType::fp8_e4m3fn ? "f32, f16, bf16 or fp8_e4m3fn"
               : query == DType::f32      ? "f32 as query"
                                          : formatted("{} as query, or f32", name(query)));
}

void m13_lse_shape(Context& c) {
  const Tensor& lse = c.batch.lse;
  if (!well_formed(lse) || !known(c.sizes.num_tokens)) return;
  if (lse.rank == 2 && lse.shape[0] == c.sizes.num_tokens && lse.shape[1] == c.sizes.num_q_heads) return;
  c.report.add(M13, "lse", {}, "shape " + shape_text(lse),
               formatted("[{}, {}] = [num_tokens, num_q_heads]", c.sizes.num_tokens, c.sizes.num_q_heads));
}

void m14_lse_dtype(Context& c) {
  const Tensor& lse = c.batch.lse;
  if (!descriptor_ok(lse) || lse.dtype == DType::f32) return;
  c.report.add(M14, "lse", {}, quoted_dtype(lse.dtype), "f32");
}

void m15_own_addresses(Context& c) {
  for (const NamedTensor& t : {NamedTensor{"output", &c.batch.output}, NamedTensor{"lse", &c.batch.lse}}) {
    if (!well_formed(*t.tensor) || strides_nest(*t.tensor)) continue;
    c.report.add(M15, t.name, {}, to_string(*t.tensor), "an address of its own for every element");
  }
}

void m16_no_overlap(Context& c, std::span<const NamedTensor> tensors) {
  for (const NamedTensor& written : {NamedTensor{"output", &c.batch.output}, NamedTensor{"lse", &c.batch.lse}}) {
    if (!placed(*written.tensor)) continue;
    for (const NamedTensor& other : tensors) {
      const bool seen = other.tensor == &c.batch.output;  // output against lse is reported once, as output's neighbour
      if (seen || other.tensor == written.tensor || !placed(*other.tensor)) continue;
      if (!may_overlap(*written.tensor, *other.tensor)) continue;
      c.report.add(M16, written.name, {}, formatted("shares memory with {}", other.name), "memory of its own");
    }
  }
}

// --- cache ------------------------------------------------------------------------------------------------------------

/// Whether V is shuffled as AITER's is: K is packed, and x tokens of a dim of V lie side by side.
bool shuffled_values(const Context& c) {
  const Tensor &k = c.cache.k, &v = c.cache.v;
  return c.cache.layout == CacheLayout::packed && descriptor_ok(k) && k.rank == 5 && v.rank == 5 && v.shape[4] == k.shape[4] &&
         v.shape[4] > 0 && v.shape[2] == k.shape[3] / v.shape[4];
}

void m06_cache_rank(Context& c) {
  if (name(c.cache.layout) == "invalid") {
    c.report.add(M06, "cache.layout", {}, formatted("value {}", static_cast<int>(c.cache.layout)), "nhd, hnd or packed");
    return;
  }
  const bool packed = c.cache.layout == CacheLayout::packed;
  const auto one = [&](std::string_view tensor_name, const Tensor& t, int rank, std::string_view shape,
                       std::string_view hint = {}) {
    if (!descriptor_ok(t) || t.rank == rank) return;
    c.report.add(M06, tensor_name, {}, formatted("rank {}", t.rank),
                 formatted("rank {} for layout {} {}", rank, name(c.cache.layout), shape), hint);
  };
  const bool nhd = c.cache.layout == CacheLayout::nhd;
  one("cache.k", c.cache.k, packed ? 5 : 4,
      packed ? "[num_pages, num_kv_heads, head_dim / x, page_size, x]"
      : nhd  ? "[num_pages, page_size, num_kv_heads, head_dim]"
             : "[num_pages, num_kv_heads, page_size, head_dim]");
  one("cache.v", c.cache.v, 4,
      packed ? "[num_pages, num_kv_heads, v_head_dim, page_size]"
      : nhd  ? "[num_pages, page_size, num_kv_heads, v_head_dim]"
             : "[num_pages, num_kv_heads, page_size, v_head_dim]",
      shuffled_values(c) ? "a shuffled V, [num_pages, num_kv_heads, page_size / x, v_head_dim, x], becomes packed by a copy: its "
                           "axes in the order 0 1 3 2 4, the last two joined"
                         : "");
}

bool cache_ranks_ok(const Context& c) { return well_formed(c.cache.k) && well_formed(c.cache.v) && !c.report.broken(M06); }

void m17_cache_extents(Context& c) {
  if (!cache_ranks_ok(c)) return;
  const auto at_least_one = [&](const NamedTensor& t, std::string_view what, std::int64_t n) {
    if (n < 1) c.report.add(M17, t.name, {}, formatted("{} {} in shape {}", what, n, shape_text(*t.tensor)), ">= 1");
  };
  const NamedTensor k{"cache.k", &c.cache.k};
  at_least_one(k, "page_size", page_size(c.cache));
  at_least_one(k, "num_kv_heads", num_kv_heads(c.cache));
  at_least_one(k, "head_dim", head_dim(c.cache));
  at_least_one({"cache.v", &c.cache.v}, "head_dim", v_head_dim(c.cache));
}

void m19_packed_x(Context& c) {
  if (!cache_ranks_ok(c) || c.report.broken({M17, R01}) || c.cache.layout != CacheLayout::packed) return;
  if (is_four_bit(c.cache.k.dtype)) return;  // Q-M55
  const std::int64_t x = packed_x(c.cache.k.dtype);
  if (c.cache.k.shape[4] != x) {
    c.report.add(M19, "cache.k", {}, formatted("last extent {}", c.cache.k.shape[4]),
                 formatted("x = 16 / itemsize({}) = {}", name(c.cache.k.dtype), x));
  } else if (known(c.sizes.head_dim) && c.sizes.head_dim % x != 0) {
    c.report.add(M19, "query", {}, formatted("head_dim {}", c.sizes.head_dim),
                 formatted("a multiple of x = {} for a packed {} cache", x, name(c.cache.k.dtype)));
  }
}

void m18_cache_v_shape(Context& c) {
  if (!cache_ranks_ok(c) || c.report.broken({M17, M19, R01})) return;
  std::array<std::int64_t, Tensor::kMaxRank> expected = c.cache.k.shape;
  expected[3] = c.cache.v.shape[3];
  if (c.cache.layout == CacheLayout::packed)
    expected = {num_pages(c.cache), num_kv_heads(c.cache), v_head_dim(c.cache), page_size(c.cache)};
  if (std::equal(expected.begin(), expected.begin() + 4, c.cache.v.shape.begin())) return;
  c.report.add(M18, "cache.v", {}, "shape " + shape_text(c.cache.v),
               formatted("[{}] to match cache.k {} in layout {}", fmt::join(expected.begin(), expected.begin() + 4, ", "),
                         shape_text(c.cache.k), name(c.cache.layout)));
}

void m20_cache_dtype(Context& c, const NamedTensor& t, DType row_dtype) {
  const DType dtype = t.tensor->dtype;
  if (descriptor_ok(*t.tensor) && row_dtype == DType::fp8_e4m3fn && dtype != DType::fp8_e4m3fn)
    return c.report.add(M20, t.name, {}, quoted_dtype(dtype), "fp8_e4m3fn as query");
  if (!descriptor_ok(*t.tensor) || dtype == DType::f16 || dtype == DType::bf16 || is_code(dtype) || is_four_bit(dtype) ||
      dtype == DType::fp8_ds_mla)
    return;
  const bool row_known = is_row_dtype(row_dtype);
  if (dtype == DType::f32 && (!row_known || row_dtype == DType::f32)) return;
  const bool f32_too = row_dtype == DType::f32;
  c.report.add(M20, t.name, {}, quoted_dtype(dtype),
               formatted("{}f16, bf16, an fp8 format, i8, nvfp4, mxfp4 or fp8_ds_mla{}", f32_too ? "f32, " : "",
                         row_known && dtype == DType::f32 && !f32_too
                             ? formatted("; f32 needs {} of f32, which is {}", c.batch.query.present() ? "a query" : "a key",
                                         name(row_dtype))
                             : ""));
}

void m21_one_dtype_of_shared_bytes(Context& c) {
  const Tensor &k = c.cache.k, &v = c.cache.v;
  if (!placed(k) || !placed(v) || k.dtype == v.dtype || !may_overlap(k, v) || has_latent_rows(c)) return;  // Q-R01
  c.report.add(M21, "cache.v", {}, quoted_dtype(v.dtype), formatted("{} as cache.k, whose memory it shares", name(k.dtype)));
}

void m22_head_dim(Context& c) {
  if (!known(c.sizes.cache_head_dim) || !known(c.sizes.head_dim) || c.sizes.cache_head_dim == c.sizes.head_dim) return;
  c.report.add(M22, "cache.k", {}, formatted("head_dim {}", c.sizes.cache_head_dim), formatted("{} as query", c.sizes.head_dim));
}

/// The other layout, if the cache would have a fitting number of KV heads in it: as many as it has tokens in a page now.
std::string other_layout(const Context& c) {
  if (c.cache.layout == CacheLayout::packed || c.sizes.num_q_heads % c.sizes.page_size != 0) return {};
  return formatted("as layout {} the cache has {} KV heads and pages of {}",
                   name(c.cache.layout == CacheLayout::nhd ? CacheLayout::hnd : CacheLayout::nhd), c.sizes.page_size,
                   c.sizes.num_kv_heads);
}

void m23_group(Context& c) {
  if (!known(c.sizes.num_kv_heads) || !known(c.sizes.num_q_heads) || c.sizes.num_q_heads % c.sizes.num_kv_heads == 0) return;
  c.report.add(M23, "query", {}, formatted("num_q_heads {}", c.sizes.num_q_heads),
               formatted("a multiple of num_kv_heads {}", c.sizes.num_kv_heads), other_layout(c));
}

// --- key, value -------------------------------------------------------------------------------------------------------

void m24_both_or_none(Context& c) {
  if (c.batch.key.present() == c.batch.value.present()) return;
  const bool has_key = c.batch.key.present();
  c.report.add(M24, has_key ? "value" : "key", {}, "absent", formatted("present, as {} is", has_key ? "key" : "value"));
}

void m25_new_row_shape(Context& c) {
  // Sizes that are unknown match anything, but the rank always counts: append has no query to vouch for the rows.
  for (const NamedTensor& t : {NamedTensor{"key", &c.batch.key}, NamedTensor{"value", &c.batch.value}}) {
    if (!well_formed(*t.tensor)) continue;
    const bool is_key = t.tensor == &c.batch.key;
    const std::int64_t sizes[] = {c.sizes.num_tokens, c.sizes.num_kv_heads, is_key ? c.sizes.head_dim : value_dim(c)};
    const bool all_known = std::all_of(std::begin(sizes), std::end(sizes), known);
    bool fits = t.tensor->rank == 3;
    for (int i = 0; fits && i < 3; ++i) fits = !known(sizes[i]) || t.tensor->shape[i] == sizes[i];
    if (fits) continue;
    const std::string numbers = all_known ? formatted("[{}] = ", fmt::join(sizes, ", ")) : "";
    const bool own_dim = !is_key && known(sizes[2]) && sizes[2] != c.sizes.head_dim;
    c.report.add(
        M25, t.name, {}, "shape " + shape_text(*t.tensor),
        numbers + (own_dim ? "[num_tokens, num_kv_heads, head_dim of cache.v]" : "[num_tokens, num_kv_heads, head_dim]"));
  }
}

void m26_new_row_dtype(Context& c) {
  if (!descriptor_ok(c.batch.query)) return;
  for (const NamedTensor& t : {NamedTensor{"key", &c.batch.key}, NamedTensor{"value", &c.batch.value}}) {
    if (!descriptor_ok(*t.tensor)) continue;
    if (c.batch.query.dtype == DType::fp8_e4m3fn) {
      c.report.add(M26, t.name, {}, quoted_dtype(t.tensor->dtype), "absent under an fp8_e4m3fn query");
      continue;
    }
    if (t.tensor->dtype == c.batch.query.dtype) continue;
    c.report.add(M26, t.name, {}, quoted_dtype(t.tensor->dtype), formatted("{} as query", name(c.batch.query.dtype)));
  }
}

// --- index tensors ----------------------------------------------------------------------------------------------------

void m27_index_dtype(Context& c) {
  const Batch& b = c.batch;
  for (const NamedTensor& t :
       {NamedTensor{"query_start_loc", &b.query_start_loc}, NamedTensor{"seq_lens", &b.seq_lens},
        NamedTensor{"block_table", &b.block_table}, NamedTensor{"cached_lens", &b.cached_lens},
        NamedTensor{"slot_mapping", &b.slot_mapping}, NamedTensor{"request_ids", &b.request_ids},
        NamedTensor{"q_begin", &b.q_begin}, NamedTensor{"key_begin", &b.key_begin}, NamedTensor{"spans", &b.spans},
        NamedTensor{"prefix_lens", &b.prefix_lens}, NamedTensor{"tree_lens", &b.tree_lens}}) {
    if (!descriptor_ok(*t.tensor) || t.tensor->dtype == DType::i32 || t.tensor->dtype == DType::i64) continue;
    c.report.add(M27, t.name, {}, quoted_dtype(t.tensor->dtype), "i32 or i64");
  }
}

/// Whether query_start_loc has as many entries as seq_lens and as block_table has rows. The number of requests is then certain,
/// and query_start_loc lacks one entry.
bool lacks_a_start(const Batch& b) {
  const Tensor &starts = b.query_start_loc, &lens = b.seq_lens, &table = b.block_table;
  if (starts.rank != 1 || !well_formed(lens) || lens.rank != 1 || !well_formed(table) || table.rank != 2) return false;
  return starts.shape[0] >= 1 && starts.shape[0] == lens.shape[0] && starts.shape[0] == table.shape[0];
}

void m28_query_start_loc_shape(Context& c) {
  const Tensor& starts = c.batch.query_start_loc;
  if (!well_formed(starts)) return;
  if (lacks_a_start(c.batch)) {
    const std::int64_t reqs = starts.shape[0];
    c.report.add(M28, "query_start_loc", {}, "shape " + shape_text(starts),
                 formatted("[{}] = [num_reqs + 1] for {} seq_lens", reqs + 1, reqs), "is the leading 0 missing?");
    return;
  }
  if (starts.rank == 1 && starts.shape[0] >= 1) {
    c.sizes.num_reqs = starts.shape[0] - 1;
    return;
  }
  c.report.add(M28, "query_start_loc", {}, "shape " + shape_text(starts), "[num_reqs + 1]");
}

void m29_index_shapes(Context& c) {
  const auto one = [&](std::string_view tensor_name, const Tensor& t, std::int64_t size, std::string_view meaning) {
    if (!well_formed(t) || !known(size) || (t.rank == 1 && t.shape[0] == size)) return;
    c.report.add(M29, tensor_name, {}, "shape " + shape_text(t), formatted("[{}] = [{}]", size, meaning));
  };
  one("seq_lens", c.batch.seq_lens, c.sizes.num_reqs, "num_reqs");
  one("cached_lens", c.batch.cached_lens, c.sizes.num_reqs, "num_reqs");
  one("request_ids", c.batch.request_ids, c.sizes.num_reqs, "num_reqs");
  one("causal", c.batch.causal, c.sizes.num_reqs, "num_reqs");
  one("q_begin", c.batch.q_begin, c.sizes.num_reqs, "num_reqs");
  one("key_begin", c.batch.key_begin, c.sizes.num_reqs, "num_reqs");
  one("prefix_lens", c.batch.prefix_lens, c.sizes.num_reqs, "num_reqs");
  one("tree_lens", c.batch.tree_lens, c.sizes.num_reqs, "num_reqs");
  one("slot_mapping", c.batch.slot_mapping, c.sizes.num_tokens, "num_tokens");
}

void m41_causal_dtype(Context& c) {
  const Tensor& causal = c.batch.causal;
  if (descriptor_ok(causal) && causal.dtype != DType::u8)
    c.report.add(M41, "causal", {}, quoted_dtype(causal.dtype), "u8 (bool)");
}

void m30_block_table_shape(Context& c) {
  const Tensor& table = c.batch.block_table;
  if (!well_formed(table) || !known(c.sizes.num_reqs) || (table.rank == 2 && table.shape[0] == c.sizes.num_reqs)) return;
  c.report.add(M30, "block_table", {}, "shape " + shape_text(table),
               formatted("[{}, max_pages_per_req] = [num_reqs, ...]", c.sizes.num_reqs));
}

}  // namespace

void apply_tensor_rules(Report& report, std::span<const NamedTensor> tensors, std::span<const std::string_view> required,
                        const Tensor& anchor) {
  const Memory memory = common_memory(anchor);
  for (const NamedTensor& t : tensors) {
    if (!t.tensor->present()) {
      if (std::find(required.begin(), required.end(), t.name) != required.end())
        report.add(M01, t.name, {}, "absent", "a tensor");
      continue;
    }
    m02_descriptor(report, t);
    m08_extents(report, t);
    m03_size_fits(report, t);
    m07_one_memory(report, t, memory);
    m04_has_data(report, t);
    if (descriptor_ok(*t.tensor)) m05_aligned(report, t);
  }
}

void apply_cache_shape_rules(Context& c, DType row_dtype) {
  m06_cache_rank(c);
  m17_cache_extents(c);
  apply_latent_row_rules(c);
  m19_packed_x(c);
  m18_cache_v_shape(c);
  if (cache_ranks_ok(c) && !c.report.broken({M17, M18, M19, R01})) {
    c.sizes.num_pages = num_pages(c.cache);
    c.sizes.page_size = page_size(c.cache);
    c.sizes.num_kv_heads = num_kv_heads(c.cache);
    c.sizes.cache_head_dim = head_dim(c.cache);
    c.sizes.v_head_dim = v_head_dim(c.cache);
  }
  m20_cache_dtype(c, {"cache.k", &c.cache.k}, row_dtype);
  if (c.cache.v.dtype != c.cache.k.dtype) m20_cache_dtype(c, {"cache.v", &c.cache.v}, row_dtype);
  m21_one_dtype_of_shared_bytes(c);
}

void apply_workspace_rule(Report& report, std::span<const NamedTensor> tensors, std::span<const std::byte> workspace,
                          Memory memory) {
  const auto begin = reinterpret_cast<std::uintptr_t>(workspace.data());
  if (workspace.size() > static_cast<std::size_t>(std::numeric_limits<std::int64_t>::max()) || begin + workspace.size() < begin)
    return report.add(M37, "workspace", {}, formatted("{} bytes at {:#x}", workspace.size(), begin), "bytes that a memory holds");
  // Some type of one byte; nothing is written through this view.
  Tensor bytes = Tensor::contiguous(const_cast<std::byte*>(workspace.data()), DType::fp8_e4m3fn, workspace.size());
  bytes.memory = memory;
  for (const NamedTensor& t : tensors) {
    if (!placed(*t.tensor) || !may_overlap(bytes, *t.tensor)) continue;
    report.add(M37, "workspace", {}, formatted("shares memory with {}", t.name), "memory of its own");
  }
}

void apply_new_row_shape_rule(Context& c) { m25_new_row_shape(c); }

void apply_index_dtype_rule(Context& c) { m27_index_dtype(c); }

void apply_shape_rules(Context& c, std::span<const NamedTensor> tensors) {
  m09_query_shape(c);
  m10_query_dtype(c);
  m12_output_dtype(c);
  m13_lse_shape(c);
  m14_lse_dtype(c);
  m15_own_addresses(c);
  m16_no_overlap(c, tensors);
  apply_cache_shape_rules(c, descriptor_ok(c.batch.query) ? c.batch.query.dtype : DType::none);
  m22_head_dim(c);
  m11_output_shape(c);
  m23_group(c);
  m24_both_or_none(c);
  m25_new_row_shape(c);
  m26_new_row_dtype(c);
  m27_index_dtype(c);
  m28_query_start_loc_shape(c);
  m29_index_shapes(c);
  m30_block_table_shape(c);
  m41_causal_dtype(c);
  apply_mask_shape_rules(c);
}

}  // namespace quire::contract
