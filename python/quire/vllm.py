"""vLLM's paged-attention ops on Quire: the same names, argument order and meaning, for NumPy, torch CPU and torch CUDA tensors.

Code and tests written for vLLM run by changing an import. What differs, on purpose:

* **Errors instead of silence.** Every call goes through Quire's contract. Index tensors are read as the dtype they have (int32 or
  int64). ``max_query_len``, ``max_input_len`` and the ``max_seq_len`` of the decode ops raise if they are too small; vLLM leaves rows
  unwritten or reads past its buffers. ``max_seq_len`` of :func:`chunked_prefill_paged_decode` and :func:`context_attention_fwd` is
  ignored, as in vLLM's prefill kernel: vLLM's own test passes 1024 there for sequences of up to 1792 tokens.
* **fp8 is a type.** ``kv_cache_dtype`` "fp8" and "fp8_e4m3" mean ``fp8_e4m3fn`` for uint8 tensors, or ``fp8_e4m3fnuz`` if
  :data:`fp8_flavour` is "fnuz" (gfx94x); "fp8_e5m2" means ``fp8_e5m2``. A tensor that has an fp8 dtype keeps it, and a string that
  contradicts it is an error. Scales apply to fp8 caches only, as in vLLM.
* **Cache contents by row, as in vLLM.** :func:`chunked_prefill_paged_decode` reads rows of query_len 1 wholly from the cache and the
  new tokens of longer rows from ``key`` and ``value``; :func:`context_attention_fwd` takes every row's new tokens from ``k`` and ``v``;
  all other ops read everything from the cache. Quire expresses this with ``cached_lens``.
* **Padding rows.** vLLM pads batches to the sizes of its graphs: rows of ``query`` from the last start on, and trailing requests that
  repeat it with ``seq_len`` 0. The rows are never read, and left unwritten as in vLLM; :data:`padding` "zero" makes them zero, and None
  refuses them.
* ``sm_scale=None`` is 1 / sqrt(head_dim) (vLLM used the number of heads until #31380).
* ALiBi is relative to the query position, honours windows and sinks, and takes slopes of any sign.
* Per-head scales reach the result, or raise where vLLM would read element 0 only.

**On CUDA tensors** calls use torch's current stream, take lengths and tables where they are, and wait for the device to say what it
found; set :data:`wait` to False to enqueue and return. ``max_query_len`` and ``max_seq_len`` are not compared with the batch then. The
decode ops and ``skip_decode``, which answer some of the rows, read the lengths on the host.

What Quire does not do raises :class:`quire.UnsupportedError` naming the argument: fp8 outputs (``output_scale``), ``causal=False``,
block-sparse attention, ``qq_bias``, ``mm_prefix_range``, tables of pointers.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from quire import _quire
from quire._arrays import empty_bytes_like, empty_f32_like, is_torch
from quire._messages import FLOATING_DTYPES
from quire.errors import ArgumentError, UnsupportedError

__all__ = [
    "chunked_prefill_paged_decode",
    "context_attention_fwd",
    "fp8_flavour",
    "merge_attn_states",
    "padding",
    "paged_attention_rocm",
    "paged_attention_v1",
    "paged_attention_v2",
    "reshape_and_cache",
    "reshape_and_cache_flash",
    "unified_attention",
    "wait",
]

fp8_flavour: str = "fn"
"""What "fp8" and "fp8_e4m3" mean for uint8 caches: "fn" (NVIDIA, gfx95x, gfx12) or "fnuz" (gfx94x)."""

wait: bool = True
"""On CUDA tensors: wait for the device and raise if lengths or tables break a rule. False: enqueue only, and nobody asks."""

padding: str | None = "left"
"""What becomes of output rows behind the last start: "left" as they are, made "zero", or None: such a batch is refused (Q-T04)."""

_E4M3 = ("fp8_e4m3fn", "fp8_e4m3fnuz")
_E5M2 = ("fp8_e5m2", "fp8_e5m2fnuz")
_PLAIN = {"float16": "f16", "half": "f16", "bfloat16": "bf16", "float32": "f32", "float": "f32"}
_warned: set[str] = set()


def _warn_once(text: str) -> None:
    if text not in _warned:
        _warned.add(text)
        warnings.warn(text, RuntimeWarning, stacklevel=4)


def _unsupported(**arguments: Any) -> None:
    for name, value in arguments.items():
        if value is not None and value is not False:
            raise UnsupportedError(f"{name}: not supported by quire.vllm")


def _causal_only(causal: bool) -> None:
    if not causal:
        raise UnsupportedError("causal: only True is supported by quire.vllm")


def _on_device(array: Any) -> bool:
    return is_torch(array) and array.device.type != "cpu"


def _numbers(array: Any, name: str) -> np.ndarray:
    """Index tensors and scales as NumPy; those on a device are copied, which waits for it."""
    return _quire.bits(array.cpu() if _on_device(array) else array, name)[0]


def _beside(values: Any, like: Any) -> Any:
    """NumPy ``values`` where ``like`` is."""
    if not _on_device(like) or not isinstance(values, np.ndarray):
        return values
    return sys.modules["torch"].from_numpy(np.ascontiguousarray(values)).to(like.device)


def _is_raw(array: Any) -> bool:
    return str(getattr(array, "dtype", "")).removeprefix("torch.") in ("uint8", "int8")


def _dtype_of(array: Any, name: str) -> str:
    if not _on_device(array):
        return _quire.bits(array, name)[1]
    spelled = str(array.dtype).removeprefix("torch.")
    if spelled not in FLOATING_DTYPES:
        raise ArgumentError(f"{name}: dtype {spelled} is none of {', '.join(FLOATING_DTYPES)}")
    return FLOATING_DTYPES[spelled]


def _view(array: Any, name: str, dtype: str | None) -> tuple[Any, str]:
    """The cache as NumPy bits, or on a device as it is; and the Quire dtype to read it as."""
    if not _on_device(array):
        return _quire.bits(array, name, dtype)
    return array, dtype if _is_raw(array) and dtype is not None else _dtype_of(array, name)


def _cache_dtype(kv_cache_dtype: str, cache: Any, name: str) -> str | None:
    """The Quire dtype to read ``cache`` as; None = as the dtype it has."""
    if kv_cache_dtype in ("fp8", "fp8_e4m3"):
        if fp8_flavour not in ("fn", "fnuz"):
            raise ArgumentError(f'fp8_flavour: "{fp8_flavour}" is neither "fn" nor "fnuz"')
        allowed, raw = _E4M3, "fp8_e4m3" + fp8_flavour
    elif kv_cache_dtype == "fp8_e5m2":
        allowed, raw = _E5M2, "fp8_e5m2"
    elif kv_cache_dtype == "auto" or kv_cache_dtype in _PLAIN:
        if _is_raw(cache):
            raise ArgumentError(f'{name}: uint8 with kv_cache_dtype="{kv_cache_dtype}"; which fp8 format is it?')
        return _PLAIN.get(kv_cache_dtype)
    else:
        raise ArgumentError(f'kv_cache_dtype: "{kv_cache_dtype}" is none of auto, fp8, fp8_e4m3, fp8_e5m2, {", ".join(_PLAIN)}')
    if _is_raw(cache):
        return raw
    dtype = _dtype_of(cache, name)
    if dtype not in allowed:
        raise ArgumentError(f'{name}: the tensor is {dtype}, but kv_cache_dtype="{kv_cache_dtype}"')
    return dtype


class _Cache(NamedTuple):
    k: Any
    v: Any
    dtype: str
    k_scale: Any
    v_scale: Any

    def view(self, layout: str) -> _quire.KVCache:
        return _quire.KVCache(self.k, self.v, layout, self.k_scale, self.v_scale, self.dtype)


def _scale(scale: Any, name: str, num_kv_heads: int) -> Any:
    """One number, or one per KV head; more values than that only if they are all the same."""
    if scale is None or isinstance(scale, (int, float)):
        return scale
    if _on_device(scale) and (scale.numel() == 1 or tuple(scale.shape) == (num_kv_heads,)):
        return scale.reshape(-1)  # its values stay where they are
    values = _numbers(scale, name)
    if values.size == 1:
        return float(values.reshape(()))
    if values.shape == (num_kv_heads,):
        return values
    if values.size > 0 and np.all(values == values.flat[0]):
        return float(values.flat[0])
    raise UnsupportedError(f"{name}: shape {list(values.shape)} with different values; expected one value or one per KV head")


def _read_cache(
    key_cache: Any, value_cache: Any, kv_cache_dtype: str, k_scale: Any, v_scale: Any, heads_dim: int, scale_name: str = "scale"
) -> _Cache:
    k, k_dtype = _view(key_cache, "key_cache", _cache_dtype(kv_cache_dtype, key_cache, "key_cache"))
    v, v_dtype = _view(value_cache, "value_cache", _cache_dtype(kv_cache_dtype, value_cache, "value_cache"))
    if k_dtype != v_dtype:
        raise ArgumentError(f"value_cache: {v_dtype}, but key_cache is {k_dtype}")
    if not k_dtype.startswith("fp8"):
        return _Cache(k, v, k_dtype, None, None)
    heads = k.shape[heads_dim] if k.ndim > heads_dim else 1
    return _Cache(k, v, k_dtype, _scale(k_scale, "k_" + scale_name, heads), _scale(v_scale, "v_" + scale_name, heads))


def _has_other_x(cache: _Cache) -> bool:
    return cache.k.ndim == 5 and cache.k.shape[4] != 16 // cache.k.itemsize


def _permuted(array: Any, *order: int) -> Any:
    return array.permute(*order) if is_torch(array) else array.transpose(*order)


def _unpacked(k: Any) -> Any:
    """[pages, heads, dim / x, page_size, x] of any x as [pages, page_size, heads, dim]; a copy."""
    pages, heads, chunks, page_size, x = k.shape
    return _permuted(k, 0, 3, 1, 2, 4).reshape(pages, page_size, heads, chunks * x)


def _packed_cache(cache: _Cache) -> _quire.KVCache:
    """vLLM's packed layout. x is 16 / itemsize by definition; a cache packed with another x (vLLM's own prefix-prefill test packs fp8
    with x = 8) is copied into a layout that can say so."""
    if not _has_other_x(cache):
        return cache.view("packed")
    _warn_once(
        f"key_cache is packed with x = {cache.k.shape[4]} where {16 // cache.k.itemsize} is expected for {cache.dtype}; "
        "quire.vllm copies it on every call"
    )
    return cache._replace(k=_unpacked(cache.k), v=_permuted(cache.v, 0, 3, 1, 2)).view("nhd")


def _f32_vector(array: Any, name: str) -> Any:
    """ALiBi slopes or sinks as f32; other float types only if every value survives."""
    if array is None:
        return None
    dtype = str(getattr(array, "dtype", "")).removeprefix("torch.")
    if dtype not in ("float16", "bfloat16", "float64"):
        return array
    if _on_device(array):
        return array.float()
    wide = array.float().numpy() if hasattr(array, "float") else np.asarray(array).astype(np.float32)
    if dtype == "float64" and not np.array_equal(wide.astype(np.float64), np.asarray(array)):
        raise ArgumentError(f"{name}: float64 values that float32 cannot hold")
    return wide


def _options(scale: float | None, window: int | None, cap: float | None, alibi_slopes: Any, sinks: Any) -> _quire.Options:
    return _quire.Options(
        softmax_scale=None if scale is None else float(scale),
        sliding_window=window if window is not None and window > 0 else None,
        logits_soft_cap=cap if cap is not None and cap > 0 else None,
        alibi_slopes=_f32_vector(alibi_slopes, "alibi_slopes"),
        sinks=_f32_vector(sinks, "sinks"),
    )


class _Lengths(NamedTuple):
    """The index tensors as NumPy, with what follows from them; ``sound`` if the derived lengths mean anything."""

    query_start_loc: np.ndarray
    seq_lens: np.ndarray
    query_lens: np.ndarray
    sound: bool


def _device_lengths(query_start_loc: Any, seq_lens: Any) -> _Lengths:
    """The same where the tensors are, without waiting: whether they are sound is for the device to find."""
    torch = sys.modules["torch"]
    return _Lengths(query_start_loc, seq_lens, torch.diff(query_start_loc.to(torch.int64)), True)


def _longest(lengths: Any) -> int:
    """0 where nobody waits for the answer."""
    return int(lengths.max(initial=0)) if isinstance(lengths, np.ndarray) else 0


def _where(condition: Any, yes: Any, no: Any) -> Any:
    return np.where(condition, yes, no) if isinstance(condition, np.ndarray) else sys.modules["torch"].where(condition, yes, no)


def _lengths(query_start_loc: Any, seq_lens: Any) -> _Lengths:
    if _on_device(query_start_loc) and _on_device(seq_lens):
        return _device_lengths(query_start_loc, seq_lens)
    return _host_lengths(query_start_loc, seq_lens)


def _host_lengths(query_start_loc: Any, seq_lens: Any) -> _Lengths:
    qsl = _numbers(query_start_loc, "query_start_loc")
    seq = _numbers(seq_lens, "seq_lens")
    if qsl.ndim != 1 or seq.ndim != 1 or qsl.size != seq.size + 1 or qsl.dtype.kind != "i" or seq.dtype.kind != "i":
        return _Lengths(qsl, seq, np.zeros(0, np.int64), False)
    query_lens = np.diff(qsl.astype(np.int64))
    return _Lengths(qsl, seq, query_lens, bool(np.all((query_lens >= 0) & (query_lens <= seq))))


def _at_least(given: int | None, needed: int, name: str) -> None:
    if given is not None and given < needed:
        raise ArgumentError(f"{name}: {given}, but the batch has {needed}; vLLM would leave rows unwritten")


def _attend(
    batches: Sequence[_quire.Batch], cache: _quire.KVCache, options: _quire.Options, limits: Sequence[tuple[int | None, int, str]]
) -> None:
    """Plans (and so checks) every batch before the first one writes."""
    plans = [_quire.plan(batch, cache, options) for batch in batches]
    for given, needed, name in limits:
        _at_least(given, needed, name)
    for batch, plan in zip(batches, plans):
        place = None
        if not wait and _on_device(batch.query):
            place = empty_bytes_like(batch.query, plan.workspace_bytes)
        _quire.attend(batch, cache, options, plan, place)


def _runs(keep: np.ndarray) -> list[tuple[int, int]]:
    """Half-open ranges of consecutive kept requests."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], keep, [False])).astype(np.int8)))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2])]


def _batch_of_run(run: tuple[int, int], lengths: _Lengths, table: np.ndarray, query: Any, output: Any, **new: Any) -> _quire.Batch:
    """Requests [a, b) as a batch of its own, on views of the same rows."""
    a, b = run
    first, last = int(lengths.query_start_loc[a]), int(lengths.query_start_loc[b])
    cached = new.pop("cached_lens", None)
    return _quire.Batch(
        query=query[first:last],
        output=output[first:last],
        query_start_loc=_beside(lengths.query_start_loc[a : b + 1] - lengths.query_start_loc[a], query),
        seq_lens=_beside(lengths.seq_lens[a:b], query),
        block_table=table[a:b],
        cached_lens=None if cached is None else _beside(cached[a:b], query),
        **{name: rows[first:last] for name, rows in new.items() if rows is not None},
    )


def _zero_padding(output: Any, lengths: _Lengths) -> None:
    """What is behind the last start, where runs of requests are batches of their own."""
    if padding == "zero":
        output[int(lengths.query_start_loc[-1]) :] = 0


class Inputs(NamedTuple):
    """What a call asks for. Every op reads its arguments in one function below, which quire.hooks shares."""

    batch: _quire.Batch
    cache: _quire.KVCache
    options: _quire.Options
    lengths: _Lengths
    answered: np.ndarray | None = None
    """Requests whose rows the op writes; None = all."""


def chunked_inputs(
    *, query: Any, key: Any, value: Any, output: Any, kv_cache_dtype: str, key_cache: Any, value_cache: Any, block_table: Any,
    query_start_loc: Any, seq_lens: Any, k_scale: Any, v_scale: Any, alibi_slopes: Any = None, sliding_window: int | None = None,
    sm_scale: float | None = None, sinks: Any = None, output_scale: Any = None, is_block_table_ptr: bool = False,
    causal: bool = True, **_: Any,
) -> Inputs:  # fmt: skip
    _causal_only(causal)
    _unsupported(output_scale=output_scale, is_block_table_ptr=is_block_table_ptr)
    lengths = _lengths(query_start_loc, seq_lens)
    cached = None
    if key is not None and lengths.sound:
        cached = _where(lengths.query_lens == 1, lengths.seq_lens, lengths.seq_lens - lengths.query_lens)
    batch = _quire.Batch(
        query=query,
        output=output,
        query_start_loc=query_start_loc,
        seq_lens=seq_lens,
        block_table=block_table,
        cached_lens=cached,
        key=key,
        value=value,
        padding=padding,
    )
    cache = _packed_cache(_read_cache(key_cache, value_cache, kv_cache_dtype, k_scale, v_scale, heads_dim=1))
    return Inputs(batch, cache, _options(sm_scale, sliding_window, None, alibi_slopes, sinks), lengths)


def context_inputs(
    *, q: Any, k: Any, v: Any, o: Any, kv_cache_dtype: str, k_cache: Any, v_cache: Any, b_loc: Any, b_start_loc: Any, b_seq_len: Any,
    k_scale: Any, v_scale: Any, alibi_slopes: Any = None, sliding_window: int | None = None, sm_scale: float | None = None,
    skip_decode: bool = False, sinks: Any = None, fp8_out_scale: Any = None, is_block_table_ptr: bool = False, **_: Any,
) -> Inputs:  # fmt: skip
    _unsupported(fp8_out_scale=fp8_out_scale, is_block_table_ptr=is_block_table_ptr)
    lengths = _lengths(b_start_loc, b_seq_len)
    cached = lengths.seq_lens - lengths.query_lens if lengths.sound else None
    batch = _quire.Batch(
        query=q, output=o, query_start_loc=b_start_loc, seq_lens=b_seq_len, block_table=b_loc, cached_lens=cached, key=k, value=v,
        padding=padding,
    )  # fmt: skip
    cache = _packed_cache(_read_cache(k_cache, v_cache, kv_cache_dtype, k_scale, v_scale, heads_dim=1))
    answered = lengths.query_lens != 1 if skip_decode else None
    return Inputs(batch, cache, _options(sm_scale, sliding_window, None, alibi_slopes, sinks), lengths, answered)


def unified_inputs(
    *, q: Any, k: Any, v: Any, out: Any, cu_seqlens_q: Any, seqused_k: Any, softmax_scale: float | None, causal: bool,
    window_size: Sequence[int] | None, block_table: Any, softcap: float, q_descale: Any, k_descale: Any, v_descale: Any,
    alibi_slopes: Any = None, output_scale: Any = None, qq_bias: Any = None, sinks: Any = None, mm_prefix_range: Any = None,
    use_alibi_sqrt: bool = False, **_: Any,
) -> Inputs:  # fmt: skip
    _causal_only(causal)
    _unsupported(
        q_descale=q_descale,
        output_scale=output_scale,
        qq_bias=qq_bias,
        mm_prefix_range=mm_prefix_range,
        use_alibi_sqrt=use_alibi_sqrt,
    )
    if alibi_slopes is not None and sinks is not None:
        raise UnsupportedError(
            "alibi_slopes with sinks: vLLM measures this op's bias from the context end, which a sink makes visible"
        )
    lengths = _lengths(cu_seqlens_q, seqused_k)
    batch = _quire.Batch(query=q, output=out, query_start_loc=cu_seqlens_q, seq_lens=seqused_k, block_table=block_table, padding=padding)
    kv_cache_dtype = "fp8" if _is_raw(k) else "auto"
    cache = _read_cache(k, v, kv_cache_dtype, k_descale, v_descale, heads_dim=2, scale_name="descale").view("nhd")
    window = window_size[0] + 1 if window_size is not None and window_size[0] >= 0 else None
    return Inputs(batch, cache, _options(softmax_scale, window, softcap, alibi_slopes, sinks), lengths)


def decode_inputs(
    *, out: Any, query: Any, key_cache: Any, value_cache: Any, num_kv_heads: int, scale: float, block_tables: Any, seq_lens: Any,
    block_size: int, alibi_slopes: Any, kv_cache_dtype: str, k_scale: Any, v_scale: Any, query_start_loc: Any = None,
    fp8_out_scale: Any = None, blocksparse_vert_stride: int = 0, **_: Any,
) -> Inputs:  # fmt: skip
    """The whole batch of a decode-only op; it answers sequences of at least one token, and requests with exactly one row."""
    _unsupported(fp8_out_scale=fp8_out_scale, blocksparse_vert_stride=blocksparse_vert_stride > 1)
    cache = _packed_cache(_read_cache(key_cache, value_cache, kv_cache_dtype, k_scale, v_scale, heads_dim=1))
    _check_sizes(cache, num_kv_heads, block_size)
    seq = _quire.bits(seq_lens, "seq_lens")[0]
    starts = np.arange(seq.size + 1, dtype=seq.dtype) if query_start_loc is None else query_start_loc
    lengths = _lengths(starts, seq)
    rows_behind = None if query_start_loc is None else padding
    batch = _quire.Batch(
        query=query, output=out, query_start_loc=starts, seq_lens=seq_lens, block_table=block_tables, padding=rows_behind
    )
    answered = (lengths.query_lens == 1) & (seq > 0) if lengths.query_lens.shape == seq.shape else None
    return Inputs(batch, cache, _options(scale, None, None, alibi_slopes, None), lengths, answered)


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
    causal: bool = True,
) -> None:
    """Attention for a mixed batch over a packed cache; writes ``output``.

    ``query``, ``output`` [num_tokens, num_q_heads, head_dim]; ``key``, ``value`` [num_tokens, num_kv_heads, head_dim], read for rows of
    query_len > 1 only, or None if the cache holds everything; ``key_cache`` [num_blocks, num_kv_heads, head_dim / x, block_size, x];
    ``value_cache`` [num_blocks, num_kv_heads, head_dim, block_size]. ``sliding_window`` counts keys, the own one included; 0, None or
    negative = off. ``max_seq_len`` is ignored, ``max_query_len`` must not be too small.
    """
    batch, cache, options, lengths, _ = chunked_inputs(**locals())
    _attend([batch], cache, options, [(max_query_len, _longest(lengths.query_lens), "max_query_len")])


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
) -> None:
    """Attention of each request's new tokens over its cached context (packed cache) and themselves (``k``, ``v``); writes ``o``.

    The cache is read for positions [0, seq_len - query_len) only. ``skip_decode`` leaves the rows of requests with query_len 1
    unwritten. Shapes as in :func:`chunked_prefill_paged_decode`; ``max_seq_len`` is ignored.
    """
    batch, cache, options, lengths, _ = context_inputs(**locals())
    batches = [batch]
    if skip_decode:
        lengths = _host_lengths(b_start_loc, b_seq_len)
    if skip_decode and np.any(lengths.query_lens == 1):
        _quire.check(batch, cache, options, "tables").raise_if_any()
        table = b_loc if _on_device(b_loc) else _quire.bits(b_loc, "b_loc")[0]
        runs = _runs(lengths.query_lens != 1)
        cached = lengths.seq_lens - lengths.query_lens
        batches = [_batch_of_run(run, lengths, table, q, o, cached_lens=cached, key=k, value=v) for run in runs]
    _attend(batches, cache, options, [(max_input_len, _longest(lengths.query_lens), "max_input_len")])
    if batches != [batch]:
        _zero_padding(o, lengths)


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
    causal: bool,
    window_size: tuple[int, int] | None,
    block_table: Any,
    softcap: float,
    q_descale: Any,
    k_descale: Any,
    v_descale: Any,
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
    use_alibi_sqrt: bool = False,
) -> None:
    """Attention over a cache that holds every token, this step's included; writes ``out``.

    ``k``, ``v``: caches [num_blocks, block_size, num_kv_heads, head_dim] with any strides. ``window_size`` is (W - 1, ignored), -1 = off.
    ``softcap`` 0 = off. uint8 caches are read as e4m3 of :data:`fp8_flavour`. The split-softmax buffers are not used.

    ALiBi with sinks raises: vLLM's bias is relative to the context end here, which only cancels without a sink.
    """
    batch, cache, options, lengths, _ = unified_inputs(**locals())
    limits = [
        (max_seqlen_q, _longest(lengths.query_lens), "max_seqlen_q"),
        (max_seqlen_k, _longest(lengths.seq_lens), "max_seqlen_k"),
    ]
    _attend([batch], cache, options, limits)


def _check_sizes(cache: _quire.KVCache, num_kv_heads: int, block_size: int) -> None:
    if cache.num_kv_heads != num_kv_heads:
        raise ArgumentError(f"num_kv_heads: {num_kv_heads}, but the cache has {cache.num_kv_heads}")
    if cache.page_size != block_size:
        raise ArgumentError(f"block_size: {block_size}, but the cache has {cache.page_size}")


def _decode(
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
    query_start_loc: Any = None,
) -> None:
    """The decode-only ops: one query row per sequence, or, with query_start_loc, only the requests that have exactly one."""
    cache = _packed_cache(_read_cache(key_cache, value_cache, kv_cache_dtype, k_scale, v_scale, heads_dim=1))
    _check_sizes(cache, num_kv_heads, block_size)
    options = _options(scale, None, None, alibi_slopes, None)
    table = block_tables if _on_device(block_tables) else _quire.bits(block_tables, "block_tables")[0]
    seq = _numbers(seq_lens, "seq_lens")
    if query_start_loc is None:
        lengths = _host_lengths(np.arange(seq.size + 1, dtype=np.int64), seq)
        if tuple(query.shape[:1]) != (seq.size,) or table.shape[:1] != (seq.size,) or seq.ndim != 1:
            raise ArgumentError(f"query: {query.shape[0]} rows for {seq.size} seq_lens and {table.shape[0]} block_tables rows")
        keep = seq > 0
    else:
        lengths = _host_lengths(query_start_loc, seq)
        whole = _quire.Batch(
            query=query, output=out, query_start_loc=query_start_loc, seq_lens=seq_lens, block_table=table, padding=padding
        )
        _quire.check(whole, cache, options, "tables").raise_if_any()
        keep = lengths.query_lens == 1
    if np.any(seq < 0):
        raise ArgumentError(f"seq_lens[{int(np.argmin(seq))}]: {int(seq.min())} is negative")
    batches = [_batch_of_run(run, lengths, table, query, out) for run in _runs(keep)]
    _attend(batches, cache, options, [(max_seq_len, int(seq[keep].max(initial=0)), "max_seq_len")])
    if query_start_loc is None:
        for row in np.flatnonzero(~keep):
            out[int(row)] = 0
    else:
        _zero_padding(out, lengths)


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
) -> None:
    """Decode attention over a packed cache, one query row per sequence: ``query``, ``out`` [num_seqs, num_q_heads, head_dim].

    A sequence of length 0 gets zeros. Block-sparse attention (blocksparse_vert_stride > 1) raises.
    """
    _unsupported(blocksparse_vert_stride=blocksparse_vert_stride > 1)
    _decode(
        out, query, key_cache, value_cache, num_kv_heads, scale, block_tables, seq_lens, block_size, max_seq_len, alibi_slopes,
        kv_cache_dtype, k_scale, v_scale,
    )  # fmt: skip


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
) -> None:
    """:func:`paged_attention_v1` with vLLM's split-softmax buffers ``exp_sum``, ``max_logits`` and ``tmp_out``, which are not touched."""
    _unsupported(blocksparse_vert_stride=blocksparse_vert_stride > 1)
    _decode(
        out, query, key_cache, value_cache, num_kv_heads, scale, block_tables, seq_lens, block_size, max_seq_len, alibi_slopes,
        kv_cache_dtype, k_scale, v_scale,
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
) -> None:
    """Decode attention of the requests whose query_len is 1 (all sequences if ``query_start_loc`` is None); other rows stay as they are."""
    _unsupported(fp8_out_scale=fp8_out_scale)
    _decode(
        out, query, key_cache, value_cache, num_kv_heads, scale, block_tables, seq_lens, block_size, max_seq_len, alibi_slopes,
        kv_cache_dtype, k_scale, v_scale, query_start_loc,
    )  # fmt: skip


def _append_other_x(cache: _Cache, key: Any, value: Any, slots: np.ndarray) -> None:
    """Appends to a cache packed with an unusual x: the touched pages go through a copy in another layout and back."""
    num_pages, heads, chunks, page_size, x = cache.k.shape
    used = slots[slots >= 0]
    if np.any(used >= num_pages * page_size):
        raise ArgumentError(f"slot_mapping: slot {int(used.max())} outside [0, {num_pages * page_size})")
    pages, place = np.unique(used // page_size, return_inverse=True)
    local = np.full(slots.shape, -1, np.int64)
    local[slots >= 0] = place * page_size + used % page_size
    copy = cache._replace(k=_unpacked(cache.k[pages]), v=cache.v[pages].transpose(0, 3, 1, 2))
    _quire.append(copy.view("nhd"), key, value, local)
    cache.k[pages] = copy.k.reshape(len(pages), page_size, heads, chunks, x).transpose(0, 2, 3, 1, 4)
    cache.v[pages] = copy.v.transpose(0, 2, 3, 1)


def reshape_and_cache(
    key: Any, value: Any, key_cache: Any, value_cache: Any, slot_mapping: Any, kv_cache_dtype: str, k_scale: Any, v_scale: Any
) -> None:
    """Writes ``key``, ``value`` [num_tokens, num_kv_heads, head_dim] into a packed cache: row t to slot_mapping[t]; negative = skip.

    fp8: stored = row / scale, rounded to nearest even, saturating. slot_mapping may be shorter than key (graph padding). All heads are
    written, whatever their number; strides of every tensor are honoured.
    """
    cache = _read_cache(key_cache, value_cache, kv_cache_dtype, k_scale, v_scale, heads_dim=1)
    if _has_other_x(cache):
        if _on_device(key_cache):
            raise UnsupportedError("key_cache: packed with an unusual x, which is not written on a device")
        slots = _quire.bits(slot_mapping, "slot_mapping")[0]
        _append_other_x(cache, key, value, slots)
    else:
        _quire.append(cache.view("packed"), key, value, slot_mapping)


def reshape_and_cache_flash(
    key: Any, value: Any, key_cache: Any, value_cache: Any, slot_mapping: Any, kv_cache_dtype: str, k_scale: Any, v_scale: Any
) -> None:
    """:func:`reshape_and_cache` for caches [num_blocks, block_size, num_kv_heads, head_dim]; NHD or HND by stride. Per-head scales work."""
    cache = _read_cache(key_cache, value_cache, kv_cache_dtype, k_scale, v_scale, heads_dim=2)
    _quire.append(cache.view("nhd"), key, value, slot_mapping)


def _log_sums(lse: Any, name: str) -> np.ndarray:
    """[num_heads, num_tokens] as [num_tokens, num_heads]; +inf, FlashAttention 2's mark for an empty side, becomes -inf."""
    if _on_device(lse):
        torch = sys.modules["torch"]
        return torch.where(torch.isposinf(lse), -torch.inf, lse).T
    values, dtype = _quire.bits(lse, name)
    if dtype != "f32" or values.ndim != 2:
        raise ArgumentError(f"{name}: {dtype} {list(values.shape)}, expected f32 [num_heads, num_tokens]")
    values = values.T
    return np.where(np.isposinf(values), np.float32(-np.inf), values) if np.isposinf(values).any() else values


def merge_attn_states(
    output: Any,
    prefix_output: Any,
    prefix_lse: Any,
    suffix_output: Any,
    suffix_lse: Any,
    output_lse: Any = None,
    prefill_tokens_with_context: int | None = None,
    output_scale: Any = None,
) -> None:
    """Combines attention over two disjoint key sets into ``output`` [num_tokens, num_heads, head_dim].

    ``*_lse`` [num_heads, num_tokens] f32, natural logarithm; -inf or +inf marks an empty side. Rows that are empty on both sides become 0
    with lse -inf (vLLM copies prefix_output). Tokens from ``prefill_tokens_with_context`` on take the suffix as it is.
    """
    _unsupported(output_scale=output_scale)
    a, b = _log_sums(prefix_lse, "prefix_lse"), _log_sums(suffix_lse, "suffix_lse")
    n = output.shape[0] if prefill_tokens_with_context is None else int(prefill_tokens_with_context)
    if not 0 <= n <= output.shape[0]:
        raise ArgumentError(f"prefill_tokens_with_context: {n} outside [0, {output.shape[0]}]")
    lse = empty_f32_like(output, (output.shape[0], output.shape[1])) if output_lse is None else output_lse.T
    if n == output.shape[0]:
        _quire.merge(prefix_output, a, suffix_output, b, output, lse)
        return
    _quire.merge(prefix_output[:n], a[:n], suffix_output[:n], b[:n], output[:n], lse[:n])
    output[n:] = suffix_output[n:]
    if output_lse is not None:
        output_lse[:, n:] = suffix_lse[:, n:]
