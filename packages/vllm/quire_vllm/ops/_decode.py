# SPDX-License-Identifier: Apache-2.0
"""vLLM's decode-only ops, and their one reader."""

from __future__ import annotations

from typing import Any

import numpy as np

from quire import _quire
from quire._inputs import Lengths, f32_vector, numbers
from quire.errors import ArgumentError

import quire_vllm.ops as package  # its variable padding is read in each call
from quire_vllm.ops._caches import copied, dtype_of_both, has_other_x, one_scale, read_scales
from quire_vllm.ops._refusals import unsupported
from quire_vllm.ops._request import Arguments, Request, inputs_by
from quire_vllm.ops._run import attend_answered
from quire_vllm.ops._settings import waits
from quire_vllm.ops._tensors import number


def read_decode(
    out: Any, query: Any, key_cache: Any, value_cache: Any, num_kv_heads: int, scale: float | None, block_tables: Any, seq_lens: Any,
    block_size: int, alibi_slopes: Any, kv_cache_dtype: str, k_scale: Any, v_scale: Any, query_start_loc: Any = None,
    fp8_out_scale: Any = None, blocksparse_vert_stride: int = 0, use_interleaved_v_cache: bool = False, wait: bool | None = None,
    fp8_flavour: str | None = None, **_: Any,
) -> Arguments:  # fmt: skip
    """The whole batch. Without ``query_start_loc`` every sequence has one row."""
    unsupported(blocksparse_vert_stride=blocksparse_vert_stride > 1)
    dtype, layout = dtype_of_both(key_cache, value_cache, kv_cache_dtype, fp8_flavour), "packed"
    k_scale, v_scale = read_scales(dtype, k_scale, v_scale, key_cache, 1)
    if use_interleaved_v_cache or has_other_x(key_cache):
        interleaved_x = 16 // value_cache.itemsize if use_interleaved_v_cache else 0
        key_cache, value_cache, layout = copied(key_cache, value_cache, dtype, interleaved_x)
    _check_sizes(_quire.KVCache(key_cache, value_cache, layout, k_scale, v_scale, dtype), num_kv_heads, block_size)
    starts, rows_behind = query_start_loc, package.padding
    if starts is None:
        seq = numbers(seq_lens, "seq_lens")
        starts, rows_behind = np.arange(seq.size + 1, dtype=seq.dtype), None
    return {
        "query": query, "output": out, "k": key_cache, "v": value_cache, "query_start_loc": starts, "seq_lens": seq_lens,
        "block_table": block_tables, "layout": layout, "cache_dtype": dtype, "k_scale": k_scale, "v_scale": v_scale,
        "softmax_scale": number(scale), "alibi_slopes": f32_vector(alibi_slopes, "alibi_slopes"), "padding": rows_behind,
        "wait": waits(wait), "output_scale": one_scale(fp8_out_scale, "fp8_out_scale"),
    }  # fmt: skip


def _one_row_and_a_key(lengths: Lengths) -> np.ndarray | None:
    """Requests that these ops answer."""
    if lengths.query_lens.shape != lengths.seq_lens.shape:
        return None
    return (lengths.query_lens == 1) & (lengths.seq_lens > 0)


decode_inputs = inputs_by(read_decode, _one_row_and_a_key)


def _check_sizes(cache: _quire.KVCache, num_kv_heads: int, block_size: int) -> None:
    if cache.num_kv_heads != num_kv_heads:
        raise ArgumentError(f"num_kv_heads: {num_kv_heads}, but the cache has {cache.num_kv_heads}")
    if cache.page_size != block_size:
        raise ArgumentError(f"block_size: {block_size}, but the cache has {cache.page_size}")


def _check_one_row_each(request: Request, seq: np.ndarray) -> None:
    rows, tables = request.query.shape[0], request.block_table.shape[0]
    if seq.ndim != 1 or rows != seq.size or tables != seq.size:
        raise ArgumentError(f"query: {rows} rows for {seq.size} seq_lens and {tables} block_tables rows")
    if np.any(seq < 0):
        raise ArgumentError(f"seq_lens[{int(np.argmin(seq))}]: {int(seq.min())} is negative")


def _decode(arguments: Arguments, max_seq_len: int, whole_sequences: bool) -> None:
    """Attends the rows of requests that have exactly one. whole_sequences: every row is one, and those without a key become 0."""
    request = Request(arguments)
    lengths = request.lengths()
    if whole_sequences:
        _check_one_row_each(request, lengths.seq_lens)
    answered = _one_row_and_a_key(lengths)
    if answered is None or not whole_sequences:
        request.check()
    assert answered is not None  # lengths that are none were raised
    longest = int(lengths.seq_lens[answered].max(initial=0))
    limit = (max_seq_len, longest, "max_seq_len")
    attend_answered(request, lengths, answered, limit, max_query_len=1, max_seq_len=longest)
    if whole_sequences:
        for row in np.flatnonzero(~answered):
            request.output[int(row)] = 0


def paged_attention_v1(
    out: Any,
    query: Any,
    key_cache: Any,
    value_cache: Any,
    num_kv_heads: int,
    scale: float,
    block_tables: Any,
    seq_lens: Any,
    block_size: int,
    max_seq_len: int,
    alibi_slopes: Any,
    kv_cache_dtype: str,
    k_scale: Any,
    v_scale: Any,
    tp_rank: int = 0,
    blocksparse_local_blocks: int = 0,
    blocksparse_vert_stride: int = 0,
    blocksparse_block_size: int = 64,
    blocksparse_head_sliding_step: int = 0,
    *,
    wait: bool | None = None,
    fp8_flavour: str | None = None,
) -> None:
    """Decode attention over a packed cache, one query row per sequence: ``query``, ``out`` [num_seqs, num_q_heads, head_dim].

    A sequence of length 0 gets zeros. Block-sparse attention (blocksparse_vert_stride > 1) raises.
    """
    arguments = read_decode(
        out, query, key_cache, value_cache, num_kv_heads, scale, block_tables, seq_lens, block_size, alibi_slopes, kv_cache_dtype, k_scale,
        v_scale, blocksparse_vert_stride=blocksparse_vert_stride, wait=wait, fp8_flavour=fp8_flavour,
    )  # fmt: skip
    _decode(arguments, max_seq_len, True)


def paged_attention_v2(
    out: Any,
    exp_sum: Any,
    max_logits: Any,
    tmp_out: Any,
    query: Any,
    key_cache: Any,
    value_cache: Any,
    num_kv_heads: int,
    scale: float,
    block_tables: Any,
    seq_lens: Any,
    block_size: int,
    max_seq_len: int,
    alibi_slopes: Any,
    kv_cache_dtype: str,
    k_scale: Any,
    v_scale: Any,
    tp_rank: int = 0,
    blocksparse_local_blocks: int = 0,
    blocksparse_vert_stride: int = 0,
    blocksparse_block_size: int = 64,
    blocksparse_head_sliding_step: int = 0,
    *,
    wait: bool | None = None,
    fp8_flavour: str | None = None,
) -> None:
    """:func:`paged_attention_v1` with vLLM's split-softmax buffers ``exp_sum``, ``max_logits`` and ``tmp_out``, which are not touched."""
    paged_attention_v1(
        out, query, key_cache, value_cache, num_kv_heads, scale, block_tables, seq_lens, block_size, max_seq_len, alibi_slopes, kv_cache_dtype,
        k_scale, v_scale, tp_rank, blocksparse_local_blocks, blocksparse_vert_stride, blocksparse_block_size, blocksparse_head_sliding_step,
        wait=wait, fp8_flavour=fp8_flavour,
    )  # fmt: skip


def paged_attention_rocm(
    out: Any,
    exp_sum: Any,
    max_logits: Any,
    tmp_out: Any,
    query: Any,
    key_cache: Any,
    value_cache: Any,
    num_kv_heads: int,
    scale: float,
    block_tables: Any,
    seq_lens: Any,
    query_start_loc: Any,
    block_size: int,
    max_seq_len: int,
    alibi_slopes: Any,
    kv_cache_dtype: str,
    k_scale: Any,
    v_scale: Any,
    fp8_out_scale: Any = None,
    mfma_type: str = "f16",
    use_interleaved_v_cache: bool = False,
    *,
    wait: bool | None = None,
    fp8_flavour: str | None = None,
) -> None:
    """Decode attention of the requests whose query_len is 1 (all sequences if ``query_start_loc`` is None); other rows stay as they are.

    ``use_interleaved_v_cache`` as in :func:`chunked_prefill_paged_decode`.
    """
    arguments = read_decode(
        out, query, key_cache, value_cache, num_kv_heads, scale, block_tables, seq_lens, block_size, alibi_slopes, kv_cache_dtype, k_scale,
        v_scale, query_start_loc, fp8_out_scale, use_interleaved_v_cache=use_interleaved_v_cache, wait=wait, fp8_flavour=fp8_flavour,
    )  # fmt: skip
    _decode(arguments, max_seq_len, query_start_loc is None)
