# SPDX-License-Identifier: Apache-2.0
"""vLLM's ops for mixed batches, each with its reader.

Engines call an op for each layer of each step. Readers therefore take plain arguments, such as tensors on a device, as they are, and
look closer at others alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from quire._inputs import Lengths, f32_vector, on_device
from quire.errors import UnsupportedError

import quire_vllm.ops as package  # its variable padding is read in each call
from quire_vllm.ops._caches import copied, dtype_of_both, has_other_x, one_scale, query_scale, read_scales
from quire_vllm.ops._refusals import QUANT_MODES, known_quant_mode, unsupported
from quire_vllm.ops._request import Arguments, Request, cached_lens, inputs_by, of_causal
from quire_vllm.ops._run import attend, attend_answered, bound
from quire_vllm.ops._settings import waits
from quire_vllm.ops._tensors import flags, number


def read_chunked(
    query: Any, key: Any, value: Any, output: Any, kv_cache_dtype: str, key_cache: Any, value_cache: Any, block_table: Any,
    query_start_loc: Any, seq_lens: Any, k_scale: Any, v_scale: Any, alibi_slopes: Any = None, sliding_window: int | None = None,
    sm_scale: float | None = None, sinks: Any = None, output_scale: Any = None, is_block_table_ptr: bool = False,
    use_interleaved_v_cache: bool = False, causal: Any = True, max_query_len: int | None = None, wait: bool | None = None,
    fp8_flavour: str | None = None, **_: Any,
) -> Arguments:  # fmt: skip
    if is_block_table_ptr:
        unsupported(is_block_table_ptr=is_block_table_ptr)
    window = sliding_window if sliding_window is not None and sliding_window > 0 else None
    if max_query_len == 1 and on_device(query_start_loc):
        key = value = None  # rows of query_len 1 read the cache alone; a longer one exceeds the bound, and is found
    dtype, layout = dtype_of_both(key_cache, value_cache, kv_cache_dtype, fp8_flavour), "packed"
    k_scale, v_scale = read_scales(dtype, k_scale, v_scale, key_cache, 1)
    if use_interleaved_v_cache or has_other_x(key_cache):
        interleaved_x = 16 // value_cache.itemsize if use_interleaved_v_cache else 0
        key_cache, value_cache, layout = copied(key_cache, value_cache, dtype, interleaved_x)
    most_rows = max_query_len if type(max_query_len) is int and max_query_len > 0 else bound(max_query_len)
    seen = True if causal is True else flags(causal)
    return {
        "query": query, "output": output, "k": key_cache, "v": value_cache, "query_start_loc": query_start_loc, "seq_lens": seq_lens,
        "block_table": block_table, "layout": layout, "cache_dtype": dtype,
        "cached_lens": None if key is None else cached_lens(query_start_loc, seq_lens, True), "key": key, "value": value,
        "k_scale": k_scale, "v_scale": v_scale, "softmax_scale": sm_scale if type(sm_scale) is float else number(sm_scale),
        "sliding_window": window, "alibi_slopes": None if alibi_slopes is None else f32_vector(alibi_slopes, "alibi_slopes"),
        "sinks": None if sinks is None else f32_vector(sinks, "sinks"), "padding": package.padding, "max_query_len": most_rows,
        "wait": waits(wait), "output_scale": None if output_scale is None else one_scale(output_scale, "output_scale"),
        of_causal(seen): seen,
    }  # fmt: skip


chunked_inputs = inputs_by(read_chunked)


def read_context(
    q: Any, k: Any, v: Any, o: Any, kv_cache_dtype: str, k_cache: Any, v_cache: Any, b_loc: Any, b_start_loc: Any, b_seq_len: Any,
    k_scale: Any, v_scale: Any, alibi_slopes: Any = None, sliding_window: int | None = None, sm_scale: float | None = None,
    sinks: Any = None, fp8_out_scale: Any = None, is_block_table_ptr: bool = False, interleaved_v_pack_factor: int = 0,
    causal: Any = True, max_input_len: int | None = None, wait: bool | None = None, fp8_flavour: str | None = None, **_: Any,
) -> Arguments:  # fmt: skip
    unsupported(is_block_table_ptr=is_block_table_ptr)
    window = sliding_window if sliding_window is not None and sliding_window > 0 else None
    dtype, layout = dtype_of_both(k_cache, v_cache, kv_cache_dtype, fp8_flavour), "packed"
    k_scale, v_scale = read_scales(dtype, k_scale, v_scale, k_cache, 1)
    if interleaved_v_pack_factor or has_other_x(k_cache):
        k_cache, v_cache, layout = copied(k_cache, v_cache, dtype, interleaved_v_pack_factor)
    seen = flags(causal)
    return {
        "query": q, "output": o, "k": k_cache, "v": v_cache, "query_start_loc": b_start_loc, "seq_lens": b_seq_len, "block_table": b_loc,
        "layout": layout, "cache_dtype": dtype, "cached_lens": None if k is None else cached_lens(b_start_loc, b_seq_len, False),
        "key": k, "value": v, "k_scale": k_scale, "v_scale": v_scale, "softmax_scale": number(sm_scale), "sliding_window": window,
        "alibi_slopes": f32_vector(alibi_slopes, "alibi_slopes"), "sinks": f32_vector(sinks, "sinks"), "padding": package.padding,
        "max_query_len": bound(max_input_len), "wait": waits(wait), "output_scale": one_scale(fp8_out_scale, "fp8_out_scale"),
        of_causal(seen): seen,
    }  # fmt: skip


def _longer_than_one(lengths: Lengths) -> np.ndarray:
    return lengths.query_lens != 1


context_inputs = inputs_by(read_context, _longer_than_one, only_if="skip_decode")


def _later_keys(window_size: Sequence[int] | None, window: int | None) -> int | None:
    """Later keys that the window of a request which is not causal shows; None = no window."""
    if window_size is not None and window_size[1] not in (-1, 0, window_size[0]):
        raise UnsupportedError(
            f"window_size: {tuple(window_size)}: the window of a request that is not causal has equal sides, as in vLLM; the right "
            f"one is -1, 0 or {window_size[0]}"
        )
    return None if window is None else window - 1


def _shapes(window: int | None, ranges: Any, beyond: bool, prefixes: Any, prefix_window: int | None) -> tuple[int | None, Arguments]:
    """The window, and spans, prefix_lens and spans_beyond_window.

    ranges [num_reqs, max_ranges, 2] have an inclusive end, and are none where the end is not behind the begin. A prefix and its window
    take the place of the sliding window.
    """
    spans = None
    if ranges is not None:
        spans = ranges.clone() if hasattr(ranges, "clone") else np.array(ranges)
        spans[..., 1] += 1
        spans *= ranges[..., :1] < ranges[..., 1:]
    if prefixes is None or prefix_window is None:
        prefixes = None
    else:
        window = prefix_window if prefix_window > 0 else None
    return window, {"spans": spans, "prefix_lens": prefixes, "spans_beyond_window": beyond and spans is not None}


def read_unified(
    q: Any, k: Any, v: Any, out: Any, cu_seqlens_q: Any, seqused_k: Any, softmax_scale: float | None, causal: Any,
    window_size: Sequence[int] | None, block_table: Any, softcap: float, q_descale: Any, k_descale: Any, v_descale: Any,
    alibi_slopes: Any = None, output_scale: Any = None, qq_bias: Any = None, sinks: Any = None, mm_prefix_range: Any = None,
    rswa_prefix_lens: Any = None, rswa_window: int | None = None, use_alibi_sqrt: bool = False, kv_quant_mode: Any = 0,
    k_scale_cache: Any = None, v_scale_cache: Any = None, chunk_lookback: int = -1, max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None, wait: bool | None = None, fp8_flavour: str | None = None,
    mm_prefix_clamp_sliding_window: bool = False, **_: Any,
) -> Arguments:  # fmt: skip
    if kv_quant_mode not in QUANT_MODES:
        known_quant_mode(kv_quant_mode)
    if not (
        qq_bias is None and not use_alibi_sqrt and k_scale_cache is None and v_scale_cache is None and chunk_lookback == -1
    ):  # fmt: skip
        unsupported(
            qq_bias=qq_bias, use_alibi_sqrt=use_alibi_sqrt, k_scale_cache=k_scale_cache, v_scale_cache=v_scale_cache,
            chunk_lookback=None if chunk_lookback == -1 else chunk_lookback,
        )  # fmt: skip
    if alibi_slopes is not None and sinks is not None:
        raise UnsupportedError(
            "alibi_slopes with sinks: vLLM measures this op's bias from the context end, which a sink makes visible"
        )
    dtype = dtype_of_both(k, v, None, fp8_flavour)
    k_scale, v_scale = read_scales(dtype, k_descale, v_descale, k, 2, ("k_descale", "v_descale"))
    seen = True if causal is True else flags(causal)
    window = window_size[0] + 1 if window_size is not None and window_size[0] >= 0 else None  # vLLM's is (W - 1, not read)
    shapes: Arguments = {}
    if mm_prefix_range is not None or (rswa_prefix_lens is not None and rswa_window is not None):
        window, shapes = _shapes(window, mm_prefix_range, not mm_prefix_clamp_sliding_window, rswa_prefix_lens, rswa_window)
    most_rows = max_seqlen_q if type(max_seqlen_q) is int and max_seqlen_q > 0 else bound(max_seqlen_q)
    most_keys = max_seqlen_k if type(max_seqlen_k) is int and max_seqlen_k > 0 else bound(max_seqlen_k)
    return {
        "query": q, "output": out, "k": k, "v": v, "query_start_loc": cu_seqlens_q, "seq_lens": seqused_k, "block_table": block_table,
        "cache_dtype": dtype, "k_scale": k_scale, "v_scale": v_scale,
        "softmax_scale": softmax_scale if type(softmax_scale) is float else number(softmax_scale), "sliding_window": window,
        "logits_soft_cap": softcap if softcap is not None and softcap > 0 else None,
        "alibi_slopes": None if alibi_slopes is None else f32_vector(alibi_slopes, "alibi_slopes"),
        "sinks": None if sinks is None else f32_vector(sinks, "sinks"), "padding": package.padding, "max_query_len": most_rows,
        "max_seq_len": most_keys, "wait": waits(wait), "q_scale": None if q_descale is None else query_scale(q_descale, q, k, 2),
        "output_scale": None if output_scale is None else one_scale(output_scale, "output_scale"), of_causal(seen): seen,
        "window_right": None if seen is True else _later_keys(window_size, window), **shapes,
    }  # fmt: skip


unified_inputs = inputs_by(read_unified)


def chunked_prefill_paged_decode(
    query: Any,
    key: Any,
    value: Any,
    output: Any,
    kv_cache_dtype: str,
    key_cache: Any,
    value_cache: Any,
    block_table: Any,
    query_start_loc: Any,
    seq_lens: Any,
    max_seq_len: int,
    max_query_len: int,
    k_scale: Any,
    v_scale: Any,
    alibi_slopes: Any = None,
    sliding_window: int | None = None,
    sm_scale: float | None = None,
    output_scale: Any = None,
    sinks: Any = None,
    is_block_table_ptr: bool = False,
    *,
    use_interleaved_v_cache: bool = False,
    causal: bool = True,
    wait: bool | None = None,
    fp8_flavour: str | None = None,
) -> None:
    """Attention for a mixed batch over a packed cache; writes ``output``.

    ``query``, ``output`` [num_tokens, num_q_heads, head_dim]; ``key``, ``value`` [num_tokens, num_kv_heads, head_dim], read for rows of
    query_len > 1 only, or None if the cache holds everything; ``key_cache`` [num_blocks, num_kv_heads, head_dim / x, block_size, x];
    ``value_cache`` [num_blocks, num_kv_heads, head_dim, block_size]. ``sliding_window`` counts keys, the own one included; 0, None or
    negative = off; ``causal=False``: rows see later keys, and the window hides older ones alone. ``max_seq_len`` is ignored,
    ``max_query_len`` must not be too small. ``use_interleaved_v_cache``: ``value_cache`` holds [num_blocks, num_kv_heads, block_size / x,
    head_dim, x] with x = 16 / itemsize, and is copied on every call.
    """
    arguments = read_chunked(
        query, key, value, output, kv_cache_dtype, key_cache, value_cache, block_table, query_start_loc, seq_lens, k_scale, v_scale,
        alibi_slopes, sliding_window, sm_scale, sinks, output_scale, is_block_table_ptr, use_interleaved_v_cache, causal, max_query_len,
        wait, fp8_flavour,
    )  # fmt: skip
    attend(arguments, (max_query_len, "max_query_len"))


def context_attention_fwd(
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    kv_cache_dtype: str,
    k_cache: Any,
    v_cache: Any,
    b_loc: Any,
    b_start_loc: Any,
    b_seq_len: Any,
    max_seq_len: int | None,
    max_input_len: int,
    k_scale: Any,
    v_scale: Any,
    alibi_slopes: Any = None,
    sliding_window: int | None = None,
    sm_scale: float | None = None,
    skip_decode: bool = False,
    fp8_out_scale: Any = None,
    sinks: Any = None,
    is_block_table_ptr: bool = False,
    *,
    interleaved_v_pack_factor: int = 0,
    causal: bool = True,
    wait: bool | None = None,
    fp8_flavour: str | None = None,
) -> None:
    """Attention of each request's new tokens over its cached context (packed cache) and themselves (``k``, ``v``); writes ``o``.

    The cache is read for positions [0, seq_len - query_len) only; ``k`` and ``v`` None: for every position, the new tokens included.
    ``skip_decode`` leaves the rows of requests with query_len 1 unwritten. ``interleaved_v_pack_factor`` x > 0: ``v_cache`` holds
    [num_blocks, num_kv_heads, block_size / x, head_dim, x], and is copied on every call. Shapes as in
    :func:`chunked_prefill_paged_decode`; ``max_seq_len`` is ignored.
    """
    arguments = read_context(
        q, k, v, o, kv_cache_dtype, k_cache, v_cache, b_loc, b_start_loc, b_seq_len, k_scale, v_scale, alibi_slopes, sliding_window,
        sm_scale, sinks, fp8_out_scale, is_block_table_ptr, interleaved_v_pack_factor, causal, max_input_len, wait, fp8_flavour,
    )  # fmt: skip
    request = Request(arguments)
    lengths = request.lengths() if skip_decode else None
    if lengths is None or np.all(_longer_than_one(lengths)):
        return attend(arguments, (max_input_len, "max_input_len"))
    request.check()
    longest = int(lengths.query_lens.max(initial=0))
    limit = (max_input_len, longest, "max_input_len")
    attend_answered(request, lengths, _longer_than_one(lengths), limit, max_query_len=longest)


def unified_attention(
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    cu_seqlens_q: Any,
    max_seqlen_q: int,
    seqused_k: Any,
    max_seqlen_k: int,
    softmax_scale: float,
    causal: Any,
    window_size: tuple[int, int] | None,
    block_table: Any,
    softcap: float,
    q_descale: Any,
    k_descale: Any,
    v_descale: Any,
    *,
    seq_threshold_3D: Any = None,
    num_par_softmax_segments: Any = None,
    softmax_segm_output: Any = None,
    softmax_segm_max: Any = None,
    softmax_segm_expsum: Any = None,
    alibi_slopes: Any = None,
    output_scale: Any = None,
    qq_bias: Any = None,
    sinks: Any = None,
    mm_prefix_range: Any = None,
    rswa_prefix_lens: Any = None,
    rswa_window: int | None = None,
    use_alibi_sqrt: bool = False,
    kv_quant_mode: Any = 0,
    k_scale_cache: Any = None,
    v_scale_cache: Any = None,
    chunk_lookback: int = -1,
    use_td: bool = False,
    mm_prefix_clamp_sliding_window: bool = False,
    wait: bool | None = None,
    fp8_flavour: str | None = None,
) -> None:
    """Attention over a cache that holds every token, this step's included; writes ``out``.

    ``k``, ``v``: caches [num_blocks, block_size, num_kv_heads, head_dim] with any strides. ``window_size`` is (W - 1, not read), -1 = off.
    ``causal``: one bool, or a tensor of one a request; a request that is not causal sees W - 1 keys to both sides, or all.
    ``softcap`` 0 = off. uint8 caches are read as e4m3 of ``fp8_flavour``. ``kv_quant_mode``: NONE (0) or FP8_PER_TENSOR (1), of which the
    cache's type decides. ``k_descale``, ``v_descale``: one value, [num_kv_heads], or [num_reqs, num_kv_heads] of equal rows; so is
    ``q_descale``, which goes with an fp8_e4m3fn ``q`` over a cache of that type. ``output_scale`` (one value) goes with an fp8_e4m3fn
    ``out``: stored = round to nearest even of value / scale, +-448 beyond, NaN stays NaN. The split-softmax buffers are not used.

    ``mm_prefix_range`` [num_reqs, max_ranges, 2], first and last position of a range, (0, 0) for none, ranges ascending: rows of a range
    see each other's keys; the window bounds them with ``mm_prefix_clamp_sliding_window``. ``rswa_prefix_lens`` [num_reqs] with
    ``rswa_window``: keys of a prompt stay visible behind the window, which takes the place of ``window_size``'s.

    ALiBi with sinks raises: vLLM's bias is relative to the context end here, which only cancels without a sink.
    """
    arguments = read_unified(
        q, k, v, out, cu_seqlens_q, seqused_k, softmax_scale, causal, window_size, block_table, softcap, q_descale, k_descale, v_descale,
        alibi_slopes, output_scale, qq_bias, sinks, mm_prefix_range, rswa_prefix_lens, rswa_window, use_alibi_sqrt, kv_quant_mode,
        k_scale_cache, v_scale_cache, chunk_lookback, max_seqlen_q, max_seqlen_k, wait, fp8_flavour, mm_prefix_clamp_sliding_window,
    )  # fmt: skip
    attend(arguments, (max_seqlen_q, "max_seqlen_q"), (max_seqlen_k, "max_seqlen_k"))
