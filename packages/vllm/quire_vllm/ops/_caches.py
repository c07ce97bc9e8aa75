# SPDX-License-Identifier: Apache-2.0
"""KV caches and their scales, as vLLM passes them."""

from __future__ import annotations

from typing import Any

import numpy as np

from quire import _quire
from quire._inputs import numbers, on_device
from quire._arrays import is_torch
from quire.errors import ArgumentError, UnsupportedError

from quire_vllm.ops._settings import flavour
from quire_vllm.ops._tensors import dtype_of, is_raw, permuted, view, warn_once

_E4M3 = ("fp8_e4m3fn", "fp8_e4m3fnuz")
_E5M2 = ("fp8_e5m2", "fp8_e5m2fnuz")
_PLAIN = {"float16": "f16", "half": "f16", "bfloat16": "bf16", "float32": "f32", "float": "f32"}


def _dtype_asked(kv_cache_dtype: str, cache: Any, name: str, fp8: str) -> str | None:
    """The Quire dtype to read ``cache`` as; None = as the dtype it has."""
    if kv_cache_dtype in ("fp8", "fp8_e4m3"):
        allowed, raw = _E4M3, "fp8_e4m3" + fp8
    elif kv_cache_dtype == "fp8_e5m2":
        allowed, raw = _E5M2, "fp8_e5m2"
    elif kv_cache_dtype == "auto" or kv_cache_dtype in _PLAIN:
        if is_raw(cache):
            raise ArgumentError(f'{name}: uint8 with kv_cache_dtype="{kv_cache_dtype}"; which fp8 format is it?')
        return _PLAIN.get(kv_cache_dtype)
    else:
        raise ArgumentError(f'kv_cache_dtype: "{kv_cache_dtype}" is none of auto, fp8, fp8_e4m3, fp8_e5m2, {", ".join(_PLAIN)}')
    if is_raw(cache):
        return raw
    dtype = dtype_of(cache, name)
    if dtype not in allowed:
        raise ArgumentError(f'{name}: the tensor is {dtype}, but kv_cache_dtype="{kv_cache_dtype}"')
    return dtype


def _scale(scale: Any, name: str, cache: Any, heads_dim: int) -> Any:
    """A scale as one number, or one per KV head; more values are accepted only if all are equal."""
    if scale is None or (not getattr(scale, "is_cpu", True) and scale.ndim < 2 and scale.numel() == 1):
        return scale  # a value on a device stays there
    if isinstance(scale, (int, float)):
        return scale
    num_kv_heads = cache.shape[heads_dim] if cache.ndim > heads_dim else 1
    if is_torch(scale) and scale.ndim == 2 and scale.shape[0] > 0 and scale.stride(0) == 0:
        scale = scale[0]  # one row, expanded over requests as vLLM does
    if on_device(scale) and (scale.numel() == 1 or tuple(scale.shape) == (num_kv_heads,)):
        return scale.reshape(-1)
    values = numbers(scale, name)
    if values.size == 1:
        return float(values.reshape(()))
    if values.shape == (num_kv_heads,):
        return values
    if values.ndim == 2 and values.shape[0] > 0 and values.shape[1] == num_kv_heads and np.all(values == values[0]):
        return scale[0].contiguous() if on_device(scale) else np.ascontiguousarray(values[0])
    if values.size > 0 and np.all(values == values.flat[0]):
        return float(values.flat[0])
    raise UnsupportedError(f"{name}: shape {list(values.shape)} with different values; expected one value or one per KV head")


def one_scale(scale: Any, name: str) -> Any:
    """A scale of one number, left in its memory."""
    if scale is None or isinstance(scale, (int, float)):
        return scale
    size = scale.numel() if is_torch(scale) else np.size(scale)
    if size != 1:
        raise UnsupportedError(f"{name}: shape {list(scale.shape)}; expected one value, outputs have one scale per tensor")
    return scale.reshape(-1)


def query_scale(scale: Any, query: Any, cache: Any, heads_dim: int) -> Any:
    """The scale of an fp8 query. Beside other queries vLLM does not look at it."""
    return _scale(scale, "q_descale", cache, heads_dim) if dtype_of(query, "q") == "fp8_e4m3fn" else None


_known_dtypes: dict[tuple[Any, ...], str] = {}
"""What :func:`_dtype_of_caches` found before, by all that it looks at."""


def _dtype_of_caches(key_cache: Any, value_cache: Any, kv_cache_dtype: str, fp8: str) -> str:
    """The Quire dtype that both are read as."""
    found = tuple(
        view(cache, name, _dtype_asked(kv_cache_dtype, cache, name, fp8))[1]
        for cache, name in ((key_cache, "key_cache"), (value_cache, "value_cache"))
    )
    if found[0] != found[1]:
        raise ArgumentError(f"value_cache: {found[1]}, but key_cache is {found[0]}")
    return found[0]


def dtype_of_both(key_cache: Any, value_cache: Any, kv_cache_dtype: str | None, fp8_flavour: str | None) -> str:
    """:func:`_dtype_of_caches`, remembered. ``kv_cache_dtype`` None: raw bytes are fp8, other caches what they are."""
    fp8 = flavour(fp8_flavour)
    key = (
        kv_cache_dtype, fp8, type(key_cache), getattr(key_cache, "dtype", None), type(value_cache), getattr(value_cache, "dtype", None)
    )  # fmt: skip
    dtype = _known_dtypes.get(key)
    if dtype is None:
        asked = kv_cache_dtype if kv_cache_dtype is not None else "fp8" if is_raw(key_cache) else "auto"
        dtype = _known_dtypes[key] = _dtype_of_caches(key_cache, value_cache, asked, fp8)
    return dtype


def read_scales(
    dtype: str, k_scale: Any, v_scale: Any, key_cache: Any, heads_dim: int, names: tuple[str, str] = ("k_scale", "v_scale")
) -> tuple[Any, Any]:
    """Scales of a cache of that dtype: to fp8 caches alone they apply, as in vLLM. ``names``: for messages."""
    if not dtype.startswith("fp8"):
        return None, None
    return _scale(k_scale, names[0], key_cache, heads_dim), _scale(v_scale, names[1], key_cache, heads_dim)


def as_bits(k: Any, v: Any, dtype: str) -> tuple[Any, Any]:
    """Host caches as NumPy, whatever library they come from."""
    if on_device(k):
        return k, v
    return _quire.bits(k, "key_cache", dtype)[0], _quire.bits(v, "value_cache", dtype)[0]


def has_other_x(k: Any) -> bool:
    """Packed with another x than 16 / itemsize, which vLLM's layout means: its own prefix-prefill test packs fp8 with x = 8."""
    return k.ndim == 5 and k.shape[4] * k.itemsize != 16


def unpacked(k: Any) -> Any:
    """[pages, heads, dim / x, page_size, x] of any x as [pages, page_size, heads, dim]; a copy."""
    pages, heads, chunks, page_size, x = k.shape
    return permuted(k, 0, 3, 1, 2, 4).reshape(pages, page_size, heads, chunks * x)


def uninterleaved(v: Any, x: int) -> Any:
    """[pages, heads, dim, page_size] that holds [pages, heads, page_size / x, dim, x] as [pages, page_size, heads, dim]; a copy."""
    pages, heads, dim, page_size = v.shape
    if x < 1 or page_size % x != 0:
        raise ArgumentError(f"interleaved_v_pack_factor: {x} does not divide the block size {page_size}")
    return permuted(v.reshape(pages, heads, page_size // x, dim, x), 0, 2, 4, 1, 3).reshape(pages, page_size, heads, dim)


def copied(k: Any, v: Any, dtype: str, interleaved_x: int) -> tuple[Any, Any, str]:
    """A packed cache with an x of its own, or with interleaved values, and its layout: a copy in a layout that can say so."""
    k, v = as_bits(k, v, dtype)
    if interleaved_x:
        warn_once("value_cache is interleaved; quire_vllm.ops copies the cache on every call")
        v = uninterleaved(v, interleaved_x)
    else:
        warn_once(
            f"key_cache is packed with x = {k.shape[4]} where {16 // k.itemsize} is expected for {dtype}; "
            "quire_vllm.ops copies it on every call"
        )
        v = permuted(v, 0, 3, 1, 2)
    return unpacked(k), v, "nhd"
