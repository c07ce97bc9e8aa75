# SPDX-License-Identifier: Apache-2.0
"""vLLM's ops that write new rows into a cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from quire import _quire
from quire._inputs import on_device
from quire.errors import ArgumentError, UnsupportedError

from quire_vllm.ops._caches import as_bits, dtype_of_both, has_other_x, read_scales, unpacked
from quire_vllm.ops._refusals import unsupported


def _append_other_x(
    key: Any, value: Any, key_cache: Any, value_cache: Any, slot_mapping: Any, dtype: str, k_scale: Any, v_scale: Any
) -> None:
    """Appends to a cache packed with an unusual x: the touched pages go through a copy in another layout and back."""
    if on_device(key_cache):
        raise UnsupportedError("key_cache: packed with an unusual x, which is not written on a device")
    (k, v), slots = as_bits(key_cache, value_cache, dtype), _quire.bits(slot_mapping, "slot_mapping")[0]
    num_pages, heads, chunks, page_size, x = k.shape
    used = slots[slots >= 0]
    if np.any(used >= num_pages * page_size):
        raise ArgumentError(f"slot_mapping: slot {int(used.max())} outside [0, {num_pages * page_size})")
    pages, place = np.unique(used // page_size, return_inverse=True)
    local = np.full(slots.shape, -1, np.int64)
    local[slots >= 0] = place * page_size + used % page_size
    new_k, new_v = unpacked(k[pages]), v[pages].transpose(0, 3, 1, 2)
    _quire.append(_quire.KVCache(new_k, new_v, "nhd", k_scale, v_scale, dtype), key, value, local)
    k[pages] = new_k.reshape(len(pages), page_size, heads, chunks, x).transpose(0, 2, 3, 1, 4)
    v[pages] = new_v.transpose(0, 2, 3, 1)


def reshape_and_cache(
    key: Any, value: Any, key_cache: Any, value_cache: Any, slot_mapping: Any, kv_cache_dtype: str, k_scale: Any, v_scale: Any,
    interleaved_v: bool = False, *, fp8_flavour: str | None = None,
) -> None:  # fmt: skip
    """Writes ``key``, ``value`` [num_tokens, num_kv_heads, head_dim] into a packed cache: row t to slot_mapping[t]; negative = skip.

    fp8: stored = row / scale, rounded to nearest even, saturating. slot_mapping may be shorter than key (graph padding). All heads are
    written, whatever their number; strides of every tensor are honoured.
    """
    if interleaved_v:
        unsupported(interleaved_v=interleaved_v)
    dtype = dtype_of_both(key_cache, value_cache, kv_cache_dtype, fp8_flavour)
    k_scale, v_scale = read_scales(dtype, k_scale, v_scale, key_cache, 1)
    if has_other_x(key_cache):
        _append_other_x(key, value, key_cache, value_cache, slot_mapping, dtype, k_scale, v_scale)
    else:
        _quire.append_arrays({
            "k": key_cache, "v": value_cache, "key": key, "value": value, "slot_mapping": slot_mapping, "layout": "packed",
            "cache_dtype": dtype, "k_scale": k_scale, "v_scale": v_scale,
        })  # fmt: skip


def reshape_and_cache_flash(
    key: Any, value: Any, key_cache: Any, value_cache: Any, slot_mapping: Any, kv_cache_dtype: str, k_scale: Any, v_scale: Any,
    *, fp8_flavour: str | None = None,
) -> None:  # fmt: skip
    """:func:`reshape_and_cache` for caches [num_blocks, block_size, num_kv_heads, head_dim]; NHD or HND by stride. Per-head scales work."""
    dtype = dtype_of_both(key_cache, value_cache, kv_cache_dtype, fp8_flavour)
    k_scale, v_scale = read_scales(dtype, k_scale, v_scale, key_cache, 2)
    _quire.append_arrays({
        "k": key_cache, "v": value_cache, "key": key, "value": value, "slot_mapping": slot_mapping, "cache_dtype": dtype,
        "k_scale": k_scale, "v_scale": v_scale,
    })  # fmt: skip


def triton_reshape_and_cache_flash(
    key: Any, value: Any, key_cache: Any, value_cache: Any, slot_mapping: Any, kv_cache_dtype: str, k_scale: Any, v_scale: Any,
    interleaved_v_pack_factor: int = 0, *, fp8_flavour: str | None = None,
) -> None:  # fmt: skip
    """:func:`reshape_and_cache_flash` by the name of vLLM's Triton op."""
    unsupported(interleaved_v_pack_factor=None if interleaved_v_pack_factor == 0 else interleaved_v_pack_factor)
    reshape_and_cache_flash(
        key, value, key_cache, value_cache, slot_mapping, kv_cache_dtype, k_scale, v_scale, fp8_flavour=fp8_flavour
    )
