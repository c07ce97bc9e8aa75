# SPDX-License-Identifier: Apache-2.0
"""Multi-head latent attention (MLA) on a latent cache: DeepSeek-V2, 2024, arXiv:2405.04434; DeepSeek-V3, Kimi K2 and others.

A token's row of the cache is its compressed K and V with its RoPE key behind: ``[c_kv (rank), k_rope (rope_dim)]``, 512 + 64 elements in
the models above. One row serves all heads. With ``W_uk [heads, nope_dim, rank]`` and ``W_uv [heads, v_dim, rank]`` head h has::

    k_h = [W_uk[h] c_kv, k_rope]        v_h = W_uv[h] c_kv        s = softmax_scale * q_h . k_h        softmax_scale = 1 / sqrt(nope_dim + rope_dim)

Decode never makes k_h and v_h: the query takes W_uk in (:func:`absorbed_query`), and attention runs over the rows themselves, as
multi-query attention with head_dim ``rank + rope_dim`` and v_head_dim ``rank`` (:func:`cache`). :func:`expanded` turns what comes out
into values of the heads::

    [W_uk[h]^T q_nope, q_rope] . [c_kv, k_rope]  =  q_h . k_h              W_uv[h] (sum_k p_k c_kv_k)  =  sum_k p_k v_h_k

Arrays are NumPy's, torch's, or of any library with slices and ``@``.
"""

from __future__ import annotations

from typing import Any

from quire import _quire
from quire.errors import ArgumentError

ROW_BYTES = 656  # of a row of fp8_ds_mla: 512 fp8 codes, 4 f32 scales, 64 bf16
ROWS = "fp8_ds_mla"

__all__ = ["ROWS", "ROW_BYTES", "absorbed_query", "append", "cache", "expanded", "softmax_scale"]


def _check(latent: Any, rank: int) -> None:
    if len(latent.shape) != 3:
        raise ArgumentError(f"latent: {list(latent.shape)}, expected [num_pages, page_size, rank + rope_dim]")
    if not 0 < rank < latent.shape[2]:
        raise ArgumentError(f"rank: {rank}, expected 1 to {latent.shape[2] - 1}: a row of the cache has {latent.shape[2]} elements")


def _of_rows(latent: Any, dtype: Any) -> bool:
    """Whether the cache is of FlashMLA's fp8 rows, which must be asked for by name: bytes do not say what they are."""
    if dtype != ROWS:
        return False
    if len(latent.shape) != 3 or latent.shape[2] != ROW_BYTES:
        raise ArgumentError(f"latent: {list(latent.shape)}, expected [num_pages, page_size, {ROW_BYTES}] with dtype={ROWS!r}")
    return True


def softmax_scale(nope_dim: int, rope_dim: int) -> float:
    """1 / sqrt(nope_dim + rope_dim): of the heads as the model has them, not of the latent rows (192, not 576)."""
    return float(nope_dim + rope_dim) ** -0.5


def cache(latent: Any, rank: int, *, scale: Any = None, dtype: Any = None) -> Any:
    """The cache as :func:`quire.attend` reads it: K is all of a row, V its first ``rank`` elements, one KV head.

    latent: [num_pages, page_size, rank + rope_dim] f32, f16, bf16 or an fp8 type, any strides. scale: of an fp8 cache, one number for
    rows as a whole (real value = stored value * scale). dtype: element type of raw arrays, as for :class:`quire.KVCache`.

    With ``dtype="fp8_ds_mla"``, latent is uint8 [num_pages, page_size, 656], FlashMLA's fp8 cache (vLLM's kv_cache_dtype of this name):
    512 codes of fp8_e4m3fn, four f32 scales, one for each 128 of them, and 64 RoPE elements of bf16. rank is 512, and there is no scale.

    Give ``softmax_scale`` to :class:`quire.Options`: the default would be that of head_dim rank + rope_dim.
    """
    if _of_rows(latent, dtype):
        if rank != 512 or scale is not None:
            raise ArgumentError(f"rank: {rank}, scale: {scale}, expected 512 and None with dtype={ROWS!r}: rows hold their scales")
        rows = latent[:, :, None, :]
        return _quire.KVCache(rows, rows, "nhd", dtype=dtype)
    _check(latent, rank)
    rows = latent[:, :, None, :]
    return _quire.KVCache(rows, rows[:, :, :, :rank], "nhd", k_scale=scale, v_scale=scale, dtype=dtype)


def append(latent: Any, c_kv: Any, k_rope: Any, slot_mapping: Any, *, scale: Any = None, dtype: Any = None, **options: Any) -> None:
    """Writes this step's rows: element-wise ``latent[page, offset] = [c_kv[t], k_rope[t]] / scale`` for every slot >= 0.

    c_kv: [num_tokens, rank]; k_rope: [num_tokens, rope_dim], rotated; f32, f16 or bf16. slot_mapping: [n] int32 or int64, slot = page *
    page_size + offset, negative = skip. options: ledger, requests, positions, stream, ... of :func:`quire.append`.

    This is :func:`quire.append` with the two parts of a row for K and V: they share no memory, as that function asks (Q-S07).

    Rows of ``dtype="fp8_ds_mla"`` (see :func:`cache`; c_kv [num_tokens, 512], k_rope [num_tokens, 64]) get their scales here, as vLLM
    writes them: of each block of 128 dims ``scale = max(max |c_kv| / 448, 2^-126)`` and ``code = c_kv / scale``, in f32; k_rope becomes bf16.
    """
    for name, rows in (("c_kv", c_kv), ("k_rope", k_rope)):
        if len(rows.shape) != 2:
            raise ArgumentError(f"{name}: {list(rows.shape)}, expected [num_tokens, {'rank' if name == 'c_kv' else 'rope_dim'}]")
    rank, rope_dim = c_kv.shape[1], k_rope.shape[1]
    if _of_rows(latent, dtype):
        _quire.append(cache(latent, 512, scale=scale, dtype=dtype), c_kv[:, None, :], k_rope[:, None, :], slot_mapping, **options)
        return
    _check(latent, rank)
    if rank + rope_dim != latent.shape[2]:
        raise ArgumentError(f"c_kv and k_rope: {rank} + {rope_dim} elements, expected {latent.shape[2]}: a row of the cache")
    rows = latent[:, :, None, :]
    parts = _quire.KVCache(rows[:, :, :, :rank], rows[:, :, :, rank:], "nhd", k_scale=scale, v_scale=scale, dtype=dtype)
    _quire.append(parts, c_kv[:, None, :], k_rope[:, None, :], slot_mapping, **options)


def absorbed_query(q_nope: Any, q_rope: Any, w_uk: Any, out: Any) -> Any:
    """out[t, h] = [W_uk[h]^T q_nope[t, h], q_rope[t, h]], the query of the latent rows; returns ``out``.

    q_nope: [num_tokens, heads, nope_dim]; q_rope: [num_tokens, heads, rope_dim], rotated; w_uk: [heads, nope_dim, rank]; out:
    [num_tokens, heads, rank + rope_dim].
    """
    rank = w_uk.shape[2]
    if tuple(out.shape) != (*q_nope.shape[:2], rank + q_rope.shape[2]):
        raise ArgumentError(f"out: {list(out.shape)}, expected {[*q_nope.shape[:2], rank + q_rope.shape[2]]} = [num_tokens, heads, rank + rope_dim]")
    out[:, :, :rank] = (q_nope[:, :, None, :] @ w_uk[None])[:, :, 0, :]
    out[:, :, rank:] = q_rope
    return out


def expanded(out: Any, w_uv: Any) -> Any:
    """[num_tokens, heads, v_dim]: W_uv[h] out[t, h] of attention over latent rows. out: [num_tokens, heads, rank]; w_uv: [heads, v_dim, rank]."""
    return (w_uv[None] @ out[:, :, :, None])[:, :, :, 0]
