// SPDX-License-Identifier: Apache-2.0
// Everything a CPU attention kernel needs, resolved once per call: plain pointers, element strides, no optionals.
// Kernels see no std types: an out-of-line std template compiled for AVX-512 could end up serving the whole program.
#pragma once

#include <cstdint>
#include <span>

#include "plan/scratch.h"
#include "plan/work.h"
#include "quire/interrupt.hpp"
#include "semantics/block_scale.h"
#include "semantics/layout.h"
#include "semantics/mask.h"
#include "semantics/page_walk.h"
#include "semantics/score.h"
#include "semantics/token_scale.h"

namespace quire::cpu {

using plan_detail::MergeItem;
using plan_detail::WorkItem;

/// Cached rows of 4-bit codes and where their scales lie. A row has a number in place of an offset, as scales have strides of
/// their own: the head in its lowest bits, above them the token, above these the page.
struct BlockRows {
  const void* codes = nullptr;
  semantics::KvStrides strides;  ///< strides in codes
  semantics::BlockScales scales;
  const float* scale_values = nullptr;  ///< [256] f32 values of the scales' codes
  int head_bits = 0, token_bits = 0;
};

/// Rows of elements: the row's offset comes from outside, element d of it from `strides`.
struct RowSource {
  const void* data = nullptr;
  DType dtype = DType::f32;
  semantics::KvStrides strides;             ///< a [tokens, heads, dim] tensor is one page with x = head_dim
  const float* fp8_table = nullptr;         ///< [256] f32 values of the dtype's codes; null unless dtype is an fp8 format
  const std::uint16_t* fp8_bf16 = nullptr;  ///< values of fp8_table as bf16
  std::int64_t dims = 1;                    ///< elements of a row: head_dim, or v_head_dim of values
  std::int64_t stride = 16;                 ///< floats that a row takes in scratch
  const BlockRows* blocks = nullptr;        ///< rows of 4-bit codes; `data` and `strides` then yield row numbers
};

struct AttendArgs {
  const Request* reqs = nullptr;  ///< [num_reqs]
  std::int64_t group = 1;         ///< query heads per KV head
  std::int64_t head_dim = 1;
  std::int64_t stride = 16;  ///< floats per scratch row of a query or key, padded_dim(head_dim)
  std::int64_t v_head_dim = 1;
  std::int64_t v_stride = 16;  ///< floats per scratch row of values and output, and per partial
  std::int64_t tile_kv = 64;
  std::int64_t split_keys = 1024;
  std::int64_t direct_rows = 0;  ///< items of up to this many score rows take attend_direct.h; 0 = none does
  plan_detail::ThreadScratch scratch;
  plan_detail::AmxScratch amx_scratch;  ///< scratch of cpu_amx, which has no other
  RowSource query;                      ///< [num_tokens, num_q_heads, head_dim]
  RowSource cache_k, cache_v;
  RowSource key, value;            ///< rows of this step [num_tokens, num_kv_heads, their dims]; data null if absent
  const float* k_scale = nullptr;  ///< [num_kv_heads] by scale_stride, or null = 1
  const float* v_scale = nullptr;
  std::int64_t k_scale_stride = 0;  ///< 0 = one scale for all heads
  std::int64_t v_scale_stride = 0;
  semantics::TokenScales k_token_scale, v_token_scale;  ///< replacement of k_scale and v_scale
  semantics::IndexView query_start_loc;
  Tensor block_table;
  std::int64_t num_pages = 0;
  std::int64_t page_size = 1;
  std::int64_t window = 0;         ///< 0 = none
  std::int64_t window_right = -1;  ///< window of requests that are not causal; -1 = none
  std::int64_t chunk = 0;          ///< 0 = none
  bool spans_beyond_window = false;
  Tensor spans;                   ///< [num_reqs, max_spans, 2]; may be absent
  semantics::TreeBits tree_bits;  ///< tree of row 0
  std::int64_t tree_stride = 0;   ///< bytes from row to row
  semantics::ScoreParams score;
  const float* alibi_slopes = nullptr;  ///< [num_q_heads] by alibi_stride, or null
  std::int64_t alibi_stride = 1;
  const float* sinks = nullptr;  ///< [num_q_heads] by sinks_stride, or null
  std::int64_t sinks_stride = 1;
  const float* q_scale = nullptr;  ///< [num_kv_heads] by q_scale_stride, or null = 1; scores of cached keys take both scales
  std::int64_t q_scale_stride = 0;
  void* output = nullptr;
  DType output_dtype = DType::f32;
  float output_scale = 1.0f;  ///< scale of an fp8 output
  semantics::KvStrides output_strides;
  float* lse = nullptr;  ///< [num_tokens, num_q_heads] by lse_token and lse_head, or null
  std::int64_t lse_token = 0;
  std::int64_t lse_head = 0;
  float* partial_acc = nullptr;         ///< [num_partials][v_stride]
  float* partial_states = nullptr;      ///< [num_partials][2]
  InterruptScope* interrupt = nullptr;  ///< an item ends between two segments when this has ended; null = never
};

/// The row of the block table of a request.
QUIRE_HD semantics::PageRow pages_of(const AttendArgs& a, std::int64_t req) {
  return {semantics::index_row(a.block_table, req), a.block_table.shape[1], a.num_pages};
}

/// One instantiation of attend_body.h. `scratch` is one thread's, laid out as plan_detail::ThreadScratch says.
/// Both return the number of output rows (token x query head) that they wrote.
struct KernelEntry {
  const plan_detail::KernelRow* row;
  std::int64_t (*attend)(const AttendArgs& args, const WorkItem& item, float* scratch);
  std::int64_t (*merge)(const AttendArgs& args, const MergeItem& item, float* scratch);
};

extern const KernelEntry kGenericEntry;
#if defined(__aarch64__)
extern const KernelEntry kNeonEntry;
#endif
#if defined(__x86_64__)
extern const KernelEntry kAvx2Entry;
extern const KernelEntry kAvx512Entry;
extern const KernelEntry kAvx512Bf16Entry;
extern const KernelEntry kAmxEntry;
#endif

/// The kernels of this build: entries.cpp.
std::span<const KernelEntry* const> kernel_entries() noexcept;

}  // namespace quire::cpu
