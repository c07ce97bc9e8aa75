# SPDX-License-Identifier: Apache-2.0
"""vLLM's paged-attention ops on Quire: the same names, argument order and meaning, for NumPy, torch CPU and torch CUDA tensors.

Code and tests written for vLLM run by changing an import. What differs, on purpose:

* **Errors instead of silence.** Every call goes through Quire's contract. Index tensors are read as the dtype they have (int32 or
  int64). ``max_query_len``, ``max_input_len`` and the ``max_seq_len`` of the decode ops raise if they are too small; vLLM leaves rows
  unwritten or reads past its buffers. ``max_seq_len`` of :func:`chunked_prefill_paged_decode` and :func:`context_attention_fwd` is
  ignored, as in vLLM's prefill kernel: vLLM's own test passes 1024 there for sequences of up to 1792 tokens.
* **fp8 is a type.** ``kv_cache_dtype`` "fp8" and "fp8_e4m3" mean ``fp8_e4m3fn`` for uint8 tensors, or ``fp8_e4m3fnuz`` if
  ``fp8_flavour`` is "fnuz" (gfx94x); "fp8_e5m2" means ``fp8_e5m2``. A tensor that has an fp8 dtype keeps it, and a string that
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

**On CUDA tensors** calls use torch's current stream, take lengths and tables where they are, enqueue and return. If lengths or tables
break a rule, or exceed ``max_query_len`` or the ``max_seq_len`` that the op looks at, the device writes no row and leaves a mark: the
next call raises it, or :func:`quire.synchronize`. ``wait=True`` waits in each call and raises there. Such calls can be captured in a
graph with ``wait=False``. The decode ops and ``skip_decode``, which answer some of the rows, read the lengths on the host.

**Two arguments of every op are not vLLM's**, by name: ``wait`` and ``fp8_flavour`` (where a cache is read). None takes what
:func:`settings` says around the call, or else :data:`wait` and :data:`fp8_flavour` of this module.

**Signatures are those of vLLM 0.33**, whose names hold those of 0.11 and 0.20. Where these three disagree about positions
(``unified_attention`` from ``seq_threshold_3D`` on, the prefill ops behind ``is_block_table_ptr``), arguments are taken by name only:
a position that meant something else a version ago is a TypeError, not another argument.

What Quire does not do raises :class:`quire.UnsupportedError` (a NotImplementedError) naming the argument, unless the argument has its
default: block-sparse attention, ``qq_bias``, ``mm_prefix_range``, ``rswa_prefix_lens``, ``rswa_window``,
``use_alibi_sqrt``, ``chunk_lookback``, scales per token and head (``kv_quant_mode``, ``k_scale_cache``, ``v_scale_cache``), tables of
pointers. ``use_td`` and ``mm_prefix_clamp_sliding_window`` alone change no result and are ignored.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from quire import _quire
from quire._arrays import empty_f32_like, is_torch
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
    "settings",
    "triton_reshape_and_cache_flash",
    "unified_attention",
    "wait",
]

fp8_flavour: str = "fn"
"""What "fp8" and "fp8_e4m3" mean for uint8 caches: "fn" (NVIDIA, gfx95x, gfx12) or "fnuz" (gfx94x)."""

wait: bool = False
"""On CUDA tensors, True: every call waits for the device and raises what it found. False: the next call raises it, or
:func:`quire.synchronize`."""


class _Settings(NamedTuple):
    wait: bool | None = None
    fp8_flavour: str | None = None


_settings: contextvars.ContextVar[_Settings] = contextvars.ContextVar("quire.vllm.settings", default=_Settings())


@contextlib.contextmanager
def settings(*, wait: bool | None = None, fp8_flavour: str | None = None) -> Iterator[None]:
    """Sets defaults of arguments for calls inside the ``with``, in this thread or asyncio task alone.

    ``wait``: True waits for the device in each call and raises what it found. ``fp8_flavour``: "fn" or "fnuz". None leaves what is set.
    """
    if wait is not None and not isinstance(wait, bool):
        raise ArgumentError(f"wait: {wait!r}, expected True, False or None")
    _known_flavour(fp8_flavour)
    outer = _settings.get()
    token = _settings.set(
        _Settings(outer.wait if wait is None else wait, outer.fp8_flavour if fp8_flavour is None else fp8_flavour)
    )
    try:
        yield
    finally:
        _settings.reset(token)


def _known_flavour(flavour: str | None) -> None:
    if flavour not in (None, "fn", "fnuz"):
        raise ArgumentError(f'fp8_flavour: "{flavour}" is neither "fn" nor "fnuz"')


def _waits(given: bool | None) -> bool:
    if given is None:
        given = _settings.get().wait
    return globals()["wait"] if given is None else given


def _flavour(given: str | None) -> str:
    if given is None:
        given = _settings.get().fp8_flavour
    chosen: str = globals()["fp8_flavour"] if given is None else given
    _known_flavour(chosen)
    return chosen

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


_REASONS = {
    "blocksparse_vert_stride": "every visible key is attended to, block-sparse attention is not offered",
    "chunk_lookback": "a window slides with the query row, windows in aligned chunks are not offered",
    "interleaved_v": "a value cache of [num_blocks, num_kv_heads, block_size / x, head_dim, x] is read, but not written",
    "interleaved_v_pack_factor": "a value cache of [num_blocks, num_kv_heads, block_size / x, head_dim, x] is read, but not written",
    "is_block_table_ptr": "a block table holds page ids, tables of device pointers are not read",
    "k_scale_cache": "a cache has one scale, or one per KV head, scales per token and head are not read",
    "mm_prefix_range": "a request is causal or not, spans inside a causal one are not offered",
    "qq_bias": "scores take ALiBi slopes, a matrix of biases is not read",
    "rswa_prefix_lens": "a window hides every older key, a prefix that stays visible is not offered",
    "rswa_window": "a window hides every older key, a prefix that stays visible is not offered",
    "use_alibi_sqrt": "ALiBi is linear in the distance, its square root is not offered",
    "v_scale_cache": "a cache has one scale, or one per KV head, scales per token and head are not read",
}
"""Why an argument is refused."""


def _unsupported(**arguments: Any) -> None:
    """Raises for the first argument that is neither None nor False."""
    for name, value in arguments.items():
        if value is not None and value is not False:
            raise UnsupportedError(f"{name}: not supported by quire.vllm: {_REASONS[name]}")


def _flags(causal: Any) -> Any:
    """vLLM's ``causal``: one flag, or a tensor of one a request. vLLM keeps flags as int32, too, where 0 is false."""
    if isinstance(causal, (bool, int, np.bool_)):
        return bool(causal)
    dtype = str(getattr(causal, "dtype", type(causal).__name__)).removeprefix("torch.")
    if dtype in ("bool", "uint8"):
        return causal
    if dtype in ("int32", "int64"):
        return causal != 0
    raise ArgumentError(f"causal: {dtype}, expected a bool, or a tensor of one flag a request (bool, uint8, int32 or int64)")


_QUANT_MODES = {0: "NONE", 1: "FP8_PER_TENSOR"}
"""The values of vLLM's KVQuantMode under which a cache has one scale, or one per KV head."""


def _known_quant_mode(mode: Any) -> None:
    if mode is not None and mode not in _QUANT_MODES:
        raise UnsupportedError(
            f"kv_quant_mode: {getattr(mode, 'name', mode)} is not supported by quire.vllm, which knows "
            f"{', '.join(f'{name} ({value})' for value, name in _QUANT_MODES.items())}"
        )


def _on_device(array: Any) -> bool:
    return is_torch(array) and array.device.type != "cpu"


def _numbers(array: Any, name: str) -> np.ndarray:
    """Index tensors and scales as NumPy; those on a device are copied, which waits for it."""
    if _on_device(array) and sys.modules["torch"].cuda.is_current_stream_capturing():
        raise ArgumentError(f"{name}: this op reads its values on the host, which would wait; the stream is being captured in a graph")
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


def _cache_dtype(kv_cache_dtype: str, cache: Any, name: str, flavour: str) -> str | None:
    """The Quire dtype to read ``cache`` as; None = as the dtype it has."""
    if kv_cache_dtype in ("fp8", "fp8_e4m3"):
        allowed, raw = _E4M3, "fp8_e4m3" + flavour
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
    """A scale as one number, or one per KV head; more values are accepted only if all are equal."""
    if scale is None or isinstance(scale, (int, float)):
        return scale
    if is_torch(scale) and scale.ndim == 2 and scale.shape[0] > 0 and scale.stride(0) == 0:
        scale = scale[0]  # one row, expanded over requests as vLLM does
    if _on_device(scale) and (scale.numel() == 1 or tuple(scale.shape) == (num_kv_heads,)):
        return scale.reshape(-1)  # its values stay where they are
    values = _numbers(scale, name)
    if values.size == 1:
        return float(values.reshape(()))
    if values.shape == (num_kv_heads,):
        return values
    if values.ndim == 2 and values.shape[0] > 0 and values.shape[1] == num_kv_heads and np.all(values == values[0]):
        return scale[0].contiguous() if _on_device(scale) else np.ascontiguousarray(values[0])
    if values.size > 0 and np.all(values == values.flat[0]):
        return float(values.flat[0])
    raise UnsupportedError(f"{name}: shape {list(values.shape)} with different values; expected one value or one per KV head")


def _one_scale(scale: Any, name: str) -> Any:
    """A scale of one number, left in its memory."""
    if scale is None or isinstance(scale, (int, float)):
        return scale
    size = scale.numel() if is_torch(scale) else np.size(scale)
    if size != 1:
        raise UnsupportedError(f"{name}: shape {list(scale.shape)}; expected one value, outputs have one scale per tensor")
    return scale.reshape(-1)


def _query_scale(scale: Any, query: Any, num_kv_heads: int) -> Any:
    """The scale of an fp8 query. Beside other queries vLLM does not look at it."""
    if scale is None or _dtype_of(query, "q") != "fp8_e4m3fn":
        return None
    return _scale(scale, "q_descale", num_kv_heads)


_known_dtypes: dict[tuple[Any, ...], str] = {}
"""What :func:`_dtype_of_caches` found before, by all that it looks at."""


def _dtype_of_caches(key_cache: Any, value_cache: Any, kv_cache_dtype: str, flavour: str) -> str:
    """The Quire dtype that both are read as."""
    found = tuple(
        _view(cache, name, _cache_dtype(kv_cache_dtype, cache, name, flavour))[1]
        for cache, name in ((key_cache, "key_cache"), (value_cache, "value_cache"))
    )
    if found[0] != found[1]:
        raise ArgumentError(f"value_cache: {found[1]}, but key_cache is {found[0]}")
    return found[0]


def _dtype_of_both(key_cache: Any, value_cache: Any, kv_cache_dtype: str | None, fp8_flavour: str | None) -> str:
    """:func:`_dtype_of_caches`, remembered. ``kv_cache_dtype`` None: raw bytes are fp8, other caches what they are."""
    flavour = _flavour(fp8_flavour)
    key = (kv_cache_dtype, flavour, type(key_cache), getattr(key_cache, "dtype", None), type(value_cache), getattr(value_cache, "dtype", None))  # fmt: skip
    dtype = _known_dtypes.get(key)
    if dtype is None:
        asked = kv_cache_dtype if kv_cache_dtype is not None else "fp8" if _is_raw(key_cache) else "auto"
        dtype = _known_dtypes[key] = _dtype_of_caches(key_cache, value_cache, asked, flavour)
    return dtype


def _read_cache(
    key_cache: Any, value_cache: Any, kv_cache_dtype: str | None, k_scale: Any, v_scale: Any, heads_dim: int, scale_name: str = "scale",
    fp8_flavour: str | None = None,
) -> _Cache:  # fmt: skip
    """The arrays as they are, with the dtype to read them as. Scales apply to fp8 caches only."""
    dtype = _dtype_of_both(key_cache, value_cache, kv_cache_dtype, fp8_flavour)
    if not dtype.startswith("fp8"):
        return _Cache(key_cache, value_cache, dtype, None, None)
    heads = key_cache.shape[heads_dim] if key_cache.ndim > heads_dim else 1
    return _Cache(
        key_cache, value_cache, dtype, _scale(k_scale, "k_" + scale_name, heads), _scale(v_scale, "v_" + scale_name, heads)
    )


def _as_bits(cache: _Cache) -> _Cache:
    """Host caches as NumPy, whatever library they come from."""
    if _on_device(cache.k):
        return cache
    return cache._replace(k=_quire.bits(cache.k, "key_cache", cache.dtype)[0], v=_quire.bits(cache.v, "value_cache", cache.dtype)[0])


def _has_other_x(cache: _Cache) -> bool:
    return cache.k.ndim == 5 and cache.k.shape[4] != 16 // cache.k.itemsize


def _permuted(array: Any, *order: int) -> Any:
    return array.permute(*order) if is_torch(array) else array.transpose(*order)


def _unpacked(k: Any) -> Any:
    """[pages, heads, dim / x, page_size, x] of any x as [pages, page_size, heads, dim]; a copy."""
    pages, heads, chunks, page_size, x = k.shape
    return _permuted(k, 0, 3, 1, 2, 4).reshape(pages, page_size, heads, chunks * x)


def _uninterleaved(v: Any, x: int) -> Any:
    """[pages, heads, dim, page_size] that holds [pages, heads, page_size / x, dim, x] as [pages, page_size, heads, dim]; a copy."""
    pages, heads, dim, page_size = v.shape
    if x < 1 or page_size % x != 0:
        raise ArgumentError(f"interleaved_v_pack_factor: {x} does not divide the block size {page_size}")
    return _permuted(v.reshape(pages, heads, page_size // x, dim, x), 0, 2, 4, 1, 3).reshape(pages, page_size, heads, dim)


def _packed_cache(cache: _Cache, interleaved_x: int = 0) -> tuple[_Cache, str]:
    """vLLM's packed layout. x is 16 / itemsize by definition; a cache packed with another x (vLLM's own prefix-prefill test packs fp8
    with x = 8), or with interleaved values, is copied into a layout that can say so."""
    if not _has_other_x(cache) and not interleaved_x:
        return cache, "packed"
    cache = _as_bits(cache)
    if interleaved_x:
        _warn_once("value_cache is interleaved; quire.vllm copies the cache on every call")
        v = _uninterleaved(cache.v, interleaved_x)
    else:
        _warn_once(
            f"key_cache is packed with x = {cache.k.shape[4]} where {16 // cache.k.itemsize} is expected for {cache.dtype}; "
            "quire.vllm copies it on every call"
        )
        v = _permuted(cache.v, 0, 3, 1, 2)
    return cache._replace(k=_unpacked(cache.k), v=v), "nhd"


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
    return _quire.Options(**_option_arguments(scale, window, cap, alibi_slopes, sinks))


def _option_arguments(scale: float | None, window: int | None, cap: float | None, alibi_slopes: Any, sinks: Any) -> dict[str, Any]:
    return dict(
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


def _lengths(query_start_loc: Any, seq_lens: Any) -> _Lengths:
    qsl = _numbers(query_start_loc, "query_start_loc")
    seq = _numbers(seq_lens, "seq_lens")
    if qsl.ndim != 1 or seq.ndim != 1 or qsl.size != seq.size + 1 or qsl.dtype.kind != "i" or seq.dtype.kind != "i":
        return _Lengths(qsl, seq, np.zeros(0, np.int64), False)
    query_lens = np.diff(qsl.astype(np.int64))
    return _Lengths(qsl, seq, query_lens, bool(np.all((query_lens >= 0) & (query_lens <= seq))))


def _at_least(given: int | None, needed: int, name: str) -> None:
    if given is not None and given < needed:
        raise ArgumentError(f"{name}: {given}, but the batch has {needed}; vLLM would leave rows unwritten")


def _cached_lens(query_start_loc: Any, seq_lens: Any, whole_decode: bool) -> Any:
    """Number of cached tokens of each request, in the memory of the lengths; None if lengths on the host are invalid.

    seq_len - query_len; with ``whole_decode`` seq_len where query_len is 1. Does not wait for a device.
    """
    if _on_device(query_start_loc) and _on_device(seq_lens):
        new = query_start_loc.diff().to(seq_lens.dtype)
        return seq_lens - (new * (new != 1) if whole_decode else new)
    lengths = _lengths(query_start_loc, seq_lens)
    if not lengths.sound:
        return None
    context = lengths.seq_lens - lengths.query_lens
    return np.where(lengths.query_lens == 1, lengths.seq_lens, context) if whole_decode else context


@functools.cache
def _on_cuda() -> bool:
    """Devices of this process' torch are NVIDIA's."""
    return sys.modules["torch"].version.hip is None


def _decode_lens(query_start_loc: Any, seq_lens: Any) -> Any:
    """:func:`_cached_lens` with ``whole_decode``, of lengths on a device: left to one kernel of Quire's on CUDA."""
    return "decode" if _on_cuda() else _cached_lens(query_start_loc, seq_lens, whole_decode=True)


class _Call(NamedTuple):
    """Request of an op: the arguments of ``_quire.attend_arrays``."""

    arguments: dict[str, Any]
    answered: np.ndarray | None = None
    """Requests whose rows the op writes; None = all."""

    def cache(self) -> _quire.KVCache:
        a = self.arguments
        return _as_bits(_Cache(a["k"], a["v"], a["cache_dtype"], a["k_scale"], a["v_scale"])).view(a["layout"])

    def options(self) -> _quire.Options:
        a = self.arguments
        names = ("softmax_scale", "sliding_window", "logits_soft_cap", "alibi_slopes", "sinks", "window_right")
        return _quire.Options(causal=a["causal"] is not False, **{name: a.get(name) for name in names})

    def batch(self) -> _quire.Batch:
        names = ("query", "output", "query_start_loc", "seq_lens", "block_table", "cached_lens", "key", "value", "padding", "q_scale",
                 "output_scale")  # fmt: skip
        causal = self.arguments["causal"]
        return _quire.Batch(**{name: self.arguments.get(name) for name in names}, causal=None if isinstance(causal, bool) else causal)

    def inputs(self) -> Inputs:
        a = self.arguments
        return Inputs(self.batch(), self.cache(), self.options(), _lengths(a["query_start_loc"], a["seq_lens"]), self.answered)


def _reading(read: Callable[..., _Call]) -> Callable[..., Inputs]:
    """Wraps ``read``, with its signature, to return objects."""

    @functools.wraps(read)
    def inputs(**arguments: Any) -> Inputs:
        return read(**arguments).inputs()

    return inputs


def _window(window_size: Sequence[int] | None) -> int | None:
    """vLLM's (W - 1, not read) as a count of keys."""
    return window_size[0] + 1 if window_size is not None and window_size[0] >= 0 else None


# Engines call an op for each layer of each step. Where tensors are on a device and arguments are plain, an op hands them to
# _quire.attend_arrays() as they are, in a twentieth of the time that _unified() and _chunked() take to describe any call.


def _all_on_device(*tensors: Any) -> bool:
    for tensor in tensors:
        if getattr(tensor, "is_cpu", True):
            return False
    return True


def _is_plain_scale(scale: Any) -> bool:
    """Needs no other shape."""
    return scale is None or type(scale) is float or (_all_on_device(scale) and scale.ndim < 2 and scale.numel() == 1)


def _attend_plain(
    query: Any, output: Any, k: Any, v: Any, starts: Any, seq_lens: Any, table: Any, layout: str, dtype: str, k_scale: Any, v_scale: Any,
    softmax_scale: Any, window: int | None, cap: float | None, alibi_slopes: Any, sinks: Any, most_rows: int, most_keys: int | None,
    wait: bool | None, cached_lens: Any = None, key: Any = None, value: Any = None,
) -> bool:  # fmt: skip
    """Attends, and returns True, if the arguments are plain. Negative and absent bounds, scales of many values, numbers of other
    libraries and slopes of other types are not."""
    if not dtype.startswith("fp8"):
        k_scale = v_scale = None
    if not (
        _all_on_device(query, k, starts, seq_lens)
        and (softmax_scale is None or type(softmax_scale) is float)
        and type(most_rows) is int
        and most_rows > 0
        and (most_keys is None or (type(most_keys) is int and most_keys > 0))
        and _is_plain_scale(k_scale)
        and _is_plain_scale(v_scale)
    ):
        return False
    _quire.attend_arrays(
        query, output, k, v, starts, seq_lens, table, layout, dtype, cached_lens, key, value, None, k_scale, v_scale, softmax_scale, window,
        cap if cap is not None and cap > 0 else None, _f32_vector(alibi_slopes, "alibi_slopes"), _f32_vector(sinks, "sinks"), padding, most_rows, most_keys, None,
        _waits(wait),
    )  # fmt: skip
    return True


def _attend_call(call: _Call, wait: bool | None, query_len: tuple[int | None, str], seq_len: tuple[int | None, str] = (None, "")) -> None:
    """Attends all requests. The bounds reach the plan; for lengths on the host they are looked at before."""
    a = call.arguments
    if not _on_device(a["query_start_loc"]):
        _check_limits(_lengths(a["query_start_loc"], a["seq_lens"]), call, query_len, seq_len)
    # 0 says nothing to plan(), so a bound of no token at all is one.
    most_rows, most_keys = (None if n is None else max(int(n), 1) for n in (query_len[0], seq_len[0]))
    _quire.attend_arrays(**a, max_query_len=most_rows, max_seq_len=most_keys, wait=_waits(wait))


def _check_limits(lengths: _Lengths, call: _Call, query_len: tuple[int | None, str], seq_len: tuple[int | None, str]) -> None:
    """A rule that is broken is raised first: a limit means nothing then."""
    longest = int(lengths.query_lens.max(initial=0)), int(lengths.seq_lens.max(initial=0)) if lengths.sound else 0
    short = [name for (given, name), needed in zip((query_len, seq_len), longest) if given is not None and given < needed]
    if not short and lengths.sound:
        return
    _quire.check(call.batch(), call.cache(), call.options(), "tables").raise_if_any()
    for (given, name), needed in zip((query_len, seq_len), longest):
        _at_least(given, needed, name)


def _attend(
    batches: Sequence[_quire.Batch],
    cache: _quire.KVCache,
    options: _quire.Options,
    limits: Sequence[tuple[int | None, int, str]],
    wait: bool | None = None,
    **bounds: int,
) -> None:
    """Plans (and so checks) every batch before the first one writes."""
    plans = [_quire.plan(batch, cache, options, **bounds) for batch in batches]
    for given, needed, name in limits:
        _at_least(given, needed, name)
    for batch, plan in zip(batches, plans):
        _quire.attend(batch, cache, options, plan, wait=_waits(wait))


def _runs(keep: np.ndarray) -> list[tuple[int, int]]:
    """Half-open ranges of consecutive kept requests."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], keep, [False])).astype(np.int8)))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2])]


def _batch_of_run(run: tuple[int, int], lengths: _Lengths, table: np.ndarray, query: Any, output: Any, **new: Any) -> _quire.Batch:
    """Requests [a, b) as a batch of its own, on views of the same rows."""
    a, b = run
    first, last = int(lengths.query_start_loc[a]), int(lengths.query_start_loc[b])
    cached, output_scale = new.pop("cached_lens", None), new.pop("output_scale", None)
    return _quire.Batch(
        query=query[first:last],
        output=output[first:last],
        query_start_loc=_beside(lengths.query_start_loc[a : b + 1] - lengths.query_start_loc[a], query),
        seq_lens=_beside(lengths.seq_lens[a:b], query),
        block_table=table[a:b],
        cached_lens=None if cached is None else _beside(cached[a:b], query),
        output_scale=output_scale,
        **{name: rows[first:last] for name, rows in new.items() if rows is not None},
    )


def _zero_padding(output: Any, lengths: _Lengths) -> None:
    """Sets rows after the last start to 0, for ops that split a batch into runs of requests."""
    if padding == "zero":
        output[int(lengths.query_start_loc[-1]) :] = 0


class Inputs(NamedTuple):
    """Inputs of a call. Every op reads its arguments in one function below, which quire.hooks shares."""

    batch: _quire.Batch
    cache: _quire.KVCache
    options: _quire.Options
    lengths: _Lengths
    answered: np.ndarray | None = None
    """Requests whose rows the op writes; None = all."""


def _chunked(
    *, query: Any, key: Any, value: Any, output: Any, kv_cache_dtype: str, key_cache: Any, value_cache: Any, block_table: Any,
    query_start_loc: Any, seq_lens: Any, k_scale: Any, v_scale: Any, alibi_slopes: Any = None, sliding_window: int | None = None,
    sm_scale: float | None = None, sinks: Any = None, output_scale: Any = None, is_block_table_ptr: bool = False,
    use_interleaved_v_cache: bool = False, causal: bool = True, max_query_len: int | None = None, fp8_flavour: str | None = None,
    **_: Any,
) -> _Call:  # fmt: skip
    _unsupported(is_block_table_ptr=is_block_table_ptr)
    if max_query_len == 1 and _on_device(query_start_loc):
        key = value = None  # rows of query_len 1 read the cache alone; a longer one exceeds the bound, and is found
    cached = None if key is None else _cached_lens(query_start_loc, seq_lens, whole_decode=True)
    cache, layout = _packed_cache(
        _read_cache(key_cache, value_cache, kv_cache_dtype, k_scale, v_scale, heads_dim=1, fp8_flavour=fp8_flavour),
        16 // value_cache.itemsize if use_interleaved_v_cache else 0,
    )
    return _Call(
        dict(
            query=query, output=output, query_start_loc=query_start_loc, seq_lens=seq_lens, block_table=block_table, cached_lens=cached,
            key=key, value=value, k=cache.k, v=cache.v, layout=layout, cache_dtype=cache.dtype, k_scale=cache.k_scale,
            v_scale=cache.v_scale, padding=padding, output_scale=_one_scale(output_scale, "output_scale"), causal=_flags(causal),
            **_option_arguments(sm_scale, sliding_window, None, alibi_slopes, sinks),
        )
    )  # fmt: skip


chunked_inputs = _reading(_chunked)


def _context(
    *, q: Any, k: Any, v: Any, o: Any, kv_cache_dtype: str, k_cache: Any, v_cache: Any, b_loc: Any, b_start_loc: Any, b_seq_len: Any,
    k_scale: Any, v_scale: Any, alibi_slopes: Any = None, sliding_window: int | None = None, sm_scale: float | None = None,
    skip_decode: bool = False, sinks: Any = None, fp8_out_scale: Any = None, is_block_table_ptr: bool = False,
    interleaved_v_pack_factor: int = 0, causal: bool = True, fp8_flavour: str | None = None, **_: Any,
) -> _Call:  # fmt: skip
    _unsupported(is_block_table_ptr=is_block_table_ptr)
    cache, layout = _packed_cache(
        _read_cache(k_cache, v_cache, kv_cache_dtype, k_scale, v_scale, heads_dim=1, fp8_flavour=fp8_flavour),
        interleaved_v_pack_factor,
    )
    return _Call(
        dict(
            query=q, output=o, query_start_loc=b_start_loc, seq_lens=b_seq_len, block_table=b_loc,
            cached_lens=None if k is None else _cached_lens(b_start_loc, b_seq_len, whole_decode=False), key=k, value=v, k=cache.k,
            v=cache.v, layout=layout, cache_dtype=cache.dtype, k_scale=cache.k_scale, v_scale=cache.v_scale,
            padding=padding, output_scale=_one_scale(fp8_out_scale, "fp8_out_scale"), causal=_flags(causal),
            **_option_arguments(sm_scale, sliding_window, None, alibi_slopes, sinks),
        ),
        _lengths(b_start_loc, b_seq_len).query_lens != 1 if skip_decode else None,
    )  # fmt: skip


context_inputs = _reading(_context)


def _unified(
    *, q: Any, k: Any, v: Any, out: Any, cu_seqlens_q: Any, seqused_k: Any, softmax_scale: float | None, causal: Any,
    window_size: Sequence[int] | None, block_table: Any, softcap: float, q_descale: Any, k_descale: Any, v_descale: Any,
    alibi_slopes: Any = None, output_scale: Any = None, qq_bias: Any = None, sinks: Any = None, mm_prefix_range: Any = None,
    rswa_prefix_lens: Any = None, rswa_window: int | None = None, use_alibi_sqrt: bool = False, kv_quant_mode: Any = 0,
    k_scale_cache: Any = None, v_scale_cache: Any = None, chunk_lookback: int = -1, fp8_flavour: str | None = None, **_: Any,
) -> _Call:  # fmt: skip
    _known_quant_mode(kv_quant_mode)
    _unsupported(
        qq_bias=qq_bias,
        mm_prefix_range=mm_prefix_range,
        rswa_prefix_lens=rswa_prefix_lens,
        rswa_window=rswa_window,
        use_alibi_sqrt=use_alibi_sqrt,
        k_scale_cache=k_scale_cache,
        v_scale_cache=v_scale_cache,
        chunk_lookback=None if chunk_lookback == -1 else chunk_lookback,
    )
    if alibi_slopes is not None and sinks is not None:
        raise UnsupportedError(
            "alibi_slopes with sinks: vLLM measures this op's bias from the context end, which a sink makes visible"
        )
    cache = _read_cache(k, v, None, k_descale, v_descale, heads_dim=2, scale_name="descale", fp8_flavour=fp8_flavour)
    window, flags = _window(window_size), _flags(causal)
    if flags is not True and window_size is not None and window_size[1] not in (-1, 0, window_size[0]):
        raise UnsupportedError(
            f"window_size: {tuple(window_size)}: the window of a request that is not causal has equal sides, as in vLLM; the right "
            f"one is -1, 0 or {window_size[0]}"
        )
    return _Call(
        dict(
            query=q, output=out, query_start_loc=cu_seqlens_q, seq_lens=seqused_k, block_table=block_table, k=cache.k, v=cache.v,
            layout="nhd", cache_dtype=cache.dtype, k_scale=cache.k_scale, v_scale=cache.v_scale,
            padding=padding, output_scale=_one_scale(output_scale, "output_scale"), q_scale=_query_scale(q_descale, q, k.shape[2]),
            causal=flags, window_right=None if window is None or flags is True else window - 1,
            **_option_arguments(softmax_scale, window, softcap, alibi_slopes, sinks),
        )
    )  # fmt: skip


unified_inputs = _reading(_unified)


def decode_inputs(
    *, out: Any, query: Any, key_cache: Any, value_cache: Any, num_kv_heads: int, scale: float, block_tables: Any, seq_lens: Any,
    block_size: int, alibi_slopes: Any, kv_cache_dtype: str, k_scale: Any, v_scale: Any, query_start_loc: Any = None,
    fp8_out_scale: Any = None, blocksparse_vert_stride: int = 0, use_interleaved_v_cache: bool = False,
    fp8_flavour: str | None = None, **_: Any,
) -> Inputs:  # fmt: skip
    """The whole batch of a decode-only op; it answers sequences of at least one token, and requests with exactly one row."""
    _unsupported(blocksparse_vert_stride=blocksparse_vert_stride > 1)
    cache = _decode_cache(key_cache, value_cache, kv_cache_dtype, k_scale, v_scale, fp8_flavour, use_interleaved_v_cache)
    _check_sizes(cache, num_kv_heads, block_size)
    seq = _quire.bits(seq_lens, "seq_lens")[0]
    starts = np.arange(seq.size + 1, dtype=seq.dtype) if query_start_loc is None else query_start_loc
    lengths = _lengths(starts, seq)
    rows_behind = None if query_start_loc is None else padding
    batch = _quire.Batch(
        query=query, output=out, query_start_loc=starts, seq_lens=seq_lens, block_table=block_tables, padding=rows_behind,
        output_scale=_one_scale(fp8_out_scale, "fp8_out_scale"),
    )  # fmt: skip
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
    negative = off; ``causal=False``: rows see later keys, and the window hides older ones alone. ``max_seq_len`` is ignored, ``max_query_len`` must not be too small. ``use_interleaved_v_cache``: ``value_cache`` holds
    [num_blocks, num_kv_heads, block_size / x, head_dim, x] with x = 16 / itemsize, and is copied on every call.
    """
    if (
        causal is True and not is_block_table_ptr and not use_interleaved_v_cache and output_scale is None
        and _all_on_device(query_start_loc) and key_cache.ndim == 5 and key_cache.shape[4] * key_cache.itemsize == 16
    ):  # fmt: skip
        # Rows of query_len 1 read the cache alone; a longer one exceeds the bound, and is found.
        new = key is not None and max_query_len != 1
        if _attend_plain(
            query, output, key_cache, value_cache, query_start_loc, seq_lens, block_table, "packed",
            _dtype_of_both(key_cache, value_cache, kv_cache_dtype, fp8_flavour), k_scale, v_scale, sm_scale,
            sliding_window if sliding_window is not None and sliding_window > 0 else None, None, alibi_slopes, sinks, max_query_len, None,
            wait, _decode_lens(query_start_loc, seq_lens) if new else None, key if new else None, value if new else None,
        ):  # fmt: skip
            return
    _attend_call(_chunked(**locals()), wait, (max_query_len, "max_query_len"))


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
    [num_blocks, num_kv_heads, block_size / x, head_dim, x], and is copied on every call. Shapes as in :func:`chunked_prefill_paged_decode`; ``max_seq_len`` is ignored.
    """
    call = _context(**locals())
    if not skip_decode or np.all(call.answered):
        return _attend_call(call, wait, (max_input_len, "max_input_len"))
    lengths = _lengths(b_start_loc, b_seq_len)
    cache, options = call.cache(), call.options()
    _quire.check(call.batch(), cache, options, "tables").raise_if_any()
    table = b_loc if _on_device(b_loc) else _quire.bits(b_loc, "b_loc")[0]
    cached = None if k is None else lengths.seq_lens - lengths.query_lens
    batches = [
        _batch_of_run(run, lengths, table, q, o, cached_lens=cached, key=k, value=v, output_scale=_one_scale(fp8_out_scale, "fp8_out_scale"))
        for run in _runs(lengths.query_lens != 1)
    ]
    longest = int(lengths.query_lens.max(initial=0))
    _attend(batches, cache, options, [(max_input_len, longest, "max_input_len")], wait, max_query_len=longest)
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

    ALiBi with sinks raises: vLLM's bias is relative to the context end here, which only cancels without a sink.
    """
    if (
        q_descale is None and output_scale is None and qq_bias is None and mm_prefix_range is None and rswa_prefix_lens is None
        and rswa_window is None and k_scale_cache is None and v_scale_cache is None and (alibi_slopes is None or sinks is None)
        and causal is True and not use_alibi_sqrt and chunk_lookback == -1 and kv_quant_mode in _QUANT_MODES
        and _attend_plain(
            q, out, k, v, cu_seqlens_q, seqused_k, block_table, "nhd", _dtype_of_both(k, v, None, fp8_flavour), k_descale, v_descale,
            softmax_scale, _window(window_size), softcap, alibi_slopes, sinks, max_seqlen_q, max_seqlen_k, wait,
        )
    ):  # fmt: skip
        return
    _attend_call(_unified(**locals()), wait, (max_seqlen_q, "max_seqlen_q"), (max_seqlen_k, "max_seqlen_k"))


def _decode_cache(
    key_cache: Any, value_cache: Any, kv_cache_dtype: str, k_scale: Any, v_scale: Any, flavour: str | None, interleaved: bool = False
) -> _quire.KVCache:  # fmt: skip
    cache, layout = _packed_cache(
        _read_cache(key_cache, value_cache, kv_cache_dtype, k_scale, v_scale, heads_dim=1, fp8_flavour=flavour),
        16 // value_cache.itemsize if interleaved else 0,
    )
    return cache.view(layout)


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
    *,
    wait: bool | None = None,
    fp8_flavour: str | None = None,
    interleaved: bool = False,
    output_scale: Any = None,
) -> None:
    """The decode-only ops: one query row per sequence, or, with query_start_loc, only the requests that have exactly one."""
    cache = _decode_cache(key_cache, value_cache, kv_cache_dtype, k_scale, v_scale, fp8_flavour, interleaved)
    _check_sizes(cache, num_kv_heads, block_size)
    options = _options(scale, None, None, alibi_slopes, None)
    table = block_tables if _on_device(block_tables) else _quire.bits(block_tables, "block_tables")[0]
    seq = _numbers(seq_lens, "seq_lens")
    if query_start_loc is None:
        lengths = _lengths(np.arange(seq.size + 1, dtype=np.int64), seq)
        if tuple(query.shape[:1]) != (seq.size,) or table.shape[:1] != (seq.size,) or seq.ndim != 1:
            raise ArgumentError(f"query: {query.shape[0]} rows for {seq.size} seq_lens and {table.shape[0]} block_tables rows")
        keep = seq > 0
    else:
        lengths = _lengths(query_start_loc, seq)
        whole = _quire.Batch(
            query=query, output=out, query_start_loc=query_start_loc, seq_lens=seq_lens, block_table=table, padding=padding,
            output_scale=output_scale,
        )  # fmt: skip
        _quire.check(whole, cache, options, "tables").raise_if_any()
        keep = lengths.query_lens == 1
    if np.any(seq < 0):
        raise ArgumentError(f"seq_lens[{int(np.argmin(seq))}]: {int(seq.min())} is negative")
    batches = [_batch_of_run(run, lengths, table, query, out, output_scale=output_scale) for run in _runs(keep)]
    longest = int(seq[keep].max(initial=0))
    _attend(batches, cache, options, [(max_seq_len, longest, "max_seq_len")], wait, max_query_len=1, max_seq_len=longest)
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
    *,
    wait: bool | None = None,
    fp8_flavour: str | None = None,
) -> None:
    """Decode attention over a packed cache, one query row per sequence: ``query``, ``out`` [num_seqs, num_q_heads, head_dim].

    A sequence of length 0 gets zeros. Block-sparse attention (blocksparse_vert_stride > 1) raises.
    """
    _unsupported(blocksparse_vert_stride=blocksparse_vert_stride > 1)
    _decode(
        out, query, key_cache, value_cache, num_kv_heads, scale, block_tables, seq_lens, block_size, max_seq_len, alibi_slopes,
        kv_cache_dtype, k_scale, v_scale, wait=wait, fp8_flavour=fp8_flavour,
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
    *,
    wait: bool | None = None,
    fp8_flavour: str | None = None,
) -> None:
    """:func:`paged_attention_v1` with vLLM's split-softmax buffers ``exp_sum``, ``max_logits`` and ``tmp_out``, which are not touched."""
    _unsupported(blocksparse_vert_stride=blocksparse_vert_stride > 1)
    _decode(
        out, query, key_cache, value_cache, num_kv_heads, scale, block_tables, seq_lens, block_size, max_seq_len, alibi_slopes,
        kv_cache_dtype, k_scale, v_scale, wait=wait, fp8_flavour=fp8_flavour,
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
    _decode(
        out, query, key_cache, value_cache, num_kv_heads, scale, block_tables, seq_lens, block_size, max_seq_len, alibi_slopes,
        kv_cache_dtype, k_scale, v_scale, query_start_loc, wait=wait, fp8_flavour=fp8_flavour, interleaved=use_interleaved_v_cache,
        output_scale=_one_scale(fp8_out_scale, "fp8_out_scale"),
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


def _append_plain(
    key: Any, value: Any, k: Any, v: Any, slots: Any, layout: str, dtype: str, k_scale: Any, v_scale: Any
) -> bool:  # fmt: skip
    """Appends, and returns True, if the tensors are on a device and the scales plain."""
    if not dtype.startswith("fp8"):
        k_scale = v_scale = None
    if not (_all_on_device(key, k, slots) and _is_plain_scale(k_scale) and _is_plain_scale(v_scale)):
        return False
    _quire.append_arrays(k, v, key, value, slots, layout, dtype, k_scale, v_scale)
    return True


def reshape_and_cache(
    key: Any, value: Any, key_cache: Any, value_cache: Any, slot_mapping: Any, kv_cache_dtype: str, k_scale: Any, v_scale: Any,
    interleaved_v: bool = False, *, fp8_flavour: str | None = None,
) -> None:  # fmt: skip
    """Writes ``key``, ``value`` [num_tokens, num_kv_heads, head_dim] into a packed cache: row t to slot_mapping[t]; negative = skip.

    fp8: stored = row / scale, rounded to nearest even, saturating. slot_mapping may be shorter than key (graph padding). All heads are
    written, whatever their number; strides of every tensor are honoured.
    """
    _unsupported(interleaved_v=interleaved_v)
    if key_cache.ndim == 5 and key_cache.shape[4] * key_cache.itemsize == 16 and _append_plain(
        key, value, key_cache, value_cache, slot_mapping, "packed", _dtype_of_both(key_cache, value_cache, kv_cache_dtype, fp8_flavour),
        k_scale, v_scale,
    ):  # fmt: skip
        return
    cache = _as_bits(_read_cache(key_cache, value_cache, kv_cache_dtype, k_scale, v_scale, heads_dim=1, fp8_flavour=fp8_flavour))
    if _has_other_x(cache):
        if _on_device(key_cache):
            raise UnsupportedError("key_cache: packed with an unusual x, which is not written on a device")
        slots = _quire.bits(slot_mapping, "slot_mapping")[0]
        _append_other_x(cache, key, value, slots)
    else:
        _quire.append(cache.view("packed"), key, value, slot_mapping)


def reshape_and_cache_flash(
    key: Any, value: Any, key_cache: Any, value_cache: Any, slot_mapping: Any, kv_cache_dtype: str, k_scale: Any, v_scale: Any,
    *, fp8_flavour: str | None = None,
) -> None:  # fmt: skip
    """:func:`reshape_and_cache` for caches [num_blocks, block_size, num_kv_heads, head_dim]; NHD or HND by stride. Per-head scales work."""
    if _append_plain(
        key, value, key_cache, value_cache, slot_mapping, "nhd", _dtype_of_both(key_cache, value_cache, kv_cache_dtype, fp8_flavour),
        k_scale, v_scale,
    ):  # fmt: skip
        return
    cache = _as_bits(_read_cache(key_cache, value_cache, kv_cache_dtype, k_scale, v_scale, heads_dim=2, fp8_flavour=fp8_flavour))
    _quire.append(cache.view("nhd"), key, value, slot_mapping)


def triton_reshape_and_cache_flash(
    key: Any, value: Any, key_cache: Any, value_cache: Any, slot_mapping: Any, kv_cache_dtype: str, k_scale: Any, v_scale: Any,
    interleaved_v_pack_factor: int = 0, *, fp8_flavour: str | None = None,
) -> None:  # fmt: skip
    """:func:`reshape_and_cache_flash` by the name of vLLM's Triton op."""
    _unsupported(interleaved_v_pack_factor=None if interleaved_v_pack_factor == 0 else interleaved_v_pack_factor)
    reshape_and_cache_flash(
        key, value, key_cache, value_cache, slot_mapping, kv_cache_dtype, k_scale, v_scale, fp8_flavour=fp8_flavour
    )


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

    ``output_scale`` (one value) goes with an fp8_e4m3fn ``output``: stored = round to nearest even of value / scale, +-448 beyond.
    """
    scale = _one_scale(output_scale, "output_scale")
    a, b = _log_sums(prefix_lse, "prefix_lse"), _log_sums(suffix_lse, "suffix_lse")
    n = output.shape[0] if prefill_tokens_with_context is None else int(prefill_tokens_with_context)
    if not 0 <= n <= output.shape[0]:
        raise ArgumentError(f"prefill_tokens_with_context: {n} outside [0, {output.shape[0]}]")
    lse = empty_f32_like(output, (output.shape[0], output.shape[1])) if output_lse is None else output_lse.T
    if n == output.shape[0]:
        _quire.merge(prefix_output, a, suffix_output, b, output, lse, output_scale=scale)
        return
    _quire.merge(prefix_output[:n], a[:n], suffix_output[:n], b[:n], output[:n], lse[:n], output_scale=scale)
    if scale is None:
        output[n:] = suffix_output[n:]
    else:  # the suffix beside an empty set, so that it is rounded by the same rule
        rest, none = suffix_output[n:], empty_f32_like(output, (output.shape[0] - n, output.shape[1]))
        none[:] = -np.inf
        _quire.merge(rest, none, rest, b[n:], output[n:], empty_f32_like(output, none.shape), output_scale=scale)
    if output_lse is not None:
        output_lse[:, n:] = suffix_lse[:, n:]
