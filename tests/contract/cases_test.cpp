// SPDX-License-Identifier: Apache-2.0
// The mutations themselves. In the order of src/contract/rules.inc.
#include "contract/broken_cases.h"

#include <algorithm>

#include "quire/cascade.hpp"
#include "quire/shards.hpp"
#include "quire/sparse.hpp"
#include "quire/tools/capture.hpp"

namespace quire::test {
namespace {

template <typename Mutate>
BrokenCase broken_batch(std::string rule, std::string message, Mutate mutate) {
  return {std::move(rule), std::move(message), [mutate](Depth limit) {
            SmallBatch b;
            mutate(b);
            b.depth = std::min(b.depth, limit);
            return b.check();
          }};
}

template <typename Mutate>
BrokenCase broken_append(std::string rule, std::string message, Mutate mutate) {
  return {std::move(rule), std::move(message),
          [mutate](Depth) {
            SmallBatch b;
            mutate(b);
            return b.check_append();
          },
          /*is_check=*/false};
}

template <typename Mutate>
BrokenCase broken_merge(std::string rule, std::string message, Mutate mutate) {
  return {std::move(rule), std::move(message),
          [mutate](Depth) {
            SmallMerge m;
            mutate(m);
            return m.check();
          },
          /*is_check=*/false};
}

template <typename Mutate>
BrokenCase broken_stack(std::string rule, std::string message, Mutate mutate) {
  return {std::move(rule), std::move(message),
          [mutate](Depth) {
            SmallStack s;
            mutate(s);
            return s.check();
          },
          /*is_check=*/false};
}

template <typename Check>
BrokenCase broken_shard(std::string rule, std::string message, Check check) {
  return {std::move(rule), std::move(message), [check](Depth) { return check(); }, /*is_check=*/false};
}

/// The workspace is `bytes` bytes from where `place` says.
template <typename Place>
BrokenCase broken_workspace(std::string message, std::size_t bytes, Place place) {
  return {"Q-M37", std::move(message),
          [place, bytes](Depth) {
            SmallBatch b;
            const void* begin = place(b);
            return check_workspace(b.batch, b.cache, b.options, {static_cast<const std::byte*>(begin), bytes});
          },
          /*is_check=*/false};
}

using Cases = std::vector<BrokenCase>;
using B = SmallBatch;
using M = SmallMerge;

void add_tensor_cases(Cases& cases) {
  cases.push_back(broken_batch("Q-M01", "Q-M01 output: absent, expected a tensor", [](B& b) { b.batch.output = Tensor{}; }));
  cases.push_back(
      broken_batch("Q-M02", "Q-M02 seq_lens: extent 0 is -1, expected >= 0", [](B& b) { b.batch.seq_lens.shape[0] = -1; }));
  cases.push_back(broken_batch("Q-M02", "Q-M02 key: rank 6 outside [0, 5]", [](B& b) { b.batch.key.rank = 6; }));
  cases.push_back(broken_batch("Q-M02",
                               "Q-M02 sinks: dtype invalid (77), expected one of f32, f16, bf16, the fp8 formats, i32, i64, u8",
                               [](B& b) { b.options.sinks.dtype = static_cast<DType>(77); }));
  cases.push_back(broken_batch(
      "Q-M03", "Q-M03 query: shape [2147483647, 2147483647, 8] strides [32, 8, 1], expected byte sizes and offsets below 2^63",
      [](B& b) { b.batch.query.shape[0] = b.batch.query.shape[1] = 2147483647; }));
  cases.push_back(broken_batch(
      "Q-M03", "Q-M03 alibi_slopes: shape [4] strides [4611686018427387904], expected byte sizes and offsets below 2^63",
      [](B& b) { b.options.alibi_slopes.stride[0] = std::int64_t{1} << 62; }));
  cases.push_back(broken_batch("Q-M04", "Q-M04 seq_lens: null data for shape [4], expected data",
                               [](B& b) { b.batch.seq_lens.data = nullptr; }));
  cases.push_back(
      broken_batch("Q-M05", "Q-M05 query: address * bytes past a multiple of 4, expected alignment to 4 bytes (f32)", [](B& b) {
        b.batch.query.data = reinterpret_cast<char*>(b.batch.query.data) + 1;
        b.batch.query.shape[0] = 6;
      }));
  cases.push_back(broken_batch(
      "Q-M06", "Q-M06 cache.k: rank 5, expected rank 4 for layout nhd [num_pages, page_size, num_kv_heads, head_dim]",
      [](B& b) { b.cache.k = Tensor::contiguous(b.k.data(), DType::f32, 16, 2, 2, 4, 4); }));
  cases.push_back(broken_batch("Q-M06", "Q-M06 cache.layout: value 9, expected nhd, hnd or packed",
                               [](B& b) { b.cache.layout = static_cast<CacheLayout>(9); }));
  cases.push_back(
      broken_batch("Q-M07", "Q-M07 value: cuda memory, expected cpu memory", [](B& b) { b.batch.value.memory = Memory::cuda; }));
  cases.push_back(broken_batch("Q-M08", "Q-M08 block_table: extent 1 is 2147483648, expected at most 2147483647",
                               [](B& b) { b.batch.block_table.shape[1] = std::int64_t{1} << 31; }));
}

/// An 8-bit query as the rules want it; its values mean nothing.
void ask_in_fp8(B& b) {
  for (Tensor* t : {&b.batch.query, &b.cache.k, &b.cache.v}) t->dtype = DType::fp8_e4m3fn;
  b.batch.key = b.batch.value = Tensor{};
  b.depth = Depth::metadata;
}

void add_row_cases(Cases& cases) {
  cases.push_back(broken_batch("Q-M09", "Q-M09 query: shape [6, 32], expected [num_tokens, num_q_heads >= 1, head_dim >= 1]",
                               [](B& b) { b.batch.query = Tensor::contiguous(b.query.data(), DType::f32, 6, 32); }));
  cases.push_back(broken_batch("Q-M10", "Q-M10 query: dtype fp8_e5m2, expected f32, f16, bf16 or fp8_e4m3fn", [](B& b) {
    for (Tensor* t : {&b.batch.query, &b.batch.output, &b.batch.key, &b.batch.value}) t->dtype = DType::fp8_e5m2;
    b.depth = Depth::tables;  // the bytes of f32 numbers are not meant as fp8
  }));
  cases.push_back(broken_batch("Q-M11", "Q-M11 output: shape [5, 4, 8], expected [6, 4, 8] as query",
                               [](B& b) { b.batch.output.shape[0] = 5; }));
  cases.push_back(broken_batch(
      "Q-M11", "Q-M11 output: shape [6, 4, 8], expected [6, 4, 6] = [num_tokens, num_q_heads, head_dim of cache.v]", [](B& b) {
        b.narrow_values();
        b.batch.output.shape[2] = 8;
      }));
  cases.push_back(broken_batch("Q-M11", "Q-M11 output: shape [6, 4, 6], expected [6, 4, 8] as query",
                               [](B& b) { b.batch.output.shape[2] = 6; }));
  cases.push_back(
      broken_batch("Q-M12", "Q-M12 output: dtype bf16, expected f32 as query", [](B& b) { b.batch.output.dtype = DType::bf16; }));
  cases.push_back(
      broken_batch("Q-M12", "Q-M12 output: dtype fp8_e4m3fn without output_scale, expected output_scale beside an 8-bit output",
                   [](B& b) { b.batch.output.dtype = DType::fp8_e4m3fn; }));
  cases.push_back(broken_batch("Q-M12", "Q-M12 output: dtype fp8_e5m2, expected f32, f16, bf16 or fp8_e4m3fn", [](B& b) {
    ask_in_fp8(b);
    b.batch.output.dtype = DType::fp8_e5m2;
  }));
  cases.push_back(broken_batch("Q-M13", "Q-M13 lse: shape [4, 6], expected [6, 4] = [num_tokens, num_q_heads]",
                               [](B& b) { b.batch.lse = Tensor::contiguous(b.lse.data(), DType::f32, 4, 6); }));
  cases.push_back(broken_batch("Q-M14", "Q-M14 lse: dtype bf16, expected f32", [](B& b) { b.batch.lse.dtype = DType::bf16; }));
  cases.push_back(broken_batch("Q-M15",
                               "Q-M15 output: f32 [6, 4, 8] strides [0, 8, 1], expected an address of its own for every element",
                               [](B& b) { b.batch.output.stride[0] = 0; }));
  cases.push_back(broken_batch("Q-M15", "Q-M15 lse: f32 [6, 4] strides [3, 1], expected an address of its own for every element",
                               [](B& b) { b.batch.lse.stride[0] = 3; }));
  cases.push_back(broken_batch("Q-M16", "Q-M16 output: shares memory with query, expected memory of its own",
                               [](B& b) { b.batch.output.data = b.batch.query.data; }));
  cases.push_back(broken_batch("Q-M16", "Q-M16 output: shares memory with lse, expected memory of its own",
                               [](B& b) { b.batch.lse.data = b.batch.output.data; }));
  cases.push_back(broken_batch("Q-M16", "Q-M16 lse: shares memory with cache.v, expected memory of its own", [](B& b) {
    b.batch.lse.data = &b.v[static_cast<std::size_t>(15 * 64)];  // page 15 is nobody's, but the cache is not scratch space
  }));
}

void add_cache_cases(Cases& cases) {
  cases.push_back(broken_batch("Q-M17", "Q-M17 cache.k: page_size 0 in shape [16, 0, 2, 8], expected >= 1",
                               [](B& b) { b.cache.k.shape[1] = b.cache.v.shape[1] = 0; }));
  cases.push_back(broken_batch("Q-M17", "Q-M17 cache.v: head_dim 0 in shape [16, 4, 2, 0], expected >= 1",
                               [](B& b) { b.cache.v.shape[3] = 0; }));
  cases.push_back(broken_batch(
      "Q-M18", "Q-M18 cache.v: shape [16, 2, 4, 8], expected [16, 4, 2, 8] to match cache.k [16, 4, 2, 8] in layout nhd",
      [](B& b) { b.cache.v = Tensor::contiguous(b.v.data(), DType::f32, 16, 2, 4, 8); }));
  cases.push_back(broken_batch("Q-M19", "Q-M19 cache.k: last extent 8, expected x = 16 / itemsize(f32) = 4", [](B& b) {
    b.cache.layout = CacheLayout::packed;
    b.cache.k = Tensor::contiguous(b.k.data(), DType::f32, 16, 2, 1, 4, 8);
    b.cache.v = Tensor::contiguous(b.v.data(), DType::f32, 16, 2, 8, 4);
  }));
  cases.push_back(
      broken_batch("Q-M19", "Q-M19 query: head_dim 8, expected a multiple of x = 16 for a packed fp8_e4m3fn cache", [](B& b) {
        b.cache.layout = CacheLayout::packed;
        b.cache.k = Tensor::contiguous(b.k.data(), DType::fp8_e4m3fn, 16, 2, 1, 4, 16);
        b.cache.v = Tensor::contiguous(b.v.data(), DType::fp8_e4m3fn, 16, 2, 16, 4);
      }));
  cases.push_back(broken_batch("Q-M20",
                               "Q-M20 cache.k: dtype i32, expected f32, f16, bf16, an fp8 format, i8, nvfp4, mxfp4 or fp8_ds_mla",
                               [](B& b) { b.cache.k.dtype = b.cache.v.dtype = DType::i32; }));
  cases.push_back(broken_batch("Q-M20",
                               "Q-M20 cache.k: dtype f32, expected f16, bf16, an fp8 format, i8, nvfp4, mxfp4 or fp8_ds_mla; f32 "
                               "needs a query of f32, which is bf16",
                               [](B& b) {
                                 for (Tensor* t : {&b.batch.query, &b.batch.output, &b.batch.key, &b.batch.value})
                                   t->dtype = DType::bf16;
                                 b.depth = Depth::tables;  // the halves of f32 numbers are not meant as bf16
                               }));
  cases.push_back(broken_batch("Q-M20", "Q-M20 cache.k: dtype f32, expected fp8_e4m3fn as query", [](B& b) {
    ask_in_fp8(b);
    b.cache.k.dtype = b.cache.v.dtype = DType::f32;
  }));
  cases.push_back(broken_batch("Q-M20",
                               "Q-M20 cache.v: dtype i32, expected f32, f16, bf16, an fp8 format, i8, nvfp4, mxfp4 or fp8_ds_mla",
                               [](B& b) { b.cache.v.dtype = DType::i32; }));
  cases.push_back(broken_batch("Q-M21", "Q-M21 cache.v: dtype bf16, expected f32 as cache.k, whose memory it shares", [](B& b) {
    b.cache.v = b.cache.k;
    b.cache.v.dtype = DType::bf16;
    b.depth = Depth::tables;
  }));
  cases.push_back(broken_batch("Q-M22", "Q-M22 cache.k: head_dim 4, expected 8 as query",
                               [](B& b) { b.cache.k.shape[3] = b.cache.v.shape[3] = 4; }));
  cases.push_back(broken_batch("Q-M23", "Q-M23 query: num_q_heads 3, expected a multiple of num_kv_heads 2", [](B& b) {
    for (Tensor* t : {&b.batch.query, &b.batch.output, &b.batch.lse}) t->shape[1] = 3;
    b.options.alibi_slopes.shape[0] = b.options.sinks.shape[0] = 3;
  }));
}

void add_new_row_cases(Cases& cases) {
  cases.push_back(
      broken_batch("Q-M24", "Q-M24 value: absent, expected present, as key is", [](B& b) { b.batch.value = Tensor{}; }));
  cases.push_back(
      broken_batch("Q-M24", "Q-M24 key: absent, expected present, as value is", [](B& b) { b.batch.key = Tensor{}; }));
  cases.push_back(broken_batch("Q-M25", "Q-M25 key: shape [5, 2, 8], expected [6, 2, 8] = [num_tokens, num_kv_heads, head_dim]",
                               [](B& b) { b.batch.key.shape[0] = 5; }));
  cases.push_back(broken_append("Q-M25",
                                "Q-M25 value: shape [6, 1, 8], expected [6, 2, 8] = [num_tokens, num_kv_heads, head_dim]",
                                [](B& b) { b.batch.value.shape[1] = 1; }));
  cases.push_back(broken_batch(
      "Q-M25", "Q-M25 value: shape [6, 2, 8], expected [6, 2, 6] = [num_tokens, num_kv_heads, head_dim of cache.v]", [](B& b) {
        b.narrow_values();
        b.batch.value.shape[2] = 8;
      }));
  cases.push_back(broken_append("Q-M25", "Q-M25 key: shape [6, 2, 6], expected [6, 2, 8] = [num_tokens, num_kv_heads, head_dim]",
                                [](B& b) { b.batch.key.shape[2] = 6; }));
  cases.push_back(broken_append("Q-M25", "Q-M25 key: shape [], expected [num_tokens, num_kv_heads, head_dim]",
                                [](B& b) { b.batch.key.rank = 0; }));
  cases.push_back(broken_batch("Q-M26", "Q-M26 value: dtype bf16, expected f32 as query", [](B& b) {
    b.batch.value.dtype = DType::bf16;
    b.depth = Depth::tables;
  }));
}

void add_index_cases(Cases& cases) {
  cases.push_back(
      broken_batch("Q-M27", "Q-M27 seq_lens: dtype f32, expected i32 or i64", [](B& b) { b.batch.seq_lens.dtype = DType::f32; }));
  cases.push_back(broken_append("Q-M27", "Q-M27 slot_mapping: dtype f32, expected i32 or i64",
                                [](B& b) { b.batch.slot_mapping.dtype = DType::f32; }));
  cases.push_back(broken_batch("Q-M28", "Q-M28 query_start_loc: shape [0], expected [num_reqs + 1]",
                               [](B& b) { b.batch.query_start_loc.shape[0] = 0; }));
  cases.push_back(broken_batch(
      "Q-M28", "Q-M28 query_start_loc: shape [4], expected [5] = [num_reqs + 1] for 4 seq_lens (is the leading 0 missing?)",
      [](B& b) { b.batch.query_start_loc.shape[0] = 4; }));
  cases.push_back(
      broken_batch("Q-M29", "Q-M29 seq_lens: shape [3], expected [4] = [num_reqs]", [](B& b) { b.batch.seq_lens.shape[0] = 3; }));
  cases.push_back(broken_batch("Q-M29", "Q-M29 cached_lens: shape [3], expected [4] = [num_reqs]",
                               [](B& b) { b.batch.cached_lens.shape[0] = 3; }));
  cases.push_back(broken_batch("Q-M29", "Q-M29 request_ids: shape [], expected [4] = [num_reqs]",
                               [](B& b) { b.batch.request_ids.rank = 0; }));
  cases.push_back(broken_batch("Q-M29", "Q-M29 slot_mapping: shape [5], expected [6] = [num_tokens]",
                               [](B& b) { b.batch.slot_mapping.shape[0] = 5; }));
  cases.push_back(broken_batch("Q-M30", "Q-M30 block_table: shape [3, 6], expected [4, max_pages_per_req] = [num_reqs, ...]",
                               [](B& b) { b.batch.block_table.shape[0] = 3; }));
}

void add_option_cases(Cases& cases) {
  cases.push_back(broken_batch("Q-M31", "Q-M31 softmax_scale: 0, expected finite and > 0; leave it out for 1 / sqrt(head_dim)",
                               [](B& b) { b.options.softmax_scale = 0.0f; }));
  cases.push_back(broken_batch("Q-M31", "Q-M31 softmax_scale: nan, expected finite and > 0; leave it out for 1 / sqrt(head_dim)",
                               [](B& b) { b.options.softmax_scale = kNaN; }));
  cases.push_back(broken_batch("Q-M32", "Q-M32 sliding_window: 0, expected >= 1; leave it out for no window",
                               [](B& b) { b.options.sliding_window = 0; }));
  cases.push_back(broken_batch("Q-M33", "Q-M33 logits_soft_cap: inf, expected finite and > 0; leave it out for no cap",
                               [](B& b) { b.options.logits_soft_cap = kInf; }));
  cases.push_back(broken_batch("Q-M34", "Q-M34 alibi_slopes: f32 [2], expected f32 [4] = [num_q_heads]",
                               [](B& b) { b.options.alibi_slopes.shape[0] = 2; }));
  cases.push_back(broken_batch("Q-M35", "Q-M35 sinks: bf16 [4], expected f32 [4] = [num_q_heads]",
                               [](B& b) { b.options.sinks.dtype = DType::bf16; }));
  cases.push_back(broken_batch(
      "Q-M36",
      "Q-M36 k_scale: f32 [4], expected f32 scalar, [1] or [2] = [num_kv_heads], or [num_pages, page_size, num_kv_heads]",
      [](B& b) { b.cache.k_scale = Tensor::contiguous(b.alibi_slopes.data(), DType::f32, 4), b.depth = Depth::metadata; }));
  cases.push_back(broken_append(
      "Q-M36",
      "Q-M36 v_scale: f16 [2], expected f32 scalar, [1] or [2] = [num_kv_heads], or [num_pages, page_size, num_kv_heads]",
      [](B& b) { b.cache.v_scale.dtype = DType::f16; }));
}

void add_token_scale_cases(Cases& cases) {
  cases.push_back(broken_batch(
      "Q-M36", "Q-M36 k_scale: f32 [16, 2, 4], expected f32 [16, 4, 2] = [num_pages, page_size, num_kv_heads]", [](B& b) {
        b.ask_for_token_scales();
        std::swap(b.cache.k_scale.shape[1], b.cache.k_scale.shape[2]);
        b.cache.k_scale.stride = {8, 4, 1};
        b.depth = Depth::metadata;
      }));
  cases.push_back(broken_batch("Q-M50", "Q-M50 v_scale: absent, expected a scale of the i8 cache", [](B& b) {
    b.ask_for_token_scales();
    b.cache.v_scale = {};
  }));
  cases.push_back(broken_append("Q-M50", "Q-M50 k_scale: absent, expected a scale of the i8 cache", [](B& b) {
    b.ask_for_token_scales();
    b.cache.k_scale = {};
  }));
  cases.push_back(
      broken_batch("Q-M51",
                   "Q-M51 k_scale: three axes beside a cache of f32, expected scalar, [1] or [num_kv_heads], or a cache of "
                   "i8 or an fp8 format",
                   [](B& b) {
                     b.ask_for_token_scales();
                     b.cache.k = Tensor::contiguous(b.k.data(), DType::f32, B::kPages, B::kPage, B::kKvHeads, B::kDim);
                     b.cache.v = Tensor::contiguous(b.v.data(), DType::f32, B::kPages, B::kPage, B::kKvHeads, B::kDim);
                     b.cache.v_scale = {};
                   }));
}

void add_block_scale_cases(Cases& cases) {
  cases.push_back(
      broken_batch("Q-M52", "Q-M52 v_block_scale: absent, expected fp8_e4m3fn scales of blocks of 16 nvfp4", [](B& b) {
        b.ask_for_blocks(DType::nvfp4);
        b.cache.v_block_scale = {};
      }));
  cases.push_back(
      broken_append("Q-M52", "Q-M52 k_block_scale: dtype fp8_e4m3fn, expected fp8_e8m0 scales of blocks of 32 mxfp4", [](B& b) {
        b.ask_for_blocks(DType::mxfp4);
        b.cache.k_block_scale.dtype = DType::fp8_e4m3fn;
      }));
  cases.push_back(broken_batch(
      "Q-M52", "Q-M52 k_block_scale: given beside cache.k of f32, expected absent unless it is nvfp4 or mxfp4", [](B& b) {
        b.block_scales.assign(1024, 0x38);
        b.cache.k_block_scale = Tensor::contiguous(b.block_scales.data(), DType::fp8_e4m3fn, B::kPages, B::kPage, B::kKvHeads, 1);
      }));
  cases.push_back(broken_batch("Q-M53",
                               "Q-M53 k_block_scale: shape [16, 4, 2, 2], expected [16, 4, 2, 4] = [num_pages, page_size, "
                               "num_kv_heads, head_dim / 16]",
                               [](B& b) {
                                 b.ask_for_blocks(DType::nvfp4);
                                 b.cache.k_block_scale.shape[3] = 2;
                               }));
  cases.push_back(broken_append("Q-M53",
                                "Q-M53 v_block_scale: shape [16, 2, 4, 2], expected [16, 4, 2, 2] = [num_pages, page_size, "
                                "num_kv_heads, head_dim / 32]",
                                [](B& b) {
                                  b.ask_for_blocks(DType::mxfp4);
                                  std::swap(b.cache.v_block_scale.shape[1], b.cache.v_block_scale.shape[2]);
                                  std::swap(b.cache.v_block_scale.stride[1], b.cache.v_block_scale.stride[2]);
                                }));
  cases.push_back(broken_batch("Q-M54", "Q-M54 cache.v: head_dim 48, expected a multiple of 32, the block of mxfp4", [](B& b) {
    b.ask_for_blocks(DType::mxfp4);
    b.cache.v.shape[3] = 24;
    b.batch.output.shape[2] = 48;
    b.batch.value.shape[2] = 48;
  }));
  cases.push_back(broken_batch("Q-M55", "Q-M55 cache.k: stride 2 of the bytes of a row, expected 1", [](B& b) {
    b.ask_for_blocks(DType::nvfp4);
    b.codes4.resize(2 * b.codes4.size());
    b.cache.k = Tensor::contiguous(b.codes4.data(), DType::nvfp4, B::kPages, B::kPage, B::kKvHeads, 64);
    b.cache.k.shape[3] = 32;
    b.cache.k.stride[3] = 2;
    b.depth = Depth::tables;
  }));
  cases.push_back(broken_batch("Q-M22", "Q-M22 cache.k: head_dim 64, expected 63 as query", [](B& b) {  // an odd head_dim
    b.ask_for_blocks(DType::nvfp4);
    b.batch.query.shape[2] = 63;
    b.batch.key.shape[2] = 63;
  }));
}

void add_row_scale_cases(Cases& cases) {
  cases.push_back(broken_batch("Q-M39",
                               "Q-M39 output_scale: given beside output of f32, expected absent unless output is fp8_e4m3fn",
                               [](B& b) { b.batch.output_scale = Tensor::contiguous(b.v_scale.data(), DType::f32, 1); }));
  cases.push_back(broken_batch("Q-M39", "Q-M39 output_scale: f32 [2], expected f32 scalar or [1]", [](B& b) {
    b.batch.output.dtype = DType::fp8_e4m3fn;
    b.batch.output_scale = Tensor::contiguous(b.v_scale.data(), DType::f32, 2);
  }));
  cases.push_back(broken_batch("Q-M40", "Q-M40 q_scale: given beside query of f32, expected absent unless query is fp8_e4m3fn",
                               [](B& b) { b.batch.q_scale = Tensor::contiguous(b.v_scale.data(), DType::f32, 1); }));
  cases.push_back(broken_batch("Q-M40", "Q-M40 q_scale: f32 [4], expected f32 scalar, [1] or [2] = [num_kv_heads]", [](B& b) {
    ask_in_fp8(b);
    b.batch.q_scale = Tensor::contiguous(b.alibi_slopes.data(), DType::f32, 4);
  }));
  cases.push_back(broken_batch("Q-T17", "Q-T17 output_scale: 0, expected finite and > 0", [](B& b) {
    b.batch.output.dtype = DType::fp8_e4m3fn;
    b.batch.output_scale = Tensor::contiguous(&b.alibi_slopes[3], DType::f32);
  }));
}

void add_padding_cases(Cases& cases) {
  cases.push_back(broken_batch("Q-M38", "Q-M38 padding: value 9, expected refused, left or zero",
                               [](B& b) { b.batch.padding = static_cast<Padding>(9); }));
}

void add_workspace_cases(Cases& cases) {
  const auto shares = [](const std::string& tensor) {
    return "Q-M37 workspace: shares memory with " + tensor + ", expected memory of its own";
  };
  cases.push_back(broken_workspace(shares("output"), 64, [](B& b) { return b.output.data(); }));
  cases.push_back(broken_workspace(shares("query"), 4, [](B& b) { return &b.query.back(); }));  // the last element
  cases.push_back(broken_workspace(shares("lse"), 4, [](B& b) { return b.lse.data(); }));
  cases.push_back(broken_workspace(shares("key"), 64, [](B& b) { return b.key.data(); }));
  cases.push_back(broken_workspace(shares("value"), 64, [](B& b) { return b.value.data(); }));
  cases.push_back(broken_workspace(shares("cache.k"), 64, [](B& b) { return &b.k_at(15, 0); }));  // an unused page
  cases.push_back(broken_workspace(shares("cache.v"), 64, [](B& b) { return &b.v_at(15, 0); }));
  cases.push_back(broken_workspace(shares("query_start_loc"), 4, [](B& b) { return b.query_start_loc.data(); }));
  cases.push_back(broken_workspace(shares("seq_lens"), 4, [](B& b) { return b.seq_lens.data(); }));
  cases.push_back(broken_workspace(shares("cached_lens"), 4, [](B& b) { return b.cached_lens.data(); }));
  cases.push_back(broken_workspace(shares("block_table"), 4, [](B& b) { return b.block_table.data(); }));
  cases.push_back(broken_workspace(shares("slot_mapping"), 8, [](B& b) { return b.slot_mapping.data(); }));
  cases.push_back(broken_workspace(shares("request_ids"), 8, [](B& b) { return b.request_ids.data(); }));
  cases.push_back(broken_workspace(shares("k_scale"), 4, [](B& b) { return b.k_scale.data(); }));
  cases.push_back(broken_workspace(shares("v_scale"), 4, [](B& b) { return b.v_scale.data(); }));
  cases.push_back(broken_workspace(shares("alibi_slopes"), 4, [](B& b) { return b.alibi_slopes.data(); }));
  cases.push_back(broken_workspace(shares("sinks"), 4, [](B& b) { return b.sinks.data(); }));
}

void add_start_cases(Cases& cases) {
  cases.push_back(broken_batch("Q-T01", "Q-T01 query_start_loc[0]: 1, expected 0", [](B& b) { b.query_start_loc[0] = 1; }));
  cases.push_back(broken_batch("Q-T02", "Q-T02 query_start_loc[2]: 2, expected at least query_start_loc[1] = 3",
                               [](B& b) { b.query_start_loc[2] = 2; }));
  cases.push_back(
      broken_batch("Q-T03", "Q-T03 block_table[1][3]: page 16 outside [0, 16)", [](B& b) { b.block_table[6 + 3] = 16; }));
  cases.push_back(broken_batch("Q-T03", "Q-T03 block_table[0][0]: page -1 outside [0, 16)", [](B& b) { b.block_table[0] = -1; }));
  cases.push_back(broken_batch("Q-T04",
                               "Q-T04 query_start_loc[4]: 5, expected num_tokens = 6 (rows behind the last "
                               "start are padding only if batch.padding says so)",
                               [](B& b) { b.query_start_loc = {0, 3, 4, 5, 5}; }));
  cases.push_back(
      broken_batch("Q-T04", "Q-T04 query_start_loc[4]: 7, expected num_tokens = 6", [](B& b) { b.query_start_loc[4] = 7; }));
  for (const Padding padding : {Padding::left, Padding::zero})
    cases.push_back(broken_batch("Q-T16", "Q-T16 query_start_loc[4]: 7, expected at most num_tokens = 6", [padding](B& b) {
      b.query_start_loc[4] = 7;
      b.batch.padding = padding;
    }));
}

void add_halves_cases(Cases& cases) {
  const std::string hint =
      ", expected indices of their own type (looks like an int64 array read as int32: pass it as i64, or convert it)";
  cases.push_back(broken_batch("Q-T05", "Q-T05 query_start_loc: every second value is 0 (0 0 3 0 4)" + hint,
                               [](B& b) { b.query_start_loc = {0, 0, 3, 0, 4}; }));
  cases.push_back(broken_batch("Q-T05", "Q-T05 seq_lens: every second value is 0 (8 0 17 0)" + hint, [](B& b) {
    b.seq_lens = {8, 0, 17, 0};
    b.batch.cached_lens = Tensor{};
  }));
  cases.push_back(broken_batch("Q-T05", "Q-T05 cached_lens: every second value is 0 (8 0 17 0)" + hint,
                               [](B& b) { b.cached_lens = {8, 0, 17, 0}; }));
  cases.push_back(broken_batch("Q-T05", "Q-T05 block_table: every second value is 0 (4 0 5 0 6 0)" + hint, [](B& b) {
    b.options.sliding_window.reset();
    for (std::size_t column = 0; column < 6; ++column)
      for (std::size_t r = 0; r < 4; ++r) b.block_table[r * 6 + column] = column % 2 == 0 ? 4 + static_cast<int>(column / 2) : 0;
  }));
}

void add_length_cases(Cases& cases) {
  cases.push_back(broken_batch("Q-T06",
                               "Q-T06 seq_lens[0]: 2, expected at least query_len = 3 (seq_len counts the query rows too)",
                               [](B& b) { b.seq_lens[0] = b.cached_lens[0] = 2; }));
  cases.push_back(
      broken_batch("Q-T06", "Q-T06 seq_lens[3]: -5, expected at least query_len = 0", [](B& b) { b.seq_lens[3] = -5; }));
  cases.push_back(broken_batch("Q-T07", "Q-T07 seq_lens[0]: 1099511627776, expected at most 2147483647", [](B& b) {
    static std::int64_t lens[] = {std::int64_t{1} << 40, 17, 2, 3};
    b.batch.seq_lens = Tensor::contiguous(lens, DType::i64, 4);
  }));
  cases.push_back(broken_batch("Q-T08", "Q-T08 cached_lens[0]: 4 outside [5, 8] = [context_len, seq_len]",
                               [](B& b) { b.cached_lens[0] = 4; }));
  cases.push_back(broken_batch("Q-T08", "Q-T08 cached_lens[1]: 18 outside [16, 17] = [context_len, seq_len]",
                               [](B& b) { b.cached_lens[1] = 18; }));
  cases.push_back(broken_batch(
      "Q-T09",
      "Q-T09 cached_lens[2]: 0, expected seq_len = 2, or key and value (tokens from cached_len on are in neither the "
      "cache nor the batch)",
      [](B& b) { b.batch.key = b.batch.value = Tensor{}; }));
  cases.push_back(broken_batch("Q-T10",
                               "Q-T10 block_table[1]: 4 pages wide, expected at least 5 for 17 cached tokens in pages of 4",
                               [](B& b) { b.batch.block_table.shape[1] = 4; }));
  cases.push_back(broken_batch("Q-T11", "Q-T11 request_ids[3]: -1, expected >= 0", [](B& b) { b.request_ids[3] = -1; }));
  cases.push_back(broken_batch("Q-T12", "Q-T12 request_ids[3]: 70, expected an id of its own, not that of request 0",
                               [](B& b) { b.request_ids[3] = 70; }));
}

void add_value_cases(Cases& cases) {
  cases.push_back(broken_batch("Q-T13", "Q-T13 k_scale[1]: nan, expected finite and > 0", [](B& b) { b.k_scale[1] = kNaN; }));
  cases.push_back(broken_append("Q-T13", "Q-T13 v_scale[0]: 0, expected finite and > 0", [](B& b) { b.v_scale[0] = 0.0f; }));
  cases.push_back(broken_batch("Q-T14", "Q-T14 alibi_slopes[0]: inf, expected finite", [](B& b) { b.alibi_slopes[0] = kInf; }));
  cases.push_back(broken_batch("Q-T15", "Q-T15 sinks[2]: inf, expected neither NaN nor +inf", [](B& b) { b.sinks[2] = kInf; }));
}

void add_slot_cases(Cases& cases) {
  cases.push_back(broken_batch(
      "Q-S01", "Q-S01 slot_mapping[4]: slot 64 outside [0, 64) = num_pages 16 * page_size 4 (negative skips the row)",
      [](B& b) { b.slot_mapping[4] = 64; }));
  cases.push_back(broken_append(
      "Q-S01", "Q-S01 slot_mapping[0]: slot 64 outside [0, 64) = num_pages 16 * page_size 4 (negative skips the row)",
      [](B& b) { b.slot_mapping[0] = 64; }));
  cases.push_back(broken_batch("Q-S02", "Q-S02 slot_mapping[5]: slot 40, expected a slot of its own, not that of row 4",
                               [](B& b) { b.slot_mapping[5] = 40; }));
  cases.push_back(broken_append("Q-S02", "Q-S02 slot_mapping[1]: slot 13, expected a slot of its own, not that of row 0",
                                [](B& b) { b.batch.slot_mapping.stride[0] = 0; }));
  cases.push_back(broken_batch("Q-S03",
                               "Q-S03 slot_mapping[3]: slot 60 (page 15, offset 0), expected slot 36 (page 9, offset 0), where "
                               "block_table[1][4] has position 16 of request 1",
                               [](B& b) { b.slot_mapping[3] = 60; }));
  cases.push_back(broken_batch(
      "Q-S04",
      "Q-S04 slot_mapping[4]: slot 28 (page 7, offset 0) is written for position 0 of request 2, expected the position "
      "at which it is read, but block_table[1][2] reads it as position 8 of request 1",
      [](B& b) { b.slot_mapping[4] = 28; }));
  for (const Padding padding : {Padding::left, Padding::zero})
    cases.push_back(
        broken_batch("Q-S09",
                     "Q-S09 slot_mapping[5]: slot 41, expected negative (the row is padding: what it holds belongs to "
                     "no request)",
                     [padding](B& b) {
                       b.query_start_loc = {0, 3, 4, 5, 5};
                       b.seq_lens[2] = 1;
                       b.batch.padding = padding;
                     }));
  cases.push_back(broken_append("Q-S05", "Q-S05 slot_mapping: shape [6], expected [n] with n at most 5, the rows of key",
                                [](B& b) { b.batch.key.shape[0] = b.batch.value.shape[0] = 5; }));
  cases.push_back(broken_append("Q-S06", "Q-S06 key: dtype fp8_e5m2, expected f32, f16 or bf16",
                                [](B& b) { b.batch.key.dtype = DType::fp8_e5m2; }));
  cases.push_back(
      broken_append("Q-S06", "Q-S06 value: dtype f16, expected f32 as key", [](B& b) { b.batch.value.dtype = DType::f16; }));
  cases.push_back(broken_append("Q-S07", "Q-S07 cache.v: shares memory with cache.k, expected memory of its own",
                                [](B& b) { b.cache.v.data = b.cache.k.data; }));
  cases.push_back(broken_append(
      "Q-S07", "Q-S07 cache.k: f32 [16, 4, 2, 8] strides [0, 16, 8, 1], expected an address of its own for every element",
      [](B& b) { b.cache.k.stride[0] = 0; }));
  cases.push_back(broken_append("Q-S07", "Q-S07 v_scale: shares memory with k_scale, expected memory of its own", [](B& b) {
    b.ask_for_token_scales();
    b.cache.v_scale.data = b.cache.k_scale.data;
  }));
  cases.push_back(broken_append(
      "Q-S07", "Q-S07 k_scale: f32 [16, 4, 2] strides [8, 2, 0], expected an address of its own for every element", [](B& b) {
        b.ask_for_token_scales();
        b.cache.k_scale.stride[2] = 0;
      }));
  cases.push_back(broken_append("Q-S08", "Q-S08 k_scale: shares memory with key, expected memory of its own", [](B& b) {
    b.ask_for_token_scales();
    b.key.resize(b.k_token_scale.size());
    b.batch.key = Tensor::contiguous(b.k_token_scale.data(), DType::f32, B::kTokens, B::kKvHeads, B::kDim);
  }));
  cases.push_back(broken_append("Q-S08", "Q-S08 cache.k: shares memory with key, expected memory of its own",
                                [](B& b) { b.batch.key.data = &b.k[64]; }));
}

void add_ledger_cases(Cases& cases) {
  cases.push_back(broken_batch(
      "Q-L01",
      "Q-L01 block_table[1][4]: request 71 reads position 16 from page 9 offset 0, which was never written, expected a "
      "written slot",
      [](B& b) { b.ledger.record(9 * 4, WriteTag{}); }));
  cases.push_back(broken_batch(
      "Q-L02",
      "Q-L02 block_table[1][2]: request 71 reads position 9 from page 7 offset 1, which was written by request 70 for "
      "position 9 in step 6, expected a slot of request 71 or a page shared with it",
      [](B& b) {
        b.ledger.begin_step(6);
        b.ledger.record(7 * 4 + 1, {70, 9});
      }));
  cases.push_back(broken_batch(
      "Q-L03",
      "Q-L03 block_table[0][1]: request 70 reads position 6 from page 3 offset 2, which was written by request 70 for "
      "position 5 in step 4, expected a slot written for position 6",
      [](B& b) { b.ledger.record(3 * 4 + 2, {70, 5}); }));
  cases.push_back(broken_batch(
      "Q-L04",
      "Q-L04 block_table[1][4]: request 71 reads position 16 from page 9 offset 0, which was written by request 71 for "
      "position 16 in step 4 and recycled since, expected a slot written after its page was handed out",
      [](B& b) { b.ledger.recycle(9); }));
  cases.push_back(broken_batch("Q-L07",
                               "Q-L07 block_table[0][1]: request 70 reads position 6 from page 3 offset 2, which was written by "
                               "request 70 for position 6 in "
                               "step 4, V changed since, expected the bytes of that write",
                               [](B& b) {
                                 b.keep_digests();
                                 b.v_at(3, 2) = -b.v_at(3, 2);
                               }));
  cases.push_back(broken_batch("Q-L05", "Q-L05 ledger: 8 pages of 4, expected 16 pages of 4 as the cache",
                               [](B& b) { b.ledger = SlotLedger(8, 4); }));
  cases.push_back(broken_append("Q-L05", "Q-L05 ledger: 8 pages of 4, expected 16 pages of 4 as the cache",
                                [](B& b) { b.ledger = SlotLedger(8, 4); }));
  cases.push_back(broken_append("Q-L06", "Q-L06 tags[2]: request -1, expected at least 0 (-1 is the ledger's 'nobody')",
                                [](B& b) { b.tags[2].request = -1; }));
  cases.push_back(
      broken_append("Q-L06", "Q-L06 tags[0]: position -7, expected at least 0", [](B& b) { b.tags[0].position = -7; }));
}

/// A block scale of nvfp4 with the code `code`, which is `value`.
BrokenCase broken_block_scale(std::uint8_t code, const std::string& value) {
  return broken_batch(
      "Q-C08",
      "Q-C08 k_block_scale[3][1][1][2]: " + value +
          " at position 5 of request 0 (page 3, offset 1, head 1, block 2), expected a number that is not negative",
      [code](B& b) {
        b.ask_for_blocks(DType::nvfp4);
        b.block_scales[static_cast<std::size_t>(((3 * B::kPage + 1) * B::kKvHeads + 1) * 4 + 2)] = code;
      });
}

void add_content_cases(Cases& cases) {
  cases.push_back(broken_batch("Q-C01", "Q-C01 query[3][0][5]: nan in request 1 position 16, expected finite",
                               [](B& b) { b.query[3 * 32 + 5] = kNaN; }));
  cases.push_back(broken_batch(
      "Q-C02", "Q-C02 cache.k[7][1][0][0]: inf at position 9 of request 1 (page 7, offset 1, head 0, dim 0), expected finite",
      [](B& b) { b.k_at(7, 1) = kInf; }));
  cases.push_back(broken_batch(
      "Q-C03", "Q-C03 cache.v[3][3][0][0]: inf at position 7 of request 0 (page 3, offset 3, head 0, dim 0), expected finite",
      [](B& b) { b.v_at(3, 3) = 3e38f; }));  // finite, but not after v_scale 2
  cases.push_back(broken_batch("Q-C04", "Q-C04 key[5][1][7]: -inf in request 2 position 1, expected finite",
                               [](B& b) { b.key.back() = -kInf; }));
  cases.push_back(broken_batch("Q-C05", "Q-C05 value[4][0][0]: nan in request 2 position 0, expected finite",
                               [](B& b) { b.value[4 * 16] = kNaN; }));
  cases.push_back(broken_batch(
      "Q-C07", "Q-C07 k_scale[3][1][1]: nan at position 5 of request 0 (page 3, offset 1, head 1), expected finite and > 0",
      [](B& b) {
        b.ask_for_token_scales();
        b.k_token_scale[(3 * B::kPage + 1) * B::kKvHeads + 1] = kNaN;
      }));
  cases.push_back(broken_batch(
      "Q-C07", "Q-C07 v_scale[8][0][0]: 0 at position 12 of request 1 (page 8, offset 0, head 0), expected finite and > 0",
      [](B& b) {
        b.ask_for_token_scales();
        b.v_token_scale[8 * B::kPage * B::kKvHeads] = 0.0f;
      }));
  cases.push_back(broken_block_scale(0x7F, "nan"));
  cases.push_back(broken_block_scale(0xB8, "-1"));
  cases.push_back(broken_batch("Q-C02",
                               "Q-C02 cache.k[3][1][1][33]: inf at position 5 of request 0 (page 3, offset 1, head 1, dim 33), "
                               "expected finite",
                               [](B& b) {
                                 b.ask_for_blocks(DType::mxfp4);
                                 const std::int64_t row = (3 * B::kPage + 1) * B::kKvHeads + 1;
                                 b.block_scales[static_cast<std::size_t>(row * 2 + 1)] = 254;
                                 for (std::int64_t i = 0; i < 16; ++i)
                                   b.codes4[static_cast<std::size_t>(row * 32 + 16 + i)] = i == 0 ? 0x71 : 0x11;
                               }));
  cases.push_back(broken_merge("Q-C06", "Q-C06 lse_a[0][0]: inf, expected finite, or -inf for an empty side",
                               [](M& m) { m.weight_a[0] = kInf; }));
  cases.push_back(broken_merge("Q-C06", "Q-C06 lse_b[2][3]: nan, expected finite, or -inf for an empty side",
                               [](M& m) { m.weight_b[11] = kNaN; }));
}

/// broken_batch() with causal, q_begin and key_begin.
template <typename Edit>
BrokenCase broken_masks(const char* rule, const char* message, Edit edit) {
  return broken_batch(rule, message, [edit](B& b) {
    b.ask_for_masks();
    edit(b);
  });
}

void add_mask_cases(Cases& cases) {
  cases.push_back(
      broken_masks("Q-M27", "Q-M27 q_begin: dtype f32, expected i32 or i64", [](B& b) { b.batch.q_begin.dtype = DType::f32; }));
  cases.push_back(broken_masks("Q-M29", "Q-M29 key_begin: shape [3], expected [4] = [num_reqs]",
                               [](B& b) { b.batch.key_begin.shape[0] = 3; }));
  cases.push_back(broken_masks("Q-M29", "Q-M29 causal: shape [6], expected [4] = [num_reqs]", [](B& b) {
    b.causal.resize(6);
    b.batch.causal = Tensor::contiguous(b.causal.data(), DType::u8, 6);
  }));
  cases.push_back(broken_batch("Q-M41", "Q-M41 causal: dtype i32, expected u8 (bool)",
                               [](B& b) { b.batch.causal = Tensor::contiguous(b.q_begin.data(), DType::i32, 4); }));
  cases.push_back(broken_masks("Q-M42", "Q-M42 causal: options.causal = false beside batch.causal, expected one of the two",
                               [](B& b) { b.options.causal = false; }));
  cases.push_back(broken_batch("Q-M43", "Q-M43 window_right: -1, expected >= 0; leave it out for no window", [](B& b) {
    b.options.causal = false;
    b.options.window_right = -1;
  }));
  cases.push_back(broken_batch(
      "Q-M44", "Q-M44 window_right: 4 where every request is causal, expected absent, or a request that is not causal",
      [](B& b) { b.options.window_right = 4; }));
  cases.push_back(broken_masks("Q-T06", "Q-T06 seq_lens[3]: -1, expected at least 0", [](B& b) { b.seq_lens[3] = -1; }));
  cases.push_back(broken_masks("Q-T18", "Q-T18 causal[2]: 255, expected 0 or 1", [](B& b) { b.causal[2] = 255; }));
  cases.push_back(
      broken_masks("Q-T19", "Q-T19 q_begin[0]: -4 outside [0, 2147483644] (query_len = 3)", [](B& b) { b.q_begin[0] = -4; }));
  cases.push_back(broken_masks("Q-T19", "Q-T19 q_begin[1]: 2147483647 outside [0, 2147483646] (query_len = 1)",
                               [](B& b) { b.q_begin[1] = 2147483647; }));
  cases.push_back(broken_masks("Q-T20", "Q-T20 key_begin[1]: -16 outside [0, 2147483630] (seq_len = 17)",
                               [](B& b) { b.key_begin[1] = -16; }));
  cases.push_back(broken_masks("Q-T21",
                               "Q-T21 q_begin[2]: 100, expected key_begin + context_len = 0, or cached_len = seq_len (keys from "
                               "cached_len on are rows of key, at the end of the sequence)",
                               [](B& b) { b.q_begin[2] = 100; }));
  cases.push_back(
      broken_masks("Q-T21",
                   "Q-T21 cached_lens[2]: 0, expected seq_len = 1, which is less than query_len = 2 (rows of key would "
                   "stand for keys that are not there)",
                   [](B& b) { b.seq_lens[2] = 1; }));
}

/// A page at two places of one request: attend() serves it, and the rules of slots and the ledger know it without this one.
template <typename Cases>
void add_distinct_slot_cases(Cases& cases) {
  cases.push_back(
      broken_batch("Q-T22",
                   "Q-T22 block_table[1][3]: page 7 at positions 12 to 15, expected slots that the request sees once: "
                   "block_table[1][2] has that page at positions 8 to 11",
                   [](B& b) {
                     b.use_ledger = false;
                     b.batch.slot_mapping = Tensor{};
                     b.block_table[6 + 3] = 7;
                   }));
  cases.push_back(broken_batch("Q-T22",
                               "Q-T22 block_table[1][4]: page 7 at position 16, expected slots that the request sees once: "
                               "block_table[1][2] has that page at positions 8 to 11",
                               [](B& b) {
                                 b.use_ledger = false;
                                 b.batch.slot_mapping = Tensor{};
                                 b.block_table[6 + 4] = 7;
                               }));
}

/// broken_batch() with spans, prefix_lens, tree_mask and tree_lens.
template <typename Edit>
BrokenCase broken_shapes(const char* rule, const char* message, Edit edit) {
  return broken_batch(rule, message, [edit](B& b) {
    b.ask_for_shapes();
    edit(b);
  });
}

void add_shape_cases(Cases& cases) {
  const auto add = [&](const char* rule, const char* message, auto edit) { cases.push_back(broken_shapes(rule, message, edit)); };
  add("Q-V01", "Q-V01 attention_chunk: 0, expected >= 1; leave it out for no chunks",
      [](B& b) { b.options.attention_chunk = 0; });
  cases.push_back(broken_batch("Q-V02", "Q-V02 prefix_len: -1, expected >= 0; leave it out for no prefix",
                               [](B& b) { b.options.prefix_len = -1; }));
  add("Q-V03", "Q-V03 prefix_len: options.prefix_len beside batch.prefix_lens, expected one of the two",
      [](B& b) { b.options.prefix_len = 4; });
  add("Q-V04", "Q-V04 spans: shape [8, 2], expected [4, max_spans, 2]",
      [](B& b) { b.batch.spans = Tensor::contiguous(b.spans.data(), DType::i32, 8, 2); });
  add("Q-V04", "Q-V04 spans: shape [2, 4, 2], expected [4, max_spans, 2]",
      [](B& b) { b.batch.spans = Tensor::contiguous(b.spans.data(), DType::i32, 2, 4, 2); });
  add("Q-V05", "Q-V05 tree_lens: absent, expected given beside tree_mask", [](B& b) { b.batch.tree_lens = {}; });
  add("Q-V05", "Q-V05 tree_mask: u8 [3, 2], expected u8 [6, 1 to 32]",
      [](B& b) { b.batch.tree_mask = Tensor::contiguous(b.tree_mask.data(), DType::u8, 3, 2); });
  add("Q-V06",
      "Q-V06 spans[0][1]: [5, 7), expected 0 <= begin <= end <= 2^31 - 1, behind the span before, and empty after an "
      "empty one",
      [](B& b) { b.spans[2] = 5; });
  add("Q-V06",
      "Q-V06 spans[1][1]: [3, 5), expected 0 <= begin <= end <= 2^31 - 1, behind the span before, and empty after an "
      "empty one",
      [](B& b) { b.spans[6] = 3, b.spans[7] = 5; });
  add("Q-V06",
      "Q-V06 spans[0][0]: [2, 1), expected 0 <= begin <= end <= 2^31 - 1, behind the span before, and empty after an "
      "empty one",
      [](B& b) { b.spans[1] = 1; });
  add("Q-V07", "Q-V07 prefix_lens[1]: -4, expected >= 0", [](B& b) { b.prefix_lens[1] = -4; });
  add("Q-V08", "Q-V08 tree_lens[2]: 3 outside [0, 8]: the bits of a row, and at most seq_len = 2",
      [](B& b) { b.tree_lens[2] = 3; });
  add("Q-V08", "Q-V08 tree_lens[1]: 9 outside [0, 8]: the bits of a row, and at most seq_len = 17",
      [](B& b) { b.tree_lens[1] = 9; });
  add("Q-V09",
      "Q-V09 tree_mask[5]: bit 1 is 0, expected 1: the row's own key (bit b of a row is bit b % 8, counted from the "
      "lowest, of byte b / 8)",
      [](B& b) { b.tree_mask[5] = 1; });
  add("Q-V10", "Q-V10 tree_mask[4]: bit 1 is 1, expected 0 behind bit 0, the row's own key, in a causal request",
      [](B& b) { b.tree_mask[4] = 3; });
  add("Q-M27", "Q-M27 spans: dtype f32, expected i32 or i64", [](B& b) { b.batch.spans.dtype = DType::f32; });
  add("Q-M29", "Q-M29 tree_lens: shape [3], expected [4] = [num_reqs]", [](B& b) { b.batch.tree_lens.shape[0] = 3; });
}

void add_merge_cases(Cases& cases) {
  cases.push_back(
      broken_merge("Q-G01", "Q-G01 out_b: shape [2, 4, 8], expected [3, 4, 8] as out_a", [](M& m) { m.out_b.shape[0] = 2; }));
  cases.push_back(broken_merge("Q-G01", "Q-G01 out_a: shape [3, 32], expected [num_tokens, num_q_heads, head_dim]",
                               [](M& m) { m.out_a = Tensor::contiguous(m.a.data(), DType::f32, 3, 32); }));
  cases.push_back(broken_merge("Q-G02", "Q-G02 out_a: dtype fp8_e4m3fn, expected f32, f16 or bf16",
                               [](M& m) { m.out_a.dtype = DType::fp8_e4m3fn; }));
  cases.push_back(broken_merge("Q-G02", "Q-G02 out: dtype fp8_e4m3fn, expected f32, f16, bf16, or fp8_e4m3fn with output_scale",
                               [](M& m) { m.out.dtype = DType::fp8_e4m3fn; }));
  cases.push_back(broken_merge("Q-G07", "Q-G07 output_scale: given beside out of f32, expected absent unless out is fp8_e4m3fn",
                               [](M& m) { m.output_scale = Tensor::contiguous(&m.scale, DType::f32); }));
  cases.push_back(broken_merge("Q-T17", "Q-T17 output_scale: -1, expected finite and > 0", [](M& m) {
    m.out.dtype = DType::fp8_e4m3fn;
    m.scale = -1;
    m.output_scale = Tensor::contiguous(&m.scale, DType::f32);
  }));
  cases.push_back(broken_merge("Q-G03", "Q-G03 lse_a: shape [4, 3], expected [3, 4] = [num_tokens, num_q_heads]",
                               [](M& m) { m.lse_a = Tensor::contiguous(m.weight_a.data(), DType::f32, 4, 3); }));
  cases.push_back(broken_merge("Q-G04", "Q-G04 lse_b: dtype f16, expected f32", [](M& m) { m.lse_b.dtype = DType::f16; }));
  cases.push_back(broken_merge("Q-G05",
                               "Q-G05 out: f32 [3, 4, 8] strides [0, 8, 1], expected an address of its own for every element",
                               [](M& m) { m.out.stride[0] = 0; }));
  cases.push_back(broken_merge("Q-G06",
                               "Q-G06 out: shares memory with out_a, expected exactly the same view, or memory of its own",
                               [](M& m) { m.out.data = &m.a[32]; }));
  cases.push_back(broken_merge("Q-G06", "Q-G06 lse: shares memory with out_b, expected memory of its own",
                               [](M& m) { m.lse.data = m.out_b.data; }));
}

void add_stack_cases(Cases& cases) {
  using S = SmallStack;
  cases.push_back(broken_stack("Q-G08", "Q-G08 out: shape [2, 4, 8], expected [3, 4, 8] as a part of outs",
                               [](S& s) { s.out.shape[0] = 2; }));
  cases.push_back(broken_stack("Q-G08",
                               "Q-G08 outs: shape [0, 3, 4, 8], expected [num_parts >= 1, num_tokens, num_q_heads, head_dim]",
                               [](S& s) { s.outs.shape[0] = s.lses.shape[0] = 0; }));
  cases.push_back(broken_stack("Q-G09", "Q-G09 lses: shape [3, 4, 2], expected [2, 3, 4] = [num_parts, num_tokens, num_q_heads]",
                               [](S& s) { s.lses = Tensor::contiguous(s.weights.data(), DType::f32, 3, 4, 2); }));
  cases.push_back(broken_stack("Q-G09", "Q-G09 lse: shape [4, 3], expected [3, 4] = [num_tokens, num_q_heads]",
                               [](S& s) { s.lse = Tensor::contiguous(s.result_lse.data(), DType::f32, 4, 3); }));
  cases.push_back(broken_stack("Q-G10", "Q-G10 out: shares memory with outs, expected memory of its own",
                               [](S& s) { s.out.data = s.rows.data(); }));
  cases.push_back(broken_stack("Q-G02", "Q-G02 outs: dtype fp8_e4m3fn, expected f32, f16 or bf16",
                               [](S& s) { s.outs.dtype = DType::fp8_e4m3fn; }));
  cases.push_back(broken_stack("Q-G04", "Q-G04 lses: dtype bf16, expected f32", [](S& s) { s.lses.dtype = DType::bf16; }));
  cases.push_back(broken_stack("Q-C06", "Q-C06 lses[1][2][3]: inf, expected finite, or -inf for an empty part",
                               [](S& s) { s.weights[23] = kInf; }));
}

void add_shard_cases(Cases& cases) {
  cases.push_back(
      broken_shard("Q-D01", "Q-D01 rank: 2 outside [0, 2)", [] { return check_shard(ContextShard{.rank = 2, .world = 2}); }));
  cases.push_back(
      broken_shard("Q-D01", "Q-D01 world: 0, expected at least 1", [] { return check_shard(HeadShard{.rank = 0, .world = 0}); }));
  cases.push_back(broken_shard("Q-D02", "Q-D02 interleave: 0, expected at least 1",
                               [] { return check_shard(ContextShard{.interleave = 0}, 16); }));
  cases.push_back(broken_shard("Q-D02", "Q-D02 span: -3, expected at least 0 (0 = interleaved)",
                               [] { return check_shard(ContextShard{.span = -3}); }));
  cases.push_back(broken_shard("Q-D02", "Q-D02 interleave: 4611686018427387904, expected at most 2147483647",
                               [] { return check_shard(ContextShard{.rank = 3, .world = 4, .interleave = INT64_C(1) << 62}); }));
  cases.push_back(broken_shard("Q-D02", "Q-D02 span: 2147483648, expected at most 2147483647",
                               [] { return check_shard(ContextShard{.rank = 3, .world = 4, .span = INT64_C(1) << 31}); }));
  cases.push_back(broken_shard("Q-D03", "Q-D03 world: 3, expected a divisor or a multiple of num_kv_heads = 8",
                               [] { return check_shard(HeadShard{0, 3, 32, 8}); }));
  cases.push_back(broken_shard("Q-D03", "Q-D03 world: 16, expected a divisor of num_q_heads = 24",
                               [] { return check_shard(HeadShard{0, 16, 24, 8}); }));
  cases.push_back(broken_shard("Q-D03", "Q-D03 num_q_heads: 12, expected a multiple of num_kv_heads = 8",
                               [] { return check_shard(HeadShard{0, 2, 12, 8}); }));
  cases.push_back(broken_shard("Q-D04", "Q-D04 interleave: 8, expected a multiple of page_size = 16",
                               [] { return check_shard(ContextShard{.world = 2, .interleave = 8}, 16); }));
  cases.push_back(broken_shard("Q-D05", "Q-D05 page_size: 32 on rank 1, expected 16 as on rank 0", [] {
    const std::string names[] = {"num_reqs", "page_size"};
    const std::int64_t facts[] = {3, 16, 3, 32, 3, 16};
    return check_ranks(names, facts);
  }));
  cases.push_back(broken_shard("Q-D05", "Q-D05 facts: 3 entries, expected 0 of each rank", [] {
    const std::int64_t facts[] = {1, 2, 3};
    return check_ranks({}, facts);
  }));
  cases.push_back(broken_shard("Q-D05", "Q-D05 facts: 3 entries, expected 2 of each rank", [] {
    const std::string names[] = {"num_reqs", "page_size"};
    const std::int64_t facts[] = {3, 16, 3};
    return check_ranks(names, facts);
  }));
  const auto slots = [](std::int64_t second, std::int64_t third) {
    const std::int64_t slot_mapping[] = {70, second, third}, positions[] = {0, 1, 2};
    return check_shard_slots({.rank = 0, .world = 2}, slot_mapping, positions);
  };
  cases.push_back(broken_shard("Q-D06", "Q-D06 slot_mapping[1]: 71 for position 1, expected -1, because rank 1 holds it",
                               [slots] { return slots(71, 72); }));
  cases.push_back(broken_shard("Q-D06", "Q-D06 slot_mapping[2]: -1 for position 2, expected a slot, because rank 0 holds it",
                               [slots] { return slots(-1, -1); }));
  cases.push_back(broken_shard("Q-D07",
                               "Q-D07 sliding_window: 4096, expected absent in a ring: it hides a part of another rank's block",
                               [] { return check_prompts(Options{.sliding_window = 4096}, /*ring=*/true); }));
  cases.push_back(broken_shard("Q-D07", "Q-D07 causal: false, expected true",
                               [] { return check_prompts(Options{.causal = false}, /*ring=*/false); }));
  cases.push_back(broken_shard("Q-D07", "Q-D07 window_right: 3, expected absent: rows see no later key",
                               [] { return check_prompts(Options{.window_right = 3}, /*ring=*/false); }));
  cases.push_back(broken_shard(
      "Q-D07", "Q-D07 alibi_slopes: given, expected absent in a ring: a block's distance to the rows is in no call", [] {
        static float slopes[] = {0.5F};
        return check_prompts(Options{.alibi_slopes = Tensor::contiguous(slopes, DType::f32, 1)}, /*ring=*/true);
      }));
}

/// Three requests of 20 keys of context in pages of four, whose first three pages are the same.
Findings check_runs(std::vector<SharedRun> runs, bool alibi = false) {
  Problem p;
  p.page_size = 4;
  p.alibi = alibi;
  p.reqs.assign(3, {.query_len = 1, .context_len = 20, .cached_len = 21});
  const std::vector<std::int32_t> table{7, 8, 9, 1, 1, 1, 7, 8, 9, 2, 2, 2, 7, 8, 9, 3, 3, 3};
  return check_shared_runs(p, table, 6, runs);
}

void add_prefix_cases(Cases& cases) {
  const auto add = [&](std::string rule, std::string message, std::vector<SharedRun> runs, bool alibi = false) {
    cases.push_back(broken_shard(std::move(rule), std::move(message), [=] { return check_runs(runs, alibi); }));
  };
  add("Q-P01", "Q-P01 runs[0]: pages [4, 4), expected at least one of the 6 columns of block_table", {{0, 3, 4, 4}});
  add("Q-P01", "Q-P01 runs[0]: requests [1, 4), expected at least one of the 3 requests", {{1, 4, 0, 2}});
  add("Q-P02", "Q-P02 runs[1]: begins at page 1, expected page 2, where the runs before it end for request 0",
      {{0, 3, 0, 2}, {0, 1, 1, 3}});
  add("Q-P02", "Q-P02 runs[1]: begins at page 3, expected page 2, where the runs before it end for request 0",
      {{0, 3, 0, 2}, {0, 1, 3, 4}});
  add("Q-P03", "Q-P03 block_table[1][3]: page 2, expected page 1, as request 0 of the run", {{0, 2, 0, 4}});
  add("Q-P03",
      "Q-P03 runs[0]: ends at page 6, expected at most 5: full, cached pages of request 2 whose every key all of its rows see",
      {{2, 3, 0, 6}});
  add("Q-P03",
      "Q-P03 runs[0]: ends at page 2, expected at most 0: full, cached pages of request 2 whose every key all of its rows see "
      "without ALiBi",
      {{2, 3, 0, 2}}, true);
}

template <typename Mutate>
BrokenCase broken_lists(std::string rule, std::string message, Mutate mutate) {
  return broken_shard(std::move(rule), std::move(message), [mutate] {
    SmallLists l;
    mutate(l);
    return l.check();
  });
}

void add_list_shape_cases(Cases& cases) {
  using L = SmallLists;
  const auto add = [&](std::string rule, std::string message, void (*mutate)(L&)) {
    cases.push_back(broken_lists(std::move(rule), std::move(message), mutate));
  };
  add("Q-M01", "Q-M01 ids: absent, expected a tensor", [](L& l) { l.lists.ids = Tensor{}; });
  add("Q-M27", "Q-M27 ids: dtype f32, expected i32 or i64", [](L& l) { l.lists.ids.dtype = DType::f32; });
  add("Q-T06", "Q-T06 seq_lens[1]: -1, expected at least query_len = 1", [](L& l) { l.small.seq_lens[1] = -1; });
  add("Q-K01",
      "Q-K01 ids: shape [4, 4], expected [6, width] or [6, 2, width] = [num_tokens, num_kv_heads, width] (lists of rows)",
      [](L& l) { l.lists.ids.shape[0] = 4; });
  add("Q-K01",
      "Q-K01 ids: shape [6, 4], expected [4, width] or [4, 2, width] = [num_reqs, num_kv_heads, width] (lists of requests)",
      [](L& l) { l.lists.owner = ListOwner::request; });
  add("Q-K01", "Q-K01 unit: 7, expected page (0) or slot (1)", [](L& l) { l.lists.unit = static_cast<ListUnit>(7); });
  add("Q-K01", "Q-K01 owner: -1, expected request (0) or row (1)", [](L& l) { l.lists.owner = static_cast<ListOwner>(-1); });
  add("Q-K02", "Q-K02 num_keys: absent, expected num_keys beside pages", [](L& l) {
    l.list_pages();
    l.lists.num_keys = Tensor{};
  });
  add("Q-K02", "Q-K02 num_keys: shape [3], expected [4]", [](L& l) {
    l.list_pages();
    l.lists.num_keys.shape[0] = 3;
  });
  add("Q-K03", "Q-K03 sliding_window: given beside key lists, expected absent", [](L& l) { l.small.options.sliding_window = 9; });
  add("Q-K03", "Q-K03 cached_lens: given beside key lists, expected absent", [](L& l) {
    l.small.cached_lens[2] = 2;
    l.small.batch.cached_lens = Tensor::contiguous(l.small.cached_lens.data(), DType::i32, L::kEntries);
  });
  add("Q-K04",
      "Q-K04 cache.k: layout nhd under lists of slots, expected nhd or hnd, with K, V and scales of tokens alike from token to "
      "token",
      [](L& l) { l.small.cache.v.stride[1] /= 2; });
  add("Q-K05", "Q-K05 row_starts: shape [4], expected [7] = [num_tokens + 1]",
      [](L& l) { l.lists.row_starts = Tensor::contiguous(l.num_keys.data(), DType::i32, 4); });
}

void add_list_entry_cases(Cases& cases) {
  using L = SmallLists;
  const auto add = [&](std::string rule, std::string message, void (*mutate)(L&)) {
    cases.push_back(broken_lists(std::move(rule), std::move(message), mutate));
  };
  const auto add_pages = [&](std::string rule, std::string message, void (*mutate)(L&)) {
    cases.push_back(broken_lists(std::move(rule), std::move(message), [mutate](L& l) {
      l.list_pages();
      mutate(l);
    }));
  };
  add("Q-K06", "Q-K06 ids[1][3]: slot 10, expected negative, as entry 2 in front of it",
      [](L& l) { l.ids[6] = -1, l.ids[7] = 10; });
  add_pages("Q-K06", "Q-K06 num_keys[1]: 17 outside [0, 16]", [](L& l) { l.num_keys[1] = 17; });
  add_pages("Q-K06", "Q-K06 num_keys[0]: -3 outside [0, 16]", [](L& l) { l.num_keys[0] = -3; });
  add("Q-K07", "Q-K07 ids[3][1]: slot 64 outside [0, 64)", [](L& l) { l.ids[13] = 64; });
  add_pages("Q-K07", "Q-K07 ids[1][0]: page -1 outside [0, 16)", [](L& l) { l.ids[4] = -1; });
  add("Q-K08", "Q-K08 ids[1][2]: slot 14, expected another than entry 0", [](L& l) { l.ids[6] = 14; });
  add("Q-K09", "Q-K09 ids[4][0]: slot 20, expected a slot with one of the 1 keys of request 2 that this row sees",
      [](L& l) { l.ids[16] = 20; });
  add("Q-K09", "Q-K09 ids[0][1]: slot 14, expected a slot with one of the 6 keys of request 0 that this row sees, not its key 6",
      [](L& l) { l.ids[1] = 14; });
  add_pages("Q-K09", "Q-K09 ids[2][0]: page 9, expected a page with one of the 1 keys of request 2 that its every row sees",
            [](L& l) { l.ids[8] = 9; });
  add_pages("Q-K10", "Q-K10 ids[0][0]: page 3, of which 2 keys are visible, expected the last entry in use, [1]",
            [](L& l) { std::swap(l.ids[0], l.ids[1]); });
  add_pages("Q-K10", "Q-K10 ids[0][1]: page 3, of which 2 keys are visible, expected num_keys at most 6, not 7",
            [](L& l) { l.num_keys[0] = 7; });
}

/// A batch over rows of fp8_ds_mla, and the rows of an append to them.
struct SmallLatent {
  Case c = make_case(parse_problem_line("q=f32 kv=fp8_ds_mla heads=2:1 d=576 dv=512 latent=1 page=4 reqs=2@5,1@9 seed=1").value())
               .value();
  std::vector<float> latent = SmallBatch::normal(3 * 576, 8), rope = SmallBatch::normal(3 * 64, 9);
  float one = 1.0f;
  Tensor key = Tensor::contiguous(latent.data(), DType::f32, 3, 1, 512),
         value = Tensor::contiguous(rope.data(), DType::f32, 3, 1, 64);

  KVCache& cache() { return c.cache; }
  /// K and V are one tensor, before and after.
  void change(void (*to)(Tensor&)) {
    to(c.cache.k);
    to(c.cache.v);
  }
  /// The row of a key of request 0.
  std::uint8_t* row(std::int64_t key_of_request) {
    const std::int64_t page = static_cast<const std::int32_t*>(c.batch.block_table.data)[key_of_request / 4];
    return static_cast<std::uint8_t*>(c.cache.k.data) + (page * 4 + key_of_request % 4) * 656;
  }
};

void add_latent_row_cases(Cases& cases) {
  using L = SmallLatent;
  const auto add = [&](std::string rule, std::string message, void (*mutate)(L&)) {
    cases.push_back({std::move(rule), std::move(message), [mutate](Depth limit) {
                       L l;
                       mutate(l);
                       return check(l.c.batch, l.c.cache, l.c.options, limit);
                     }});
  };
  const auto add_append = [&](std::string rule, std::string message, void (*mutate)(L&)) {
    cases.push_back({std::move(rule), std::move(message),
                     [mutate](Depth) {
                       L l;
                       mutate(l);
                       return check_append(l.c.cache, l.key, l.value, l.c.batch.slot_mapping, Depth::tables);
                     },
                     /*is_check=*/false});
  };
  add("Q-R01", "Q-R01 cache.v: shape [8, 4, 1, 576], expected [num_pages, page_size, 1, 656]",
      [](L& l) { l.cache().v.shape[3] = 576; });
  add("Q-R01", "Q-R01 cache.v: shape [8, 4, 2, 656], expected [num_pages, page_size, 1, 656]",
      [](L& l) { l.cache().v.shape[2] = 2; });
  add("Q-R01", "Q-R01 cache.v: 2 between bytes of a row, expected 1: rows of fp8_ds_mla are bytes side by side",
      [](L& l) { l.cache().v.stride[3] = 2; });
  add("Q-R02", "Q-R02 cache.k: stride 657 of axis 1, expected a multiple of 16 bytes", [](L& l) { l.cache().k.stride[1] = 657; });
  add("Q-R02", "Q-R02 cache.v: address 8 bytes past a multiple of 16, expected rows that begin at multiples of 16 bytes",
      [](L& l) { l.cache().v.data = static_cast<std::byte*>(l.cache().v.data) + 8; });
  add("Q-R03", "Q-R03 v_scale: given beside rows of fp8_ds_mla, expected absent: each row holds its four scales",
      [](L& l) { l.cache().v_scale = Tensor::contiguous(&l.one, DType::f32); });
  add("Q-R01", "Q-R01 cache.v: fp8_e4m3fn beside cache.k of fp8_ds_mla, expected fp8_ds_mla for K and V both",
      [](L& l) { l.cache().v.dtype = DType::fp8_e4m3fn, l.cache().v.shape[3] = 512; });
  add("Q-M22", "Q-M22 cache.k: head_dim 576, expected 512 as query", [](L& l) { l.c.batch.query.shape[2] = 512; });
  add_append("Q-R04", "Q-R04 key: shape [3, 1, 576], expected [num_tokens, 1, 512], the latent part",
             [](L& l) { l.key = Tensor::contiguous(l.latent.data(), DType::f32, 3, 1, 576); });
  add_append("Q-R04", "Q-R04 value: shape [3, 64], expected [num_tokens, 1, 64], the RoPE part",
             [](L& l) { l.value = Tensor::contiguous(l.rope.data(), DType::f32, 3, 64); });
  add_append("Q-R04", "Q-R04 cache.v: another tensor than cache.k, expected cache.k itself: both parts of a row are written",
             [](L& l) { l.cache().v.data = static_cast<std::byte*>(l.cache().v.data) + 4 * 656, l.cache().v.shape[0] = 8; });
  add("Q-R05", "Q-R05 cache.k[3][2]: scale 0 of 1 at position 2 of request 0 (page 3, offset 2), expected finite and > 0",
      [](L& l) { std::fill_n(l.row(2) + 516, 4, std::uint8_t{0}); });
}

}  // namespace

const std::vector<BrokenCase>& broken_cases() {
  static const std::vector<BrokenCase> cases = [] {
    Cases all;
    add_tensor_cases(all);
    add_row_cases(all);
    add_cache_cases(all);
    add_new_row_cases(all);
    add_index_cases(all);
    add_option_cases(all);
    add_row_scale_cases(all);
    add_token_scale_cases(all);
    add_block_scale_cases(all);
    add_padding_cases(all);
    add_mask_cases(all);
    add_distinct_slot_cases(all);
    add_shape_cases(all);
    add_workspace_cases(all);
    add_start_cases(all);
    add_halves_cases(all);
    add_length_cases(all);
    add_value_cases(all);
    add_slot_cases(all);
    add_ledger_cases(all);
    add_content_cases(all);
    add_merge_cases(all);
    add_stack_cases(all);
    add_shard_cases(all);
    add_prefix_cases(all);
    add_list_shape_cases(all);
    add_list_entry_cases(all);
    add_latent_row_cases(all);
    return all;
  }();
  return cases;
}

}  // namespace quire::test
